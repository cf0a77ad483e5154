"""Summaries by a model behind a real API: an Agent's model and its summariser are on one strict server."""

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agents import ANSWER, TASK, ModelCounter, play
from chat_rules import rate_limited, refusal, server_error
from chat_server import Answer, ChatServer, Reply, Request, Script
from conversations import A, Block, T, U, Words, build, plans, prose
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ToolCall
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from over_http import (
    COUNTER,
    FILES,
    STEPS,
    WINDOW,
    accepted_shapes,
    agent_over,
    answered,
    as_request,
    recorded,
    script_of,
    sendable,
    streaming,
    with_recordings,
    work,
)

from haystack_compaction import CompactionHook, Compactor, SlidingWindowCompactor, SummarizationCompactor

SUMMARY = "## Goal\n- Say which modules matter.\n\n## Done and current state\n- Files were read one after the other."
SUMMARISER = "gpt-summaries"
ROOM = 4_000

TALK = [message for n in range(8) for message in (U(f"Question {n}? {prose(800, n)}"), A(prose(800, n + 100)))]


def summarizing(server: ChatServer, **settings: Any) -> SummarizationCompactor:
    generator = server.generator(model=SUMMARISER)
    return SummarizationCompactor(
        generator, **{"approximate_summary_tokens": 300, "max_summary_input_tokens": ROOM} | settings
    )


def of_summariser(server: ChatServer) -> list[Request]:
    return [request for request in server.requests if request.body["model"] == SUMMARISER]


def scripted_with_summaries(steps: Sequence[Sequence[ToolCall]], summary: Answer = SUMMARY) -> Script:
    """The steps of an Agent for the one model, always the same summary for the other."""
    answers = iter(script_of(steps))
    return lambda request: summary if request.body["model"] == SUMMARISER else next(answers)


class TestSummaries:
    @pytest.mark.parametrize(("way", "form"), [("run", "whole"), ("run_async", "streamed")])
    async def test_no_request_of_an_agent_is_refused_nor_of_the_summariser(
        self, chat_server: ChatServer, way: str, form: str
    ) -> None:
        chat_server.script, chat_server.context_window = scripted_with_summaries(work()), WINDOW
        chat_server.count = ModelCounter().count
        hook = CompactionHook(summarizing(chat_server), context_window=WINDOW)
        agent = agent_over(chat_server, hook)
        result = await play(way, agent, **(streaming(way) if form == "streamed" else {}))
        assert result["last_message"].text == ANSWER
        assert chat_server.errors == []
        assert chat_server.largest <= WINDOW
        asked = of_summariser(chat_server)
        assert asked
        # The limit is in the model's tokens, which are known of the conversation, not of the text that it becomes.
        assert max(request.tokens for request in asked) <= ROOM * 1.1
        assert len(chat_server.requests) - len(asked) == STEPS + 1

    @pytest.mark.parametrize("way", ["run", "run_async"])
    async def test_the_prompt_is_text_without_calls(self, chat_server: ChatServer, way: str) -> None:
        chat_server.script = lambda request: SUMMARY
        compactor = summarizing(chat_server)
        steps = [*TALK, U("and now?"), A(calls=["a"]), T("a", prose(3000)), A(calls=["b"]), T("b", prose(300))]
        if way == "run":
            assert compactor.compact(steps, 800, COUNTER) is not None
        else:
            assert await compactor.compact_async(steps, 800, COUNTER) is not None
        assert chat_server.errors == []
        for request in chat_server.requests:
            assert {message["role"] for message in request.messages} <= {"system", "user"}
            assert set(request.body) <= {"model", "messages", "n", "stream"}
            assert {type(message["content"]) for message in request.messages} == {str}

    def test_a_summary_is_updated_over_http_too(self, chat_server: ChatServer) -> None:
        chat_server.script = lambda request: f"## Goal\n- Summary {request.number}."
        compactor, messages = summarizing(chat_server), list(TALK)
        for turn in range(4):
            messages = compactor.compact(messages, 1_000, COUNTER) or messages
            assert refusal(as_request(messages)) is None
            messages += [A(prose(900, turn)), U(f"More, {turn}? {prose(2_000, turn)}")]
        assert chat_server.errors == []
        asked = chat_server.requests
        assert len(asked) > 3
        assert all(f"Summary {number}." in str(asked[number + 1].messages) for number in range(len(asked) - 1))
        assert sum("<conversation_summary>" in (message.text or "") for message in messages) == 1


UNUSABLE: dict[str, Answer] = {
    "a server error": server_error(),
    "too many requests": rate_limited(),
    "nothing": Reply(""),
    "white space": Reply(" \n "),
    "a call": Reply(tool_calls=[ToolCall("look", {}, "a")]),
    "a summary cut off": Reply(SUMMARY, finish_reason="length"),
    "a summary held back": Reply(SUMMARY, finish_reason="content_filter"),
    "a request for the conversation": Reply("Please provide the conversation that you want me to condense."),
}


class TestSummariesThatFail:
    @pytest.mark.parametrize("kind", UNUSABLE)
    def test_the_conversation_is_as_it_was(self, chat_server: ChatServer, kind: str) -> None:
        chat_server.script = lambda request: UNUSABLE[kind]
        assert summarizing(chat_server, max_attempts=2).compact(list(TALK), 1_000, COUNTER) is None
        assert len(chat_server.requests) == 2

    def test_it_is_so_if_the_summariser_has_less_room_than_thought(self, chat_server: ChatServer) -> None:
        chat_server.context_window = 500
        assert summarizing(chat_server).compact(list(TALK), 1_000, COUNTER) is None
        assert all("maximum context length is 500 tokens" in error for error in chat_server.errors)

    def test_it_is_so_if_the_summariser_answers_too_late(self, chat_server: ChatServer) -> None:
        chat_server.script = lambda request: Reply(SUMMARY, delay=0.3)
        compactor = SummarizationCompactor(
            chat_server.generator(model=SUMMARISER, timeout=0.1), approximate_summary_tokens=300, max_attempts=1
        )
        assert compactor.compact(list(TALK), 1_000, COUNTER) is None

    def test_a_failure_in_between_costs_one_more_call(self, chat_server: ChatServer) -> None:
        chat_server.script = lambda request: SUMMARY
        chat_server.fail_next(server_error())
        after = summarizing(chat_server).compact(list(TALK), 1_500, COUNTER)
        assert after is not None
        assert [request.error is None for request in chat_server.requests][:2] == [False, True]
        assert refusal(as_request(after)) is None

    def test_an_agent_goes_on_with_the_fallback(self, chat_server: ChatServer) -> None:
        chat_server.script, chat_server.context_window = scripted_with_summaries(work(30), server_error()), WINDOW
        compactor = summarizing(chat_server, fallback=SlidingWindowCompactor())
        agent_over(chat_server, CompactionHook(compactor, context_window=WINDOW)).run(messages=[U(TASK)])
        assert {request.body["model"] for request in chat_server.refused} == {SUMMARISER}
        assert len(chat_server.accepted) == 30 + 1
        assert chat_server.largest <= WINDOW


@with_recordings
class TestRecordedConversationsCondensed:
    @pytest.mark.parametrize("file", FILES)
    def test_the_server_takes_them_at_two_fifths(self, chat_server: ChatServer, file: str) -> None:
        chat_server.script = lambda request: SUMMARY if request.body["model"] == SUMMARISER else "OK"
        compactor = summarizing(chat_server)
        for run in recorded(file):
            after = compactor.compact(run.messages, int(COUNTER.count(run.messages) * 0.4), COUNTER)
            chat_server.take(as_request(answered(after or run.messages)))
        assert chat_server.errors == []
        assert all(request.tokens <= ROOM for request in of_summariser(chat_server))


class TestTheExample:
    @pytest.fixture
    def main(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
        """The example's `main`, with nothing but what is given in its environment."""
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("OPENAI_MAX_RETRIES", "0")
        entry = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "summaries_openai.py"))["main"]

        def run(**environment: str) -> int:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            return int(entry())

        return run

    def test_it_says_what_to_set(self, main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
        assert main() == 0
        assert "Set OPENAI_BASE_URL" in capsys.readouterr().out

    def test_it_condenses_and_asks(
        self, chat_server: ChatServer, main: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        chat_server.script = ["## Goal\n- Move the shop to db-new-1, port 5433.", "5433, and no restart."]
        assert main(OPENAI_BASE_URL=chat_server.url, OPENAI_MODEL="qwen3") == 0
        said = capsys.readouterr().out
        assert "- Move the shop to db-new-1, port 5433." in said
        assert said.endswith("5433, and no restart.\n")
        assert chat_server.errors == []
        assert [request.body["model"] for request in chat_server.requests] == ["qwen3", "qwen3"]

    def test_it_says_why_there_is_no_summary(
        self, chat_server: ChatServer, main: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        chat_server.script = lambda request: Reply(SUMMARY, finish_reason="length")
        assert main(OPENAI_BASE_URL=chat_server.url) == 1
        assert "cut off" in capsys.readouterr().err


COMPACTORS: dict[str, Compactor] = {
    "by budget": SummarizationCompactor(MockChatGenerator(SUMMARY), approximate_summary_tokens=60),
    "by count": SummarizationCompactor(MockChatGenerator(SUMMARY), keep_last_messages=3),
}


@pytest.mark.parametrize("name", COMPACTORS)
class TestEveryShapeCondensed:
    def test_what_the_api_accepts_it_accepts_condensed(self, name: str) -> None:
        for shape, messages in accepted_shapes().items():
            for share in (0.5, 0.0):
                after = COMPACTORS[name].compact(messages, int(COUNTER.count(messages) * share), COUNTER)
                assert after is None or refusal(as_request(after)) is None, (shape, share)

    @given(plan=plans(complete=True), share=st.sampled_from([0.6, 0.3, 0.0]))
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def test_random_conversations_too(self, name: str, plan: list[Block], share: float) -> None:
        messages = build([Words("user"), *(sendable(block) for block in plan)])
        after = COMPACTORS[name].compact(messages, int(COUNTER.count(messages) * share), COUNTER)
        assert after is None or refusal(as_request(after)) is None

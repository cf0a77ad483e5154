"""Compacted conversations, sent over HTTP to a server that refuses what OpenAI's API refuses."""

from dataclasses import replace

import pytest
from agents import ANSWER, TASK, ModelCounter, play
from chat_rules import refusal
from chat_server import ChatServer
from conversations import Block, Words, build, plans
from haystack.dataclasses import ChatMessage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from over_http import (
    COUNTER,
    FILES,
    INSTRUCTIONS,
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

from haystack_compaction import (
    CompactionHook,
    Compactor,
    ContextWindowCompactor,
    MediaCompactor,
    PipelineCompactor,
    SelectiveToolCallCompactor,
    SlidingWindowCompactor,
    TokenBudgetCompactor,
    ToolResultCollapseCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)

COMPACTORS: dict[str, Compactor] = {
    "pruning": ToolResultPruningCompactor(min_tokens=50),
    "window": SlidingWindowCompactor(),
    "collapse": ToolResultCollapseCompactor(max_summary_chars=200),
    "truncation": TruncationCompactor(),
    "pipeline": PipelineCompactor(
        [
            ToolResultPruningCompactor(min_tokens=50),
            ToolResultCollapseCompactor(),
            SlidingWindowCompactor(),
            TruncationCompactor(),
        ]
    ),
}
MORE_COMPACTORS: dict[str, Compactor] = COMPACTORS | {
    "pruning arguments": ToolResultPruningCompactor(min_tokens=0, clear_tool_inputs=True),
    "window without a note": SlidingWindowCompactor(omission_note=None, evidence_tokens=0),
    "window without steps": SlidingWindowCompactor(min_keep_steps=0),
    "truncation with a note": TruncationCompactor(omission_note="{num_removed} messages were removed."),
    "collapse with long lines": ToolResultCollapseCompactor(keep_last_tool_call_groups=0),
    "removal": SelectiveToolCallCompactor(),
    "media": MediaCompactor(),
    "budget": TokenBudgetCompactor(1_000, [ToolResultPruningCompactor()]),
    "context window": ContextWindowCompactor(2_000, 500),
}

each_compactor = pytest.mark.parametrize("name", COMPACTORS)

# All ways for one compactor; the others take turns, because a client of this API takes its time over long requests.
RUNS = [
    *(("window", way, form) for way in ("run", "run_async") for form in ("whole", "streamed")),
    ("pruning", "run_async", "streamed"),
    ("collapse", "run", "streamed"),
    ("truncation", "run_async", "streamed"),
    ("pipeline", "run_async", "whole"),
]


class TestAnAgent:
    """Sixty steps that need five windows."""

    def test_without_compaction_the_window_is_exceeded(self, chat_server: ChatServer) -> None:
        chat_server.script, chat_server.context_window = script_of(work()), WINDOW
        chat_server.count = ModelCounter().count
        with pytest.raises(Exception, match=f"This model's maximum context length is {WINDOW} tokens"):
            agent_over(chat_server).run(messages=[ChatMessage.from_user(TASK)])
        assert len(chat_server.accepted) < STEPS / 3

    @pytest.mark.parametrize(("name", "way", "form"), RUNS)
    async def test_no_request_is_refused(self, chat_server: ChatServer, name: str, way: str, form: str) -> None:
        chat_server.script, chat_server.context_window = script_of(work()), WINDOW
        chat_server.count = ModelCounter().count
        agent = agent_over(chat_server, CompactionHook(COMPACTORS[name], context_window=WINDOW))
        result = await play(way, agent, **(streaming(way) if form == "streamed" else {}))
        assert result["last_message"].text == ANSWER
        assert {request.streamed for request in chat_server.requests} == {form == "streamed"}
        self.hold(chat_server, STEPS)

    @each_compactor
    def test_nor_with_parallel_calls_whose_ids_come_again_in_each_step(
        self, chat_server: ChatServer, name: str
    ) -> None:
        steps = [[replace(call, id=f"call_{n}") for n, call in enumerate(calls)] for calls in work(20, parallel=2)]
        chat_server.script, chat_server.context_window = script_of(steps), WINDOW
        agent_over(chat_server, CompactionHook(COMPACTORS[name], context_window=WINDOW)).run(
            messages=[ChatMessage.from_user(TASK)]
        )
        self.hold(chat_server, 20)

    def test_nor_without_any_usage(self, chat_server: ChatServer) -> None:
        chat_server.script, chat_server.context_window = script_of(work()), WINDOW
        chat_server.count = ModelCounter().count
        agent = agent_over(chat_server, CompactionHook(COMPACTORS["truncation"], context_window=WINDOW))
        agent.run(messages=[ChatMessage.from_user(TASK)], **streaming("run", with_usage=False))
        self.hold(chat_server, STEPS)

    def test_collapsed_calls_that_fill_the_window_are_for_the_stage_behind(self, chat_server: ChatServer) -> None:
        chat_server.script, chat_server.context_window = script_of(work()), WINDOW
        # Each collapsed step stays a message of its own, so alone they would fill this window after 57 steps.
        stages = [ToolResultCollapseCompactor(), SlidingWindowCompactor()]
        hook = CompactionHook(PipelineCompactor(stages), context_window=WINDOW)
        agent_over(chat_server, hook).run(messages=[ChatMessage.from_user(TASK)])
        self.hold(chat_server, STEPS)

    def hold(self, server: ChatServer, steps: int) -> None:
        assert server.errors == []
        assert len(server.accepted) == steps + 1
        assert server.largest <= WINDOW
        for request in server.requests:
            assert request.messages[0]["content"] == INSTRUCTIONS
            assert TASK in [message["content"] for message in request.messages]


# --- Recorded conversations -------------------------------------------------------------------------------------------


@with_recordings
class TestRecordedConversations:
    @pytest.mark.parametrize("file", FILES)
    @pytest.mark.parametrize("name", ["none", *COMPACTORS])
    def test_the_server_takes_them_at_two_fifths(self, chat_server: ChatServer, name: str, file: str) -> None:
        for run in recorded(file):
            messages = run.messages
            if name != "none":
                target = int(COUNTER.count(messages) * 0.4)
                messages = COMPACTORS[name].compact(messages, target, COUNTER) or messages
            chat_server.take(as_request(answered(messages)))
        assert chat_server.errors == []
        assert len(chat_server.accepted) == FILES[file]

    @pytest.mark.parametrize("file", FILES)
    @pytest.mark.parametrize("name", MORE_COMPACTORS)
    @pytest.mark.parametrize("share", [0.1])
    def test_they_break_no_rule_at_any_target(self, name: str, file: str, share: float) -> None:
        for run in recorded(file):
            target = int(COUNTER.count(run.messages) * share)
            after = MORE_COMPACTORS[name].compact(run.messages, target, COUNTER) or run.messages
            assert refusal(as_request(answered(after))) is None, run.id


class TestEveryShape:
    @pytest.mark.parametrize("name", MORE_COMPACTORS)
    def test_what_the_api_accepts_it_accepts_compacted(self, name: str) -> None:
        tried = 0
        for shape, messages in accepted_shapes().items():
            size = COUNTER.count(messages)
            for share in (0.5, 0.0):
                after = MORE_COMPACTORS[name].compact(messages, int(size * share), COUNTER)
                if after is not None:
                    tried += 1
                    assert refusal(as_request(after)) is None, (shape, share)
        assert tried

    @pytest.mark.parametrize("name", MORE_COMPACTORS)
    @given(plan=plans(complete=True), share=st.sampled_from([0.6, 0.3, 0.0]))
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def test_random_conversations_too(self, name: str, plan: list[Block], share: float) -> None:
        messages = build([Words("user"), *(sendable(block) for block in plan)])
        assert refusal(as_request(messages)) is None
        after = MORE_COMPACTORS[name].compact(messages, int(COUNTER.count(messages) * share), COUNTER)
        assert after is None or refusal(as_request(after)) is None

"""
Real Agents for the tests: a script decides what the model calls, real tools read real files, every request is recorded.

The model has a tokenizer of its own, which is none of ours, and reports usage by it or not at all. Beside them stand a
state as the Agent hands it to a hook, and a tracer that keeps what it is told.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import pytest
from haystack import component, tracing
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.core.serialization import default_to_dict
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool, create_tool_from_function
from oracle import answers

TAG = "haystack.agent.hook.compaction."
TASK = "Read the library and tell me which modules matter."
ANSWER = "These modules matter."

# --- Tools: Python's own library is a source tree that is there on every machine --------------------------------------

LIBRARY = Path(os.__file__).parent
FILES = tuple(sorted(path.name for path in LIBRARY.glob("*.py") if path.stat().st_size > 12_000))


def read_file(
    path: Annotated[str, "The file, relative to the root of the library"],
    max_chars: Annotated[int, "How much of it to return"] = 6000,
) -> str:
    """Return the beginning of a source file."""
    return (LIBRARY / path).read_text(encoding="utf-8", errors="replace")[:max_chars]


def find_in_file(
    path: Annotated[str, "The file, relative to the root of the library"], word: Annotated[str, "The word to find"]
) -> str:
    """Return the lines of a source file that hold a word."""
    lines = (LIBRARY / path).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1) if word in line)


def library_tools() -> list[Tool]:
    return [create_tool_from_function(read_file), create_tool_from_function(find_in_file)]


def reading(steps: int, *, chars: int = 6000, parallel: int = 1) -> list[list[ToolCall]]:
    """The calls of so many steps, each of which reads other files."""
    wanted = iter(FILES * (1 + steps * parallel // len(FILES)))
    return [
        [
            ToolCall(tool_name="read_file", arguments={"path": next(wanted), "max_chars": chars}, id=f"call_{step}_{n}")
            for n in range(parallel)
        ]
        for step in range(steps)
    ]


# --- The model --------------------------------------------------------------------------------------------------------

_PIECE = re.compile(r"\s?[A-Za-z_]{1,7}|\s?\d{1,3}|\s?[^\sA-Za-z_\d]|\s+")


@lru_cache(maxsize=4096)
def _pieces(text: str) -> int:
    return len(_PIECE.findall(text))


class ModelCounter:
    """The model's own tokenizer: pieces of words, one a sign; four more a message."""

    additive = True

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        schemas = sum(_pieces(json.dumps(tool.tool_spec)) for tool in tools or ())
        return schemas + sum(4 + _message_pieces(message) for message in messages)


def _message_pieces(message: ChatMessage) -> int:
    calls = sum(_pieces(call.tool_name) + _pieces(json.dumps(call.arguments)) for call in message.tool_calls)
    results = sum(_pieces(str(result.result)) for result in message.tool_call_results)
    return calls + results + sum(_pieces(text) for text in message.texts)


class OffByAFactor(ModelCounter):
    """The model's tokenizer, but for a constant factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        # Message by message, so that sums stay exact.
        parts = [super(OffByAFactor, self).count([message]) for message in messages]
        return sum(int(part * self.factor) for part in [*parts, super().count([], tools)])


@component
class FirstSentences:
    """
    A summariser that answers with the first sentence of each message it is shown, as a plain list.

    :param max_chars: How much of a sentence it writes.
    """

    def __init__(self, max_chars: int = 60) -> None:
        self.max_chars = max_chars
        self.requests: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        self.requests.append(messages)
        shown = shown_in(messages[-1].text or "")
        sentences = [re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0][: self.max_chars] for _, text in shown]
        text = "\n".join(f"- {sentence}" for sentence in sentences)
        return {"replies": [ChatMessage.from_assistant(text)]}

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, max_chars=self.max_chars)


@component
class NoSummaries:
    """A summariser that never writes anything."""

    def __init__(self) -> None:
        self.requests: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        self.requests.append(messages)
        return {"replies": []}


def shown_in(prompt: str) -> list[tuple[str, str]]:
    """What a summariser is shown: the heading of each piece and its text."""
    transcript = prompt.split("<conversation_to_summarize>\n")[1].split("</conversation_to_summarize>", maxsplit=1)[0]
    pieces: list[tuple[str, list[str]]] = []
    for line in transcript.splitlines():
        if line.startswith("| "):
            pieces[-1][1].append(line[2:])
        else:
            pieces.append((line, []))
    return [(head, "\n".join(lines)) for head, lines in pieces]


Usage = Callable[[int, int], dict[str, Any] | None]


def usage_like_openai(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": prompt * 9 // 10},
    }


def usage_like_anthropic(prompt: int, completion: int) -> dict[str, Any]:
    cached = prompt * 9 // 10
    return {"prompt_tokens": prompt - cached, "completion_tokens": completion, "cache_read_input_tokens": cached}


def usage_missing(prompt: int, completion: int) -> None:
    return None


def usage_all_zero(prompt: int, completion: int) -> dict[str, Any]:
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


USAGES: dict[str, Usage | None] = {
    "like OpenAI's": usage_like_openai,
    "like Anthropic's": usage_like_anthropic,
    "none": usage_missing,
    "all zero": usage_all_zero,
    "words instead of tokens": None,
}


@dataclass(frozen=True)
class Request:
    """What the model was sent: the very message objects, and what they and the schemas cost by its own tokenizer."""

    messages: tuple[ChatMessage, ...]
    tokens: int


class ScriptedModel:
    """
    Calls what the script says, step by step, and then answers.

    :param script: The calls of each step.
    :param usage: What it reports. None leaves what `MockChatGenerator` makes up, which is a number of words.
    """

    def __init__(
        self, script: Sequence[Sequence[ToolCall]], *, usage: Usage | None = usage_like_openai, answer: str = ANSWER
    ) -> None:
        self.script = list(script)
        self.usage = usage
        self.answer = answer
        self.requests: list[Request] = []

    def __call__(self, messages: list[ChatMessage], tools: Any = None) -> ChatMessage:
        tokens = ModelCounter().count(messages, tools)
        self.requests.append(Request(tuple(messages), tokens))
        number = len(self.requests) - 1
        calls = self.script[number] if number < len(self.script) else []
        reply = ChatMessage.from_assistant(f"Step {number}." if calls else self.answer, tool_calls=list(calls))
        if self.usage is None:
            return reply
        return replace(reply, _meta={"usage": self.usage(tokens, ModelCounter().count([reply]))})

    @property
    def largest(self) -> int:
        return max(request.tokens for request in self.requests)


def agent_with(
    model: ScriptedModel, *hooks: Any, point: str = "before_llm", tools: list[Tool] | None = None, **settings: Any
) -> Agent:
    return Agent(
        chat_generator=MockChatGenerator(response_fn=model),
        tools=library_tools() if tools is None else tools,
        system_prompt="You know the library well.",
        hooks={point: list(hooks)} if hooks else {},
        max_agent_steps=200,
        **settings,
    )


async def play(way: str, agent: Agent, **inputs: Any) -> dict[str, Any]:
    """Run an Agent by `run` or `run_async`."""
    inputs.setdefault("messages", [ChatMessage.from_user(TASK)])
    return await agent.run_async(**inputs) if way == "run_async" else agent.run(**inputs)


both_ways = pytest.mark.parametrize("way", ["run", "run_async"])


def broken_pairs(messages: Sequence[ChatMessage]) -> list[str]:
    """Calls without a result and results without a call, which no provider accepts."""
    given = answers(messages)
    calls = [(n, k) for n, message in enumerate(messages) for k in range(len(message.tool_calls))]
    results = [(n, k) for n, message in enumerate(messages) for k in range(len(message.tool_call_results))]
    unanswered = [f"call {place} has no result" for place in calls if place not in given.values()]
    return unanswered + [f"result {place} has no call" for place in results if place not in given]


def changes_of_the_past(requests: Sequence[Request]) -> list[int]:
    """The requests that do not begin with all the message objects of the one before, so that a prompt cache is lost."""
    return [
        number
        for number in range(1, len(requests))
        if any(
            old is not new for old, new in zip(requests[number - 1].messages, requests[number].messages, strict=False)
        )
    ]


# --- A state, as the Agent hands it to a hook -------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _agents_schema() -> dict[str, Any]:
    return Agent(chat_generator=MockChatGenerator("x")).resolved_state_schema


def state_of(
    messages: Sequence[ChatMessage],
    *,
    context_tokens: int = 0,
    tools: Sequence[Tool] = (),
    hook_context: dict[str, Any] | None = None,
) -> State:
    data = {"messages": list(messages), "step_count": 1, "token_usage": {}, "tool_call_counts": {}}
    data |= {"context_tokens": context_tokens, "tools": list(tools), "hook_context": hook_context or {}}
    return State(schema=_agents_schema(), data={**data, "continue_run": False})


async def run_hook(way: str, hook: Any, state: State) -> None:
    if way == "run_async":
        await hook.run_async(state)
    else:
        hook.run(state)


def same_objects(left: Sequence[ChatMessage], right: Sequence[ChatMessage]) -> bool:
    return [id(message) for message in left] == [id(message) for message in right]


# --- What was said and traced -----------------------------------------------------------------------------------------


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What our package warned of."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname in ("WARNING", "ERROR", "CRITICAL") and record.name.startswith("haystack_compaction")
    ]


class SpySpan(tracing.Span):
    def __init__(self, name: str) -> None:
        self.name = name
        self.tags: dict[str, Any] = {}

    def set_tag(self, key: str, value: Any) -> None:
        self.tags[key] = value


class SpyTracer(tracing.Tracer):
    """Keeps every span with its tags."""

    def __init__(self) -> None:
        self.spans: list[SpySpan] = []
        self.open: list[SpySpan] = []

    @contextmanager
    def trace(
        self, operation_name: str, tags: dict[str, Any] | None = None, parent_span: Any = None
    ) -> Iterator[SpySpan]:
        span = SpySpan(operation_name)
        span.set_tags(tags or {})
        self.spans.append(span)
        self.open.append(span)
        try:
            yield span
        finally:
            self.open.remove(span)

    def current_span(self) -> SpySpan | None:
        return self.open[-1] if self.open else None

    def tagged(self, name: str) -> list[Any]:
        """The values of one of our tags, span by span."""
        return [span.tags[TAG + name] for span in self.spans if TAG + name in span.tags]


@contextmanager
def spied() -> Iterator[SpyTracer]:
    tracer, before = SpyTracer(), tracing.tracer.actual_tracer
    tracing.enable_tracing(tracer)
    try:
        yield tracer
    finally:
        tracing.enable_tracing(before)


def estimate(hook: Any, state: State) -> int:
    """The size that a hook gives the next request, as its span tells."""
    with spied() as tracer, tracing.tracer.trace("a step"):
        hook.run(state)
    (tokens,) = tracer.tagged("estimated_context_tokens")
    return int(tokens)

"""
Agents and conversations for the tests that go over HTTP: real Agents with real work behind `OpenAIChatGenerator`, the
recorded runs, and random conversations as OpenAI's API takes them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from agents import ANSWER, library_tools, reading
from chat_rules import refusal
from chat_server import Answer, ChatServer, Reply
from conversations import SHAPES, A, Block, Result, U, Words, image
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall

from haystack_compaction import Conversation, EstimatedTokenCounter, read_conversations

WINDOW = 6_000
STEPS = 60
INSTRUCTIONS = "You know the library well."


def ignore(chunk: StreamingChunk) -> None:
    """A callback is what makes the generator stream."""


async def ignore_async(chunk: StreamingChunk) -> None:
    """The same for the asynchronous way."""


def streaming(way: str, *, with_usage: bool = True) -> dict[str, Any]:
    """What an Agent is given so that its generator streams."""
    callback = ignore_async if way == "run_async" else ignore
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    return {"streaming_callback": callback, "generation_kwargs": options}


def agent_over(server: ChatServer, *hooks: Any) -> Agent:
    return Agent(
        chat_generator=server.generator(),
        tools=library_tools(),
        system_prompt=INSTRUCTIONS,
        hooks={"before_llm": list(hooks)},
        max_agent_steps=200,
    )


def script_of(steps: Sequence[Sequence[ToolCall]]) -> list[Answer]:
    return [*(Reply(f"Step {number}.", calls) for number, calls in enumerate(steps)), ANSWER]


def work(steps: int = STEPS, *, parallel: int = 1) -> list[list[ToolCall]]:
    return reading(steps, chars=1_800, parallel=parallel)


# --- Recorded runs ----------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).parents[2] / "shared" / "transcripts"
FILES = {"tau-bench.jsonl": 50, "swe-agent.jsonl": 2, "openhands.jsonl": 1}
with_recordings = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"the recorded runs are not part of the project; they are looked for in {FOLDER}"
)

COUNTER = EstimatedTokenCounter()

_loaded: dict[str, list[Conversation]] = {}


def recorded(file: str) -> list[Conversation]:
    if file not in _loaded:
        _loaded[file] = list(read_conversations(FOLDER / file))
    return _loaded[file]


def answered(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """A conversation as it goes on: a last call that never got its result gets one."""
    last = messages[-1]
    return [*messages, *(ChatMessage.from_tool("done", origin=call) for call in last.tool_calls)]


def as_request(messages: Sequence[ChatMessage]) -> dict[str, Any]:
    """The body that Haystack's generator sends."""
    return {"model": "gpt-test", "messages": [message.to_openai_dict_format() for message in messages]}


# --- What this API takes ----------------------------------------------------------------------------------------------


def sendable(block: Block) -> Block:
    """A part of a conversation as this API takes it: with ids, results right after their calls, and all of text."""
    if isinstance(block, Words):
        kind = "assistant" if block.kind == "reasoning" else block.kind
        return Words(kind, max(block.chars, 3))
    calls = [replace(call, result=replace(call.result or Result(), form="text")) for call in block.calls]
    ids = block.ids if block.ids == "numbered" else "fresh"
    layout = block.layout if block.layout == "reversed" else "adjacent"
    return replace(
        block, calls=tuple(calls), ids=ids, layout=layout, thinks="no" if block.thinks == "before" else block.thinks
    )


@cache
def accepted_shapes() -> dict[str, list[ChatMessage]]:
    """The shapes of conversations that can be sent to this API as they are."""
    pictures = [message for n in range(6) for message in (U(f"And this, {n}?", image(f"{n}")), A("A cat. " * (n + 1)))]
    shapes = {"pictures of a user": pictures} | {name: shape() for name, shape in SHAPES.items()}
    return {name: messages for name, messages in shapes.items() if is_accepted(messages)}


def is_accepted(messages: Sequence[ChatMessage]) -> bool:
    try:
        return refusal(as_request(messages)) is None
    except ValueError:
        # Haystack's generator does not send it: an id is missing, a message has several results, a result is an image.
        return False

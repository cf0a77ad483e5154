"""
One shot: a whole conversation compacted to 40 % of its tokens, cold, warm, and with an exact counter.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import haystack.hooks.compaction as theirs
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from haystack.token_counters import TiktokenCounter as TheirTiktokenCounter
from measuring import Line, Settings, Task, Times, exponent, ratio, take_turns
from tokenizing import offline_tokenizer, tokenise
from workload import conversation, fresh_state

from haystack_compaction import (
    CachedTokenCounter,
    CompactionHook,
    EstimatedTokenCounter,
    TiktokenCounter,
    ToolResultPruningCompactor,
)

SHARE = 0.4

FLOOR = "floor"
COLD = ("pruning, cold", "hook + pruning, cold")
WARM = ("pruning, warm", "hook + pruning, warm")
THEIRS = ("Haystack: pruning", "Haystack: hook + pruning")


def floor(messages: list[ChatMessage]) -> int:
    """
    One pass that touches the text of every message once: texts and results to UTF-8, arguments to JSON.

    No counter can do with less, so it is the unit in which times are told.
    """
    size = 0
    for message in messages:
        for text in message.texts:
            size += len(text.encode())
        for call in message.tool_calls:
            size += len(json.dumps(call.arguments).encode())
        for result in message.tool_call_results:
            size += len(result.result.encode())
    return size


@dataclass(frozen=True)
class Shots:
    """What can be done to one conversation, each to the same share of its tokens by the counter that is used."""

    messages: list[ChatMessage]

    def tasks(self) -> Mapping[str, Task]:
        ours, approximate = EstimatedTokenCounter(), ApproximateTokenCounter()
        tokens, their_tokens = ours.count(self.messages), approximate.count(self.messages)
        return {
            FLOOR: Task(lambda _: floor(self.messages)),
            COLD[0]: self.pruning(ToolResultPruningCompactor(), EstimatedTokenCounter, tokens),
            COLD[1]: self.hook(
                lambda: CompactionHook(ToolResultPruningCompactor(), context_window=tokens, compact_to=SHARE)
            ),
            WARM[0]: self.pruning(ToolResultPruningCompactor(), self._knowing_counter, tokens),
            WARM[1]: Task(_run_hook, lambda: self._knowing_hook(tokens)),
            THEIRS[0]: self.pruning(theirs.ToolResultPruningCompactor(), ApproximateTokenCounter, their_tokens),
            THEIRS[1]: self.hook(
                lambda: theirs.CompactionHook(
                    theirs.ToolResultPruningCompactor(), context_window=their_tokens, compact_to=SHARE
                )
            ),
        }

    def pruning(self, compactor: Any, make_counter: Any, tokens: int) -> Task:
        """A compactor with a new counter each time."""
        target = int(SHARE * tokens)
        return Task(lambda counter: _done(compactor.compact(self.messages, target, counter)), make_counter)

    def hook(self, make_hook: Any) -> Task:
        """A new hook on a new state, without any reported usage."""
        return Task(_run_hook, lambda: (make_hook(), fresh_state(self.messages)))

    def _knowing_counter(self) -> CachedTokenCounter:
        counter = CachedTokenCounter(EstimatedTokenCounter())
        counter.count(self.messages[: self._newest_step])
        return counter

    def _knowing_hook(self, tokens: int) -> Any:
        """A hook that saw the conversation one step before, when it just did not start."""
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=tokens, compact_at=1.0, compact_to=SHARE)
        state = fresh_state(self.messages[: self._newest_step])
        hook.run(state)
        state.set("messages", self.messages[self._newest_step :])
        return hook, state

    @property
    def _newest_step(self) -> int:
        """Where the newest step with calls begins."""
        return max(place for place, message in enumerate(self.messages) if message.tool_calls)


def _run_hook(hook_and_state: Any) -> None:
    hook, state = hook_and_state
    before = state.data["messages"]
    hook.run(state)
    _done(None if state.data["messages"] is before else state.data["messages"])


def _done(result: Any) -> None:
    assert result is not None, "nothing was compacted, so the time means nothing"


def estimated(settings: Settings) -> Iterator[Line]:
    """One shot with the default counter, against the floor and against Haystack."""
    tasks = {(name, size): task for size in settings.sizes for name, task in Shots(conversation(size)).tasks().items()}
    times = take_turns(tasks, settings.rounds)
    for size in settings.sizes:
        yield from _against_floor(times, size)
    for size in settings.sizes:
        yield from _against_haystack(times, size)
    ends = (settings.sizes[0], settings.sizes[-1])
    for name in (FLOOR, *COLD, *WARM, *THEIRS):
        limit = 1.1 if name in COLD + WARM else None
        small, large = (_median_ms(times, name, size) for size in ends)
        yield Line(f"growth {ends[0]:,} to {ends[1]:,}: {name}", exponent(small, large, ends), "exponent", limit)


def _against_floor(times: Times, size: int) -> Iterator[Line]:
    yield Line(f"{size:,}: {FLOOR}", _median_ms(times, FLOOR, size), "ms")
    for name in (*COLD, *WARM, *THEIRS):
        limit = 3.0 if name in COLD else 1.2 if name in WARM else None
        reached = ratio(times[name, size], times[FLOOR, size])
        yield Line(f"{size:,}: {name}", reached, "x floor", limit)


def _against_haystack(times: Times, size: int) -> Iterator[Line]:
    for name, their_name in zip(COLD, THEIRS, strict=True):
        reached = ratio(times[name, size], times[their_name, size])
        yield Line(f"{size:,}: {name}", reached, "x Haystack's time", 0.75)


def _median_ms(times: Times, name: str, size: int) -> float:
    return sorted(times[name, size])[len(times[name, size]) // 2] * 1e3


def exact(settings: Settings) -> Iterator[Line]:
    """One shot with an exact counter, against tokenising each message once."""
    size = settings.sizes[len(settings.sizes) // 2]
    shots = Shots(conversation(size))
    with offline_tokenizer() as tokenizer:
        counter, their_counter = TiktokenCounter(tokenizer.name), TheirTiktokenCounter(tokenizer.name)
        counter.warm_up()
        their_counter.warm_up()
        tokens, their_tokens = counter.count(shots.messages), their_counter.count(shots.messages)
        tasks = {
            ("each once", size): Task(lambda _: tokenise(tokenizer, shots.messages)),
            ("pruning", size): shots.pruning(ToolResultPruningCompactor(), lambda: counter, tokens),
            ("Haystack: pruning", size): shots.pruning(
                theirs.ToolResultPruningCompactor(), lambda: their_counter, their_tokens
            ),
        }
        times = take_turns(tasks, max(settings.rounds // 2, 1))
    yield Line(f"{size:,}: tokenising each message once", _median_ms(times, "each once", size), "ms")
    for name, limit in (("pruning", 1.15), ("Haystack: pruning", None)):
        reached = ratio(times[name, size], times["each once", size])
        yield Line(f"{size:,}: {name}, exact counter, cold", reached, "x each once", limit)

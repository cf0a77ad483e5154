"""
What it costs to have: memory while compacting and afterwards, and the time of the import.
"""

import gc
import os
import subprocess
import sys
import tempfile
import tracemalloc
import weakref
from collections.abc import Iterator
from statistics import median
from typing import Any

import haystack.hooks.compaction as theirs
from haystack.token_counters import ApproximateTokenCounter
from measuring import Line, Settings, traced
from tokenizing import offline_tokenizer
from workload import conversation, fresh_state

from haystack_compaction import (
    CachedTokenCounter,
    CompactionHook,
    EstimatedTokenCounter,
    TiktokenCounter,
    ToolResultPruningCompactor,
)

_MIB = 2**20
_SIZE = 4_000


def memory(_: Settings) -> Iterator[Line]:
    """The most that is held on the way beyond the result, and what is kept for each message."""
    with offline_tokenizer() as tokenizer:
        exact = TiktokenCounter(tokenizer.name)
        exact.warm_up()
        ours, their_pruning = ToolResultPruningCompactor(), theirs.ToolResultPruningCompactor()
        for name, compactor, counter, limit in (
            ("pruning, estimate", ours, EstimatedTokenCounter(), 1.5),
            ("pruning, exact", ours, exact, 1.5),
            ("Haystack: pruning, estimate", their_pruning, ApproximateTokenCounter(), None),
        ):
            yield Line(f"{_SIZE:,}: {name}: most held beyond the result", _peak(compactor, counter), "MiB", limit)
        for name, counter in (("estimate", EstimatedTokenCounter()), ("exact", exact)):
            yield Line(f"{_SIZE:,}: hook, {name}: most held beyond what stays", _peak_of_hook(counter), "MiB", 1.5)
    yield Line(f"{_SIZE:,}: hook: kept for a message", _kept_by_hook(start=False), "bytes", 300)
    yield Line(f"{_SIZE:,}: hook: kept for a message after compacting", _kept_by_hook(start=True), "bytes", 300)
    yield Line(f"{_SIZE:,}: hook: replaced messages still held", _held_by_hook(), "messages", 0)
    yield Line(f"{_SIZE:,}: CachedTokenCounter: kept for a message", _kept_by_cache(), "bytes", 300)


def _peak(compactor: Any, counter: Any) -> float:
    messages = conversation(_SIZE)
    target = counter.count(messages) * 2 // 5
    compactor.compact(conversation(200), target // 50, counter)
    _, _, peak = traced(lambda: compactor.compact(messages, target, counter))
    return peak / _MIB


def _hook(tokens: int, *, start: bool, counter: Any = None) -> CompactionHook:
    window = tokens if start else 10 * tokens
    return CompactionHook(ToolResultPruningCompactor(), context_window=window, token_counter=counter)


def _peak_of_hook(counter: Any) -> float:
    messages = conversation(_SIZE)
    hook, state = _hook(counter.count(messages), start=True, counter=counter), fresh_state(messages)
    _, _, peak = traced(lambda: hook.run(state))
    return peak / _MIB


def _kept_by_hook(*, start: bool) -> float:
    """What is freed when the hook goes, with all that it remembers of a run."""
    messages = conversation(_SIZE)
    state = fresh_state(messages)
    tracemalloc.start()
    try:
        hook = _hook(EstimatedTokenCounter().count(messages), start=start)
        hook.run(state)
        gc.collect()
        with_hook, _ = tracemalloc.get_traced_memory()
        del hook
        gc.collect()
        without, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (with_hook - without) / _SIZE


def _held_by_hook() -> int:
    """How many of the messages that were replaced the hook keeps alive."""
    messages = conversation(_SIZE)
    hook, state = _hook(EstimatedTokenCounter().count(messages), start=True), fresh_state(messages)
    given = [weakref.ref(message) for message in messages]
    del messages
    hook.run(state)
    gc.collect()
    left = {id(message) for message in state.data["messages"]}
    return sum(message() is not None and id(message()) not in left for message in given)


def _kept_by_cache() -> float:
    messages, counter = conversation(_SIZE), CachedTokenCounter(EstimatedTokenCounter())
    _, held, _ = traced(lambda: counter.count(messages))
    return held / _SIZE


_IMPORT = """
import sys, time
{before}
begin = time.perf_counter()
import haystack_compaction
print((time.perf_counter() - begin) * 1e3, "tiktoken" in sys.modules)
"""


def imports(settings: Settings) -> Iterator[Line]:
    """What the import adds to that of Haystack's Agents, in processes of their own, compiled as a package is."""
    with tempfile.TemporaryDirectory() as compiled:
        for name, before in (
            ("haystack.components.agents", "import haystack.components.agents"),
            ("the Agent", "from haystack.components.agents import Agent"),
        ):
            code = _IMPORT.format(before=before)
            _new_process(code, compiled)
            answers = [_new_process(code, compiled) for _ in range(max(settings.rounds, 5))]
            yield Line(f"import after {name}", median(float(answer[0]) for answer in answers), "ms", 50)
    yield Line("a tokenizer is imported", sum(answer[1] == "True" for answer in answers), "times", 0)


def _new_process(code: str, compiled: str) -> list[str]:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)  # noqa: S603
    return done.stdout.split()

"""
Whole runs of a real Agent: what the hook takes of its time, what it measures again, and what a quiet step costs.
"""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from statistics import median
from time import perf_counter
from typing import Any

import haystack.hooks.compaction as theirs
from haystack.dataclasses import ChatMessage
from haystack.tools import ToolsType
from measuring import Line, Settings, exponent
from tokenizing import offline_tokenizer, tokenise
from workload import TimedHook, conversation, fresh_state, message_text, scripted_agent, steps

from haystack_compaction import CompactionHook, EstimatedTokenCounter, TiktokenCounter, ToolResultPruningCompactor

WINDOWS = (32_000, 200_000)

# So large that nothing is ever compacted.
_NO_END = 10**9


def pruning_hook(window: int, token_counter: Any = None) -> CompactionHook:
    return CompactionHook(ToolResultPruningCompactor(), context_window=window, token_counter=token_counter)


def their_pruning_hook(window: int) -> Any:
    return theirs.CompactionHook(theirs.ToolResultPruningCompactor(), context_window=window)


def hook_time(n_steps: int, hook: Any, *, report_usage: bool) -> TimedHook:
    """Play a run with a hook, and return how long it took and how often it did something."""
    timed = TimedHook(hook)
    scripted_agent(n_steps, [timed], report_usage=report_usage).play()
    return timed


def agent_time(n_steps: int, *, report_usage: bool) -> float:
    """Play a run without a hook, and return how long it took."""
    return scripted_agent(n_steps, report_usage=report_usage).play().seconds


def whole_runs(settings: Settings) -> Iterator[Line]:
    """
    All time of the hook together, against the time of the same Agent without a hook.

    The best of several runs is told of both: an Agent runs its tools in threads, and on a busy machine waits for them
    much longer than it works, which would make a hook look cheap.
    """
    small, told = settings.steps[:2]
    agents: dict[bool, list[float]] = {True: [], False: []}
    hooks: dict[tuple[bool, int, int], list[TimedHook]] = {key: [] for key in product(agents, WINDOWS, settings.steps)}
    hook_time(small, pruning_hook(WINDOWS[0]), report_usage=True)
    for _ in range(settings.runs):
        for report_usage, seconds in agents.items():
            seconds.append(agent_time(told, report_usage=report_usage))
        for (report_usage, window, n_steps), played in hooks.items():
            played.append(hook_time(n_steps, pruning_hook(window), report_usage=report_usage))
    best = {key: min(played, key=lambda timed: timed.seconds) for key, played in hooks.items()}
    for report_usage, seconds in agents.items():
        yield Line(f"{_run(told, None, report_usage)}: Agent without a hook", min(seconds), "s")
        for window in WINDOWS:
            timed = {n_steps: best[report_usage, window, n_steps] for n_steps in settings.steps}
            yield from _one_window(_run(told, window, report_usage), timed, min(seconds))
        if settings.haystack_runs:
            their_timed = hook_time(told, their_pruning_hook(WINDOWS[0]), report_usage=report_usage)
            name = f"{_run(told, WINDOWS[0], report_usage)}: Haystack's hook"
            yield Line(name, their_timed.seconds / min(seconds), "x Agent's time", None, _told(their_timed))


def _one_window(name: str, timed: Mapping[int, TimedHook], agent_seconds: float) -> Iterator[Line]:
    """The hook's time in runs of several lengths, of which the second is compared with the Agent."""
    small, told, *_ = timed
    yield Line(f"{name}: hook", timed[told].seconds / agent_seconds, "x Agent's time", 0.10, _told(timed[told]))
    for large in list(timed)[1:]:
        grown = exponent(timed[small].seconds, timed[large].seconds, (small, large))
        yield Line(f"{name}: growth {small:,} to {large:,}", grown, "exponent", 1.1)


def _run(n_steps: int, window: int | None, report_usage: bool) -> str:
    where = "" if window is None else f", window {window:,}"
    return f"{n_steps:,} steps{where}, {'usage' if report_usage else 'no usage'}"


def _told(timed: TimedHook) -> str:
    return f"{timed.seconds:.3f} s, fired {timed.fired} times"


class CountingCounter(EstimatedTokenCounter):
    """Keeps how many messages, and how many of their characters, it was given to measure."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = 0
        self.chars = 0

    def count(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> int:
        self.messages += len(messages)
        self.chars += sum(len(message_text(message)) for message in messages)
        return super().count(messages, tools)


def work_amplification(settings: Settings) -> Iterator[Line]:
    """What is measured in a whole run, against all messages once. Counted, not timed."""
    n_steps = settings.steps[1]
    for report_usage in (True, False):
        everything = scripted_agent(n_steps, report_usage=report_usage).play().messages
        chars = sum(len(message_text(message)) for message in everything)
        for window in WINDOWS:
            counter = CountingCounter()
            scripted_agent(n_steps, [pruning_hook(window, counter)], report_usage=report_usage).play()
            name = _run(n_steps, window, report_usage)
            yield Line(f"{name}: messages measured", counter.messages / len(everything), "x all once", 1.1)
            yield Line(f"{name}: characters measured", counter.chars / chars, "x all once", 1.1)


def quiet_steps(settings: Settings) -> Iterator[Line]:
    """What the hook takes in a step in which nothing is compacted, with reported usage."""
    for size in (100, *settings.sizes):
        grown, again = _quiet_times(size, 45)
        note = f"{median(again):.0f} where no message is new; slowest {max(grown):.0f}"
        yield Line(f"{size:,}: hook, usage reported, nothing to do", median(grown), "microseconds", 100, note)


def _quiet_times(size: int, n_steps: int) -> tuple[list[float], list[float]]:
    """
    Let a conversation of a given length grow by some steps.

    :returns: The microseconds of the hook in each step, and when it is asked once more at once.
    """
    state = fresh_state(conversation(size))
    hook, times = pruning_hook(_NO_END), ([], [])
    hook.run(state)
    prompt = sum(_tokens(message) for message in state.data["messages"])
    for step in islice(steps(seed=1), n_steps):
        reply, *rest = step.messages()
        completion = _tokens(reply)
        reply.meta["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion}
        state.set("messages", [reply])
        state.set("context_tokens", prompt + completion)
        state.set("messages", rest)
        for kept in times:
            begin = perf_counter()
            hook.run(state)
            kept.append((perf_counter() - begin) * 1e6)
        prompt += completion + sum(map(_tokens, rest))
    return times


def _tokens(message: ChatMessage) -> int:
    return 4 + len(message_text(message)) // 4


def exact_runs(settings: Settings) -> Iterator[Line]:
    """All time of the hook together with an exact counter, against tokenising each message once; the best of both."""
    n_steps, runs = settings.steps[1], max(settings.runs // 2, 1)
    everything = scripted_agent(n_steps, report_usage=False).play().messages
    with offline_tokenizer() as tokenizer:
        counter = TiktokenCounter(tokenizer.name)
        counter.warm_up()
        tokenise(tokenizer, everything[:400])
        once: list[float] = []
        hooks: dict[tuple[bool, int], list[TimedHook]] = {key: [] for key in product((True, False), WINDOWS)}
        for _ in range(runs):
            for (report_usage, window), played in hooks.items():
                begin = perf_counter()
                tokenise(tokenizer, everything)
                once.append(perf_counter() - begin)
                played.append(hook_time(n_steps, pruning_hook(window, counter), report_usage=report_usage))
    yield Line(f"{n_steps:,} steps: tokenising each message once", min(once), "s")
    for (report_usage, window), played in hooks.items():
        timed = min(played, key=lambda one: one.seconds)
        name = f"{_run(n_steps, window, report_usage)}: hook, exact counter"
        yield Line(name, timed.seconds / min(once), "x each once", 1.5, _told(timed))

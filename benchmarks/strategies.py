"""
Measures what every strategy costs, alone and one after another, and prints it as a table.

    python benchmarks/strategies.py [--quick] [--only SECTION ...] [--json FILE]

Figures, not a test: it always ends well. `README.md` in this folder tells how to read it.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import haystack.hooks.compaction as theirs
from agent_runs import WINDOWS, CountingCounter, agent_time, hook_time
from first_floor import listen
from haystack.token_counters import ApproximateTokenCounter
from measuring import Line, Settings, Task, Times, exponent, ratio, show, show_heading, take_turns, write
from one_shot import SHARE, floor
from workload import conversation, message_text, scripted_agent

from haystack_compaction import (
    CompactionHook,
    ContextWindowCompactor,
    EstimatedTokenCounter,
    MediaCompactor,
    PipelineCompactor,
    SelectiveToolCallCompactor,
    SlidingWindowCompactor,
    TokenBudgetCompactor,
    ToolResultCollapseCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)

FLOOR = "floor"
THEIR_WINDOW = "Haystack: window"
WINDOW = "window"


def _pipeline(**evidence: Any) -> PipelineCompactor:
    return PipelineCompactor(
        [
            MediaCompactor(),
            ToolResultPruningCompactor(min_tokens=2_000),
            ToolResultCollapseCompactor(keep_last_tool_call_groups=600, **evidence),
            SlidingWindowCompactor(**evidence),
        ]
    )


# What each may cost, in floors. The stages of the pipeline are held back, so that each has something to do.
STRATEGIES: dict[str, tuple[Callable[[], Any], float]] = {
    "pruning": (ToolResultPruningCompactor, 3),
    WINDOW: (lambda: SlidingWindowCompactor(evidence_tokens=0), 3),
    "truncation": (TruncationCompactor, 4),
    "truncation with a note": (lambda: TruncationCompactor(omission_note="[{num_removed} gone]", evidence_tokens=0), 4),
    "selective": (SelectiveToolCallCompactor, 4),
    "collapse": (lambda: ToolResultCollapseCompactor(evidence_tokens=0), 4),
    "media": (MediaCompactor, 4),
    "token budget": (lambda: TokenBudgetCompactor(10**9, [SelectiveToolCallCompactor()]), 4),
    "context window": (lambda: ContextWindowCompactor(10**9, 0), 4),
    "pipeline of four": (lambda: _pipeline(evidence_tokens=0), 4),
    "window with evidence": (SlidingWindowCompactor, 20),
    "collapse with evidence": (ToolResultCollapseCompactor, 20),
    "pipeline of four with evidence": (_pipeline, 20),
}


def one_shot(settings: Settings) -> Iterator[Line]:
    """One shot to 40 % with the default counter, nothing counted before."""
    tasks: dict[tuple[str, int], Task] = {}
    for size in settings.sizes:
        messages = conversation(size)
        target = int(SHARE * EstimatedTokenCounter().count(messages))
        tasks[FLOOR, size] = Task(lambda _, messages=messages: floor(messages))
        for name, (make, _) in STRATEGIES.items():
            tasks[name, size] = _shot(make(), messages, target, EstimatedTokenCounter)
        their_target = int(SHARE * ApproximateTokenCounter().count(messages))
        tasks[THEIR_WINDOW, size] = _shot(
            theirs.SlidingWindowCompactor(), messages, their_target, ApproximateTokenCounter
        )
    times = take_turns(tasks, settings.rounds)
    for size in settings.sizes:
        yield Line(f"{size:,}: {FLOOR}", median(times[FLOOR, size]) * 1e3, "ms")
        for name, (_, limit) in STRATEGIES.items():
            yield Line(f"{size:,}: {name}", ratio(times[name, size], times[FLOOR, size]), "x floor", limit)
        yield Line(f"{size:,}: {THEIR_WINDOW}", ratio(times[THEIR_WINDOW, size], times[FLOOR, size]), "x floor")
        reached = ratio(times[WINDOW, size], times[THEIR_WINDOW, size])
        yield Line(f"{size:,}: {WINDOW}", reached, "x Haystack's time", 0.75)
    yield from _growth(times, settings)


def _shot(compactor: Any, messages: Any, target: int, make_counter: Callable[[], Any]) -> Task:
    return Task(lambda counter: compactor.compact(messages, target, counter), make_counter)


def _growth(times: Times, settings: Settings) -> Iterator[Line]:
    ends = (settings.sizes[0], settings.sizes[-1])
    for name in (FLOOR, *STRATEGIES, THEIR_WINDOW):
        small, large = (median(times[name, size]) for size in ends)
        limit = 1.1 if name in STRATEGIES else None
        yield Line(f"growth {ends[0]:,} to {ends[1]:,}: {name}", exponent(small, large, ends), "exponent", limit)


HOOKS: dict[str, Callable[[int, Any], Any]] = {
    WINDOW: lambda window, counter: _hook(SlidingWindowCompactor(evidence_tokens=0), window, counter),
    "window with evidence": lambda window, counter: _hook(SlidingWindowCompactor(), window, counter),
    "selective": lambda window, counter: _hook(SelectiveToolCallCompactor(), window, counter),
    "collapse": lambda window, counter: _hook(ToolResultCollapseCompactor(evidence_tokens=0), window, counter),
    "the graded default": lambda window, counter: _hook(
        CompactionHook.for_context_window(window, 0).compactor, window, counter
    ),
}


def _hook(compactor: Any, window: int, counter: Any) -> CompactionHook:
    return CompactionHook(compactor, context_window=window, token_counter=counter)


def whole_runs(settings: Settings) -> Iterator[Line]:
    """All time of the hook together over a whole run, against the time of the same Agent without a hook."""
    small, told = settings.steps[:2]
    for report_usage in (True, False):
        agent = min(agent_time(told, report_usage=report_usage) for _ in range(settings.runs))
        yield Line(f"{told:,} steps, {_usage(report_usage)}: Agent without a hook", agent, "s")
        for name, make in HOOKS.items():
            for window in WINDOWS:
                played = _best_runs(make, window, (small, told), settings, report_usage=report_usage)
                run = f"{told:,} steps, window {window:,}, {_usage(report_usage)}: {name}"
                note = f"{played[told].seconds:.3f} s, fired {played[told].fired} times"
                limit = 0.10 if name == WINDOW else None
                yield Line(run, played[told].seconds / agent, "x Agent's time", limit, note)
                grown = exponent(played[small].seconds, played[told].seconds, (small, told))
                yield Line(f"{run}: growth {small:,} to {told:,}", grown, "exponent", 1.1)


def _best_runs(
    make: Callable[[int, Any], Any], window: int, lengths: tuple[int, ...], settings: Settings, *, report_usage: bool
) -> Mapping[int, Any]:
    best = {}
    for n_steps in lengths:
        runs = [hook_time(n_steps, make(window, None), report_usage=report_usage) for _ in range(settings.runs)]
        best[n_steps] = min(runs, key=lambda timed: timed.seconds)
    return best


def _usage(report_usage: bool) -> str:
    return "usage" if report_usage else "no usage"


def work_amplification(settings: Settings) -> Iterator[Line]:
    """What is measured in a whole run, against all messages once. Counted, not timed."""
    n_steps = settings.steps[1]
    everything = scripted_agent(n_steps, report_usage=True).play().messages
    chars = sum(len(message_text(message)) for message in everything)
    for name, make in HOOKS.items():
        for window in WINDOWS:
            counter = CountingCounter()
            scripted_agent(n_steps, [make(window, counter)], report_usage=True).play()
            run = f"{n_steps:,} steps, window {window:,}: {name}"
            yield Line(f"{run}: messages measured", counter.messages / len(everything), "x all once", 1.1)
            yield Line(f"{run}: characters measured", counter.chars / chars, "x all once", 1.1)


SECTIONS: dict[str, tuple[str, Callable[[Settings], Iterator[Line]]]] = {
    "one-shot": ("One shot to 40 %, estimate, cold", one_shot),
    "runs": ("Whole runs of a real Agent, estimate", whole_runs),
    "work": ("Work over a whole run, counted", work_amplification),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what the strategies cost.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds, for a first look")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    arguments = parser.parse_args()
    settings = Settings(runs=3)
    if arguments.quick:
        settings = replace(settings, sizes=(1_000, 2_000, 4_000), rounds=3, steps=(100, 400), runs=1)
    heard, lines = listen(), []
    for name in arguments.only or SECTIONS:
        title, section = SECTIONS[name]
        show_heading(title)
        for line in section(settings):
            show([line])
            lines.append(line)
    missed = [line for line in lines if line.verdict == "MISSED"]
    print(f"\n{len(missed)} of {sum(line.limit is not None for line in lines)} limits missed.")
    show(missed)
    for text, times in heard.texts.items():
        print(f"\nWarned {times} times: {text}")
    if arguments.json is not None:
        write(lines, arguments.json)


if __name__ == "__main__":
    main()

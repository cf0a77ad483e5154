"""
How the benchmarks take times and memory, and the table in which they tell what they found.

Machines are shared and clocks are not to be trusted, so contenders take turns, size by size and round by round. What is
compared is always two times of the same round, and what is told is the median over the rounds.
"""

import gc
import json
import math
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any


@dataclass(frozen=True)
class Line:
    """
    One line of the table.

    :param name: What was measured.
    :param reached: The figure.
    :param unit: What it is a figure of.
    :param limit: What it may be at most. None: told for comparison only.
    :param note: What helps to read it.
    """

    name: str
    reached: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "ok" if self.reached <= self.limit else "MISSED"


@dataclass(frozen=True)
class AtLeast(Line):
    """
    A line whose figure must not be below its limit.
    """

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "ok" if self.reached >= self.limit else "MISSED"


def show(lines: Iterable[Line]) -> None:
    """Print lines of the table as they come."""
    for line in lines:
        limit = "" if line.limit is None else f"{line.limit:g}"
        reached = f"{line.reached:.3g}" if line.reached < 1000 else f"{line.reached:,.0f}"
        print(f"{line.name:<66} {reached:>8} {limit:>6} {line.unit:<18} {line.verdict:<7} {line.note}", flush=True)


def show_heading(title: str) -> None:
    print(f"\n{title:<66} {'reached':>8} {'limit':>6}", flush=True)


def write(lines: Sequence[Line], path: Path) -> None:
    path.write_text(json.dumps([{**asdict(line), "verdict": line.verdict} for line in lines], indent=2) + "\n")


@dataclass(frozen=True)
class Task:
    """
    Something to time.

    :param work: What is timed. It is given what `prepare` returned.
    :param prepare: What has to be made anew each time, and is not timed.
    """

    work: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None

    def seconds(self) -> float:
        given = self.prepare()
        gc.collect()
        begin = perf_counter()
        self.work(given)
        return perf_counter() - begin


@dataclass(frozen=True)
class Settings:
    """
    How much is measured.

    :param sizes: The lengths of conversations in messages; the first and the last tell how a time grows.
    :param rounds: How often one shot is taken.
    :param steps: The lengths of whole runs in steps; the second is told, the others tell how it grows.
    :param runs: How often a whole run is played.
    :param haystack_runs: Whether Haystack's hook plays whole runs too, which takes minutes.
    """

    sizes: tuple[int, ...] = (1_000, 4_000, 16_000)
    rounds: int = 7
    steps: tuple[int, ...] = (250, 1_000)
    runs: int = 5
    haystack_runs: bool = False


Times = Mapping[tuple[str, int], list[float]]


def take_turns(tasks: Mapping[tuple[str, int], Task], rounds: int) -> Times:
    """
    Time tasks in turns, after a first turn that does not count.

    :param tasks: What to time, by contender and size.
    :param rounds: How often.
    :returns: The times of each, round by round.
    """
    times: dict[tuple[str, int], list[float]] = {key: [] for key in tasks}
    for task in tasks.values():
        task.seconds()
    for _ in range(rounds):
        for key, task in tasks.items():
            times[key].append(task.seconds())
    return times


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios, round by round."""
    return median(one / other for one, other in zip(above, below, strict=True))


def exponent(small: float, large: float, sizes: tuple[int, int]) -> float:
    """With which power of the size a time grows."""
    return math.log(large / small) / math.log(sizes[1] / sizes[0])


def traced(work: Callable[[], Any]) -> tuple[Any, int, int]:
    """
    Run something while memory is watched.

    :returns: What it returned, the bytes that are held afterwards, the result included, and how many more were held at
        most on the way.
    """
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = work()
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, after - before, peak - after

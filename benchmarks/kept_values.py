"""
What recorded runs needed later: which of those values a compacted conversation still holds.

A run is cut at a model call at about half and at about two thirds of its messages. Needed is what the calls after the
cut say in their arguments and the text before the cut says already; survived is what the compacted text still says.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asked import text_of
from contenders import HAYSTACK_WINDOW, WITH_EVIDENCE, WITHOUT_EVIDENCE
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.token_counters import ApproximateTokenCounter
from measuring import AtLeast, Line

from haystack_compaction import EstimatedTokenCounter
from haystack_compaction.transcripts import read_conversations

SHARE = 0.4

_MIN_MESSAGES = 6
_VALUE_CHARS = range(3, 81)
_CALLED_AFTER = (ChatRole.TOOL, ChatRole.USER)
_TAU_BENCH = "tau-bench"
_COUNTERS = {"four characters a token": ApproximateTokenCounter(), "estimate": EstimatedTokenCounter()}


@dataclass(frozen=True)
class Cut:
    """A conversation as it was when the model was called, and what its later calls needed of it."""

    messages: list[ChatMessage]
    needed: frozenset[str]


@dataclass(frozen=True)
class Kept:
    """
    What became of many cuts.

    :param needed: How many values were needed.
    :param survived: How many of them were still there.
    :param size: Tokens afterwards over tokens before, of all conversations that something was needed of together.
    """

    needed: int
    survived: int
    size: float

    @property
    def percent(self) -> float:
        return 100 * self.survived / max(self.needed, 1)


def recorded(compactors: Mapping[str, Any], folder: Path) -> Iterator[Line]:
    """The lines of the section: by family of runs, by counter, by compactor."""
    files = sorted(folder.glob("*.jsonl"), key=lambda path: (path.stem != _TAU_BENCH, path.stem))
    if not files:
        print(f"No recorded runs in {folder}; `--transcripts` tells where they are.")
    for path in files:
        cuts = [cut for run in read_conversations(path) for cut in cuts_of(run.messages)]
        for counting, counter in _COUNTERS.items():
            kept = {name: survival(cuts, compactor, counter) for name, compactor in compactors.items()}
            yield from _lines(path.stem, counting, kept)


def cuts_of(messages: Sequence[ChatMessage]) -> Iterator[Cut]:
    """The places of a run at which something was needed."""
    half, two_thirds = len(messages) // 2, 2 * len(messages) // 3
    for place in sorted({half, half + 1, two_thirds, two_thirds + 1}):
        if _MIN_MESSAGES <= place < len(messages) and messages[place - 1].role in _CALLED_AFTER:
            before = list(messages[:place])
            needed = _needed(_text(before), messages[place:])
            if needed:
                yield Cut(before, needed)


def survival(cuts: Sequence[Cut], compactor: Any, counter: Any) -> Kept:
    """Compact each to the share, and look what is left."""
    survived = before = after = 0
    for cut in cuts:
        tokens = counter.count(cut.messages)
        compacted = compactor.compact(cut.messages, int(SHARE * tokens), counter) or cut.messages
        text = _text(compacted)
        survived += sum(value in text for value in cut.needed)
        before += tokens
        after += counter.count(compacted)
    return Kept(sum(len(cut.needed) for cut in cuts), survived, after / max(before, 1))


def _needed(text: str, later: Sequence[ChatMessage]) -> frozenset[str]:
    values = (value for message in later for call in message.tool_calls for value in _leaves(call.arguments))
    return frozenset(value for value in values if len(value) in _VALUE_CHARS and value in text)


def _leaves(value: Any) -> Iterator[str]:
    """All strings and numbers, as text."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _text(messages: Sequence[ChatMessage]) -> str:
    return "\n".join(map(text_of, messages))


def _lines(family: str, counting: str, kept: Mapping[str, Kept]) -> Iterator[Line]:
    limits = _limits(family, kept) if counting == "estimate" else (None, None)
    for name, result in kept.items():
        is_judged = name == WITH_EVIDENCE
        line = f"{family}, {counting}: {name}"
        note = f"of {result.needed} values; size {result.size:.3f}"
        yield AtLeast(line, result.percent, "% survived", limits[0] if is_judged else None, note)
        if is_judged and limits[1] is not None:
            yield Line(f"{line}: size", result.size, "of the tokens", round(limits[1], 3))


def _limits(family: str, kept: Mapping[str, Kept]) -> tuple[float, float]:
    """What the window with evidence has to keep at least, and how large it may be."""
    if family == _TAU_BENCH:
        return 97, 0.61
    return 95, kept.get(WITHOUT_EVIDENCE, kept[HAYSTACK_WINDOW]).size + 0.02

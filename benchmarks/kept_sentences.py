"""
What users asked: how many of their sentences still stand, word for word, after five rounds of compaction.

Each round brings the conversation to the same share of the characters that it had at first; in between people talk on.
The talk is short, a turn, so that hardly anything has to go that was kept before; or long, as under a hook that waits
until the conversation has grown from 0.4 to 0.7 of the window, so that after five rounds nothing of the beginning is
left but what the notes carry.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from asked import LANGUAGES, SENTENCES, Asked, Characters, conversations, standing
from contenders import WITH_EVIDENCE
from haystack.dataclasses import ChatMessage
from measuring import AtLeast, Line

ROUNDS = 5
MARK = "context_compaction"

# By share of the characters, what has to stand at the end, in percent.
_SHARES = {0.1: 45, 0.2: 88, 0.4: 100}
_GROWTH = 0.75  # of the target, when the talk is long
_COUNTER = Characters()


@dataclass(frozen=True)
class Rounds:
    """
    What became of one conversation.

    :param stood: How many sentences stood after each round.
    :param sizes: What each round left, over its target.
    :param traps: How many sentences of tools and of the assistant the notes hold in the end, word for word.
    """

    stood: tuple[int, ...]
    sizes: tuple[float, ...]
    traps: int


def asked(
    compactors: Mapping[str, Any], *, seeds: int, held_out: bool = False, long_talk: bool = False
) -> Iterator[Line]:
    """The lines of the section: by share, by compactor."""
    for share, least in _SHARES.items():
        for name, compactor in compactors.items():
            results: dict[str, list[Rounds]] = defaultdict(list)
            for conversation in conversations(LANGUAGES, seeds, held_out=held_out):
                played = play(conversation, compactor, share, long_talk=long_talk)
                results[conversation.language].append(played)
            is_judged = name == WITH_EVIDENCE and not long_talk
            yield from _lines(f"{share:.0%}: {name}", results, least if is_judged else None)


def play(conversation: Asked, compactor: Any, share: float, *, long_talk: bool = False) -> Rounds:
    """Compact a conversation five times, with talk in between."""
    messages = list(conversation.messages)
    target = int(share * _COUNTER.count(messages))
    stood, sizes = [], []
    for number in range(ROUNDS):
        if number:
            messages = _talked_on(messages, conversation, number, int(_GROWTH * target) if long_talk else 0)
        messages = compactor.compact(messages, target, _COUNTER) or messages
        stood.append(standing(conversation.sentences, messages))
        sizes.append(_COUNTER.count(messages) / target)
    notes = [message for message in messages if MARK in message.meta and message.is_from("user")]
    return Rounds(tuple(stood), tuple(sizes), standing(conversation.traps, notes))


def _talked_on(messages: Sequence[ChatMessage], conversation: Asked, number: int, tokens: int) -> list[ChatMessage]:
    """The conversation with at least one more turn, and with at least so many more tokens."""
    longer, talk = list(messages), conversation.talk(number)
    size = _COUNTER.count(longer)
    while True:
        longer += next(talk)
        if _COUNTER.count(longer) - size >= tokens:
            return longer


def _lines(name: str, results: Mapping[str, Sequence[Rounds]], least: float | None) -> Iterator[Line]:
    everything = [rounds for of_language in results.values() for rounds in of_language]
    sizes = [size for rounds in everything for size in rounds.sizes]
    languages = " ".join(f"{language} {_percent(rounds):.0f}" for language, rounds in results.items())
    traps = sum(rounds.traps for rounds in everything)
    note = f"{languages}; after one round {_percent(everything, 0):.0f}"
    note += f"; size {mean(sizes):.2f} of the budget, at most {max(sizes):.2f}"
    if traps:
        note += f"; {traps} sentences of others in {len(everything)} notes"
    yield AtLeast(name, _percent(everything), "% stand", least, note)
    if least is not None:
        yield Line(f"{name}: largest result", max(sizes), "of the budget", 1)


def _percent(results: Sequence[Rounds], number: int = -1) -> float:
    return 100 * mean(rounds.stood[number] for rounds in results) / SENTENCES

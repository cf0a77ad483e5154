"""
Which of many values a later call most likely needs.

What speaks for a value adds up as logarithms of odds: that a user named it, that calls used it, that calls ask for
things by the name under which it stands, that nobody could guess it. The weights were fitted to half of some recorded
runs, rounded, and tried on the other half.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log, log1p
from typing import Final

from haystack_compaction.evidence.values import Value, likelihood_by, likelihood_of, values_in_result, values_in_text

# A user named it; a call used it, and each further one; the model told it; a result held it once more; an earlier note
# kept it, the first of them; calls ask for things by that name.
_SAID: Final = 0.8
_USED: Final = 1.0
_USED_AGAIN: Final = 0.6
_TOLD: Final = 0.25
_LISTED: Final = 0.1
_NOTED: Final = 2.0
_ASKED_BY_NAME: Final = 1.3

# How often something counts, how fast it is forgotten, and how long a list is whose members count for half.
_MOST: Final = 4
_AGING: Final = 0.12
_LONG_LIST: Final = 24
# So many characters cost about as much as an identifier does.
_USUAL_CHARS: Final = 8
_LINE_CHARS: Final = 6

# How much of what tools returned and the model said is searched, the newest first. What is older and was named by
# nobody since is hardly ever needed, and reading all of a long run would take longer than all the rest.
_SEARCHED_CHARS: Final = 250_000
_MAX_NAMES: Final = 1000
_MAX_NAME_CHARS: Final = 60
_MAX_DEPTH: Final = 5


@dataclass(slots=True)
class _Known:
    """What is known about a value."""

    text: str
    key: str = ""
    likelihood: float = 0.0
    said: int = 0
    used: int = 0
    told: int = 0
    listed: int = 0
    noted: float = 0.0
    last: int = -1
    is_one_of: int = 0

    def meet(self, position: int, value: Value) -> None:
        """Learn where the value stood, and under which name."""
        self.last = max(self.last, position)
        if value.key and not self.key:
            self.key = value.key
            self.is_one_of = 0
        if not self.is_one_of:
            self.is_one_of = value.is_one_of
            cost = log((len(self.text) + _LINE_CHARS) / (_USUAL_CHARS + _LINE_CHARS))
            self.likelihood = likelihood_of(self.text) + likelihood_by(self.key) - cost
        elif value.is_one_of < self.is_one_of:
            self.is_one_of = value.is_one_of


@dataclass(slots=True)
class _Unread:
    """Text of a tool or of the model that is searched when it is asked for, once."""

    position: int
    text: str
    is_result: bool
    found: list[Value] | None = None

    def values(self) -> list[Value]:
        if self.found is None:
            search = values_in_result if self.is_result else values_in_text
            self.found = list(distinct(search(self.text)))
        return self.found


class ValueRanking:
    """
    Collects the values of what goes, and ranks them.
    """

    def __init__(self) -> None:
        self._named: dict[str, _Known] = {}
        self._unread: list[_Unread] = []
        self._names: set[str] = set()
        self._newest = 0

    def __bool__(self) -> bool:
        return bool(self._named or self._unread)

    def say(self, position: int, values: Iterable[Value]) -> None:
        """
        Take values that a user named.

        :param position: Where the message stands in the conversation.
        :param values: What it names.
        """
        for value in distinct(values):
            self._meet(position, value).said += 1

    def use(self, position: int, values: Iterable[Value]) -> None:
        """
        Take values that a call used.

        :param position: Where the message stands in the conversation.
        :param values: What it uses.
        """
        for value in distinct(values):
            self._meet(position, value).used += 1

    def recall(self, position: int, values: Sequence[Value]) -> None:
        """
        Take values that an earlier note kept.

        :param position: Where the note stands in the conversation.
        :param values: What it kept, the most important first.
        """
        for number, value in enumerate(values):
            self._meet(position, value).noted = _NOTED * (1.0 - 0.75 * number / len(values))

    def read(self, position: int, text: str, *, is_result: bool) -> None:
        """
        Take a text that is searched if nothing newer leaves no time for it.

        :param position: Where the message stands in the conversation.
        :param text: What a tool returned or the model said.
        :param is_result: Whether a tool returned it.
        """
        self._newest = max(self._newest, position)
        self._unread.append(_Unread(position, text, is_result))

    def learn_names(self, arguments: object) -> None:
        """
        Learn by which names calls ask for things: what goes by such a name elsewhere is what they ask for.

        :param arguments: The arguments of a call.
        """
        _learn(arguments, self._names, 0)

    def ranked(self, visible_arguments: Iterable[object]) -> list[tuple[Value, float]]:
        """
        Return all values, the likeliest first.

        :param visible_arguments: The arguments of calls that stay.
        :returns: Each value with how likely it is needed, for what it costs.
        """
        names = set(self._names)
        for arguments in visible_arguments:
            _learn(arguments, names, 0)
        listed = self._listed()
        ranked = [
            (Value(text, _key(known, listed.get(text))), self._likelihood(known, listed.get(text), names))
            for text, known in self._named.items()
        ]
        ranked.extend(
            (Value(text, known.key), self._likelihood(known, None, names))
            for text, known in listed.items()
            if text not in self._named
        )
        ranked.sort(key=lambda pair: -pair[1])
        return ranked

    def _meet(self, position: int, value: Value) -> _Known:
        self._newest = max(self._newest, position)
        known = self._named.get(value.text)
        if known is None:
            known = self._named[value.text] = _Known(value.text)
        known.meet(position, value)
        return known

    def _listed(self) -> dict[str, _Known]:
        """What stood in the newest results and replies."""
        listed: dict[str, _Known] = {}
        left = _SEARCHED_CHARS
        for unread in sorted(self._unread, key=lambda unread: -unread.position):
            for value in unread.values():
                known = listed.get(value.text)
                if known is None:
                    known = listed[value.text] = _Known(value.text)
                known.meet(unread.position, value)
                known.listed += unread.is_result
                known.told += not unread.is_result
            left -= len(unread.text)
            if left < 0:
                break
        return listed

    def _likelihood(self, known: _Known, listed: _Known | None, names: set[str]) -> float:
        """How likely a value is needed again, by all that is known of it."""
        key, last, told, times = _key(known, listed), known.last, known.told, known.listed
        if listed is not None:
            last, told, times = max(last, listed.last), listed.told, listed.listed
        likelihood = known.likelihood + known.noted + _TOLD * min(told, _MOST) + _LISTED * min(times, _MOST)
        if known.said:
            likelihood += _SAID
        if known.used:
            likelihood += _USED + _USED_AGAIN * min(known.used - 1, _MOST)
        if key and not names.isdisjoint(_words_of(key)):
            likelihood += _ASKED_BY_NAME
        return likelihood - _AGING * log1p(self._newest - last) - log1p(known.is_one_of / _LONG_LIST)


def distinct(values: Iterable[Value]) -> Iterable[Value]:
    """
    Return each value of a message once, with its key if it has any.

    :param values: Values as often as they occur.
    """
    found: dict[str, Value] = {}
    for value in values:
        known = found.get(value.text)
        if known is None or (value.key and not known.key):
            found[value.text] = value
    return found.values()


def _key(known: _Known, listed: _Known | None) -> str:
    return known.key or ("" if listed is None else listed.key)


def _learn(arguments: object, names: set[str], depth: int) -> None:
    if isinstance(arguments, list) and arguments:
        arguments = arguments[0]
    if isinstance(arguments, dict) and len(names) < _MAX_NAMES and depth < _MAX_DEPTH:
        for key, value in arguments.items():
            names.update(_words_of(str(key)[:_MAX_NAME_CHARS]))
            if isinstance(value, dict | list):
                _learn(value, names, depth + 1)


@lru_cache(4096)
def _words_of(key: str) -> frozenset[str]:
    """The words of a name, but for those that go with anything; `reservations` and `reservation_id` share one."""
    words = {word.rstrip("s") for word in key.lower().replace("-", "_").split("_")}
    return frozenset(words - {"id", "name", "number", "type", ""})

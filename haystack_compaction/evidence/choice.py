"""
What of the evidence goes into one block: the best that fits, shared between the two kinds.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from haystack_compaction.evidence.block import Entry, written
from haystack_compaction.evidence.statements import BINDING, SURE
from haystack_compaction.token_counters.estimated_counter import estimated_tokens

# How much of a block statements may take before values get their part: those that bind for sure, the others; and how
# much values may take before statements that perhaps bind. Where no tool was called, statements come first to the end.
_SURE_SHARE: Final = 0.8
_BINDING_SHARE: Final = 0.4
_VALUES_SHARE: Final = 0.6
_PERHAPS: Final = 1.0
_NOT_IDLE: Final = 0.8

# What a heading costs at least; what is chosen is measured once more with them.
_HEADING_TOKENS: Final = 4

# How much a statement is worth less for being long: half of its cost, so to say.
_LENGTH_EXPONENT: Final = 0.6
_SHORT_TOKENS: Final = 8

# Values for which less speaks than this, as a logarithm of odds, are not worth their place. Of those that merely stood
# in a text, without a name, there are so many that what is doubtful has this much room and no more.
_WORTH: Final = -1.0
_DOUBTFUL: Final = 1.5
_DOUBTFUL_TOKENS: Final = 40
# How many values are tried, so that it costs the same in any conversation.
_MAX_TRIED: Final = 600
_MAX_FOUND: Final = 8


class Quote(NamedTuple):
    """
    A sentence of a user.

    :param text: The sentence, word for word.
    :param score: How likely it still binds.
    """

    text: str
    score: float


class Choice:
    """
    What goes into one block.
    """

    def __init__(self, budget: int, visible: str) -> None:
        """
        Start with an empty block.

        :param budget: What it may cost, in tokens.
        :param visible: The text that stays, of which nothing is said again.
        """
        self._budget = budget
        self._visible = visible
        self._taken: dict[int, Quote] = {}
        self._entries: list[Entry] = []
        self._lines: set[tuple[str, bool]] = set()
        self._left = budget
        self._spent_on_values = 0
        self._values: list[tuple[Entry, int]] = []
        self._doubtful: list[tuple[Entry, int]] = []
        self._ranked: list[tuple[int, Quote, int]] = []

    def block(self, quotes: Sequence[Quote], values: Sequence[tuple[Entry, float]], *, has_calls: bool) -> str:
        """
        Return the best block.

        :param quotes: What users said, in the order of the conversation.
        :param values: Values with how likely they are needed, the likeliest first.
        :param has_calls: Whether tools were called, so that values matter.
        :returns: Lines within the budget, or an empty string.
        """
        self._rank(quotes)
        self._price(values)
        self._take_quotes(self._budget * (_SURE_SHARE if has_calls else 1.0), SURE)
        self._take_quotes(self._budget * (_BINDING_SHARE if has_calls else 1.0), BINDING)
        self._take_values(self._budget * _VALUES_SHARE)
        self._take_quotes(self._budget, _PERHAPS if has_calls else _NOT_IDLE)
        self._take_values(self._budget)
        self._values = self._doubtful
        self._take_values(min(self._budget, self._spent_on_values + _DOUBTFUL_TOKENS))
        return self._fitting()

    def _rank(self, quotes: Sequence[Quote]) -> None:
        """Order what users said by how likely it binds, for what it costs."""
        costs = estimated_tokens([f"- {quote.text}\n" for quote in quotes])
        ranked = [
            (place, quote, cost)
            for place, (quote, cost) in enumerate(zip(quotes, costs, strict=True))
            if cost <= self._budget and quote.text not in self._visible
        ]
        ranked.sort(key=lambda item: -item[1].score / (item[2] + _SHORT_TOKENS) ** _LENGTH_EXPONENT)
        self._ranked = ranked

    def _price(self, values: Sequence[tuple[Entry, float]]) -> None:
        """Learn what the likeliest values cost."""
        entries = [(entry, likelihood) for entry, likelihood in values[:_MAX_TRIED] if likelihood >= _WORTH]
        costs = estimated_tokens([f" {entry.text}" if entry.is_word else f"{entry.text}; " for entry, _ in entries])
        for (entry, likelihood), cost in zip(entries, costs, strict=True):
            kind = self._values if entry.key or likelihood >= _DOUBTFUL else self._doubtful
            kind.append((entry, cost))

    def _take_quotes(self, limit: float, least: float) -> None:
        """Take the best that fit, up to a share of the budget in all."""
        room = int(limit) - (self._budget - self._left) - (0 if self._taken else _HEADING_TOKENS)
        for place, quote, cost in self._ranked:
            if cost <= room and quote.score >= least and place not in self._taken:
                self._taken[place] = quote
                self._left -= cost
                room -= cost

    def _take_values(self, limit: float) -> None:
        """Take the likeliest values that fit and are not to be seen anyway."""
        said = "\n".join(quote.text for quote in self._taken.values())
        room = min(self._left - 2 * _HEADING_TOKENS, int(limit) - self._spent_on_values)
        others: list[tuple[Entry, int]] = []
        for entry, cost in self._values:
            line = (entry.line, entry.is_word)
            if line not in self._lines:
                cost += estimated_tokens([f"\n{entry.line}"])[0] if cost <= room else 0
            if cost > room:
                others.append((entry, cost))
            elif not (shows(self._visible, entry.text) or shows(said, entry.text)):
                self._lines.add(line)
                self._entries.append(entry)
                self._left -= cost
                self._spent_on_values += cost
                room -= cost
        self._values = others

    def _fitting(self) -> str:
        """The block; parts of a text do not cost just what the whole does, so the last may have to go."""
        while True:
            places = sorted(self._taken)
            block = written([self._taken[place].text for place in places], self._entries)
            over = estimated_tokens([block])[0] - self._budget
            if over <= 0:
                return block
            if self._entries:
                del self._entries[-max(over // 8, 1) :]
            else:
                self._taken.pop(min(places, key=lambda place: self._taken[place].score))


def shows(text: str, value: str) -> bool:
    """
    Return whether a text holds a value as a whole, and not as a piece of a longer one.

    :param text: The text.
    :param value: The value.
    """
    begin = text.find(value)
    for _ in range(_MAX_FOUND):
        if begin < 0:
            return False
        end = begin + len(value)
        if not (_joins(text[begin - 1 : begin], value[0]) or _joins(value[-1], text[end : end + 1])):
            return True
        begin = text.find(value, begin + 1)
    return begin >= 0


def _joins(left: str, right: str) -> bool:
    """Whether two neighbours are of one word or number, as far as writing without blanks lets one tell."""
    return left.isascii() and right.isascii() and left.isalnum() and right.isalnum()

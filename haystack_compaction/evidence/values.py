# ruff: noqa: RUF001 - the quotation marks of other languages are meant
"""
Values that a later tool call may need, found in text, in arguments of calls and in JSON, without a model.

Every pattern takes each character once, whatever the text: a run of a million letters costs no more than prose.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from haystack_compaction.prompts import UNSAFE_CHARACTERS

MIN_VALUE_CHARS: Final = 2
MAX_VALUE_CHARS: Final = 120

# A command is worth more of a line than other values.
MAX_USED_CHARS: Final = 240

# Of a longer text only head and tail are looked at: what matters in a long log or listing is where it begins and ends.
_MAX_TEXT_CHARS: Final = 16_000
# JSON that is longer than this is not taken apart but read as text.
_MAX_JSON_CHARS: Final = 100_000
_MAX_LEAVES: Final = 400
_MAX_DEPTH: Final = 24

_UNSAFE = re.compile(f"[{UNSAFE_CHARACTERS}\t]")
_KEY = re.compile(r"[^\W\d][\w.-]{0,39}")

# A run of characters that tells something: it holds a digit, or joins words in a way that prose does not.
_RUN = r"A-Za-z0-9_@/\\:.+~#%&=?$€£¥₩*-"
_TELLING = re.compile(rf"(?<![{_RUN}])[A-Za-z.:+~#&?*-]*+[\d_@/\\$€£¥₩=%](?:[{_RUN}]|,(?=\d\d\d(?!\d)))*+")

# Words in capitals, such as codes of airports and currencies, and words with a capital inside.
_CAPITALS = re.compile(r"(?<![\w-])[A-Z](?:[A-Z]{1,11}+|[a-z]++[A-Z]\w*+)(?![\w-])")

# What stands between quotes of any kind.
_QUOTED = re.compile(r"[\"“„«「『‘`]([^\"”“»」』’`\n]{2,80})[\"”“»」』’`]")

# Names: words with a capital after a word that does not end the sentence.
_NAMES = re.compile(
    r"(?:(?<=[^\W\d_] )|(?<=[^\W\d_][,:] ))[A-ZÀ-ÖØ-Þ][^\W\d_]++(?:[ -][A-ZÀ-ÖØ-Þ][^\W\d_]++){0,3}+(?![\w-])"
)

_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_NUMBER = re.compile(r"[-+$€£¥₩]*[\d.,]+[%€]?")
_TIME = re.compile(r"\d{1,2}:\d\d(?::\d\d)?\S*|\d{4}-\d\d-\d\dT\S*")
_DIGITS = re.compile(r"(?:\d\D*){3}")
_KEY_OF_NAME = re.compile(r"(?:^|[_.-])(?:id|ids|name|key|code|path|file|url|uri|number|no|sku)$", re.I)


class Value(NamedTuple):
    """
    A value as it stood in a message.

    :param text: The value, word for word.
    :param key: The name under which it stood, or an empty string.
    :param is_one_of: How many values stood under the same name beside it.
    """

    text: str
    key: str = ""
    is_one_of: int = 1


def is_safe(text: str) -> bool:
    """
    Return whether a value can stand in a line of its own words.

    :param text: The value.
    """
    return _UNSAFE.search(text) is None


def values_in_text(text: str) -> Iterator[Value]:
    """
    Find identifiers, paths, addresses, dates, amounts, codes and quoted names in plain text.

    :param text: Any text.
    :returns: Values without a key, as often as they occur.
    """
    text = ends_of(text, _MAX_TEXT_CHARS)
    for match in _TELLING.finditer(text):
        value = match.group().strip(".:,*?&#=")
        if MIN_VALUE_CHARS <= len(value) <= MAX_VALUE_CHARS:
            yield Value(value)
    for match in _CAPITALS.finditer(text):
        yield Value(match.group())
    for match in _QUOTED.finditer(text):
        value = match.group(1).strip()
        if len(value) >= MIN_VALUE_CHARS and is_safe(value):
            yield Value(value)


def names_in_text(text: str) -> Iterator[Value]:
    """
    Find names, by their capitals.

    :param text: Text in a language with capitals.
    :returns: Values without a key.
    """
    for match in _NAMES.finditer(ends_of(text, _MAX_TEXT_CHARS)):
        if len(match.group()) <= MAX_VALUE_CHARS:
            yield Value(match.group())


def values_in_result(text: str) -> Iterator[Value]:
    """
    Find values in what a tool returned.

    :param text: JSON, of which the leaves are taken with their keys, or any other text.
    :returns: Values.
    """
    data = _parsed(text)
    return values_in_text(text) if data is None else values_in_data(data, MAX_VALUE_CHARS)


def _parsed(text: str) -> Any:
    """The JSON that a text is, with numbers as they were written; None for any other text."""
    if text[:1] not in ("{", "[") or len(text) > _MAX_JSON_CHARS:
        return None
    try:
        return json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        return None


def values_in_data(data: Any, max_chars: int) -> Iterator[Value]:
    """
    Find the leaves of JSON data, each with the key under which it stands.

    :param data: The arguments of a call, or a parsed result.
    :param max_chars: How long a leaf may be to be taken whole; longer text is searched.
    :returns: Values. Of many under one key each weighs less: it is one of a list.
    """
    leaves: list[tuple[str, str]] = []
    _collect(data, "", 0, leaves)
    counts: dict[str, int] = {}
    for key, _ in leaves:
        counts[key] = counts.get(key, 0) + 1
    for key, leaf in leaves:
        if len(leaf) > max_chars or not is_safe(leaf):
            yield from values_in_text(leaf)
        elif len(leaf) >= MIN_VALUE_CHARS:
            yield Value(leaf, key, counts[key])


def _collect(data: Any, key: str, depth: int, leaves: list[tuple[str, str]]) -> None:
    """Append key and text of every leaf, in order, until there are enough."""
    if isinstance(data, str):
        leaves.append((key, data.strip()))
    elif type(data) in (int, float):
        leaves.append((key, str(data)))
    elif len(leaves) < _MAX_LEAVES and depth < _MAX_DEPTH:
        if isinstance(data, dict):
            _collect_members(data, key, depth + 1, leaves)
        elif isinstance(data, list | tuple):
            for value in data[:_MAX_LEAVES]:
                _collect(value, key, depth + 1, leaves)


def _collect_members(data: dict[Any, Any], key: str, depth: int, leaves: list[tuple[str, str]]) -> None:
    for name, value in islice(data.items(), _MAX_LEAVES):
        name = str(name)[: MAX_VALUE_CHARS + 1]
        if _is_a_value(name):
            leaves.append((key, name))
        _collect(value, name if _KEY.fullmatch(name) else "", depth, leaves)


def _is_a_value(name: str) -> bool:
    """Whether the key of an object is data itself, such as the identifier of what it holds."""
    return len(name) <= MAX_VALUE_CHARS and _DIGITS.search(name) is not None


def likelihood_of(value: str) -> float:
    """
    Return how likely a value of this kind is needed again, as a logarithm of odds.

    :param value: The value.
    :returns: More for what nobody could guess or say otherwise, such as an identifier.
    """
    digits = sum(map(str.isdigit, value))
    if digits == 0:
        return _likelihood_of_words(value)
    if _TIME.fullmatch(value):
        return -1.5
    if _DATE.fullmatch(value):
        return 1.3
    if _NUMBER.fullmatch(value):
        return 0.5 if len(value) == digits > 4 else -0.7
    if " " in value:
        return -0.5
    return 1.9 if digits > 4 and len(value) > digits else 1.5


def _likelihood_of_words(value: str) -> float:
    """The same for a value without a digit."""
    if not any(map(str.isalnum, value)):
        return -5.0
    if " " in value:
        return -0.5
    if value.isalpha():
        return -1.2 if value.islower() else 0.3 if value.isupper() and len(value) > 2 else 0.0
    return 1.0 if "@" in value or "/" in value else -0.5


def likelihood_by(key: str) -> float:
    """
    Return how much more likely a value is needed for the name under which it stands, as a logarithm of odds.

    :param key: The name, or an empty string.
    """
    return 0.5 if _KEY_OF_NAME.search(key) else 0.0


def ends_of(text: str, max_chars: int) -> str:
    """
    Return a text, or head and tail of one that is too long.

    :param text: The text.
    :param max_chars: How much of it at most.
    """
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n{text[-half:]}"

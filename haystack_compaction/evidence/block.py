"""
The lines in which evidence stands in a note: written, and read back from nothing but their text.

Every entry is one line that begins with a mark of its own, or a word of such a line, so no entry can pass for a heading
or for a turn. Values that are single words share a line, with the name under which they stood; others end in a
semicolon there, and what has one inside has a line for itself.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from haystack_compaction.prompts import (
    ENTRY_BULLET,
    EVIDENCE_PATTERN,
    SINGLE_BULLET,
    STATEMENTS_HEADING,
    VALUES_HEADING,
)

_KEY = re.compile(r"([^\W\d][\w.-]{0,39}): (?=.)")
_END: Final = ";"

# A note may close with one line of its own below the block.
_BLOCK_AT_END = re.compile(rf"(?:\A|\n)({EVIDENCE_PATTERN})(?:\n[^\n]*)?\n?\Z")


class Entry(NamedTuple):
    """
    A value as it stands in a block.

    :param text: The value, word for word, on one line and without blanks around it.
    :param key: The name under which it is listed, or an empty string.
    """

    text: str
    key: str = ""

    @property
    def line(self) -> str:
        """
        How the line of this value begins, up to the value. Values whose lines begin alike share one.
        """
        if _END in self.text or (not self.key and _KEY.match(self.text)):
            return f"{SINGLE_BULLET}{self.text}"
        return f"{ENTRY_BULLET}{self.key}: " if _KEY.match(f"{self.key}: .") else ENTRY_BULLET

    @property
    def is_word(self) -> bool:
        """
        Whether there is no blank in the value.
        """
        return " " not in self.text


def written(statements: Sequence[str], entries: Iterable[Entry]) -> str:
    """
    Write a block.

    :param statements: What users said, in the order of the conversation.
    :param entries: Values, the most important first.
    :returns: Lines; an empty string where there is nothing to write.
    """
    lines: list[str] = []
    if statements:
        lines.append(STATEMENTS_HEADING)
        lines.extend(ENTRY_BULLET + statement for statement in statements)
    shared: dict[tuple[str, bool], list[str]] = {}
    for entry in entries:
        shared.setdefault((entry.line, entry.is_word), []).append(entry.text)
    if shared:
        lines.append(VALUES_HEADING)
        for (begin, are_words), texts in shared.items():
            if begin.startswith(SINGLE_BULLET):
                lines.append(begin)
            else:
                lines.append(begin + (" ".join(texts) if are_words else f"{_END} ".join(texts) + _END))
    return "\n".join(lines)


class Block(NamedTuple):
    """
    What a note holds.

    :param statements: What users said, in the order of the conversation.
    :param entries: Values, the most important first.
    :param rest: The text of the note without its block.
    """

    statements: list[str]
    entries: list[Entry]
    rest: str


def read(text: str) -> Block:
    """
    Read the block at the end of a note.

    :param text: The whole text of a note.
    :returns: What it holds; nothing where there is no block.
    """
    found = None
    for heading in (STATEMENTS_HEADING, VALUES_HEADING):
        begin = text.rfind(f"\n{heading}\n")
        found = _BLOCK_AT_END.match(text, begin if begin >= 0 else 0) if found is None else found
    if found is None:
        return Block([], [], text)
    statements: list[str] = []
    entries: list[Entry] = []
    in_values = False
    for line in found.group(1).split("\n"):
        if line in (STATEMENTS_HEADING, VALUES_HEADING):
            in_values = line == VALUES_HEADING
        elif in_values:
            entries.extend(_entries_of(line))
        else:
            statements.append(line.removeprefix(ENTRY_BULLET))
    return Block(statements, entries, text[: found.start(1)] + text[found.end(1) :])


def _entries_of(line: str) -> Iterator[Entry]:
    if line.startswith(SINGLE_BULLET):
        yield Entry(line.removeprefix(SINGLE_BULLET))
        return
    line = line.removeprefix(ENTRY_BULLET)
    key = _KEY.match(line)
    name, values = (key.group(1), line[key.end() :]) if key else ("", line)
    for value in values.split(_END) if values.endswith(_END) else values.split(" "):
        if value.strip():
            yield Entry(value.strip(), name)

"""
JSON from a file of any size: one value at a time, and for what is broken the line.

A file may hold one value a line (JSONL), one document printed over many lines, or several documents after each other.
Which it is shows in the file, not in its name. Only the value at hand is in memory; of a list that is the whole
document, only the element at hand.
"""

import codecs
import json
import re
import reprlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, TextIO

from haystack_compaction.errors import TranscriptError

#: More levels than any real conversation has, and few enough for code that walks a value by recursion.
MAX_LEVELS: Final = 100

_MAX_REASON_CHARS = 200
_SHORT = reprlib.Repr()
_SHORT.maxstring = 60

_CHUNK_SIZE = 1 << 16
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()

# How far from its end a text that was cut off can trouble the decoder: half an escaped surrogate pair, "-Infinity".
_LONGEST_TOKEN = 16


def is_deeper_than(value: Any, levels: int) -> bool:
    """
    Return whether a JSON value is nested deeper than so many levels, without going deeper itself.

    :param value: The value to look at.
    :param levels: How many lists and objects may stand in each other.
    :returns: Whether there are more.
    """
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper_than(child, levels - 1) for child in children)


def shown(value: Any) -> str:
    """
    Return a value as an error shows it: short, on one line, whatever it holds.

    :param value: Any JSON value.
    :returns: A few of its characters, entries and levels.
    """
    return _SHORT.repr(value)


def one_line(error: Exception) -> str:
    """
    Return what an error of someone else says, short and on one line.

    :param error: The error.
    :returns: Its type and the beginning of its text.
    """
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON_CHARS]


class JsonDocuments:
    """
    The JSON values of a stream, each with the line on which it begins.

    ```python
    import io
    from haystack_compaction.json_documents import JsonDocuments

    for line, value in JsonDocuments(io.StringIO('{"step": 1} {"step": 2}'), "steps.json"):
        print(line, value)
    ```
    """

    def __init__(self, stream: TextIO | BinaryIO, name: str) -> None:
        """
        Start where the stream stands; nothing is read yet.

        :param stream: Text, or bytes of UTF-8 with or without a byte order mark.
        :param name: What errors call the stream.
        """
        self._name = name
        self._texts = _texts(stream)
        self._unreadable: str | None = None
        self._buffer = ""
        self._position = 0
        self._line = 1
        self._columns_gone = 0
        self._one_a_line: bool | None = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """
        Go over the values, oldest first. A list is given as an iterator over its elements, each with its line.

        :returns: Pairs of line and value. A list has to be read to its end before the next value is asked for.
        :raises TranscriptError: If the stream is no UTF-8 text or the JSON is broken; it names the line.
        """
        if self._peek() == "[":
            first_line = self._line
            yield first_line, self._elements()
            self._one_a_line = self._line == first_line
        while self._peek():
            line = self._line
            value = self._next_value()
            yield line, ((line, element) for element in value) if isinstance(value, list) else value

    # -- values -------------------------------------------------------------------------------------------------------

    def _next_value(self) -> Any:
        if self._one_a_line is None:
            return self._first_value()
        return self._value_of_line() if self._one_a_line else self._value()

    def _first_value(self) -> Any:
        """Read the first value. Whether it is a whole line decides how the rest is read."""
        try:
            value = self._value_of_line()
        except TranscriptError as line_error:
            try:
                value = self._value()
            except TranscriptError:
                if self._next_line_is_object():
                    raise line_error from None
                raise
            self._one_a_line = False
        else:
            self._one_a_line = True
        return value

    def _elements(self) -> Iterator[tuple[int, Any]]:
        """Read the list that begins here, one element at a time."""
        self._advance(self._position + 1)
        if self._peek() == "]":
            self._advance(self._position + 1)
            return
        separator = ","
        while separator == ",":
            self._peek()
            yield self._line, self._value()
            separator = self._peek()
            if separator not in (",", "]"):
                raise self._broken("Expecting ',' delimiter", self._position)
            self._advance(self._position + 1)

    def _value(self) -> Any:
        """Decode a value that may go over many lines; what was cut off is tried again with twice the text."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                may_be_cut = self._is_near_end(error.pos) or error.msg.startswith("Unterminated string")
                if not may_be_cut or not self._fill():
                    raise self._broken(error.msg, error.pos) from None
            except (ValueError, RecursionError) as error:
                raise self._refused(error) from None
            else:
                # A number at the end of what was read so far may go on.
                if not isinstance(value, int | float) or not self._is_near_end(end) or not self._fill():
                    self._advance(end)
                    return value

    def _value_of_line(self) -> Any:
        """Decode a value that ends on the line it begins on."""
        end = self._line_end()
        start = self._position
        try:
            value = _DECODER.decode(self._buffer[start:end])
        except json.JSONDecodeError as error:
            raise self._broken(error.msg, start + error.pos) from None
        except (ValueError, RecursionError) as error:
            raise self._refused(error) from None
        self._advance(end)
        return value

    def _is_near_end(self, position: int) -> bool:
        return position >= len(self._buffer) - _LONGEST_TOKEN

    def _next_line_is_object(self) -> bool:
        """Whether the line after this one is whole, so that it is this one that is broken."""
        while self._buffer.count("\n", self._position) < 2 and self._fill():
            pass
        lines = self._buffer[self._position :].split("\n", 2)
        try:
            return len(lines) > 1 and isinstance(json.loads(lines[1]), dict)
        except (ValueError, RecursionError):
            return False

    # -- errors -------------------------------------------------------------------------------------------------------

    def _broken(self, reason: str, position: int) -> TranscriptError:
        newline = self._buffer.rfind("\n", 0, position)
        column = position - newline if newline >= 0 else position + 1 + self._columns_gone
        line = self._line + self._buffer.count("\n", self._position, position)
        return TranscriptError(f"{self._name}:{line}: broken JSON at column {column}: {reason.removesuffix(' at')}")

    def _refused(self, error: Exception) -> TranscriptError:
        reason = (
            "it is nested too deeply" if isinstance(error, RecursionError) else "it holds a number that is too long"
        )
        return TranscriptError(f"{self._name}:{self._line}: the JSON cannot be read: {reason}")

    # -- text ---------------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        """Skip white space and return the next character, or nothing at the end."""
        while True:
            match = _BLANK.match(self._buffer, self._position)
            self._advance(match.end() if match else self._position)
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if not self._fill():
                return ""

    def _line_end(self) -> int:
        """The position of the next line break, or of the end of the text."""
        end = self._buffer.find("\n", self._position)
        while end < 0 and self._fill():
            end = self._buffer.find("\n", self._position)
        return end if end >= 0 else len(self._buffer)

    def _advance(self, position: int) -> None:
        self._line += self._buffer.count("\n", self._position, position)
        self._position = position

    def _fill(self) -> bool:
        """Read at least as much again as is left; return whether there was anything."""
        rest = self._buffer[self._position :]
        pieces = [rest]
        missing = max(len(rest), 1)
        try:
            while missing > 0 and (text := next(self._texts, "")):
                pieces.append(text)
                missing -= len(text)
        except _UnreadableError as error:
            self._unreadable = str(error)
        if len(pieces) == 1:
            if self._unreadable is not None:
                line = self._line + rest.count("\n")
                raise TranscriptError(f"{self._name}:{line}: {self._unreadable}")
            return False
        newline = self._buffer.rfind("\n", 0, self._position)
        self._columns_gone = self._position - newline - 1 if newline >= 0 else self._columns_gone + self._position
        self._buffer = "".join(pieces)
        self._position = 0
        return True


class _UnreadableError(Exception):
    """The stream holds something that is no text; all text before it was given out."""


def _texts(stream: TextIO | BinaryIO) -> Iterator[str]:
    """Pieces of the stream's text, none of them empty."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = "\ufeff"
    chunk: str | bytes = b" "
    while chunk:
        problem = None
        try:
            chunk = stream.read(_CHUNK_SIZE) or b""
            text = chunk if isinstance(chunk, str) else decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            problem = f"not UTF-8 text: the byte 0x{error.object[error.start]:02x} cannot stand here"
            text = error.object[: error.start].decode("utf-8", "replace")
        text, nul, _ = text.removeprefix(start).partition("\0")
        start = "" if text else start
        if text:
            yield text
        if nul:
            problem = "binary data: there is a NUL byte, which no text has"
        if problem:
            raise _UnreadableError(problem)

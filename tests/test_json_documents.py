"""JSON from a stream, one value at a time; what files of conversations need of it is in test_transcripts.py."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haystack_compaction.errors import TranscriptError
from haystack_compaction.json_documents import JsonDocuments, is_deeper_than, one_line, shown


class Trickle:
    """A stream that gives out a few bytes or characters at a time."""

    def __init__(self, text: str | bytes, size: int) -> None:
        self.text, self.size, self.position = text, size, 0

    def read(self, _: int = -1) -> str | bytes:
        self.position += self.size
        return self.text[self.position - self.size : self.position]


def values(stream: Any) -> list[tuple[int, Any]]:
    documents = JsonDocuments(stream, "values.json")
    return [(line, list(value) if isinstance(value, Iterator) else value) for line, value in documents]


def outcome(stream: Any) -> Any:
    try:
        return values(stream)
    except TranscriptError as error:
        return str(error)


def in_all_ways(text: str) -> Any:
    """What a text gives as a whole, after making sure that it gives the same in small pieces and as bytes."""
    whole = outcome(io.StringIO(text, newline=""))
    for size in (1, 2, 5, 11):
        assert outcome(Trickle(text, size)) == whole
        assert outcome(Trickle(text.encode(), size)) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"a": 1}\n\n{"a": 2}\n', [(1, {"a": 1}), (3, {"a": 2})], id="one a line"),
        pytest.param('{\n"a": 1\n}\n{\n"a": 2\n}', [(1, {"a": 1}), (4, {"a": 2})], id="many lines each"),
        pytest.param('[1,\n "b",\n\n{}]', [(1, [(1, 1), (2, "b"), (4, {})])], id="a list on many lines"),
        pytest.param("[1]\n[2, 3]\n", [(1, [(1, 1)]), (2, [(2, 2), (2, 3)])], id="a list a line"),
        pytest.param("[[1, 2]]", [(1, [(1, [1, 2])])], id="a list in a list"),
        pytest.param(" \n[]", [(2, [])], id="an empty list"),
        pytest.param("5\nnull", [(1, 5), (2, None)], id="no objects"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_each_value_comes_with_the_line_it_begins_on(text: str, expected: list[tuple[int, Any]]) -> None:
    assert in_all_ways(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '{"a": \n{"a": 2}\n', "1: broken JSON at column 7: Expecting value", id="the first line ends early"
        ),
        pytest.param('{"a": 1}\n{"a": \n{}', "2: broken JSON at column 7: Expecting value", id="a line ends early"),
        pytest.param('{"a":\n\n', "3: broken JSON at column 1: Expecting value", id="the text ends early"),
        pytest.param("[123456789, 1.5e+ ]", "1: broken JSON at column 16: Expecting ',' delimiter", id="half a number"),
        pytest.param('["\\ud83d\\ude0"]', "1: broken JSON at column 10: Invalid \\uXXXX escape", id="half an escape"),
        pytest.param('["é\0"]', "1: binary data: there is a NUL byte, which no text has", id="a NUL byte"),
        pytest.param("[1}", "1: broken JSON at column 3: Expecting ',' delimiter", id="the wrong bracket"),
        pytest.param("[\n[1,\n2,,3]]", "3: broken JSON at column 3: Expecting value", id="deep in a list"),
    ],
)
def test_what_is_broken_is_said_with_its_place(text: str, expected: str) -> None:
    assert in_all_ways(text) == f"values.json:{expected}"


@given(
    pieces=st.lists(st.sampled_from([{"a": "é"}, {"a": [1, {}]}, [{"b": 1}], "é", 123456, None]), max_size=3),
    indent=st.sampled_from([None, 1]),
    separator=st.sampled_from(["\n", "\r\n", "", ",\n"]),
    data=st.data(),
)
def test_it_does_not_matter_how_much_a_stream_gives_at_once(
    pieces: list[Any], indent: int | None, separator: str, data: st.DataObject
) -> None:
    text = separator.join(json.dumps(piece, indent=indent, ensure_ascii=False) for piece in pieces)
    cut = data.draw(st.integers(0, len(text)))
    slip = data.draw(st.sampled_from(["", "\0", "}", "\n", "[", '"', "-", "\\"]))
    in_all_ways(text[:cut] + slip + text[cut + data.draw(st.integers(0, 2)) :])


def test_levels_are_counted_without_going_deeper() -> None:
    assert not is_deeper_than(5, 0)
    assert is_deeper_than([], 0)
    assert not is_deeper_than([{"a": [1]}], 3)
    assert is_deeper_than([{"a": [1]}], 2)
    assert is_deeper_than([{"a": []}, json.loads("[" * 900 + "]" * 900)], 100)


def test_values_and_errors_are_shown_short_and_on_one_line() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    for value in ("a\nb" * 1000, deep, list(range(10_000)), {"k" * 1000: deep}, "\ud800"):
        assert len(shown(value)) < 200
        assert shown(value).isprintable()
    assert one_line(ValueError("one\ntwo " + "x" * 1000)).startswith("ValueError: one two x")
    assert len(one_line(ValueError("x" * 1000))) == 200

"""Conversations in and out of files: what is recognised, what is kept, and how it is said what is wrong."""

import copy
import io
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversations import SHAPES, A, S, T, U, conversations, file, image, in_one_message
from haystack.dataclasses import ChatMessage, TextContent, ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st

from haystack_compaction.errors import TranscriptError
from haystack_compaction.transcripts import (
    Conversation,
    Form,
    messages_from_dicts,
    messages_to_dicts,
    read_conversations,
    write_conversations,
)

RECORDED = Path(__file__).parents[2] / "shared" / "transcripts"
RECORDED_FILES = {"tau-bench.jsonl": (50, 1306), "swe-agent.jsonl": (2, 40), "openhands.jsonl": (1, 47)}

HELLO = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi, what is it?"}
ONE = {"id": "one", "source": "test", "messages": [HELLO, ANSWER]}
TWO = {"id": "two", "messages": [HELLO]}
ONE_READ = Conversation("one", [U("Hello"), A("Hi, what is it?")], {"source": "test"})
TWO_READ = Conversation("two", [U("Hello")])
NO_ID_READ = Conversation(None, [U("Hello"), A("Hi, what is it?")])


def read(text: str | bytes) -> list[Conversation]:
    stream = io.StringIO(text) if isinstance(text, str) else io.BytesIO(text)
    return list(read_conversations(stream, name="runs.jsonl"))


def error_of(text: str | bytes) -> str:
    with pytest.raises(TranscriptError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(conversations_: list[Conversation], form: Form) -> str:
    target = io.StringIO()
    write_conversations(conversations_, target, form=form)
    return target.getvalue()


def trip(messages: list[ChatMessage], form: Form) -> list[ChatMessage]:
    (conversation,) = read(written([Conversation("x", messages)], form))
    return conversation.messages


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def raw_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


@pytest.fixture(params=RECORDED_FILES)
def recorded(request: pytest.FixtureRequest) -> Path:
    path = RECORDED / request.param
    if not path.exists():
        pytest.skip("the recorded runs lie beside the project (../shared/transcripts), not in it")
    return path


class TestRecordedRuns:
    def test_every_line_loads(self, recorded: Path) -> None:
        runs = list(read_conversations(recorded))
        assert (len(runs), sum(len(run.messages) for run in runs)) == RECORDED_FILES[recorded.name]
        assert all(run.id and run.meta["source"] for run in runs)

    def test_each_result_has_the_call_it_answers_as_its_origin(self, recorded: Path) -> None:
        for run in read_conversations(recorded):
            open_calls: list[ToolCall] = []
            for message in run.messages:
                open_calls += message.tool_calls
                for result in message.tool_call_results:
                    call = next(call for call in reversed(open_calls) if call.id == result.origin.id)
                    open_calls.remove(call)
                    assert result.origin == call

    def test_empty_results_are_kept_as_empty_texts(self, recorded: Path) -> None:
        raw = [message for line in raw_lines(recorded) for message in json.loads(line)["messages"]]
        loaded = [message for run in read_conversations(recorded) for message in run.messages]
        expected = [message["content"] for message in raw if message["role"] == "tool"]
        assert [message.tool_call_results[0].result for message in loaded if message.tool_call_results] == expected

    @pytest.mark.parametrize("form", ["haystack", "openai"])
    def test_a_run_that_is_written_reads_the_same(self, recorded: Path, form: Form) -> None:
        runs = list(read_conversations(recorded))
        assert read(written(runs, form)) == runs

    def test_written_in_openai_format_it_says_what_the_file_said(self, recorded: Path) -> None:
        runs = [json.loads(line) for line in raw_lines(recorded)]
        copies = [json.loads(line) for line in written(list(read_conversations(recorded)), "openai").splitlines()]
        for run, again in zip(runs, copies, strict=True):
            for before, after in zip(run["messages"], again["messages"], strict=True):
                assert after["role"] == before["role"]
                assert after["content"] == before.get("content")
                assert after.get("tool_call_id") == before.get("tool_call_id")
                assert len(after.get("tool_calls", [])) == len(before.get("tool_calls") or [])


class TestRecognition:
    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(lines(ONE, TWO), id="one conversation a line"),
            pytest.param(lines(ONE, TWO).rstrip("\n"), id="no line break at the end"),
            pytest.param("\n" + lines(ONE) + "\n  \n" + lines(TWO) + "\n", id="blank lines"),
            pytest.param(lines(ONE, TWO).replace("\n", "\r\n"), id="line ends of Windows"),
            pytest.param("\ufeff" + lines(ONE, TWO), id="a byte order mark"),
            pytest.param(json.dumps([ONE, TWO]), id="a list on one line"),
            pytest.param(json.dumps([ONE, TWO], indent=2), id="a list on many lines"),
            pytest.param(f"[{json.dumps(ONE)},\n{json.dumps(TWO)}\n]", id="a list with one conversation a line"),
            pytest.param(json.dumps(ONE, indent=2) + "\n" + json.dumps(TWO, indent=2), id="documents after each other"),
            pytest.param(json.dumps(ONE) + json.dumps(TWO), id="documents without a line break"),
            pytest.param(json.dumps([ONE]) + "\n" + json.dumps([TWO]), id="lists after each other"),
        ],
    )
    def test_conversations_are_read_from(self, text: str) -> None:
        assert read(text) == read(text.encode()) == [ONE_READ, TWO_READ]

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(lines(HELLO, ANSWER), id="one message a line"),
            pytest.param(json.dumps([HELLO, ANSWER]), id="a list on one line"),
            pytest.param(json.dumps([HELLO, ANSWER], indent=4), id="a list on many lines"),
            pytest.param(json.dumps({"messages": [HELLO, ANSWER]}), id="an object on one line"),
            pytest.param(json.dumps({"messages": [HELLO, ANSWER]}, indent=2), id="an object on many lines"),
            pytest.param(json.dumps([[HELLO, ANSWER]], indent=2), id="a list in a list"),
            pytest.param(json.dumps(HELLO, indent=1) + json.dumps(ANSWER, indent=1), id="messages on many lines"),
            pytest.param(lines(A("x").to_dict())[:0] + lines(U("Hello").to_dict(), ANSWER), id="both forms mixed"),
        ],
    )
    def test_a_whole_file_is_one_conversation(self, text: str) -> None:
        assert read(text) == read(text.encode()) == [NO_ID_READ]

    def test_a_line_may_be_a_bare_list_of_messages(self) -> None:
        assert read(lines([HELLO], [HELLO, ANSWER])) == [Conversation(None, [U("Hello")]), NO_ID_READ]

    def test_a_conversation_may_have_no_messages(self) -> None:
        empty = Conversation(None, [])
        assert read("[]") == read('{"messages": []}') == [empty]
        assert read("[[], []]") == read("[]\n[]") == [empty, empty]

    def test_the_name_of_the_file_does_not_matter(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.txt"
        path.write_text(json.dumps([ONE, TWO], indent=2), encoding="utf-8")
        assert list(read_conversations(path)) == list(read_conversations(str(path))) == [ONE_READ, TWO_READ]

    def test_what_a_conversation_says_beside_its_messages_is_kept(self) -> None:
        (conversation,) = read(json.dumps({"tools": [{"x": 1}], "id": 17, "score": None, "messages": []}))
        assert conversation == Conversation("17", [], {"tools": [{"x": 1}], "score": None})
        assert read(written([conversation], "openai")) == [conversation]


class TestLaziness:
    @pytest.mark.parametrize("layout", [lines, lambda *values: json.dumps(values)])
    def test_no_more_is_read_than_is_asked_for(self, layout: Callable[..., str]) -> None:
        stream = io.BytesIO(layout(*[ONE] * 10_000).encode())
        conversations_ = read_conversations(stream)
        assert [next(conversations_) for _ in range(3)] == [ONE_READ] * 3
        assert stream.tell() < 200_000 < len(stream.getvalue())

    def test_what_stands_before_an_error_is_given_out(self) -> None:
        conversations_ = read_conversations(io.BytesIO(lines(ONE, TWO).encode() + b"\xff"))
        assert [next(conversations_), next(conversations_)] == [ONE_READ, TWO_READ]
        with pytest.raises(TranscriptError, match=":3: not UTF-8"):
            next(conversations_)

    def test_values_larger_than_what_is_read_at_once_are_whole(self) -> None:
        long = {"id": "long", "messages": [{"role": "user", "content": 'é"\\' * 100_000}] * 3}
        for text in (lines(ONE, long, TWO), json.dumps([ONE, long, TWO], indent=1), json.dumps(long, indent=1)):
            assert [len(c.messages) for c in read(text) if c.id == "long"] == [3]
            assert read(text.encode())[-1].messages[0].text in ("Hello", 'é"\\' * 100_000)

    def test_a_stream_stays_open_and_a_pipe_is_read_to_its_end(self) -> None:
        receiver, sender = os.pipe()
        with os.fdopen(receiver, "rb") as stream:
            thread = threading.Thread(target=lambda: (os.write(sender, lines(ONE).encode()), os.close(sender)))
            thread.start()
            assert list(read_conversations(stream)) == [ONE_READ]
            thread.join()
            assert not stream.closed


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            pytest.param(
                lines(ONE) * 16 + lines({"messages": [HELLO] * 3 + [{"role": "bot", "content": "x"}]}),
                "runs.jsonl:17: message 4: `role` must be one of system, developer, user, assistant, tool, function, "
                "got 'bot'",
                id="a role that does not exist",
            ),
            pytest.param(
                lines(ONE) + lines(ONE)[:60] + "\n" + lines(TWO),
                "runs.jsonl:2: broken JSON at column 61: Expecting ',' delimiter",
                id="a line that is cut off",
            ),
            pytest.param(
                lines(ONE)[:40] + "\n" + lines(TWO),
                "runs.jsonl:1: broken JSON at column 33: Unterminated string starting",
                id="the first line is cut off",
            ),
            pytest.param(
                '{"id": "x", "messages": [\n' + lines(TWO),
                "runs.jsonl:1: broken JSON at column 26: Expecting value",
                id="the first line could go on",
            ),
            pytest.param(
                lines(ONE, TWO) + '{"id": "x", "messages": [\n' + lines(TWO),
                "runs.jsonl:3: broken JSON at column 26: Expecting value",
                id="a line that could go on",
            ),
            pytest.param(
                lines(ONE) + '{"messages": [], 3}',
                "runs.jsonl:2: broken JSON at column 18: Expecting property name enclosed in double quotes",
                id="a key without quotes",
            ),
            pytest.param(
                json.dumps(ONE, indent=2).replace('"one",', '"one"'),
                "runs.jsonl:3: broken JSON at column 3: Expecting ',' delimiter",
                id="a comma too few in a document",
            ),
            pytest.param(
                json.dumps([ONE, TWO], indent=2).replace("},\n  {", "}\n  {"),
                "runs.jsonl:16: broken JSON at column 3: Expecting ',' delimiter",
                id="a comma too few in a list",
            ),
            pytest.param(
                f"[{json.dumps(ONE)}, {json.dumps(TWO)}",
                f"runs.jsonl:1: broken JSON at column {len(json.dumps([ONE, TWO]))}: Expecting ',' delimiter",
                id="a list without an end",
            ),
            pytest.param(
                json.dumps({"messages": [HELLO, {"role": "user"}]}, indent=2),
                "runs.jsonl:1: message 2: `content` is missing, there are only the keys ['role']",
                id="a message of a document",
            ),
            pytest.param(
                json.dumps([HELLO, {"role": "user"}], indent=2),
                "runs.jsonl:6: message 2: `content` is missing, there are only the keys ['role']",
                id="a message of a list",
            ),
            pytest.param(
                lines(HELLO, [HELLO]),
                "runs.jsonl:2: a conversation stands here, but what stands before it is a message",
                id="a conversation among messages",
            ),
            pytest.param(
                lines(ONE, {"prompt": "Hello"}),
                "runs.jsonl:2: neither a conversation (`messages`) nor a message (`role`), it has the keys ['prompt']",
                id="another kind of object",
            ),
            pytest.param(
                '{"messages": null}', "runs.jsonl:1: `messages` must be a list, got None", id="messages are no list"
            ),
            pytest.param(
                '{"id": ["x"], "messages": []}',
                "runs.jsonl:1: `id` must be a text, a whole number or null, got ['x']",
                id="an id that is a list",
            ),
            pytest.param("[[[]]]", "runs.jsonl:1: a message must stand here, got a list", id="lists in lists"),
            pytest.param('[["x"]]', "runs.jsonl:1: a conversation or a message must stand here, got 'x'", id="texts"),
            pytest.param(
                '{"messages": ["x"]}', "runs.jsonl:1: message 1: it must be an object, got 'x'", id="a text as message"
            ),
            pytest.param("", "runs.jsonl:1: the file is empty, it holds no conversation", id="an empty file"),
            pytest.param("\n \n", "runs.jsonl:1: the file is empty, it holds no conversation", id="only white space"),
            pytest.param("17", "runs.jsonl:1: a conversation or a message must stand here, got 17", id="a number"),
            pytest.param("Hello", "runs.jsonl:1: broken JSON at column 1: Expecting value", id="a letter"),
            pytest.param(
                b"\x89PNG\r\n", "runs.jsonl:1: not UTF-8 text: the byte 0x89 cannot stand here", id="an image"
            ),
            pytest.param(
                lines(ONE).encode() + "Grüße".encode("latin-1"),
                "runs.jsonl:2: not UTF-8 text: the byte 0xfc cannot stand here",
                id="another encoding",
            ),
            pytest.param(
                lines(ONE).encode() + b'{"messages": [\0',
                "runs.jsonl:2: binary data: there is a NUL byte, which no text has",
                id="a NUL byte",
            ),
            pytest.param(
                "Grüße".encode()[:3],
                "runs.jsonl:1: not UTF-8 text: the byte 0xc3 cannot stand here",
                id="half a letter",
            ),
            pytest.param(
                "[" * 100_000, "runs.jsonl:1: the JSON cannot be read: it is nested too deeply", id="endless nesting"
            ),
            pytest.param(
                lines(ONE) + '{"a":' * 100_000,
                "runs.jsonl:2: the JSON cannot be read: it is nested too deeply",
                id="endless nesting in a line",
            ),
            pytest.param(
                json.dumps({"messages": [HELLO | {"extra": json.loads("[" * 100 + "]" * 100)}]}),
                "runs.jsonl:1: message 1: it is nested more than 100 levels deep",
                id="deep nesting in a message",
            ),
            pytest.param(
                '{"messages": [], "extra": ' + "[" * 100 + "]" * 100 + "}",
                "runs.jsonl:1: it is nested more than 100 levels deep",
                id="deep nesting in a conversation",
            ),
            pytest.param(
                lines(ONE) + '{"messages": [], "seed": ' + "1" * 5000 + "}",
                "runs.jsonl:2: the JSON cannot be read: it holds a number that is too long",
                id="a number without end",
            ),
        ],
    )
    def test_one_line_says_where_and_why(self, text: str | bytes, message: str) -> None:
        assert error_of(text) == message

    def test_a_file_is_called_by_its_path(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.json"
        path.write_text("{", encoding="utf-8")
        with pytest.raises(TranscriptError) as caught:
            list(read_conversations(path))
        assert str(caught.value).startswith(f"{path}:1: ")
        with path.open("rb") as stream, pytest.raises(TranscriptError) as caught:
            list(read_conversations(stream))
        assert str(caught.value).startswith(f"{path}:1: ")
        with pytest.raises(TranscriptError, match=r"^standard input:1: "):
            list(read_conversations(io.StringIO("{"), name="standard input"))
        with pytest.raises(TranscriptError, match=r"^<stream>:1: "):
            list(read_conversations(io.StringIO("{")))

    def test_an_open_text_file_in_another_encoding_is_named_too(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.jsonl"
        path.write_bytes("Grüße".encode("latin-1"))
        with path.open(encoding="utf-8") as stream, pytest.raises(TranscriptError, match="not UTF-8 text"):
            list(read_conversations(stream))

    def test_a_missing_file_is_an_error_of_the_file_system(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="missing"):
            list(read_conversations(tmp_path / "missing.jsonl"))

    def test_what_is_no_file_is_refused_at_the_call(self) -> None:
        bad: Any = 5
        with pytest.raises(TypeError, match="`source` must be a path or an open stream, got 5"):
            read_conversations(bad)
        with pytest.raises(TypeError, match="`target` must be a path or an open stream, got 5"):
            write_conversations([], bad)
        with pytest.raises(TypeError, match="`dicts` must be a list of dicts, got int"):
            messages_from_dicts(bad)
        with pytest.raises(TypeError, match="`messages` must be a list"):
            messages_to_dicts(bad)
        with pytest.raises(TypeError, match="entry 1 is 5"):
            write_conversations([bad], io.StringIO())

    def test_an_unknown_form_lists_the_right_ones(self) -> None:
        bad: Any = "yaml"
        with pytest.raises(ValueError, match="`form` must be one of haystack, openai, got 'yaml'"):
            messages_to_dicts([], form=bad)
        with pytest.raises(ValueError, match="`form` must be one of haystack, openai, got 'yaml'"):
            write_conversations([], io.StringIO(), form=bad)


def call(call_id: str | None, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function} if call_id else {"function": function}


def calls(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(entries)}


def result(call_id: str | None, text: str, **keys: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, **({"tool_call_id": call_id} if call_id else {}), **keys}


def origins(*dicts: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    results = [r for message in messages_from_dicts(list(dicts)) for r in message.tool_call_results]
    return [(r.origin.tool_name, r.origin.arguments) for r in results]


class TestOrigins:
    def test_ids_that_repeat_belong_to_the_nearest_call(self) -> None:
        assert origins(
            calls(call("call_0", "search", q=1)),
            result("call_0", "first"),
            calls(call("call_0", "read", path="a")),
            result("call_0", "second"),
        ) == [("search", {"q": 1}), ("read", {"path": "a"})]

    def test_calls_without_ids_are_answered_in_order(self) -> None:
        assert origins(calls(call(None, "search"), call(None, "read")), result(None, "1"), result(None, "2")) == [
            ("search", {}),
            ("read", {}),
        ]

    def test_a_result_need_not_stand_next_to_its_call(self) -> None:
        assert origins(calls(call("a", "book", seat=1)), HELLO, result("a", "booked")) == [("book", {"seat": 1})]

    def test_a_result_without_a_call_keeps_the_name_it_gives(self) -> None:
        messages = messages_from_dicts([result("lost", "text", name="search"), result("lost too", "text")])
        assert messages == [T("lost", "text", name="search"), T("lost too", "text", name="")]

    def test_a_call_knows_better_than_the_name_in_its_result(self) -> None:
        messages = messages_from_dicts([calls(call("a", "search")), result("a", "text", name="find")])
        assert messages[1].tool_call_results[0].origin.tool_name == "search"
        assert messages[1].name == "find"
        assert trip(messages, "openai") == messages

    def test_a_haystack_result_without_a_name_gets_it_too(self) -> None:
        nameless = [
            A(calls=[("a", "x", {"n": 1}), ("b", "y")]),
            in_one_message(T("b", "2", name=""), T("a", "1", name="")),
        ]
        loaded = messages_from_dicts(messages_to_dicts(nameless))
        assert [r.origin for r in loaded[1].tool_call_results] == [*reversed(loaded[0].tool_calls)]
        assert [r.result for r in loaded[1].tool_call_results] == ["2", "1"]

    def test_a_haystack_result_with_a_name_stays_as_it_is(self) -> None:
        named = [A(calls=[("a", "x", {"n": 1})]), T("a", "1", name="other")]
        assert messages_from_dicts(messages_to_dicts(named)) == named

    def test_the_call_itself_is_the_origin_as_in_an_agent(self) -> None:
        messages = messages_from_dicts([calls(call("a", "search") | {"index": 0}), result("a", "text")])
        assert messages[1].tool_call_results[0].origin is messages[0].tool_calls[0]
        assert messages[0].tool_calls[0].extra == {"index": 0}


def plain(messages: list[ChatMessage]) -> list[Any]:
    """All that OpenAI's format holds of a conversation, one entry a message of that format."""
    entries: list[Any] = []
    for message in messages:
        for answer in message.tool_call_results:
            texts = answer.result if isinstance(answer.result, str) else [part.text for part in answer.result] or ""
            entries.append((texts, answer.origin.id))
        if not message.tool_call_results:
            called = [(c.id, c.tool_name, c.arguments) for c in message.tool_calls]
            media = [image.base64_image for image in message.images] + [file.base64_data for file in message.files]
            entries.append((message.role, message.texts, called, media, [r.reasoning_text for r in message.reasonings]))
    return entries


def holds_media(content: Any) -> bool:
    return not isinstance(content, str) and not all(isinstance(part, TextContent) for part in content)


class TestTrips:
    @given(messages=conversations())
    def test_nothing_is_lost_in_haystack_form(self, messages: list[ChatMessage]) -> None:
        assert trip(messages, "haystack") == messages

    @given(messages=conversations())
    def test_all_that_the_format_holds_is_kept_in_openai_form(self, messages: list[ChatMessage]) -> None:
        if any(holds_media(answer.result) for message in messages for answer in message.tool_call_results):
            with pytest.raises(TranscriptError, match="cannot hold"):
                trip(messages, "openai")
            return
        once = trip(messages, "openai")
        assert plain(once) == plain(messages)
        assert trip(once, "openai") == once

    @pytest.mark.parametrize("shape", SHAPES)
    def test_nothing_is_lost_of_an_awkward_conversation(self, shape: str) -> None:
        messages = messages_from_dicts(messages_to_dicts(SHAPES[shape]()))  # results without a name get theirs
        assert trip(messages, "haystack") == messages

    def test_half_a_surrogate_pair_is_read_back(self) -> None:
        messages = [U("broken \ud83d"), A(calls=[("a", "t", {"x": "\udc00 ü"})]), T("a", "\ud800", name="t")]
        assert [m.text for m in trip(messages, "openai")] == [m.text for m in messages]
        assert trip(messages, "haystack") == messages
        target = io.BytesIO()
        write_conversations([Conversation("x", messages)], target)
        assert read(target.getvalue())[0].messages == messages

    def test_several_results_in_a_message_become_several_messages(self) -> None:
        messages = [A(calls=[("a", "x"), ("b", "y")]), in_one_message(T("a", "1", name="x"), T("b", "", name="y"))]
        assert messages_to_dicts(messages, form="openai")[1:] == [
            {"role": "tool", "tool_call_id": "a", "name": "x", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "name": "y", "content": ""},
        ]

    def test_an_image_in_a_result_is_refused_with_the_way_out(self) -> None:
        messages = [U("go"), A(calls=["a"]), T("a", [TextContent("see"), image()])]
        with pytest.raises(TranscriptError) as caught:
            written([TWO_READ, Conversation("x", messages)], "openai")
        assert str(caught.value) == (
            "conversation 2: message 3: OpenAI's format cannot hold a ImageContent in a tool result; "
            'use form="haystack"'
        )
        assert trip(messages, "haystack") == messages


class TestWriting:
    def test_there_is_one_conversation_a_line(self) -> None:
        assert written([ONE_READ, TWO_READ], "openai") == lines(ONE, TWO)
        assert written([NO_ID_READ], "openai") == lines({"messages": [HELLO, ANSWER]})
        assert written([], "openai") == ""

    def test_haystack_form_is_what_haystack_writes(self) -> None:
        (line,) = written([ONE_READ], "haystack").splitlines()
        assert json.loads(line)["messages"] == [message.to_dict() for message in ONE_READ.messages]

    @pytest.mark.parametrize("as_text", [True, False])
    def test_streams_of_text_and_of_bytes_are_written_to(self, tmp_path: Path, as_text: bool) -> None:
        path = tmp_path / "out.jsonl"
        with path.open("w", encoding="utf-8") if as_text else path.open("wb") as stream:
            write_conversations([Conversation("ü", [U("Grüße")])], stream)
            assert not stream.closed
        assert list(read_conversations(path)) == [Conversation("ü", [U("Grüße")])]

    def test_a_new_file_has_the_permissions_of_any_new_file(self, tmp_path: Path) -> None:
        path, other = tmp_path / "runs.jsonl", tmp_path / "other"
        write_conversations([ONE_READ], path, form="openai")
        other.touch()
        assert path.read_bytes() == lines(ONE).encode()
        assert path.stat().st_mode == other.stat().st_mode

    def test_a_file_can_be_rewritten_while_it_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        path.write_text(lines(*[ONE] * 2000), encoding="utf-8")
        path.chmod(0o640)
        write_conversations(read_conversations(path), path, form="haystack")
        assert list(read_conversations(path)) == [ONE_READ] * 2000
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert list(tmp_path.iterdir()) == [path]

    def test_a_failure_leaves_what_was_there(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        path.write_text("precious", encoding="utf-8")
        with pytest.raises(TranscriptError, match=r"^runs\.jsonl:2: broken JSON"):
            write_conversations(read_conversations(io.StringIO(lines(ONE) + "{"), name="runs.jsonl"), str(path))
        assert path.read_text(encoding="utf-8") == "precious"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        path, link = tmp_path / "there" / "runs.jsonl", tmp_path / "link.jsonl"
        path.touch()
        link.symlink_to(path)
        write_conversations([ONE_READ], link)
        assert link.is_symlink()
        assert list(read_conversations(path)) == [ONE_READ]

    @pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="there is no such device here")
    def test_a_device_stays_a_device(self) -> None:
        write_conversations([ONE_READ], "/dev/null")
        assert Path("/dev/null").is_char_device()

    @pytest.mark.parametrize(
        ("conversation", "message"),
        [
            pytest.param(
                Conversation("x", [U("a"), U("b", meta={"when": {1, 2}})]),
                "conversation 1: message 2: JSON cannot hold it: "
                "TypeError: Object of type set is not JSON serializable",
                id="metadata of a message",
            ),
            pytest.param(
                Conversation("x", [], {"when": {1, 2}}),
                "conversation 1: JSON cannot hold it: TypeError: Object of type set is not JSON serializable",
                id="metadata of the conversation",
            ),
            pytest.param(
                Conversation("x", [], {"messages": 1}),
                "conversation 1: `meta` must not have the key 'messages', which the conversation itself has",
                id="a key of the conversation's own",
            ),
        ],
    )
    def test_what_json_cannot_hold_is_named(self, conversation: Conversation, message: str) -> None:
        with pytest.raises(TranscriptError) as caught:
            written([conversation], "haystack")
        assert str(caught.value) == message

    def test_a_message_that_is_none_is_named(self) -> None:
        bad: Any = [S("text"), ["no part"]]
        with pytest.raises(TranscriptError, match=r"^conversation 1: message 2: it cannot be written: "):
            written([Conversation("x", [U("a"), T("a", bad)])], "haystack")

    def test_arguments_nested_without_end_are_named(self) -> None:
        endless: dict[str, Any] = {}
        for _ in range(5000):
            endless = {"more": endless}
        with pytest.raises(TranscriptError, match=r"^conversation 1: message 1: it cannot be written: Recursion"):
            written([Conversation("x", [A(calls=[("a", "t", endless)])])], "haystack")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
PNG = "data:image/png;base64,iVBORw0KGgo="
WHOLE_MESSAGES: list[dict[str, Any]] = [
    *messages_to_dicts([S("a"), U("a", image(), file()), A("a", calls=["a"], reasoning="b", name="c", meta={"d": 1})]),
    *messages_to_dicts([T("a", "text"), T("a", [TextContent("a"), image(), file()]), U("note", meta={"a": {"b": []}})]),
    {"_role": "tool", "_content": [{"tool_call_result": T("a", "b").tool_call_results[0].to_dict()}], "_meta": {}},
    {"_role": "user", "_content": [{"text": "a"}], "_name": "b", "_meta": {"c": 1}},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]},
    {"role": "user", "content": [{"type": "file", "file": {"file_data": PNG, "filename": "a"}}], "name": "b"},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
    {"role": "assistant", "content": None, "reasoning_content": "a", "refusal": "b", "other": {"c": []}},
    {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "b", "arguments": "{}"}}],
    },
    {"role": "assistant", "function_call": {"name": "a", "arguments": {"b": 1}}},
    {"role": "tool", "tool_call_id": "a", "content": [{"text": "b"}], "name": "c"},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value, as the object or list and the key in it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@st.composite
def crooked_messages(draw: st.DrawFn) -> dict[str, Any]:
    """A message that is right but for a place or two."""
    message = copy.deepcopy(draw(st.sampled_from(WHOLE_MESSAGES)))
    for _ in range(draw(st.integers(0, 2))):
        where, key = draw(st.sampled_from(places(message) or [(message, "role")]))
        if draw(st.booleans()):
            where[key] = draw(JSON_VALUES)
        else:
            del where[key]
    return message


def check_whatever_it_is(text: str | bytes) -> None:
    try:
        found = read(text)
    except TranscriptError as error:
        found, message = [], str(error)
    else:
        message = ""
    assert bool(found) != bool(message)
    assert not message or (message.startswith("runs.jsonl:") and len(message.splitlines()) == 1)
    if not found:
        return
    for conversation in found:
        assert all(isinstance(message, ChatMessage) for message in conversation.messages)
    again = read(written(found, "haystack"))
    assert repr(again) == repr(found)  # not ==, because a NaN is not itself


class TestWhateverTheFileHolds:
    @given(text=st.binary(max_size=300))
    def test_bytes_are_conversations_or_an_error(self, text: bytes) -> None:
        check_whatever_it_is(text)

    @given(text=st.text(alphabet='[]{}",:\\ \n\r01e-.tnul\0\ufeffé\ud800', max_size=40))
    def test_texts_like_json_are_conversations_or_an_error(self, text: str) -> None:
        check_whatever_it_is(text)

    @given(value=JSON_VALUES)
    def test_json_values_are_conversations_or_an_error(self, value: Any) -> None:
        check_whatever_it_is(json.dumps(value))

    @settings(max_examples=400)
    @given(messages=st.lists(crooked_messages(), min_size=1, max_size=3))
    def test_crooked_messages_are_conversations_or_an_error(self, messages: list[Any]) -> None:
        check_whatever_it_is(lines({"messages": messages}))

    @given(messages=conversations(max_blocks=4), data=st.data())
    def test_a_file_cut_off_anywhere_is_conversations_or_an_error(
        self, messages: list[Any], data: st.DataObject
    ) -> None:
        text = written([Conversation("x", messages)] * 2, "haystack").encode()
        check_whatever_it_is(text[: data.draw(st.integers(0, len(text)))])

"""A message in OpenAI's chat format: read the same with every Haystack, and written as tools read it."""

import copy
import json
from typing import Any

import pytest
from conversations import A, S, T, U, file, image
from haystack.dataclasses import ChatMessage, FileContent, ImageContent, ReasoningContent, TextContent, ToolCall

from haystack_compaction.errors import TranscriptError
from haystack_compaction.openai_format import message_from_openai, message_to_openai

PNG = "iVBORw0KGgo="
PDF = "JVBERi0xLjc="
IMAGE_PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}}
FILE_PART = {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"}}
LOOKUP = {"id": "a", "type": "function", "function": {"name": "lookup", "arguments": '{"q": 1}'}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def nameless(result: Any, call_id: str | None = "a", **meta: Any) -> ChatMessage:
    return T(call_id, result, name="", meta=meta)


def arguments_read(arguments: Any) -> dict[str, Any]:
    function = {"name": "lookup", "arguments": arguments}
    message = message_from_openai({"role": "assistant", "tool_calls": [{"id": "a", "function": function}]})
    return message.tool_calls[0].arguments


class TestReading:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            pytest.param({"role": "system", "content": "a", "name": "b"}, S("a", name="b"), id="instructions"),
            pytest.param({"role": "developer", "content": "a"}, S("a"), id="instructions of a developer"),
            pytest.param(
                {"role": "system", "content": [text_part("a"), text_part("b")]}, S("a\nb"), id="instructions in parts"
            ),
            pytest.param({"role": "user", "content": "a", "name": "b"}, U("a", name="b"), id="a user's text"),
            pytest.param({"role": "user", "content": ""}, U(""), id="a user's empty text"),
            pytest.param({"role": "user", "content": None}, U(""), id="a user's text that is null"),
            pytest.param({"role": "user", "content": []}, U(""), id="a user's text without parts"),
            pytest.param(
                {"role": "user", "content": [text_part("a"), IMAGE_PART, FILE_PART, text_part("b")]},
                U(
                    TextContent("a"),
                    ImageContent(PNG, mime_type="image/png", detail="low"),
                    FileContent(PDF, mime_type="application/pdf", filename="a.pdf"),
                    TextContent("b"),
                ),
                id="a user's parts",
            ),
            pytest.param({"role": "assistant", "content": "a"}, A("a"), id="a reply"),
            pytest.param({"role": "assistant", "content": ""}, A(""), id="an empty reply"),
            pytest.param({"role": "assistant", "content": None}, A(""), id="a reply that is null"),
            pytest.param({"role": "assistant"}, A(""), id="a reply without content"),
            pytest.param(
                {"role": "assistant", "content": [text_part("a"), text_part("b")]}, A("a\nb"), id="a reply in parts"
            ),
            pytest.param(
                {"role": "assistant", "content": None, "tool_calls": [LOOKUP]},
                A(calls=[("a", "lookup", {"q": 1})]),
                id="a call",
            ),
            pytest.param(
                {"role": "assistant", "content": "", "tool_calls": [LOOKUP]},
                A("", calls=[("a", "lookup", {"q": 1})]),
                id="a call with an empty text",
            ),
            pytest.param({"role": "assistant", "content": "a", "tool_calls": []}, A("a"), id="no calls in a list"),
            pytest.param(
                {"role": "assistant", "content": None, "function_call": {"name": "lookup", "arguments": '{"q": 1}'}},
                A(calls=[(None, "lookup", {"q": 1})]),
                id="a call of the old kind",
            ),
            pytest.param(
                {"role": "assistant", "content": None, "refusal": "no"}, A(meta={"refusal": "no"}), id="a refusal"
            ),
            pytest.param(
                {
                    "role": "assistant",
                    "content": [text_part("a"), {"type": "refusal", "refusal": "no"}],
                    "refusal": "no",
                },
                A("a", meta={"refusal": "no"}),
                id="a refusal as a part too",
            ),
            pytest.param(
                {"role": "assistant", "content": "a", "reasoning_content": "because"},
                A("a", reasoning="because"),
                id="reasoning",
            ),
            pytest.param({"role": "tool", "tool_call_id": "a", "content": "x"}, nameless("x"), id="a result"),
            pytest.param({"role": "tool", "tool_call_id": "a", "content": ""}, nameless(""), id="an empty result"),
            pytest.param({"role": "tool", "tool_call_id": "a", "content": None}, nameless(""), id="a result of null"),
            pytest.param({"role": "tool", "tool_call_id": "a", "content": []}, nameless(""), id="a result of no parts"),
            pytest.param({"role": "tool", "tool_call_id": "a"}, nameless(""), id="a result without content"),
            pytest.param({"role": "tool", "content": "x"}, nameless("x", None), id="a result without an id"),
            pytest.param(
                {"role": "tool", "tool_call_id": "a", "content": [text_part("x"), {"text": "y"}]},
                nameless([TextContent("x"), TextContent("y")]),
                id="a result in parts",
            ),
            pytest.param(
                {"role": "tool", "tool_call_id": "a", "content": [IMAGE_PART]},
                nameless([ImageContent(PNG, mime_type="image/png", detail="low")]),
                id="a result with an image",
            ),
            pytest.param({"role": "function", "content": "x"}, nameless("x", None), id="a result of the old kind"),
        ],
    )
    def test_a_message_becomes(self, data: dict[str, Any], message: ChatMessage) -> None:
        before = copy.deepcopy(data)
        assert message_from_openai(data) == message
        assert data == before

    def test_keys_that_the_format_does_not_know_go_to_metadata(self) -> None:
        data = {"role": "user", "content": "a", "weight": 0, "audio": None, "tool_calls": []}
        assert message_from_openai(data) == U("a", meta={"weight": 0, "tool_calls": []})
        data = {"role": "tool", "tool_call_id": "a", "content": "x", "is_error": True}
        assert message_from_openai(data) == nameless("x", is_error=True)

    def test_keys_of_a_part_that_the_format_does_not_know_are_kept(self) -> None:
        hint = {"cache_control": {"type": "ephemeral"}}
        assert message_from_openai({"role": "system", "content": [text_part("a") | hint]}) == S("a", meta=hint)
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "origin": "camera"}}
        message = message_from_openai({"role": "user", "content": [picture | hint]})
        assert message == U(ImageContent(PNG, mime_type="image/png", meta={"origin": "camera"}), meta=hint)

    def test_keys_of_a_call_that_the_format_does_not_know_go_to_its_extra(self) -> None:
        entry = LOOKUP | {"index": 0, "extra_content": {"google": {"thought_signature": "x"}}, "note": None}
        (call,) = message_from_openai({"role": "assistant", "tool_calls": [entry]}).tool_calls
        assert call.extra == {"index": 0, "extra_content": {"google": {"thought_signature": "x"}}}


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "read"),
        [
            pytest.param('{"q": [1, null]}', {"q": [1, None]}, id="a text"),
            pytest.param({"q": 1}, {"q": 1}, id="an object"),
            pytest.param("", {}, id="an empty text"),
            pytest.param(None, {}, id="null"),
            pytest.param("{}", {}, id="an empty object"),
        ],
    )
    def test_arguments_are_read_from(self, arguments: Any, read: dict[str, Any]) -> None:
        assert arguments_read(arguments) == read

    @pytest.mark.parametrize(
        "arguments",
        [
            pytest.param('{"q": 1', id="cut off"),
            pytest.param("[1]", id="a list"),
            pytest.param("null", id="the word null"),
            pytest.param("   ", id="white space"),
            pytest.param('{"q":' * 5000, id="endless nesting"),
            pytest.param('{"q": ' + "[" * 200 + "]" * 200 + "}", id="deep nesting"),
            pytest.param('{"q": ' + "1" * 5000 + "}", id="a number without end"),
        ],
    )
    def test_what_a_model_wrote_wrongly_is_kept_as_it_wrote_it(self, arguments: str) -> None:
        function = {"name": "lookup", "arguments": arguments}
        data = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        }
        message = message_from_openai(data)
        assert message.tool_calls == [ToolCall("lookup", {"unparsed_arguments": arguments}, id="a")]
        assert message_to_openai(message) == [data]

    def test_an_argument_of_that_name_is_an_argument(self) -> None:
        for value in ("{}", '{"unparsed_arguments": "{"}', 5):
            message = A(calls=[("a", "lookup", {"unparsed_arguments": value})])
            assert message_from_openai(message_to_openai(message)[0]) == message


class TestErrors:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            pytest.param(
                {"content": "a"},
                "`role` must be one of system, developer, user, assistant, tool, function, got None",
                id="no role",
            ),
            pytest.param({"role": ["user"], "content": "a"}, "got ['user']", id="a role that is a list"),
            pytest.param({"role": "user"}, "`content` is missing, there are only the keys ['role']", id="no content"),
            pytest.param({"role": "system"}, "`content` is missing", id="no instructions"),
            pytest.param(
                {"role": "user", "content": 5},
                "`content` must be a text, a list of parts or null, got 5",
                id="a number",
            ),
            pytest.param({"role": "tool", "content": {"a": 1}}, "got {'a': 1}", id="an object as a result"),
            pytest.param(
                {"role": "user", "content": "a", "name": 5}, "`name` must be a text or null, got 5", id="a name"
            ),
            pytest.param(
                {"role": "user", "content": [text_part("a"), "b"]},
                "part 2 of `content`: it must be an object, got 'b'",
                id="a text as a part",
            ),
            pytest.param(
                {"role": "user", "content": [{"type": "video"}]},
                "part 1 of `content`: `type` must be one of text, image_url, file here, got 'video'",
                id="a part of another type",
            ),
            pytest.param(
                {"role": "assistant", "content": [IMAGE_PART]},
                "part 1 of `content`: `type` must be one of text here, got 'image_url'",
                id="an image in a reply",
            ),
            pytest.param(
                {"role": "user", "content": [{"type": "text", "text": None}]},
                "part 1 of `content`: `text` must be a text, got None",
                id="a part without its text",
            ),
            pytest.param(
                {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
                "part 1 of `content`: `image_url` must be an object, got 'x'",
                id="an image that is a text",
            ),
            pytest.param(
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
                "`url` must hold the data itself (data:TYPE;base64,...), got 'https://example.com/a.png'",
                id="an image that is elsewhere",
            ),
            pytest.param(
                {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
                "`file_data` must hold the data itself (data:TYPE;base64,...), got None",
                id="a file that is elsewhere",
            ),
            pytest.param(
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}]},
                "part 1 of `content`: The base64 string is not valid",
                id="an image that is no base64",
            ),
            pytest.param(
                {"role": "assistant", "tool_calls": {}}, "`tool_calls` must be a list or null, got {}", id="no list"
            ),
            pytest.param(
                {"role": "assistant", "tool_calls": [LOOKUP, 5]},
                "tool call 2: it must be an object, got 5",
                id="no call",
            ),
            pytest.param(
                {"role": "assistant", "tool_calls": [{"type": "custom"}]},
                "tool call 1: `type` must be function, got 'custom'",
                id="a call of another type",
            ),
            pytest.param(
                {"role": "assistant", "tool_calls": [{"id": "a"}]},
                "tool call 1: `function` must be an object with `name` and `arguments`, got None",
                id="a call without a function",
            ),
            pytest.param(
                {"role": "assistant", "tool_calls": [{"function": {}}]},
                "tool call 1: `name` must be a text, got None",
                id="a call without a name",
            ),
            pytest.param(
                {"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "x"}}]},
                "tool call 1: `id` must be a text or null, got 5",
                id="an id that is a number",
            ),
            pytest.param(
                {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": [1]}}]},
                "tool call 1: `arguments` must be a text that holds a JSON object, got [1]",
                id="arguments that are a list",
            ),
            pytest.param(
                {"role": "assistant", "refusal": 5}, "`refusal` must be a text or null, got 5", id="a refusal"
            ),
        ],
    )
    def test_the_key_and_the_rule_are_named(self, data: dict[str, Any], message: str) -> None:
        with pytest.raises(TranscriptError) as caught:
            message_from_openai(data)
        assert message in str(caught.value)


class TestWriting:
    @pytest.mark.parametrize(
        ("message", "data"),
        [
            pytest.param(S("a", name="b"), {"role": "system", "name": "b", "content": "a"}, id="instructions"),
            pytest.param(U("a"), {"role": "user", "content": "a"}, id="a user's text"),
            pytest.param(
                U("a", ImageContent(PNG, mime_type="image/png", detail="low"), file("a.pdf")),
                {"role": "user", "content": [text_part("a"), IMAGE_PART, FILE_PART]},
                id="a user's parts",
            ),
            pytest.param(A("a"), {"role": "assistant", "content": "a"}, id="a reply"),
            pytest.param(A(), {"role": "assistant", "content": ""}, id="a reply of nothing"),
            pytest.param(
                A(calls=[("a", "lookup", {"q": 1})]),
                {"role": "assistant", "content": None, "tool_calls": [LOOKUP]},
                id="a call",
            ),
            pytest.param(
                A(reasoning=ReasoningContent("because", extra={"signature": "x"})),
                {"role": "assistant", "content": None, "reasoning_content": "because"},
                id="reasoning alone",
            ),
            pytest.param(
                A(meta={"refusal": "no", "usage": {"prompt_tokens": 5}}),
                {"role": "assistant", "content": None, "refusal": "no"},
                id="a refusal",
            ),
            pytest.param(
                T("a", [TextContent("x"), TextContent("y")], name="lookup", error=True),
                {"role": "tool", "tool_call_id": "a", "name": "lookup", "content": [text_part("x"), text_part("y")]},
                id="a result in parts",
            ),
            pytest.param(T(None, "", name=""), {"role": "tool", "content": ""}, id="a result of an unknown call"),
        ],
    )
    def test_a_message_becomes(self, message: ChatMessage, data: dict[str, Any]) -> None:
        assert message_to_openai(message) == [data]

    def test_texts_of_one_message_are_kept_apart(self) -> None:
        message = ChatMessage.from_dict({"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]})
        assert message_to_openai(message) == [{"role": "assistant", "content": [text_part("a"), text_part("b")]}]

    def test_what_haystack_writes_is_read_back_the_same(self) -> None:
        calls = A("a", calls=[("a", "lookup", {"q": "ü"})])
        for message in (S("a"), U("b", image()), A("c"), calls, nameless("x")):
            ours = message_from_openai(message_to_openai(message)[0])
            assert ours == message_from_openai(message.to_openai_dict_format(require_tool_call_ids=False))

    @pytest.mark.parametrize(
        ("content", "role", "what"),
        [
            pytest.param(
                [{"image": image().to_dict()}], "assistant", "a ImageContent in an assistant message", id="reply"
            ),
            pytest.param(
                [{"file": file().to_dict()}], "system", "a FileContent in a system message", id="instructions"
            ),
            pytest.param(
                [{"reasoning": {"reasoning_text": "x"}}], "user", "a ReasoningContent in a user message", id="user"
            ),
            pytest.param([{"text": "x"}], "tool", "a TextContent beside the results of a tool message", id="tool"),
            pytest.param([], "tool", "a tool message without a result", id="no result"),
        ],
    )
    def test_what_the_format_cannot_hold_is_refused(self, content: list[Any], role: str, what: str) -> None:
        message = ChatMessage.from_dict({"role": role, "content": content})
        with pytest.raises(TranscriptError) as caught:
            message_to_openai(message)
        assert str(caught.value) == f'OpenAI\'s format cannot hold {what}; use form="haystack"'


class TestBesideHaystack:
    @pytest.mark.parametrize(
        "data",
        [
            {"role": "system", "content": "a", "name": "b"},
            {"role": "user", "content": "a", "name": "b"},
            {"role": "assistant", "content": "a", "tool_calls": [LOOKUP]},
            {"role": "assistant", "tool_calls": [LOOKUP, LOOKUP | {"id": "b"}]},
            {"role": "tool", "tool_call_id": "a", "content": "x"},
            {"role": "tool", "tool_call_id": "a", "content": [text_part("x")]},
        ],
        ids=json.dumps,
    )
    def test_what_every_haystack_reads_is_read_the_same(self, data: dict[str, Any]) -> None:
        assert message_from_openai(data) == ChatMessage.from_openai_dict_format(data)

    @pytest.mark.parametrize(
        "data",
        [
            {"role": "user", "content": [text_part("a"), IMAGE_PART, FILE_PART]},
            {"role": "developer", "content": [text_part("a"), text_part("b")]},
            {
                "role": "assistant",
                "content": [text_part("a"), {"type": "refusal", "refusal": "no"}],
                "refusal": "never",
            },
            {"role": "assistant", "content": "", "tool_calls": []},
        ],
        ids=["a user's parts", "instructions in parts", "refusals", "an empty reply"],
    )
    def test_what_a_new_haystack_reads_is_read_the_same_by_us(self, data: dict[str, Any]) -> None:
        if not hasattr(ChatMessage, "_from_openai_content_parts"):
            pytest.skip("this Haystack does not read it")
        assert message_from_openai(data) == ChatMessage.from_openai_dict_format(data)

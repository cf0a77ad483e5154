"""A message as one of Haystack's dicts: which form it is, and what is refused before it fails elsewhere."""

from typing import Any

import pytest
from conversations import A, T, U, file, image
from haystack.dataclasses import ChatMessage, TextContent

from haystack_compaction.errors import TranscriptError
from haystack_compaction.haystack_format import is_haystack_dict, message_from_haystack

CALL = {"tool_name": "lookup", "arguments": {}, "id": "a", "extra": None}


class TestRecognition:
    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(U("a").to_dict(), id="of today"),
            pytest.param(A(calls=["a"]).to_dict(), id="with a call"),
            pytest.param(A().to_dict(), id="without content"),
            pytest.param({"_role": "user", "_content": [{"text": "a"}]}, id="of 2.9 to 2.11"),
            pytest.param({"role": "user", "content": "a", "meta": {}}, id="before 2.9"),
        ],
    )
    def test_a_haystack_dict_is_known(self, data: dict[str, Any]) -> None:
        assert is_haystack_dict(data)

    @pytest.mark.parametrize(
        "data",
        [
            pytest.param({"role": "user", "content": "a"}, id="a text"),
            pytest.param({"role": "user", "content": [{"type": "text", "text": "a"}]}, id="parts with a type"),
            pytest.param({"role": "tool", "tool_call_id": "a", "content": "x", "meta": {}}, id="a result"),
            pytest.param({"role": "tool", "tool_call_id": "a", "content": [{"text": "x"}]}, id="a result in parts"),
            pytest.param({"role": "function", "content": "x", "meta": {}}, id="a result of the old kind"),
            pytest.param({"role": "assistant", "content": None, "meta": {}}, id="no content"),
            pytest.param({"role": "assistant", "content": []}, id="no parts"),
        ],
    )
    def test_anything_else_is_openais(self, data: dict[str, Any]) -> None:
        assert not is_haystack_dict(data)


class TestReading:
    @pytest.mark.parametrize(
        "message",
        [
            pytest.param(U("a", image(), file(), name="b", meta={"c": 1}), id="a user"),
            pytest.param(A("a", calls=[("a", "b", {"c": [1]})], reasoning="d"), id="a reply"),
            pytest.param(T("a", [TextContent("a"), image(), file()], error=True), id="a result"),
        ],
    )
    def test_what_haystack_wrote_comes_back_equal(self, message: ChatMessage) -> None:
        data = message.to_dict()
        assert message_from_haystack(data) == message
        assert message_from_haystack({f"_{key}": value for key, value in data.items()}) == message

    def test_the_oldest_form_holds_a_text(self) -> None:
        data = {"role": "user", "content": "a", "name": None, "meta": {"b": 1}}
        assert message_from_haystack(data) == U("a", meta={"b": 1})

    def test_keys_that_haystack_does_not_know_go_to_metadata(self) -> None:
        data = {"role": "user", "content": [{"text": "a"}], "meta": {"b": 1}, "time": 5, "b": 2, "c": None}
        assert message_from_haystack(data) == U("a", meta={"b": 1, "time": 5})


def result(**changes: Any) -> dict[str, Any]:
    return {"role": "tool", "content": [{"tool_call_result": {"result": "", "origin": CALL, "error": False} | changes}]}


class TestErrors:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            pytest.param(
                {"role": "developer", "content": [{"text": "a"}]},
                "`role` must be one of user, system, assistant, tool, got 'developer'",
                id="a role that Haystack has not",
            ),
            pytest.param({"_role": "user"}, "`content` must not be of type NoneType", id="no content"),
            pytest.param(
                {"role": "user", "content": [{"text": "a"}], "name": 5}, "`name` must not be of type int", id="a name"
            ),
            pytest.param(
                {"role": "user", "content": [{"text": "a"}], "meta": [1]}, "`meta` must not be of type list", id="meta"
            ),
            pytest.param(
                {"role": "user", "content": [{"text": 5}]}, "`text` in a TextContent must not be of type int", id="text"
            ),
            pytest.param(
                {"role": "user", "content": [{"video": {}}]}, "Haystack cannot read the message: ", id="a part"
            ),
            pytest.param(
                {"_role": "user", "_content": [5]}, "Haystack cannot read the message: ", id="a number as part"
            ),
            pytest.param(
                {"role": "assistant", "content": [{"tool_call": CALL | {"arguments": "{}"}}]},
                "`arguments` in a ToolCall must not be of type str",
                id="arguments",
            ),
            pytest.param(result(result=5), "`result` in a ToolCallResult must not be of type int", id="a result"),
            pytest.param(result(origin=CALL | {"tool_name": None}), "`tool_name` in a ToolCall", id="an origin"),
            pytest.param(result(error="no"), "`error` in a ToolCallResult must not be of type str", id="an error flag"),
            pytest.param(
                result(result=[{"tool_call": CALL}]),
                "`result` in a ToolCallResult must not hold a ToolCall",
                id="a call in a result",
            ),
            pytest.param(
                result(result=[{"text": None}]),
                "`text` in a TextContent must not be of type NoneType",
                id="a result's text",
            ),
        ],
    )
    def test_the_field_and_its_type_are_named(self, data: dict[str, Any], message: str) -> None:
        with pytest.raises(TranscriptError) as caught:
            message_from_haystack(data)
        assert str(caught.value).startswith(message)
        assert len(str(caught.value)) < 300

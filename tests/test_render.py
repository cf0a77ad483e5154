"""A message as text, as it travels: what counters measure, and what they do not."""

import json
from typing import Any

import pytest
from conversations import A, S, T, U, conversations, file, image, in_one_message
from haystack.dataclasses import ChatMessage, ReasoningContent, TextContent, ToolCall
from haystack.tools import Tool, Toolset
from hypothesis import given, settings

from haystack_compaction.render import arguments_text, measured, measured_text, measured_tools, python_text


def tool(name: str = "search", description: str = "Find something.") -> Tool:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    return Tool(name=name, description=description, parameters=parameters, function=print)


class TestTheTextOfAMessage:
    @pytest.mark.parametrize("message", [S("words"), U("words"), A("words"), T("a", "words")], ids=lambda m: m.role)
    def test_a_single_text_is_itself(self, message: ChatMessage) -> None:
        assert measured(message) == ("words", 0, 0)

    def test_parts_stand_in_their_order_with_a_line_break_between_them(self) -> None:
        assert measured_text(U("one", image(), "two", file(), "three")) == "one\ntwo\nthree"

    def test_a_call_is_its_name_and_its_arguments(self) -> None:
        message = A("I look it up.", calls=[("id_1", "search", {"query": "ships"}), ("id_2", "stop")])
        assert measured_text(message) == 'I look it up.\nsearch{"query": "ships"}\nstop{}'

    def test_ids_of_calls_are_left_out(self) -> None:
        long_id, no_id = ToolCall("search", {}, id="x" * 500), ToolCall("search", {}, id=None)
        assert measured_text(A(calls=[long_id])) == measured_text(A(calls=[no_id])) == "search{}"
        assert measured_text(T("x" * 500, "found")) == "found"

    def test_the_call_that_a_result_repeats_is_left_out(self) -> None:
        assert measured_text(T("a", "found", name="search", arguments={"query": "ships" * 500})) == "found"

    def test_reasoning_is_left_out(self) -> None:
        thought = ReasoningContent("because " * 500, extra={"signature": "c2lnbmVk" * 100})
        assert measured(A(reasoning=thought)) == ("", 0, 0)
        assert measured_text(A("so", calls=[("a", "search")], reasoning=thought)) == "so\nsearch{}"

    def test_names_and_metadata_are_left_out(self) -> None:
        assert measured_text(A("so", name="bot" * 100, meta={"usage": {"total_tokens": 5}})) == "so"

    def test_several_results_in_a_message_are_all_there(self) -> None:
        assert measured_text(in_one_message(T("a", "first"), T("b", "second"))) == "first\nsecond"

    def test_a_result_of_parts_is_their_texts(self) -> None:
        message = T("a", [TextContent("page 1"), image(), TextContent("page 2")])
        assert measured(message) == ("page 1\npage 2", 1, 0)

    def test_an_error_is_its_text(self) -> None:
        assert measured_text(T("a", "no such file", error=True)) == "no such file"

    @pytest.mark.parametrize("message", [T("a", ""), T("a", []), A(), U("")], ids=["text", "parts", "nothing", "user"])
    def test_an_empty_message_has_no_text(self, message: ChatMessage) -> None:
        assert measured(message) == ("", 0, 0)

    @settings(deadline=None)
    @given(conversations())
    def test_no_text_is_lost_whatever_the_message(self, messages: list[ChatMessage]) -> None:
        for message in messages:
            text = measured_text(message)
            assert all(part in text for part in message.texts)
            assert all(call.tool_name + arguments_text(call.arguments) in text for call in message.tool_calls)
            for result in message.tool_call_results:
                blocks = [result.result] if isinstance(result.result, str) else result.result
                assert all(getattr(block, "text", block if isinstance(block, str) else "") in text for block in blocks)

    @settings(deadline=None)
    @given(conversations(well_behaved=True))
    def test_it_is_the_text_that_haystack_sends(self, messages: list[ChatMessage]) -> None:
        for message in messages:
            if message.reasoning or message.images or message.files or not isinstance(_content(message), str):
                continue
            sent = message.to_openai_dict_format(require_tool_call_ids=False)
            calls = [f"{c['function']['name']}{c['function']['arguments']}" for c in sent.get("tool_calls") or ()]
            assert measured_text(message) == "\n".join([*([sent["content"]] if sent.get("content") else []), *calls])


def _content(message: ChatMessage) -> Any:
    result = message.tool_call_result
    return result.result if result else message.text or ""


class TestImagesAndFiles:
    def test_each_is_counted_and_none_is_text(self) -> None:
        assert measured(U("look", image(), image(), file())) == ("look", 2, 1)

    def test_those_in_results_count_too(self) -> None:
        message = in_one_message(T("a", [image(), file()]), T("b", [TextContent("done"), image()]))
        assert measured(message) == ("done", 2, 1)

    def test_a_message_of_an_image_alone_has_no_text(self) -> None:
        assert measured(U(image())) == ("", 1, 0)


class TestArguments:
    def test_they_are_json_that_reads_back(self) -> None:
        arguments = {"path": 'a "quoted"\nname', "lines": [1, 2.5, None, True], "nested": {"deep": {}}}
        assert json.loads(arguments_text(arguments)) == arguments

    def test_no_letter_is_escaped(self) -> None:
        assert arguments_text({"city": "東京", "name": "Zoë"}) == '{"city": "東京", "name": "Zoë"}'

    def test_lone_surrogates_stay_as_they_are(self) -> None:
        assert arguments_text({"text": "\ud83d"}) == '{"text": "\ud83d"}'

    def test_values_that_json_does_not_know_are_written_as_python_shows_them(self) -> None:
        assert arguments_text({"when": 1 + 2j}) == '{"when": "(1+2j)"}'

    def test_keys_that_json_does_not_take_are_written_as_python_shows_them(self) -> None:
        assert arguments_text({(1, 2): "pair"}) == "{(1, 2): 'pair'}"  # type: ignore[dict-item]

    def test_a_value_that_holds_itself_is_written_all_the_same(self) -> None:
        arguments: dict[str, Any] = {"me": None}
        arguments["me"] = arguments
        assert "me" in arguments_text(arguments)
        assert "me" in measured_text(A(calls=[ToolCall("search", arguments)]))

    def test_nesting_without_end_is_written_in_short(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        assert "deep" in arguments_text({"deep": deep})
        assert len(python_text({"deep": deep})) < 1000

    def test_another_way_of_writing_them_may_be_given(self) -> None:
        message = A(calls=[("a", "search", {"query": "ships"})])
        assert measured(message, lambda arguments: f"({len(arguments)})") == ("search(1)", 0, 0)


class TestTools:
    @pytest.mark.parametrize("tools", [None, [], Toolset([])], ids=["none", "no tools", "an empty toolset"])
    def test_none_is_no_text(self, tools: Any) -> None:
        assert measured_tools(tools) == ""

    def test_they_are_their_schemas_as_json(self) -> None:
        tools = [tool("search"), tool("stop")]
        assert json.loads(measured_tools(tools)) == [entry.tool_spec for entry in tools]

    def test_a_toolset_is_the_same_as_its_tools(self) -> None:
        first, second = tool("search"), tool("stop")
        assert measured_tools(Toolset([first, second])) == measured_tools([first, second])
        assert measured_tools([Toolset([first]), second]) == measured_tools([first, second])

    def test_no_letter_is_escaped(self) -> None:
        assert "検索する" in measured_tools([tool(description="検索する")])

    def test_text_that_looks_like_a_special_token_stays(self) -> None:
        assert "<|endoftext|>" in measured_tools([tool(description="Ends at <|endoftext|>.")])

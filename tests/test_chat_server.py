"""The chat server of the tests: it refuses what OpenAI's API refuses, in its words, and answers as it is told."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agents import ModelCounter, both_ways, library_tools
from chat_rules import ApiError, rate_limited, refusal, server_error
from chat_server import (
    ChatServer,
    Reply,
    Request,
    Size,
    context_length_exceeded,
    input_limit_exceeded,
)
from conversations import A, S, T, U, image
from haystack.dataclasses import ChatMessage, StreamingChunk, TextContent, ToolCall
from openai import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    RateLimitError,
)

from haystack_compaction import EstimatedTokenCounter

USAGE_TOO = {"stream_options": {"include_usage": True}}


def ignore(chunk: StreamingChunk) -> None:
    """A callback is what makes the generator stream."""


def ask(server: ChatServer, messages: list[ChatMessage], **inputs: Any) -> ChatMessage:
    settings = {name: inputs.pop(name) for name in ("max_retries", "key", "model") if name in inputs}
    (reply,) = server.generator(**settings).run(messages, **inputs)["replies"]
    assert isinstance(reply, ChatMessage)
    return reply


def error_of(server: ChatServer, messages: list[ChatMessage], **inputs: Any) -> tuple[int, dict[str, Any]]:
    """The status and the body of the error that the client raises."""
    with pytest.raises(APIStatusError) as caught:
        ask(server, messages, **inputs)
    assert isinstance(caught.value.body, dict)
    return caught.value.status_code, caught.value.body


def post(server: ChatServer, body: Any, path: str = "/chat/completions") -> tuple[int, dict[str, Any]]:
    """What the server answers to a body that no client would send."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": "Bearer a key", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, data, headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


Said = tuple[str, str | None, str | None]


def says(words: str, param: str | None = None, code: str | None = None) -> Said:
    """The beginning of the message of an error, and its fields."""
    return words, param, code


# The shapes that compaction could leave, each with what the API says of it.
SHAPES: dict[str, tuple[list[ChatMessage], Said]] = {
    "a result without a call": (
        [U("go"), T("a")],
        says("Invalid parameter: messages with role 'tool' must be a response to a prec", "messages.[1].role", None),
    ),
    "a result at the head": (
        [T("a"), U("go")],
        says("Invalid parameter: messages with role 'tool' must be a response to a prec", "messages.[0].role", None),
    ),
    "a result of a step before the last": (
        [U("go"), A(None, ["a"]), T("a"), A(None, ["b"]), T("b"), T("a")],
        says(
            "Invalid parameter: 'tool_call_id' of 'a' not found in 'tool_calls' of previous message.",
            "messages.[5].tool_call_id",
            None,
        ),
    ),
    "a result behind a user message": (
        [U("go"), A(None, ["a"]), T("a"), U("and?"), T("a")],
        says("Invalid parameter: messages with role 'tool' must be a response to a prec", "messages.[4].role", None),
    ),
    "a result behind an answer": (
        [U("go"), A(None, ["a"]), T("a"), A("done"), T("a")],
        says("Invalid parameter: messages with role 'tool' must be a response to a prec", "messages.[4].role", None),
    ),
    "two results for one call": (
        [U("go"), A(None, ["a"]), T("a"), T("a")],
        says(
            "Invalid parameter: Duplicate value for 'tool_call_id' of 'a', in messages[2] and messages[3].",
            "messages.[3].tool_call_id",
            None,
        ),
    ),
    "a call without a result": (
        [U("go"), A(None, ["a"]), U("and?")],
        says(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: a",
            "messages.[2].role",
            None,
        ),
    ),
    "a call without a result at the end": (
        [U("go"), A(None, ["a"])],
        says("An assistant message with 'tool_calls' must be followed by", "messages", None),
    ),
    "two calls and one result": (
        [U("go"), A(None, ["a", "b"]), T("b"), A("done")],
        says(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: a",
            "messages.[3].role",
            None,
        ),
    ),
    "a user message between call and result": (
        [U("go"), A(None, ["a"]), U("yes"), T("a")],
        says("An assistant message with 'tool_calls' must be followed by", "messages.[2].role", None),
    ),
    "a system message between call and result": (
        [U("go"), A(None, ["a"]), S("careful"), T("a")],
        says("An assistant message with 'tool_calls' must be followed by", "messages.[2].role", None),
    ),
    "one id twice in a message": (
        [U("go"), A(None, ["a", "a"]), T("a"), T("a")],
        says(
            "Invalid parameter: Duplicate value for 'tool_call_id' of 'a', in messages[1].",
            "messages.[1].tool_calls.[1].id",
            None,
        ),
    ),
    "an assistant message that says nothing": (
        [U("go"), A(""), U("and?")],
        says("Invalid 'messages[1].content': empty string.", "messages[1].content", "empty_string"),
    ),
    "an id of 41 characters": (
        [U("go"), A(None, ["i" * 41]), T("i" * 41)],
        says(
            "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, "
            "but got a string with length 41 instead.",
            "messages[1].tool_calls[0].id",
            "string_above_max_length",
        ),
    ),
    "a tool name with a space": (
        [U("go"), A(None, [("a", "look up")]), T("a")],
        says(
            "Invalid 'messages[1].tool_calls[0].function.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            "messages[1].tool_calls[0].function.name",
            "invalid_value",
        ),
    ),
    "an empty tool name": (
        [U("go"), A(None, [("a", "")]), T("a")],
        says(
            "Invalid 'messages[1].tool_calls[0].function.name': empty string.",
            "messages[1].tool_calls[0].function.name",
            "empty_string",
        ),
    ),
    "a name with a space": (
        [U("go", name="Jane Doe")],
        says("Invalid 'messages[0].name': string does not match pattern.", "messages[0].name", "invalid_value"),
    ),
}

GOOD: dict[str, list[ChatMessage]] = {
    "a question": [U("go")],
    "instructions in the middle": [S("be brief"), U("go"), A("gone"), S("be long"), U("again")],
    "users in a row": [U("a document"), U("a question")],
    "an answer last": [U("go"), A("gone")],
    "results in another order than the calls": [U("go"), A("two", ["a", "b"]), T("b"), T("a"), U("and?")],
    "one id in two steps": [U("go"), A(None, ["a"]), T("a"), A(None, ["a"]), T("a")],
    "a step before any user": [S("go"), A(None, ["a"]), T("a")],
    "an empty result": [U("go"), A(None, ["a"]), T("a")],
    "a picture": [U("look", image())],
    "a result of several texts": [
        U("go"),
        A(None, ["a"]),
        T("a", [TextContent("one"), TextContent("two")]),
    ],
}


class TestTheOrderOfMessages:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_what_the_api_refuses_is_refused_in_its_words(self, chat_server: ChatServer, shape: str) -> None:
        messages, (words, param, code) = SHAPES[shape]
        status, body = error_of(chat_server, messages)
        assert status == 400
        assert body["message"].startswith(words)
        assert body == {"message": body["message"], "type": "invalid_request_error", "param": param, "code": code}
        assert chat_server.accepted == []

    @pytest.mark.parametrize("shape", GOOD)
    def test_what_the_api_accepts_is_accepted(self, chat_server: ChatServer, shape: str) -> None:
        assert ask(chat_server, GOOD[shape], tools=library_tools()).text == "OK"

    def test_the_rules_that_openai_itself_does_not_have_can_be_left_out(self, chat_server: ChatServer) -> None:
        chat_server.strict = False
        assert ask(chat_server, [U("go"), A(""), U("and?")]).text == "OK"


def body_with(**changes: Any) -> dict[str, Any]:
    return {"model": "gpt-test", "messages": [{"role": "user", "content": "go"}]} | changes


def message_with(**fields: Any) -> dict[str, Any]:
    return body_with(messages=[{"role": "user", "content": "go"} | fields])


def call_with(**fields: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}} | fields
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    return body_with(messages=[calling, {"role": "tool", "tool_call_id": "a", "content": "seen"}])


def tool_with(**fields: Any) -> dict[str, Any]:
    return body_with(tools=[{"type": "function", "function": {"name": "look"} | fields}])


def schema_with(schema: Any) -> dict[str, Any]:
    return tool_with(parameters=schema)


RULES: dict[str, tuple[Any, Said]] = {
    "no JSON": (b"{", says("We could not parse the JSON body of your request.", None, None)),
    "no object": ([], says("We could not parse the JSON body of your request.", None, None)),
    "no model": ({"messages": []}, says("you must provide a model parameter", None, None)),
    "no messages": (
        {"model": "gpt-test"},
        says("Missing required parameter: 'messages'.", "messages", "missing_required_parameter"),
    ),
    "messages that are a text": (
        body_with(messages="go"),
        says(
            "Invalid type for 'messages': expected an array of objects, but got a string instead.",
            "messages",
            "invalid_type",
        ),
    ),
    "an empty list of messages": (
        body_with(messages=[]),
        says(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            "messages",
            "empty_array",
        ),
    ),
    "a message that is a text": (
        body_with(messages=["go"]),
        says(
            "Invalid type for 'messages[0]': expected an object, but got a string instead.",
            "messages[0]",
            "invalid_type",
        ),
    ),
    "a parameter that there is not": (
        body_with(context_compaction=True),
        says("Unknown parameter: 'context_compaction'.", "context_compaction", "unknown_parameter"),
    ),
    "no role": (
        body_with(messages=[{"content": "go"}]),
        says("Missing required parameter: 'messages[0].role'.", "messages[0].role", "missing_required_parameter"),
    ),
    "an unknown role": (
        message_with(role="summary"),
        says(
            "Invalid value: 'summary'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and "
            "'developer'.",
            "messages[0].role",
            "invalid_value",
        ),
    ),
    "metadata in a message": (
        message_with(meta={}),
        says("Unknown parameter: 'messages[0].meta'.", "messages[0].meta", "unknown_parameter"),
    ),
    "calls of a user": (
        message_with(tool_calls=[]),
        says("Unknown parameter: 'messages[0].tool_calls'.", "messages[0].tool_calls", "unknown_parameter"),
    ),
    "no content": (
        body_with(messages=[{"role": "user"}]),
        says("Missing required parameter: 'messages[0].content'.", "messages[0].content", "missing_required_parameter"),
    ),
    "content that is null": (
        message_with(content=None),
        says("Invalid value for 'content': expected a string, got null.", "messages.[0].content", None),
    ),
    "an assistant message without anything": (
        body_with(messages=[{"role": "assistant", "content": None}]),
        says("Invalid value for 'content': expected a string, got null.", "messages.[0].content", None),
    ),
    "content that is a number": (
        message_with(content=1),
        says(
            "Invalid type for 'messages[0].content': expected one of a string or array of objects, but got an integer "
            "instead.",
            "messages[0].content",
            "invalid_type",
        ),
    ),
    "an empty list of parts": (
        message_with(content=[]),
        says("Invalid 'messages[0].content': empty array.", "messages[0].content", "empty_array"),
    ),
    "a part without a type": (
        message_with(content=[{"text": "go"}]),
        says(
            "Missing required parameter: 'messages[0].content[0].type'.",
            "messages[0].content[0].type",
            "missing_required_parameter",
        ),
    ),
    "a part of an unknown type": (
        message_with(content=[{"type": "thinking", "thinking": "hm"}]),
        says(
            "Invalid value: 'thinking'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', 'audio', "
            "and 'file'.",
            "messages[0].content[0].type",
            "invalid_value",
        ),
    ),
    "a part that another role may have": (
        message_with(content=[{"type": "refusal", "refusal": "no"}]),
        says(
            "Invalid value: 'refusal'. Supported values are: 'text', 'image_url', 'input_audio', and 'file'.",
            "messages[0].content[0].type",
            "invalid_value",
        ),
    ),
    "a part with more than it may have": (
        message_with(content=[{"type": "text", "text": "go", "cache_control": {}}]),
        says(
            "Unknown parameter: 'messages[0].content[0].cache_control'.",
            "messages[0].content[0].cache_control",
            "unknown_parameter",
        ),
    ),
    "a text part without text": (
        message_with(content=[{"type": "text", "text": None}]),
        says(
            "Invalid type for 'messages[0].content[0].text': expected a string, but got null instead.",
            "messages[0].content[0].text",
            "invalid_type",
        ),
    ),
    "a picture in a result": (
        message_with(role="tool", content=[{"type": "image_url", "image_url": {"url": "data:"}}]),
        says(
            "Invalid 'messages[0]'. Image URLs are only allowed for messages with role 'user', but this message with "
            "role 'tool' contains an image URL.",
            "messages[0]",
            "invalid_value",
        ),
    ),
    "a picture without address": (
        message_with(content=[{"type": "image_url", "image_url": {}}]),
        says(
            "Missing required parameter: 'messages[0].content[0].image_url.url'.",
            "messages[0].content[0].image_url.url",
            "missing_required_parameter",
        ),
    ),
    "a result that says to no call": (
        message_with(role="tool"),
        says(
            "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.",
            "messages.[0].tool_call_id",
            None,
        ),
    ),
    "an empty list of calls": (
        body_with(messages=[{"role": "assistant", "content": "hm", "tool_calls": []}]),
        says(
            "Invalid 'messages[0].tool_calls': empty array. Expected an array with minimum length 1, but got an empty "
            "array instead.",
            "messages[0].tool_calls",
            "empty_array",
        ),
    ),
    "calls that are null": (
        body_with(messages=[{"role": "assistant", "content": "hm", "tool_calls": None}]),
        says(
            "Invalid type for 'messages[0].tool_calls': expected an array of objects, but got null instead.",
            "messages[0].tool_calls",
            "invalid_type",
        ),
    ),
    "a call whose id is null": (
        call_with(id=None),
        says(
            "Invalid type for 'messages[0].tool_calls[0].id': expected a string, but got null instead.",
            "messages[0].tool_calls[0].id",
            "invalid_type",
        ),
    ),
    "a call of an unknown type": (
        call_with(type="tool"),
        says(
            "Invalid value: 'tool'. Supported values are: 'function' and 'custom'.",
            "messages[0].tool_calls[0].type",
            "invalid_value",
        ),
    ),
    "a call with the number of its place": (
        call_with(index=0),
        says(
            "Unknown parameter: 'messages[0].tool_calls[0].index'.",
            "messages[0].tool_calls[0].index",
            "unknown_parameter",
        ),
    ),
    "arguments that are an object": (
        call_with(function={"name": "look", "arguments": {}}),
        says(
            "Invalid type for 'messages[0].tool_calls[0].function.arguments': expected a string, but got an object "
            "instead.",
            "messages[0].tool_calls[0].function.arguments",
            "invalid_type",
        ),
    ),
    "no arguments": (
        call_with(function={"name": "look"}),
        says(
            "Missing required parameter: 'messages[0].tool_calls[0].function.arguments'.",
            "messages[0].tool_calls[0].function.arguments",
            "missing_required_parameter",
        ),
    ),
    "arguments that are cut off": (
        call_with(function={"name": "look", "arguments": '{"at": "i'}),
        says(
            "Invalid 'messages[0].tool_calls[0].function.arguments': the arguments must be a JSON object.",
            "messages[0].tool_calls[0].function.arguments",
            "invalid_value",
        ),
    ),
    "an empty list of tools": (
        body_with(tools=[]),
        says("Invalid 'tools': empty array.", "tools", "empty_array"),
    ),
    "129 tools": (
        body_with(tools=[{"type": "function", "function": {"name": "look"}}] * 129),
        says(
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length "
            "129 instead.",
            "tools",
            "array_above_max_length",
        ),
    ),
    "a tool as Haystack writes it": (
        body_with(tools=[{"name": "look", "parameters": {}}]),
        says("Missing required parameter: 'tools[0].type'.", "tools[0].type", "missing_required_parameter"),
    ),
    "a tool with a space in its name": (
        tool_with(name="look up"),
        says(
            "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the "
            "pattern '^[a-zA-Z0-9_-]+$'.",
            "tools[0].function.name",
            "invalid_value",
        ),
    ),
    "a tool with a long name": (
        tool_with(name="n" * 65),
        says("Invalid 'tools[0].function.name': string too long.", "tools[0].function.name", "string_above_max_length"),
    ),
    "a schema of a text": (
        schema_with({"type": "string"}),
        says(
            "Invalid schema for function 'look': schema must be a JSON Schema of 'type: \"object\"', got 'type: "
            '"string"\'.',
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
    ),
    "a schema without properties": (
        schema_with({"type": "object"}),
        says(
            "Invalid schema for function 'look': In context=(), object schema missing properties.",
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
    ),
    "a choice of tools without tools": (
        body_with(tool_choice="auto"),
        says(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
            "tool_choice",
            None,
        ),
    ),
    "options of a stream that is none": (
        body_with(stream_options={"include_usage": True}),
        says("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options", None),
    ),
    "a limit that is a text": (
        body_with(max_completion_tokens="100"),
        says(
            "Invalid type for 'max_completion_tokens': expected an integer, but got a string instead.",
            "max_completion_tokens",
            "invalid_type",
        ),
    ),
}


class TestTheFormOfARequest:
    @pytest.mark.parametrize("rule", RULES)
    def test_what_the_api_refuses_is_refused_in_its_words(self, chat_server: ChatServer, rule: str) -> None:
        body, (words, param, code) = RULES[rule]
        status, answer = post(chat_server, body)
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, code)
        assert answer["error"]["message"].startswith(words)
        assert answer["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize(
        "body",
        [
            body_with(),
            call_with(),
            schema_with({"type": "object", "properties": {}}),
            schema_with({}),
            message_with(role="developer"),
            message_with(role="function", name="look"),
            message_with(content=[{"type": "file", "file": {"file_id": "file-1"}}]),
            body_with(messages=[{"role": "assistant", "refusal": "no"}]),
            tool_with() | {"tool_choice": "auto", "parallel_tool_calls": False},
            body_with(max_completion_tokens=100, temperature=0, seed=None),
        ],
    )
    def test_what_the_api_accepts_breaks_no_rule(self, body: dict[str, Any]) -> None:
        assert refusal(body) is None

    def test_the_first_broken_rule_is_told(self) -> None:
        body = body_with(messages=[{"role": "user", "content": 1}, {"role": "summary"}])
        error = refusal(body)
        assert error is not None
        assert error.param == "messages[0].content"

    def test_another_address_is_not_found(self, chat_server: ChatServer) -> None:
        status, answer = post(chat_server, body_with(), path="/completions")
        assert (status, answer["error"]["message"]) == (404, "Invalid URL (POST /v1/completions)")

    def test_only_posts_are_answered(self, chat_server: ChatServer) -> None:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(chat_server.url + "/chat/completions", timeout=10)  # noqa: S310
        with caught.value as error:
            assert (error.code, json.load(error)["error"]["code"]) == (405, "method_not_supported")


class TestLength:
    def test_a_request_as_long_as_the_window_is_accepted(self, chat_server: ChatServer) -> None:
        messages = [S("Be brief."), U("word " * 500)]
        chat_server.context_window = EstimatedTokenCounter().count(messages)
        assert ask(chat_server, messages).text == "OK"
        assert chat_server.largest == chat_server.context_window

    @pytest.mark.parametrize("streaming_callback", [None, ignore], ids=["whole", "streamed"])
    def test_a_longer_one_is_refused(self, chat_server: ChatServer, streaming_callback: Any) -> None:
        messages = [U("word " * 500)]
        size = EstimatedTokenCounter().count(messages)
        chat_server.context_window = size - 1
        status, body = error_of(chat_server, messages, streaming_callback=streaming_callback)
        assert status == 400
        assert body == {
            "message": f"This model's maximum context length is {size - 1} tokens. However, your messages resulted in "
            f"{size} tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }

    def test_tools_count_and_are_told_apart(self, chat_server: ChatServer) -> None:
        messages, tools, counter = [U("word " * 500)], library_tools(), EstimatedTokenCounter()
        total, alone = counter.count(messages, tools), counter.count(messages)
        chat_server.context_window = total - 1
        _, body = error_of(chat_server, messages, tools=tools)
        assert (
            f"your messages resulted in {total} tokens ({alone} in the messages and {total - alone} in the functions). "
            "Please reduce the length of the messages or functions."
        ) in body["message"]

    def test_the_completion_that_is_asked_for_takes_its_part(self, chat_server: ChatServer) -> None:
        messages = [U("word " * 500)]
        size = EstimatedTokenCounter().count(messages)
        chat_server.context_window = size + 99
        _, body = error_of(chat_server, messages, generation_kwargs={"max_completion_tokens": 100})
        assert body["message"].endswith(
            f"However, you requested {size + 100} tokens ({size} in the messages and 100 in the completion). "
            "Please reduce the length of the messages or completion."
        )
        assert ask(chat_server, messages, generation_kwargs={"max_completion_tokens": 99}).text == "OK"

    def test_all_three_are_listed_as_the_api_lists_them(self) -> None:
        assert context_length_exceeded(Size(8192, 6683, 730, 800)).message == (
            "This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in the "
            "messages, 730 in the functions, and 800 in the completion). Please reduce the length of the messages, "
            "functions, or completion."
        )

    def test_another_count_can_be_given(self, chat_server: ChatServer) -> None:
        chat_server.count = ModelCounter().count
        ask(chat_server, [U("go on")], tools=library_tools())
        assert chat_server.requests[0].tokens == ModelCounter().count([U("go on")], library_tools())

    def test_the_real_limit_can_fall_below_the_stated_one_while_it_runs(self, chat_server: ChatServer) -> None:
        chat_server.context_window = 1000
        ask(chat_server, [U("word " * 500)])
        chat_server.context_window, chat_server.overflow = 100, input_limit_exceeded
        _, body = error_of(chat_server, [U("word " * 500)])
        assert body["message"].startswith("Input tokens exceed the configured limit of 100 tokens. Your messages ")
        assert body["code"] == "context_length_exceeded"

    def test_form_comes_before_length(self, chat_server: ChatServer) -> None:
        chat_server.context_window = 1
        _, body = error_of(chat_server, [U("go"), T("a")])
        assert body["code"] is None


async def replies_of(way: str, server: ChatServer, **inputs: Any) -> list[ChatMessage]:
    generator = server.generator()
    if way == "run":
        replies = generator.run([U("go")], **inputs)["replies"]
    else:
        replies = (await generator.run_async([U("go")], **inputs))["replies"]
    assert isinstance(replies, list)
    return replies


CALLS = [ToolCall("read_file", {"path": "ä.py", "lines": [1, 2]}, "a"), ToolCall("look", {}, "b")]

REPLIES: dict[str, tuple[Reply, str]] = {
    "a text": (Reply("Hello, wörld."), "stop"),
    "a call": (Reply(tool_calls=CALLS[:1]), "tool_calls"),
    "text and calls": (Reply("I look.", CALLS), "tool_calls"),
    "a text that is cut off": (Reply("Hel", finish_reason="length"), "length"),
    "a text that was filtered": (Reply("Hel", finish_reason="content_filter"), "content_filter"),
    "an empty text": (Reply(""), "stop"),
}


class TestAnswers:
    @both_ways
    @pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
    @pytest.mark.parametrize("kind", REPLIES)
    async def test_the_client_reads_what_the_script_says(
        self, chat_server: ChatServer, kind: str, streamed: bool, way: str
    ) -> None:
        said, reason = REPLIES[kind]
        chat_server.script = [said]
        seen: list[StreamingChunk] = []

        async def note(chunk: StreamingChunk) -> None:
            seen.append(chunk)

        callback: Any = (seen.append if way == "run" else note) if streamed else None
        inputs = {"streaming_callback": callback, "generation_kwargs": USAGE_TOO} if streamed else {}
        (reply,) = await replies_of(way, chat_server, **inputs)
        assert (reply.text or "", reply.tool_calls) == (said.text or "", list(said.tool_calls))
        assert reply.meta["finish_reason"] == reason
        assert reply.meta["usage"]["prompt_tokens"] == EstimatedTokenCounter().count([U("go")])
        assert reply.meta["usage"]["completion_tokens"] == EstimatedTokenCounter().count([said.message])
        assert bool(seen) == streamed == chat_server.requests[0].streamed

    def test_a_stream_tells_its_usage_only_when_asked(self, chat_server: ChatServer) -> None:
        reply = ask(chat_server, [U("go")], streaming_callback=ignore)
        assert not reply.meta["usage"]

    def test_several_replies_can_be_asked_for(self, chat_server: ChatServer) -> None:
        replies = chat_server.generator().run([U("go")], generation_kwargs={"n": 3})["replies"]
        assert [reply.text for reply in replies] == ["OK"] * 3

    def test_a_script_may_be_a_function_of_the_request(self, chat_server: ChatServer) -> None:
        chat_server.script = lambda request: f"{request.number}: {request.messages[-1]['content'].upper()}"
        assert [ask(chat_server, [U(text)]).text for text in ("one", "two")] == ["0: ONE", "1: TWO"]

    def test_a_script_that_is_at_its_end_is_a_fault_of_the_test(self) -> None:
        with ChatServer(script=["Only one."]) as server:
            ask(server, [U("go")])
            assert error_of(server, [U("go")])[0] == 500
            with pytest.raises(AssertionError, match="no answer to request 1"):
                server.close()

    def test_a_script_that_raises_is_heard_of_when_the_server_closes(self) -> None:
        def broken(request: Request) -> str:
            raise KeyError("here")

        with ChatServer(script=broken) as server:
            assert error_of(server, [U("go")])[0] == 500
            with pytest.raises(KeyError, match="here"):
                server.close()

    def test_usage_may_be_told_as_one_likes(self, chat_server: ChatServer) -> None:
        chat_server.usage = lambda prompt, completion: {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}
        chat_server.script = [
            "one",
            Reply("two", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}),
        ]
        told = [ask(chat_server, [U("go")]).meta["usage"]["prompt_tokens"] for _ in range(2)]
        assert told == [7, 1]

    def test_usage_may_be_left_out(self, chat_server: ChatServer) -> None:
        chat_server.usage = lambda prompt, completion: None
        assert not ask(chat_server, [U("go")]).meta["usage"]


class TestFailures:
    def test_it_fails_as_often_as_it_is_told(self, chat_server: ChatServer) -> None:
        chat_server.fail_next(server_error(), rate_limited())
        kinds: list[type[Exception]] = [InternalServerError, RateLimitError]
        for kind in kinds:
            with pytest.raises(kind):
                ask(chat_server, [U("go")])
        assert ask(chat_server, [U("go")]).text == "OK"
        assert [request.error and request.error.status for request in chat_server.requests] == [500, 429, None]

    def test_the_bodies_of_failures_are_the_real_ones(self, chat_server: ChatServer) -> None:
        chat_server.fail_next(server_error(), rate_limited())
        bodies = [error_of(chat_server, [U("go")])[1] for _ in range(2)]
        assert [(body["type"], body["param"], body["code"]) for body in bodies] == [
            ("server_error", None, None),
            ("tokens", None, "rate_limit_exceeded"),
        ]

    def test_a_client_that_retries_gets_through(self, chat_server: ChatServer) -> None:
        chat_server.fail_next(rate_limited(0.01), rate_limited(0.01))
        assert ask(chat_server, [U("go")], max_retries=2).text == "OK"
        assert len(chat_server.requests) == 3

    def test_a_script_may_fail_in_its_turn(self, chat_server: ChatServer) -> None:
        chat_server.script = ["one", ApiError(503, "Overloaded.", type="server_error"), "two"]
        assert ask(chat_server, [U("go")]).text == "one"
        assert error_of(chat_server, [U("go")])[0] == 503
        assert ask(chat_server, [U("go")]).text == "two"

    def test_a_wrong_key_is_refused(self, chat_server: ChatServer) -> None:
        chat_server.api_key = "the key"
        with pytest.raises(AuthenticationError, match="Incorrect API key provided: a key") as caught:
            ask(chat_server, [U("go")])
        assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
        assert ask(chat_server, [U("go")], key="the key").text == "OK"

    def test_an_unknown_model_is_not_found(self, chat_server: ChatServer) -> None:
        chat_server.models = ["gpt-test"]
        with pytest.raises(NotFoundError) as caught:
            ask(chat_server, [U("go")], model="gpt-none")
        assert (caught.value.status_code, caught.value.code) == (404, "model_not_found")

    def test_a_slow_reply_keeps_its_client_waiting_and_no_other(self, chat_server: ChatServer) -> None:
        chat_server.script = lambda request: Reply("late", delay=0.3) if "slow" in str(request.body) else "soon"
        started = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(ask, chat_server, [U("slow")])
            assert ask(chat_server, [U("quick")]).text == "soon"
            assert not slow.done()
            assert slow.result().text == "late"
        assert time.monotonic() - started >= 0.3

    def test_closing_waits_for_no_slow_reply(self) -> None:
        started = time.monotonic()
        with ChatServer(script=[Reply("late", delay=60)]) as server, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, server, [U("slow")])
            while not server.requests:
                time.sleep(0.01)
            server.close()
            asked.exception(timeout=10)
        assert time.monotonic() - started < 10


class TestTheRecord:
    def test_each_request_is_kept_as_it_came(self, chat_server: ChatServer) -> None:
        ask(chat_server, [S("Be brief."), U("gö")], tools=library_tools())
        (request,) = chat_server.requests
        assert json.loads(request.raw) == request.body
        assert request.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "gö"}]
        assert [tool["function"]["name"] for tool in request.body["tools"]] == ["read_file", "find_in_file"]
        assert request.headers["authorization"] == "Bearer a key"

    def test_refused_requests_are_kept_apart(self, chat_server: ChatServer) -> None:
        ask(chat_server, [U("go")])
        with pytest.raises(BadRequestError):
            ask(chat_server, [T("a")])
        assert [len(chat_server.accepted), len(chat_server.refused)] == [1, 1]
        assert chat_server.errors[0].startswith("request 1: Invalid parameter: messages with role 'tool'")
        chat_server.forget()
        assert chat_server.requests == []

    def test_many_may_ask_at_once(self, chat_server: ChatServer) -> None:
        chat_server.script = [f"reply {number}" for number in range(24)]
        barrier = threading.Barrier(8)

        def three(number: int) -> list[str | None]:
            barrier.wait()
            return [ask(chat_server, [U(f"{number} {turn}")]).text for turn in range(3)]

        with ThreadPoolExecutor(8) as pool:
            told = [text for texts in pool.map(three, range(8)) for text in texts]
        assert sorted(str(text) for text in told) == sorted(f"reply {number}" for number in range(24))
        assert sorted(request.number for request in chat_server.requests) == list(range(24))

    async def test_many_may_ask_at_once_in_one_loop(self, chat_server: ChatServer) -> None:
        chat_server.script = lambda request: Reply(request.messages[-1]["content"], delay=0.05)
        generator = chat_server.generator()
        asked = await asyncio.gather(*(generator.run_async([U(str(number))]) for number in range(10)))
        assert [result["replies"][0].text for result in asked] == [str(number) for number in range(10)]

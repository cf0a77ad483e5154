"""
The form that OpenAI's chat-completions API asks of a request, and the errors that it sends for what breaks it.

`refusal(body)` gives the first rule that a parsed body breaks, with the status and the four fields of the error as the
API sends them, or None. Types and fields of the whole request come first, then how the messages follow each other;
the messages of the two kinds are worded and addressed differently there (`messages[3].role`, `messages.[3].role`), and
so they are here.

Two rules are stricter than OpenAI's own servers, because other servers of the same API have them: an assistant message
says something or calls something, and the arguments of a call are a JSON object. `strict=False` leaves them out.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

INVALID = "invalid_request_error"

ROLES = ("system", "assistant", "user", "function", "tool", "developer")

_FIELDS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "refusal", "audio", "tool_calls", "function_call"},
    "tool": {"role", "content", "name", "tool_call_id"},
    "function": {"role", "content", "name"},
}
_REQUEST_FIELDS = {
    *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    *("stream", "stream_options", "n", "stop", "max_tokens", "max_completion_tokens", "response_format", "seed"),
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"),
    *("user", "safety_identifier", "store", "metadata", "service_tier", "prompt_cache_key", "web_search_options"),
    *("reasoning_effort", "verbosity", "modalities", "audio", "prediction"),
}
_PARTS = {
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}
_ALL_PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")

_NAME = r"^[a-zA-Z0-9_-]+$"
_PERSON = r"^[^\s<|\\/>]+$"
_MOST_TOOLS = 128
_LONGEST_NAME = 64
_LONGEST_ID = 40


@dataclass(frozen=True)
class ApiError:
    """What the API answers instead of a completion; a script may answer so as well."""

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def server_error() -> ApiError:
    message = (
        "The server had an error processing your request. Sorry about that! You can retry your request, or contact us "
        "through our help center at help.openai.com if you keep seeing this error."
    )
    return ApiError(500, message, type="server_error")


def rate_limited(retry_after: float = 0.02) -> ApiError:
    message = (
        "Rate limit reached for gpt-test in organization org-test on tokens per min (TPM): Limit 30000, Used 29937, "
        f"Requested 385. Please try again in {int(retry_after * 1000)}ms. "
        "Visit https://platform.openai.com/account/rate-limits to learn more."
    )
    headers = {"retry-after-ms": str(int(retry_after * 1000)), "x-ratelimit-remaining-tokens": "0"}
    return ApiError(429, message, type="tokens", code="rate_limit_exceeded", headers=headers)


def refusal(body: Any, *, strict: bool = True) -> ApiError | None:
    """The first rule that a request breaks."""
    return next(_broken(body, strict=strict), None)


def _broken(body: Any, *, strict: bool) -> Iterator[ApiError]:
    # Only the first one is ever asked for, so what comes later may rely on what came before.
    yield from _request(body)
    for number, message in enumerate(body["messages"]):
        yield from _message(f"messages[{number}]", message)
    yield from _tools(body)
    yield from _Conversation().errors(body["messages"])
    if strict:
        for number, message in enumerate(body["messages"]):
            yield from _stricter(f"messages[{number}]", message)


# --- How the API words it ---------------------------------------------------------------------------------------------


def _invalid(message: str, param: str | None = None, code: str | None = None, status: int = 400) -> ApiError:
    return ApiError(status, message, param=param, code=code)


def _missing(path: str) -> ApiError:
    return _invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def _unknown(path: str) -> ApiError:
    return _invalid(f"Unknown parameter: '{path}'.", path, "unknown_parameter")


def _wrong_type(path: str, expected: str, value: Any) -> ApiError:
    message = f"Invalid type for '{path}': expected {expected}, but got {_kind(value)} instead."
    return _invalid(message, path, "invalid_type")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    # A bool is an int as well, so it comes first.
    kinds = {bool: "a boolean", str: "a string", int: "an integer", float: "a decimal", list: "an array"}
    return next((word for kind, word in kinds.items() if isinstance(value, kind)), "an object")


def _unsupported(path: str, value: Any, supported: Sequence[str]) -> ApiError:
    *others, last = [f"'{name}'" for name in supported]
    listed = f"{', '.join(others)}, and {last}" if len(others) > 1 else " and ".join([*others, last])
    return _invalid(f"Invalid value: '{value}'. Supported values are: {listed}.", path, "invalid_value")


def _empty_array(path: str) -> ApiError:
    message = f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    return _invalid(message, path, "empty_array")


def _empty_string(path: str) -> ApiError:
    message = (
        f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    )
    return _invalid(message, path, "empty_string")


def _too_long(path: str, most: int, length: int, *, kind: str = "string") -> ApiError:
    article = "an" if kind == "array" else "a"
    message = (
        f"Invalid '{path}': {kind} too long. Expected {article} {kind} with maximum length {most}, "
        f"but got {article} {kind} with length {length} instead."
    )
    return _invalid(message, path, f"{kind}_above_max_length")


def _text(
    path: str, holder: Mapping[str, Any], *, most: int | None = None, pattern: str | None = None
) -> Iterator[ApiError]:
    """What is wrong with the required text at the end of a path."""
    name = path.rpartition(".")[2]
    if name not in holder:
        yield _missing(path)
    value = holder[name]
    if not isinstance(value, str):
        yield _wrong_type(path, "a string", value)
    if most and not value:
        yield _empty_string(path)
    if most and len(value) > most:
        yield _too_long(path, most, len(value))
    if pattern and not re.match(pattern, value):
        message = (
            f"Invalid '{path}': string does not match pattern. Expected a string that matches the pattern '{pattern}'."
        )
        yield _invalid(message, path, "invalid_value")


def _object(path: str, holder: Mapping[str, Any]) -> Iterator[ApiError]:
    """What is wrong with the required object at the end of a path."""
    name = path.rpartition(".")[2]
    if name not in holder:
        yield _missing(path)
    if not isinstance(holder[name], dict):
        yield _wrong_type(path, "an object", holder[name])


def _objects(path: str, value: Any) -> Iterator[ApiError]:
    """What is wrong with a list of objects."""
    if not isinstance(value, list):
        yield _wrong_type(path, "an array of objects", value)
    if not value:
        yield _empty_array(path)
    for number, entry in enumerate(value):
        if not isinstance(entry, dict):
            yield _wrong_type(f"{path}[{number}]", "an object", entry)


# --- The request ------------------------------------------------------------------------------------------------------


def _request(body: Any) -> Iterator[ApiError]:
    if not isinstance(body, dict):
        yield _invalid(
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP "
            "library correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
        )
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield _invalid("you must provide a model parameter")
    for name in sorted(set(body) - _REQUEST_FIELDS):
        yield _unknown(name)
    if "messages" not in body:
        yield _missing("messages")
    yield from _objects("messages", body["messages"])
    if body.get("stream_options") is not None and not body.get("stream"):
        yield _invalid("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    for name in ("max_tokens", "max_completion_tokens", "n"):
        value = body.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            yield _wrong_type(name, "an integer", value)


def _tools(body: Mapping[str, Any]) -> Iterator[ApiError]:
    if body.get("tools") is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                yield _invalid(
                    f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified.", name
                )
        return
    yield from _objects("tools", body["tools"])
    if len(body["tools"]) > _MOST_TOOLS:
        yield _too_long("tools", _MOST_TOOLS, len(body["tools"]), kind="array")
    for number, tool in enumerate(body["tools"]):
        yield from _tool(f"tools[{number}]", tool)


def _tool(path: str, tool: Mapping[str, Any]) -> Iterator[ApiError]:
    yield from _text(f"{path}.type", tool)
    if tool["type"] != "function":
        yield _unsupported(f"{path}.type", tool["type"], ("function", "custom"))
    yield from _object(f"{path}.function", tool)
    function = tool["function"]
    yield from _text(f"{path}.function.name", function, most=_LONGEST_NAME, pattern=_NAME)
    for name in sorted(set(function) - {"name", "description", "parameters", "strict"}):
        yield _unknown(f"{path}.function.{name}")
    if function.get("description") is not None:
        yield from _text(f"{path}.function.description", function)
    if "parameters" in function:
        yield from _object(f"{path}.function.parameters", function)
        yield from _schema(f"{path}.function.parameters", function["name"], function["parameters"])


def _schema(path: str, name: str, schema: Mapping[str, Any]) -> Iterator[ApiError]:
    kind = schema.get("type")
    problem = None
    if schema and kind != "object":
        problem = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    elif schema and not isinstance(schema.get("properties"), dict):
        problem = "In context=(), object schema missing properties."
    if problem:
        yield _invalid(f"Invalid schema for function '{name}': {problem}", path, "invalid_function_parameters")


# --- A message --------------------------------------------------------------------------------------------------------


def _message(path: str, message: Mapping[str, Any]) -> Iterator[ApiError]:
    if "role" not in message:
        yield _missing(f"{path}.role")
    role = message["role"]
    if role not in ROLES:
        yield _unsupported(f"{path}.role", role, ROLES)
    for name in sorted(set(message) - _FIELDS[role]):
        yield _unknown(f"{path}.{name}")
    if "name" in message:
        yield from _text(f"{path}.name", message, most=_LONGEST_NAME, pattern=_PERSON)
    if "content" not in message and role != "assistant":
        yield _missing(f"{path}.content")
    yield from _content(path, role, message.get("content"))
    if "tool_calls" in message:
        yield from _objects(f"{path}.tool_calls", message["tool_calls"])
        for number, call in enumerate(message["tool_calls"]):
            yield from _call(f"{path}.tool_calls[{number}]", call)


def _content(path: str, role: str, content: Any) -> Iterator[ApiError]:
    if content is None or isinstance(content, str):
        return  # Whether null is allowed depends on what else the message has.
    if not isinstance(content, list):
        yield _wrong_type(f"{path}.content", "one of a string or array of objects", content)
    yield from _objects(f"{path}.content", content)
    for number, part in enumerate(content):
        yield from _part(path, f"{path}.content[{number}]", role, part)


def _part(path: str, where: str, role: str, part: Mapping[str, Any]) -> Iterator[ApiError]:
    if "type" not in part:
        yield _missing(f"{where}.type")
    kind = part["type"]
    allowed = _PARTS.get(role, ("text",))
    if kind == "image_url" and role != "user":
        message = (
            f"Invalid '{path}'. Image URLs are only allowed for messages with role 'user', "
            f"but this message with role '{role}' contains an image URL."
        )
        yield _invalid(message, path, "invalid_value")
    if kind not in allowed:
        yield _unsupported(f"{where}.type", kind, allowed if kind in _ALL_PARTS else _ALL_PARTS)
    for name in sorted(set(part) - {"type", kind}):
        yield _unknown(f"{where}.{name}")
    if kind in ("text", "refusal"):
        yield from _text(f"{where}.{kind}", part)
    elif not isinstance(part.get(kind), dict):
        yield (
            _missing(f"{where}.{kind}") if kind not in part else _wrong_type(f"{where}.{kind}", "an object", part[kind])
        )
    if kind == "image_url":
        yield from _text(f"{where}.image_url.url", part["image_url"])


def _call(path: str, call: Mapping[str, Any]) -> Iterator[ApiError]:
    yield from _text(f"{path}.id", call, most=_LONGEST_ID)
    yield from _text(f"{path}.type", call)
    if call["type"] != "function":
        yield _unsupported(f"{path}.type", call["type"], ("function", "custom"))
    for name in sorted(set(call) - {"id", "type", "function"}):
        yield _unknown(f"{path}.{name}")
    yield from _object(f"{path}.function", call)
    function = call["function"]
    yield from _text(f"{path}.function.name", function, most=_LONGEST_NAME, pattern=_NAME)
    yield from _text(f"{path}.function.arguments", function)


def _stricter(path: str, message: Mapping[str, Any]) -> Iterator[ApiError]:
    """What other servers of this API refuse too."""
    if message["role"] != "assistant":
        return
    calls = message.get("tool_calls", [])
    if message.get("content") == "" and not calls and not message.get("refusal"):
        yield _empty_string(f"{path}.content")
    for number, call in enumerate(calls):
        where = f"{path}.tool_calls[{number}].function.arguments"
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            yield _invalid(f"Invalid '{where}': the arguments must be a JSON object.", where, "invalid_value")


# --- How messages follow each other -----------------------------------------------------------------------------------


class _Conversation:
    """Walks through the messages and remembers which calls the last assistant message made."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answered: dict[str, int] = {}

    def errors(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[ApiError]:
        for number, message in enumerate(messages):
            if message["role"] == "tool":
                yield from self._result(number, message)
            else:
                yield from self._unanswered(f"messages.[{number}].role")
                yield from self._other(number, message)
            yield from _null(number, message)
        yield from self._unanswered("messages")

    def _result(self, number: int, message: Mapping[str, Any]) -> Iterator[ApiError]:
        path = f"messages.[{number}].tool_call_id"
        if "tool_call_id" not in message:
            needed = "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
            yield _invalid(needed, path)
        name = message["tool_call_id"]
        yield from _text(f"messages[{number}].tool_call_id", message, most=_LONGEST_ID)
        if not self.calls:
            orphan = (
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'."
            )
            yield _invalid(orphan, f"messages.[{number}].role")
        if name not in self.calls:
            yield _invalid(
                f"Invalid parameter: 'tool_call_id' of '{name}' not found in 'tool_calls' of previous message.", path
            )
        if name in self.answered:
            twice = f"in messages[{self.answered[name]}] and messages[{number}]."
            yield _invalid(f"Invalid parameter: Duplicate value for 'tool_call_id' of '{name}', {twice}", path)
        self.answered[name] = number

    def _unanswered(self, param: str) -> Iterator[ApiError]:
        missing = [name for name in self.calls if name not in self.answered]
        if missing:
            message = (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: "
            )
            yield _invalid(message + ", ".join(missing), param)

    def _other(self, number: int, message: Mapping[str, Any]) -> Iterator[ApiError]:
        self.calls = [call["id"] for call in message.get("tool_calls", [])]
        self.answered = {}
        for place, name in enumerate(self.calls):
            if name in self.calls[:place]:
                yield _invalid(
                    f"Invalid parameter: Duplicate value for 'tool_call_id' of '{name}', in messages[{number}].",
                    f"messages.[{number}].tool_calls.[{place}].id",
                )
        if message["role"] == "function" and "name" not in message:
            needed = "Missing parameter 'name': messages with role 'function' must have a 'name'."
            yield _invalid(needed, f"messages.[{number}].name")


def _null(number: int, message: Mapping[str, Any]) -> Iterator[ApiError]:
    if message.get("content") is not None:
        return
    instead = ("tool_calls", "function_call", "refusal", "audio") if message["role"] == "assistant" else ()
    if not any(message.get(name) for name in instead):
        yield _invalid("Invalid value for 'content': expected a string, got null.", f"messages.[{number}].content")

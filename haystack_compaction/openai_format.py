"""
A message in OpenAI's chat format, read and written.

Haystack reads this format too, but each version another part of it, and none an empty tool result. What is read here is
the same with every supported Haystack. Where Haystack 3.4 reads a message, it reads the same.

What the format has no place for is kept beside it: a key that it does not know, in a message or in a part of its
content, goes to the message's metadata under its own name, and in a call to the call's `extra`. Keys that are null say
nothing and are left out.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from haystack.dataclasses import (
    ChatMessage,
    ChatRole,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)

from haystack_compaction.content import ContentPart, content_parts
from haystack_compaction.errors import TranscriptError
from haystack_compaction.json_documents import MAX_LEVELS, is_deeper_than, shown

#: The one argument of a call whose arguments, as the model wrote them, are no JSON object. It holds what it wrote.
UNPARSED_ARGUMENTS_KEY: Final = "unparsed_arguments"

UserPart = TextContent | ImageContent | FileContent


def message_from_openai(data: Mapping[str, Any]) -> ChatMessage:
    """
    Read a message in OpenAI's chat format.

    A result names only the id of its call, so its origin has no tool name and no arguments yet, and a name that the
    message gives is the message's own. `messages_from_dicts` puts that right, with the calls at hand.

    :param data: The message as a dict. The roles `developer` and `function` are read as `system` and `tool`. Texts of
        a system or assistant message become one text, because Haystack sends only one. Arguments that are no JSON
        object are kept as the one argument `unparsed_arguments`.
    :returns: The message.
    :raises TranscriptError: If it cannot be a `ChatMessage`; it says which key is wrong.
    """
    role = data.get("role")
    if not isinstance(role, str) or role not in _READERS:
        raise TranscriptError(f"`role` must be one of {', '.join(_READERS)}, got {shown(role)}")
    message = _READERS[role](data)
    name = _optional_text(data, "name")
    return message if name is None else replace(message, _name=name)


# -- reading a role ---------------------------------------------------------------------------------------------------


def _read_system(data: Mapping[str, Any]) -> ChatMessage:
    meta = _unknown(data, "role", "content", "name")
    parts = _read_content(_required_content(data), ("text",), meta)
    return ChatMessage.from_system(_joined_text(parts) or "", meta=meta)


def _read_user(data: Mapping[str, Any]) -> ChatMessage:
    meta = _unknown(data, "role", "content", "name")
    parts = _read_content(_required_content(data), ("text", "image_url", "file"), meta)
    return ChatMessage.from_user(content_parts=parts or [TextContent("")], meta=meta)


def _read_assistant(data: Mapping[str, Any]) -> ChatMessage:
    known = ("role", "content", "name", "tool_calls", "function_call", "refusal", "reasoning_content")
    meta = _unknown(data, *known)
    content = data.get("content")
    refusals = [_optional_text(data, "refusal")]
    if isinstance(content, list):
        refused = [part for part in content if isinstance(part, dict) and part.get("type") == "refusal"]
        refusals += [_optional_text(part, "refusal") for part in refused]
        content = [part for part in content if not any(part is other for other in refused)]
    refusal = "\n".join(dict.fromkeys(filter(None, refusals)))
    if refusal:
        meta["refusal"] = refusal
    text = _joined_text(_read_content(content, ("text",), meta))
    reasoning = _optional_text(data, "reasoning_content") or None
    calls = _read_calls(data)
    if text is None and not (calls or reasoning or refusal):
        text = ""
    return ChatMessage.from_assistant(text, meta=meta, tool_calls=calls, reasoning=reasoning)


def _read_tool(data: Mapping[str, Any]) -> ChatMessage:
    meta = _unknown(data, "role", "content", "name", "tool_call_id")
    origin = ToolCall(tool_name="", arguments={}, id=_optional_text(data, "tool_call_id"))
    content = data.get("content")
    parts = _read_content(content, ("text", "image_url", "file"), meta)
    result = parts if isinstance(content, list) and parts else content or ""
    return ChatMessage.from_tool(result, origin=origin, meta=meta)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], ChatMessage]]] = {
    "system": _read_system,
    "developer": _read_system,
    "user": _read_user,
    "assistant": _read_assistant,
    "tool": _read_tool,
    "function": _read_tool,
}


# -- reading content --------------------------------------------------------------------------------------------------


def _read_content(content: Any, allowed: tuple[str, ...], meta: dict[str, Any]) -> list[UserPart]:
    """The parts of a content; their unknown keys go to `meta`."""
    if content is None or isinstance(content, str):
        return [] if content is None else [TextContent(content)]
    if not isinstance(content, list):
        raise TranscriptError(f"`content` must be a text, a list of parts or null, got {shown(content)}")
    parts: list[UserPart] = []
    for number, part in enumerate(content, 1):
        try:
            parts.append(_read_part(part, allowed))
        except ValueError as error:
            raise TranscriptError(f"part {number} of `content`: {error}") from None
        meta.update(_unknown(part, "type", part.get("type", "text")))
    return parts


def _read_part(part: Any, allowed: tuple[str, ...]) -> UserPart:
    if not isinstance(part, dict):
        raise TranscriptError(f"it must be an object, got {shown(part)}")
    kind = part.get("type", "text")
    if kind not in allowed:
        raise TranscriptError(f"`type` must be one of {', '.join(allowed)} here, got {shown(kind)}")
    if kind == "text":
        return TextContent(_required_text(part, "text"))
    body = part.get(kind)
    if not isinstance(body, dict):
        raise TranscriptError(f"`{kind}` must be an object, got {shown(body)}")
    if kind == "image_url":
        mime_type, payload = _split_data_url(body, "url")
        detail: Any = _optional_text(body, "detail")
        return ImageContent(payload, mime_type=mime_type, detail=detail, meta=_unknown(body, "url", "detail"))
    mime_type, payload = _split_data_url(body, "file_data")
    extra = _unknown(body, "file_data", "filename")
    return FileContent(payload, mime_type=mime_type, filename=_optional_text(body, "filename"), extra=extra)


def _split_data_url(body: Mapping[str, Any], key: str) -> tuple[str | None, str]:
    url = body.get(key)
    if not isinstance(url, str) or not url.startswith("data:") or ";base64," not in url:
        raise TranscriptError(f"`{key}` must hold the data itself (data:TYPE;base64,...), got {shown(url)}")
    mime_type, _, payload = url.removeprefix("data:").partition(";base64,")
    return mime_type or None, payload


def _joined_text(parts: Iterable[UserPart]) -> str | None:
    texts = [part.text for part in parts if isinstance(part, TextContent)]
    return "\n".join(texts) if texts else None


# -- reading calls ----------------------------------------------------------------------------------------------------


def _read_calls(data: Mapping[str, Any]) -> list[ToolCall]:
    entries = data.get("tool_calls")
    if entries is not None and not isinstance(entries, list):
        raise TranscriptError(f"`tool_calls` must be a list or null, got {shown(entries)}")
    calls = []
    for number, entry in enumerate(entries or [], 1):
        try:
            calls.append(_read_call(entry))
        except TranscriptError as error:
            raise TranscriptError(f"tool call {number}: {error}") from None
    if data.get("function_call") is not None:
        calls.append(_read_call({"function": data["function_call"]}))
    return calls


def _read_call(entry: Any) -> ToolCall:
    if not isinstance(entry, dict):
        raise TranscriptError(f"it must be an object, got {shown(entry)}")
    if entry.get("type") not in (None, "function"):
        raise TranscriptError(f"`type` must be function, got {shown(entry['type'])}")
    function = entry.get("function")
    if not isinstance(function, dict):
        raise TranscriptError(f"`function` must be an object with `name` and `arguments`, got {shown(function)}")
    return ToolCall(
        tool_name=_required_text(function, "name"),
        arguments=_read_arguments(function.get("arguments")),
        id=_optional_text(entry, "id"),
        extra=_unknown(entry, "id", "type", "function") | _unknown(function, "name", "arguments") or None,
    )


def _read_arguments(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, dict):
        return arguments
    if arguments is not None and not isinstance(arguments, str):
        raise TranscriptError(f"`arguments` must be a text that holds a JSON object, got {shown(arguments)}")
    return _parsed_arguments(arguments) if arguments else {}


def _parsed_arguments(text: str) -> dict[str, Any]:
    """What a model wrote as arguments; it is kept as it is where it is no JSON object."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict) and not is_deeper_than(arguments, MAX_LEVELS):
        return arguments
    return {UNPARSED_ARGUMENTS_KEY: text}


# -- reading keys -----------------------------------------------------------------------------------------------------


def _unknown(data: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in known and value is not None}


def _optional_text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise TranscriptError(f"`{key}` must be a text or null, got {shown(value)}")
    return value


def _required_text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise TranscriptError(f"`{key}` must be a text, got {shown(value)}")
    return value


def _required_content(data: Mapping[str, Any]) -> Any:
    if "content" not in data:
        raise TranscriptError(f"`content` is missing, there are only the keys {shown(list(data))}")
    return data["content"]


# -- writing ----------------------------------------------------------------------------------------------------------


def message_to_openai(message: ChatMessage) -> list[dict[str, Any]]:
    """
    Write a message in OpenAI's chat format.

    The format has no place for metadata, for the error flag of a result and for the order of text and calls; they are
    left out, as Haystack itself does. Reasoning is written as `reasoning_content`, which many servers use.

    :param message: The message to write.
    :returns: One dict, or one for each result of a message with several results.
    :raises TranscriptError: If the message has content that the format cannot hold, such as an image in a result.
    """
    envelope: dict[str, Any] = {"role": message.role.value}
    if message.role == ChatRole.TOOL:
        return _tool_dicts(message)
    if message.name is not None:
        envelope["name"] = message.name
    if message.role == ChatRole.ASSISTANT:
        return [envelope | _assistant_keys(message)]
    parts = content_parts(message)
    is_user = message.role == ChatRole.USER
    content = [_part_dict(part) if is_user else _text_dict(part, "a system message") for part in parts]
    return [envelope | {"content": _plain(content) if content else ""}]


def _assistant_keys(message: ChatMessage) -> dict[str, Any]:
    parts = content_parts(message)
    others = [part for part in parts if not isinstance(part, ToolCall | ReasoningContent)]
    content = [_text_dict(part, "an assistant message") for part in others]
    keys: dict[str, Any] = {"content": _plain(content) if content else None}
    reasoning = [part.reasoning_text for part in parts if isinstance(part, ReasoningContent)]
    if reasoning:
        keys["reasoning_content"] = "\n".join(reasoning)
    calls = [_call_dict(part) for part in parts if isinstance(part, ToolCall)]
    if calls:
        keys["tool_calls"] = calls
    refusal = message.meta.get("refusal")
    if isinstance(refusal, str) and refusal:
        keys["refusal"] = refusal
    return keys if len(keys) > 1 or content else {"content": ""}


def _call_dict(call: ToolCall) -> dict[str, Any]:
    raw = call.arguments.get(UNPARSED_ARGUMENTS_KEY)
    if not isinstance(raw, str) or _parsed_arguments(raw) != call.arguments:
        raw = json.dumps(call.arguments, ensure_ascii=False)
    identity = {} if call.id is None else {"id": call.id}
    return identity | {"type": "function", "function": {"name": call.tool_name, "arguments": raw}}


def _tool_dicts(message: ChatMessage) -> list[dict[str, Any]]:
    parts = content_parts(message)
    if not parts:
        raise _cannot_hold("a tool message without a result")
    return [_result_dict(part, message.name) for part in parts]


def _result_dict(part: ContentPart, name: str | None) -> dict[str, Any]:
    if not isinstance(part, ToolCallResult):
        raise _cannot_hold(f"a {type(part).__name__} beside the results of a tool message")
    keys: dict[str, Any] = {"role": "tool"}
    if part.origin.id is not None:
        keys["tool_call_id"] = part.origin.id
    if name or part.origin.tool_name:
        keys["name"] = name or part.origin.tool_name
    texts = part.result
    keys["content"] = texts if isinstance(texts, str) else [_text_dict(text, "a tool result") for text in texts]
    return keys


def _plain(content: list[dict[str, Any]]) -> Any:
    """A single text as itself, anything else as a list of parts."""
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content


def _text_dict(part: Any, where: str) -> dict[str, Any]:
    if not isinstance(part, TextContent):
        raise _cannot_hold(f"a {type(part).__name__} in {where}")
    return {"type": "text", "text": part.text}


def _part_dict(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, ImageContent):
        url = f"data:{part.mime_type or ''};base64,{part.base64_image}"
        return {"type": "image_url", "image_url": {"url": url} | ({"detail": part.detail} if part.detail else {})}
    if isinstance(part, FileContent):
        data = f"data:{part.mime_type or ''};base64,{part.base64_data}"
        return {"type": "file", "file": {"file_data": data} | ({"filename": part.filename} if part.filename else {})}
    return _text_dict(part, "a user message")


def _cannot_hold(what: str) -> TranscriptError:
    return TranscriptError(f'OpenAI\'s format cannot hold {what}; use form="haystack"')

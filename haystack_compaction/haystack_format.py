"""
A message as Haystack's own dict, which keeps everything, and the checks that Haystack leaves to the first crash.

`ChatMessage.from_dict` takes a number for a text and a list for metadata; what comes out fails much later, where no
one knows the file any more. Here each field's type is looked at.
"""

from collections.abc import Mapping
from types import NoneType
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

from haystack_compaction.content import content_parts
from haystack_compaction.errors import TranscriptError
from haystack_compaction.json_documents import one_line, shown

_KEYS = ("role", "content", "name", "meta")
_OPENAI_KEYS = frozenset({"tool_calls", "tool_call_id", "function_call", "refusal", "reasoning_content"})

# The roles whose messages were a text and nothing else before Haystack 2.9.
_ROLES_OF_TEXT = ("user", "assistant", "system")

_ENVELOPE_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "content": (str, list),
    "name": (str, NoneType),
    "meta": (dict, NoneType),
}

_RESULT_PARTS = (TextContent, ImageContent, FileContent)

_FIELD_TYPES: Final[Mapping[type, Mapping[str, tuple[type, ...]]]] = {
    TextContent: {"text": (str,)},
    ToolCall: {"tool_name": (str,), "arguments": (dict,), "id": (str, NoneType), "extra": (dict, NoneType)},
    ToolCallResult: {"result": (str, list), "origin": (ToolCall,), "error": (bool,)},
    ReasoningContent: {"reasoning_text": (str,), "extra": (dict,)},
    ImageContent: {
        "base64_image": (str,),
        "mime_type": (str, NoneType),
        "detail": (str, NoneType),
        "meta": (dict,),
        "validation": (bool,),
    },
    FileContent: {
        "base64_data": (str,),
        "mime_type": (str, NoneType),
        "filename": (str, NoneType),
        "extra": (dict,),
        "validation": (bool,),
    },
}


def is_haystack_dict(data: Mapping[str, Any]) -> bool:
    """
    Return whether a message is in one of Haystack's forms rather than in OpenAI's.

    :param data: The message as a dict.
    :returns: True for the form with `_role` and `_content` (Haystack 2.9 to 2.11), the one with a list of parts that
        have no `type`, and the oldest one with a text and metadata.
    """
    if "_role" in data or "_content" in data:
        return True
    if not _OPENAI_KEYS.isdisjoint(data):
        return False
    content = data.get("content")
    if isinstance(content, list) and content:
        return all(isinstance(part, dict) and "type" not in part for part in content)
    holds_text = isinstance(content, str) and data.get("role") in _ROLES_OF_TEXT
    return (holds_text or isinstance(content, list)) and isinstance(data.get("meta"), dict)


def message_from_haystack(data: Mapping[str, Any]) -> ChatMessage:
    """
    Read a message in one of Haystack's forms.

    :param data: The message as `ChatMessage.to_dict` wrote it, now or in an older version. A key that Haystack does not
        know goes to the message's metadata under its own name.
    :returns: The message.
    :raises TranscriptError: If Haystack cannot read it, or could only read it into something that fails later.
    """
    prefix = "_" if "_role" in data or "_content" in data else ""
    current = {key: data.get(prefix + key) for key in _KEYS}
    known = {prefix + key for key in _KEYS}
    unknown = {key: value for key, value in data.items() if key not in known and value is not None}
    _check_envelope(current)
    try:
        message = ChatMessage.from_dict(current | {"meta": unknown | (current["meta"] or {})})
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TranscriptError(f"Haystack cannot read the message: {one_line(error)}") from error
    for part in content_parts(message):
        _check_part(part)
    return message


def _check_envelope(data: Mapping[str, Any]) -> None:
    roles = [role.value for role in ChatRole]
    if data["role"] not in roles:
        raise TranscriptError(f"`role` must be one of {', '.join(roles)}, got {shown(data['role'])}")
    for key, types in _ENVELOPE_TYPES.items():
        if not isinstance(data[key], types):
            raise TranscriptError(f"`{key}` must not be of type {type(data[key]).__name__}")


def _check_part(part: Any) -> None:
    for field, types in _FIELD_TYPES[type(part)].items():
        value = getattr(part, field)
        if not isinstance(value, types):
            raise TranscriptError(f"`{field}` in a {type(part).__name__} must not be of type {type(value).__name__}")
    if not isinstance(part, ToolCallResult):
        return
    _check_part(part.origin)
    if isinstance(part.result, str):
        return
    for entry in part.result:
        if not isinstance(entry, _RESULT_PARTS):
            raise TranscriptError(f"`result` in a ToolCallResult must not hold a {type(entry).__name__}")
        _check_part(entry)

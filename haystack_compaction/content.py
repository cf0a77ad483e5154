"""
The parts of a message, in order, and a copy of it with other parts.

`ChatMessage` offers its parts by kind only (`texts`, `tool_calls`, ...), which loses their order and costs a pass over
the content for each kind asked. Both matter here, so this one module reads the content directly; nothing else does.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from haystack.dataclasses import (
    ChatMessage,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)

_T = TypeVar("_T")

ToolCallResultContentT = str | Sequence[TextContent | ImageContent | FileContent]

ContentPart = TextContent | ToolCall | ToolCallResult | ImageContent | ReasoningContent | FileContent


def content_parts(message: ChatMessage) -> Sequence[ContentPart]:
    """
    Return all parts of a message in their order.

    :param message: The message to look at.
    :returns: The message's own sequence of parts, not a copy: it is read, never changed.
    """
    return message._content  # noqa: SLF001 - the only way to the order of the parts; see the module's docstring


def with_result(result: ToolCallResult, content: ToolCallResultContentT) -> ToolCallResult:
    """
    Return a copy of a tool result with other content; its call and error flag stay.

    :param result: The result to copy.
    :param content: The new content.
    :returns: A new result.
    """
    return _copy_with(result, result=content)


def with_parts(message: ChatMessage, parts: Sequence[ContentPart], meta: dict[str, Any]) -> ChatMessage:
    """
    Return a copy of a message with other content and metadata; role and name stay.

    :param message: The message to copy.
    :param parts: The new content.
    :param meta: The new metadata, whole.
    :returns: A new message.
    """
    return _copy_with(message, _content=list(parts), _meta=meta)


def _copy_with(instance: _T, **changes: Any) -> _T:
    """
    Do what `dataclasses.replace` does, in a fifth of the time.

    A pass makes two copies for each result that it prunes, so their cost is most of its own. What is left out is only
    the constructor and Haystack's bookkeeping around it; all fields are set, those of later versions too.
    """
    copy = object.__new__(type(instance))
    for name in instance.__dataclass_fields__:  # type: ignore[attr-defined]
        object.__setattr__(copy, name, changes[name] if name in changes else getattr(instance, name))
    return copy

"""
A message as text, as it travels to a provider: what counters measure.

Left out is what is not sent as text: ids of calls, reasoning (providers discard it between turns), and the content of
images and files, which counters charge flat.
"""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent, ToolCall, ToolCallResult
from haystack.tools import ToolsType, flatten_tools_or_toolsets

from haystack_compaction.content import ContentPart, content_parts

# Made once: `json.dumps` with these settings would make one for each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def measured(
    message: ChatMessage, arguments_as_text: Callable[[dict[str, Any]], str] | None = None
) -> tuple[str, int, int]:
    """
    Return what is to be measured of a message.

    :param message: The message.
    :param arguments_as_text: How to write the arguments of a call. Defaults to `arguments_text`, which is how they are
        sent; an estimate may take a faster way.
    :returns: Its text as it is sent, with a line break between its parts, and how many images and files it holds.
    """
    return _measured_parts(content_parts(message), arguments_as_text or arguments_text)


def measured_each(
    messages: Sequence[ChatMessage], arguments_as_text: Callable[[dict[str, Any]], str]
) -> tuple[list[str], list[tuple[int, int, int]]]:
    """
    Return what is to be measured of many messages, in less time than one by one.

    :param messages: The messages.
    :param arguments_as_text: How to write the arguments of a call.
    :returns: Their texts, and for each message with images or files its place in the list and how many it holds.
    """
    texts: list[str] = []
    media: list[tuple[int, int, int]] = []
    for message in messages:
        parts = content_parts(message)
        part = parts[0] if len(parts) == 1 else None
        # Nearly every message is one result or one text, and this is done once for each of a long run.
        if isinstance(part, ToolCallResult) and isinstance(part.result, str):
            texts.append(part.result)
        elif isinstance(part, TextContent):
            texts.append(part.text)
        else:
            text, images, files = _measured_parts(parts, arguments_as_text)
            if images or files:
                media.append((len(texts), images, files))
            texts.append(text)
    return texts, media


def _measured_parts(
    parts: Sequence[ContentPart], arguments_as_text: Callable[[dict[str, Any]], str]
) -> tuple[str, int, int]:
    """The text of parts, with a line break between them, and how many images and files they hold."""
    texts: list[str] = []
    media: list[ImageContent | FileContent] = []
    for part in parts:
        if isinstance(part, TextContent):
            texts.append(part.text)
        elif isinstance(part, ToolCall):
            texts.append(part.tool_name + arguments_as_text(part.arguments))
        else:
            _sort(part, texts, media)
    images = sum(isinstance(part, ImageContent) for part in media) if media else 0
    return "\n".join(texts), images, len(media) - images


def _sort(part: ContentPart, texts: list[str], media: list[ImageContent | FileContent]) -> None:
    """Put what a part holds where it belongs; reasoning belongs nowhere."""
    if isinstance(part, TextContent):
        texts.append(part.text)
    elif isinstance(part, ImageContent | FileContent):
        media.append(part)
    elif isinstance(part, ToolCallResult):
        for block in (TextContent(text=part.result),) if isinstance(part.result, str) else part.result:
            _sort(block, texts, media)


def measured_text(message: ChatMessage) -> str:
    """
    Return the text of a message as it is sent.

    :param message: The message.
    :returns: Its texts, calls and results, with a line break between them.
    """
    return measured(message)[0]


def measured_tools(tools: ToolsType | None) -> str:
    """
    Return the schemas of tools as they are sent.

    :param tools: Tools, toolsets, or None.
    :returns: JSON, or an empty string where there are none.
    """
    if not tools:
        return ""
    return _json_text([tool.tool_spec for tool in flatten_tools_or_toolsets(tools)])


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """
    Return the arguments of a call as they are sent.

    :param arguments: The arguments.
    :returns: JSON, or Python's own form for what JSON cannot hold.
    """
    return _json_text(arguments)


def python_text(value: Any) -> str:
    """
    Return a value in Python's own form.

    :param value: Any value.
    :returns: Its text; a short form of what is nested too deeply to be written.
    """
    try:
        return str(value)
    except RecursionError:
        return reprlib.repr(value)


def _json_text(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    # Keys that are no strings, values that hold themselves, nesting without end.
    except (TypeError, ValueError, RecursionError):
        return python_text(value)

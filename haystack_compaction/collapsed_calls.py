"""
A group of tool calls as a few lines of text: what was called, in order, and how each call ended.

Whatever a tool, a model or a file name puts into a line stays within it. So no text can pass for a line of its own:
neither for another call, nor for a first line, nor for what a later pass reads back.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from haystack.dataclasses import ChatRole, FileContent, ImageContent, TextContent

from haystack_compaction.content import content_parts
from haystack_compaction.groups import Exchange, MessageGroup
from haystack_compaction.marks import OFFLOAD_META_KEY
from haystack_compaction.prompts import (
    COLLAPSED_CALL,
    COLLAPSED_CALLS,
    COLLAPSED_REFERENCES,
    COLLAPSED_SPEECH,
    UNSAFE_CHARACTERS,
    is_placeholder_text,
    placeholder_remainder,
)
from haystack_compaction.render import arguments_text

# How much of each kind of text is shown at most.
_MAX_RESULT_CHARS: Final = 200
_MAX_SPEECH_CHARS: Final = 200
_MAX_ARGUMENTS_CHARS: Final = 160
_MAX_VALUE_CHARS: Final = 80
_MAX_NAME_CHARS: Final = 80

# A longer word is cut rather than left out.
_MAX_WORD_CHARS: Final = 40

# A line with less room than this tells nothing.
_MIN_LINE_CHARS: Final = 24

_CUT: Final = "..."

_HEAD_BEGIN, _, _rest = COLLAPSED_CALLS.partition("{num_messages}")
_HEAD_MIDDLE, _, _HEAD_END = _rest.partition("{tools}")

# What some program takes for the end of a line, hides, or shows in another order than it stands in.
_UNSAFE = re.compile(f"[{UNSAFE_CHARACTERS}]")


def collapsed_calls(group: MessageGroup, references: Sequence[str], max_chars: int) -> str | None:
    """
    Return the lines that stand for a group.

    :param group: A group with tool calls.
    :param references: Under which names a store has results of it.
    :param max_chars: How long the lines may be together.
    :returns: The text; None where not even the names of the tools and the references have room.
    """
    exchanges = group.exchanges()
    names = [_name_of(exchange) for exchange in exchanges]
    last = references_line(references)
    room = max_chars - (len(last) + 1 if last else 0)
    head = _head(group, names, room)
    if head is None:
        return None
    lines = [head, *_body(group, exchanges, names, room - len(head))]
    if last:
        lines.append(last)
    return "\n".join(lines)


def references_of(group: MessageGroup) -> list[str]:
    """
    Return the references under which a store has results of a group.

    :param group: The group.
    :returns: The references in order, each once.
    """
    found: dict[str, None] = {}
    for message in group.messages:
        references = message.meta.get(OFFLOAD_META_KEY)
        if references:
            found.update(dict.fromkeys(map(str, references if isinstance(references, list | tuple) else [references])))
    return list(found)


def references_line(references: Sequence[str], text: str = "") -> str:
    """
    Return the line that names what a store has of a group.

    :param references: The references.
    :param text: What is said of the group already; a reference that stands in it is not named again.
    :returns: The line, or an empty string.
    """
    names = [in_one_line(reference) for reference in references if reference not in text] if references else ()
    return COLLAPSED_REFERENCES + ", ".join(names) if names else ""


def in_one_line(text: str, max_chars: int | None = None) -> str:
    """
    Return a text without anything that ends a line or hides, cut where it is too long.

    :param text: The text.
    :param max_chars: How long it may get; None for any length.
    :returns: The text, with single blanks in the place of line breaks and of runs of blanks.
    """
    line = text if max_chars is None or len(text) <= max_chars else text[: max_chars + _MAX_WORD_CHARS]
    is_whole = len(line) == len(text)
    if not line.isprintable() or "  " in line:
        line = " ".join(line.split())
        if not line.isprintable():
            line = _UNSAFE.sub(" ", line)
    line = line.strip()
    if max_chars is None or (is_whole and len(line) <= max_chars):
        return line
    # At the end of a word where one is near: the beginning of an identifier is another identifier.
    end = line.rfind(" ", max(max_chars - _MAX_WORD_CHARS, 0), max_chars - len(_CUT) + 1)
    return line[: max_chars - len(_CUT) if end < 0 else end] + _CUT


def cut(text: str, max_chars: int) -> str:
    """
    Return a text, cut with a mark where it is too long.

    :param text: The text.
    :param max_chars: How long it may get.
    :returns: The text or its beginning.
    """
    return text if len(text) <= max_chars else (text[: max(max_chars - len(_CUT), 0)] + _CUT)[:max_chars]


def _head(group: MessageGroup, names: Sequence[str], max_chars: int) -> str | None:
    """The first line, with as many names of tools as have room."""
    tools = names
    if len(names) > 1:
        tools = [name if count == 1 else f"{name} x{count}" for name, count in Counter(names).items()]
    begin = f"{_HEAD_BEGIN}{group.message_count}{_HEAD_MIDDLE}"
    named = _as_many_as_fit(tools, max_chars - len(begin) - len(_HEAD_END))
    return None if named is None else f"{begin}{named}{_HEAD_END}"


def _as_many_as_fit(names: Sequence[str], max_chars: int) -> str | None:
    """Names in a row; those for which there is no room are only counted."""
    text = ", ".join(names)
    if len(text) <= max_chars:
        return text
    shown, left = [], max_chars - len(f"and {len(names)} more")
    for name in names:
        left -= len(name) + 2
        if left < 0:
            break
        shown.append(name)
    text = ", ".join([*shown, f"and {len(names) - len(shown)} more" if shown else f"{len(names)} tools"])
    return text if len(text) <= max_chars else None


def _body(group: MessageGroup, exchanges: Sequence[Exchange], names: Sequence[str], max_chars: int) -> list[str]:
    """What was said and what was called, one line each, all of the same length where there is little room."""
    speech = _speech_of(group)
    limit = max_chars // (len(exchanges) + bool(speech)) - 1
    if limit < _MIN_LINE_CHARS:
        return []
    lines = [cut(COLLAPSED_SPEECH + speech, limit)] if speech else []
    for exchange, name in zip(exchanges, names, strict=True):
        lines.append(cut(_line_of(exchange, name, limit), limit))
    return lines


def _speech_of(group: MessageGroup) -> str:
    """What the model said beside its calls."""
    texts = [
        part.text
        for message in group.messages
        if message.role is ChatRole.ASSISTANT
        for part in content_parts(message)
        if isinstance(part, TextContent)
    ]
    return in_one_line(" ".join(texts), _MAX_SPEECH_CHARS) if texts else ""


def _line_of(exchange: Exchange, name: str, max_chars: int) -> str:
    """One call and how it ended."""
    call, result = exchange.call, exchange.result
    arguments = call.arguments if call is not None else None
    begin = f"{COLLAPSED_CALL}{name}"
    if arguments:
        shown = in_one_line(", ".join(map(_argument, arguments.items())), min(_MAX_ARGUMENTS_CHARS, max_chars // 2))
        begin = f"{begin}({shown})"
    if result is None:
        return f"{begin} (no result)"
    content = result.result
    text = _excerpt(content) if isinstance(content, str) else _text_of_parts(content)
    return f"{begin} (error) -> {text}" if result.error else f"{begin} -> {text}"


def _name_of(exchange: Exchange) -> str:
    call, result = exchange.call, exchange.result
    name = call.tool_name if call is not None else result.origin.tool_name if result is not None else ""
    return name if name.isidentifier() else in_one_line(name) or "unknown tool"


def _argument(item: tuple[str, Any]) -> str:
    """A name and its value, which is cut where it is long so that the others have room."""
    name, value = item
    if not isinstance(value, str | int | float):
        value = arguments_text(value)
    elif isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
        value = cut(value, _MAX_VALUE_CHARS)
    return f"{name}={value}"


def _text_of_parts(parts: Sequence[TextContent | ImageContent | FileContent]) -> str:
    """Images and files by type and name, then the beginning of the text."""
    shown = [_media_text(part) for part in parts if isinstance(part, ImageContent | FileContent)]
    text = "\n".join(part.text for part in parts if isinstance(part, TextContent))
    return " ".join([*shown, _excerpt(text)] if text or not shown else shown)


def _excerpt(text: str) -> str:
    if is_placeholder_text(text):
        return in_one_line(f"(removed before) {placeholder_remainder(text)}".rstrip(), _MAX_RESULT_CHARS)
    return in_one_line(text, _MAX_RESULT_CHARS) or "(empty)"


def _media_text(part: ImageContent | FileContent) -> str:
    """An image or file by type and name."""
    if isinstance(part, FileContent):
        kind, name = part.mime_type or "file", part.filename
    else:
        kind, name = part.mime_type or "image", _image_name(part.meta)
    return f"[{in_one_line(f'{kind} {name or str()}', _MAX_NAME_CHARS)}]"


def _image_name(meta: dict[str, Any]) -> str:
    names: Iterable[Any] = (meta.get(key) for key in ("name", "filename", "file_name", "file_path"))
    return next((str(name) for name in names if name), "")

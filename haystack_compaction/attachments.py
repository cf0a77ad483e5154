"""
The images and files of a message: which parts they are, and what can be said of one without decoding it.
"""

from collections.abc import Mapping
from typing import Any, Final

from haystack.dataclasses import ChatMessage, FileContent, ImageContent, ToolCallResult

from haystack_compaction.content import content_parts

Attachment = ImageContent | FileContent

# For `isinstance`, which is asked for each part of a long conversation and takes a tuple faster than a union.
_KINDS: Final = (ImageContent, FileContent)

# Where converters and applications put a name, the most telling first: a path or an address can be read again.
_NAME_KEYS: Final = ("file_path", "url", "file_name", "filename", "name", "title")

_MAX_NAME_CHARS: Final = 120


def attachment_count(message: ChatMessage) -> int:
    """
    Return how many images and files a message holds, those within its tool results included.

    :param message: The message.
    """
    count = 0
    for part in content_parts(message):
        if isinstance(part, ToolCallResult):
            if not isinstance(part.result, str):
                count += sum(isinstance(block, _KINDS) for block in part.result)
        elif isinstance(part, _KINDS):
            count += 1
    return count


def description_of(attachment: Attachment) -> str:
    """
    Return what is known of an image or file, on one line.

    :param attachment: The image or file; it is not decoded.
    :returns: Type, name and size, as far as they are known: `image/png, "login.png", 48.2 kB, 1280 x 720 pixels`.
    """
    if isinstance(attachment, ImageContent):
        kind, name, known, data = "image", None, attachment.meta, attachment.base64_image
    else:
        kind, name, known, data = "file", attachment.filename, attachment.extra, attachment.base64_data
    facts = [_one_line(attachment.mime_type or "") or kind]
    name = _one_line(name or _name_in(known))
    if name:
        facts.append(f'"{name}"')
    page = known.get("page_number")
    if _is_count(page):
        facts.append(f"page {page}")
    facts.append(_readable(_bytes_of(data)))
    width, height = known.get("width"), known.get("height")
    if _is_count(width) and _is_count(height):
        facts.append(f"{width} x {height} pixels")
    return ", ".join(facts)


def _name_in(known: Mapping[str, Any]) -> str:
    """The name that the metadata of an image or file gives it; none for content that poses as an address."""
    for key in _NAME_KEYS:
        name = known.get(key)
        if name and isinstance(name, str) and not name.startswith("data:"):
            return name
    return ""


def _one_line(text: str) -> str:
    """A name as part of a line: nothing that breaks it, and the end of a long one, which tells most."""
    if len(text) <= _MAX_NAME_CHARS and text.isprintable() and '"' not in text:
        return text.strip()
    line = " ".join("".join(char if char.isprintable() else " " for char in text[-1000:]).split()).replace('"', "'")
    return line if len(line) <= _MAX_NAME_CHARS else "..." + line[3 - _MAX_NAME_CHARS :]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _bytes_of(base64_data: str) -> int:
    """How many bytes a text in base64 stands for."""
    padding = len(base64_data[-2:]) - len(base64_data[-2:].rstrip("="))
    return (len(base64_data) - padding) * 3 // 4


def _readable(size: int) -> str:
    if size < 1000:
        return "1 byte" if size == 1 else f"{size} bytes"
    number, unit = (size / 1000, "kB") if size < 1_000_000 else (size / 1_000_000, "MB")
    return f"{number:,.1f} {unit}"

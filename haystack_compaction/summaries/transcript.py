"""
A part of a conversation as text, for a model that is to condense it.

Lines that say what follows stand in square brackets; every line of content begins with a mark of its own. So no word of
a user, a tool or an earlier summary can pass for a turn, or for the end of the whole, whatever it holds.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from haystack.dataclasses import ChatMessage, ChatRole, ImageContent, TextContent, ToolCall, ToolCallResult

from haystack_compaction.attachments import Attachment, description_of
from haystack_compaction.collapsed_calls import in_one_line
from haystack_compaction.content import ContentPart, content_parts
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import is_summary
from haystack_compaction.prompts import TRANSCRIPT_CLOSING, TRANSCRIPT_CUT_MARK, TRANSCRIPT_OPENING
from haystack_compaction.render import arguments_text
from haystack_compaction.summaries.messages import summary_body

CONTENT_MARK: Final = "| "

_MAX_NAME_CHARS: Final = 80
_MAX_ID_CHARS: Final = 120
_MAX_DETAILS: Final = 6

# What hides in a line, or shows it in another order than it stands in; tabs are text.
_UNSAFE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

# Any mark that stands around something of ours, however it is written.
_WRAPPER = re.compile(r"<(?=\s*/?\s*conversation_)", re.IGNORECASE)

# How often a text is cut again until it is short enough.
_MAX_CUTS: Final = 8

Measure = Callable[[str], int]


class Part(NamedTuple):
    """
    What one group is in the text.

    :param group: The group.
    :param text: Its lines; empty where there is nothing to tell.
    :param tokens: What they cost.
    :param is_cut: Whether the middle is missing.
    """

    group: MessageGroup
    text: str
    tokens: int
    is_cut: bool = False


def part_of(group: MessageGroup, measure: Measure) -> Part:
    """
    Return a group as text.

    :param group: The group.
    :param measure: What a text costs.
    :returns: Its lines and what they cost.
    """
    text = "\n".join(_lines_of(group))
    return Part(group, text, measure(text) if text else 0)


def shortened(part: Part, max_tokens: int, measure: Measure) -> Part:
    """
    Return a group as text of which the middle is missing, so that it is short enough.

    :param part: The group as text.
    :param max_tokens: What it may cost.
    :param measure: What a text costs.
    :returns: Head and tail, with a mark between them; the same where it is short enough already.
    """
    text, tokens = part.text, part.tokens
    room = len(text)
    for _ in range(_MAX_CUTS):
        if tokens <= max_tokens:
            break
        room = int(room * max(max_tokens, 1) / tokens * 0.95)
        text = _without_middle(part.text, room)
        tokens = measure(text)
    return part._replace(text=text, tokens=tokens, is_cut=text is not part.text)


def _without_middle(text: str, num_chars: int) -> str:
    head = text[: num_chars * 2 // 3]
    tail = text[len(text) - num_chars // 3 :]
    mark = TRANSCRIPT_CUT_MARK.replace("{num_chars}", str(len(text) - len(head) - len(tail)))
    # The tail may begin anywhere in a line, so it is content whatever it looks like.
    return f"{head}\n{mark}\n{CONTENT_MARK}{tail}" if tail else f"{head}\n{mark}"


def transcript_of(parts: Iterable[Part]) -> str:
    """
    Return parts between one opening and one closing mark.

    :param parts: The parts, oldest first.
    """
    return "\n".join([TRANSCRIPT_OPENING, *(part.text for part in parts if part.text), TRANSCRIPT_CLOSING])


def words_of(group: MessageGroup) -> str:
    """
    Return all words of a group as they stand in the conversation, for whoever looks for one of them.

    :param group: The group.
    """
    return "\n".join(text for message in group.messages for part in content_parts(message) for text in _texts_of(part))


# --- Lines ------------------------------------------------------------------------------------------------------------


def _lines_of(group: MessageGroup) -> Iterator[str]:
    if group.kind is MessageGroupKind.SUMMARY:
        for message in group.messages:
            yield from _lines_of_note(message)
        return
    answered = _answered_ids(group)
    for message in group.messages:
        speaker = _speaker_of(message)
        for part in content_parts(message):
            yield from _lines_of_part(part, speaker, answered)


def _lines_of_note(message: ChatMessage) -> Iterator[str]:
    text = "\n".join(part.text for part in content_parts(message) if isinstance(part, TextContent))
    if is_summary(message):
        yield from _section("summary so far", summary_body(text))
    else:
        yield from _section("note on messages that were removed", text)


def _lines_of_part(part: ContentPart, speaker: str, answered: frozenset[str]) -> Iterator[str]:
    """One part of a message; reasoning is left out, because no provider is sent it again."""
    if isinstance(part, TextContent):
        yield from _section(speaker, part.text)
    elif isinstance(part, Attachment):
        yield f"[{speaker} attached: {_attachment_text(part)}]"
    elif isinstance(part, ToolCall):
        yield from _section(f"call of {_named(part, answered)}", arguments_text(part.arguments))
    elif isinstance(part, ToolCallResult):
        named = _named(part.origin, answered)
        what = f"error from {named}" if part.error else f"result of {named}"
        blocks = [TextContent(part.result)] if isinstance(part.result, str) else part.result
        texts = [block.text for block in blocks if isinstance(block, TextContent)]
        yield from _section(what, "\n".join(texts))
        yield from (
            f"[{what} has: {_attachment_text(block)}]" for block in blocks if not isinstance(block, TextContent)
        )


def _section(what: str, text: str) -> Iterator[str]:
    """A line that says what follows, and the content below it."""
    yield f"[{what}]"
    for line in _readable(text).splitlines() or ("(nothing)",):
        yield CONTENT_MARK + line


def _readable(text: str) -> str:
    return _UNSAFE.sub(" ", _WRAPPER.sub("&lt;", text))


def _speaker_of(message: ChatMessage) -> str:
    role = "user" if message.role is ChatRole.USER else "assistant"
    return f'{role} "{_in_brackets(message.name, _MAX_NAME_CHARS)}"' if message.name else role


def _answered_ids(group: MessageGroup) -> frozenset[str]:
    """The ids of calls that a result refers to; any other says nothing."""
    pairs = group.exchanges()
    return frozenset(
        pair.call.id for pair in pairs if pair.call is not None and pair.result is not None and pair.call.id
    )


def _named(call: ToolCall, answered: frozenset[str]) -> str:
    name = _in_brackets(call.tool_name, _MAX_NAME_CHARS) or "an unknown tool"
    return f"{name}, id {_in_brackets(call.id, _MAX_ID_CHARS)}" if call.id and call.id in answered else name


def _in_brackets(text: str, max_chars: int) -> str:
    """A name as part of a line in square brackets."""
    return in_one_line(_readable(text), max_chars).replace("[", "(").replace("]", ")")


def _attachment_text(attachment: Attachment) -> str:
    """Type, name and whatever else identifies an image or file; not its content."""
    description = description_of(attachment)
    known: Mapping[str, Any] = attachment.meta if isinstance(attachment, ImageContent) else attachment.extra
    facts = [description]
    for key, value in known.items():
        if len(facts) > _MAX_DETAILS:
            break
        text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
        if text and not text.startswith("data:") and len(text) <= _MAX_NAME_CHARS and text not in description:
            facts.append(f"{key}={text}")
    return _in_brackets(", ".join(facts), _MAX_NAME_CHARS * (_MAX_DETAILS + 1))


def _texts_of(part: ContentPart) -> Sequence[str]:
    if isinstance(part, TextContent):
        return (part.text,)
    if isinstance(part, ToolCall):
        return (part.tool_name, part.id or "", arguments_text(part.arguments), *_strings_in(part.arguments))
    if isinstance(part, ToolCallResult):
        if isinstance(part.result, str):
            return (part.result,)
        return [block.text if isinstance(block, TextContent) else _attachment_text(block) for block in part.result]
    return (_attachment_text(part),) if isinstance(part, Attachment) else ()


def _strings_in(value: Any) -> Iterator[str]:
    """The texts in the arguments of a call as they are, before JSON puts backslashes into them."""
    left = [value]
    while left:
        entry = left.pop()
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, Mapping):
            left.extend(entry.values())
        elif isinstance(entry, list | tuple):
            left.extend(entry)

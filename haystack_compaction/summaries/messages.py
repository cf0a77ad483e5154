"""
Summary messages: how they are written, and what one holds.

A summary stands between one opening and one closing mark, with a line above it that says that it is a record. Whatever
a model writes, these stay the only marks, and no line of it can pass for evidence or for a turn.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from haystack.dataclasses import ChatMessage

from haystack_compaction.evidence.block import read
from haystack_compaction.marks import OFFLOAD_META_KEY, SUMMARIZATION, marked
from haystack_compaction.prompts import (
    STATEMENTS_HEADING,
    SUMMARY_CLOSING,
    SUMMARY_CUT_MARK,
    SUMMARY_OPENING,
    SUMMARY_RECORD,
    VALUES_HEADING,
    summary_in_text,
)

# Any mark that stands around something of ours, however a model writes it.
_WRAPPER = re.compile(r"<\s*/?\s*conversation_\w*\s*/?\s*>?", re.IGNORECASE)

# A line that looks as if somebody began to speak.
_TURN = re.compile(r"^(\s*)\[(/?)(system|user|assistant|tool|developer|human|ai)\b([^\]\n]*)\]", re.IGNORECASE | re.M)

# What some chat templates take for the beginning or the end of a turn.
_TEMPLATE = re.compile(r"<\|[^|<>\n]{1,40}\|>")

_FENCE = re.compile(r"\A```\w*\n(.*)\n```\Z", re.DOTALL)

# What hides in a line, or shows it in another order than it stands in; tabs are text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

_HEADINGS: Final = (STATEMENTS_HEADING, VALUES_HEADING)


class Cut(NamedTuple):
    """
    A text, and whether its end was cut off.
    """

    text: str
    is_cut: bool


def summary_message(
    body: str, *, evidence: str, removed_messages: int, kept_messages: int, references: Iterable[str] = ()
) -> ChatMessage:
    """
    Return the message that stands in the place of what was condensed.

    :param body: What a model wrote, cleaned.
    :param evidence: What was found without a model in what was condensed, as plain lines.
    :param removed_messages: For how many messages it stands, those of earlier notes and summaries included.
    :param kept_messages: How many stayed in the pass that wrote it.
    :param references: Under which names a store has results that went.
    :returns: A user message, because not every provider takes instructions in the middle.
    """
    record = SUMMARY_RECORD.replace("{num_removed}", str(removed_messages))
    lines = [SUMMARY_OPENING, record, body, *([evidence] if evidence else []), SUMMARY_CLOSING]
    kept: dict[str, Any] = {OFFLOAD_META_KEY: list(references)} if references else {}
    meta = marked(kept, SUMMARIZATION, removed_messages=removed_messages, kept_messages=kept_messages)
    return ChatMessage.from_user("\n".join(lines), meta=meta)


def summary_body(text: str) -> str:
    """
    Return what a model wrote of an earlier summary: without marks, without the first line and without evidence.

    :param text: The whole text of the summary's message.
    :returns: The text to be updated.
    """
    known = summary_in_text(text)
    body = read(text if known is None else known.content).rest
    return body.replace(SUMMARY_CUT_MARK, "").strip("\n")


def cleaned(text: str) -> str:
    """
    Return what a model wrote, so that nothing in it passes for a mark, for evidence or for a turn.

    :param text: The model's reply.
    :returns: The text; empty where nothing is left.
    """
    text = _UNSAFE.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n")).strip()
    fenced = _FENCE.match(text)
    text = fenced[1] if fenced else text
    text = _TEMPLATE.sub("", _WRAPPER.sub("", text))
    for heading in _HEADINGS:
        text = text.replace(heading, heading.rstrip(":"))
    text = _TURN.sub(r"\1(\2\3\4)", text.replace(SUMMARY_CUT_MARK, ""))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def capped(text: str, max_tokens: int, measure: Callable[[str], int]) -> Cut:
    """
    Return the beginning of a summary that is too long, up to the end of a line.

    :param text: The summary.
    :param max_tokens: What it may cost.
    :param measure: What a text costs.
    :returns: The text with a mark below it, or the same where it is short enough.
    """
    if measure(text) <= max_tokens:
        return Cut(text, is_cut=False)
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(_ended(text, middle)) <= max_tokens else (low, middle)
    end = text.rfind("\n", 0, low + 1)
    if end < low // 2:
        end = max(text.rfind(" ", 0, low), low // 2) if low < len(text) else low
    return Cut(_ended(text, end), is_cut=True)


def _ended(text: str, end: int) -> str:
    return f"{text[:end].rstrip()}\n{SUMMARY_CUT_MARK}"

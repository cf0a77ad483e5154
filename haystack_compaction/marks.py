"""
Every metadata key that compaction writes, and one predicate for each kind of message that it wrote.

`meta["context_compaction"]` is a dict with at least `strategy`. Haystack's own compactors use the same key, so what
they wrote is known here as well.
"""

from collections.abc import Mapping
from typing import Any, Final

from haystack.dataclasses import ChatMessage, TextContent, ToolCallResult

from haystack_compaction.content import content_parts
from haystack_compaction.prompts import (
    SEPARATOR as SEPARATOR_TEXT,
)
from haystack_compaction.prompts import (
    collapsed_message_count,
    is_media_text,
    is_note_text,
    is_placeholder_text,
    removed_messages_in_text,
    summary_in_text,
)

COMPACTION_META_KEY: Final = "context_compaction"
OFFLOAD_META_KEY: Final = "tool_result_offloaded"

TOOL_RESULT_PRUNING: Final = "tool_result_pruning"
TOOL_INPUT_CLEARING: Final = "tool_input_clearing"
TOOL_RESULT_CUT: Final = "tool_result_cut"
MEDIA: Final = "media"
TOOL_RESULT_COLLAPSE: Final = "tool_result_collapse"
SEPARATOR: Final = "separator"
SLIDING_WINDOW: Final = "sliding_window"
TRUNCATION: Final = "truncation"
SUMMARIZATION: Final = "summarization"

# Strategies whose note says how much went and no more, Haystack's own window among them.
_OMITTING = frozenset({SEPARATOR, SLIDING_WINDOW, TRUNCATION})

# Strategies that shorten a message in its place. The message is still the tool's, the model's or the user's own.
_SHORTENING = frozenset({TOOL_RESULT_PRUNING, TOOL_INPUT_CLEARING, TOOL_RESULT_CUT, MEDIA, "tool_result_offloading"})

# Those that leave text which a later pass may take.
_PARTIAL = frozenset({TOOL_RESULT_CUT, MEDIA})


def marked(meta: Mapping[str, Any], strategy: str, **details: Any) -> dict[str, Any]:
    """
    Return the metadata of a message that is marked as the work of a strategy.

    :param meta: The metadata that it has beside the mark.
    :param strategy: The strategy's name in the metadata.
    :param details: What else is worth keeping about it; JSON values only.
    :returns: A new dict.
    """
    return {**meta, COMPACTION_META_KEY: {"strategy": strategy, **details}}


def strategy_of(message: ChatMessage) -> str | None:
    """
    Return which strategy marked a message.

    :param message: The message to look at.
    :returns: The strategy's name, `"unknown"` for a mark that does not tell, or None for a message without a mark.
    """
    mark = message.meta.get(COMPACTION_META_KEY)
    if mark is None:
        return None
    strategy = mark.get("strategy") if isinstance(mark, dict) else None
    return strategy if isinstance(strategy, str) else "unknown"


def is_note(message: ChatMessage) -> bool:
    """
    Return whether compaction wrote a message in the place of others: a note or a summary.

    :param message: A message that is no tool result and calls no tool.
    :returns: Whether it is known as a note by its metadata or, without any, by its whole text.
    """
    if COMPACTION_META_KEY in message.meta:
        return strategy_of(message) not in _SHORTENING
    text = _only_text(message)
    return text is not None and is_note_text(text)


def is_omission_note(message: ChatMessage) -> bool:
    """
    Return whether a message only says that messages went: a later note takes its place and adds its number.

    :param message: A message that compaction wrote in the place of others.
    :returns: Whether it is an omission note or the line between two user messages, but no summary.
    """
    if COMPACTION_META_KEY in message.meta:
        return strategy_of(message) in _OMITTING
    text = _only_text(message)
    return text is not None and removed_messages_in_text(text) is not None


def is_summary(message: ChatMessage) -> bool:
    """
    Return whether a model's summary stands in a message, ours or one by Haystack's own summariser.

    :param message: A message that compaction wrote in the place of others.
    :returns: Whether it is known by its metadata or, without any, by its whole text.
    """
    if COMPACTION_META_KEY in message.meta:
        return strategy_of(message) == SUMMARIZATION
    text = _only_text(message)
    return text is not None and summary_in_text(text) is not None


def is_separator(message: ChatMessage) -> bool:
    """
    Return whether a message is the line between two messages of the user, which tells nothing else.

    :param message: A message that compaction wrote in the place of others.
    """
    if COMPACTION_META_KEY in message.meta:
        return strategy_of(message) == SEPARATOR
    return _only_text(message) == SEPARATOR_TEXT


def removed_message_count(message: ChatMessage) -> int | None:
    """
    Return how many messages went over the life of a conversation, as a note in their place knows it.

    :param message: A message that compaction wrote in the place of others.
    :returns: The number from its metadata or, without any, from its whole text; None where it tells none.
    """
    mark = message.meta.get(COMPACTION_META_KEY)
    if mark is not None:
        # The second is how Haystack's summariser has it.
        for key in ("removed_messages", "summarized_messages"):
            number = mark.get(key) if isinstance(mark, dict) else None
            if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
                return number
        return 0 if strategy_of(message) == SEPARATOR else None
    text = _only_text(message)
    if text is None:
        return None
    number, summary = removed_messages_in_text(text), summary_in_text(text)
    if summary is not None:
        return summary.num_removed
    return collapsed_message_count(text) if number is None else number


def _only_text(message: ChatMessage) -> str | None:
    parts = content_parts(message)
    part = parts[0] if len(parts) == 1 else None
    # Haystack 3.1 keeps the list of parts as it is where it loads one from OpenAI's format.
    return part.text if isinstance(part, TextContent) and isinstance(part.text, str) else None


def is_reduced(message: ChatMessage) -> bool:
    """
    Return whether a message has a mark that says that a pass took what is to be taken of it.

    A newest result that was cut to fit the window, and a message that lost nothing but images and files, are not
    reduced in this sense: a later pass may take their text.

    :param message: The message.
    """
    return COMPACTION_META_KEY in message.meta and strategy_of(message) not in _PARTIAL


def is_reduced_result(message: ChatMessage) -> bool:
    """
    Return whether compaction already took the content of a tool result, so that there is nothing left to take.

    :param message: A message with tool results.
    :returns: Whether it is a placeholder or a pointer, or has nothing but lines that stand for images and files.
    """
    if COMPACTION_META_KEY in message.meta:
        if strategy_of(message) not in _PARTIAL:
            return True
        if strategy_of(message) == TOOL_RESULT_CUT:
            return False
    parts = content_parts(message)
    if len(parts) == 1:
        part = parts[0]
        return not isinstance(part, ToolCallResult) or _is_spent(part)
    return all(_is_spent(part) for part in parts if isinstance(part, ToolCallResult))


def _is_spent(result: ToolCallResult) -> bool:
    """Whether a result's whole content is text of ours."""
    blocks = result.result
    if isinstance(blocks, str):
        return blocks.startswith("[") and (is_placeholder_text(blocks) or is_media_text(blocks))
    return bool(blocks) and all(isinstance(block, TextContent) and is_media_text(block.text) for block in blocks)


def original_tokens_of(message: ChatMessage, tokens: int) -> int:
    """
    Return what a message cost before anything was taken of it, also where an earlier pass took something.

    :param message: The message.
    :param tokens: What it costs as it is.
    :returns: Tokens of the counter.
    """
    mark = message.meta.get(COMPACTION_META_KEY)
    known = mark.get("original_tokens") if isinstance(mark, dict) else None
    return max(known, tokens) if isinstance(known, int) else tokens

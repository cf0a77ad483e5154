"""
Every metadata key that compaction writes, and one predicate for each kind of message that it wrote.

`meta["context_compaction"]` is a dict with at least `strategy`. Haystack's own compactors use the same key, so what
they wrote is known here as well.
"""

from collections.abc import Mapping
from typing import Any, Final

from haystack.dataclasses import ChatMessage, TextContent, ToolCallResult

from haystack_compaction.content import content_parts
from haystack_compaction.prompts import is_note_text, is_placeholder_text

COMPACTION_META_KEY: Final = "context_compaction"
OFFLOAD_META_KEY: Final = "tool_result_offloaded"

TOOL_RESULT_PRUNING: Final = "tool_result_pruning"
TOOL_INPUT_CLEARING: Final = "tool_input_clearing"
TOOL_RESULT_CUT: Final = "tool_result_cut"
SEPARATOR: Final = "separator"

# Strategies that shorten a message in its place. The message is still the tool's, the model's or the user's own.
_SHORTENING = frozenset({TOOL_RESULT_PRUNING, TOOL_INPUT_CLEARING, TOOL_RESULT_CUT, "tool_result_offloading"})


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
    parts = content_parts(message)
    if len(parts) != 1:
        return False
    part = parts[0]
    return isinstance(part, TextContent) and is_note_text(part.text)


def is_reduced_result(message: ChatMessage) -> bool:
    """
    Return whether compaction already took the content of a tool result, so that there is nothing left to take.

    A newest result that was only cut to fit the window is not reduced in this sense: a later pass may prune it.

    :param message: A message with tool results.
    :returns: Whether it is a placeholder or a pointer.
    """
    if COMPACTION_META_KEY in message.meta:
        return strategy_of(message) != TOOL_RESULT_CUT
    for part in content_parts(message):
        if isinstance(part, ToolCallResult):
            text = part.result
            if not (isinstance(text, str) and is_placeholder_text(text)):
                return False
    return True

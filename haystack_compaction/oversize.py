"""
Newest results that do not fit: cut to head and tail, with a mark between them that says how much is missing.

The model has not seen these results yet, so they are never pruned whole, and the cut is not final: a later pass may
still prune or offload what is left of them.
"""

from collections.abc import Callable, Sequence

from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCallResult

from haystack_compaction.content import ContentPart, content_parts, with_parts, with_result
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit, apply_edit, rewrite
from haystack_compaction.groups import MessageGroup
from haystack_compaction.marks import TOOL_RESULT_CUT, marked
from haystack_compaction.prompts import RESULT_CUT_MARK

# A result keeps at least this much, or the model could not tell what it got.
_MIN_KEPT_TOKENS = 64


def cut_newest_results(
    index: MessageIndex,
    *,
    room_tokens: int,
    limit_tokens: int,
    always: bool,
    is_kept: Callable[[ChatMessage], bool],
) -> list[Edit]:
    """
    Cut the results of the newest step that do not fit.

    :param index: The conversation; the cuts are carried out.
    :param room_tokens: What all of the newest results together may cost, in tokens of the counter.
    :param limit_tokens: What one result may cost at most.
    :param always: Whether the limit holds even where everything fits.
    :param is_kept: Tells which messages stay whatever happens.
    :returns: The edits that were carried out.
    """
    group = index.newest_step
    if group is None:
        return []
    placed = zip(group.positions, group.messages, strict=True)
    newest = {position: message for position, message in placed if message.role is ChatRole.TOOL}
    sizes = {position: index.ledger.at(position) for position in newest}
    fits = sum(sizes.values()) <= room_tokens
    # Where the rest alone fills the window, a cut would take from the model and still not make the request fit.
    hopeless = room_tokens < _MIN_KEPT_TOKENS * len(sizes)
    if not always and (fits or hopeless):
        return []
    limit = limit_tokens if fits or hopeless else min(limit_tokens, _even_share(list(sizes.values()), room_tokens))
    limit = max(limit, _MIN_KEPT_TOKENS)
    edits = []
    for position, tokens in sizes.items():
        if tokens > limit and not is_kept(newest[position]):
            shorter = _cut_to(index, group, position, limit)
            if shorter is not None:
                edits.append(apply_edit(index, shorter))
    return edits


def _even_share(sizes: Sequence[int], room: int) -> int:
    """The largest limit for each with which all together fit, so that short results stay whole."""
    left = room
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return max(share, 0)
        left -= size
    return room


def _cut_to(index: MessageIndex, group: MessageGroup, position: int, limit: int) -> Edit | None:
    """The edit that brings a message down to a limit, measured until it does."""
    message, tokens = group.messages[group.positions.index(position)], index.ledger.at(position)
    lengths = [len(text) for text in _texts_of(message)]
    if not sum(lengths):
        return None
    # Tokens are not spread evenly over a text, so the first guess may be too long.
    kept_chars = sum(lengths) * limit // tokens
    shorter, measured = message, tokens
    for _ in range(6):
        kept_chars = kept_chars * 9 // 10
        shorter = _with_texts_of(message, _even_share(lengths, kept_chars), tokens)
        measured = index.ledger.if_rewritten(group, position, shorter)
        if measured <= limit:
            break
        kept_chars = kept_chars * limit // measured
    if measured >= tokens:
        return None
    return rewrite(Action.CUT, group, position, shorter, reason="newest result, larger than the room", tokens=measured)


def _texts_of(message: ChatMessage) -> list[str]:
    """All texts of a message's results."""
    texts: list[str] = []
    for part in content_parts(message):
        if isinstance(part, ToolCallResult):
            if isinstance(part.result, str):
                texts.append(part.result)
            else:
                texts.extend(block.text for block in part.result if isinstance(block, TextContent))
    return texts


def _with_texts_of(message: ChatMessage, kept_chars: int, tokens: int) -> ChatMessage:
    """A copy of a message in which no text of a result is longer than a number of characters and the mark."""
    parts: list[ContentPart] = []
    for part in content_parts(message):
        if not isinstance(part, ToolCallResult):
            parts.append(part)
        elif isinstance(part.result, str):
            parts.append(with_result(part, _head_and_tail(part.result, kept_chars)))
        else:
            blocks = [
                TextContent(text=_head_and_tail(block.text, kept_chars)) if isinstance(block, TextContent) else block
                for block in part.result
            ]
            parts.append(with_result(part, blocks))
    return with_parts(message, parts, marked(message.meta, TOOL_RESULT_CUT, original_tokens=tokens))


def _head_and_tail(text: str, kept_chars: int) -> str:
    if len(text) <= kept_chars:
        return text
    head = text[: kept_chars * 2 // 3]
    tail = text[len(text) - (kept_chars - len(head)) :]
    missing = len(text) - len(head) - len(tail)
    return head + RESULT_CUT_MARK.replace("{num_chars}", f"{missing:,}") + tail

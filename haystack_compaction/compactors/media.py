"""
Old images and files become a line of text: they cost much, and what was seen in them was mostly said since.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from haystack.dataclasses import ChatMessage, ChatRole, ImageContent, TextContent, ToolCallResult

from haystack_compaction.arguments import check_int
from haystack_compaction.attachments import Attachment, attachment_count, description_of
from haystack_compaction.compactor import Compactor
from haystack_compaction.content import ContentPart, content_parts, with_parts, with_result
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit, apply_edit, rewrite
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import MEDIA, is_reduced, marked, original_tokens_of
from haystack_compaction.prompts import FILE_LINE, IMAGE_LINE
from haystack_compaction.steps import Steps

_REASON = "old images and files"

_BlockT = TypeVar("_BlockT")

_STRIPPABLE = (MessageGroupKind.USER, MessageGroupKind.ASSISTANT_TEXT, MessageGroupKind.TOOL_CALL)


class _Holder(NamedTuple):
    """
    A message with images or files.

    :param group: Its group.
    :param position: Where it stands.
    :param message: The message as it is before the pass.
    :param amount: How many images and files it holds; of one that is old, how many of them are, the first ones.
    """

    group: MessageGroup
    position: int
    message: ChatMessage
    amount: int


@dataclass(frozen=True, kw_only=True)
class MediaCompactor(Compactor):
    """
    Replaces old images and files with a line that gives type, name and size, oldest first, until the target is met.

    It works in tool results, in messages of the user and in those of the model. All text stays, and so do the images
    and files of the task, those of the newest step, which the model has not seen yet, and the newest ones of all.

    ```python
    from haystack.dataclasses import ChatMessage, FileContent
    from haystack_compaction import MediaCompactor, apply_compaction

    invoice = FileContent(base64_data="JVBERi0xLjc=", mime_type="application/pdf", filename="invoice.pdf")
    messages = [
        ChatMessage.from_user(content_parts=["Who wrote this?", invoice]),
        ChatMessage.from_assistant("Jane Doe."),
        ChatMessage.from_user("And who is she?"),
    ]
    shorter = apply_compaction(messages, MediaCompactor(keep_last_media=0))
    print(shorter[0].texts[1])  # [File removed to free up context: application/pdf, "invoice.pdf", 8 bytes]
    ```

    :param keep_last_media: How many of the newest images and files stay. More lets the model compare what it saw, and
        frees less; 0 keeps only those of the task and the newest step.
    """

    keep_last_media: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("keep_last_media", self.keep_last_media, minimum=0)

    def decide(self, index: MessageIndex, goal: Goal) -> Steps[list[Edit]]:
        """
        Replace images and files, message by message, and of the last message no more than it takes.

        :param index: The conversation.
        :param goal: How far to go.
        :returns: The edits that were carried out, one a message.
        """
        done: list[Edit] = []
        for old in self._old_media(index):
            edit = self._stripped(index, old)
            if edit is None:
                continue
            apply_edit(index, edit)
            if goal.met(index):
                done.append(self._no_more_than_needed(index, goal, old, edit))
                break
            done.append(edit)
        return done
        yield  # a generator that needs nothing from outside

    def deferred_tokens(self, index: MessageIndex) -> int:
        """
        Return what the messages cost whose images and files are out of reach for now.

        :param index: The conversation after a pass that took all that it may.
        :returns: Tokens of the counter.
        """
        return sum(index.ledger.at(holder.position) for holder in self._holders(index))

    def _old_media(self, index: MessageIndex) -> list[_Holder]:
        """The messages with images or files that may go, oldest first."""
        holders, kept = self._holders(index), self.pinned_groups(index).union(index.task_groups)
        old: list[_Holder] = []
        left = sum(holder.amount for holder in holders) - self.keep_last_media
        for holder in holders:
            if left <= 0:
                break
            group = holder.group
            if group not in kept and group is not index.newest_step and index.ledger.can_measure(group):
                old.append(holder._replace(amount=min(holder.amount, left)))
            left -= holder.amount
        return old

    def _holders(self, index: MessageIndex) -> list[_Holder]:
        """
        All messages with images or files, oldest first.

        Groups at the beginning in which there are none are not looked at again by the next pass.
        """
        holders: list[_Holder] = []
        done = index.settled_by(self)
        settling = index.included_message_count == index.total_message_count
        for number, group in enumerate(index.included_groups(done), done + 1):
            if group.kind in _STRIPPABLE:
                for position, message in zip(group.positions, group.messages, strict=True):
                    count = attachment_count(message)
                    if count:
                        holders.append(_Holder(group, position, message, count))
            settling = settling and not holders and group is not index.newest_step
            if settling:
                index.settle(self, number)
        return holders

    def _stripped(self, index: MessageIndex, old: _Holder) -> Edit | None:
        """The edit that replaces the old images and files of a message, or None where that would free nothing."""
        ledger, (group, position, message, count) = index.ledger, old
        is_result = message.role is ChatRole.TOOL
        tokens = ledger.content_at(group, position) if is_result else ledger.at(position)
        shorter = _without_media(message, count, original_tokens_of(message, tokens))
        measured = ledger.if_rewritten(group, position, shorter)
        edit = rewrite(Action.STRIP, group, position, shorter, reason=_REASON, tokens=measured)
        return edit if edit.freed_tokens > 0 else None

    def _no_more_than_needed(self, index: MessageIndex, goal: Goal, old: _Holder, edit: Edit) -> Edit:
        """Give the newest images and files of a message back that need not have gone; the edit that is left."""
        group, position, message, most = old
        tokens, best, fewest = index.ledger.at(position) + edit.freed_tokens, edit, 0
        while most - fewest > 1:
            count = (fewest + most) // 2
            longer = _without_media(message, count, original_tokens_of(edit.messages[0], 0))
            measured = index.ledger.if_rewritten(group, position, longer)
            edit = Edit(Action.STRIP, (group,), _REASON, (longer,), position, measured, tokens - measured)
            apply_edit(index, edit)
            if edit.freed_tokens > 0 and goal.met(index):
                best, most = edit, count
            else:
                fewest = count
        if best is not edit:
            apply_edit(index, best)
        return best


def _without_media(message: ChatMessage, count: int, original_tokens: int) -> ChatMessage:
    """A copy of a message in which lines stand for the first of its images and files."""
    parts: list[ContentPart] = []
    for part in content_parts(message):
        if isinstance(part, ToolCallResult) and not isinstance(part.result, str):
            blocks, replaced = _with_lines(part.result, count)
            parts.append(with_result(part, blocks) if replaced else part)
            count -= replaced
        elif isinstance(part, Attachment) and count:
            parts.append(_line_for(part))
            count -= 1
        else:
            parts.append(part)
    if message.role is ChatRole.ASSISTANT:
        parts = _words_first(content_parts(message), parts)
    # The mark of a pass that took more than this one says what is left.
    meta = dict(message.meta) if is_reduced(message) else marked(message.meta, MEDIA, original_tokens=original_tokens)
    return with_parts(message, parts, meta)


def _with_lines(blocks: Sequence[_BlockT], count: int) -> tuple[list[_BlockT | TextContent], int]:
    """The blocks of a result with lines for the first of its images and files, and how many these are."""
    replaced, result = 0, list[_BlockT | TextContent]()
    for block in blocks:
        if isinstance(block, Attachment) and replaced < count:
            result.append(_line_for(block))
            replaced += 1
        else:
            result.append(block)
    return result, replaced


def _line_for(attachment: Attachment) -> TextContent:
    line = IMAGE_LINE if isinstance(attachment, ImageContent) else FILE_LINE
    return TextContent(text=line.replace("{description}", description_of(attachment)))


def _words_first(before: Sequence[ContentPart], after: list[ContentPart]) -> list[ContentPart]:
    """Move lines behind the first text of a reply: a provider may take the first text for all of it."""
    first = next((n for n, part in enumerate(before) if isinstance(part, TextContent)), 0)
    lines = [part for part, was in zip(after[:first], before, strict=False) if part is not was]
    kept = [part for part, was in zip(after[:first], before, strict=False) if part is was]
    return [*kept, after[first], *lines, *after[first + 1 :]] if lines else after

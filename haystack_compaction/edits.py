"""
What a compactor decided, as data: for each place of the conversation that changes, what stands there afterwards.

A compactor proposes edits; `apply_edit` is the only function that carries one out.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import SEPARATOR, marked
from haystack_compaction.prompts import SEPARATOR as SEPARATOR_TEXT


class Action(str, Enum):  # noqa: UP042 - as Haystack's own enums
    """
    What happens to a group.
    """

    #: Images and files become a line of text each.
    STRIP = "strip"

    #: A tool result's content becomes a placeholder.
    PRUNE = "prune"

    #: A tool call's arguments are cut.
    CLEAR = "clear"

    #: A newest result is cut to head and tail, because it does not fit.
    CUT = "cut"

    #: Messages become one short line.
    COLLAPSE = "collapse"

    #: A tool result moves to a store and leaves a pointer.
    OFFLOAD = "offload"

    #: A model's summary takes the place of messages.
    SUMMARIZE = "summarize"

    #: Messages go.
    DROP = "drop"


class Edit(NamedTuple):
    """
    One change: which groups, and what takes their place.

    :param action: What happens.
    :param groups: The groups that it happens to.
    :param reason: Why, in a few words.
    :param messages: What stands in the place of the groups, or, with `position`, of one message.
    :param position: Where the message of the only group stands that is rewritten; None where whole groups go.
    :param tokens: What a rewritten message costs, if that was measured already.
    :param freed_tokens: What the edit freed, in tokens of the counter; known once it was applied.
    :param place: Where `messages` stand, if not at the place of the oldest message that goes.
    """

    action: Action
    groups: tuple[MessageGroup, ...]
    reason: str
    messages: tuple[ChatMessage, ...] = ()
    position: int | None = None
    tokens: int | None = None
    freed_tokens: int = 0
    place: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """
        Return the edit as plain data, without content.

        :returns: Action, reason, the positions that it touches and what it freed.
        """
        groups = self.groups
        positions = (
            [position for group in groups for position in group.positions] if self.position is None else [self.position]
        )
        return {
            "action": self.action.value,
            "reason": self.reason,
            "kinds": [group.kind.value for group in groups],
            "positions": sorted(positions),
            "freed_tokens": self.freed_tokens,
        }


def drop(group: MessageGroup, reason: str) -> Edit:
    """
    Return the edit that removes a group.

    :param group: The group.
    :param reason: Why, in a few words.
    :returns: The edit.
    """
    return Edit(Action.DROP, (group,), reason)


def rewrite(
    action: Action, group: MessageGroup, position: int, message: ChatMessage, *, reason: str, tokens: int | None = None
) -> Edit:
    """
    Return the edit that puts a shorter form of a message in its place.

    :param action: What happens to it.
    :param group: Its group.
    :param position: Where the message stands in the conversation.
    :param message: The shorter form.
    :param reason: Why, in a few words.
    :param tokens: What it costs, if that was measured already.
    :returns: The edit.
    """
    freed = 0 if tokens is None else group.owner.tokens_at(position) - tokens
    return Edit(action, (group,), reason, (message,), position, tokens, freed)


def substitute(action: Action, groups: Sequence[MessageGroup], message: ChatMessage, *, reason: str) -> Edit:
    """
    Return the edit that puts one message in the place of groups.

    :param action: What happens to them.
    :param groups: The groups.
    :param message: What stands at the place of their oldest message.
    :param reason: Why, in a few words.
    :returns: The edit.
    """
    return Edit(action, tuple(groups), reason, messages=(message,))


def apply_edit(index: MessageIndex, edit: Edit) -> Edit:
    """
    Carry an edit out.

    :param index: The conversation.
    :param edit: The change.
    :returns: The same edit, which now knows what it freed.
    """
    if edit.position is not None and edit.tokens is not None:
        # All is known, and this is done for each of a thousand results.
        index.rewrite(edit.groups[0], edit.position, edit.messages[0], tokens=edit.tokens)
        return edit
    before = index.included_token_count
    if edit.position is not None:
        index.rewrite(edit.groups[0], edit.position, edit.messages[0])
    elif edit.messages:
        index.replace(edit.groups, edit.messages, edit.reason, place=edit.place)
    else:
        for group in edit.groups:
            index.exclude(group, edit.reason)
    freed = before - index.included_token_count
    return Edit(edit.action, edit.groups, edit.reason, edit.messages, edit.position, edit.tokens, freed, edit.place)


def separator() -> ChatMessage:
    """
    Return the line that stands between two user messages which a removal would make neighbours.

    :returns: A user message that is known as compaction's own.
    """
    return ChatMessage.from_user(SEPARATOR_TEXT, meta=marked({}, SEPARATOR))


def part_users(index: MessageIndex) -> Iterator[Edit]:
    """
    Put a line between messages of the user that a removal made neighbours.

    Without it the older one would be taken for a part of the task in the next pass.

    :param index: The conversation; the lines are put in.
    :returns: The edits that were carried out.
    """
    if index.included_message_count == index.total_message_count:
        return
    users: list[int] = []
    others = bytearray(index.total_message_count)
    for group in index.included_groups():
        if group.kind is MessageGroupKind.USER:
            users.extend(group.positions)
        else:
            for position in group.positions:
                others[position] = 1
    # What went may have stood apart from the rest of its group, so it is places that tell, not groups.
    gaps = [one + 1 for one, other in pairwise(users) if other - one > 1 and others.find(1, one, other) < 0]
    if gaps:
        owners = {position: group for group in index.groups if group.is_excluded for position in group.positions}
        for place in gaps:
            edit = substitute(Action.DROP, [owners[place]], separator(), reason="parts two user messages")
            yield apply_edit(index, edit._replace(place=place))

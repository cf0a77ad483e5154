"""
A conversation as an index of groups, with sums that are kept up when a group goes and never taken again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from haystack.dataclasses import ChatMessage
from haystack.token_counters import TokenCounter

from haystack_compaction.arguments import check_messages, check_method
from haystack_compaction.changes import Changes
from haystack_compaction.conversation_size import ConversationSize
from haystack_compaction.grouping import Grouping
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.ledger import Ledger
from haystack_compaction.metering import Meter
from haystack_compaction.tally import Tally
from haystack_compaction.token_counters import EstimatedTokenCounter


class MessageIndex(ConversationSize):
    """
    A structured view of a conversation: groups, turns, steps, the task, and what each costs.

    The index never changes a message, nor the list it was made from. Groups can be excluded, replaced and rewritten;
    `included_messages()` then gives the shorter conversation. All `included_*` counts are O(1) to read.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import MessageIndex

    index = MessageIndex([ChatMessage.from_system("Be brief."), ChatMessage.from_user("Hello")])
    print([group.kind.value for group in index.groups], index.included_token_count)
    ```
    """

    def __init__(
        self, messages: list[ChatMessage], token_counter: TokenCounter | None = None, *, scale: float = 1.0
    ) -> None:
        """
        Index a conversation. Nothing is measured before it is asked for.

        :param messages: The conversation, oldest first.
        :param token_counter: The counter to measure with. Defaults to `EstimatedTokenCounter`, which works offline.
        :param scale: How many of the model's tokens one token of the counter is worth. Triggers compare the model's.
        :raises TypeError: If an argument is of the wrong type.
        """
        self.scale = scale
        #: What strategies remember of the run that this belongs to, by the identity of what they remember it of; None
        #: where there is no such memory.
        self.memory: dict[int, Any] | None = None
        self._originals: list[ChatMessage] = []
        #: What the messages cost.
        self.ledger = Ledger(
            Meter(EstimatedTokenCounter() if token_counter is None else token_counter), self._originals
        )
        self._grouping = Grouping(self)
        self._tally = Tally(self.included_groups, self._originals)
        self._changes = Changes(self._originals, self._grouping, self.ledger, self._tally)
        self._settled: dict[int, tuple[object, int]] = {}
        check_method("token_counter", self.ledger.meter.token_counter, "count", example="EstimatedTokenCounter()")
        self.extend(messages)

    def extend(self, messages: list[ChatMessage]) -> None:
        """
        Add messages to the end. Only these are looked at.

        :param messages: The new messages, oldest first.
        :raises TypeError: If an entry is no `ChatMessage`.
        """
        check_messages("messages", messages)
        grouping, start = self._grouping, len(self._originals)
        self._originals.extend(messages)
        sort = grouping.add
        sorted_into = [sort(message, position) for position, message in enumerate(messages, start)]
        if grouping.reached_back:
            grouping.reached_back = False
            self._settled.clear()
        self.ledger.grow(sorted_into)
        self._changes.grow(messages, sorted_into, start)
        self._tally.grow()

    # What there is

    @property
    def newest_step(self) -> MessageGroup | None:
        """
        The group of the newest assistant message: its results are what the model has not seen yet.
        """
        return self._grouping.newest_step

    @property
    def newest_reply_position(self) -> int | None:
        """
        Where the newest assistant message stands in the conversation as it was given; None where there is none.
        """
        return self._grouping.newest_reply_position

    @property
    def task_groups(self) -> list[MessageGroup]:
        """
        The latest user message that compaction did not write, with the user messages directly before it.

        The only user message is always the task, whoever wrote it.
        """
        grouping = self._grouping
        if grouping.task_groups or grouping.user_note_count != 1 or grouping.last_user_note is None:
            return grouping.task_groups
        return [grouping.last_user_note]

    @property
    def groups(self) -> list[MessageGroup]:
        """
        All groups in order, those that went included, each followed by what stands in its place.
        """
        return list(self._chain())

    def included_groups(self, start: int = 0) -> list[MessageGroup]:
        """
        Return the groups that are still in, oldest first.

        :param start: How many of the groups that were given to leave out at the beginning.
        :returns: A new list.
        """
        return [group for group in self._chain(start) if not group.is_excluded]

    def newest_groups(self) -> Iterator[MessageGroup]:
        """
        Go over the groups that are still in, newest first.

        :returns: An iterator, which costs only what is taken from it.
        """
        for first in reversed(self._grouping.groups):
            group: MessageGroup | None = first
            while group is not None:
                if not group.is_excluded:
                    yield group
                group = group.replacement

    def _chain(self, start: int = 0) -> Iterator[MessageGroup]:
        for first in self._grouping.groups[start:] if start else self._grouping.groups:
            group: MessageGroup | None = first
            while group is not None:
                yield group
                group = group.replacement

    def all_messages(self) -> list[ChatMessage]:
        """
        Return the conversation as it was given.

        :returns: A new list of the same messages.
        """
        return list(self._originals)

    def included_messages(self) -> list[ChatMessage]:
        """
        Return the conversation as it is now.

        :returns: A new list; messages that were not rewritten are the same objects as given.
        """
        return self._changes.messages()

    def original_at(self, position: int) -> ChatMessage:
        """
        Return the message that was given at a place.

        :param position: The place in the conversation.
        """
        return self._originals[position]

    def begins(self, messages: Sequence[ChatMessage]) -> bool:
        """
        Return whether a list begins with just the messages that were indexed.

        :param messages: A list, usually the same conversation some messages later.
        :returns: Whether nothing was changed, removed or put in front.
        """
        # Compares by identity first and only then by value, so an unchanged beginning costs next to nothing.
        return len(messages) >= len(self._originals) and messages[: len(self._originals)] == self._originals

    def resembles(self, messages: Sequence[ChatMessage]) -> bool:
        """
        Return whether a list seems to begin with the messages that were indexed, without looking at all of them.

        :param messages: A list, usually the same conversation some messages later.
        :returns: Whether the ends are the same objects. A change in between is not seen.
        """
        known, last = self._originals, len(self._originals) - 1
        if last < 0 or len(messages) <= last:
            return False
        middle = last // 2
        return messages[last] is known[last] and messages[middle] is known[middle] and messages[0] is known[0]

    def settle(self, strategy: object, group_count: int) -> None:
        """
        Remember how many groups at the beginning a strategy has done with. Forgotten as soon as one of them changes.

        :param strategy: The strategy, told apart from others by its identity.
        :param group_count: How many groups it need not look at again.
        """
        self._settled[id(strategy)] = (strategy, group_count)

    def settled_by(self, strategy: object) -> int:
        """
        Return how many groups at the beginning a strategy has done with.

        :param strategy: The strategy.
        """
        known = self._settled.get(id(strategy))
        return known[1] if known is not None and known[0] is strategy else 0

    # What it costs

    def tokens_at(self, position: int) -> int:
        """
        Return what the message at a place costs as it is now; measured when first asked for.

        :param position: The place in the conversation.
        :returns: Tokens of the counter.
        :raises CounterError: If the counter fails.
        """
        return self.ledger.at(position)

    def tokens_of(self, group: MessageGroup) -> int:
        """
        Return what a group costs, or did when it went; measured when first asked for.

        :param group: A group of this index.
        :returns: Tokens of the counter.
        :raises CounterError: If the counter fails.
        """
        if group.is_excluded:
            self.ledger.settle()
            return group.excluded_tokens
        return self.ledger.of(group)

    # Changing it

    def exclude(self, group: MessageGroup, reason: str) -> None:
        """
        Take a group out of the conversation.

        :param group: A group of this index; one that is out already stays as it is.
        :param reason: Why, in a few words.
        :raises ValueError: If the group belongs to another index.
        """
        self._check_owner(group)
        if not group.is_excluded:
            self._changes.exclude(group, reason)

    def replace(
        self, groups: Sequence[MessageGroup], messages: Sequence[ChatMessage], reason: str, *, place: int | None = None
    ) -> MessageGroup:
        """
        Put messages in the place of groups: the first at the place of the oldest message that goes, and so on.

        :param groups: Groups of this index; one that went already only lends its place.
        :param messages: What stands there instead, no more messages than the groups hold.
        :param reason: Why, in a few words.
        :param place: Which of the groups' places they take from, where it is not the oldest; it has to be free.
        :returns: The new group.
        :raises TypeError: If an entry of `messages` is no `ChatMessage`.
        :raises ValueError: If there is no group, no message or no place for one, or something else took the place.
        """
        check_messages("messages", list(messages))
        for group in groups:
            self._check_owner(group)
        places = sorted(position for group in groups for position in group.positions if position >= (place or 0))
        if not 0 < len(messages) <= len(places):
            raise ValueError(f"`messages` must be one to {len(places)}, as many as fit, got {len(messages)}.")
        if any(group.replacement is not None for group in groups) and (
            place is None or self._changes.current[places[0]]
        ):
            raise ValueError("`groups` must not hold one whose place is taken. Replace what stands there now.")
        oldest = min(groups, key=lambda group: group.positions[0])
        for group in groups:
            self.exclude(group, reason)
        while oldest.replacement is not None:
            oldest = oldest.replacement
        new = Grouping(self).add(messages[0], places[0])
        new.messages, new.positions = list(messages), places[: len(messages)]
        new.turn_index = None if new.kind is MessageGroupKind.SYSTEM else oldest.turn_index
        self._changes.put_in_place(oldest, new)
        return new

    def rewrite(self, group: MessageGroup, position: int, message: ChatMessage, *, tokens: int | None = None) -> None:
        """
        Put a shorter form of a message in its place; its group stays what it is.

        :param group: A group of this index that is still in.
        :param position: Where the message stands in the conversation.
        :param message: The same message with other content.
        :param tokens: What it costs, if that was measured already.
        :raises ValueError: If the group belongs to another index, is not in, or has no message there.
        """
        if group.owner is not self or group.is_excluded or position not in group.positions:
            self._check_owner(group)
            raise ValueError(
                f"`position` must be one of the group's that is still in, got {position} of {group.positions}."
            )
        after = self.ledger.if_rewritten(group, position, message) if tokens is None else tokens
        self._changes.rewrite(group, position, message, after)

    def reset(self) -> None:
        """
        Take back all changes, so that the conversation is again as it was given, or as it was when a stage began.
        """
        if self._changes.begun:
            self._settled = self._changes.take_back()

    @property
    def is_staged(self) -> bool:
        """
        Whether a stage is open, so that the conversation as it was given is not the one to compare with.
        """
        return self._changes.staged

    def begin_stage(self) -> None:
        """
        Let `reset` come back to here from now on. Stages can stand within each other.
        """
        self._changes.begin_stage(self._settled)

    def end_stage(self) -> None:
        """
        End the newest stage. What it changed belongs to the one around it, or to the whole.
        """
        self._changes.end_stage()

    def committed(self) -> "MessageIndex":
        """
        Return an index for which the conversation as it is now is the one that was given. Nothing is measured again.

        :returns: This index where nothing but rewriting happened, else a new one.
        """
        if not self._changes.reshaped:
            self._changes.settle()
            return self
        index = MessageIndex(self.included_messages(), self.ledger.meter.token_counter, scale=self.scale)
        kept = (position for position, message in enumerate(self._changes.current) if message is not None)
        index.ledger.carry_over(self.ledger, kept)
        index.memory = self.memory
        return index

    def continued_by(self, messages: list[ChatMessage]) -> "MessageIndex":
        """
        Return an index of another form of this conversation. Messages that are in both are not measured again.

        :param messages: What somebody made of the conversation as it is now.
        :returns: A new index.
        """
        index = MessageIndex(messages, self.ledger.meter.token_counter, scale=self.scale)
        places = self._changes.places()
        index.memory = self.memory
        index.ledger.carry_known(self.ledger, [places.get(id(message)) for message in messages])
        return index

    def _check_owner(self, group: MessageGroup) -> None:
        if group.owner is not self:
            raise ValueError("`group` must be a group of this index; groups of another one mean other messages.")

"""
What the messages of a conversation cost: each measured once, every sum kept up from there.
"""

from array import array
from collections.abc import Iterable, Sequence

from haystack.dataclasses import ChatMessage

from haystack_compaction.groups import MessageGroup
from haystack_compaction.metering import Meter

# No count is this low, not even the negative ones that a counter of unknown kind can make of a replacement.
_UNMEASURED = -(2**62)


class Ledger:
    """
    The tokens of each message by its place, their total, and how many of them are gone.
    """

    def __init__(self, meter: Meter, messages: list[ChatMessage]) -> None:
        """
        Open the books on a conversation. Nothing is measured before it is asked for.

        :param meter: What asks the counter.
        :param messages: The conversation as it was given. The list is shared: whoever adds to it calls `grow`.
        """
        self.meter = meter
        self._messages = messages
        self._tokens = array("q")
        self._counted = 0
        self._total = 0
        self._gone = 0
        self._leaving: list[tuple[MessageGroup, tuple[int, ...]]] = []
        self._before_change: dict[int, int] = {}
        # For a counter that takes whole groups only: the group of each message.
        self._groups: list[MessageGroup] | None = None if meter.single_messages else []

    def grow(self, groups: list[MessageGroup]) -> None:
        """
        Make room for more messages.

        :param groups: The group that each of them was sorted into.
        """
        self._tokens.extend([_UNMEASURED] * len(groups))
        if self._groups is not None:
            self._groups.extend(groups)

    @property
    def total(self) -> int:
        """
        What the conversation cost as it was given.
        """
        self._count_new()
        return self._total

    @property
    def included(self) -> int:
        """
        What the conversation costs as it is now.
        """
        if self._counted != len(self._tokens):
            self._count_new()
        if self._leaving:
            self.settle()
        return self._total - self._gone

    def at(self, position: int) -> int:
        """
        Return what the message at a place costs.

        :param position: The place in the conversation.
        :returns: Tokens of the counter.
        :raises CounterError: If the counter fails.
        """
        tokens = self._tokens[position]
        if tokens == _UNMEASURED:
            self._count_new()
            tokens = self._tokens[position]
        if tokens == _UNMEASURED:
            if self._groups is not None:
                self._measure(self._group_at(position))
                return self._tokens[position]
            tokens = self._tokens[position] = self.meter.count([self._messages[position]])
        return tokens

    def since(self, position: int) -> list[int]:
        """
        Return what the messages from a place to the end cost.

        :param position: The place in the conversation.
        :returns: Tokens of the counter, one number a message.
        :raises CounterError: If the counter fails.
        """
        self._count_new()
        counts = self._tokens[position:].tolist()
        if _UNMEASURED in counts:
            counts = list(map(self.at, range(position, len(self._tokens))))
        return counts

    def of(self, group: MessageGroup) -> int:
        """
        Return what a group costs that is still in.

        :param group: The group.
        :returns: Tokens of the counter.
        :raises CounterError: If the counter fails.
        """
        return sum(map(self.at, group.positions))

    def can_measure(self, group: MessageGroup) -> bool:
        """
        Return whether the counter may be asked about a group by itself; what cannot be measured is better left alone.

        :param group: The group.
        """
        return self.meter.single_messages or group.is_whole

    def content_at(self, group: MessageGroup, position: int) -> int:
        """
        Return what a message with calls or results costs, in a way that does not depend on the rest of its group.

        :param group: The group.
        :param position: Where the message stands.
        :returns: Tokens of the counter.
        :raises CounterError: If the counter fails.
        """
        if self.meter.single_messages:
            return self.at(position)
        return self.meter.content_tokens(group.messages, group.positions.index(position))

    def if_rewritten(self, group: MessageGroup, position: int, message: ChatMessage) -> int:
        """
        Return what a message would cost in the place of one of a group's.

        :param group: The group.
        :param position: Where the message stands that would be replaced.
        :param message: The message to measure.
        :returns: Tokens of the counter.
        :raises CounterError: If the counter fails.
        """
        if self.meter.single_messages:
            return self.meter.replacement_tokens(message)
        place, tokens = group.positions.index(position), self.at(position)
        return self.meter.replaced_tokens(group.messages, place, message, tokens=tokens, valid=group.is_whole)

    def rewrite(self, position: int, tokens: int) -> int:
        """
        Book a shorter message at a place.

        :param position: The place in the conversation.
        :param tokens: What stands there now costs.
        :returns: What stood there before cost.
        """
        before = self._tokens[position]
        if before == _UNMEASURED:
            before = self.at(position)
        if position not in self._before_change:
            self._before_change[position] = before
        self._tokens[position] = tokens
        self._gone += before - tokens
        return before

    def remove(self, group: MessageGroup) -> None:
        """
        Book a group out. It is measured when a sum is asked for.

        :param group: The group; what it cost is kept with it.
        """
        self._leaving.append((group, tuple(group.positions)))

    def remove_late(self, group: MessageGroup, position: int) -> None:
        """
        Book one more message of a group out that went before.

        :param group: The group.
        :param position: Where the message stands.
        """
        self._leaving.append((group, (position,)))

    def settle(self) -> None:
        """
        Measure what was booked out.

        :raises CounterError: If the counter fails.
        """
        while self._leaving:
            group, positions = self._leaving[-1]
            tokens = sum(map(self.at, positions))
            self._leaving.pop()
            group.excluded_tokens += tokens
            self._gone += tokens

    def give_back(self, group: MessageGroup) -> None:
        """
        Book a group in again that was the last to be booked out.

        :param group: The group.
        """
        if self._leaving and self._leaving[-1][0] is group:
            self._leaving.pop()  # it was never measured
        else:
            self._gone -= group.excluded_tokens
        group.excluded_tokens = 0

    def insert(self, group: MessageGroup) -> list[int]:
        """
        Book a group in that stands in the place of others.

        :param group: The group; its messages are measured now.
        :returns: What stood at its places before.
        :raises CounterError: If the counter fails.
        """
        self.settle()
        if len(group.messages) == 1 and group.is_whole:
            counts = [self.meter.note_tokens(group.messages[0])]
        else:
            counts = self.meter.message_tokens(group.messages, valid=group.is_whole)
        before = [self._tokens[position] for position in group.positions]
        for position, count, tokens in zip(group.positions, counts, before, strict=True):
            self._before_change.setdefault(position, tokens)
            self._tokens[position] = count
        self._gone -= sum(counts)
        return before

    def take_out(self, group: MessageGroup, before: list[int]) -> None:
        """
        Take back that a group was booked in.

        :param group: The group.
        :param before: What `insert` returned for it.
        """
        for position, tokens in zip(group.positions, before, strict=True):
            self._gone += self._tokens[position]
            self._tokens[position] = tokens

    def reset(self) -> None:
        """
        Forget all changes.
        """
        for position, tokens in self._before_change.items():
            self._tokens[position] = tokens
        self._before_change, self._leaving, self._gone = {}, [], 0

    def commit(self) -> list[int]:
        """
        Take the messages as they are now for what was given. Only for conversations in which every place is still held.

        :returns: The places that hold another message than before.
        """
        changed = list(self._before_change)
        self._total, self._gone, self._before_change = self.included, 0, {}
        return changed

    def carry_over(self, other: "Ledger", positions: Iterable[int]) -> None:
        """
        Take the counts of another ledger, so that nothing is measured again.

        :param other: The ledger of the conversation that this one's is left of.
        :param positions: Where this conversation's messages stood in that one, in order.
        """
        self._tokens = array("q", [other._tokens[position] for position in positions])  # noqa: SLF001 - same class
        self._total, self._counted = other.included, len(self._tokens)

    def carry_known(self, other: "Ledger", positions: Sequence[int | None]) -> None:
        """
        Take the counts of another ledger for the messages that were there too, and measure the rest.

        :param other: The ledger of a conversation with some of the same messages.
        :param positions: Where each of this conversation's messages stood in that one; None for a new one.
        :raises CounterError: If the counter fails.
        """
        if not self.meter.additive:
            return  # the whole has to be counted anyway
        new = self.meter.each([m for m, place in zip(self._messages, positions, strict=True) if place is None])
        fresh = iter(new)
        counts = [next(fresh) if place is None else other.at(place) for place in positions]
        self._tokens = array("q", counts)
        self._total, self._counted = sum(counts), len(counts)

    def _count_new(self) -> None:
        """Measure the messages that came since the last time, in the way that the counter allows."""
        if self._counted == len(self._tokens):
            return
        if self.meter.additive:
            counts = self.meter.each(self._messages[self._counted :])
            self._tokens[self._counted :] = array("q", counts)
            self._total += sum(counts)
        elif self.meter.single_messages:
            self._total += self.meter.count(self._messages[self._counted :])
        else:
            self._total += self._new_in_groups()
        self._counted = len(self._tokens)

    def _new_in_groups(self) -> int:
        """What is new, by a counter that takes no single messages: the whole at first, then the groups that grew."""
        new = dict.fromkeys(map(self._group_at, range(self._counted, len(self._tokens))))
        if not self._counted and all(group.is_whole for group in new):
            return self.meter.count(list(self._messages))
        before = [position for group in new for position in group.positions if position < self._counted]
        known = sum(self._tokens[position] for position in before if self._tokens[position] != _UNMEASURED)
        # What was only counted with the whole is estimated, since without its new messages the group was not whole.
        unknown = [self._messages[position] for position in before if self._tokens[position] == _UNMEASURED]
        known += sum(self.meter.message_tokens(unknown, valid=False))
        return sum(map(self._measure, new)) - known

    def _group_at(self, position: int) -> MessageGroup:
        """The group that holds a message now; one that was taken over leads to the one that took it."""
        group = (self._groups or [])[position]
        while not group.messages and group.replacement is not None:
            group = group.replacement
        return group

    def _measure(self, group: MessageGroup) -> int:
        """Measure a group of the conversation."""
        counts = self.meter.message_tokens(group.messages, valid=group.is_whole)
        for position, count in zip(group.positions, counts, strict=True):
            self._tokens[position] = count
        return sum(counts)

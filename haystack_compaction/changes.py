"""
What became of a conversation since it was given, and the way back: all of it, or only what the newest stage did.

Groups, ledger and tally move together here, so that they cannot come apart. While a stage is open, each change is noted
with what it takes to undo it, which costs no more than the change did.
"""

from typing import NamedTuple

from haystack.dataclasses import ChatMessage

from haystack_compaction.grouping import Grouping
from haystack_compaction.groups import MessageGroup
from haystack_compaction.ledger import Ledger
from haystack_compaction.tally import Tally


class _Exclusion(NamedTuple):
    group: MessageGroup


class _Replacement(NamedTuple):
    oldest: MessageGroup
    new: MessageGroup
    tokens: list[int]


class _Rewriting(NamedTuple):
    group: MessageGroup
    position: int
    message: ChatMessage
    tokens: int


#: How many groups at the beginning each strategy has done with, by the strategy's identity.
Settled = dict[int, tuple[object, int]]

_Change = _Exclusion | _Replacement | _Rewriting


class _Stage(NamedTuple):
    """Where a stage began. From the very beginning, where it is the first, there is nothing to note for it."""

    is_first: bool
    change_count: int
    reshaped: bool
    settled: Settled


class Changes:
    """
    The conversation place by place as it is now.
    """

    def __init__(self, given: list[ChatMessage], grouping: Grouping, ledger: Ledger, tally: Tally) -> None:
        """
        Begin with nothing changed.

        :param given: The conversation as it was given. The list is shared: whoever adds to it calls `grow`.
        :param grouping: Its groups.
        :param ledger: What they cost.
        :param tally: How many there are.
        """
        self._given = given
        self._grouping = grouping
        self._ledger = ledger
        self._tally = tally
        self._current: list[ChatMessage | None] | None = None  # made with the first change
        self._noted: list[_Change] = []
        self._stages: list[_Stage] = []
        self._notes = False  # whether each change is noted
        #: Whether a group went, so that places are free.
        self.reshaped = False

    @property
    def begun(self) -> bool:
        """
        Whether anything was changed, even if it was taken back since.
        """
        return self._current is not None

    @property
    def staged(self) -> bool:
        """
        Whether a stage is open.
        """
        return bool(self._stages)

    @property
    def current(self) -> list[ChatMessage | None]:
        """
        What stands at each place; None where nothing does.
        """
        if self._current is None:
            self._current = list(self._given)
        return self._current

    def messages(self) -> list[ChatMessage]:
        """
        Return what is left.

        :returns: A new list.
        """
        if not self.reshaped:
            return list(self._given if self._current is None else self._current)  # type: ignore[arg-type]
        return [message for message in self.current if message is not None]

    def places(self) -> dict[int, int]:
        """
        Return where each message that is left stands, by its identity.
        """
        return {id(message): place for place, message in enumerate(self._current or self._given) if message is not None}

    def grow(self, messages: list[ChatMessage], groups: list[MessageGroup], start: int) -> None:
        """
        Add messages that were given late.

        :param messages: The messages.
        :param groups: The group of each. Where one went already, its message goes the same way.
        :param start: The place of the first.
        """
        if self._current is None:
            return
        self._current.extend(messages)
        for position, group in enumerate(groups, start):
            if group.is_excluded:
                self._ledger.remove_late(group, position)
                self._tally.messages_gone += 1
                self._current[position] = None

    # Forwards

    def exclude(self, group: MessageGroup, reason: str) -> None:
        """
        Take a group out that is in.

        :param group: The group.
        :param reason: Why, in a few words.
        """
        group.excluded_tokens = 0
        self._ledger.remove(group)
        self._tally.leave(group)
        current = self.current
        for position in group.positions:
            current[position] = None
        group.is_excluded, group.exclude_reason = True, reason
        self.reshaped = True
        if self._notes:
            self._noted.append(_Exclusion(group))

    def put_in_place(self, oldest: MessageGroup, new: MessageGroup) -> None:
        """
        Put a new group in the place of one that went.

        :param oldest: The group that went.
        :param new: The group that stands there now.
        :raises CounterError: If the counter fails, before anything is changed.
        """
        before = self._ledger.insert(new)
        current = self.current
        for position, message in zip(new.positions, new.messages, strict=True):
            current[position] = message
        self._tally.join(new)
        oldest.replacement = new
        if self._notes:
            self._noted.append(_Replacement(oldest, new, before))

    def rewrite(self, group: MessageGroup, position: int, message: ChatMessage, tokens: int) -> None:
        """
        Put a shorter form of a message in its place.

        :param group: Its group.
        :param position: Where it stands.
        :param message: The shorter form.
        :param tokens: What that costs.
        """
        place = group.positions.index(position)
        before = group.messages[place]
        tokens_before = self._ledger.rewrite(position, tokens)
        self._tally.rewrite(before, message)
        self.current[position] = message
        group.messages[place] = message
        if self._notes:
            self._noted.append(_Rewriting(group, position, before, tokens_before))

    # Backwards

    def begin_stage(self, settled: Settled) -> None:
        """
        Note from now on what it takes to come back to here.

        :param settled: What strategies have done with by now.
        """
        first = self._current is None
        self._stages.append(_Stage(first, len(self._noted), self.reshaped, dict(settled)))
        self._notes = not first

    def end_stage(self) -> None:
        """
        Let what was changed belong to the stage around this one, if there is one.
        """
        self._stages.pop()
        self._notes = bool(self._stages) and not self._stages[-1].is_first
        if not self._notes:
            self._noted = []

    def take_back(self) -> Settled:
        """
        Undo what the newest stage did, or all where no stage is open. Nothing is measured for it.

        :returns: What strategies had done with by then.
        """
        if not self._stages:
            self._forget()
            return {}
        stage = self._stages[-1]
        if stage.is_first:
            self._forget()
            return dict(stage.settled)
        while len(self._noted) > stage.change_count:
            self._undo(self._noted.pop())
        self.reshaped = stage.reshaped
        return dict(stage.settled)

    def settle(self) -> None:
        """
        Take the conversation as it is now for the one that was given. Only where every place is still held.
        """
        for position in self._ledger.commit():
            self._given[position] = self.current[position] or self._given[position]
        self._current = None
        self._tally.grow()

    def _forget(self) -> None:
        for group in self._grouping.groups:
            group.replacement = None
            group.is_excluded, group.exclude_reason = False, None
            group.messages = [self._given[position] for position in group.positions]
        self._ledger.reset()
        self._tally.reset()
        self._current, self.reshaped = None, False

    def _undo(self, change: _Change) -> None:
        if isinstance(change, _Rewriting):
            self._ledger.rewrite(change.position, change.tokens)
            place = change.group.positions.index(change.position)
            self._tally.rewrite(change.group.messages[place], change.message)
            change.group.messages[place] = self.current[change.position] = change.message
        elif isinstance(change, _Replacement):
            self._tally.leave(change.new)
            self._ledger.take_out(change.new, change.tokens)
            for position in change.new.positions:
                self.current[position] = None
            change.oldest.replacement = None
        else:
            group = change.group
            self._ledger.give_back(group)
            self._tally.join(group)
            for position, message in zip(group.positions, group.messages, strict=True):
                self.current[position] = message
            group.is_excluded, group.exclude_reason = False, None

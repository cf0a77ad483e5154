"""
How many groups, messages, turns and bytes a conversation still has, kept up as groups go.
"""

from collections.abc import Callable, Iterable

from haystack.dataclasses import ChatMessage

from haystack_compaction.groups import MessageGroup, MessageGroupKind, byte_size


class Tally:
    """
    The counts that are cheap to keep up but cost a pass to begin with; each is begun when it is first asked for.
    """

    def __init__(self, included_groups: Callable[[], Iterable[MessageGroup]], given: list[ChatMessage]) -> None:
        """
        Begin with nothing gone.

        :param included_groups: Returns the groups that are in.
        :param given: The conversation as it was given. The list is shared: whoever adds to it calls `grow`.
        """
        self._included_groups = included_groups
        self._given = given
        self.groups_gone = 0
        self.messages_gone = 0
        self._turns: dict[int, int] | None = None
        self._tool_groups: int | None = None
        self._bytes: list[int] | None = None  # as given, and now

    def grow(self) -> None:
        """
        Begin anew, because messages were added.
        """
        self._turns = self._tool_groups = self._bytes = None

    def reset(self) -> None:
        """
        Begin anew with nothing gone.
        """
        self.groups_gone = self.messages_gone = 0
        self.grow()

    def leave(self, group: MessageGroup) -> None:
        """
        Count a group out.

        :param group: The group, which is still in.
        """
        self._move(group, -1)

    def join(self, group: MessageGroup) -> None:
        """
        Count a group in that stands in the place of others.

        :param group: The group.
        """
        self._move(group, 1)

    def rewrite(self, before: ChatMessage, after: ChatMessage) -> None:
        """
        Count a message that took another form.

        :param before: The form that it had.
        :param after: The form that it has.
        """
        if self._bytes is not None:
            self._bytes[1] += byte_size(after) - byte_size(before)

    def turns(self) -> int:
        """
        Return how many turns still have a group in. What compaction wrote, and instructions, make no turn.
        """
        return len(self._groups_in_turn())

    def tool_groups(self) -> int:
        """
        Return how many groups with tool calls are still in; a result without its call is none.
        """
        if self._tool_groups is None:
            self._tool_groups = sum(map(_has_calls, self._included_groups()))
        return self._tool_groups

    def byte_sums(self) -> list[int]:
        """
        Return the size of all texts in bytes of UTF-8, as they were given and as they are.
        """
        if self._bytes is None:
            now = sum(group.byte_count for group in self._included_groups())
            self._bytes = [sum(map(byte_size, self._given)), now]
        return self._bytes

    def _move(self, group: MessageGroup, by: int) -> None:
        # Begun before the group moves, or it would be counted twice.
        turns = self._groups_in_turn()
        self.groups_gone -= by
        self.messages_gone -= by * len(group.messages)
        if self._tool_groups is not None:
            self._tool_groups += by * _has_calls(group)
        if self._bytes is not None:
            self._bytes[1] += by * group.byte_count
        turn = _turn_of(group)
        if turn is not None:
            turns[turn] = turns.get(turn, 0) + by
            if not turns[turn]:
                del turns[turn]

    def _groups_in_turn(self) -> dict[int, int]:
        if self._turns is None:
            self._turns = {}
            for turn in map(_turn_of, self._included_groups()):
                if turn is not None:
                    self._turns[turn] = self._turns.get(turn, 0) + 1
        return self._turns


def _has_calls(group: MessageGroup) -> bool:
    return group.kind is MessageGroupKind.TOOL_CALL and not group.is_orphan


def _turn_of(group: MessageGroup) -> int | None:
    """The turn that a group keeps in the conversation."""
    return None if group.kind is MessageGroupKind.SUMMARY else group.turn_index

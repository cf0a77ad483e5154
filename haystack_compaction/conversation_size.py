"""
How much a conversation holds, as it was given and as it is now: all that a trigger can ask for.
"""

from haystack.dataclasses import ChatMessage

from haystack_compaction.grouping import Grouping
from haystack_compaction.ledger import Ledger
from haystack_compaction.tally import Tally


class ConversationSize:
    """
    The sizes of a conversation. All `included_*` are O(1) to read and to keep up when a group goes.
    """

    #: What the messages cost.
    ledger: Ledger

    _originals: list[ChatMessage]
    _grouping: Grouping
    _tally: Tally

    @property
    def total_group_count(self) -> int:
        """
        How many groups were given.
        """
        return len(self._grouping.groups)

    @property
    def total_message_count(self) -> int:
        """
        How many messages were given.
        """
        return len(self._originals)

    @property
    def total_turn_count(self) -> int:
        """
        How many turns were given; turn 0 counts if anything but instructions stands before the first user message.
        """
        return self._grouping.turn + self._grouping.has_turn_zero

    @property
    def total_token_count(self) -> int:
        """
        What the conversation cost as it was given, in tokens of the counter.
        """
        return self.ledger.total

    @property
    def total_byte_count(self) -> int:
        """
        The size of all texts as they were given, in bytes of UTF-8.
        """
        return self._tally.byte_sums()[0]

    @property
    def included_group_count(self) -> int:
        """
        How many groups are still in.
        """
        return len(self._grouping.groups) - self._tally.groups_gone

    @property
    def included_message_count(self) -> int:
        """
        How many messages are still in.
        """
        return len(self._originals) - self._tally.messages_gone

    @property
    def included_turn_count(self) -> int:
        """
        How many turns still have a group in. What compaction wrote, and instructions, make no turn.
        """
        return self._tally.turns()

    @property
    def included_tool_call_group_count(self) -> int:
        """
        How many groups with tool calls are still in; a result without its call is none.
        """
        return self._tally.tool_groups()

    @property
    def included_token_count(self) -> int:
        """
        What the conversation costs as it is now, in tokens of the counter.
        """
        return self.ledger.included

    @property
    def included_byte_count(self) -> int:
        """
        The size of all texts as they are now, in bytes of UTF-8.
        """
        return self._tally.byte_sums()[1]

"""
Sorting messages into groups, one after the other, in one pass.

Calls and results are paired by occurrence: a result answers the nearest earlier message with that id still unanswered.
So neither ids that repeat nor results that stand apart from their call merge or break a group.
"""

from collections.abc import Sequence

from haystack.dataclasses import ChatMessage, ChatRole, ReasoningContent, TextContent, ToolCall, ToolCallResult

from haystack_compaction.content import content_parts
from haystack_compaction.groups import GroupOwner, MessageGroup, MessageGroupKind
from haystack_compaction.marks import is_note

_USER, _SYSTEM, _TOOL = ChatRole.USER, ChatRole.SYSTEM, ChatRole.TOOL


class Grouping:
    """
    The groups of a conversation so far, and what is needed to sort the next message.
    """

    def __init__(self, owner: GroupOwner) -> None:
        """
        Start with an empty conversation.

        :param owner: The index that the groups belong to.
        """
        self.groups: list[MessageGroup] = []
        #: The group of the newest assistant message.
        self.newest_step: MessageGroup | None = None
        #: Where that message stands.
        self.newest_reply_position: int | None = None
        #: The latest user message, with the user messages directly before it.
        self.task_groups: list[MessageGroup] = []
        #: The newest user message that compaction wrote, and how many there are.
        self.last_user_note: MessageGroup | None = None
        self.user_note_count = 0
        self.turn = 0
        self.has_turn_zero = False
        #: Whether a result came late, for a group further up than the newest.
        self.reached_back = False
        self._owner = owner
        self._after_user = False
        # The groups whose calls wait for a result, one entry a call, the nearest last.
        self._waiting: dict[str | None, list[MessageGroup]] = {}
        # Messages of nothing but reasoning, directly before the next message: it decides where they belong.
        self._loose_reasoning: list[MessageGroup] = []

    def add(self, message: ChatMessage, position: int) -> MessageGroup:
        """
        Sort the next message.

        :param message: The message.
        :param position: Its place in the conversation.
        :returns: The group that it is in now.
        """
        role = message.role
        if role is _TOOL:
            group = self._add_results(message, position)
        elif role is _USER and not is_note(message):
            return self._add_user(message, position)
        elif role is _USER or role is _SYSTEM:
            group = self._add_system_or_note(message, position)
        else:
            return self._add_reply(message, position)
        self._after_user = False
        self._loose_reasoning = []
        return group

    def _new(self, kind: MessageGroupKind, message: ChatMessage, position: int) -> MessageGroup:
        """Open a group with its first message."""
        is_system = kind is MessageGroupKind.SYSTEM
        group = MessageGroup(self._owner, kind, None if is_system else self.turn)
        group.messages.append(message)
        group.positions.append(position)
        self.groups.append(group)
        if self.turn == 0 and not is_system and kind is not MessageGroupKind.SUMMARY:
            self.has_turn_zero = True
        return group

    def _add_system_or_note(self, message: ChatMessage, position: int) -> MessageGroup:
        if message.role is _SYSTEM and not is_note(message):
            return self._new(MessageGroupKind.SYSTEM, message, position)
        group = self._new(MessageGroupKind.SUMMARY, message, position)
        if message.role is _USER:
            self.last_user_note = group
            self.user_note_count += 1
        return group

    def _add_user(self, message: ChatMessage, position: int) -> MessageGroup:
        self.turn += 1
        group = self._new(MessageGroupKind.USER, message, position)
        if self._after_user:
            self.task_groups.append(group)
        else:
            self.task_groups = [group]
        self._after_user = True
        self._loose_reasoning = []
        return group

    def _add_reply(self, message: ChatMessage, position: int) -> MessageGroup:
        """Sort a message of the model: with calls, with text, or with nothing but reasoning."""
        parts = content_parts(message)
        self.newest_reply_position = position
        calls = [part for part in parts if isinstance(part, ToolCall)]
        self._after_user = False
        if not calls:
            if is_note(message):
                self._loose_reasoning = []
                return self._new(MessageGroupKind.SUMMARY, message, position)
            group = self._new(MessageGroupKind.ASSISTANT_TEXT, message, position)
            reasons_only = any(isinstance(part, ReasoningContent) for part in parts) and not any(
                isinstance(part, TextContent) and part.text for part in parts
            )
            self._loose_reasoning = [*self._loose_reasoning, group] if reasons_only else []
        else:
            loose = self._take_loose_reasoning() if self._loose_reasoning else ()
            self._loose_reasoning = []
            group = self._new(MessageGroupKind.TOOL_CALL, message, position)
            _absorb(group, loose)
            group.unanswered = len(calls)
            for call in calls:
                self._waiting.setdefault(call.id, []).append(group)
        self.newest_step = group
        return group

    def _add_results(self, message: ChatMessage, position: int) -> MessageGroup:
        """Give a message with results to the group of the calls that it answers."""
        group: MessageGroup | None = None
        for part in content_parts(message):
            if not isinstance(part, ToolCallResult):
                continue
            call_id = part.origin.id
            waiting = self._waiting.get(call_id)
            if waiting is None:
                continue
            answered = waiting.pop()
            if not waiting:
                del self._waiting[call_id]
            answered.unanswered -= 1
            answered.answered += 1
            group = answered if group is None or group is answered else self._merge(group, answered)
        if group is None:
            group = self._new(MessageGroupKind.TOOL_CALL, message, position)
            group.is_orphan = True
            return group
        loose = self._take_loose_reasoning() if self._loose_reasoning and not group.is_excluded else ()
        if loose:
            _absorb(group, loose)
            self.newest_step = group
        group.messages.append(message)
        group.positions.append(position)
        if group is not self.groups[-1]:
            self.reached_back = True
        return group

    def _take_loose_reasoning(self) -> list[MessageGroup]:
        """Take back the groups of nothing but reasoning that stand at the end, unless one of them went already."""
        loose = self._loose_reasoning
        if not loose or any(group.is_excluded for group in loose):
            return []
        del self.groups[-len(loose) :]
        return loose

    def _merge(self, one: MessageGroup, other: MessageGroup) -> MessageGroup:
        """Make one group of two, because a single message answers calls of both."""
        older, newer = (one, other) if one.positions[0] < other.positions[0] else (other, one)
        self.groups.remove(newer)
        _absorb(older, [newer])
        older.unanswered += newer.unanswered
        older.answered += newer.answered
        for waiting in self._waiting.values():
            waiting[:] = [older if group is newer else group for group in waiting]
        if self.newest_step is newer:
            self.newest_step = older
        return older


def _absorb(group: MessageGroup, others: Sequence[MessageGroup]) -> None:
    """Take over the messages of other groups, in the order of the conversation."""
    if not others:
        return
    pairs = [*zip(group.positions, group.messages, strict=True)]
    for other in others:
        pairs.extend(zip(other.positions, other.messages, strict=True))
        other.positions, other.messages, other.replacement = [], [], group
    pairs.sort(key=lambda pair: pair[0])
    group.positions = [position for position, _ in pairs]
    group.messages = [message for _, message in pairs]

"""
A group: messages that are kept or removed together, the unit of every strategy.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from haystack.dataclasses import ChatMessage, ToolCall, ToolCallResult

from haystack_compaction.content import content_parts
from haystack_compaction.render import measured_text


class MessageGroupKind(str, Enum):  # noqa: UP042 - as Haystack's own enums, whose str() is the member's name
    """
    What a group of messages is.
    """

    #: Instructions, which no strategy removes by default.
    SYSTEM = "system"

    #: One message of the user.
    USER = "user"

    #: One message of the model that calls no tool.
    ASSISTANT_TEXT = "assistant_text"

    #: A message of the model with its calls, all their results, and the reasoning directly before or between.
    TOOL_CALL = "tool_call"

    #: What compaction wrote in the place of other messages.
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Exchange:
    """
    One tool call and the result that answers it.

    :param call: The call, or None for a result that answers no call.
    :param result: The result, or None for a call that has no result.
    :param position: Where the result's message stands in the conversation; None without a result.
    """

    call: ToolCall | None
    result: ToolCallResult | None
    position: int | None


class GroupOwner(Protocol):
    """
    What a group asks the index that it belongs to.
    """

    @property
    def newest_step(self) -> "MessageGroup | None":
        """
        The group of the newest assistant message.
        """
        ...

    def tokens_at(self, position: int) -> int:
        """
        Return what the message at a place costs.
        """
        ...

    def tokens_of(self, group: "MessageGroup") -> int:
        """
        Return what a group costs, or did when it went.
        """
        ...


class MessageGroup:
    """
    Messages that are kept or removed together. Groups are made by a `MessageIndex` and only changed through it.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import MessageGroupKind, MessageIndex

    group = MessageIndex([ChatMessage.from_user("Hello")]).groups[0]
    assert group.kind is MessageGroupKind.USER and group.turn_index == 1
    ```
    """

    __slots__ = (
        "answered",
        "exclude_reason",
        "excluded_tokens",
        "is_excluded",
        "is_orphan",
        "kind",
        "messages",
        "owner",
        "positions",
        "replacement",
        "turn_index",
        "unanswered",
    )

    def __init__(self, owner: GroupOwner, kind: MessageGroupKind, turn_index: int | None) -> None:
        """
        Make an empty group.

        :param owner: The index that measures it.
        :param kind: What the group is.
        :param turn_index: The turn it belongs to: 0 before the first user message, None for instructions.
        """
        self.owner = owner
        self.kind = kind
        self.turn_index = turn_index
        #: The messages as they are now, oldest first.
        self.messages: list[ChatMessage] = []
        #: Where each of them stands in the conversation.
        self.positions: list[int] = []
        self.is_excluded = False
        #: Why the group went, in a few words; None while it is included.
        self.exclude_reason: str | None = None
        #: What the group cost when it went.
        self.excluded_tokens = 0
        #: Whether this is a result without any call, which no provider accepts.
        self.is_orphan = False
        #: How many calls have a result.
        self.answered = 0
        #: How many calls have no result yet.
        self.unanswered = 0
        #: The group that stands in the place of this one, if any.
        self.replacement: MessageGroup | None = None

    @property
    def message_count(self) -> int:
        """
        How many messages the group has.
        """
        return len(self.messages)

    @property
    def byte_count(self) -> int:
        """
        The size of the text of all messages, in bytes of UTF-8.
        """
        return sum(byte_size(message) for message in self.messages)

    @property
    def token_count(self) -> int:
        """
        What the group costs by the index's counter, measured when first asked for.
        """
        return self.owner.tokens_of(self)

    @property
    def is_pending(self) -> bool:
        """
        Whether a call of the newest reply still waits for its result.
        """
        return self.unanswered > 0 and self.owner.newest_step is self

    @property
    def is_dead(self) -> bool:
        """
        Whether a call has no result and will get none, because the conversation went on.
        """
        return self.unanswered > 0 and self.owner.newest_step is not self

    @property
    def is_whole(self) -> bool:
        """
        Whether every call has its result and every result its call, so that the group could be sent by itself.
        """
        return self.unanswered == 0 and not self.is_orphan

    def exchanges(self) -> list[Exchange]:
        """
        Return the calls and results of the group, paired.

        :returns: One entry a call, in order, then one for each result that answers no call.
        """
        exchanges = self._in_order()
        return self._paired() if exchanges is None else exchanges

    def _in_order(self) -> list[Exchange] | None:
        """The exchanges where the calls are answered one after the other, as nearly all are; None elsewhere."""
        calls = [part for part in content_parts(self.messages[0]) if isinstance(part, ToolCall)]
        # Without any call it may be a result that has none.
        if not calls or len(self.messages) != len(calls) + 1:
            return None
        exchanges = []
        for call, message, position in zip(calls, self.messages[1:], self.positions[1:], strict=True):
            parts = content_parts(message)
            result = parts[0] if len(parts) == 1 else None
            if not isinstance(result, ToolCallResult) or result.origin.id != call.id:
                return None
            exchanges.append(Exchange(call, result, position))
        return exchanges

    def _paired(self) -> list[Exchange]:
        """The exchanges wherever calls and results stand."""
        open_calls: dict[str | None, list[int]] = {}
        exchanges: list[Exchange] = []
        unpaired: list[Exchange] = []
        for position, message in zip(self.positions, self.messages, strict=True):
            for part in content_parts(message):
                if isinstance(part, ToolCall):
                    open_calls.setdefault(part.id, []).append(len(exchanges))
                    exchanges.append(Exchange(part, None, None))
                elif isinstance(part, ToolCallResult):
                    waiting = open_calls.get(part.origin.id)
                    if waiting:
                        number = waiting.pop(0)
                        exchanges[number] = Exchange(exchanges[number].call, part, position)
                    else:
                        unpaired.append(Exchange(None, part, position))
        return exchanges + unpaired

    def __repr__(self) -> str:
        state = f", excluded: {self.exclude_reason}" if self.is_excluded else ""
        return f"<MessageGroup {self.kind.value} at {self.positions}{state}>"


def byte_size(message: ChatMessage) -> int:
    """
    Return the size of a message's text in bytes of UTF-8.

    :param message: The message to measure.
    :returns: Bytes; half of a surrogate pair counts as the three bytes that it would take.
    """
    return len(measured_text(message).encode("utf-8", "surrogatepass"))

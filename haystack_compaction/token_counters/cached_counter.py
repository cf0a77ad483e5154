"""
A counter that remembers: each message is counted once in its life.
"""

from collections.abc import Sequence
from threading import Lock, RLock
from typing import Any, Generic, TypeVar
from weakref import ref

from haystack.core.serialization import component_to_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.token_counters import TokenCounter
from haystack.tools import ToolsType, flatten_tools_or_toolsets

from haystack_compaction.arguments import check_messages, check_method
from haystack_compaction.lifecycle import HandsOnLifecycle
from haystack_compaction.serialization import settings_from_dict

_K = TypeVar("_K", int, tuple[int, ...])

# Schemas are few and live long; this many sets of tools are remembered, the oldest going first.
_MAX_TOOLSETS = 32

# A counter that is not additive is asked for lists, and an Agent's list is a longer one at each step. So many places in
# lists are remembered, the oldest list going first: all groups of a long conversation, or its last few whole lists.
_MAX_LISTED = 8192


class CachedTokenCounter(HandsOnLifecycle):
    """
    Counts each message once in its life, by identity, and keeps none alive.

    An Agent keeps its message objects from step to step and run to run, so a long conversation costs a count of what is
    new. A pipeline copies messages between components; there nothing is found again. A message that is changed in place
    is not noticed: messages are meant to be replaced.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import CachedTokenCounter, EstimatedTokenCounter

    counter = CachedTokenCounter(EstimatedTokenCounter())
    messages = [ChatMessage.from_user("How are you?")]
    assert counter.count(messages) == counter.count(messages)
    ```
    """

    def __init__(self, token_counter: TokenCounter) -> None:
        """
        Initialize the counter.

        :param token_counter: The counter to ask. One that takes single messages exactly (`additive = True`, as ours) is
            asked for each message once; any other for each list once, such as a group or a conversation.
        :raises TypeError: If `token_counter` has no `count` method.
        """
        check_method("token_counter", token_counter, "count", example="EstimatedTokenCounter()")
        self.token_counter = token_counter
        #: Single messages may be given and the sums are exact, if that is so of the counter that is asked.
        self.additive: bool = getattr(token_counter, "additive", False) is True
        self._by_message: _Memory[int] = _Memory()
        self._by_list: _Memory[tuple[int, ...]] = _Memory()
        self._by_tools: dict[tuple[int, ...], tuple[list[Any], int]] = {}
        self._tools_lock = Lock()

    def count(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> int:
        """
        Count what messages cost, asking only for what was not counted before.

        :param messages: The messages to measure.
        :param tools: Tools whose schemas are sent along and so cost tokens too.
        :returns: Tokens of the counter that is asked.
        :raises TypeError: If `messages` is no list of messages.
        """
        try:
            if not self.additive:
                return self._count_list(messages, tools)
            total = sum(map(self._count_message, messages))
        except (AttributeError, TypeError):
            # Looked at only now, so that nothing is spent on what is right.
            check_messages("messages", messages)
            raise
        return total + self._count_tools(tools) if tools else total

    def count_each(self, messages: Sequence[ChatMessage]) -> list[int]:
        """
        Count each of many single messages. Only where the counter that is asked is additive.

        :param messages: The messages to measure.
        :returns: Tokens of the counter that is asked, one number a message.
        """
        counts = self._by_message.get_each(messages)
        for place, known in enumerate(counts):
            if known < 0:
                counts[place] = self._count_message(messages[place])
        return counts

    def _count_message(self, message: ChatMessage) -> int:
        known = self._by_message.get(id(message), (message,))
        if known is not None:
            return known
        tokens = self.token_counter.count([message])
        self._by_message.put(id(message), (message,), tokens)
        return tokens

    def _count_list(self, messages: list[ChatMessage], tools: ToolsType | None) -> int:
        if not messages:
            check_messages("messages", messages)
            return self._count_tools(tools) if tools else self.token_counter.count(messages)
        if tools:
            return self.token_counter.count(messages, tools)
        key = tuple(map(id, messages))
        known = self._by_list.get(key, messages)
        if known is not None:
            return known
        tokens = self.token_counter.count(messages)
        self._by_list.put(key, messages, tokens)
        return tokens

    def _count_tools(self, tools: ToolsType) -> int:
        flat = flatten_tools_or_toolsets(tools)
        key = tuple(map(id, flat))
        known = self._by_tools.get(key)
        if known is None:
            # The tools are held, so that no other takes the identity of one of them.
            known = (list(flat), self.token_counter.count([], list(flat)))
            with self._tools_lock:
                self._by_tools[key] = known
                while len(self._by_tools) > _MAX_TOOLSETS:
                    del self._by_tools[next(iter(self._by_tools))]
        return known[1]

    def lifecycle_parts(self) -> list[Any]:
        """
        Return what is warmed up and closed with the counter.
        """
        return [self.token_counter]

    def to_dict(self) -> dict[str, Any]:
        """
        Serialise the counter with the one that is asked.

        :returns: A dictionary in Haystack's form.
        """
        return default_to_dict(self, token_counter=component_to_dict(self.token_counter, "token_counter"))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CachedTokenCounter":
        """
        Build a counter from its serialised form.

        :param data: What `to_dict` returned.
        :returns: An equal counter, which remembers nothing yet.
        """
        return settings_from_dict(cls, data)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy remembers nothing: what is remembered hangs on the identity of messages, and a lock cannot be copied.
        return type(self), (self.token_counter,)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(self.token_counter == other.token_counter)

    def __hash__(self) -> int:
        return hash((type(self), type(self.token_counter)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.token_counter!r})"


class _Entry(ref[ChatMessage]):
    """A weak reference that knows what to forget when its message dies, and on the first of a list what it costs."""

    __slots__ = ("key", "rest", "tokens")

    key: Any
    tokens: int
    rest: "tuple[_Entry, ...]"


class _Memory(Generic[_K]):
    """Counts by the identity of messages. An entry dies with any of its messages, and holds none of them alive."""

    def __init__(self) -> None:
        self._entries: dict[_K, _Entry] = {}
        self._listed = 0
        # Messages may die in any thread, also while an entry is made, so the lock must be one that may be taken twice.
        self._lock = RLock()
        # One bound method for all entries; each would have its own otherwise.
        self._on_death = self._forget

    def get(self, key: _K, messages: Sequence[ChatMessage]) -> int | None:
        """The count under a key, if it still belongs to these messages and not to others that took their identity."""
        entry = self._entries.get(key)
        if entry is None or entry() is not messages[0]:
            return None
        if entry.rest and any(other() is not message for other, message in zip(entry.rest, messages[1:], strict=True)):
            return None
        return entry.tokens

    def get_each(self: "_Memory[int]", messages: Sequence[ChatMessage]) -> list[int]:
        """The count of each message by itself, -1 where it is not known. This is the whole of a warm count."""
        entries, counts = self._entries, []
        for message in messages:
            entry = entries.get(id(message))
            counts.append(entry.tokens if entry is not None and entry() is message else -1)
        return counts

    def put(self, key: _K, messages: Sequence[ChatMessage], tokens: int) -> None:
        """Remember a count for as long as all of the messages live, or until newer lists need the room."""
        entry = self._entry(messages[0], key, tokens)
        entry.rest = tuple([self._entry(message, key, 0) for message in messages[1:]]) if len(messages) > 1 else ()
        with self._lock:
            self._drop(key)
            self._entries[key] = entry
            self._listed += len(entry.rest)
            while self._listed > max(_MAX_LISTED, len(entry.rest)):
                self._drop(next(iter(self._entries)))

    def _entry(self, message: ChatMessage, key: _K, tokens: int) -> "_Entry":
        entry = _Entry(message, self._on_death)
        entry.key, entry.tokens, entry.rest = key, tokens, ()
        return entry

    def _forget(self, dead: ref[ChatMessage]) -> None:
        if isinstance(dead, _Entry):
            with self._lock:
                entry = self._entries.get(dead.key)
                # Another entry may have taken the key in the meantime.
                if entry is dead or (entry is not None and dead in entry.rest):
                    self._drop(dead.key)

    def _drop(self, key: _K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._listed -= len(entry.rest)

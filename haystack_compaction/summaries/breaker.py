"""
The memory of a model's failures, so that one that is down is not asked again and again.

Per conversation: under our hook it goes with the run, elsewhere by the identity of the conversation's first messages,
because nothing else stays the same from pass to pass. It holds neither messages nor models alive.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, NamedTuple
from weakref import ref

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.groups import MessageGroupKind

#: After so many failed attempts in a row the model is not asked any more.
MAX_FAILED_ATTEMPTS: Final = 3

# How much the conversation has to grow by until it is asked again, and how much it has to take in where something
# else keeps it short meanwhile.
_GROWTH: Final = 1.25
_INTAKE: Final = 2

# How many conversations are remembered, and how many parts of one for which there is no shorter summary.
_MAX_REMEMBERED: Final = 1024
_MAX_HOPELESS: Final = 8


@dataclass
class Failures:
    """
    What is remembered of one model in one conversation.

    :param in_a_row: How many attempts failed since one succeeded.
    :param size: The size of the conversation when the last of them failed.
    :param taken_in: What was added to the conversation since.
    :param left: Its size when it was seen last.
    :param hopeless: The parts for which there was no summary shorter than they are.
    """

    in_a_row: int = 0
    size: int = 0
    taken_in: int = 0
    left: int = 0
    hopeless: list[Any] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """
        Whether the model is not to be asked.
        """
        return self.in_a_row >= MAX_FAILED_ATTEMPTS

    def see(self, tokens: int) -> None:
        """
        Take note of the conversation's size. Once it has grown enough the model may be asked again.

        :param tokens: Its size now.
        """
        self.taken_in += max(tokens - self.left, 0)
        self.left = tokens
        if self.is_open and (tokens >= self.size * _GROWTH or self.taken_in >= self.size * _INTAKE):
            self.in_a_row = 0

    def leave(self, tokens: int) -> None:
        """
        Take note of the size that a pass left.

        :param tokens: The size.
        """
        self.left = tokens

    def fail(self, tokens: int) -> None:
        """
        Take note of a failed attempt.

        :param tokens: The size of the conversation.
        """
        self.in_a_row += 1
        self.size, self.left, self.taken_in = tokens, tokens, 0

    def succeed(self) -> None:
        """
        Take note of an attempt that succeeded.
        """
        self.in_a_row = 0

    def give_up(self, part: Any) -> None:
        """
        Remember that there is no shorter summary of a part.

        :param part: What tells the part apart from others.
        """
        self.hopeless = [*self.hopeless, part][-_MAX_HOPELESS:]


class _Known(NamedTuple):
    message: ref[ChatMessage]
    model: Any
    failures: Failures


class FailureMemory:
    """
    What is remembered of many conversations, by the identity of a few of their messages each.
    """

    def __init__(self) -> None:
        """
        Begin with nothing remembered.
        """
        self._known: OrderedDict[tuple[int, int], _Known] = OrderedDict()
        # Messages may die in any thread, also while something is remembered.
        self._lock = RLock()

    def recall(self, model: object, messages: Iterable[ChatMessage]) -> Failures:
        """
        Return what is remembered of a model in a conversation.

        :param model: The model.
        :param messages: A few messages that tell the conversation apart from others.
        :returns: What is remembered under any of them; nothing yet where it is a new one.
        """
        with self._lock:
            for message in messages:
                known = self._known.get((id(model), id(message)))
                if known is not None and known.message() is message and _is_same(known.model, model):
                    return known.failures
        return Failures()

    def keep(self, model: object, messages: Iterable[ChatMessage], failures: Failures) -> None:
        """
        Remember something of a model in a conversation.

        :param model: The model.
        :param messages: A few messages that tell the conversation apart from others.
        :param failures: What to remember.
        """
        with self._lock:
            for message in messages:
                key = id(model), id(message)
                self._known[key] = _Known(ref(message), _weakly(model), failures)
                self._known.move_to_end(key)
            while len(self._known) > _MAX_REMEMBERED:
                self._known.popitem(last=False)


_MEMORY: Final = FailureMemory()


def failures_in(index: MessageIndex, model: object) -> Failures:
    """
    Return what is remembered of a model in a conversation.

    :param index: The conversation.
    :param model: The model.
    """
    if index.memory is None:
        return _MEMORY.recall(model, _anchors(index))
    known = index.memory.get(id(model))
    return known[1] if known is not None and known[0] is model else Failures()


def remember(index: MessageIndex, model: object, failures: Failures) -> None:
    """
    Remember what became of asking a model.

    :param index: The conversation as a pass left it.
    :param model: The model.
    :param failures: What is remembered of it.
    """
    failures.leave(index.included_token_count)
    if index.memory is not None:
        index.memory[id(model)] = (model, failures)
    elif failures.in_a_row or failures.hopeless:
        _MEMORY.keep(model, _anchors(index), failures)


def _anchors(index: MessageIndex) -> list[ChatMessage]:
    """The first two messages that are no instructions, which conversations may share, and those of the task."""
    first: list[ChatMessage] = []
    for group in index.included_groups():
        if group.kind is not MessageGroupKind.SYSTEM:
            first.extend(group.messages[:1])
        if len(first) >= 2:
            break
    return [*first, *(message for group in index.task_groups for message in group.messages)]


def _weakly(model: object) -> Any:
    try:
        return ref(model)
    except TypeError:
        return model


def _is_same(kept: Any, model: object) -> bool:
    return (kept() if isinstance(kept, ref) else kept) is model

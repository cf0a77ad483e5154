"""
When to start, and when it is enough: small immutable predicates on the index of a conversation.

The same objects serve as triggers ("start?") and as targets ("far enough?"). They combine with `&`, `|` and `~`, and a
plain importable function `(MessageIndex) -> bool` may be used wherever one is taken.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from haystack_compaction.arguments import check_int, check_not_awaited
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.serialization import parameters_from_dict, settings_from_dict, settings_to_dict

Condition = Callable[[MessageIndex], bool]

_T = TypeVar("_T", bound="Trigger")


class Trigger(ABC):
    """
    A predicate on a conversation. Subclasses are frozen dataclasses, so equality and `repr` come by themselves.
    """

    #: Parameters that may be the importable name of a function in a saved pipeline.
    function_parameters: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __call__(self, index: MessageIndex) -> bool:
        """
        Return whether the condition holds.

        :param index: The conversation.
        """

    def __and__(self, other: Condition) -> "AllOf":
        return AllOf(*_operands(AllOf, self), *_operands(AllOf, other))

    def __rand__(self, other: Condition) -> "AllOf":
        return AllOf(*_operands(AllOf, other), *_operands(AllOf, self))

    def __or__(self, other: Condition) -> "AnyOf":
        return AnyOf(*_operands(AnyOf, self), *_operands(AnyOf, other))

    def __ror__(self, other: Condition) -> "AnyOf":
        return AnyOf(*_operands(AnyOf, other), *_operands(AnyOf, self))

    def __invert__(self) -> "Trigger":
        return Not(self)

    def to_dict(self) -> dict[str, Any]:
        """
        Serialise the trigger.

        :returns: A dictionary in Haystack's form.
        """
        return settings_to_dict(self, [field.name for field in fields(self)])  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls: type[_T], data: dict[str, Any]) -> _T:
        """
        Build a trigger from its serialised form.

        :param data: What `to_dict` returned.
        :returns: An equal trigger.
        """
        return settings_from_dict(cls, data, functions=cls.function_parameters)


@dataclass(frozen=True)
class Always(Trigger):
    """
    Holds for every conversation.

    ```python
    from haystack_compaction import Always, MessageIndex

    assert Always()(MessageIndex([]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Return True.

        :param index: The conversation.
        """
        return True


@dataclass(frozen=True)
class Never(Trigger):
    """
    Holds for no conversation.

    ```python
    from haystack_compaction import MessageIndex, Never

    assert not Never()(MessageIndex([]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Return False.

        :param index: The conversation.
        """
        return False


@dataclass(frozen=True)
class _Threshold(Trigger):
    """
    A comparison with a number.

    :param n: The number to compare with; the comparison is strict.
    :raises TypeError: If `n` is not an integer.
    :raises ValueError: If `n` is negative.
    """

    n: int

    def __post_init__(self) -> None:
        check_int("n", self.n, minimum=0, why="A conversation never holds fewer than none.")

    @abstractmethod
    def __call__(self, index: MessageIndex) -> bool:
        """
        Return whether the condition holds.

        :param index: The conversation.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n})"


@dataclass(frozen=True, repr=False)
class TokensExceed(_Threshold):
    """
    Holds while the conversation costs more than `n` of the model's tokens.

    The index's count is scaled: under `CompactionHook` by what the provider reported, so that a counter that is off by
    a factor does not shift the threshold.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import MessageIndex, TokensExceed

    assert TokensExceed(100)(MessageIndex([ChatMessage.from_user("word " * 200)]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Compare what is included with `n`.

        :param index: The conversation.
        """
        return index.included_token_count * index.scale > self.n


@dataclass(frozen=True, repr=False)
class TokensBelow(_Threshold):
    """
    Holds while the conversation costs fewer than `n` of the model's tokens, which makes a good target.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import MessageIndex, TokensBelow

    assert TokensBelow(100)(MessageIndex([ChatMessage.from_user("Hello")]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Compare what is included with `n`.

        :param index: The conversation.
        """
        return index.included_token_count * index.scale < self.n


@dataclass(frozen=True, repr=False)
class MessagesExceed(_Threshold):
    """
    Holds while more than `n` messages are included.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import MessageIndex, MessagesExceed

    assert MessagesExceed(1)(MessageIndex([ChatMessage.from_user("Hello"), ChatMessage.from_assistant("Hi")]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Compare what is included with `n`.

        :param index: The conversation.
        """
        return index.included_message_count > self.n


@dataclass(frozen=True, repr=False)
class TurnsExceed(_Threshold):
    """
    Holds while more than `n` turns are included.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import MessageIndex, TurnsExceed

    assert not TurnsExceed(1)(MessageIndex([ChatMessage.from_user("Hello"), ChatMessage.from_assistant("Hi")]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Compare what is included with `n`.

        :param index: The conversation.
        """
        return index.included_turn_count > self.n


@dataclass(frozen=True, repr=False)
class GroupsExceed(_Threshold):
    """
    Holds while more than `n` groups are included.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import GroupsExceed, MessageIndex

    assert GroupsExceed(1)(MessageIndex([ChatMessage.from_user("Hello"), ChatMessage.from_assistant("Hi")]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Compare what is included with `n`.

        :param index: The conversation.
        """
        return index.included_group_count > self.n


@dataclass(frozen=True)
class HasToolCalls(Trigger):
    """
    Holds while a group with tool calls is included.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import HasToolCalls, MessageIndex

    assert not HasToolCalls()(MessageIndex([ChatMessage.from_user("Hello")]))
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Look for tool calls in what is included.

        :param index: The conversation.
        """
        return index.included_tool_call_group_count > 0


@dataclass(frozen=True, init=False)
class _Combination(Trigger):
    """
    Several conditions taken together.

    :param triggers: The conditions, triggers or functions.
    """

    triggers: tuple[Condition, ...]

    def __init__(self, *triggers: Condition) -> None:
        if not triggers:
            raise ValueError(
                f"`triggers` must be at least one condition, got none. Write `{type(self).__name__}(a, b)`."
            )
        for trigger in triggers:
            check_condition("triggers", trigger)
        object.__setattr__(self, "triggers", triggers)

    @abstractmethod
    def __call__(self, index: MessageIndex) -> bool:
        """
        Return whether the condition holds.

        :param index: The conversation.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.triggers))})"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "_Combination":
        """
        Build the combination from its serialised form.

        :param data: What `to_dict` returned.
        :returns: An equal combination.
        """
        parameters = parameters_from_dict(cls.__name__, ("triggers",), data, functions=("triggers",))
        return cls(*parameters.get("triggers", ()))


@dataclass(frozen=True, init=False, repr=False)
class AllOf(_Combination):
    """
    Holds where every one of its conditions holds; written `a & b` as well.

    ```python
    from haystack_compaction import HasToolCalls, TokensExceed

    trigger = TokensExceed(8_000) & HasToolCalls()
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Ask each condition, until one does not hold.

        :param index: The conversation.
        """
        return all(trigger(index) for trigger in self.triggers)


@dataclass(frozen=True, init=False, repr=False)
class AnyOf(_Combination):
    """
    Holds where at least one of its conditions holds; written `a | b` as well.

    ```python
    from haystack_compaction import TokensExceed, TurnsExceed

    trigger = TokensExceed(8_000) | TurnsExceed(20)
    ```
    """

    def __call__(self, index: MessageIndex) -> bool:
        """
        Ask each condition, until one holds.

        :param index: The conversation.
        """
        return any(trigger(index) for trigger in self.triggers)


@dataclass(frozen=True)
class Not(Trigger):
    """
    Holds where its condition does not; written `~a` as well.

    ```python
    from haystack_compaction import HasToolCalls

    trigger = ~HasToolCalls()
    ```

    :param trigger: The condition to turn round.
    """

    trigger: Condition

    function_parameters: ClassVar[tuple[str, ...]] = ("trigger",)

    def __post_init__(self) -> None:
        check_condition("trigger", self.trigger)

    def __call__(self, index: MessageIndex) -> bool:
        """
        Ask the condition.

        :param index: The conversation.
        """
        return not self.trigger(index)

    def __invert__(self) -> Trigger:
        return self.trigger if isinstance(self.trigger, Trigger) else Not(self)

    def __repr__(self) -> str:
        return f"Not({self.trigger!r})"


def check_condition(name: str, value: Any) -> None:
    """
    Refuse anything but a trigger or a function of an index.

    :param name: The argument's name, as the caller wrote it.
    :param value: What was given.
    :raises TypeError: If `value` cannot be called, or is a class instead of an instance.
    """
    if isinstance(value, type):
        raise TypeError(f"`{name}` must be an instance, got the class {value.__name__}. Write `{value.__name__}(...)`.")
    check_not_awaited(name, value)
    if not callable(value):
        raise TypeError(
            f"`{name}` must be a trigger such as `TokensExceed(8000)` or a function of a `MessageIndex`, got {value!r}."
        )


def _operands(kind: type[_Combination], condition: Condition) -> tuple[Condition, ...]:
    """The conditions of a combination of the same kind, so that `a & b & c` is one combination of three."""
    return condition.triggers if type(condition) is kind else (condition,)

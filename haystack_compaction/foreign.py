"""
Somebody else's compactor, Haystack's own included, as one of ours.

It is given a list and returns one, so it is asked through a request, like a model. What it returns is checked as a
whole before it is taken.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from haystack.core.serialization import component_to_dict
from haystack.dataclasses import ChatMessage
from haystack.token_counters import TokenCounter

from haystack_compaction.arguments import check_messages, check_method
from haystack_compaction.compactor import Compactor, unchanged
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit
from haystack_compaction.errors import CompactorError
from haystack_compaction.groups import MessageGroup
from haystack_compaction.lifecycle import HandsOnLifecycle
from haystack_compaction.outcome import Outcome, Reason, Size
from haystack_compaction.steps import Call, Steps, ask
from haystack_compaction.validity import Allowance, broken_rule_of_list


class CompactorLike(Protocol):
    """
    What a compactor must offer to be usable here; Haystack's `Compactor` does.
    """

    def compact(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """
        Return a shorter conversation, or None to leave it as it is.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ForeignCompactor(HandsOnLifecycle, Compactor):
    """
    A compactor that knows nothing of groups and edits.

    :param compactor: The object to ask.
    :param held_to_contract: Whether what it returns is refused where instructions or the newest step are not as they
        were, as a composition of ours has to.
    """

    compactor: Any
    held_to_contract: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_method("compactor", self.compactor, "compact", example="ToolResultPruningCompactor()")

    @property
    def name(self) -> str:
        """
        The name of the class that is asked.
        """
        return type(self.compactor).__name__

    def lifecycle_parts(self) -> list[Any]:
        """
        Return what is warmed up and closed with it: the object that is asked.
        """
        return [self.compactor]

    def to_dict(self) -> dict[str, Any]:
        """
        Serialise the object that is asked, so that a saved pipeline names that one.

        :returns: A dictionary in Haystack's form.
        """
        return component_to_dict(self.compactor, "compactor")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash((type(self), type(self.compactor)))

    @property
    def _identity(self) -> tuple[Any, ...]:
        """What makes two of them the same; Haystack's own are compared by what they serialise to."""
        known = self.compactor
        if getattr(type(known), "__eq__", None) is object.__eq__ and hasattr(known, "to_dict"):
            known = self.to_dict()
        settings = (self.min_keep_groups, self.pin_first_user_message, self.pin_meta_keys, self.held_to_contract)
        return known, self.trigger, self.target, settings

    def goal(self, target_tokens: int | None) -> Any:
        """
        Return how far to go, which a foreign compactor must be told in tokens.

        :param target_tokens: The caller's budget.
        :returns: The goal.
        :raises ValueError: If there is no budget.
        """
        if target_tokens is None:
            raise ValueError(f"{self.name} needs `target_tokens`: it has no trigger or target of its own.")
        return super().goal(target_tokens)

    def _pass(self, index: MessageIndex, target_tokens: int | None) -> Steps[Outcome]:
        goal, before = self.goal(target_tokens), Size.of(index)
        if goal.met(index):
            return unchanged(index, self.name, Reason.FITS, target_tokens=target_tokens, before=before)
        counter = index.ledger.meter.token_counter
        arguments = {"messages": index.included_messages(), "target_tokens": target_tokens, "token_counter": counter}
        answer = yield from ask(Call(self.compactor.compact, _async_twin(self.compactor), arguments))
        if answer is None:
            return unchanged(index, self.name, Reason.NOTHING_MAY_GO, target_tokens=target_tokens, before=before)
        return self._accepted(index, answer, before, target_tokens)

    def _kept(self, index: MessageIndex) -> set[MessageGroup]:
        """What it has to leave alone beyond what every provider and every Agent needs."""
        return self.kept_groups(index) if self.held_to_contract else self.pinned_groups(index)

    @property
    def allowance(self) -> Allowance:
        """
        What its settings allow beyond the contract: with no step to keep, as Haystack's has it, the newest may go.
        """
        return Allowance(newest_step=getattr(self.compactor, "min_keep_steps", None) == 0)

    def _accepted(self, index: MessageIndex, answer: Any, before: Size, target_tokens: int | None) -> Outcome:
        """Check what came back, and take it if it is valid and smaller."""
        try:
            check_messages("compact()", answer)
        except TypeError as error:
            raise CompactorError(f"{self.name} returned no conversation: {error}") from error
        after = index.continued_by(answer)
        broken = broken_rule_of_list(index, after, self._kept(index))
        if broken is not None:
            raise CompactorError(f"{self.name} broke a rule: {broken}. The conversation is left as it was.")
        if after.total_token_count >= before.tokens:
            return unchanged(index, self.name, Reason.NO_GAIN, target_tokens=target_tokens, before=before)
        return Outcome(
            messages=list(answer),
            reason=Reason.COMPACTED,
            before=before,
            after=Size.of(after),
            strategy=self.name,
            target_tokens=target_tokens,
            edits=tuple(_edits_seen(index, answer, self.name)),
            index=after,
        )


def as_compactor(name: str, value: Any) -> Compactor:
    """
    Return any compactor as one of ours.

    :param name: The argument's name, as the caller wrote it.
    :param value: A compactor of ours, of Haystack's, or anything with the same `compact` method.
    :returns: The same object if it is ours, else one that asks it.
    :raises TypeError: If `value` has no `compact` method, or is a class instead of an instance.
    """
    check_method(name, value, "compact", example="ToolResultPruningCompactor()")
    return value if isinstance(value, Compactor) else ForeignCompactor(compactor=value)


def _async_twin(compactor: Any) -> Callable[..., Awaitable[Any]] | None:
    """The async form of `compact`, unless it is the one of Haystack's protocol, which only calls `compact`."""
    twin = getattr(compactor, "compact_async", None)
    # A thread keeps the event loop free; the inherited form would not.
    return None if getattr(twin, "__qualname__", "") == "Compactor.compact_async" else twin


def _edits_seen(index: MessageIndex, answer: Sequence[ChatMessage], name: str) -> list[Edit]:
    """What can be told of a list from outside: which groups went altogether, and which were changed."""
    left = {id(message) for message in answer}
    edits = []
    for group in index.included_groups():
        here = [id(message) in left for message in group.messages]
        if all(here):
            continue
        action = Action.PRUNE if any(here) else Action.DROP
        edits.append(Edit(action, (group,), f"by {name}"))
    return edits

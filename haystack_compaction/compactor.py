"""
What all compactors share: their settings, the way a pass goes, and Haystack's `compact` on top.

A compactor of one's own is a frozen dataclass with one method, `propose`, which yields edits in the order in which they
should happen. The base carries them out one by one and stops as soon as the target is met, so that never more goes
than needed; it keeps out of reach what has to stay, checks the result, and does nothing at all where that is the right
thing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any, ClassVar, TypeVar

from haystack import logging
from haystack.dataclasses import ChatMessage
from haystack.token_counters import TokenCounter

from haystack_compaction.arguments import (
    check_bool,
    check_int,
    check_messages,
    check_method,
    check_names,
    check_optional_int,
)
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit, apply_edit, drop, part_users
from haystack_compaction.errors import CompactionError, CompactorError, SummaryError
from haystack_compaction.goal import BudgetGoal, Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.outcome import Outcome, Reason, Size
from haystack_compaction.serialization import settings_from_dict, settings_to_dict
from haystack_compaction.steps import Steps, drive, drive_async
from haystack_compaction.triggers import Condition, check_condition
from haystack_compaction.validity import Allowance, broken_rule

logger = logging.getLogger(__name__)

_T = TypeVar("_T", bound="Compactor")


@dataclass(frozen=True, kw_only=True)
class Compactor:
    """
    The base of all compactors.

    Write `propose` for a strategy that needs nothing from outside:

    ```python
    from dataclasses import dataclass

    from haystack_compaction import Compactor, MessageGroupKind, drop

    @dataclass(frozen=True, kw_only=True)
    class DropOldChatter(Compactor):
        '''Removes old replies that called no tool.'''

        def propose(self, index):
            for group in self.removable_groups(index):
                if group.kind is MessageGroupKind.ASSISTANT_TEXT:
                    yield drop(group, reason="old reply")
    ```

    :param trigger: When to do anything at all; None: whenever asked to.
    :param target: When it is enough. Defaults to the caller's budget, and where there is none either, to the opposite
        of the trigger.
    :param min_keep_groups: The newest groups, instructions not counted, that stay out of reach whatever the target.
    :param pin_first_user_message: Whether the first message of the user stays.
    :param pin_meta_keys: Messages whose metadata has one of these keys stay as they are.
    :raises TypeError: If a setting is of the wrong type.
    :raises ValueError: If a setting has a value that makes no sense.
    """

    trigger: Condition | None = None
    target: Condition | None = None
    min_keep_groups: int = 0
    pin_first_user_message: bool = False
    pin_meta_keys: tuple[str, ...] = ()

    #: Whether the strategy refuses to run without any target, because it would remove everything.
    needs_target: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("trigger", "target"):
            if getattr(self, name) is not None:
                check_condition(name, getattr(self, name))
        check_int("min_keep_groups", self.min_keep_groups, minimum=0)
        check_bool("pin_first_user_message", self.pin_first_user_message)
        self._normalise_names("pin_meta_keys")

    def _normalise_names(self, name: str) -> None:
        """A list, as it comes from YAML, and a tuple are the same setting."""
        object.__setattr__(self, name, check_names(name, getattr(self, name)))

    # What a strategy writes

    @property
    def allowance(self) -> Allowance:
        """
        What the settings allow beyond the contract.
        """
        return Allowance()

    def propose(self, index: MessageIndex) -> Iterable[Edit]:
        """
        Yield edits in the order in which they should happen.

        :param index: The conversation, in which every edit yielded before has been carried out.
        :returns: Edits; the base stops asking once the target is met.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `propose` or `decide`.")

    def decide(self, index: MessageIndex, goal: Goal) -> Steps[list[Edit]]:
        """
        Carry edits out until the goal is met. Override it for a strategy that needs something from outside.

        :param index: The conversation.
        :param goal: How far to go.
        :returns: The edits that were carried out.
        """
        return carry_out(index, self.propose(index), goal)
        yield  # a generator that needs nothing from outside

    def removable_groups(self, index: MessageIndex) -> list[MessageGroup]:
        """
        Return the groups that may go, in the order in which they should.

        :param index: The conversation.
        :returns: Results without a call first, then the rest, oldest first, and what compaction wrote last.
        """
        kept = self.kept_groups(index)
        removable = [group for group in index.included_groups() if group not in kept]
        return sorted(
            removable, key=lambda group: 0 if group.is_orphan else 1 + (group.kind is MessageGroupKind.SUMMARY)
        )

    def orphan_edits(self, index: MessageIndex) -> Iterator[Edit]:
        """
        Yield the edits that remove results without a call, which go before anything else.

        :param index: The conversation.
        :returns: Edits, oldest first. Those at the head go together, so that none is left there when one is enough.
        """
        kept = self.kept_groups(index)
        groups = [group for group in index.included_groups() if group.kind is not MessageGroupKind.SYSTEM]
        at_head = tuple(takewhile(lambda group: group.is_orphan and group not in kept, groups))
        if at_head:
            yield Edit(Action.DROP, at_head, "result without a call")
        for group in groups[len(at_head) :]:
            if group.is_orphan and group not in kept:
                yield drop(group, "result without a call")

    def kept_groups(self, index: MessageIndex) -> set[MessageGroup]:
        """
        Return the groups that must not be removed.

        :param index: The conversation.
        :returns: Instructions, the task, the newest step, what is pinned, and the newest `min_keep_groups`.
        """
        kept = set(index.task_groups) | self.pinned_groups(index)
        newest = index.newest_step
        if newest is not None and (newest.is_pending or not self.allowance.newest_step):
            kept.add(newest)
        if not self.allowance.system:
            kept.update(group for group in index.included_groups() if group.kind is MessageGroupKind.SYSTEM)
        return kept

    def deferred_tokens(self, index: MessageIndex) -> int:
        """
        Return what a later pass may take that this one may not, such as the newest step.

        Who asks knows by it when no pass can help any more. A strategy that can tell should: the base assumes that all
        may go one day.

        :param index: The conversation after a pass that took all that it may.
        :returns: Tokens of the counter.
        """
        return index.included_token_count

    def pinned_groups(self, index: MessageIndex) -> set[MessageGroup]:
        """
        Return the groups that the common settings put out of reach.

        :param index: The conversation.
        :returns: The newest `min_keep_groups`, those with a pinned message and, if asked for, the first user message.
        """
        if not (self.min_keep_groups or self.pin_meta_keys or self.pin_first_user_message):
            return set()
        groups = [group for group in index.included_groups() if group.kind is not MessageGroupKind.SYSTEM]
        pinned: set[MessageGroup] = set()
        if self.min_keep_groups:
            # At the head of what remains no provider would take a result without its call.
            whole = [group for group in groups if not group.is_orphan]
            # A note that a pass leaves among them must not put one of them within reach of the next.
            counted = [group for group in whole if group.kind is not MessageGroupKind.SUMMARY][-self.min_keep_groups :]
            start = counted[0].positions[0] if counted else 0
            pinned.update(group for group in whole if group.positions[0] >= start)
        if self.pin_meta_keys:
            pinned.update(group for group in groups if any(self.is_pinned(message) for message in group.messages))
        if self.pin_first_user_message:
            pinned.update([group for group in groups if group.kind is MessageGroupKind.USER][:1])
        return pinned

    def is_pinned(self, message: ChatMessage) -> bool:
        """
        Return whether a message has one of `pin_meta_keys`.

        :param message: The message.
        """
        return any(key in message.meta for key in self.pin_meta_keys)

    # How a pass goes

    def steps(self, index: MessageIndex, target_tokens: int | None = None) -> Steps[Outcome]:
        """
        Make one pass over a conversation.

        :param index: The conversation. Where nothing is changed it comes out as it went in.
        :param target_tokens: The budget, in tokens of the index's counter.
        :returns: The outcome. A failure is part of it, and only a `SummaryError` that is asked for is raised.
        """
        try:
            return (yield from self._pass(index, target_tokens))
        except (SummaryError, GeneratorExit):
            index.reset()  # raised by choice, or cancelled: nothing is left half done
            raise
        except CompactionError as error:
            return unchanged(index, self.name, Reason.FAILED, target_tokens=target_tokens, failures=(str(error),))
        except Exception as error:  # noqa: BLE001 - a strategy's mistake must not end an Agent's run
            failure = f"{self.name} raised {type(error).__name__}: {error}"
            return unchanged(index, self.name, Reason.FAILED, target_tokens=target_tokens, failures=(failure,))

    def _pass(self, index: MessageIndex, target_tokens: int | None) -> Steps[Outcome]:
        if self.trigger is not None and not self.trigger(index):
            return unchanged(index, self.name, Reason.NOT_TRIGGERED, before=Size.of(index))
        goal, before = self.goal(target_tokens), Size.of(index)
        if goal.met(index):
            return unchanged(index, self.name, Reason.FITS, target_tokens=goal.target_tokens, before=before)
        pinned = self.pinned_groups(index)
        edits = yield from self.decide(index, goal)
        if not edits:
            return unchanged(index, self.name, Reason.NOTHING_MAY_GO, target_tokens=goal.target_tokens, before=before)
        broken = broken_rule(index, edits, self.allowance, pinned)
        if broken is not None:
            raise CompactorError(f"{self.name} broke a rule: {broken}. The conversation is left as it was.")
        if not is_smaller(index, before.tokens):
            return unchanged(index, self.name, Reason.NO_GAIN, target_tokens=goal.target_tokens, before=before)
        return Outcome(
            messages=index.included_messages(),
            reason=Reason.COMPACTED,
            before=before,
            after=Size.of(index),
            strategy=self.name,
            target_tokens=goal.target_tokens,
            edits=tuple(edits),
            index=index,
        )

    def goal(self, target_tokens: int | None) -> Goal:
        """
        Return how far a pass with a budget is to go.

        :param target_tokens: The caller's budget, or None.
        :returns: The compactor's own target, else the budget, else the opposite of the trigger.
        :raises ValueError: If there is none of them and the strategy would remove everything.
        """
        if self.target is not None:
            return Goal(self.target)
        if target_tokens is not None:
            return BudgetGoal(lambda index: index.included_token_count <= target_tokens, target_tokens)
        trigger = self.trigger
        if trigger is not None:
            return Goal(lambda index: not trigger(index))
        if self.needs_target:
            raise ValueError(
                f"{self.name} needs `target_tokens`, a `target` or a `trigger`: without any it would remove everything."
            )
        return Goal()

    @property
    def has_own_goal(self) -> bool:
        """
        Whether it knows by itself when to begin and end, without a budget of the caller's.
        """
        return self.trigger is not None or self.target is not None

    @property
    def name(self) -> str:
        """
        The name of the class, as outcomes and logs have it.
        """
        return type(self).__name__

    # Haystack's protocol

    def compact(
        self, messages: list[ChatMessage], target_tokens: int | None, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """
        Return a shorter conversation, or None where there is nothing to shorten.

        :param messages: The conversation, oldest first. Neither the list nor its messages are changed.
        :param target_tokens: The size that the result should not exceed, in tokens of the counter. A goal, not a
            promise: what has to stay may be larger. None leaves it to the compactor's own target or trigger.
        :param token_counter: The counter to measure with.
        :returns: A new, strictly smaller list, or None.
        :raises TypeError: If an argument is of the wrong type.
        :raises ValueError: If there is no target, and the strategy needs one.
        """
        index = self._index(messages, target_tokens, token_counter)
        return self._answer(drive(self.steps(index, target_tokens)))

    async def compact_async(
        self, messages: list[ChatMessage], target_tokens: int | None, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """
        Return a shorter conversation without holding up the event loop.

        :param messages: The conversation, oldest first. Neither the list nor its messages are changed.
        :param target_tokens: The size that the result should not exceed, in tokens of the counter, or None.
        :param token_counter: The counter to measure with.
        :returns: A new, strictly smaller list, or None.
        :raises TypeError: If an argument is of the wrong type.
        :raises ValueError: If there is no target, and the strategy needs one.
        """
        index = self._index(messages, target_tokens, token_counter)
        return self._answer(await drive_async(self.steps(index, target_tokens)))

    def _index(
        self, messages: list[ChatMessage], target_tokens: int | None, token_counter: TokenCounter
    ) -> MessageIndex:
        check_messages("messages", messages)
        check_optional_int("target_tokens", target_tokens, minimum=0, why="Use 0 for as small as it can get.")
        check_method("token_counter", token_counter, "count", example="EstimatedTokenCounter()")
        self.goal(target_tokens)
        return MessageIndex(messages, token_counter)

    def _answer(self, outcome: Outcome) -> list[ChatMessage] | None:
        for warning in outcome.warnings:
            logger.warning("{warning}", warning=warning)
        return outcome.messages if outcome.compacted else None

    # Saved pipelines

    def to_dict(self) -> dict[str, Any]:
        """
        Serialise the compactor.

        :returns: A dictionary in Haystack's form.
        """
        return settings_to_dict(self, [field.name for field in fields(self) if field.init])

    @classmethod
    def from_dict(cls: type[_T], data: dict[str, Any]) -> _T:
        """
        Build a compactor from its serialised form.

        :param data: What `to_dict` returned.
        :returns: An equal compactor.
        :raises DeserializationError: If a parameter is unknown or cannot be built; the text names it.
        """
        return settings_from_dict(cls, data, functions=("trigger", "target"))


def carry_out(index: MessageIndex, edits: Iterable[Edit], goal: Goal) -> list[Edit]:
    """
    Carry edits out one by one until the goal is met, with the lines that have to part messages of the user.

    :param index: The conversation.
    :param edits: What a strategy proposes, in order.
    :param goal: How far to go.
    :returns: The edits that were carried out.
    """
    done: list[Edit] = []
    for edit in edits:
        done.append(apply_edit(index, edit))
        if goal.met(index):
            done.extend(part_users(index))
            if goal.met(index):
                return done
    done.extend(part_users(index))
    return done


def unchanged(
    index: MessageIndex,
    strategy: str,
    reason: Reason,
    *,
    target_tokens: int | None = None,
    before: Size | None = None,
    failures: tuple[str, ...] = (),
) -> Outcome:
    """
    Return the outcome of a pass that leaves the conversation as it was.

    :param index: The conversation; changes that were begun are taken back, in a stage only the stage's own.
    :param strategy: The class of the compactor.
    :param reason: Why nothing was changed.
    :param target_tokens: The size to reach.
    :param before: The size, if it is known.
    :param failures: What went wrong.
    :returns: The outcome.
    """
    index.reset()
    size = before or Size(0, index.included_message_count, index.included_group_count)
    return Outcome(
        messages=index.included_messages(),
        reason=reason,
        before=size,
        after=size,
        strategy=strategy,
        target_tokens=target_tokens,
        failures=failures,
        index=index,
    )


def is_smaller(index: MessageIndex, before_tokens: int, after: MessageIndex | None = None) -> bool:
    """
    Return whether a conversation became strictly smaller.

    :param index: The conversation, with edits carried out.
    :param before_tokens: What it cost before.
    :param after: What became of it, where that is another index.
    :returns: Whether the counter says so. Where sums are not exact, the whole is counted, before and after; not for a
        stage, because that is done once for all of them.
    """
    after = index if after is None else after
    meter = index.ledger.meter
    if meter.additive or index.is_staged:
        return after.included_token_count < before_tokens
    if not all(group.is_whole for group in (*index.groups, *(after.groups if after is not index else ()))):
        # A counter of unknown kind must not be given a broken conversation, and what edits freed is known anyway.
        return after.included_token_count < before_tokens
    return meter.count(after.included_messages()) < meter.count(index.all_messages())

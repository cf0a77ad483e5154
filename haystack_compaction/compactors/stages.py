"""
What all compositions share: stages that work on one conversation in turn, each with a way back of its own.

A composition only plans: which stages, each how far, and when it is enough. How they are run is the same for all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from haystack_compaction.compactor import Compactor, is_smaller, unchanged
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Edit
from haystack_compaction.foreign import ForeignCompactor, as_compactor
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.lifecycle import HandsOnLifecycle
from haystack_compaction.outcome import Outcome, Reason, Size, StageOutcome
from haystack_compaction.steps import Steps
from haystack_compaction.triggers import Condition
from haystack_compaction.validity import Allowance

# Of several stages that changed nothing, the reason that says most about the whole.
_TELLING = (Reason.FAILED, Reason.NO_GAIN, Reason.NOTHING_MAY_GO, Reason.NOT_TRIGGERED, Reason.FITS)

# Each round but the last makes the conversation smaller, so this is never reached but for compactors that go on and on.
_MAX_ROUNDS = 8


class Stage(NamedTuple):
    """
    One compactor of a composition, and how far it is to go.

    :param compactor: The compactor.
    :param target_tokens: The budget, in tokens of the index's counter.
    :param above_tokens: Only a conversation that is larger is its business; None: any.
    """

    compactor: Compactor
    target_tokens: int | None
    above_tokens: int | None = None


class Plan(NamedTuple):
    """
    What a composition means to do about a conversation.

    :param goal: When it is enough.
    :param stages: What is run, in order.
    :param start_tokens: A conversation up to this size is left alone; None: asked of the goal alone.
    :param early_stop: Whether no stage is asked any more once the goal is met.
    """

    goal: Goal
    stages: tuple[Stage, ...]
    start_tokens: int | None = None
    early_stop: bool = True


@dataclass(frozen=True)
class Composition(HandsOnLifecycle, Compactor):
    """
    A compactor that is made of others.
    """

    _stages: tuple[Compactor, ...] = field(init=False, repr=False, compare=False)

    def _run_as(self, *compactors: Compactor) -> None:
        """Settle what is run, with the common settings of the whole beside those of each."""
        object.__setattr__(self, "_stages", tuple(under_settings_of(self, compactor) for compactor in compactors))

    def plan(self, index: MessageIndex, target_tokens: int | None) -> Plan:
        """
        Return what to do about a conversation.

        :param index: The conversation.
        :param target_tokens: The caller's budget, in tokens of the index's counter, or None.
        :returns: The goal and the stages.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `plan`.")

    @property
    def has_own_goal(self) -> bool:
        """
        Whether it knows by itself when to begin and end, which those with a budget of their own do.
        """
        return True

    def goal(self, target_tokens: int | None) -> Goal:
        """
        Return how far a pass with a budget is to go.

        :param target_tokens: The caller's budget, or None.
        :returns: What is planned for a conversation once there is one.
        """
        return Goal(lambda index: self.plan(index, target_tokens).goal.met(index))

    @property
    def allowance(self) -> Allowance:
        """
        What its stages' settings allow beyond the contract.
        """
        allowed = [compactor.allowance for compactor in self._stages]
        return Allowance(any(one.system for one in allowed), any(one.newest_step for one in allowed))

    def lifecycle_parts(self) -> Iterable[Any]:
        """
        Return what is warmed up and closed with the whole: an object that stands in two places is there twice.
        """
        for compactor in self._stages:
            # Through what only passes it on, so that the same object is known by its identity.
            if isinstance(compactor, Composition | ForeignCompactor):
                yield from compactor.lifecycle_parts()
            else:
                yield compactor

    def deferred_tokens(self, index: MessageIndex) -> int:
        """
        Return what a later pass may take that this one may not, by what the stages say of themselves.

        :param index: The conversation after a pass that took all that it may.
        :returns: Tokens of the counter: what they say together, but no more than all that may go one day.
        """
        # Today's task and newest groups are old one day.
        movable = sum(group.token_count for group in index.included_groups() if not self._stays_for_good(group))
        return min(sum(compactor.deferred_tokens(index) for compactor in self._stages), movable)

    def _stays_for_good(self, group: MessageGroup) -> bool:
        if group.kind is MessageGroupKind.SYSTEM and not self.allowance.system:
            return True
        return bool(self.pin_meta_keys) and any(map(self.is_pinned, group.messages))

    # How a pass goes

    def _pass(self, index: MessageIndex, target_tokens: int | None) -> Steps[Outcome]:
        if self.trigger is not None and not self.trigger(index):
            return unchanged(index, self.name, Reason.NOT_TRIGGERED, before=Size.of(index))
        plan, before = self.plan(index, target_tokens), Size.of(index)
        goal = plan.goal
        fits = plan.start_tokens is not None and before.tokens <= plan.start_tokens
        if fits or (plan.early_stop and goal.met(index)):
            return unchanged(index, self.name, Reason.FITS, target_tokens=goal.target_tokens, before=before)
        work = _Work(index)
        yield from work.run_all(plan)
        return self._ended(index, work, before, goal)

    def _ended(self, index: MessageIndex, work: "_Work", before: Size, goal: Goal) -> Outcome:
        stages, failures = tuple(work.outcomes), tuple(dict.fromkeys(work.failures))
        reasons = {stage.reason for stage in stages}
        if Reason.COMPACTED not in reasons:
            reason = next((reason for reason in _TELLING if reason in reasons), Reason.NOTHING_MAY_GO)
        elif not is_smaller(index, before.tokens, work.index):
            reason = Reason.NO_GAIN
        else:
            return Outcome(
                messages=work.index.included_messages(),
                reason=Reason.COMPACTED,
                before=before,
                after=Size.of(work.index),
                strategy=self.name,
                target_tokens=goal.target_tokens,
                edits=tuple(work.edits),
                failures=failures,
                index=work.index,
                stages=stages,
            )
        left = unchanged(index, self.name, reason, target_tokens=goal.target_tokens, before=before, failures=failures)
        return replace(left, stages=stages)


@dataclass
class _Work:
    """
    What the stages of one pass did so far.

    :param index: The conversation as they left it. It is another index after somebody else's compactor.
    :param outcomes: What each of them did.
    :param edits: What they changed, in order.
    :param failures: What went wrong.
    :param failed: Which stages failed, so that they are not asked again.
    :param change_count: How often a stage changed anything.
    """

    index: MessageIndex
    outcomes: list[StageOutcome] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    change_count: int = 0

    def run_all(self, plan: Plan) -> Steps[None]:
        """
        Run the stages in order until it is enough, or until none of them has anything left to do.

        What a later stage did can put something within reach of an earlier one, such as a pinned group that became a
        line. Only then is that one asked again, or the next pass would find more to do.

        :param plan: The stages and the goal.
        """
        seen: dict[int, int] = {}
        for _ in range(_MAX_ROUNDS):
            for number, stage in enumerate(plan.stages):
                if seen.get(number) == self.change_count or number in self.failed:
                    continue
                yield from self._run(number, stage, again=number in seen)
                seen[number] = self.change_count
                if plan.early_stop and plan.goal.met(self.index):
                    return

    def _run(self, number: int, stage: Stage, *, again: bool) -> Steps[None]:
        """Run one stage on what is left. One that fails, or gains nothing, takes back only what it did itself."""
        index, name, before = self.index, stage.compactor.name, Size.of(self.index)
        if stage.above_tokens is not None and before.tokens <= stage.above_tokens:
            self._note(StageOutcome(name, Reason.NOT_TRIGGERED, before, before), again=again)
            return
        index.begin_stage()
        try:
            outcome = yield from stage.compactor.steps(index, stage.target_tokens)
        finally:
            index.end_stage()
        if outcome.compacted and outcome.index is not None:
            self.index = outcome.index
            self.edits.extend(outcome.edits)
            self.change_count += 1
        if outcome.reason is Reason.FAILED:
            self.failed.add(number)
        self.failures.extend(outcome.failures)
        # A stage that failed may not have come to measure anything.
        after = outcome.after if outcome.compacted else before
        done = StageOutcome(name, outcome.reason, before, after, outcome.failures, outcome.stages)
        self._note(done, again=again)

    def _note(self, outcome: StageOutcome, *, again: bool) -> None:
        """Keep what a stage did; that it found nothing more to do is not worth telling."""
        if not again or outcome.reason in (Reason.COMPACTED, Reason.FAILED):
            self.outcomes.append(outcome)


def as_stages(name: str, value: Any) -> tuple[Compactor, ...]:
    """
    Return a collection of compactors of any kind as ours.

    :param name: The argument's name, as the caller wrote it.
    :param value: The compactors, at least one.
    :returns: The same ones, somebody else's each as one of ours.
    :raises TypeError: If it is no list or tuple, or an entry is no compactor; the text says which.
    :raises ValueError: If there is none.
    """
    if not isinstance(value, list | tuple):
        raise TypeError(f"`{name}` must be a list of compactors, gentlest first, got {value!r:.80}.")
    if not value:
        raise ValueError(f"`{name}` must be at least one compactor, got none. Such as [ToolResultPruningCompactor()].")
    return tuple(as_compactor(f"{name}[{number}]", entry) for number, entry in enumerate(value))


def under_settings_of(whole: Compactor, compactor: Compactor) -> Compactor:
    """
    Return a stage that keeps what the whole was told to keep, and goes by the whole's target where it has none.

    :param whole: The composition.
    :param compactor: Its stage.
    :returns: The same object where there is nothing to add to its settings.
    """
    added: dict[str, Any] = {}
    if whole.min_keep_groups > compactor.min_keep_groups:
        added["min_keep_groups"] = whole.min_keep_groups
    if whole.pin_first_user_message and not compactor.pin_first_user_message:
        added["pin_first_user_message"] = True
    if not set(whole.pin_meta_keys) <= set(compactor.pin_meta_keys):
        added["pin_meta_keys"] = tuple(dict.fromkeys((*compactor.pin_meta_keys, *whole.pin_meta_keys)))
    if isinstance(compactor, ForeignCompactor) and not compactor.held_to_contract:
        added["held_to_contract"] = True
    return replace(compactor, **added) if added else compactor


def aimed(compactor: Compactor, condition: Condition | None) -> Compactor:
    """
    Return a stage that goes by a condition where it has no target of its own.

    :param compactor: The stage.
    :param condition: When it is enough; None for whatever the stage goes by.
    :returns: The same object where there is nothing to add to its settings.
    """
    return compactor if condition is None or compactor.target is not None else replace(compactor, target=condition)


def smaller_budget(model_tokens: int, target_tokens: int | None, scale: float) -> int:
    """
    Return the smaller of a limit and a caller's budget.

    :param model_tokens: The limit, in the model's tokens.
    :param target_tokens: The caller's budget, in tokens of the counter, or None.
    :param scale: How many of the model's tokens one of the counter's is worth.
    :returns: Tokens of the counter.
    """
    limit = int(model_tokens / scale)
    return limit if target_tokens is None else min(limit, target_tokens)


def goal_within(limit: int, target: Condition | None) -> tuple[Goal, Condition | None]:
    """
    Return the goal to be within a limit, and to meet a target if there is one.

    :param limit: The limit, in tokens of the counter.
    :param target: The target, or None.
    :returns: The goal, and what stages without a target have to be told of it; None where the limit is all.
    """
    if target is None:
        return Goal(lambda index: index.included_token_count <= limit, limit), None

    def kept(index: MessageIndex) -> bool:
        return index.included_token_count <= limit and target(index)

    return Goal(kept, limit), kept

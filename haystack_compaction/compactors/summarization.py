"""
Summaries: a model condenses old history, in bounded calls, and whatever fails leaves the conversation as it was.
"""

from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

from haystack.core.serialization import component_to_dict

from haystack_compaction.arguments import check_bool, check_int, check_method, check_optional_int, check_text
from haystack_compaction.compactor import Compactor, carry_out, is_smaller, unchanged
from haystack_compaction.compactors.stages import aimed, under_settings_of
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Edit
from haystack_compaction.errors import CompactorError, SummaryError
from haystack_compaction.foreign import CompactorLike, as_compactor
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.lifecycle import HandsOnLifecycle
from haystack_compaction.outcome import Outcome, Reason, Size, StageOutcome
from haystack_compaction.prompts import SUMMARY_INSTRUCTION
from haystack_compaction.steps import Steps
from haystack_compaction.summaries.breaker import MAX_FAILED_ATTEMPTS, Failures, failures_in, remember
from haystack_compaction.summaries.order import newest_steps, outside_of_last, start_of_task
from haystack_compaction.summaries.plan import Sizes, SummaryPlan
from haystack_compaction.summaries.rounds import SummaryPass
from haystack_compaction.summaries.summarizer import Summarizer
from haystack_compaction.token_counters.estimated_counter import estimated_tokens
from haystack_compaction.validity import Allowance, broken_rule

# What a call has to have room for beside the instruction.
_MIN_ROOM_TOKENS = 100


@dataclass(frozen=True, eq=False)
class SummarizationCompactor(HandsOnLifecycle, Compactor):
    """
    Has a model condense old history into one short message, in calls of bounded size.

    Oldest first: complete earlier turns, then earlier summaries, then the task's old steps, then its summaries. What is
    too long for one call takes several, each of which updates the summary of the one before. A summary stands between
    two marks, says that it is a record, and carries below what the model wrote the rules and values that were found in
    the messages without a model. Quotation marks around words that nobody wrote are taken off, and a claim about the
    user that nothing supports is marked. The class is a superset of Haystack's of the same name, and updates the
    summaries of that one as well.

    A reply that is no summary (none, no text, only calls or reasoning, cut off, held back, a request for the
    conversation) and a summary that does not shrink change nothing. After three failed attempts in a row the model is
    not asked again until the conversation has grown by a quarter.

    What the summariser writes becomes part of the conversation, so it has to be trusted as much as the model itself.

    There are two ways to run it. By budget, up to the caller's `target_tokens`, as a hook does. Or by count: with
    `keep_last_messages` all but the newest messages are condensed, and a trigger says from how many on, as with
    Microsoft's `target_count` and `threshold`: `keep_last_messages=20, trigger=MessagesExceed(30)`.

    ```python
    from haystack.components.generators.chat import MockChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import EstimatedTokenCounter, SummarizationCompactor

    messages = []
    for n in range(30):
        messages += [ChatMessage.from_user(f"Question {n}?"), ChatMessage.from_assistant(f"Answer {n}. " * 20)]

    compactor = SummarizationCompactor(MockChatGenerator("- Thirty questions were answered."))
    shorter = compactor.compact(messages, 800, EstimatedTokenCounter())
    print(shorter[0].text)
    ```

    :param chat_generator: The model: any chat generator. It is called with `messages` alone.
    :param min_keep_steps: The newest steps of the task that stay even where they are larger than the target. More
        keeps more of what the model is working with; 0 lets even the newest completed step go.
    :param approximate_summary_tokens: What a summary is expected to cost, in the model's tokens. It decides how much
        has to go before a model is asked; what it really wrote is measured. A summary half as long again is cut off
        there. More keeps more of the past, and frees less.
    :param summary_instruction: What the model is told. Ask in it for what matters most first, because a summary that is
        too long loses its end.
    :param max_summary_input_tokens: What a call may cost, the instruction included, in the model's tokens. Lower fits a
        smaller summariser and takes more calls. A single message with its results that is larger is cut in the middle.
        None: all in one call.
    :param keep_last_messages: All but so many of the newest messages are condensed, target or not; exchanges stay
        whole, and messages that compaction wrote are not counted. None: only the target decides.
    :param max_attempts: How often a model is asked for one summary.
    :param fallback: A compactor that is used while there is no summary to be had.
    :param raise_on_failure: Whether a failure is raised instead of leaving the conversation as it was.
    :param evidence_tokens: What a summary carries of the messages that went, found without a model: rules that users
        gave, identifiers that a later call may need. None: a fifth of the target, between 100 and 1,000; 0: nothing.
    """

    chat_generator: Any
    _: KW_ONLY
    min_keep_steps: int = 1
    approximate_summary_tokens: int = 1024
    summary_instruction: str = SUMMARY_INSTRUCTION
    max_summary_input_tokens: int | None = 8000
    keep_last_messages: int | None = None
    max_attempts: int = 3
    fallback: CompactorLike | None = None
    raise_on_failure: bool = False
    evidence_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_method("chat_generator", self.chat_generator, "run", example="OpenAIChatGenerator()")
        check_int("min_keep_steps", self.min_keep_steps, minimum=0)
        check_int("approximate_summary_tokens", self.approximate_summary_tokens, minimum=1)
        check_text("summary_instruction", self.summary_instruction)
        least = estimated_tokens([self.summary_instruction])[0] + _MIN_ROOM_TOKENS
        check_optional_int(
            "max_summary_input_tokens",
            self.max_summary_input_tokens,
            minimum=least,
            why=f"The instruction alone takes {least - _MIN_ROOM_TOKENS} of them.",
        )
        check_optional_int("keep_last_messages", self.keep_last_messages, minimum=1, why="Use None for no such limit.")
        check_int("max_attempts", self.max_attempts, minimum=1)
        check_bool("raise_on_failure", self.raise_on_failure)
        check_optional_int("evidence_tokens", self.evidence_tokens, minimum=0, why="Use 0 for none.")
        if self.fallback is not None:
            object.__setattr__(self, "fallback", as_compactor("fallback", self.fallback))

    # What it may do, and how far

    @property
    def allowance(self) -> Allowance:
        """
        What the settings allow beyond the contract.
        """
        return Allowance(newest_step=self.min_keep_steps == 0)

    def goal(self, target_tokens: int | None) -> Goal:
        """
        Return how far a pass with a budget is to go.

        :param target_tokens: The caller's budget, or None.
        :returns: The target or budget, and no more than `keep_last_messages` left to condense; with these and neither
            of the two, a trigger only says when to start.
        :raises ValueError: If there is no target, budget, trigger or `keep_last_messages`.
        """
        if self.keep_last_messages is None:
            if self.target is None and target_tokens is None and self.trigger is None:
                raise ValueError(
                    f"{self.name} needs `target_tokens`, a `target`, a `trigger` or `keep_last_messages`: without any "
                    f"it would condense everything."
                )
            return super().goal(target_tokens)
        budget = self._budget(target_tokens)
        if budget is None:
            return Goal(self._is_inside)
        return Goal(lambda index: budget.met(index) and self._is_inside(index), budget.target_tokens)

    def _budget(self, target_tokens: int | None) -> Goal | None:
        """How far to go apart from `keep_last_messages`; None where only that decides."""
        if self.keep_last_messages is not None and self.target is None and target_tokens is None:
            return None
        return super().goal(target_tokens)

    @property
    def has_own_goal(self) -> bool:
        """
        Whether it knows by itself when to begin and end, without a budget of the caller's.
        """
        return self.keep_last_messages is not None or super().has_own_goal

    def kept_groups(self, index: MessageIndex) -> set[MessageGroup]:
        """
        Return the groups that must not be condensed.

        :param index: The conversation.
        :returns: What every strategy keeps, the newest steps of the task, and where no user speaks the oldest summary,
            which is the task there.
        """
        kept = super().kept_groups(index) | set(newest_steps(index, self.min_keep_steps))
        if start_of_task(index) < 0:
            kept.update([group for group in index.included_groups() if group.kind is MessageGroupKind.SUMMARY][:1])
        return kept

    def _is_inside(self, index: MessageIndex) -> bool:
        """Whether nothing that may go stands before the newest messages."""
        return not outside_of_last(index, self.keep_last_messages or 0, self.kept_groups(index))

    # How a pass goes

    def _pass(self, index: MessageIndex, target_tokens: int | None) -> Steps[Outcome]:
        if self.trigger is not None and not self.trigger(index):
            return unchanged(index, self.name, Reason.NOT_TRIGGERED, before=Size.of(index))
        goal, before = self.goal(target_tokens), Size.of(index)
        if goal.met(index):
            return unchanged(index, self.name, Reason.FITS, target_tokens=goal.target_tokens, before=before)
        work = _Work(index)
        failures = failures_in(index, self.chat_generator)
        failures.see(before.tokens)
        try:
            if not failures.is_open:
                yield from self._summarize(work, goal, target_tokens, failures)
            elif self.raise_on_failure:
                raise SummaryError(f"The model is not asked: {MAX_FAILED_ATTEMPTS} attempts in a row failed before.")
            if work.is_stuck or failures.is_open:
                yield from self._fall_back(work, goal, target_tokens)
        finally:
            remember(work.index, self.chat_generator, failures)
        return self._outcome(index, work, goal, before, failures)

    def _summarize(self, work: "_Work", goal: Goal, target_tokens: int | None, failures: Failures) -> Steps[None]:
        """Have the model condense what may be, and keep what was done before anything failed."""
        index, pinned = work.index, self.pinned_groups(work.index)
        orphans = carry_out(index, self.orphan_edits(index), goal)
        scale = index.scale
        limit = self.max_summary_input_tokens
        sizes = Sizes(
            summary=max(int(self.approximate_summary_tokens / scale), 1),
            call=None if limit is None else int(limit / scale),
            evidence=self.evidence_tokens,
        )
        plan = SummaryPlan(
            index=index,
            budget=self._budget(target_tokens),
            kept=self.kept_groups(index),
            sizes=sizes,
            instruction=self.summary_instruction,
            keep_last=self.keep_last_messages,
            hopeless=tuple(failures.hopeless),
        )
        rounds = SummaryPass(plan, goal, failures)
        try:
            yield from rounds.run(Summarizer(self.chat_generator, self.max_attempts))
        except SummaryError as error:
            if self.raise_on_failure:
                raise
            work.failures.append(str(error))
        if rounds.gave_up and self.raise_on_failure:
            raise SummaryError(rounds.gave_up[0])
        work.failures.extend(rounds.gave_up)
        work.is_stuck = bool(work.failures) or plan.is_stuck
        work.edits = [*orphans, *rounds.edits]
        broken = broken_rule(index, work.edits, self.allowance, pinned)
        if broken is not None:
            raise CompactorError(f"{self.name} broke a rule: {broken}. The conversation is left as it was.")

    def _fall_back(self, work: "_Work", goal: Goal, target_tokens: int | None) -> Steps[None]:
        """Let the fallback do what is left to do. It takes back only what it did itself."""
        index = work.index
        if self.fallback is None or goal.met(index):
            return
        stage = under_settings_of(self, as_compactor("fallback", self.fallback))
        if goal.target_tokens is None:
            stage = aimed(stage, goal.condition)
        before = Size.of(index)
        index.begin_stage()
        try:
            outcome = yield from stage.steps(index, target_tokens)
        finally:
            index.end_stage()
        work.failures.extend(outcome.failures)
        if outcome.compacted and outcome.index is not None:
            work.index = outcome.index
            work.edits.extend(outcome.edits)
        after = outcome.after if outcome.compacted else before
        work.stages = (StageOutcome(stage.name, outcome.reason, before, after, outcome.failures, outcome.stages),)

    def _outcome(self, index: MessageIndex, work: "_Work", goal: Goal, before: Size, failures: Failures) -> Outcome:
        told = tuple(work.failures)
        if work.edits and is_smaller(index, before.tokens, work.index):
            return Outcome(
                messages=work.index.included_messages(),
                reason=Reason.COMPACTED,
                before=before,
                after=Size.of(work.index),
                strategy=self.name,
                target_tokens=goal.target_tokens,
                edits=tuple(work.edits),
                failures=told,
                index=work.index,
                stages=work.stages,
            )
        reason = Reason.NO_GAIN if work.edits else Reason.NOTHING_MAY_GO
        if told:
            reason = Reason.FAILED
        elif failures.is_open:
            reason = Reason.BACKED_OFF
        left = unchanged(index, self.name, reason, target_tokens=goal.target_tokens, before=before, failures=told)
        return replace(left, stages=work.stages)

    # Its parts

    def lifecycle_parts(self) -> list[Any]:
        """
        Return what is warmed up and closed with it: the model and the fallback.
        """
        return [self.chat_generator, self.fallback]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [entry.name for entry in fields(self) if entry.name != "chat_generator"]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and _is_same_model(self.chat_generator, other.chat_generator)

    def __hash__(self) -> int:
        return hash((type(self), type(self.chat_generator), self.min_keep_steps, self.max_summary_input_tokens))


@dataclass
class _Work:
    """
    A pass so far.

    :param index: The conversation as it was left. It is another index after somebody else's compactor.
    :param edits: What was changed, in order.
    :param failures: What went wrong.
    :param is_stuck: Whether there is something for which no summary was to be had.
    :param stages: What the fallback did, if it was asked.
    """

    index: MessageIndex
    edits: list[Edit] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_stuck: bool = False
    stages: tuple[StageOutcome, ...] = ()


def _is_same_model(one: Any, other: Any) -> bool:
    """Whether two models are equal; chat generators do not say, so they are compared by what they are saved as."""
    if one is other or one == other:
        return True
    if type(one) is not type(other):
        return False
    try:
        return bool(component_to_dict(one, "chat_generator") == component_to_dict(other, "chat_generator"))
    except Exception:  # noqa: BLE001 - one that cannot be saved is equal to nothing but itself
        return False

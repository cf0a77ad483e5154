"""
One request on its way to the model: estimate it, and shorten the conversation where it has grown too large.

Hook and component are thin edges around this. What is remembered between the steps of one run is a `RunRecord`; a
`Compaction` itself is settings only, so one serves many runs at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from haystack.dataclasses import ChatMessage, ChatRole
from haystack.token_counters import TokenCounter

from haystack_compaction.budget import LocalCounts, RequestSize, Usage, Window, request_size
from haystack_compaction.compactor import Compactor, unchanged
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.errors import CounterError
from haystack_compaction.outcome import Outcome, Reason, Size
from haystack_compaction.oversize import cut_newest_results
from haystack_compaction.steps import Steps
from haystack_compaction.token_counters import EstimatedTokenCounter

_ESTIMATE = EstimatedTokenCounter()

_RESULT_CUT = (
    "A tool result was cut to its head and tail, because it was larger than the room left in the context window. Let "
    "the tool return less, or raise `max_result_tokens` where it is set."
)

_TOO_LARGE = (
    "What must stay of the conversation is larger than `compact_at` of the context window. Use a larger window, a "
    "compactor that may remove more, or tools that return less."
)


# Nothing was tried, so there is nothing to remember.
_AT_REST = frozenset({Reason.FITS, Reason.NOT_TRIGGERED, Reason.BACKED_OFF})

# All that the strategy may take is gone, so what is left has to stay.
_DONE_WHAT_MAY_BE = frozenset({Reason.COMPACTED, Reason.NOTHING_MAY_GO})


@dataclass
class RunRecord:
    """
    What is remembered from step to step of one run.

    :param index: The conversation as it was left.
    :param tools: The tools whose schemas were measured last.
    :param schema_tokens: What they cost.
    :param retry_at: The size of a request below which another pass would be in vain.
    :param memory: What strategies remember of the run; None where nothing outlives the request.
    :param said: The kinds of warnings that were given, so that each is given once.
    """

    index: MessageIndex | None = None
    tools: tuple[Any, ...] = ()
    schema_tokens: int = 0
    retry_at: float = 0.0
    memory: dict[int, Any] | None = None
    said: set[str] = field(default_factory=set)

    def first_of_its_kind(self, kind: str, text: str) -> tuple[str, ...]:
        """
        Return a warning, unless one of its kind was given before in this run.

        :param kind: What it is about. Texts may differ each time, as errors of a provider do.
        :param text: The warning.
        :returns: The warning, or nothing.
        """
        if kind in self.said:
            return ()
        self.said.add(kind)
        return (text,)


class Report(NamedTuple):
    """
    What became of one request.

    :param outcome: What was done. Its `messages` are the conversation to send.
    :param triggered: Whether the request had grown large enough to start.
    :param size: The size of the request before; None where it could not be measured.
    :param tokens_after: The size of the request afterwards, in the model's tokens.
    :param context_tokens: What the Agent's `context_tokens` has to be now; None: as it is.
    :param has_cuts: Whether a newest result was cut to fit.
    :param tried: How the strategy's own pass ended, before any cut.
    :param warnings: What the user should be told, once a run.
    """

    outcome: Outcome
    triggered: bool
    size: RequestSize | None = None
    tokens_after: float = 0.0
    context_tokens: int | None = None
    has_cuts: bool = False
    tried: Reason = Reason.FITS
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compaction:
    """
    When and how far a conversation is shortened.

    :param compactor: The strategy.
    :param token_counter: The counter to measure with.
    :param window: The room that there is, and where to start and end.
    :param min_freed_tokens: A pass that frees less is not applied.
    :param max_result_tokens: What a newest result may cost; None: what is left of the window, at most half of it.
    """

    compactor: Compactor
    token_counter: TokenCounter
    window: Window
    min_freed_tokens: int = 0
    max_result_tokens: int | None = None

    def steps(
        self, record: RunRecord, messages: list[ChatMessage], *, context_tokens: int = 0, tools: Sequence[Any] = ()
    ) -> Steps[Report]:
        """
        Look at the next request, and shorten the conversation if it has grown too large.

        :param record: What is remembered of the run; brought up to date.
        :param messages: The conversation, oldest first.
        :param context_tokens: The Agent's own record of the last report, 0 where there is none.
        :param tools: The tools whose schemas are sent along.
        :returns: What was done. A failure is part of it and never raised.
        """
        report = yield from self.changes(record, messages, context_tokens=context_tokens, tools=tools)
        if isinstance(report, Report):
            return report
        index = record.index or MessageIndex(messages, self.token_counter)
        triggered = report.tokens >= self.window.start_tokens
        return Report(self._at_rest(index, messages, triggered=triggered), triggered, report, report.tokens)

    def changes(
        self, record: RunRecord, messages: list[ChatMessage], *, context_tokens: int = 0, tools: Sequence[Any] = ()
    ) -> Steps[Report | RequestSize]:
        """
        Do the same without a word where nothing is to be done, which is most steps of a run.

        :param record: What is remembered of the run; brought up to date.
        :param messages: The conversation, oldest first.
        :param context_tokens: The Agent's own record of the last report, 0 where there is none.
        :param tools: The tools whose schemas are sent along.
        :returns: What was done, or only the size of the request.
        """
        try:
            index, size, may_act = self._measured(record, messages, context_tokens, tools)
        except CounterError as error:
            return self._unmeasured(record, messages, str(error))
        triggered = size.tokens >= self.window.start_tokens
        if not triggered:
            record.retry_at = 0.0
        if not may_act:
            return size
        outcome = self._at_rest(index, messages, triggered=triggered)
        if triggered and size.tokens >= record.retry_at:
            index.scale = size.scale
            outcome = yield from self.compactor.steps(index, size.target_tokens(self.window.goal_tokens))
            outcome = self._worth_it(index, outcome, size)
        try:
            report = self._with_cuts(outcome, size, triggered=triggered)
        except CounterError as error:
            return self._unmeasured(record, messages, str(error))
        return self._remembered(record, messages, report, context_tokens)

    # The size of the request

    def _measured(
        self, record: RunRecord, messages: list[ChatMessage], context_tokens: int, tools: Sequence[Any]
    ) -> tuple[MessageIndex, RequestSize, bool]:
        """The conversation's index, with only what is new looked at, the size of the request, and whether to act."""
        usage = _last_usage(messages)
        # As long as the Agent's record is that of the last reply, nobody has rewritten what came before it.
        untouched = usage is not None and usage.context_tokens == context_tokens
        # Where newest results may be cut at any size, the list is written back at any size, so it is always compared.
        trusting = untouched and self.max_result_tokens is None
        index = self._index(record, messages, only_resembling=trusting)
        schemas = self._schema_tokens(record, tools)
        size = request_size(_local_counts(index, schemas), usage, context_tokens)
        may_act = self._may_act(record, size)
        if trusting and may_act and not index.begins(messages):
            index = self._index(record, messages, only_resembling=False)
            size = request_size(_local_counts(index, schemas), usage, context_tokens)
            may_act = self._may_act(record, size)
        record.index = index
        index.memory = record.memory
        return index, size, may_act

    def _may_act(self, record: RunRecord, size: RequestSize) -> bool:
        """Whether the conversation may be changed now, by the strategy or by a cut of what is newest."""
        if size.tokens >= self.window.start_tokens and size.tokens >= record.retry_at:
            return True
        return self.max_result_tokens is not None or 0 < size.tokens - self.window.tokens < size.after

    def _index(self, record: RunRecord, messages: list[ChatMessage], *, only_resembling: bool) -> MessageIndex:
        known = record.index
        if known is None or known.ledger.meter.token_counter is not self.token_counter:
            return MessageIndex(messages, self.token_counter)
        if not (known.resembles(messages) if only_resembling else known.begins(messages)):
            return MessageIndex(messages, self.token_counter)
        known.extend(messages[known.total_message_count :])
        return known

    def _schema_tokens(self, record: RunRecord, tools: Sequence[Any]) -> int:
        if len(tools) != len(record.tools) or any(
            one is not other for one, other in zip(tools, record.tools, strict=True)
        ):
            record.tools = tuple(tools)
            meter = MessageIndex([], self.token_counter).ledger.meter
            # A counter of unknown kind is never asked without messages.
            counter = meter if meter.single_messages else _ESTIMATE
            record.schema_tokens = counter.count([], list(tools)) if tools else 0
        return record.schema_tokens

    # What is done about it

    def _worth_it(self, index: MessageIndex, outcome: Outcome, size: RequestSize) -> Outcome:
        """Take back a pass that freed too little to be worth a new beginning of the provider's prompt cache."""
        if not outcome.compacted or outcome.freed_tokens * size.scale >= self.min_freed_tokens:
            return outcome
        # Of the index that was given: the outcome's is another one where somebody else's compactor was asked.
        left = unchanged(
            index,
            outcome.strategy,
            Reason.NO_GAIN,
            target_tokens=outcome.target_tokens,
            before=outcome.before,
            failures=outcome.failures,
        )
        return replace(left, stages=outcome.stages)

    def _with_cuts(self, outcome: Outcome, size: RequestSize, *, triggered: bool) -> Report:
        """Cut newest results that do not fit even now."""
        index = outcome.index
        tokens_after = size.tokens - size.scale * outcome.freed_tokens
        always = self.max_result_tokens is not None
        # Where the rest alone fills the window, no cut of what came last makes the request fit.
        if index is None or not (always or 0 < tokens_after - self.window.tokens < size.after):
            return Report(outcome, triggered, size, tokens_after, tried=outcome.reason)
        newest = _newest_result_tokens(index)
        room = newest - int((tokens_after - self.window.tokens) / size.scale) - 1
        limit = self.window.tokens / 2 if self.max_result_tokens is None else self.max_result_tokens
        before = index.included_token_count
        cuts = cut_newest_results(
            index,
            room_tokens=room,
            limit_tokens=int(limit / size.scale),
            always=always,
            is_kept=self.compactor.is_pinned,
        )
        if not cuts:
            return Report(outcome, triggered, size, tokens_after, tried=outcome.reason)
        freed, tried = before - index.included_token_count, outcome.reason
        outcome = replace(
            outcome,
            messages=index.included_messages(),
            reason=Reason.COMPACTED,
            after=Size.of(index),
            edits=(*outcome.edits, *cuts),
        )
        size = size._replace(after=size.after - size.scale * freed)
        return Report(outcome, triggered, size, tokens_after - size.scale * freed, has_cuts=True, tried=tried)

    def _remembered(
        self, record: RunRecord, messages: list[ChatMessage], report: Report, context_tokens: int
    ) -> Report:
        """Bring the record up to date, and leave only those warnings that were not given yet."""
        outcome, accounted = report.outcome, None
        if report.tried in _AT_REST and not report.has_cuts:
            return report
        if outcome.compacted and outcome.index is not None:
            record.index = outcome.index.committed()
            if context_tokens and report.size is not None:
                accounted = max(int(report.tokens_after - report.size.after), 1)
        else:
            outcome = replace(outcome, messages=messages)
        warnings = record.first_of_its_kind("cut", _RESULT_CUT) if report.has_cuts else ()
        for failure in outcome.failures:
            warnings += record.first_of_its_kind("failure", failure)
        if report.tried not in _AT_REST and report.tokens_after > self.window.goal_tokens:
            record.retry_at = self._retry_at(report)
            done = report.tried in _DONE_WHAT_MAY_BE and not outcome.failures
            if done and report.tokens_after >= self.window.start_tokens:
                warnings += record.first_of_its_kind("size", _TOO_LARGE)
        return report._replace(outcome=outcome, context_tokens=accounted, warnings=warnings)

    def _retry_at(self, report: Report) -> float:
        """
        The size at which it is worth trying again after a pass that missed its goal.

        What is left has to stay, so only what comes anew can go, and each pass costs the provider's prompt cache. The
        nearer the window, the less there is to wait for. Beyond it nothing is waited for, unless no later pass could
        bring the conversation back into it: then passes get rare.
        """
        window, tokens = self.window, report.tokens_after
        if tokens >= window.tokens:
            index, size = report.outcome.index, report.size
            later = tokens if index is None or size is None else self.compactor.deferred_tokens(index) * size.scale
            return tokens + 1 if tokens - later < window.tokens else tokens * 1.125
        growth = window.retry_tokens
        if tokens >= window.start_tokens:
            growth = max(growth, (window.tokens - tokens) / 2)
        return min(tokens + growth, window.tokens)

    def _at_rest(self, index: MessageIndex, messages: list[ChatMessage], *, triggered: bool) -> Outcome:
        size, reason = Size.of(index), Reason.BACKED_OFF if triggered else Reason.FITS
        return Outcome(messages, reason, size, size, self.compactor.name, index=index)

    def _unmeasured(self, record: RunRecord, messages: list[ChatMessage], failure: str) -> Report:
        record.index = None
        size = Size(0, len(messages), 0)
        outcome = Outcome(messages, Reason.FAILED, size, size, self.compactor.name, failures=(failure,))
        return Report(outcome, triggered=False, warnings=record.first_of_its_kind("failure", failure))


def tell(on_compaction: Callable[[Outcome], object], outcome: Outcome) -> str | None:
    """
    Hand an outcome to a listener.

    :param on_compaction: The listener. It is not given the index, which is a run's memory.
    :param outcome: What was done.
    :returns: What went wrong with the listener, which must not end a run; None if nothing did.
    """
    try:
        on_compaction(replace(outcome, index=None))
    except Exception as error:  # noqa: BLE001 - whatever a listener makes of it is its own
        return f"`on_compaction` raised {type(error).__name__}: {error}"
    return None


def _last_usage(messages: Sequence[ChatMessage]) -> Usage | None:
    """What the provider reported with the newest reply."""
    for message in reversed(messages):
        if message.role is ChatRole.ASSISTANT:
            return Usage.of(message.meta)
    return None


def _local_counts(index: MessageIndex, schemas: int) -> LocalCounts:
    """What the counter says of what stands before, in and after the newest reply."""
    total = index.included_token_count
    position = index.newest_reply_position
    if position is None:
        return LocalCounts(total, 0, 0, schemas)
    reply, *newer = index.ledger.since(position)
    after = sum(newer)
    return LocalCounts(total - reply - after, reply, after, schemas)


def _newest_result_tokens(index: MessageIndex) -> int:
    """What the results of the newest step cost."""
    group = index.newest_step
    if group is None:
        return 0
    return sum(
        index.ledger.at(position)
        for position, message in zip(group.positions, group.messages, strict=True)
        if message.role is ChatRole.TOOL
    )

"""
The Agent's door: from its `State` to a `Compaction` and back, with span tags and one log line.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from haystack import logging
from haystack.components.agents.state import State, replace_values
from haystack.core.serialization import generate_qualified_class_name
from haystack.token_counters import TokenCounter
from haystack.tracing.tracer import is_tracing_enabled, tracer

from haystack_compaction.arguments import check_callback, check_int, check_method, check_optional_int
from haystack_compaction.budget import RequestSize, Window
from haystack_compaction.compaction import Compaction, Report, RunRecord, tell
from haystack_compaction.compactors import (
    MediaCompactor,
    PipelineCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultCollapseCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)
from haystack_compaction.errors import SummaryError
from haystack_compaction.foreign import CompactorLike, as_compactor
from haystack_compaction.lifecycle import HandsOnLifecycle
from haystack_compaction.outcome import Outcome, Reason
from haystack_compaction.serialization import settings_from_dict, settings_to_dict
from haystack_compaction.steps import Steps, drive, drive_async
from haystack_compaction.token_counters import EstimatedTokenCounter

logger = logging.getLogger(__name__)

_TAG = "haystack.agent.hook.compaction."

_SETTINGS = (
    "compactor",
    "context_window",
    "compact_at",
    "compact_to",
    "token_counter",
    "max_output_tokens",
    "min_freed_tokens",
    "max_result_tokens",
    "on_compaction",
)


class CompactionHook(HandsOnLifecycle):
    """
    Keeps an Agent's conversation inside the model's context window.

    Before each model call the hook estimates the request. Once it fills `compact_at` of the window, the compactor is
    asked to bring it down to `compact_to`. The estimate hangs on what the provider reported with the last reply; only
    what came since is counted, so a step costs what its new messages cost.

    ```python
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import MockChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import CompactionHook, ToolResultPruningCompactor

    hook = CompactionHook(ToolResultPruningCompactor(), context_window=128_000)
    agent = Agent(chat_generator=MockChatGenerator("Done."), hooks={"before_llm": [hook]})
    print(agent.run(messages=[ChatMessage.from_user("Hello")])["last_message"].text)
    ```

    One hook serves many runs at once. A run can differ from what the hook was built with:
    `agent.run(..., hook_context={"compactor": ..., "token_counter": ..., "compaction_enabled": False})`.

    Nothing that fails here ends the run or changes the conversation; it is said once in the log. Under `after_run` the
    same hook shortens what the Agent returns, for storing.
    """

    allowed_hook_points = ("before_llm", "after_run")

    def __init__(  # noqa: PLR0913 - Haystack's own parameters and those that are named in the README
        self,
        compactor: CompactorLike,
        *,
        context_window: int,
        compact_at: float = 0.7,
        compact_to: float = 0.4,
        token_counter: TokenCounter | None = None,
        max_output_tokens: int = 0,
        min_freed_tokens: int = 0,
        max_result_tokens: int | None = None,
        on_compaction: Callable[[Outcome], object] | None = None,
    ) -> None:
        """
        Initialize the hook.

        :param compactor: The strategy: one of ours, of Haystack's, or anything with the same `compact` method.
        :param context_window: The model's context window in tokens. Everything else is a fraction of it, so another
            model means another number here.
        :param compact_at: The fraction of the window at which compaction starts. A higher value uses more of the
            window, and leaves less room for an estimate that is off. 0.7 is Haystack's default.
        :param compact_to: The fraction that it aims at. A lower value compacts less often, which keeps the provider's
            prompt cache longer, and loses more each time. 0.4 is Haystack's default.
        :param token_counter: The counter for what the provider has not reported on yet. Defaults to
            `EstimatedTokenCounter`, which works offline.
        :param max_output_tokens: What the reply may take of the window, taken off before the fractions.
        :param min_freed_tokens: A compaction that would free fewer of the model's tokens is not applied, so that the
            prompt cache is not thrown away for little.
        :param max_result_tokens: What a newest tool result may cost, in the model's tokens. A larger one is cut to head
            and tail. None: a result is cut only where it does not fit, to what is left and at most half the window.
        :param on_compaction: Called with the outcome of each pass that was tried, whether it changed anything or not.
            An importable function, if the hook is to be saved.
        :raises TypeError: If an argument is of the wrong type.
        :raises ValueError: If a number or fraction makes no sense.
        """
        self.compactor = compactor
        self.context_window = context_window
        self.compact_at = compact_at
        self.compact_to = compact_to
        self.token_counter = EstimatedTokenCounter() if token_counter is None else token_counter
        self.max_output_tokens = max_output_tokens
        self.min_freed_tokens = min_freed_tokens
        self.max_result_tokens = max_result_tokens
        self.on_compaction = on_compaction
        check_method("token_counter", self.token_counter, "count", example="EstimatedTokenCounter()")
        check_int("min_freed_tokens", min_freed_tokens, minimum=0)
        check_optional_int("max_result_tokens", max_result_tokens, minimum=1)
        check_callback("on_compaction", on_compaction)
        self._compaction = Compaction(
            as_compactor("compactor", compactor),
            self.token_counter,
            Window(context_window, compact_at, compact_to, max_output_tokens),
            min_freed_tokens,
            max_result_tokens,
        )
        self._records: WeakKeyDictionary[State, RunRecord] = WeakKeyDictionary()

    @classmethod
    def for_context_window(
        cls, max_context_window_tokens: int, max_output_tokens: int, chat_generator: Any = None
    ) -> "CompactionHook":
        """
        Build a hook with the default strategy for a window: gentle stages first, each asked only if it takes more.

        Old images and files become a line, then the content of old tool results goes, then old tool calls become a line
        each, then the oldest turns and steps go and leave a note with what of them is still needed; with a chat
        generator they are condensed by it before. What is too large even then is truncated.

        :param max_context_window_tokens: The model's context window in tokens.
        :param max_output_tokens: What the reply may take of it.
        :param chat_generator: A model that condenses old history; None for no stage of summaries. What it writes
            becomes part of the conversation, so trust it as much as the Agent's own.
        :returns: A hook with a `PipelineCompactor`.
        :raises TypeError: If the chat generator is none.
        :raises ValueError: If a number makes no sense.
        """
        stages = [
            MediaCompactor(),
            ToolResultPruningCompactor(),
            ToolResultCollapseCompactor(),
            *([] if chat_generator is None else [SummarizationCompactor(chat_generator)]),
            SlidingWindowCompactor(),
            TruncationCompactor(),
        ]
        return cls(
            PipelineCompactor(stages), context_window=max_context_window_tokens, max_output_tokens=max_output_tokens
        )

    def run(self, state: State) -> None:
        """
        Shorten the conversation in an Agent's state, if it has grown too large.

        :param state: The Agent's live state, changed in place.
        :raises SummaryError: If a compactor with `raise_on_failure=True` got no summary.
        """
        try:
            work = self._work(state)
            if work is None:
                return
            compaction, record = work
            self._finish(state, record, compaction, drive(_steps(compaction, record, state)))
        except SummaryError:
            raise  # by choice
        except Exception as error:  # noqa: BLE001 - nothing of ours ends an Agent's run
            self._give_up(state, error)

    async def run_async(self, state: State) -> None:
        """
        Shorten the conversation in an Agent's state without holding up the event loop.

        :param state: The Agent's live state, changed in place.
        :raises SummaryError: If a compactor with `raise_on_failure=True` got no summary.
        """
        try:
            work = self._work(state)
            if work is None:
                return
            compaction, record = work
            self._finish(state, record, compaction, await drive_async(_steps(compaction, record, state)))
        except SummaryError:
            raise  # by choice
        except Exception as error:  # noqa: BLE001 - nothing of ours ends an Agent's run
            self._give_up(state, error)

    def _work(self, state: State) -> tuple[Compaction, RunRecord] | None:
        """What to do in this run, and what is remembered of it; None where compaction is switched off."""
        record = self._records.get(state)
        if record is None:
            record = self._records[state] = RunRecord(memory={})
        context = state.data.get("hook_context")
        if not context or not isinstance(context, Mapping):
            return self._compaction, record
        if context.get("compaction_enabled", True) is False:
            return None
        compaction = self._compaction
        if context.get("compactor") is not None:
            override = self._override(record, "compactor", context["compactor"], "compact")
            if override is not None:
                compaction = replace(compaction, compactor=as_compactor("compactor", override))
        if context.get("token_counter") is not None:
            override = self._override(record, "token_counter", context["token_counter"], "count")
            if override is not None:
                compaction = replace(compaction, token_counter=override)
        return compaction, record

    def _override(self, record: RunRecord, name: str, value: Any, method: str) -> Any:
        """A part that the run brought along, unless it is none: then the hook's own is used."""
        try:
            check_method(f'hook_context["{name}"]', value, method, example="what the hook was built with")
        except TypeError as error:
            _warn_once(record, name, f"{error} The hook's own is used.")
            return None
        return value

    def _finish(self, state: State, record: RunRecord, compaction: Compaction, report: Report | RequestSize) -> None:
        """Write back what was done, and tell of it."""
        if not isinstance(report, Report):
            return
        outcome = report.outcome
        if outcome.compacted:
            # A copy, because a listener is given the outcome as well.
            state.set("messages", list(outcome.messages), handler_override=replace_values)
            if report.context_tokens is not None:
                state.set("context_tokens", report.context_tokens)
            logger.debug(
                "Compacted the Agent's conversation at step {step}: {tokens_before} to {tokens_after} tokens, "
                "{before} to {after} messages, {edits} edits by {strategy}.",
                step=state.data.get("step_count", 0),
                tokens_before=outcome.before.tokens,
                tokens_after=outcome.after.tokens,
                before=outcome.before.messages,
                after=outcome.after.messages,
                edits=len(outcome.edits),
                strategy=outcome.strategy,
            )
        for warning in report.warnings:
            logger.warning("{warning}", warning=warning)
        _set_tags(report, compaction)
        if self.on_compaction is not None and outcome.reason not in (Reason.FITS, Reason.BACKED_OFF):
            failure = tell(self.on_compaction, outcome)
            if failure is not None:
                _warn_once(record, "on_compaction", failure)

    def _give_up(self, state: State, error: Exception) -> None:
        record = self._records.setdefault(state, RunRecord(memory={}))
        record.index = None
        _warn_once(record, "failure", f"The conversation was not compacted: {type(error).__name__}: {error}")

    def lifecycle_parts(self) -> list[Any]:
        """
        Return what is warmed up and closed with the hook.
        """
        return [self.token_counter, self.compactor]

    def to_dict(self) -> dict[str, Any]:
        """
        Serialise the hook with its parts.

        :returns: A dictionary in Haystack's form.
        """
        return settings_to_dict(self, _SETTINGS)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CompactionHook":
        """
        Build a hook from its serialised form.

        :param data: What `to_dict` returned.
        :returns: An equal hook.
        :raises DeserializationError: If a parameter is unknown or cannot be built; the text names it.
        """
        return settings_from_dict(cls, data, functions=("on_compaction",))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _SETTINGS)

    def __hash__(self) -> int:
        return hash((type(self), self.context_window, self.compact_at, self.compact_to))

    def __getstate__(self) -> dict[str, Any]:
        # What is remembered of runs belongs to this process.
        return {**self.__dict__, "_records": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_records": WeakKeyDictionary()})

    def __repr__(self) -> str:
        return f"CompactionHook({self.compactor!r}, context_window={self.context_window})"


def _steps(compaction: Compaction, record: RunRecord, state: State) -> Steps[Report | RequestSize]:
    """What to do about the request that the Agent is about to send. Only a trace wants to know of one that fits."""
    steps = compaction.steps if is_tracing_enabled() else compaction.changes
    context_tokens = state.data.get("context_tokens")
    return steps(
        record,
        state.data.get("messages") or [],
        context_tokens=context_tokens if isinstance(context_tokens, int) else 0,
        tools=state.data.get("tools") or (),
    )


def _warn_once(record: RunRecord, kind: str, text: str) -> None:
    for warning in record.first_of_its_kind(kind, text):
        logger.warning("{warning}", warning=warning)


def _set_tags(report: Report, compaction: Compaction) -> None:
    """Tag the current span as Haystack's own hook does, and with the sizes before and after."""
    span = tracer.current_span() if is_tracing_enabled() else None
    if span is None:
        return
    outcome = report.outcome
    compactor = getattr(compaction.compactor, "compactor", compaction.compactor)
    tags: dict[str, Any] = {
        "strategy": generate_qualified_class_name(type(compactor)),
        "estimated_context_tokens": round(report.size.tokens) if report.size is not None else 0,
        "triggered": report.triggered,
        "reason": outcome.reason.value,
    }
    if report.triggered or outcome.compacted:
        tags["compacted"] = outcome.compacted
    if outcome.target_tokens is not None:
        tags["target_tokens"] = outcome.target_tokens
    for name, size in (("before", outcome.before), ("after", outcome.after)):
        tags |= {f"{unit}_{name}": number for unit, number in size.to_dict().items()}
    span.set_tags({f"{_TAG}{name}": value for name, value in tags.items()})

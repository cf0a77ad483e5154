"""
The doors without an Agent: a function for any list, and a component for pipelines.
"""

from collections.abc import Callable, Sequence
from typing import Any

from haystack import component, logging
from haystack.dataclasses import ChatMessage
from haystack.token_counters import TokenCounter
from haystack.tools import ToolsType, flatten_tools_or_toolsets

from haystack_compaction.arguments import check_callback, check_messages, check_method, check_optional_int
from haystack_compaction.budget import Window
from haystack_compaction.compaction import Compaction, Report, RunRecord, tell
from haystack_compaction.compactor import Compactor
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.foreign import CompactorLike, as_compactor
from haystack_compaction.lifecycle import HandsOnLifecycle
from haystack_compaction.outcome import Outcome, Reason
from haystack_compaction.serialization import settings_from_dict, settings_to_dict
from haystack_compaction.steps import Steps, drive, drive_async
from haystack_compaction.token_counters import EstimatedTokenCounter

logger = logging.getLogger(__name__)

_SETTINGS = (
    "compactor",
    "context_window",
    "compact_at",
    "compact_to",
    "target_tokens",
    "token_counter",
    "on_compaction",
)


def apply_compaction(
    messages: list[ChatMessage],
    compactor: CompactorLike,
    *,
    token_counter: TokenCounter | None = None,
    target_tokens: int | None = None,
) -> list[ChatMessage]:
    """
    Shorten any conversation, without an Agent.

    :param messages: The conversation, oldest first. Neither the list nor its messages are changed.
    :param compactor: The strategy.
    :param token_counter: The counter to measure with. Defaults to `EstimatedTokenCounter`.
    :param target_tokens: The size to reach, in tokens of the counter. None leaves it to the compactor's own target or
        trigger; without any the strategy does all that it may.
    :returns: A new, shorter list, or the list that was given where there is nothing to shorten.
    :raises TypeError: If an argument is of the wrong type.
    :raises ValueError: If there is no target, and the strategy needs one.
    """
    return _told(drive(_one_pass(messages, compactor, token_counter, target_tokens)), messages)


async def apply_compaction_async(
    messages: list[ChatMessage],
    compactor: CompactorLike,
    *,
    token_counter: TokenCounter | None = None,
    target_tokens: int | None = None,
) -> list[ChatMessage]:
    """
    Shorten any conversation without holding up the event loop.

    :param messages: The conversation, oldest first. Neither the list nor its messages are changed.
    :param compactor: The strategy.
    :param token_counter: The counter to measure with. Defaults to `EstimatedTokenCounter`.
    :param target_tokens: The size to reach, in tokens of the counter, or None.
    :returns: A new, shorter list, or the list that was given where there is nothing to shorten.
    :raises TypeError: If an argument is of the wrong type.
    :raises ValueError: If there is no target, and the strategy needs one.
    """
    return _told(await drive_async(_one_pass(messages, compactor, token_counter, target_tokens)), messages)


def _one_pass(
    messages: list[ChatMessage],
    compactor: CompactorLike,
    token_counter: TokenCounter | None,
    target_tokens: int | None,
) -> Steps[Outcome]:
    """Check what was given, and return the steps of one pass."""
    check_messages("messages", messages)
    check_optional_int("target_tokens", target_tokens, minimum=0, why="Use 0 for as small as it can get.")
    counter = EstimatedTokenCounter() if token_counter is None else token_counter
    check_method("token_counter", counter, "count", example="EstimatedTokenCounter()")
    ours = as_compactor("compactor", compactor)
    ours.goal(target_tokens)
    return ours.steps(MessageIndex(messages, counter), target_tokens)


def _told(outcome: Outcome, messages: list[ChatMessage]) -> list[ChatMessage]:
    """Say what failed, and return the conversation."""
    return _said(outcome, outcome.warnings, messages)


def _said(outcome: Outcome, warnings: Sequence[str], messages: list[ChatMessage]) -> list[ChatMessage]:
    """Give the warnings of a pass, and return the conversation."""
    for warning in warnings:
        logger.warning("{warning}", warning=warning)
    return outcome.messages if outcome.compacted else messages


@component
class ChatMessageCompactor(HandsOnLifecycle):
    """
    Shortens a conversation in a pipeline, for instance between a message store's retriever and a chat generator.

    With a `context_window` it works as `CompactionHook` does, except that it has to count the whole conversation
    itself. With `target_tokens` it shortens whatever is larger.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import ChatMessageCompactor, ToolResultPruningCompactor

    compactor = ChatMessageCompactor(ToolResultPruningCompactor(), context_window=128_000)
    result = compactor.run(messages=[ChatMessage.from_user("Hello")])
    print(result["messages"], result["report"]["reason"])
    ```
    """

    def __init__(  # noqa: PLR0913 - Haystack's own names for window and fractions
        self,
        compactor: CompactorLike,
        *,
        context_window: int | None = None,
        compact_at: float = 0.7,
        compact_to: float = 0.4,
        target_tokens: int | None = None,
        token_counter: TokenCounter | None = None,
        on_compaction: Callable[[Outcome], object] | None = None,
    ) -> None:
        """
        Initialize the component.

        :param compactor: The strategy: one of ours, of Haystack's, or anything with the same `compact` method.
        :param context_window: The model's context window in tokens. The conversation is shortened once it fills
            `compact_at` of it, down to `compact_to`.
        :param compact_at: The fraction of the window at which compaction starts.
        :param compact_to: The fraction that it aims at.
        :param target_tokens: The size to reach, in tokens of the counter, for a conversation of any size above it.
        :param token_counter: The counter to measure with. Defaults to `EstimatedTokenCounter`.
        :param on_compaction: Called with the outcome of each pass that was tried. An importable function, if the
            pipeline is to be saved.
        :raises TypeError: If an argument is of the wrong type.
        :raises ValueError: If a number or fraction makes no sense, if both sizes are given, or if none is and the
            compactor has neither trigger nor target of its own.
        """
        self.compactor = compactor
        self.context_window = context_window
        self.compact_at = compact_at
        self.compact_to = compact_to
        self.target_tokens = target_tokens
        self.token_counter = EstimatedTokenCounter() if token_counter is None else token_counter
        self.on_compaction = on_compaction
        check_method("token_counter", self.token_counter, "count", example="EstimatedTokenCounter()")
        check_optional_int("target_tokens", target_tokens, minimum=0, why="Use 0 for as small as it can get.")
        check_callback("on_compaction", on_compaction)
        self._compactor = as_compactor("compactor", compactor)
        self._check_sizes(self._compactor)
        # Fractions are checked without a window too, so that a slip shows before one is set.
        window = Window(1 if context_window is None else context_window, compact_at, compact_to)
        self._compaction = Compaction(self._compactor, self.token_counter, window)

    def _check_sizes(self, compactor: Compactor) -> None:
        if self.context_window is not None and self.target_tokens is not None:
            raise ValueError(
                "`context_window` and `target_tokens` must not both be given: the first shortens what fills a window, "
                f"the second whatever is larger, got {self.context_window} and {self.target_tokens}."
            )
        if self.context_window is None and self.target_tokens is None and not compactor.has_own_goal:
            raise ValueError(
                "`context_window` or `target_tokens` must be given, got neither, and the compactor has no `trigger` of "
                "its own: nothing would say when a conversation is too large."
            )

    @component.output_types(messages=list[ChatMessage], report=dict[str, Any])
    def run(
        self, messages: list[ChatMessage], target_tokens: int | None = None, tools: ToolsType | None = None
    ) -> dict[str, Any]:
        """
        Shorten a conversation, if it is too large.

        :param messages: The conversation, oldest first.
        :param target_tokens: The size to reach in this run, in tokens of the counter; overrides what the component was
            built with.
        :param tools: Tools whose schemas are sent along and so take room of the window.
        :returns: `messages`, shortened or as given, and `report`, what was done as plain data.
        :raises TypeError: If an argument is of the wrong type.
        :raises ValueError: If `target_tokens` is negative.
        """
        return self._answer(*drive(self._steps(messages, target_tokens, tools)), messages)

    @component.output_types(messages=list[ChatMessage], report=dict[str, Any])
    async def run_async(
        self, messages: list[ChatMessage], target_tokens: int | None = None, tools: ToolsType | None = None
    ) -> dict[str, Any]:
        """
        Shorten a conversation without holding up the event loop.

        :param messages: The conversation, oldest first.
        :param target_tokens: The size to reach in this run, in tokens of the counter.
        :param tools: Tools whose schemas are sent along and so take room of the window.
        :returns: `messages`, shortened or as given, and `report`, what was done as plain data.
        :raises TypeError: If an argument is of the wrong type.
        :raises ValueError: If `target_tokens` is negative.
        """
        return self._answer(*await drive_async(self._steps(messages, target_tokens, tools)), messages)

    def _steps(
        self, messages: list[ChatMessage], target_tokens: int | None, tools: ToolsType | None
    ) -> Steps[tuple[Outcome, Sequence[str]]]:
        check_messages("messages", messages)
        check_optional_int("target_tokens", target_tokens, minimum=0, why="Use 0 for as small as it can get.")
        target = self.target_tokens if target_tokens is None else target_tokens
        if target is None and self.context_window is not None:
            flat_tools = flatten_tools_or_toolsets(tools) if tools else []
            # What was reported with the last reply may belong to a request that was shortened: it is not used here.
            return _of_report(self._compaction.steps(RunRecord(), messages, tools=flat_tools))
        return _of_outcome(self._compactor.steps(MessageIndex(messages, self.token_counter), target))

    def _answer(self, outcome: Outcome, warnings: Sequence[str], messages: list[ChatMessage]) -> dict[str, Any]:
        shorter = _said(outcome, warnings, messages)
        if self.on_compaction is not None and outcome.reason is not Reason.FITS:
            failure = tell(self.on_compaction, outcome)
            if failure is not None:
                logger.warning("{failure}", failure=failure)
        return {"messages": shorter, "report": outcome.to_dict()}

    def lifecycle_parts(self) -> list[Any]:
        """
        Return what is warmed up and closed with the component.
        """
        return [self.token_counter, self.compactor]

    def to_dict(self) -> dict[str, Any]:
        """
        Serialise the component with its parts.

        :returns: A dictionary in Haystack's form.
        """
        return settings_to_dict(self, _SETTINGS)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ChatMessageCompactor":
        """
        Build a component from its serialised form.

        :param data: What `to_dict` returned.
        :returns: The component.
        :raises DeserializationError: If a parameter is unknown or cannot be built; the text names it.
        """
        return settings_from_dict(cls, data, functions=("on_compaction",))


def _of_report(steps: Steps[Report]) -> Steps[tuple[Outcome, Sequence[str]]]:
    report = yield from steps
    return report.outcome, report.warnings


def _of_outcome(steps: Steps[Outcome]) -> Steps[tuple[Outcome, Sequence[str]]]:
    outcome = yield from steps
    return outcome, outcome.warnings

"""
A conversation within a model's window, in two stages of Microsoft's Agent Framework.
"""

from dataclasses import KW_ONLY, dataclass

from haystack_compaction.arguments import check_int
from haystack_compaction.compactors.stages import Composition, Plan, Stage, aimed, goal_within, smaller_budget
from haystack_compaction.compactors.tool_result_collapse import ToolResultCollapseCompactor
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation import MessageIndex


@dataclass(frozen=True)
class ContextWindowCompactor(Composition):
    """
    Two stages for a model's window: above a half old tool calls become short lines, above that the oldest groups go.

    Both are measured on the window less the room for the reply. A budget of the caller's can lower the limits, never
    raise them.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import ContextWindowCompactor, EstimatedTokenCounter

    messages = [ChatMessage.from_user("Count."), *(ChatMessage.from_assistant(f"{n} " * 100) for n in range(50))]
    compactor = ContextWindowCompactor(8_000, 1_000)
    counter = EstimatedTokenCounter()
    assert counter.count(compactor.compact(messages, None, counter)) <= 3_500
    ```

    :param max_context_window_tokens: The model's context window, in the model's tokens.
    :param max_output_tokens: What the reply may take of it, taken off first.
    :param tool_eviction_threshold: The fraction of what is left above which old tool calls are collapsed, and down to
        which the oldest groups go.
    :param truncation_threshold: The fraction above which the oldest groups go, at least `tool_eviction_threshold`.
        Between the two, nothing but tool calls is touched.
    :param keep_last_tool_call_groups: The newest tool calls that stay as they are while old ones are collapsed.
    :param trigger: When to do anything at all; None: whenever the first limit is passed.
    :param target: When it is enough beyond keeping within the first limit.
    :param min_keep_groups: The newest groups that stay in both stages.
    :param pin_first_user_message: Whether the first message of the user stays.
    :param pin_meta_keys: Messages whose metadata has one of these keys stay as they are.
    :raises TypeError: If a setting is of the wrong type.
    :raises ValueError: If a setting has a value that makes no sense.
    """

    max_context_window_tokens: int
    max_output_tokens: int
    _: KW_ONLY
    tool_eviction_threshold: float = 0.5
    truncation_threshold: float = 0.8
    keep_last_tool_call_groups: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("max_context_window_tokens", self.max_context_window_tokens, minimum=1)
        check_int("max_output_tokens", self.max_output_tokens, minimum=0)
        check_int("keep_last_tool_call_groups", self.keep_last_tool_call_groups, minimum=0)
        self._check_shares()
        gentle = ToolResultCollapseCompactor(keep_last_tool_call_groups=self.keep_last_tool_call_groups)
        self._run_as(gentle, TruncationCompactor())

    def _check_shares(self) -> None:
        if self.max_output_tokens >= self.max_context_window_tokens:
            raise ValueError(
                f"`max_output_tokens` must be smaller than `max_context_window_tokens`, got {self.max_output_tokens} "
                f"of {self.max_context_window_tokens}. Nothing would be left for the conversation."
            )
        thresholds = (self.tool_eviction_threshold, self.truncation_threshold)
        for name, value in zip(("tool_eviction_threshold", "truncation_threshold"), thresholds, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"`{name}` must be a fraction between 0 and 1, got {value!r}.")
        if not 0 < self.tool_eviction_threshold <= self.truncation_threshold <= 1:
            raise ValueError(
                "`tool_eviction_threshold` and `truncation_threshold` must satisfy 0 < tool_eviction_threshold <= "
                f"truncation_threshold <= 1, got {thresholds[0]} and {thresholds[1]}. Groups would go before anything "
                "gentler was tried."
            )

    def plan(self, index: MessageIndex, target_tokens: int | None) -> Plan:
        """
        Return the two stages with their limits.

        :param index: The conversation.
        :param target_tokens: The caller's budget, in tokens of the index's counter, or None.
        :returns: The goal and the stages.
        """
        first, second = (
            smaller_budget(self._limit(threshold), target_tokens, index.scale)
            for threshold in (self.tool_eviction_threshold, self.truncation_threshold)
        )
        goal, condition = goal_within(first, self.target)
        collapse, truncation = (aimed(compactor, condition) for compactor in self._stages)
        return Plan(goal, (Stage(collapse, first, first), Stage(truncation, first, second)), first)

    def _limit(self, threshold: float) -> int:
        return int((self.max_context_window_tokens - self.max_output_tokens) * threshold)

"""
Compactors one after another, gentlest first, until it is enough.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from haystack_compaction.arguments import check_bool
from haystack_compaction.compactor import Compactor
from haystack_compaction.compactors.stages import Composition, Plan, Stage, aimed, as_stages
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.foreign import CompactorLike
from haystack_compaction.goal import Goal


@dataclass(frozen=True)
class PipelineCompactor(Composition):
    """
    Runs compactors in order, gentlest first, until it is enough.

    Each goes by its own trigger and target, and where it has no target by the whole's; sizes are taken again in
    between. One that fails, or gains nothing, leaves what those before it did. What each of them freed is in the
    outcome's `stages`.

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction import EstimatedTokenCounter, PipelineCompactor, ToolResultPruningCompactor, TokensExceed

    messages = [ChatMessage.from_user("Compare the two files.")]
    for name in ("a.txt", "b.txt"):
        call = ToolCall(tool_name="read_file", arguments={"path": name}, id=name)
        messages.append(ChatMessage.from_assistant(tool_calls=[call]))
        messages.append(ChatMessage.from_tool("a line of the file. " * 1_000, origin=call))

    compactor = PipelineCompactor(
        [ToolResultPruningCompactor(min_tokens=1_000), ToolResultPruningCompactor(trigger=TokensExceed(6_000))]
    )
    shorter = compactor.compact(messages, 5_500, EstimatedTokenCounter())
    print(shorter[2].tool_call_result.result)
    ```

    :param compactors: The compactors: ours, Haystack's own, or anything with the same `compact` method.
    :param early_stop: Whether no further one is asked once the target is met. False asks each of them, which makes
        sense where they have targets of their own.
    :param trigger: When to do anything at all; None: whenever asked to.
    :param target: When it is enough. Defaults to the caller's budget, and where there is none either, to the opposite
        of the trigger.
    :param min_keep_groups: The newest groups that stay, whichever compactor is at work.
    :param pin_first_user_message: Whether the first message of the user stays.
    :param pin_meta_keys: Messages whose metadata has one of these keys stay as they are.
    :raises TypeError: If a setting is of the wrong type, or an entry is no compactor.
    :raises ValueError: If there is no compactor, or a setting has a value that makes no sense.
    """

    compactors: Sequence[CompactorLike]
    _: KW_ONLY
    early_stop: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("early_stop", self.early_stop)
        compactors = as_stages("compactors", self.compactors)
        object.__setattr__(self, "compactors", compactors)
        self._run_as(*(aimed(compactor, self.target) for compactor in compactors))

    @property
    def has_own_goal(self) -> bool:
        """
        Whether it knows by itself when to begin and end: by its own trigger or target, or by those of every stage.
        """
        own = self.trigger is not None or self.target is not None
        return own or all(stage.has_own_goal for stage in self._stages)

    def goal(self, target_tokens: int | None) -> Goal:
        """
        Return how far a pass with a budget is to go.

        :param target_tokens: The caller's budget, or None.
        :returns: The pipeline's own target, else the budget, else the opposite of the trigger.
        :raises ValueError: If there is none of them and one of the compactors needs it; the text says which.
        """
        goal = self._own_goal(target_tokens)
        for number, stage in enumerate(self._stages_for(goal, target_tokens)):
            try:
                stage.compactor.goal(stage.target_tokens)
            except ValueError as error:
                raise ValueError(
                    f"`compactors[{number}]` of {self.name} has nothing to go by: {error} Give it one, or give "
                    f"`target_tokens` to the whole."
                ) from error
        return goal

    def plan(self, index: MessageIndex, target_tokens: int | None) -> Plan:
        """
        Return the compactors in order.

        :param index: The conversation.
        :param target_tokens: The caller's budget, in tokens of the index's counter, or None.
        :returns: The goal and the stages.
        """
        goal = self._own_goal(target_tokens)
        return Plan(goal, self._stages_for(goal, target_tokens), early_stop=self.early_stop)

    def _own_goal(self, target_tokens: int | None) -> Goal:
        return Compactor.goal(self, target_tokens)

    def _stages_for(self, goal: Goal, target_tokens: int | None) -> tuple[Stage, ...]:
        # A goal that is no budget is handed on as a target; that of the whole itself was when it was built.
        condition = goal.condition if goal.target_tokens is None else None
        return tuple(Stage(aimed(compactor, condition), target_tokens) for compactor in self._stages)

"""
A conversation within a fixed budget: compactors in order, and in the end the oldest groups go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

from haystack_compaction.arguments import check_bool, check_int
from haystack_compaction.compactor import Compactor
from haystack_compaction.compactors.stages import (
    Composition,
    Plan,
    Stage,
    aimed,
    as_stages,
    goal_within,
    smaller_budget,
)
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Edit, drop
from haystack_compaction.foreign import CompactorLike
from haystack_compaction.groups import MessageGroupKind
from haystack_compaction.validity import Allowance


@dataclass(frozen=True)
class TokenBudgetCompactor(Composition):
    """
    Keeps a conversation within a fixed budget: compactors in order, and in the end the oldest groups go.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import EstimatedTokenCounter, TokenBudgetCompactor, ToolResultPruningCompactor

    messages = [ChatMessage.from_user("Count."), *(ChatMessage.from_assistant(f"{n} " * 100) for n in range(50))]
    compactor = TokenBudgetCompactor(2_000, [ToolResultPruningCompactor()])
    counter = EstimatedTokenCounter()
    assert counter.count(compactor.compact(messages, None, counter)) <= 2_000
    ```

    :param token_budget: The size to keep within, in the model's tokens, at least 1. A smaller budget of the caller's
        is kept instead.
    :param compactors: The compactors, gentlest first: ours, Haystack's own, or anything with the same `compact` method.
    :param early_stop: Whether no further one is asked once the budget is kept.
    :param strict: Whether even instructions go, oldest first, where nothing else is left. The task, the newest step
        and the last group never go.
    :param trigger: When to do anything at all; None: whenever the budget is passed.
    :param target: When it is enough beyond keeping within the budget, so as not to be back at its limit at once.
    :param min_keep_groups: The newest groups that stay, whichever compactor is at work.
    :param pin_first_user_message: Whether the first message of the user stays.
    :param pin_meta_keys: Messages whose metadata has one of these keys stay as they are.
    :raises TypeError: If a setting is of the wrong type, or an entry is no compactor.
    :raises ValueError: If there is no compactor, or a setting has a value that makes no sense.
    """

    token_budget: int
    compactors: Sequence[CompactorLike]
    _: KW_ONLY
    early_stop: bool = True
    strict: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("token_budget", self.token_budget, minimum=1)
        check_bool("early_stop", self.early_stop)
        check_bool("strict", self.strict)
        compactors = as_stages("compactors", self.compactors)
        object.__setattr__(self, "compactors", compactors)
        last_resort = (TruncationCompactor(), *((InstructionRemoval(),) if self.strict else ()))
        self._run_as(*compactors, *last_resort)

    def plan(self, index: MessageIndex, target_tokens: int | None) -> Plan:
        """
        Return the compactors in order, those of the last resort included.

        :param index: The conversation.
        :param target_tokens: The caller's budget, in tokens of the index's counter, or None.
        :returns: The goal and the stages.
        """
        limit = smaller_budget(self.token_budget, target_tokens, index.scale)
        goal, condition = goal_within(limit, self.target)
        stages = tuple(Stage(aimed(compactor, condition), limit) for compactor in self._stages)
        return Plan(goal, stages, limit, early_stop=self.early_stop)


@dataclass(frozen=True, kw_only=True)
class InstructionRemoval(Compactor):
    """
    Removes instructions, oldest first, but never the last group: what is left to do where a budget is strict.
    """

    @property
    def allowance(self) -> Allowance:
        """
        Instructions may go.
        """
        return Allowance(system=True)

    def propose(self, index: MessageIndex) -> Iterable[Edit]:
        """
        Yield one edit a group.

        :param index: The conversation.
        :returns: Edits that remove instructions.
        """
        for group in index.included_groups():
            pinned = any(self.is_pinned(message) for message in group.messages)
            if group.kind is MessageGroupKind.SYSTEM and not pinned and index.included_group_count > 1:
                yield drop(group, reason="instructions, because the budget is strict")

"""
How far a pass of compaction is to go.
"""

from dataclasses import dataclass

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.triggers import Condition


@dataclass(frozen=True, slots=True)
class Goal:
    """
    How far a pass is to go.

    :param condition: Holds as soon as it is enough; None where everything goes that may.
    :param target_tokens: The budget that the condition stands for, if it is one.
    """

    condition: Condition | None = None
    target_tokens: int | None = None

    def met(self, index: MessageIndex) -> bool:
        """
        Return whether it is enough.

        :param index: The conversation as it is now.
        """
        return self.condition is not None and self.condition(index)


@dataclass(frozen=True, slots=True)
class BudgetGoal(Goal):
    """
    A goal that is nothing but a budget. It is asked after each edit, so it asks the ledger directly.
    """

    def met(self, index: MessageIndex) -> bool:
        """
        Return whether the conversation is within the budget.

        :param index: The conversation as it is now.
        """
        return index.ledger.included <= (self.target_tokens or 0)

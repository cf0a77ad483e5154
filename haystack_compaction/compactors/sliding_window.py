"""
The window: instructions, task, and as much whole recent conversation as there is room for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from haystack_compaction.arguments import check_int, check_optional_int, check_text
from haystack_compaction.compactor import Compactor
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Edit
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import SLIDING_WINDOW
from haystack_compaction.notes import NoteStyle, is_foldable
from haystack_compaction.prompts import OMISSION_NOTE
from haystack_compaction.removal import Order, kept_without_user, remove
from haystack_compaction.steps import Steps
from haystack_compaction.validity import Allowance

_STEPS = frozenset({MessageGroupKind.ASSISTANT_TEXT, MessageGroupKind.TOOL_CALL})

_NOT_COUNTED = frozenset({MessageGroupKind.SYSTEM, MessageGroupKind.SUMMARY})


@dataclass(frozen=True, kw_only=True)
class SlidingWindowCompactor(Compactor):
    """
    Keeps instructions, the task, and as much whole recent conversation as the target has room for.

    Earlier turns go first, whole and oldest first, then the task's own steps. A note takes their place: it says how
    many messages were removed over the life of the conversation, and holds what of them the model may still need.
    Earlier summaries stay while there is room. The class is a superset of Haystack's of the same name.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import EstimatedTokenCounter, SlidingWindowCompactor

    messages = [ChatMessage.from_system("Be brief.")]
    for n in range(50):
        messages += [ChatMessage.from_user(f"Question {n}?"), ChatMessage.from_assistant(f"Answer {n}. " * 20)]

    shorter = SlidingWindowCompactor().compact(messages, 500, EstimatedTokenCounter())
    print(shorter[1].text)
    ```

    :param min_keep_steps: The newest steps of the task that stay even where they are larger than the target. More
        keeps more of what the model is working with; 0 lets even the newest completed step go.
    :param min_keep_turns: The newest turns that stay. The newest of all is the task's, and with 1 its older steps may
        go; with more, so many turns stay whole.
    :param omission_note: What is left in the place of what went; `{num_removed}` becomes the number of messages that
        were removed so far. None leaves nothing, and keeps exactly what Haystack's class keeps: there, the last reply
        before the task goes with its turn.
    :param keep_last_turns: A window by count: older turns go whenever there are more, target or not. Messages that
        compaction wrote are not counted. None: only the target decides.
    :param keep_last_groups: The same by groups: messages of the user, replies, and steps with their results.
    :param evidence_tokens: What the note may hold of the messages that went, found without a model: rules and values
        that users gave, identifiers that a later call may need. None: a fifth of the target, between 100 and 1,000. 0:
        nothing. More keeps more known, and leaves less room for the conversation itself.
    """

    min_keep_steps: int = 1
    min_keep_turns: int = 1
    omission_note: str | None = OMISSION_NOTE
    keep_last_turns: int | None = None
    keep_last_groups: int | None = None
    evidence_tokens: int | None = None

    needs_target: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("min_keep_steps", self.min_keep_steps, minimum=0)
        check_int("min_keep_turns", self.min_keep_turns, minimum=1, why="The newest turn is the task's, which stays.")
        if self.omission_note is not None:
            check_text("omission_note", self.omission_note)
        for name in ("keep_last_turns", "keep_last_groups"):
            check_optional_int(name, getattr(self, name), minimum=1, why="Use None for no window by count.")
        check_optional_int("evidence_tokens", self.evidence_tokens, minimum=0)

    @property
    def allowance(self) -> Allowance:
        """
        What the settings allow beyond the contract.
        """
        # Without a note it is Haystack's window to the letter: the last reply before the task goes with its turn.
        return Allowance(newest_step=self.min_keep_steps == 0 or not self.omission_note)

    def goal(self, target_tokens: int | None) -> Goal:
        """
        Return how far a pass with a budget is to go.

        :param target_tokens: The caller's budget, or None.
        :returns: The target or budget and the windows by count; with such a window and neither of the two, a trigger
            only says when to start.
        :raises ValueError: If there is no target, budget, trigger or window by count.
        """
        if not self._counts:
            return super().goal(target_tokens)
        if self._only_counts(target_tokens):
            return Goal(self._is_inside)
        goal = super().goal(target_tokens)
        return Goal(lambda index: goal.met(index) and self._is_inside(index), goal.target_tokens)

    def decide(self, index: MessageIndex, goal: Goal) -> Steps[list[Edit]]:
        """
        Remove what is outside of the windows by count, then whole turns and steps until the goal is met.

        :param index: The conversation.
        :param goal: How far to go.
        :returns: The edits that were carried out.
        """
        kept = self.kept_groups(index)
        outside = self._outside(index, kept)
        units: list[Sequence[MessageGroup]] = [edit.groups for edit in self.orphan_edits(index)]
        units += [[group] for group in outside]
        must_go = len(units) if outside else 0
        if not self._only_counts(goal.target_tokens):
            done_with = kept.union(outside)
            units += _units(index, [group for group in index.included_groups() if group not in done_with])
        style = NoteStyle(SLIDING_WINDOW, self.omission_note, self.evidence_tokens) if self.omission_note else None
        return remove(index, goal, Order(units, must_go=must_go, reason="outside of the window"), style, kept)
        yield  # a generator that needs nothing from outside

    def kept_groups(self, index: MessageIndex) -> set[MessageGroup]:
        """
        Return the groups that must not be removed.

        :param index: The conversation.
        :returns: What every strategy keeps, the newest steps of the task, and the newest turns if more than one.
        """
        kept = super().kept_groups(index) | kept_without_user(index)
        groups = [group for group in index.included_groups() if not group.is_orphan]
        if self.min_keep_steps:
            start = _start_of_task(index)
            steps = [group for group in groups if group.kind in _STEPS and group.positions[0] > start]
            kept.update(steps[-self.min_keep_steps :])
        if self.min_keep_turns > 1:
            turns = _newest_turns(groups, self.min_keep_turns)
            kept.update(group for group in groups if group.turn_index in turns)
        return kept

    @property
    def _counts(self) -> bool:
        """Whether there is a window by count."""
        return self.keep_last_turns is not None or self.keep_last_groups is not None

    def _only_counts(self, target_tokens: int | None) -> bool:
        """Whether nothing but windows by count says how far to go."""
        return self._counts and self.target is None and target_tokens is None

    def _is_inside(self, index: MessageIndex) -> bool:
        """Whether nothing may go for being outside of the windows by count."""
        return not self._outside(index, self.kept_groups(index))

    def _outside(self, index: MessageIndex, kept: set[MessageGroup]) -> list[MessageGroup]:
        """What may go for being outside of the windows by count, oldest first."""
        if not self._counts:
            return []
        groups = [group for group in index.included_groups() if group.kind not in _NOT_COUNTED and not group.is_orphan]
        outside: set[MessageGroup] = set()
        if self.keep_last_turns is not None:
            turns = _newest_turns(groups, self.keep_last_turns)
            outside.update(group for group in groups if group.turn_index not in turns)
        if self.keep_last_groups is not None:
            outside.update(groups[: -self.keep_last_groups])
        return [group for group in groups if group in outside and group not in kept]


def _units(index: MessageIndex, groups: Iterable[MessageGroup]) -> list[Sequence[MessageGroup]]:
    """What goes together: whole earlier turns, steps of the task, and last what compaction wrote of earlier ones."""
    start = _start_of_task(index)
    turns: dict[int | None, list[MessageGroup]] = {}
    steps: list[Sequence[MessageGroup]] = []
    summaries: list[Sequence[MessageGroup]] = []
    for group in groups:
        if group.kind is MessageGroupKind.SUMMARY:
            summaries.extend([] if is_foldable(group) else [[group]])
        elif group.positions[0] > start:
            steps.extend([] if group.is_orphan else [[group]])
        elif not group.is_orphan:
            turns.setdefault(group.turn_index, []).append(group)
    return [*turns.values(), *steps, *summaries]


def _start_of_task(index: MessageIndex) -> int:
    """Where the task stands; without any the whole conversation is its own."""
    return index.task_groups[0].positions[0] if index.task_groups else -1


def _newest_turns(groups: Iterable[MessageGroup], count: int) -> set[int | None]:
    turns = {group.turn_index for group in groups if group.kind not in _NOT_COUNTED and group.turn_index is not None}
    return set(sorted(turns)[-count:])

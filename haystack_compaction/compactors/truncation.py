"""
The oldest groups go: the emergency backstop.
"""

from dataclasses import dataclass
from typing import ClassVar

from haystack_compaction.arguments import check_bool, check_optional_int, check_text
from haystack_compaction.compactor import Compactor
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Edit
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import TRUNCATION
from haystack_compaction.notes import NoteStyle, is_foldable
from haystack_compaction.prompts import OMISSION_NOTE
from haystack_compaction.removal import Order, kept_without_user, remove
from haystack_compaction.steps import Steps
from haystack_compaction.validity import Allowance


@dataclass(frozen=True, kw_only=True)
class TruncationCompactor(Compactor):
    """
    Removes the oldest groups until the target is met, whatever they are: the backstop behind gentler strategies.

    Instructions, the task and the newest step stay. What earlier compaction left goes after everything else; where it
    has to go, one short note takes its place.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import EstimatedTokenCounter, TruncationCompactor

    messages = [ChatMessage.from_system("Be brief.")]
    for n in range(50):
        messages += [ChatMessage.from_user(f"Question {n}?"), ChatMessage.from_assistant(f"Answer {n}. " * 20)]

    shorter = TruncationCompactor().compact(messages, 500, EstimatedTokenCounter())
    print(len(shorter), shorter[1].text)
    ```

    :param min_keep_groups: The newest groups, instructions not counted, that stay out of reach whatever the target. 0
        lets the newest step go too.
    :param preserve_system: Whether instructions stay. Without it they count as any other group, and the oldest are
        the first to go.
    :param omission_note: What is left in the place of what went, for the model to know that something did;
        `{num_removed}` becomes the number of messages that were removed so far. None leaves nothing.
    :param evidence_tokens: What a note may hold of the messages that went, found without a model: rules and values
        that users gave, identifiers that a later call may need. None: a fifth of the target, between 100 and 1,000. 0:
        nothing. More keeps more known, and leaves less room for the conversation itself.
    """

    min_keep_groups: int = 1
    preserve_system: bool = True
    omission_note: str | None = None
    evidence_tokens: int | None = None

    needs_target: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("preserve_system", self.preserve_system)
        if self.omission_note is not None:
            check_text("omission_note", self.omission_note)
        check_optional_int("evidence_tokens", self.evidence_tokens, minimum=0)

    @property
    def allowance(self) -> Allowance:
        """
        What the settings allow beyond the contract.
        """
        return Allowance(system=not self.preserve_system, newest_step=self.min_keep_groups == 0)

    def decide(self, index: MessageIndex, goal: Goal) -> Steps[list[Edit]]:
        """
        Remove the oldest groups until the goal is met.

        :param index: The conversation.
        :param goal: How far to go.
        :returns: The edits that were carried out.
        """
        kept = self.kept_groups(index)
        groups = [group for group in index.included_groups() if not (group in kept or group.is_orphan)]
        units: list[tuple[MessageGroup, ...]] = [edit.groups for edit in self.orphan_edits(index)]
        units += [(group,) for group in groups if group.kind is not MessageGroupKind.SUMMARY]
        without_note = 0 if self.omission_note else len(units)
        units += [(group,) for group in groups if group.kind is MessageGroupKind.SUMMARY and not is_foldable(group)]
        order = Order(units, without_note=without_note, reason="among the oldest")
        style = NoteStyle(TRUNCATION, self.omission_note or OMISSION_NOTE, self.evidence_tokens)
        return remove(index, goal, order, style, kept)
        yield  # a generator that needs nothing from outside

    def kept_groups(self, index: MessageIndex) -> set[MessageGroup]:
        """
        Return the groups that must not be removed.

        :param index: The conversation.
        :returns: What every strategy keeps, and something where no user speaks.
        """
        return super().kept_groups(index) | kept_without_user(index)

"""
Removing whole groups in a given order, no more than needed, with a note in their place that is paid for.

The note is written when the goal is met without it. Where it is not met with it, the note stays in while more goes, and
is then written anew. A note may take half of what a pass frees and what it frees of earlier notes, so each round has
less to make up for than the one before, and there are few of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit, drop, part_users, substitute
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.notes import Limits, NoteStyle, NoteWriter, Written, is_foldable

_FOLDED = "folded into a newer note"


@dataclass(frozen=True, slots=True)
class Order:
    """
    What may go, first to last.

    :param units: Groups that go together, in the order in which they go.
    :param must_go: How many of the units go whatever the goal.
    :param without_note: How many of the units go without being mentioned in a note.
    :param reason: Why they go, in a few words.
    """

    units: Sequence[Sequence[MessageGroup]]
    must_go: int = 0
    without_note: int = 0
    reason: str = "old"


def remove(
    index: MessageIndex, goal: Goal, order: Order, style: NoteStyle | None, kept: set[MessageGroup]
) -> list[Edit]:
    """
    Remove units until the goal is met.

    :param index: The conversation; the edits are carried out.
    :param goal: How far to go.
    :param order: What may go.
    :param style: How the note is written; None: whatever goes leaves none.
    :param kept: Groups that stay; earlier notes among them are not folded.
    :returns: The edits, none where nothing may go or a note would cost more than what goes.
    """
    removal = _Removal(index, goal, order.reason)
    if style is None:
        removal.until_met(order.units, order.must_go)
        return removal.edits()
    silent, spoken = order.units[: order.without_note], order.units[order.without_note :]
    if silent and removal.until_met(silent, order.must_go):
        return removal.edits()
    earlier = [group for group in index.included_groups() if group not in kept and is_foldable(group)]
    noting = _Noting(removal, style, earlier)
    if not noting.is_worth_it(spoken):
        return removal.edits()
    is_met = noting.until_met(spoken, max(order.must_go - len(silent), 0))
    return removal.edits() if is_met or order.units else []


def kept_without_user(index: MessageIndex) -> set[MessageGroup]:
    """
    Return what has to stay of a conversation in which no user speaks, so that something is left.

    :param index: The conversation.
    :returns: The newest step and all summaries, of which a lone one is the task; nothing where there is a real task.
    """
    if any(group.kind is MessageGroupKind.USER for group in index.task_groups):
        return set()
    groups = index.included_groups()
    kept = {group for group in groups if group.kind is MessageGroupKind.SUMMARY and not is_foldable(group)}
    if index.newest_step is not None:
        kept.add(index.newest_step)
    elif not kept:
        kept.update([group for group in groups if not group.is_orphan][-1:] or groups[-1:])
    return kept


class _Removal:
    """
    A pass so far.
    """

    def __init__(self, index: MessageIndex, goal: Goal, reason: str) -> None:
        self.index = index
        self.goal = goal
        self.gone: list[MessageGroup] = []
        self.note: Edit | None = None
        self.reason = reason
        #: What the last unit that went cost.
        self.last_unit_tokens = 0
        self._lines: list[Edit] = []

    def until_met(self, units: Iterable[Sequence[MessageGroup]], must_go: int) -> bool:
        """Remove units, and put lines between neighbours, until the goal is met. Returns whether it is."""
        left = iter(units)
        while self.take(left, must_go):
            if self.is_met():
                return True
            must_go = 0
        return False

    def take(self, left: Iterator[Sequence[MessageGroup]], must_go: int = 0) -> bool:
        """Remove at least some units, until the goal seems met. Returns whether any was left."""
        unit = next(left, None)
        if unit is None:
            return False
        self._take_lines_out()
        last = unit
        while unit is not None:
            for group in unit:
                self.exclude(group, self.reason)
            last = unit
            must_go -= 1
            unit = None if must_go <= 0 and self.goal.met(self.index) else next(left, None)
        self.last_unit_tokens = sum(group.token_count for group in last)
        return True

    def _take_lines_out(self) -> None:
        """Where more goes, a line that parted two messages of the user may stand between nothing."""
        for line in self._lines:
            self.index.exclude(standing_for(line), self.reason)
        self._lines.clear()

    def exclude(self, group: MessageGroup, reason: str) -> None:
        self.index.exclude(group, reason)
        self.gone.append(group)

    def is_met(self) -> bool:
        """Whether the goal is met with all that has to stand between what is left."""
        self._lines.extend(part_users(self.index))
        index, target = self.index, self.goal.target_tokens
        meter = index.ledger.meter
        if meter.additive or target is None:
            return self.goal.met(index)
        if not meter.single_messages and not all(group.is_whole for group in index.included_groups()):
            return self.goal.met(index)
        # Where sums are not exact, the next pass goes by what the counter says of the whole.
        return meter.count(index.included_messages()) <= target

    def edits(self) -> list[Edit]:
        dropped = [
            drop(group, group.exclude_reason or self.reason)._replace(freed_tokens=group.token_count)
            for group in self.gone
        ]
        return [*dropped, *([self.note] if self.note else []), *self._lines]


class _Noting:
    """
    The part of a pass that leaves a note.
    """

    def __init__(self, removal: _Removal, style: NoteStyle, earlier: list[MessageGroup]) -> None:
        self._removal = removal
        self._index = removal.index
        self._earlier = earlier
        self._earlier_tokens = sum(group.token_count for group in earlier)
        self._tokens_before = self._index.included_token_count
        self._writer = NoteWriter(self._index, style)
        self._written: Written | None = None
        self._group: MessageGroup | None = None
        self._most_evidence: int | None = None

    def is_worth_it(self, units: Sequence[Sequence[MessageGroup]]) -> bool:
        """Whether a note would cost less than all that may go."""
        groups = list(chain.from_iterable(units))
        bare_tokens = self._writer.bare_tokens([*self._removal.gone, *self._earlier, *groups])
        target = self._removal.goal.target_tokens
        others = self._tokens_before - self._earlier_tokens
        if not groups:
            # A lone note is written anew only where that is all that is missing: the next pass would do it again.
            return len(self._earlier) == 1 and target is not None and others + bare_tokens <= target
        removable = 0
        for group in groups:
            removable += group.token_count
            if self._writer.is_bare and self._earlier_tokens + removable > bare_tokens:
                return True
        if target is not None and others - removable + bare_tokens <= target:
            # With more evidence than this the goal would be missed though all has gone.
            self._most_evidence = target - (others - removable + bare_tokens)
        return self._earlier_tokens + removable > bare_tokens

    def until_met(self, units: Sequence[Sequence[MessageGroup]], must_go: int) -> bool:
        """Remove units until the goal is met with the note in. Returns whether it is."""
        removal, left = self._removal, iter(units)
        for group in self._earlier:
            removal.exclude(group, _FOLDED)
        if must_go or not removal.goal.met(self._index):
            removal.take(left, must_go)
        self._write()
        while not removal.is_met():
            if not removal.take(left):
                return self._is_met_without_evidence()
            self._write()
        return True

    def _is_met_without_evidence(self) -> bool:
        """Leave the evidence out where that is all that stands between the conversation and its goal."""
        if self._written is None or not self._written.evidence or self._removal.goal.condition is None:
            return False
        most, self._most_evidence = self._most_evidence, 0
        self._write()
        if self._removal.is_met():
            return True
        self._most_evidence = most
        self._write()
        return False

    @property
    def _rest_tokens(self) -> int:
        """What stands in the conversation beside the note."""
        return self._index.included_token_count - (0 if self._written is None else self._written.tokens)

    def _write(self) -> None:
        """Put a note in, or in the place of the one before."""
        removal, index = self._removal, self._index
        host = place_for_note(index, removal.gone)
        if host is None:
            return
        rest = self._rest_tokens
        freed = self._tokens_before - self._earlier_tokens - rest
        target = removal.goal.target_tokens
        limits = Limits(
            target_tokens=rest if target is None else target,
            note_tokens=self._earlier_tokens + freed // 2,
            evidence_tokens=self._most_evidence,
            least_tokens=0 if target is None else target - rest - removal.last_unit_tokens + 1,
        )
        self._written = self._writer.write(removal.gone, limits, self._written)
        note = self._written.message
        if self._group is not None:
            index.exclude(self._group, _FOLDED)
        self._group = index.replace([host], [note], removal.reason, place=host.positions[0])
        edit = substitute(Action.DROP, [host], note, reason="says what went")
        removal.note = edit._replace(freed_tokens=-self._written.tokens)


def place_for_note(index: MessageIndex, gone: Sequence[MessageGroup]) -> MessageGroup | None:
    """
    Return the oldest group that went whose place is not between a call that stays and its results.

    :param index: The conversation.
    :param gone: The groups that went.
    :returns: The group, or None where no provider would accept a message at any of the places.
    """
    candidates, reach = set(gone), -1
    for group in index.groups:
        if not group.is_excluded:
            reach = max(reach, group.positions[-1])
        elif group in candidates and group.positions[0] > reach:
            return group
    return None


def standing_for(edit: Edit) -> MessageGroup:
    """
    Return the group that an edit put in the place of others.

    :param edit: An edit that was carried out.
    :returns: The group of its message; several may have come to stand in the same place.
    """
    group = edit.groups[0]
    while group.messages[0] is not edit.messages[0] and group.replacement is not None:
        group = group.replacement
    return group

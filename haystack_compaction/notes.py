"""
Omission notes: what stands in the place of messages that went.

A note tells how many messages went over the life of the conversation, and may hold what of them is still needed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.evidence import Evidence, evidence_budget
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import is_omission_note, marked, removed_message_count
from haystack_compaction.token_counters.estimated_counter import estimated_tokens

# How often evidence is chosen anew because the counter says that it is longer or shorter than estimated, and how much
# of its room is enough.
_MAX_TRIES = 4
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class NoteStyle:
    """
    How a strategy writes its notes.

    :param strategy: The strategy's name in the metadata.
    :param template: The first line, with `{num_removed}` where the number goes, if anywhere.
    :param evidence_tokens: What may be added of the messages that went, in the model's tokens; None: a share of the
        target. 0: nothing.
    """

    strategy: str
    template: str
    evidence_tokens: int | None = None

    def message(self, *, removed_messages: int, kept_messages: int, evidence: str = "") -> ChatMessage:
        """
        Return a note.

        :param removed_messages: How many messages went over the life of the conversation.
        :param kept_messages: How many stayed in the pass that writes the note.
        :param evidence: What was found in the messages that went, as plain lines.
        :returns: A user message, because not every provider takes instructions in the middle.
        """
        # `replace`, because a note of one's own may hold other braces.
        text = self.template.replace("{num_removed}", str(removed_messages))
        if evidence:
            text = f"{text}\n{evidence}"
        meta = marked({}, self.strategy, removed_messages=removed_messages, kept_messages=kept_messages)
        return ChatMessage.from_user(text, meta=meta)


class Written(NamedTuple):
    """
    A note and what it costs, in tokens of the counter.

    :param message: The note.
    :param tokens: What it costs.
    :param bare_tokens: What it would cost without evidence.
    :param evidence: The lines below its first.
    """

    message: ChatMessage
    tokens: int
    bare_tokens: int
    evidence: str


class Limits(NamedTuple):
    """
    How long a note may get, in tokens of the counter.

    :param target_tokens: What is left of the conversation, of which evidence may be a share.
    :param note_tokens: What the note may cost; without evidence it is written whatever it costs.
    :param evidence_tokens: What its evidence may cost; None: what the style says.
    :param least_tokens: What it has to cost so that there is no room for what went last.
    """

    target_tokens: int
    note_tokens: int
    evidence_tokens: int | None = None
    least_tokens: int = 0


class NoteWriter:
    """
    Writes the note of one pass, again each time that more has gone.
    """

    def __init__(self, index: MessageIndex, style: NoteStyle) -> None:
        """
        Begin with nothing gone.

        :param index: The conversation.
        :param style: How the note is written.
        """
        self._index = index
        self._style = style
        self._evidence = Evidence()
        self._searched = 0
        self._budget: int | None = None

    @property
    def is_bare(self) -> bool:
        """
        Whether notes have no evidence.
        """
        return self._style.evidence_tokens == 0

    def bare_tokens(self, gone: Iterable[MessageGroup]) -> int:
        """
        Return what a note without evidence would cost.

        :param gone: The groups that it stands for.
        :returns: Tokens of the counter.
        """
        number = removed_messages(gone)
        return self._tokens(self._style.message(removed_messages=number, kept_messages=0))

    def write(self, gone: Sequence[MessageGroup], limits: Limits, before: Written | None) -> Written:
        """
        Return the note for what has gone.

        :param gone: All groups that have, in order; only those that came since the last time are searched.
        :param limits: How long it may get.
        :param before: The note that stands in the conversation now, which this one replaces.
        :returns: The note. It is only shorter than the one before where there is no room for what went last even so,
            or more would have gone than was needed.
        """
        number, kept = removed_messages(gone), self._index.included_message_count - (before is not None)
        bare = self._style.message(removed_messages=number, kept_messages=kept)
        bare_tokens = self._tokens(bare)

        def with_evidence(evidence: str) -> Written:
            if not evidence:
                return Written(bare, bare_tokens, bare_tokens, evidence)
            message = self._style.message(removed_messages=number, kept_messages=kept, evidence=evidence)
            return Written(message, self._tokens(message), bare_tokens, evidence)

        room = min(self._budget_within(limits), limits.note_tokens - bare_tokens)
        if limits.evidence_tokens is not None:
            room = min(room, limits.evidence_tokens)
        written = self._fitting(gone, with_evidence, room, before)
        if before is not None and written.tokens < min(before.tokens, limits.least_tokens):
            same = with_evidence(before.evidence)
            return same if same.tokens - bare_tokens <= room else written
        return written

    def _fitting(
        self, gone: Sequence[MessageGroup], with_evidence: Callable[[str], Written], room: int, before: Written | None
    ) -> Written:
        """
        The note with as much evidence as there is room for by the conversation's own counter.

        Evidence is chosen by an estimate. What the counter says of the first choice tells how the two compare.
        """
        best = with_evidence("")
        if room <= 0:
            return best
        blocks, budget = self._blocks(gone, before), room
        for _ in range(_MAX_TRIES):
            block = blocks(budget)
            written = with_evidence(block)
            cost, estimate = written.tokens - written.bare_tokens, estimated_tokens([block])[0]
            if cost <= room and written.tokens > best.tokens:
                best = written
            is_all = estimate < _FULL * budget and cost <= room
            if is_all or _FULL * room <= cost <= room or cost <= 0:
                break
            budget = room * estimate // cost - (cost > room)
        return best

    def _blocks(self, gone: Sequence[MessageGroup], before: Written | None) -> Callable[[int], str]:
        """What makes evidence of a given size of all that has gone."""
        for group in gone[self._searched :]:
            self._evidence.add(group)
        self._searched = len(gone)
        note = None if before is None else before.message
        return self._evidence.blocks([message for message in self._index.included_messages() if message is not note])

    def _budget_within(self, limits: Limits) -> int:
        """What evidence may cost by the setting, which is in the model's tokens, and the same for the whole pass."""
        if self._budget is None:
            scale = self._index.scale
            self._budget = int(evidence_budget(self._style.evidence_tokens, int(limits.target_tokens * scale)) / scale)
        return self._budget

    def _tokens(self, message: ChatMessage) -> int:
        return self._index.ledger.meter.notes_tokens([message])[0]


def is_foldable(group: MessageGroup) -> bool:
    """
    Return whether a group only says that messages went, so that a new note takes its place.

    :param group: The group.
    """
    return group.kind is MessageGroupKind.SUMMARY and all(map(is_omission_note, group.messages))


def removed_messages(groups: Iterable[MessageGroup]) -> int:
    """
    Return how many messages have gone once these groups have, those that they stand for included.

    :param groups: Groups that go.
    :returns: The number for a note in their place.
    """
    return sum(map(_messages_of, groups))


def _messages_of(group: MessageGroup) -> int:
    if group.kind is not MessageGroupKind.SUMMARY:
        return len(group.messages)
    known = map(removed_message_count, group.messages)
    return sum(1 if number is None else number for number in known)

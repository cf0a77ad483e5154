"""
Which part of a conversation a model condenses next: no more than is needed, and no more than one call can take.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.errors import SummaryError
from haystack_compaction.evidence import evidence_budget
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.prompts import SUMMARY_REQUEST
from haystack_compaction.summaries.messages import summary_message
from haystack_compaction.summaries.order import Region, Unit, outside_of_last, units_of
from haystack_compaction.summaries.transcript import Part, part_of, shortened, transcript_of

# How many words a model is told for a token, so that it stays below.
_WORDS_PER_TOKEN: Final = 0.6
_MIN_WORDS: Final = 30

# A summary may get longer than is expected of it by so much; beyond that its end is cut off.
_TOLERANCE: Final = 1.5

# Which part of a call's room one earlier summary may take.
_SHARE_OF_ROOM: Final = 3

# What a text costs at least beside its words.
_LEAST_GAIN: Final = 8

_MAX_FITTINGS: Final = 5


@dataclass(frozen=True)
class Sizes:
    """
    How long things may get, in tokens of the counter.

    :param summary: What a summary is expected to cost without what is added to it.
    :param call: What a call may cost; None for any size.
    :param evidence: The caller's setting for evidence, in the model's tokens.
    """

    summary: int
    call: int | None
    evidence: int | None


@dataclass(frozen=True)
class Batch:
    """
    What one call condenses.

    :param region: Where it stands.
    :param parts: Its groups as text, oldest first.
    """

    region: Region
    parts: tuple[Part, ...]

    @property
    def groups(self) -> tuple[MessageGroup, ...]:
        """
        The groups, oldest first.
        """
        return tuple(part.group for part in self.parts)

    @property
    def tokens(self) -> int:
        """
        What they cost in the conversation.
        """
        return sum(group.token_count for group in self.groups)

    @property
    def signature(self) -> tuple[str, int, int]:
        """
        What tells it apart from other parts of the same conversation.
        """
        return self.region.value, len(self.parts), self.tokens


@dataclass
class SummaryPlan:
    """
    What is left to condense in one pass.

    :param index: The conversation.
    :param budget: How far to go apart from `keep_last`; None where only that decides.
    :param kept: Groups that stay.
    :param sizes: How long things may get.
    :param instruction: What the model is told.
    :param keep_last: How many of the newest messages stay; all before them goes. None for no such limit.
    :param hopeless: The parts for which there was no shorter summary in an earlier pass.
    :param own: The summary of each region that this pass has written so far.
    :param is_stuck: Whether a part was passed over as hopeless.
    """

    index: MessageIndex
    budget: Goal | None
    kept: set[MessageGroup]
    sizes: Sizes
    instruction: str
    keep_last: int | None
    hopeless: Collection[Any]
    own: dict[Region, MessageGroup] = field(default_factory=dict)
    is_stuck: bool = False

    def __post_init__(self) -> None:
        self._passed_over: set[Region] = set()
        self._bare = self.measure_message(summary_message("-", evidence="", removed_messages=1000, kept_messages=0))
        self._expected = self.sizes.summary
        self._room = self._room_of_a_call()
        #: What a model's own words of a summary may cost.
        self.max_tokens = max(int(self.sizes.summary * _TOLERANCE), 1)
        if self._room is not None:
            # The next call has to have room for it beside what it adds to it.
            self.max_tokens = max(min(self.max_tokens, self._room // _SHARE_OF_ROOM), 1)
            self._expected = min(self._expected, self.max_tokens)
        self._stand_in = self._stand_in_of(self._expected + self.evidence_tokens(self.index.included_token_count // 2))

    @property
    def target_tokens(self) -> int | None:
        """
        The size to reach, in tokens of the counter; None where something else decides.
        """
        return None if self.budget is None else self.budget.target_tokens

    def pass_over(self, region: Region) -> None:
        """
        Leave a region alone for the rest of the pass.

        :param region: The region.
        """
        self._passed_over.add(region)

    def prompt(self, batch: Batch) -> list[ChatMessage]:
        """
        Return what the model is asked.

        :param batch: What it is to condense.
        :returns: The instruction, and the part as text between two marks. No roles of tools, and no calls.
        """
        most = min(self._expected, batch.tokens // 2)
        request = SUMMARY_REQUEST.replace("{max_words}", str(max(int(most * _WORDS_PER_TOKEN), _MIN_WORDS)))
        text = f"{transcript_of(batch.parts)}\n\n{request}"
        return [ChatMessage.from_system(self.instruction), ChatMessage.from_user(text)]

    def measure(self, text: str) -> int:
        """
        Return what a text costs as a message.

        :param text: The text.
        """
        return self.measure_message(ChatMessage.from_user(text))

    def measure_message(self, message: ChatMessage) -> int:
        """
        Return what a message costs.

        :param message: A message that could be sent by itself.
        """
        return sum(self.index.ledger.meter.message_tokens([message], valid=True))

    def evidence_tokens(self, rest: int) -> int:
        """
        Return what evidence may cost.

        :param rest: What is left of the conversation; it stands for a target where there is none.
        :returns: Tokens of the counter.
        """
        target, scale = self.target_tokens, self.index.scale
        target = rest if target is None else target
        return int(evidence_budget(self.sizes.evidence, int(target * scale)) / scale)

    def next(self) -> Batch | None:
        """
        Return the next part.

        :returns: The part, or None where nothing is left for which a summary could be shorter.
        :raises SummaryError: If a call has no room for any of it.
        """
        while True:
            selected = self._selected()
            region = next((region for region in Region if selected.get(region)), None)
            if region is None:
                return None
            batch = self._bounded(region, selected[region])
            tells = any(part.text for part in batch.parts)
            is_hopeless = batch.signature in self.hopeless
            if tells and self._is_worth_it(batch.parts) and not is_hopeless:
                self._check_size(batch)
                return batch
            self.is_stuck = self.is_stuck or is_hopeless
            self.pass_over(region)

    def _selected(self) -> dict[Region, list[MessageGroup]]:
        """What has to go, as far as can be told before a model was asked."""
        own = set(self.own.values())
        units = [
            unit._replace(groups=groups)
            for unit in units_of(self.index, self.kept)
            if unit.region not in self._passed_over
            and (groups := tuple(group for group in unit.groups if group not in own))
        ]
        if self.keep_last is not None:
            selected = self._outside(units, self.keep_last)
            if selected:
                return selected
        if self.budget is None or self.budget.met(self.index):
            return {}
        chosen = self._needed([unit for unit in units if not self._is_lone(unit, units)], self.budget)
        return {
            region: [group for unit in chosen if unit.region is region for group in unit.groups] for region in Region
        }

    def _outside(self, units: Iterable[Unit], keep_last: int) -> dict[Region, list[MessageGroup]]:
        """What stands before the newest messages, with the earlier summaries before it."""
        outside = outside_of_last(self.index, keep_last, self.kept)
        selected: dict[Region, list[MessageGroup]] = {}
        for region in Region:
            groups = [group for unit in units if unit.region is region for group in unit.groups]
            last = max((group.positions[0] for group in groups if group in outside), default=-1)
            if last >= 0:
                selected[region] = [
                    group
                    for group in groups
                    if group in outside or (group.kind is MessageGroupKind.SUMMARY and group.positions[0] < last)
                ]
        return selected

    def _is_lone(self, unit: Unit, units: Sequence[Unit]) -> bool:
        """Whether a unit is the only summary of a region with nothing to add to it: to write it again is no gain."""
        if unit.is_raw or unit.region in self.own:
            return False
        return sum(other.region is unit.region for other in units) == 1

    def _needed(self, units: Sequence[Unit], budget: Goal) -> list[Unit]:
        """The fewest units, in order, without which the goal would be met by summaries of the size that is expected."""
        index, chosen, touched = self.index, list[Unit](), set[Region]()
        limit = None if self._room is None else 2 * self._room
        tokens = 0
        index.begin_stage()
        try:
            for number, unit in enumerate(units):
                chosen.append(unit)
                tokens += unit.tokens
                groups = list(unit.groups)
                if unit.region not in touched:
                    touched.add(unit.region)
                    groups += [self.own[unit.region]] if unit.region in self.own else []
                    self._stand_in_for(groups)
                else:
                    for group in groups:
                        index.exclude(group, "dry run")
                following = units[number + 1 : number + 2]
                if self._is_worth_a_call(chosen, following) and budget.met(index):
                    break
                if limit is not None and tokens > limit:
                    break  # more than one call can take
        finally:
            index.reset()
            index.end_stage()
        return chosen

    def _stand_in_for(self, groups: Sequence[MessageGroup]) -> None:
        for group in groups:
            self.index.exclude(group, "dry run")
        self.index.replace([groups[0]], [self._stand_in], "dry run", place=groups[0].positions[0])

    def _is_worth_a_call(self, chosen: Sequence[Unit], following: Sequence[Unit]) -> bool:
        """Whether there is more than one summary, or more than a few words to add to one."""
        region = chosen[-1].region
        here = [unit for unit in chosen if unit.region is region]
        if not following or following[0].region is not region:
            return True
        raw = sum(unit.tokens for unit in here if unit.is_raw)
        if region in self.own:
            return raw >= self._expected // 2 or len(here) > sum(unit.is_raw for unit in here)
        return raw > 0 or len(here) > 1

    def _bounded(self, region: Region, groups: Sequence[MessageGroup]) -> Batch:
        """As many groups as one call can take, oldest first, the summary of the call before among them."""
        ordered = sorted(groups, key=lambda group: group.positions[0])
        if region in self.own:
            ordered.insert(0, self.own[region])
        parts: list[Part] = []
        left = self._room
        for group in ordered:
            part = part_of(group, self.measure)
            if left is not None and self._room is not None:
                if group.kind is MessageGroupKind.SUMMARY:
                    part = shortened(part, self._room // _SHARE_OF_ROOM, self.measure)
                if part.tokens > left:
                    if self._is_worth_it(parts):
                        break
                    part = shortened(part, left, self.measure)
                left -= part.tokens
            parts.append(part)
        return self._fitting(Batch(region, tuple(parts)))

    def _is_worth_it(self, parts: Sequence[Part]) -> bool:
        """Whether a summary of these could be shorter. A lone summary would only be written again."""
        tokens = sum(part.group.token_count for part in parts)
        if all(part.group.kind is MessageGroupKind.SUMMARY for part in parts):
            # What stands below a summary without a model is looked for again, so it is no gain.
            tokens = min(tokens, sum(part.tokens for part in parts)) if len(parts) > 1 else 0
        return tokens > self._bare + _LEAST_GAIN

    def _fitting(self, batch: Batch) -> Batch:
        """The same, less whatever the whole prompt is too long by."""
        limit = self.sizes.call
        for _ in range(_MAX_FITTINGS):
            excess = 0 if limit is None else self._prompt_tokens(batch) - limit
            if excess <= 0:
                break
            *others, last = batch.parts
            if not self._is_worth_it(others):
                others = [*others, shortened(last, max(last.tokens - excess - _LEAST_GAIN, 1), self.measure)]
            batch = Batch(batch.region, tuple(others))
        return batch

    def _check_size(self, batch: Batch) -> None:
        limit = self.sizes.call
        if limit is not None and self._prompt_tokens(batch) > limit:
            raise SummaryError("`max_summary_input_tokens` leaves a call no room for anything beside the instruction.")

    def _prompt_tokens(self, batch: Batch) -> int:
        return sum(map(self.measure_message, self.prompt(batch)))

    def _room_of_a_call(self) -> int | None:
        """What is left of a call for the conversation."""
        if self.sizes.call is None:
            return None
        return max(self.sizes.call - self._prompt_tokens(Batch(Region.HISTORY, ())), 1)

    def _stand_in_of(self, tokens: int) -> ChatMessage:
        """A message that costs about as much as a summary is expected to."""
        words = "record " * max(tokens, 1)
        words = words[: len(words) * tokens // max(self.measure(words), 1) + 1]
        return summary_message(words, evidence="", removed_messages=1000, kept_messages=0)

"""
One pass of a summariser: a call of bounded size, what is made of the reply, and the next one.

Each call's summary is put in its place before the next part is looked at. So calls stop as soon as it is enough, and
what was done stays when a later one fails.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from haystack.dataclasses import ChatMessage

from haystack_compaction.collapsed_calls import references_of
from haystack_compaction.edits import Action, Edit, part_users
from haystack_compaction.errors import SummaryError
from haystack_compaction.evidence import Evidence
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.notes import removed_messages
from haystack_compaction.removal import place_for_note
from haystack_compaction.steps import Steps
from haystack_compaction.summaries.breaker import Failures
from haystack_compaction.summaries.checks import checked, confirmed_words
from haystack_compaction.summaries.messages import capped, cleaned, summary_message
from haystack_compaction.summaries.order import Region
from haystack_compaction.summaries.plan import Batch, SummaryPlan
from haystack_compaction.summaries.summarizer import NotShorterError, RefusedReplyError, Summarizer
from haystack_compaction.summaries.transcript import words_of

# Evidence is chosen by an estimate; so often it is told to take less by what the counter says.
_MAX_TRIES: Final = 3


class _Written(NamedTuple):
    """
    A summary.

    :param message: The message.
    :param tokens: What it costs.
    :param bare_tokens: What it would cost without evidence.
    :param with_evidence: Writes it with evidence of at most so many tokens.
    :param remarks: What was done to what the model wrote.
    """

    message: ChatMessage
    tokens: int
    bare_tokens: int
    with_evidence: "Callable[[int], _Written]"
    remarks: tuple[str, ...] = ()

    @property
    def has_evidence(self) -> bool:
        """
        Whether anything stands below what the model wrote.
        """
        return self.tokens > self.bare_tokens


@dataclass
class SummaryPass:
    """
    A pass so far.

    :param plan: What is left to condense.
    :param goal: How far to go.
    :param failures: What is remembered of the model in this conversation.
    :param edits: What was changed.
    :param gave_up: For which parts there was no shorter summary, one sentence each.
    """

    plan: SummaryPlan
    goal: Goal
    failures: Failures
    edits: list[Edit] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._index = self.plan.index
        self._size = self._index.included_token_count
        self._evidence = {region: Evidence() for region in Region}
        self._unsearched: dict[Region, list[MessageGroup]] = {region: [] for region in Region}
        self._gone_tokens = dict.fromkeys(Region, 0)
        self._written: dict[Region, _Written] = {}
        self._calls = 0

    def run(self, summarizer: Summarizer) -> Steps[None]:
        """
        Condense until the goal is met, or nothing is left that may be.

        :param summarizer: The model.
        :returns: Nothing; what was done is in the pass.
        :raises SummaryError: If the model wrote no summary; it says of what. What was done before stays.
        """
        try:
            yield from self._rounds(summarizer)
        except SummaryError:
            self._add_evidence()
            raise
        self._add_evidence()
        self._make_do()

    def _rounds(self, summarizer: Summarizer) -> Steps[None]:
        plan = self.plan
        while not self.goal.met(self._index):
            batch = plan.next()
            if batch is None:
                return
            self._calls += 1
            try:
                written = yield from summarizer.write(
                    plan.prompt(batch), partial(self._judged, batch), self.failures, self._size
                )
            except NotShorterError as error:
                self.failures.give_up(batch.signature)
                plan.pass_over(batch.region)
                self.gave_up.append(f"{self._where(batch)}: {error}.")
            except SummaryError as error:
                raise SummaryError(f"{self._where(batch)}: {error}.") from error
            else:
                self._put_in(batch, written)
                if self.goal.met(self._index):
                    self._add_evidence()

    def _where(self, batch: Batch) -> str:
        places = [place for group in batch.groups for place in group.positions]
        return (
            f"Round {self._calls}, a summary of {len(places)} messages between {min(places)} and {max(places)}, failed"
        )

    def _judged(self, batch: Batch, text: str) -> _Written:
        """The summary that comes of a reply."""
        body, plan = cleaned(text), self.plan
        if not any(char.isalnum() for char in body):
            raise RefusedReplyError("its reply had nothing but marks")
        result = checked(body, words="\n".join(map(words_of, batch.groups)), user_words=_user_words(batch.groups))
        cut = capped(result.text, plan.max_tokens, plan.measure)
        written = self._without_evidence(batch, cut.text)
        if written.tokens >= batch.tokens:
            raise NotShorterError("its summary was not shorter than what it would replace")
        remarks = (
            _counted(sum(part.is_cut for part in batch.parts), "part was too long and cut in the middle"),
            "the summary was too long and its end cut off" if cut.is_cut else "",
            _counted(result.num_unquoted, "quotation mark pair taken off words that stand nowhere"),
            _counted(result.num_unconfirmed, "claim about the user marked as unconfirmed"),
        )
        return written._replace(remarks=tuple(filter(None, remarks)))

    def _without_evidence(self, batch: Batch, body: str) -> _Written:
        """The message with nothing below what the model wrote. Evidence is looked for once it is known to stay."""
        groups, plan = batch.groups, self.plan
        references = list(dict.fromkeys(reference for group in groups for reference in references_of(group)))
        number = removed_messages(groups)
        kept = self._index.included_message_count - sum(len(group.messages) for group in groups)

        def message_with(evidence: str) -> ChatMessage:
            return summary_message(
                body, evidence=evidence, removed_messages=number, kept_messages=kept, references=references
            )

        message = message_with("")
        tokens = plan.measure_message(message)
        bare = _Written(message, tokens, tokens, lambda _: bare)

        def within(room: int) -> _Written:
            estimate, blocks = room, self._blocks(batch.region)
            for _ in range(_MAX_TRIES):
                evidence = blocks(estimate) if estimate > 0 else ""
                if not evidence:
                    break
                message = message_with(evidence)
                cost = plan.measure_message(message) - tokens
                if cost <= room:
                    return _Written(message, tokens + cost, tokens, within)
                estimate = estimate * room // cost - 1
            return bare

        return bare._replace(with_evidence=within)

    def _blocks(self, region: Region) -> Callable[[int], str]:
        """What makes evidence of all that this pass has condensed in a region."""
        for group in self._unsearched[region]:
            self._evidence[region].add(group)
        self._unsearched[region] = []
        # Beside what stays, the model's own words show what need not be said again.
        written = self._written[region]
        visible = [message for message in self._index.included_messages() if message is not written.message]
        return self._evidence[region].blocks([*visible, *([] if written.has_evidence else [written.message])])

    def _put_in(self, batch: Batch, written: _Written) -> None:
        """Put a summary at the place of the oldest message that it replaces."""
        index, groups, region = self._index, batch.groups, batch.region
        before = index.included_token_count
        reason = "; ".join([f"summary of {sum(len(group.messages) for group in groups)} messages", *written.remarks])
        raw = [group for group in groups if group is not self.plan.own.get(region)]
        self._gone_tokens[region] += sum(group.token_count for group in raw)
        self._unsearched[region].extend(raw)
        for group in groups:
            index.exclude(group, reason)
        host = place_for_note(index, groups) or groups[0]
        place = host.positions[0]
        self.plan.own[region] = index.replace([host], [written.message], reason, place=place)
        self._written[region] = written
        freed = before - index.included_token_count
        self.edits.append(Edit(Action.SUMMARIZE, groups, reason, (written.message,), freed_tokens=freed, place=place))
        self.edits.extend(part_users(index))

    def _add_evidence(self) -> None:
        """Put below each summary what was found in all that it stands for, at most half of what it freed."""
        for region, written in self._written.items():
            if not written.has_evidence:
                rest = self._index.included_token_count - written.tokens
                freed = self._gone_tokens[region] - written.bare_tokens
                self._swap(region, written.with_evidence(min(self.plan.evidence_tokens(rest), freed // 2)))

    def _make_do(self) -> None:
        """Leave out of the evidence what stands between the conversation and its target, if that is all that does."""
        target = self.plan.target_tokens
        if target is None:
            return
        excess = self._index.included_token_count - target
        if excess > sum(written.tokens - written.bare_tokens for written in self._written.values()):
            return
        for region, written in self._written.items():
            if excess > 0:
                self._swap(region, written.with_evidence(max(written.tokens - written.bare_tokens - excess, 0)))
                excess -= written.tokens - self._written[region].tokens

    def _swap(self, region: Region, new: _Written) -> None:
        """Put another form of a summary in its place."""
        old, own, index = self._written[region], self.plan.own[region], self._index
        self._written[region] = new
        if new.message is old.message:
            return
        number, edit = next((n, edit) for n, edit in enumerate(self.edits) if old.message in edit.messages)
        index.exclude(own, edit.reason)
        self.plan.own[region] = index.replace([own], [new.message], edit.reason, place=own.positions[0])
        freed = edit.freed_tokens + old.tokens - new.tokens
        self.edits[number] = edit._replace(messages=(new.message,), freed_tokens=freed)


def _user_words(groups: Iterable[MessageGroup]) -> str:
    """What users wrote, and what earlier summaries say of it."""
    texts = []
    for group in groups:
        if group.kind is MessageGroupKind.USER:
            texts.append(words_of(group))
        elif group.kind is MessageGroupKind.SUMMARY:
            texts.append(confirmed_words(words_of(group)))
    return "\n".join(texts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count else ""

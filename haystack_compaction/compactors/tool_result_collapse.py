"""
Old tool-call groups become one short message each: which tools were called, in order, and how each call ended.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

from haystack.dataclasses import ChatMessage, TextContent

from haystack_compaction.arguments import check_int, check_not_awaited, check_optional_int
from haystack_compaction.collapsed_calls import collapsed_calls, cut, references_line, references_of
from haystack_compaction.compactor import Compactor, carry_out
from haystack_compaction.content import with_parts
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit, substitute
from haystack_compaction.errors import CompactorError
from haystack_compaction.evidence import Evidence, evidence_budget
from haystack_compaction.goal import Goal
from haystack_compaction.groups import MessageGroup
from haystack_compaction.marks import OFFLOAD_META_KEY, TOOL_RESULT_COLLAPSE, marked
from haystack_compaction.serialization import settings_from_dict
from haystack_compaction.steps import Steps
from haystack_compaction.token_counters.estimated_counter import estimated_tokens
from haystack_compaction.tool_call_groups import old_tool_call_groups, waiting_tokens
from haystack_compaction.validity import Allowance

_T = TypeVar("_T", bound="ToolResultCollapseCompactor")

# Less evidence than this is hardly more than its headings, so where there are many groups the newest have it.
_MIN_EVIDENCE_TOKENS: Final = 40

# Which part of a group is freed at least, in order to foresee how many have to go.
_FREED_SHARE: Final = 0.8

# Measuring many texts at once takes half the time; these many at most are made in vain.
_NOTES_AT_ONCE: Final = 16

# Copied for each note, which takes half the time of making one.
_BLANK: Final = ChatMessage.from_user("-")


@dataclass(frozen=True, kw_only=True)
class ToolResultCollapseCompactor(Compactor):
    """
    Replaces old tool calls and their results with one short message a group, oldest first, until the target is met.

    A group is a message with calls and all their results. In its place stands a message of the user role that names
    the tools in the order of the calls, and has one line a call: its arguments, whether it failed, and how its result
    begins. Images and files are told by type and name, results in a store by their reference. What users said and the
    replies that called no tool stay. A group for which the message would not be smaller stays as well. Results without
    a call go first. Without a target, a budget and a trigger all is collapsed that may be.

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction import EstimatedTokenCounter, ToolResultCollapseCompactor

    messages = [ChatMessage.from_user("Compare the two files.")]
    for name in ("a.txt", "b.txt"):
        call = ToolCall(tool_name="read_file", arguments={"path": name}, id=name)
        messages.append(ChatMessage.from_assistant(tool_calls=[call]))
        messages.append(ChatMessage.from_tool("a line of the file. " * 1_000, origin=call))

    shorter = ToolResultCollapseCompactor().compact(messages, None, EstimatedTokenCounter())
    print(shorter[1].text)
    ```

    :param keep_last_tool_call_groups: The newest groups with tool calls that stay. More keeps more of what the model is
        working with, and frees less. With 0 even results may go that the model has not seen yet; calls that still wait
        for a result stay.
    :param max_summary_chars: How long the whole message may be. Of each result no more than 200 characters are shown
        in any case, so that this matters where many calls were made together. A group stays as it is if its tools
        cannot even be named in so many characters.
    :param formatter: A function that takes the `MessageGroup` and returns the text of the message, in the place of the
        default one. It has to be importable to be saved. Its messages are known as compaction's by metadata only.
    :param evidence_tokens: How much of what a later call may need the messages of one pass carry together, beyond
        their excerpts. None: a fifth of the target, between 100 and 1,000; 0: none. There is none with a `formatter`.
    """

    keep_last_tool_call_groups: int = 1
    max_summary_chars: int = 4096
    formatter: Callable[[MessageGroup], str] | None = None
    evidence_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("keep_last_tool_call_groups", self.keep_last_tool_call_groups, minimum=0)
        check_int("max_summary_chars", self.max_summary_chars, minimum=1)
        _check_formatter(self.formatter)
        check_optional_int("evidence_tokens", self.evidence_tokens, minimum=0, why="Use 0 for none.")

    @classmethod
    def from_dict(cls: type[_T], data: dict[str, Any]) -> _T:
        """
        Build a compactor from its serialised form.

        :param data: What `to_dict` returned.
        :returns: An equal compactor.
        :raises DeserializationError: If a parameter is unknown or cannot be built; the text names it.
        """
        return settings_from_dict(cls, data, functions=("trigger", "target", "formatter"))

    @property
    def allowance(self) -> Allowance:
        """
        The newest step may go where no group is asked to be kept.
        """
        return Allowance(newest_step=self.keep_last_tool_call_groups == 0)

    def decide(self, index: MessageIndex, goal: Goal) -> Steps[list[Edit]]:
        """
        Collapse groups until the goal is met.

        :param index: The conversation.
        :param goal: How far to go.
        :returns: The edits that were carried out.
        """
        return carry_out(index, self._edits(index, goal.target_tokens), goal)
        yield  # a generator that needs nothing from outside

    def deferred_tokens(self, index: MessageIndex) -> int:
        """
        Return what the groups with tool calls cost that are out of reach for now.

        :param index: The conversation after a pass that took all that it may.
        :returns: Tokens of the counter.
        """
        return waiting_tokens(index, self.keep_last_tool_call_groups)

    def _edits(self, index: MessageIndex, target_tokens: int | None) -> Iterator[Edit]:
        """One edit a group: results without a call first, then groups with calls, oldest first."""
        yield from self.orphan_edits(index)
        old = old_tool_call_groups(index, self.kept_groups(index), self.keep_last_tool_call_groups)
        groups = [group for group in old if index.ledger.can_measure(group)]
        left = evidence_budget(self.evidence_tokens, target_tokens) if self.formatter is None else 0
        first, share = _evidence_shares(index, groups, left, target_tokens)
        meter = index.ledger.meter
        for number, (group, note, tokens) in enumerate(self._noted(index, groups)):
            if note is None or tokens >= group.token_count:
                continue
            if number >= first and left > 0:
                richer, spent = self._with_evidence(group, note, min(share, left))
                if spent and meter.notes_tokens([richer])[0] < group.token_count:
                    note, left = richer, left - spent
            yield substitute(Action.COLLAPSE, [group], note, reason="old tool calls")

    def _noted(
        self, index: MessageIndex, groups: Sequence[MessageGroup]
    ) -> Iterator[tuple[MessageGroup, ChatMessage | None, int]]:
        """Each group with the message that could stand for it, if there is one, and what that costs."""
        for begin in range(0, len(groups), _NOTES_AT_ONCE):
            some = groups[begin : begin + _NOTES_AT_ONCE]
            notes = [self._note_for(group) for group in some]
            counts = iter(index.ledger.meter.notes_tokens([note for note in notes if note is not None]))
            for group, note in zip(some, notes, strict=True):
                yield group, note, 0 if note is None else next(counts)

    def _note_for(self, group: MessageGroup) -> ChatMessage | None:
        """The message that stands for a group, without evidence; None where its text has no room."""
        references = references_of(group)
        if self.formatter is None:
            text = collapsed_calls(group, references, self.max_summary_chars)
        else:
            text = self._formatted(self.formatter(group), references)
        if text is None:
            return None
        meta: dict[str, Any] = {OFFLOAD_META_KEY: references} if references else {}
        meta = marked(meta, TOOL_RESULT_COLLAPSE, removed_messages=group.message_count)
        return with_parts(_BLANK, [TextContent(text)], meta)

    def _formatted(self, text: Any, references: list[str]) -> str | None:
        """What the caller's function made of a group, with the references that it does not name."""
        if not isinstance(text, str) or not text.strip():
            raise CompactorError(f"`formatter` must return a text that is not blank, got {text!r:.80}.")
        last = references_line(references, text[: self.max_summary_chars])
        room = self.max_summary_chars - (len(last) + 1 if last else 0)
        if room < 1:
            return None
        return f"{cut(text, room)}\n{last}" if last else cut(text, room)

    def _with_evidence(self, group: MessageGroup, note: ChatMessage, budget_tokens: int) -> tuple[ChatMessage, int]:
        """The same message with what a later call may need of its group, and what that costs; 0 where it has none."""
        evidence = Evidence()
        evidence.add(group)
        block = evidence.block(budget_tokens, [note])
        text = f"{note.text}\n{block}"
        if not block or len(text) > self.max_summary_chars:
            return note, 0
        return ChatMessage.from_user(text, meta=note.meta), estimated_tokens([block])[0]


def _evidence_shares(
    index: MessageIndex, groups: Sequence[MessageGroup], budget: int, target_tokens: int | None
) -> tuple[int, int]:
    """
    Share the evidence of a pass out among the groups that are going to be collapsed.

    :returns: From which group on there is evidence, and how many tokens for each. Where there are more groups than
        shares that are worth having, the older ones have none: what was named last is needed most.
    """
    if budget <= 0 or not groups:
        return len(groups), 0
    count = len(groups)
    if target_tokens is not None:
        excess = (index.included_token_count - target_tokens) / _FREED_SHARE
        sums = accumulate(group.token_count for group in groups)
        count = next((number for number, freed in enumerate(sums, 1) if freed >= excess), count)
    share = max(budget // count, min(budget, _MIN_EVIDENCE_TOKENS))
    return max(count - budget // share, 0), share


def _check_formatter(formatter: Any) -> None:
    if formatter is None:
        return
    if isinstance(formatter, type) or not callable(formatter):
        raise TypeError(f"`formatter` must be a function that takes a `MessageGroup`, got {formatter!r}.")
    check_not_awaited("formatter", formatter)

"""
Evidence: what a note keeps of the messages that it stands for, found without a model.

Two kinds. What users said that still binds is quoted word for word. Values that a later tool call may need are listed:
those that users named and calls used before those that results merely held, recent and repeated ones before others.
A block of evidence is read back from its text alone, so a later note takes over what an earlier one kept.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from haystack.dataclasses import ChatMessage, ChatRole, FileContent, TextContent, ToolCall, ToolCallResult

from haystack_compaction.content import content_parts
from haystack_compaction.evidence.block import Entry, read
from haystack_compaction.evidence.choice import Choice, Quote
from haystack_compaction.evidence.statements import Subject, score_of, statements_in, subject_of
from haystack_compaction.evidence.value_ranking import ValueRanking
from haystack_compaction.evidence.values import (
    MAX_USED_CHARS,
    Value,
    is_safe,
    names_in_text,
    values_in_data,
    values_in_text,
)
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import OFFLOAD_META_KEY, is_reduced_result
from haystack_compaction.render import measured_text

# What None stands for: this share of the target, within these bounds.
_SHARE_OF_TARGET: Final = 5
_MIN_TOKENS: Final = 100
_MAX_TOKENS: Final = 1000

# How much of what stays is looked at, the newest first, for what is to be seen anyway.
_VISIBLE_CHARS: Final = 200_000


def evidence_budget(setting: int | None, target_tokens: int | None) -> int:
    """
    Return how many tokens of evidence a note may carry.

    :param setting: The caller's `evidence_tokens`; None for a fifth of the target, between 100 and 1,000.
    :param target_tokens: The size that the conversation is to have; None where there is none.
    :returns: Tokens; 0 for no evidence.
    """
    if setting is not None:
        return setting
    if target_tokens is None:
        return _MAX_TOKENS
    return min(max(target_tokens // _SHARE_OF_TARGET, _MIN_TOKENS), _MAX_TOKENS)


class _Said(NamedTuple):
    """A statement, where it stood, and what it is about."""

    place: tuple[int, int]
    quote: Quote
    subject: Subject | None


class Evidence:
    """
    What is worth keeping of the groups that go.

    Give it each group that goes, in any order, then ask for a block of lines. A group is searched once, however often
    a block is asked for.
    """

    def __init__(self) -> None:
        self._said: list[_Said] = []
        self._values = ValueRanking()
        self._has_calls = False

    def add(self, group: MessageGroup) -> None:
        """
        Search a group.

        :param group: A group that goes. What an earlier note kept is taken over from its text.
        """
        for position, message in zip(group.positions, group.messages, strict=True):
            self._values.use(position, (Value(reference, "stored") for reference in _references(message)))
            if group.kind is MessageGroupKind.SUMMARY:
                self._add_note(position, message)
            elif group.kind is MessageGroupKind.USER:
                self._add_user(position, message)
            else:
                self._add_work(position, message)

    def block(self, budget_tokens: int, visible: Sequence[ChatMessage]) -> str:
        """
        Return the best lines that fit a budget.

        :param budget_tokens: What the block may cost, in tokens of `EstimatedTokenCounter`.
        :param visible: The messages that stay. What they show is not said again.
        :returns: Lines, or an empty string where there is nothing to tell or no room.
        """
        return self.blocks(visible)(budget_tokens)

    def blocks(self, visible: Sequence[ChatMessage]) -> Callable[[int], str]:
        """
        Return what makes blocks for any budget. What is found is ranked once for all of them.

        :param visible: The messages that stay.
        :returns: A function of a budget in tokens of `EstimatedTokenCounter`.
        """
        if not (self._said or self._values):
            return lambda _: ""
        shown, arguments = _visible(visible)
        values = [(Entry(value.text, value.key), rank) for value, rank in self._values.ranked(arguments)]
        quotes, has_calls = self._standing(), self._has_calls

        def block(budget_tokens: int) -> str:
            if budget_tokens <= 0:
                return ""
            return Choice(budget_tokens, shown).block(quotes, values, has_calls=has_calls)

        return block

    def _add_note(self, position: int, message: ChatMessage) -> None:
        """Take over what an earlier note kept. Only what compaction wrote as a user can quote users."""
        for part in content_parts(message):
            if not isinstance(part, TextContent):
                continue
            noted = read(part.text)
            if message.role is ChatRole.USER:
                self._quote(position, ((text, score_of(text)) for text in noted.statements))
            if noted.entries:
                self._values.recall(position, [Value(entry.text, entry.key) for entry in noted.entries])
                self._has_calls = True
            self._values.read(position, noted.rest, is_result=False)

    def _add_user(self, position: int, message: ChatMessage) -> None:
        for part in content_parts(message):
            if isinstance(part, TextContent) and not _is_a_remark(part.text):
                self._quote(position, statements_in(part.text))
                self._values.say(position, chain(values_in_text(part.text), names_in_text(part.text)))
            elif isinstance(part, FileContent) and part.filename and is_safe(part.filename):
                self._values.say(position, [Value(part.filename, "file")])

    def _add_work(self, position: int, message: ChatMessage) -> None:
        """Search what the model said and called, and what tools returned."""
        for part in content_parts(message):
            if isinstance(part, ToolCall):
                self._has_calls = True
                self._values.learn_names(part.arguments)
                self._values.use(position, values_in_data(part.arguments, MAX_USED_CHARS))
            elif isinstance(part, TextContent):
                self._values.read(position, part.text, is_result=False)
            elif isinstance(part, ToolCallResult) and not is_reduced_result(message):
                self._has_calls = True
                for text in _texts(part.result):
                    self._values.read(position, text, is_result=True)

    def _quote(self, position: int, statements: Iterable[tuple[str, float]]) -> None:
        for text, score in statements:
            self._said.append(_Said((position, len(self._said)), Quote(text, score), subject_of(text)))

    def _standing(self) -> list[Quote]:
        """What users said, in order, without what a later statement repeats or plainly replaces."""
        standing: dict[tuple[str, str], Quote] = {}
        states: dict[str, list[tuple[str, str]]] = {}
        for said in sorted(self._said):
            subject = said.subject
            key = (said.quote.text, "") if subject is None else (subject.head, subject.tail)
            if subject is not None and subject.is_correction:
                for replaced in states.pop(subject.head, ()):
                    standing.pop(replaced, None)
            standing.pop(key, None)
            standing[key] = said.quote
            if subject is not None:
                states.setdefault(subject.head, []).append(key)
        return list(standing.values())


def _is_a_remark(text: str) -> bool:
    """Whether a part of a user's message is a line in the place of something that was there, such as an image."""
    return text[:1] == "[" and text[-1:] == "]" and "\n" not in text


def _references(message: ChatMessage) -> Iterator[str]:
    """Where the store keeps what was offloaded from a message."""
    references = message.meta.get(OFFLOAD_META_KEY)
    for reference in references if isinstance(references, list | tuple) else (references,):
        if isinstance(reference, str) and reference and is_safe(reference):
            yield reference


def _texts(content: str | Sequence[object]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.text for part in content if isinstance(part, TextContent)]


def _visible(messages: Sequence[ChatMessage]) -> tuple[str, list[object]]:
    """The text of what stays and the arguments of its calls, the newest first, as far as they are looked at."""
    texts: list[str] = []
    arguments: list[object] = []
    left = _VISIBLE_CHARS
    for message in reversed(messages):
        texts.append(measured_text(message))
        arguments.extend(call.arguments for call in message.tool_calls)
        left -= len(texts[-1])
        if left < 0:
            break
    return "\n".join(texts), arguments

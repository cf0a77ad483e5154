"""
What messages cost, by asking a token counter only what that counter can answer.

Counters differ in what they may be given:

- *additive* ones, ours among them (`additive = True`): single messages, and the sums are exact;
- Haystack's `ApproximateTokenCounter` and `TiktokenCounter`: single messages too, but rounding and separators make the
  sum differ a little from the count of the whole, so a total is always taken from the whole;
- any other: a whole valid conversation or a single valid group, because a counter behind a provider's interface
  refuses a tool result without its call. What such a group costs is shared out among its messages in proportion to our
  estimate.
"""

import asyncio
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from haystack.dataclasses import ChatMessage, ToolCall, ToolCallResult
from haystack.token_counters import TokenCounter

from haystack_compaction.content import ContentPart, content_parts, with_parts, with_result
from haystack_compaction.errors import CounterError
from haystack_compaction.token_counters import CachedTokenCounter, EstimatedTokenCounter

# By name, because importing them would load a tokenizer.
_HAYSTACK_COUNTERS: Final = frozenset(
    {
        "haystack.token_counters.approximate_counter.ApproximateTokenCounter",
        "haystack.token_counters.tiktoken_counter.TiktokenCounter",
    }
)

_ESTIMATE: Final = EstimatedTokenCounter()

# What is no fault of a counter.
_PASSED_ON: Final = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)

# Placeholders are short and few.
_MAX_REMEMBERED_CHARS: Final = 512
_MAX_REMEMBERED: Final = 256


class Meter:
    """
    The one place that asks a token counter.

    :param token_counter: The counter to ask.
    """

    __slots__ = ("_notes", "_replacements", "additive", "single_messages", "token_counter")

    def __init__(self, token_counter: TokenCounter) -> None:
        self.token_counter = token_counter
        self._replacements: dict[tuple[Any, ...], int] = {}
        # Held with the message, so that no id is given away twice.
        self._notes: dict[int, tuple[ChatMessage, int]] = {}
        self.additive = getattr(token_counter, "additive", False) is True
        asked = token_counter
        while isinstance(asked, CachedTokenCounter):
            asked = asked.token_counter
        kind = type(asked)
        self.single_messages = self.additive or f"{kind.__module__}.{kind.__qualname__}" in _HAYSTACK_COUNTERS

    def message_tokens(self, messages: Sequence[ChatMessage], *, valid: bool) -> list[int]:
        """
        Return what each message of one group costs.

        :param messages: The messages of one group, in order.
        :param valid: Whether the group could be sent by itself: every call has its result and the other way round.
        :returns: Tokens, one number a message; together they are what the counter says of the group.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        if self.single_messages:
            return self.each(messages)
        estimates = _ESTIMATE.count_each(messages)
        return shared_out(self.count(list(messages)), estimates) if valid else estimates

    def content_tokens(self, messages: Sequence[ChatMessage], place: int) -> int:
        """
        Return what the results or arguments of one message cost, for a counter that takes whole groups only.

        A share by proportion would change when another message of the group is shortened; what the group costs more
        than with these empty does not.

        :param messages: The messages of a group that could be sent by itself.
        :param place: Which of them holds them.
        :returns: Tokens.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        without = [*messages[:place], _emptied(messages[place]), *messages[place + 1 :]]
        return max(self.count(list(messages)) - self.count(without), 0)

    def each(self, messages: Sequence[ChatMessage]) -> list[int]:
        """
        Return what each of many messages costs that could be sent by itself, or for counters that take single messages.

        :param messages: The messages.
        :returns: Tokens, one number a message.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        counter = self.token_counter
        # Ours take many at once in less time; a subclass that counts in its own way is asked in its own way.
        if self.additive and type(counter) in (EstimatedTokenCounter, CachedTokenCounter):
            return self._counted_each(counter, messages)
        return [self.count([message]) for message in messages]

    def _counted_each(self, counter: Any, messages: Sequence[ChatMessage]) -> list[int]:
        if len(messages) == 1:
            return [self.count(list(messages))]
        try:
            counts: list[int] = counter.count_each(messages)
        except _PASSED_ON:
            raise
        except BaseException as error:
            raise _fault_of(counter, error) from error
        return counts

    def notes_tokens(self, notes: Sequence[ChatMessage]) -> list[int]:
        """
        Return what messages cost that are to stand in the place of whole groups.

        It is asked when that is decided and again when one is put there, and measured once.

        :param notes: Messages that could each be sent by itself.
        :returns: Tokens, one number a message.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        counts = self.each(notes)
        if len(self._notes) >= _MAX_REMEMBERED:
            self._notes.clear()
        self._notes.update((id(note), (note, count)) for note, count in zip(notes, counts, strict=True))
        return counts

    def note_tokens(self, note: ChatMessage) -> int:
        """
        Return what a message costs that stands in the place of whole groups.

        :param note: A message that could be sent by itself, one that `notes_tokens` was asked about last or another.
        :returns: Tokens.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        known = self._notes.get(id(note))
        return known[1] if known is not None and known[0] is note else self.count([note])

    def replacement_tokens(self, message: ChatMessage) -> int:
        """
        Return what a message costs that stands in the place of another. Only for counters that take single messages.

        A thousand results get the same placeholder. With an additive counter equal texts cost the same, so each is
        measured once.

        :param message: The message.
        :returns: Tokens.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        if not self.additive:
            return self.count([message])
        parts = content_parts(message)
        text = parts[0].result if len(parts) == 1 and isinstance(parts[0], ToolCallResult) else None
        if not isinstance(text, str) or len(text) > _MAX_REMEMBERED_CHARS:
            return self.count([message])
        key = (text, message.name)
        tokens = self._replacements.get(key)
        if tokens is None:
            if len(self._replacements) >= _MAX_REMEMBERED:
                self._replacements.clear()
            tokens = self._replacements[key] = self.count([message])
        return tokens

    def replaced_tokens(
        self, messages: Sequence[ChatMessage], position: int, replacement: ChatMessage, *, tokens: int, valid: bool
    ) -> int:
        """
        Return what a message would cost in the place of one of its group, for a counter that takes whole groups only.

        :param messages: The messages of the group as they are.
        :param position: Which of them would be replaced.
        :param replacement: The message to measure.
        :param tokens: What the message at `position` costs.
        :param valid: Whether the group could be sent by itself.
        :returns: Tokens. Negative where the counter says that the group shrinks by more than the message was said to
            cost, so that sums stay right.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        if not valid:
            return _ESTIMATE.count([replacement])
        changed = [*messages[:position], replacement, *messages[position + 1 :]]
        return tokens - (self.count(list(messages)) - self.count(changed))

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        """
        Ask the counter, and take nothing but a number of tokens for an answer.

        :param messages: What to count.
        :param tools: Tools whose schemas are counted with them.
        :returns: Tokens.
        :raises CounterError: If the counter raises or returns no number of tokens.
        """
        counter = self.token_counter
        try:
            answer = counter.count(messages) if tools is None else counter.count(messages, tools=tools)
        except _PASSED_ON:
            raise
        # A tokenizer written in Rust panics with an exception that is no `Exception`.
        except BaseException as error:
            raise _fault_of(counter, error) from error
        if type(answer) is int and answer >= 0:
            return answer
        return self._checked(answer)

    def _checked(self, answer: Any) -> int:
        """Take any kind of integer, as numpy's, and refuse the rest."""
        try:
            tokens = operator.index(answer)
        except TypeError:
            tokens = -1
        if tokens < 0 or isinstance(answer, bool):
            raise CounterError(
                f"{type(self.token_counter).__name__} must return a number of tokens, an integer of at least 0, got "
                f"{answer!r}."
            )
        return tokens


def _fault_of(counter: Any, error: BaseException) -> CounterError:
    return CounterError(f"{type(counter).__name__} raised {type(error).__name__}: {error}")


def _emptied(message: ChatMessage) -> ChatMessage:
    """A message with the same calls and results, but nothing in them."""
    parts: list[ContentPart] = []
    for part in content_parts(message):
        if isinstance(part, ToolCallResult):
            parts.append(with_result(part, ""))
        else:
            parts.append(replace(part, arguments={}) if isinstance(part, ToolCall) else part)
    return with_parts(message, parts, message.meta)


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """
    Share a number out in proportion to weights, so that the shares add up to it exactly.

    :param total: What is to be shared.
    :param weights: One weight a share, none negative.
    :returns: Integers that add up to `total`.
    """
    weight_left, shares = sum(weights), []
    for weight in weights:
        share = total * weight // weight_left if weight_left else total
        shares.append(share)
        total -= share
        weight_left -= weight
    return shares

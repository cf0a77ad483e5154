"""
Old tool results become placeholders: the gentlest strategy, because nothing but their content goes.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall, ToolCallResult

from haystack_compaction.arguments import check_int, check_text
from haystack_compaction.compactor import Compactor
from haystack_compaction.content import ContentPart, content_parts, with_parts, with_result
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import (
    COMPACTION_META_KEY,
    OFFLOAD_META_KEY,
    TOOL_INPUT_CLEARING,
    TOOL_RESULT_PRUNING,
    is_reduced,
    is_reduced_result,
    marked,
    original_tokens_of,
)
from haystack_compaction.metering import shared_out
from haystack_compaction.prompts import ERROR_EXCERPT, TOOL_INPUT_PLACEHOLDER, TOOL_RESULT_PLACEHOLDER
from haystack_compaction.token_counters import EstimatedTokenCounter

# A value up to this long, such as a path, says more than what would stand in its place.
_MAX_KEPT_INPUT_CHARS = 100

_REASONS = {Action.PRUNE: "old tool result", Action.CLEAR: "old tool arguments"}

_ESTIMATE = EstimatedTokenCounter()


@dataclass(frozen=True, kw_only=True)
class ToolResultPruningCompactor(Compactor):
    """
    Replaces the content of old tool results with a placeholder, oldest first, until the target is met.

    Calls, ids, error flags and all metadata stay, so that every call keeps its result and the model sees what it ran
    and can run it again. Results of the newest steps are out of reach: the model has not worked with them yet.

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction import EstimatedTokenCounter, ToolResultPruningCompactor

    messages = [ChatMessage.from_user("Compare the two files.")]
    for name in ("a.txt", "b.txt"):
        call = ToolCall(tool_name="read_file", arguments={"path": name}, id=name)
        messages.append(ChatMessage.from_assistant(tool_calls=[call]))
        messages.append(ChatMessage.from_tool("a line of the file. " * 1_000, origin=call))

    shorter = ToolResultPruningCompactor().compact(messages, 2_500, EstimatedTokenCounter())
    print(shorter[2].tool_call_result.result)
    ```

    :param min_keep_steps: The newest steps with tool results that stay untouched, at least 1. More keeps more of what
        the model is working with, and frees less.
    :param min_tokens: Only results that use more than this go. Small results free little and are often the ones worth
        keeping; 200 is Haystack's default.
    :param placeholder: The text that stays. `{tool_name}` is filled in; other braces are left alone.
    :param skip_meta_keys: Results whose metadata has one of these keys stay. The default spares the pointers that
        offloading leaves, without which the stored text could not be found again.
    :param exclude_tools: The names of tools whose results stay.
    :param clear_tool_inputs: Whether the arguments of old calls are cut too: True, or the names of the tools whose
        arguments are, such as one that writes files. Keys and short values stay.
    :param keep_error_chars: How much of an errored result's text stays below the placeholder. 0 keeps none.
    """

    min_keep_steps: int = 1
    min_tokens: int = 200
    placeholder: str = TOOL_RESULT_PLACEHOLDER
    skip_meta_keys: tuple[str, ...] = (OFFLOAD_META_KEY,)
    exclude_tools: tuple[str, ...] = ()
    clear_tool_inputs: bool | tuple[str, ...] = False
    keep_error_chars: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(
            "min_keep_steps",
            self.min_keep_steps,
            minimum=1,
            why="The newest results are what the model has not worked with yet.",
        )
        check_int("min_tokens", self.min_tokens, minimum=0)
        check_text("placeholder", self.placeholder)
        self._normalise_names("skip_meta_keys")
        self._normalise_names("exclude_tools")
        if not isinstance(self.clear_tool_inputs, bool):
            self._normalise_names("clear_tool_inputs")
        check_int("keep_error_chars", self.keep_error_chars, minimum=0)

    def propose(self, index: MessageIndex) -> Iterator[Edit]:
        """
        Yield one edit a result, oldest first, and after the results of a step those of its calls.

        :param index: The conversation.
        :returns: Edits that each make the conversation smaller.
        """
        kept, done = self._kept_steps(index), index.settled_by(self)
        # What was looked at once never becomes prunable, so the next pass begins behind it.
        settling = index.included_message_count == index.total_message_count
        for number, group in enumerate(index.included_groups(done), done + 1):
            if group in kept:
                settling = False
                continue
            if group.kind is MessageGroupKind.TOOL_CALL and index.ledger.can_measure(group):
                yield from self._edits_of(index, group, ChatRole.TOOL, Action.PRUNE, self._pruned)
                if self.clear_tool_inputs:
                    yield from self._edits_of(index, group, ChatRole.ASSISTANT, Action.CLEAR, self._cleared)
            if settling:
                index.settle(self, number)

    def deferred_tokens(self, index: MessageIndex) -> int:
        """
        Return what the steps cost that are out of reach for now.

        :param index: The conversation after a pass that took all that it may.
        :returns: Tokens of the counter.
        """
        return sum(group.token_count for group in self._kept_steps(index))

    def _edits_of(
        self,
        index: MessageIndex,
        group: MessageGroup,
        role: ChatRole,
        action: Action,
        shorten: Callable[[MessageGroup, ChatMessage, int], ChatMessage | None],
    ) -> Iterator[Edit]:
        """The edits for a step's messages of one role, those that would free nothing left out."""
        ledger, reason = index.ledger, _REASONS[action]
        cost_of = ledger.at if ledger.meter.single_messages else partial(ledger.content_at, group)
        for position, message in zip(group.positions, tuple(group.messages), strict=True):
            tokens = cost_of(position)
            if tokens <= self.min_tokens or message.role is not role:
                continue
            meta = message.meta
            shorter = None if meta and self._is_protected(meta) else shorten(group, message, tokens)
            if shorter is None:
                continue
            shorter_tokens = ledger.if_rewritten(group, position, shorter)
            freed_tokens = ledger.at(position) - shorter_tokens
            if freed_tokens > 0:
                yield Edit(action, (group,), reason, (shorter,), position, shorter_tokens, freed_tokens)

    def _kept_steps(self, index: MessageIndex) -> set[MessageGroup]:
        """The steps that are out of reach: the newest with results, the newest of all, and what is pinned."""
        kept = self.pinned_groups(index)
        answered = (group for group in index.newest_groups() if group.answered)
        kept.update(islice(answered, self.min_keep_steps))
        if index.newest_step is not None:
            kept.add(index.newest_step)
        return kept

    def _pruned(self, group: MessageGroup, message: ChatMessage, original_tokens: int) -> ChatMessage | None:
        """The message with placeholders for its results, or None where there is nothing to take."""
        if is_reduced_result(message):
            return None
        parts = content_parts(message)
        # Nearly every message holds one result, and then what it costs is what the message costs.
        sizes = (original_tokens,) if len(parts) == 1 else _tokens_of_parts(parts, original_tokens)
        shorter = [
            self._without_content(group, part) if tokens > self.min_tokens else part
            for part, tokens in zip(parts, sizes, strict=True)
        ]
        if all(map(operator.is_, shorter, parts)):
            return None
        meta = message.meta
        if COMPACTION_META_KEY in meta:
            original_tokens = original_tokens_of(message, original_tokens)
        return with_parts(message, shorter, marked(meta, TOOL_RESULT_PRUNING, original_tokens=original_tokens))

    def _without_content(self, group: MessageGroup, result: ContentPart) -> ContentPart:
        """A result with the placeholder for its content, or as it is where it is to stay."""
        if not isinstance(result, ToolCallResult):
            return result
        name = result.origin.tool_name or _name_of_call(group, result) or "this tool"
        if name in self.exclude_tools:
            return result
        # `replace`, because a placeholder of one's own may hold other braces, such as JSON.
        text = self.placeholder.replace("{tool_name}", name)
        if result.error and self.keep_error_chars:
            text += ERROR_EXCERPT.replace("{excerpt}", _text_of(result)[: self.keep_error_chars])
        return with_result(result, text)

    def _is_protected(self, meta: Mapping[str, Any]) -> bool:
        keys = meta.keys()
        return not (keys.isdisjoint(self.skip_meta_keys) and keys.isdisjoint(self.pin_meta_keys))

    def _cleared(self, _: MessageGroup, message: ChatMessage, original_tokens: int) -> ChatMessage | None:
        """The message with its calls' arguments cut, or None where there is nothing to take."""
        if is_reduced(message):
            return None
        parts = [self._without_inputs(part) if isinstance(part, ToolCall) else part for part in content_parts(message)]
        if all(one is other for one, other in zip(parts, content_parts(message), strict=True)):
            return None
        return with_parts(message, parts, marked(message.meta, TOOL_INPUT_CLEARING, original_tokens=original_tokens))

    def _without_inputs(self, call: ToolCall) -> ToolCall:
        names = self.clear_tool_inputs
        if call.tool_name in self.exclude_tools or (isinstance(names, tuple) and call.tool_name not in names):
            return call
        arguments = {key: _shortened(value) for key, value in call.arguments.items()}
        return call if arguments == call.arguments else replace(call, arguments=arguments)


def _name_of_call(group: MessageGroup, result: ToolCallResult) -> str:
    """The name of the tool that was called, for a result that came through a format which does not hold it."""
    for exchange in group.exchanges():
        if exchange.result is result and exchange.call is not None:
            return exchange.call.tool_name
    return ""


def _tokens_of_parts(parts: Sequence[ContentPart], tokens: int) -> list[int]:
    """Share out what a message costs among its results; other parts have no share."""
    results = [part for part in parts if isinstance(part, ToolCallResult)]
    weights = [_ESTIMATE.count([ChatMessage.from_tool(part.result, origin=part.origin)]) for part in results]
    shares = iter(shared_out(tokens, weights))
    return [next(shares) if isinstance(part, ToolCallResult) else 0 for part in parts]


def _text_of(result: ToolCallResult) -> str:
    if isinstance(result.result, str):
        return result.result
    return "\n".join(part.text for part in result.result if isinstance(part, TextContent))


def _shortened(value: Any) -> Any:
    """An argument's value, or a short text that says how much was removed."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= _MAX_KEPT_INPUT_CHARS:
        return value
    return TOOL_INPUT_PLACEHOLDER.replace("{num_chars}", f"{len(text):,}")

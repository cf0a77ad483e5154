"""
The contract of a compactor, held against a result by code that knows nothing of ours.

Written for plainness, not for speed: every rule walks the whole conversation again. `broken_rules` returns sentences,
so that a failing test says what went wrong and where. Below it stand counters that watch what they are asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from haystack.dataclasses import ChatMessage, ChatRole, FileContent, ImageContent, TextContent, ToolCall
from haystack.dataclasses.chat_message import ToolCallResult

MARK = "context_compaction"

Place = tuple[int, int]
"""Position of a message, and which of its calls or results."""


class Counter(Protocol):
    def count(self, messages: list[ChatMessage]) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a compactor is allowed to do; all the rest of the contract is the same for every one."""

    removes: bool = False
    """Whole groups may go."""
    notes: bool = False
    """Messages of its own may come in."""
    rewrites: frozenset[str] = frozenset({"tool"})
    """Roles whose messages may be replaced by a shortened copy."""
    cuts_inputs: bool = False
    """Values in the arguments of calls may be replaced."""
    strips: bool = False
    """Images and files may each become a text, also in what users and the model said."""
    cuts_newest: bool = False
    """The hook may cut a result of the newest step to head and tail."""
    keeps_system: bool = True
    keeps_newest_step: bool = True
    own_goal: bool = False
    """It has a trigger or target of its own, so the caller's tokens do not decide alone."""
    adds_meta: frozenset[str] = frozenset({MARK})
    """Keys of metadata that a rewritten copy may have beside those of the original."""


# --- The conversation, read plainly -----------------------------------------------------------------------------------


def answers(messages: Sequence[ChatMessage]) -> dict[Place, Place]:
    """
    The call that each result answers.

    A result belongs to the nearest earlier assistant message that still has an unanswered call with its id; within that
    message calls are answered from left to right. Calls and results without an id are matched the same way.
    """
    found: dict[Place, Place] = {}
    for position, message in enumerate(messages):
        for number, result in enumerate(message.tool_call_results):
            call = _nearest_unanswered(messages, position, result.origin.id, set(found.values()))
            if call is not None:
                found[position, number] = call
    return found


def _nearest_unanswered(
    messages: Sequence[ChatMessage], before: int, call_id: str | None, answered: set[Place]
) -> Place | None:
    for position in range(before - 1, -1, -1):
        for number, call in enumerate(messages[position].tool_calls):
            if call.id == call_id and (position, number) not in answered:
                return position, number
    return None


def written_by_compaction(message: ChatMessage) -> bool:
    """A message that only lost its images and files is still that of its author."""
    return MARK in message.meta and not _is_stripped(message)


def _is_stripped(message: ChatMessage) -> bool:
    mark = message.meta.get(MARK)
    return isinstance(mark, dict) and mark.get("strategy") == "media"


def task_positions(messages: Sequence[ChatMessage]) -> list[int]:
    """The latest user message that compaction did not write, with the user messages directly before it."""
    users = [n for n, message in enumerate(messages) if message.is_from(ChatRole.USER)]
    own = [n for n in users if not written_by_compaction(messages[n])]
    if not own:
        return users if len(users) == 1 else []
    first = own[-1]
    while first - 1 in own:
        first -= 1
    return list(range(first, own[-1] + 1))


def newest_step_positions(messages: Sequence[ChatMessage]) -> list[int]:
    """The last assistant message and the results that answer it."""
    assistants = [n for n, message in enumerate(messages) if message.is_from(ChatRole.ASSISTANT)]
    if not assistants:
        return []
    results = [place[0] for place, call in answers(messages).items() if call[0] == assistants[-1]]
    return sorted({assistants[-1], *results})


def steps_with_results(messages: Sequence[ChatMessage]) -> list[tuple[int, list[int]]]:
    """Each assistant message that got results, oldest first, with the positions of these."""
    found: dict[int, set[int]] = {}
    for place, call in answers(messages).items():
        found.setdefault(call[0], set()).add(place[0])
    return [(position, sorted(found[position])) for position in sorted(found)]


def orphans(messages: Sequence[ChatMessage]) -> list[int]:
    """Positions of tool messages none of whose results has a call."""
    paired = {place[0] for place in answers(messages)}
    return [n for n, message in enumerate(messages) if message.tool_call_results and n not in paired]


# --- Which message is which -------------------------------------------------------------------------------------------


def origins(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> list[int | None]:
    """For each message of the result its position in the input, or `None` for one that was not there."""
    found: list[int | None] = []
    pointer = 0
    for message in after:
        same = next((n for n in range(pointer, len(before)) if before[n] is message), None)
        found.append(same)
        pointer = same + 1 if same is not None else pointer
    return _with_rewritten(before, after, found)


def _with_rewritten(
    before: Sequence[ChatMessage], after: Sequence[ChatMessage], kept: list[int | None]
) -> list[int | None]:
    found = list(kept)
    # Backwards, because what goes is the oldest: of two that look the same it is the later one that stayed.
    end = len(before)
    for index in range(len(after) - 1, -1, -1):
        message = after[index]
        if found[index] is None and not _is_note(message) and not any(message is original for original in before):
            start = next((n + 1 for n in reversed(found[:index]) if n is not None), 0)
            same = (n for n in range(end - 1, start - 1, -1) if _may_be_copy(before[n], message))
            found[index] = next(same, None)
        end = end if found[index] is None else found[index]
    return found


def _may_be_copy(original: ChatMessage, message: ChatMessage) -> bool:
    if _outline(original) != _outline(message):
        return False
    return not _is_stripped(message) or _without_added_texts(original, message) is not None


def _is_note(message: ChatMessage) -> bool:
    return message.is_from(ChatRole.USER) and written_by_compaction(message)


def _outline(message: ChatMessage) -> Any:
    """What a rewritten copy has in common with its original, whatever else has changed."""
    return (
        message.role,
        message.name,
        [(call.id, call.tool_name, call.extra) for call in message.tool_calls],
        [(r.origin.id, r.origin.tool_name, r.origin.extra, r.error) for r in message.tool_call_results],
    )


# --- The rules --------------------------------------------------------------------------------------------------------


def broken_rules(
    before: Sequence[ChatMessage],
    after: Sequence[ChatMessage] | None,
    target_tokens: int | None,
    counter: Counter,
    *,
    facts: Facts | None = None,
) -> list[str]:
    """
    The rules that a compaction broke, as sentences; nothing when all were kept.

    :param before: The conversation that was given. That it is unchanged is for the caller to compare.
    :param after: What came back, `None` for no change.
    :param target_tokens: The budget that was given, or `None`.
    :param counter: The counter that was given.
    :param facts: What this compactor is allowed to do.
    """
    facts = facts or Facts()
    if after is None:
        return []
    found = origins(before, after)
    return [
        *_smaller(before, after, target_tokens, counter, facts),
        *_known_messages(before, after, found, facts),
        *_rewritten_messages(before, after, found, facts),
        *_pairs(before, after, found),
        *_survivors(before, found, after, facts),
        *_neighbours(before, after, found, facts),
    ]


def _smaller(
    before: Sequence[ChatMessage],
    after: Sequence[ChatMessage],
    target_tokens: int | None,
    counter: Counter,
    facts: Facts,
) -> list[str]:
    size, rest = counter.count(list(before)), counter.count(list(after))
    broken = []
    if rest >= size:
        broken.append(f"the result is not strictly smaller: {size} tokens became {rest}")
    if target_tokens is not None and size <= target_tokens and not facts.own_goal:
        broken.append(f"a conversation of {size} tokens that fits into {target_tokens} was changed")
    return broken


def _known_messages(
    before: Sequence[ChatMessage], after: Sequence[ChatMessage], found: Sequence[int | None], facts: Facts
) -> list[str]:
    broken = []
    for index, (message, origin) in enumerate(zip(after, found, strict=True)):
        if origin is None and any(message is original for original in before):
            broken.append(f"message {index} of the result is an original out of its order, or there twice")
        elif origin is None and not (facts.notes and _is_note(message)):
            broken.append(f"message {index} of the result comes from nowhere: {message!r:.200}")
    missing = sorted(set(range(len(before))) - {n for n in found if n is not None})
    if missing and not facts.removes:
        broken.append(f"messages {missing} are gone, and this compactor removes none")
    return broken


def _rewritten_messages(
    before: Sequence[ChatMessage], after: Sequence[ChatMessage], found: Sequence[int | None], facts: Facts
) -> list[str]:
    broken = []
    for message, origin in zip(after, found, strict=True):
        if origin is None or before[origin] is message:
            continue
        original = before[origin]
        if original.role.value not in facts.rewrites:
            broken.append(f"message {origin} ({original.role.value}) was rewritten, which this compactor may not do")
        broken.extend(f"message {origin}: {fault}" for fault in _faults_of_a_copy(original, message, facts))
    return broken


def _faults_of_a_copy(original: ChatMessage, copy: ChatMessage, facts: Facts) -> list[str]:
    faults = []
    if (original.role, original.name) != (copy.role, copy.name):
        faults.append("role or name changed")
    others = {key: value for key, value in copy.meta.items() if key not in facts.adds_meta}
    if others != {key: value for key, value in original.meta.items() if key not in facts.adds_meta}:
        faults.append("other metadata changed")
    mark = copy.meta.get(MARK)
    if not (isinstance(mark, dict) and isinstance(mark.get("strategy"), str)):
        faults.append(f"the copy does not say which strategy wrote it: {mark!r}")
    if facts.strips and _is_stripped(copy):
        added = _without_added_texts(original, copy)
        if added is None or added != len(_media_of(original)) - len(_media_of(copy)):
            faults.append("more than images and files changed, or they did not become one text each")
    elif [p.to_dict() for p in _own_parts(original)] != [p.to_dict() for p in _own_parts(copy)]:
        faults.append("text or reasoning of its own changed")
    faults.extend(_faults_of_calls(original.tool_calls, copy.tool_calls, facts))
    faults.extend(_faults_of_results(original.tool_call_results, copy.tool_call_results, facts))
    return faults


def _own_parts(message: ChatMessage) -> list[Any]:
    """What a message says or shows itself, in order; its calls and results have rules of their own."""
    kinds = (ToolCall, ToolCallResult)
    return [part for part in message._content if not isinstance(part, kinds)]


def _media_of(message: ChatMessage) -> list[Any]:
    return [part for part in _own_parts(message) if isinstance(part, ImageContent | FileContent)]


def _without_added_texts(original: ChatMessage, copy: ChatMessage) -> int | None:
    """How many texts a copy has beside the parts of the original that are no media; `None` if one of these is gone."""
    left = [part for part in _own_parts(original) if not isinstance(part, ImageContent | FileContent)]
    added = 0
    for part in _own_parts(copy):
        if left and part is left[0]:
            left.pop(0)
        elif isinstance(part, TextContent):
            added += 1
        elif not any(part is media for media in _media_of(original)):
            return None
    return None if left else added


def _faults_of_calls(originals: Sequence[ToolCall], copies: Sequence[ToolCall], facts: Facts) -> list[str]:
    if len(originals) != len(copies):
        return [f"{len(originals)} calls became {len(copies)}"]
    faults = []
    for original, copy in zip(originals, copies, strict=True):
        if (original.id, original.tool_name, original.extra) != (copy.id, copy.tool_name, copy.extra):
            faults.append(f"call {original.id} changed its id, name or extras")
        if list(original.arguments) != list(copy.arguments):
            faults.append(f"call {original.id} lost or gained names of arguments")
        if original.arguments != copy.arguments and not facts.cuts_inputs:
            faults.append(f"call {original.id} has other arguments")
    return faults


def _faults_of_results(
    originals: Sequence[ToolCallResult], copies: Sequence[ToolCallResult], facts: Facts
) -> list[str]:
    if len(originals) != len(copies):
        return [f"{len(originals)} results became {len(copies)}"]
    faults = []
    for original, copy in zip(originals, copies, strict=True):
        if original.error != copy.error:
            faults.append(f"the result of {original.origin.id} changed its error flag")
        faults.extend(_faults_of_calls([original.origin], [copy.origin], facts))
    return faults


def _pairs(before: Sequence[ChatMessage], after: Sequence[ChatMessage], found: Sequence[int | None]) -> list[str]:
    kept = {n for n in found if n is not None}
    was = answers(before)
    broken = []
    for (result, _), (call, _) in was.items():
        if (result in kept) != (call in kept):
            gone, left = ("call", result) if result in kept else ("result", call)
            broken.append(f"message {left} stayed, but the {gone} that belongs to it is gone")
    now = {
        (found[result], number): (found[call], call_number)
        for (result, number), (call, call_number) in answers(after).items()
    }
    for place, call in now.items():
        if was.get(place) != call:
            broken.append(f"result {place} answered call {was.get(place)} and now answers {call}")
    return broken


def _survivors(
    before: Sequence[ChatMessage], found: Sequence[int | None], after: Sequence[ChatMessage], facts: Facts
) -> list[str]:
    same = {n for n, message in zip(found, after, strict=True) if n is not None and before[n] is message}
    kept = {n for n in found if n is not None}
    broken = []
    if facts.keeps_system:
        systems = {n for n, message in enumerate(before) if message.is_from(ChatRole.SYSTEM)}
        broken.extend(f"system message {n} is gone or changed" for n in sorted(systems - same))
    broken.extend(f"message {n} of the task is gone or changed" for n in task_positions(before) if n not in same)
    if facts.keeps_newest_step:
        there = kept if facts.cuts_newest else same
        broken.extend(
            f"message {n} of the newest step is gone or changed"
            for n in newest_step_positions(before)
            if n not in there
        )
    return broken


def _neighbours(
    before: Sequence[ChatMessage], after: Sequence[ChatMessage], found: Sequence[int | None], facts: Facts
) -> list[str]:
    """What the removal of messages may not bring about."""
    if not facts.removes or {n for n in found if n is not None} == set(range(len(before))):
        return []
    broken = []
    first = next((n for n, message in enumerate(after) if not message.is_from(ChatRole.SYSTEM)), None)
    others = [
        n for n, message in enumerate(before) if not message.is_from(ChatRole.SYSTEM) and n not in orphans(before)
    ]
    if first is not None and first in orphans(after) and others:
        broken.append("what remains begins with a result that has no call")
    for index in range(1, len(after)):
        pair = after[index - 1 : index + 1]
        own_users = all(m.is_from(ChatRole.USER) and not written_by_compaction(m) for m in pair)
        if own_users and found[index - 1] != (found[index] or 0) - 1:
            broken.append(f"two user messages became neighbours at {index - 1} and {index} of the result")
    return broken


# --- Counters that watch ----------------------------------------------------------------------------------------------


class RecordingCounter:
    """
    Four characters a token, four tokens a message and a hundred an image or file, additive, with a record of every
    message that it was given.

    :param additive: Whether it tells that single messages may be given; without that its kind is unknown.
    """

    def __init__(self, *, additive: bool = True) -> None:
        if additive:
            self.additive = True
        self.requests: list[list[ChatMessage]] = []

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        self.requests.append(list(messages))
        return sum(4 + 100 * _media_count(message) + len(_everything(message)) // 4 for message in messages)

    def times(self, message: ChatMessage) -> int:
        """How often this very message was measured, alone or among others."""
        return sum(given is message for request in self.requests for given in request)

    @property
    def measured(self) -> int:
        return sum(len(request) for request in self.requests)


def _media_count(message: ChatMessage) -> int:
    blocks = [
        block for result in message.tool_call_results if not isinstance(result.result, str) for block in result.result
    ]
    return len(_media_of(message)) + sum(isinstance(block, ImageContent | FileContent) for block in blocks)


def _everything(message: ChatMessage) -> str:
    calls = [f"{call.tool_name}{call.arguments}" for call in message.tool_calls]
    results = [f"{result.origin.tool_name}{result.result}" for result in message.tool_call_results]
    return "".join([*message.texts, *calls, *results])


class StrictCounter(RecordingCounter):
    """
    Of unknown kind, and it raises unless it is given a whole, valid conversation or one whole, valid group.

    :param conversation: The conversation that is going to be compacted: whole is what reaches its last message, and a
        call without its results may be given only where it has none there either.
    :param end_may_go: Whether the compactor may remove the newest step. Then a whole one may end anywhere.
    """

    def __init__(self, conversation: Sequence[ChatMessage], *, end_may_go: bool = False) -> None:
        super().__init__(additive=False)
        self.conversation = list(conversation)
        self.end_may_go = end_may_go
        self.refused: list[list[ChatMessage]] = []

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        if not (_complete(messages, self.conversation) and (self._is_whole(messages) or _is_one_group(messages))):
            self.refused.append(list(messages))
            msg = f"not a valid conversation: {messages!r:.300}"
            raise ValueError(msg)
        return super().count(messages, tools)

    def _is_whole(self, messages: Sequence[ChatMessage]) -> bool:
        return bool(messages) and (self.end_may_go or messages[-1] is self.conversation[-1])


def _complete(messages: Sequence[ChatMessage], conversation: Sequence[ChatMessage]) -> bool:
    """Whether every result has its call, and every call the results that it has in the conversation."""
    given = answers(messages)
    if any((n, k) not in given for n, message in enumerate(messages) for k in range(len(message.tool_call_results))):
        return False
    unanswered = [
        message
        for n, message in enumerate(messages)
        for k in range(len(message.tool_calls))
        if (n, k) not in given.values()
    ]
    answered_there = {id(conversation[call[0]]) for call in answers(conversation).values()}
    return all(
        any(message is known for known in conversation) and id(message) not in answered_there for message in unanswered
    )


def _is_one_group(messages: Sequence[ChatMessage]) -> bool:
    if len(messages) == 1:
        return True
    others = [message for message in messages if not message.tool_call_results and not _only_reasoning(message)]
    return len(others) == 1 and bool(others[0].tool_calls)


def _only_reasoning(message: ChatMessage) -> bool:
    return bool(message.reasonings) and not message.texts and not message.tool_calls


class RaisingCounter:
    """Fails whatever it is asked."""

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        msg = "the tokenizer is broken"
        raise RuntimeError(msg)


@dataclass(frozen=True)
class GarbageCounter:
    """Answers everything with the same thing, which is no count."""

    answer: Any

    def count(self, messages: list[ChatMessage], tools: Any = None) -> Any:
        return self.answer

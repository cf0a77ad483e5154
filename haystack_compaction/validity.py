"""
The rules that a result must meet, one function a rule, and two ways to ask them.

Edits of ours work on whole groups, so it is enough to look at what was edited: that costs nothing in a long
conversation. A list that somebody else's compactor returned is looked at whole.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from haystack.dataclasses import ChatMessage, TextContent, ToolCall, ToolCallResult

from haystack_compaction.attachments import Attachment
from haystack_compaction.content import ContentPart, content_parts
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Action, Edit
from haystack_compaction.groups import MessageGroup, MessageGroupKind


@dataclass(frozen=True, slots=True)
class Allowance:
    """
    What a compactor's caller allowed beyond the contract.

    :param system: Whether instructions may go.
    :param newest_step: Whether the newest step may go.
    """

    system: bool = False
    newest_step: bool = False


def broken_rule(
    index: MessageIndex, edits: Iterable[Edit], allowance: Allowance, pinned: Collection[MessageGroup] = ()
) -> str | None:
    """
    Return the rule that a list of edits breaks, and where.

    :param index: The conversation, with the edits carried out.
    :param edits: What was changed.
    :param allowance: What the caller allowed.
    :param pinned: Groups that stay whatever happens.
    :returns: A sentence, or None where all rules are kept.
    """
    for edit in edits:
        if edit.position is not None:
            broken = _broken_by_rewriting(index, edit, pinned)
            if broken:
                return f"message {edit.position} {broken}"
            continue
        for group in edit.groups:
            if group in pinned:
                return f"what is pinned must stay (messages {group.positions})"
            for rule in _RULES_OF_REMOVAL:
                broken = rule(index, group, allowance)
                if broken:
                    return f"{broken} (messages {group.positions})"
    return None


def _instructions_stay(_: MessageIndex, group: MessageGroup, allowance: Allowance) -> str | None:
    if group.kind is MessageGroupKind.SYSTEM and not allowance.system:
        return "instructions must stay"
    return None


def _task_stays(index: MessageIndex, group: MessageGroup, _: Allowance) -> str | None:
    return "the task must stay" if group in index.task_groups else None


def _newest_step_stays(index: MessageIndex, group: MessageGroup, allowance: Allowance) -> str | None:
    if group is index.newest_step and (group.is_pending or not allowance.newest_step):
        return "the newest step must stay"
    return None


_RULES_OF_REMOVAL: tuple[Callable[[MessageIndex, MessageGroup, Allowance], str | None], ...] = (
    _instructions_stay,
    _task_stays,
    _newest_step_stays,
)


# Groups of which every word stays, but in which images and files may become a line of text.
_SPOKEN = (MessageGroupKind.USER, MessageGroupKind.ASSISTANT_TEXT)


def _broken_by_rewriting(index: MessageIndex, edit: Edit, pinned: Collection[MessageGroup]) -> str | None:
    group, before, after = edit.groups[0], index.original_at(edit.position or 0), edit.messages[0]
    if group in pinned:
        return "is pinned and must stay as it is"
    if group is index.newest_step and edit.action is not Action.CUT:
        return "is of the newest step, which must stay as it is"
    if group.kind is MessageGroupKind.TOOL_CALL:
        return _changed_message(before, after) or _changed_exchange(before, after)
    if group.kind not in _SPOKEN or edit.action is not Action.STRIP:
        return "is no tool exchange, and elsewhere only images and files may be replaced in their place"
    if group in index.task_groups:
        return "is of the task, which must stay as it is"
    return _changed_message(before, after) or _changed_words(before, after)


def _changed_message(before: ChatMessage, after: ChatMessage) -> str | None:
    """A rewritten message has the same speaker and all that was known of it."""
    if before.role is not after.role or before.name != after.name:
        return "must keep its role and name"
    if not before.meta.keys() <= after.meta.keys():
        return "must keep its metadata"
    return None


def _changed_words(before: ChatMessage, after: ChatMessage) -> str | None:
    """A message that was stripped has the same parts in the same order, but for text in the place of its media."""
    words, media = _sorted_apart(content_parts(before))
    words_after, media_after = _sorted_apart(content_parts(after))
    own = {id(part) for part in words}
    added = [part for part in words_after if id(part) not in own]
    same = _is_part_of(words, words_after) and _is_part_of(media_after, media)
    if same and len(words_after) - len(words) == len(added) == len(media) - len(media_after):
        return None if all(isinstance(part, TextContent) for part in added) else "must get text in the place of media"
    return "must keep all of its parts in their order but the images and files that became text"


def _sorted_apart(parts: Sequence[ContentPart]) -> tuple[list[ContentPart], list[ContentPart]]:
    """What was said, and what was attached."""
    said: list[ContentPart] = []
    attached: list[ContentPart] = []
    for part in parts:
        (attached if isinstance(part, Attachment) else said).append(part)
    return said, attached


def _is_part_of(few: Sequence[ContentPart], many: Sequence[ContentPart]) -> bool:
    """Whether a list holds all parts of another, the very same and in their order."""
    rest = iter(many)
    return all(any(one is other for other in rest) for one in few)


def _changed_exchange(before: ChatMessage, after: ChatMessage) -> str | None:
    """A rewritten message still makes the same calls and answers the same calls."""
    if not _same_exchanges(content_parts(before), content_parts(after)):
        return "must keep its calls and results, with their ids, argument names and error flags"
    return None


def _same_exchanges(before: Sequence[ContentPart], after: Sequence[ContentPart]) -> bool:
    """Whether calls and results are the same but for arguments and content. Other parts may differ."""
    if len(before) == len(after) == 1:
        # Nearly every rewritten message is one result.
        return _is_same_exchange(before[0], after[0])
    if len(before) != len(after):
        before, after = _exchanges_of(before), _exchanges_of(after)
    return len(before) == len(after) and all(map(_is_same_exchange, before, after))


def _exchanges_of(parts: Sequence[ContentPart]) -> list[ContentPart]:
    return [part for part in parts if isinstance(part, ToolCall | ToolCallResult)]


def _is_same_exchange(one: ContentPart, other: ContentPart) -> bool:
    if one is other:
        return True
    if isinstance(one, ToolCallResult):
        if not isinstance(other, ToolCallResult) or one.error != other.error:
            return False
        # Comparing by value goes through all arguments, and a copy has the very same call.
        return one.origin is other.origin or one.origin == other.origin
    if isinstance(one, ToolCall):
        same = isinstance(other, ToolCall) and one.id == other.id and one.tool_name == other.tool_name
        return same and list(one.arguments) == list(other.arguments)  # type: ignore[union-attr]
    return not isinstance(other, ToolCall | ToolCallResult)


def broken_rule_of_list(before: MessageIndex, after: MessageIndex, kept: Collection[MessageGroup] = ()) -> str | None:
    """
    Return the rule that a rewritten conversation breaks.

    Only what every provider and every Agent needs is asked of somebody else's compactor: whole exchanges and the task.

    :param before: The conversation as it was.
    :param after: The conversation that was returned for it.
    :param kept: Groups of `before` that stay whatever happens.
    :returns: A sentence, or None where the rules are kept.
    """
    # An exchange that was broken before may stay so, even if its text changed: it was the caller's.
    already = Counter(end for group in before.included_groups() for end in _loose_ends(group))
    for group in after.included_groups():
        for end in _loose_ends(group):
            already[end] -= 1
            if already[end] < 0:
                what = "a result has no call" if end[0] else "a call has no result"
                return f"{what} (messages {group.positions} of what was returned)"
    order = {id(message): place for place, message in enumerate(before.included_messages())}
    left = [order[id(message)] for message in after.included_messages() if id(message) in order]
    if left != sorted(left):
        return "the messages that stay must keep their order"
    if before.task_groups and not _same_task(before.task_groups, after.task_groups):
        return "the task must stay: the latest message of the user is no longer the same"
    return _lost(kept, after) if kept else None


def _loose_ends(group: MessageGroup) -> Iterator[tuple[bool, str | None, str]]:
    """Whether it is a result, id and tool, for each result without its call and each call without its result."""
    if group.is_whole:
        return
    for exchange in group.exchanges():
        if exchange.call is None and exchange.result is not None:
            yield True, exchange.result.origin.id, exchange.result.origin.tool_name
        elif exchange.call is not None and exchange.result is None:
            yield False, exchange.call.id, exchange.call.tool_name


def _lost(kept: Collection[MessageGroup], after: MessageIndex) -> str | None:
    there = {id(message) for message in after.included_messages()}
    for group in kept:
        if not all(id(message) in there for message in group.messages):
            what = "the newest step" if group is group.owner.newest_step else "what is pinned"
            what = "instructions" if group.kind is MessageGroupKind.SYSTEM else what
            return f"{what} must stay (messages {group.positions})"
    return None


def _same_task(before: Sequence[MessageGroup], after: Sequence[MessageGroup]) -> bool:
    ours = [message for group in before for message in group.messages]
    theirs = [message for group in after for message in group.messages]
    return ours == theirs[-len(ours) :]

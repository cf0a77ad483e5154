"""
The rules that a result must meet, one function a rule, and two ways to ask them.

Edits of ours work on whole groups, so it is enough to look at what was edited: that costs nothing in a long
conversation. A list that somebody else's compactor returned is looked at whole.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from haystack.dataclasses import ChatMessage, ToolCall, ToolCallResult

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
            broken = _broken_by_rewriting(index, edit)
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


def _broken_by_rewriting(index: MessageIndex, edit: Edit) -> str | None:
    group = edit.groups[0]
    if group.kind is not MessageGroupKind.TOOL_CALL:
        return "is no tool exchange, and only those may be rewritten in their place"
    if group is index.newest_step and edit.action is not Action.CUT:
        return "is of the newest step, which must stay as it is"
    return _changed_exchange(index.original_at(edit.position or 0), edit.messages[0])


def _changed_exchange(before: ChatMessage, after: ChatMessage) -> str | None:
    """A rewritten message still makes the same calls and answers the same calls, for the same speaker."""
    if before.role is not after.role or before.name != after.name:
        return "must keep its role and name"
    if not before.meta.keys() <= after.meta.keys():
        return "must keep its metadata"
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


def broken_rule_of_list(before: MessageIndex, after: MessageIndex) -> str | None:
    """
    Return the rule that a rewritten conversation breaks.

    Only what every provider and every Agent needs is asked of somebody else's compactor: whole exchanges and the task.

    :param before: The conversation as it was.
    :param after: The conversation that was returned for it.
    :returns: A sentence, or None where the rules are kept.
    """
    # An exchange that was broken before may stay so: it was the caller's.
    already = {id(message) for group in before.included_groups() if not group.is_whole for message in group.messages}
    for group in after.included_groups():
        if not group.is_whole and not any(id(message) in already for message in group.messages):
            what = "a result has no call" if group.is_orphan else "a call has no result"
            return f"{what} (messages {group.positions} of what was returned)"
    order = {id(message): place for place, message in enumerate(before.included_messages())}
    kept = [order[id(message)] for message in after.included_messages() if id(message) in order]
    if kept != sorted(kept):
        return "the messages that stay must keep their order"
    if before.task_groups and not _same_task(before.task_groups, after.task_groups):
        return "the task must stay: the latest message of the user is no longer the same"
    return None


def _same_task(before: Sequence[MessageGroup], after: Sequence[MessageGroup]) -> bool:
    ours = [message for group in before for message in group.messages]
    theirs = [message for group in after for message in group.messages]
    return ours == theirs[-len(ours) :]

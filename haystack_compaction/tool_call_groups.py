"""
Which groups with tool calls are old enough to go.
"""

from collections.abc import Container, Iterator
from itertools import islice

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.groups import MessageGroup, MessageGroupKind


def newest_tool_call_groups(index: MessageIndex, count: int) -> set[MessageGroup]:
    """
    Return the newest groups with tool calls; a result without a call is none.

    :param index: The conversation.
    :param count: How many at most.
    :returns: The groups.
    """
    return set(islice((group for group in index.newest_groups() if has_calls(group)), count))


def old_tool_call_groups(index: MessageIndex, kept: Container[MessageGroup], keep_last: int) -> Iterator[MessageGroup]:
    """
    Return the groups with tool calls that may go, oldest first.

    :param index: The conversation.
    :param kept: Groups that stay for another reason.
    :param keep_last: How many of the newest stay.
    :returns: The groups.
    """
    newest = newest_tool_call_groups(index, keep_last)
    return (
        group for group in index.included_groups() if has_calls(group) and group not in newest and group not in kept
    )


def has_calls(group: MessageGroup) -> bool:
    """
    Return whether a group has tool calls.

    :param group: The group.
    """
    return group.kind is MessageGroupKind.TOOL_CALL and not group.is_orphan


def waiting_tokens(index: MessageIndex, keep_last: int) -> int:
    """
    Return what the groups with tool calls cost that are too new to go.

    :param index: The conversation.
    :param keep_last: How many of the newest stay.
    :returns: Tokens of the counter.
    """
    newest = newest_tool_call_groups(index, keep_last)
    if index.newest_step is not None and has_calls(index.newest_step):
        newest.add(index.newest_step)
    return sum(group.token_count for group in newest)

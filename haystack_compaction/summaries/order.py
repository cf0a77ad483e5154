"""
In which order old history is condensed: earlier turns, then what is left of even earlier ones, then the task's steps.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.groups import MessageGroup, MessageGroupKind
from haystack_compaction.marks import is_separator

_STEPS = frozenset({MessageGroupKind.ASSISTANT_TEXT, MessageGroupKind.TOOL_CALL})


class Region(Enum):
    """
    A part of a conversation that has a summary of its own.
    """

    #: All before the task.
    HISTORY = "history"

    #: What was done for the task.
    TASK = "task"


class Unit(NamedTuple):
    """
    What is condensed together.

    :param region: Where it stands.
    :param groups: Its groups, oldest first; what compaction wrote between them included.
    :param is_raw: Whether any of it is not yet condensed.
    """

    region: Region
    groups: tuple[MessageGroup, ...]
    is_raw: bool

    @property
    def tokens(self) -> int:
        """
        What it costs.
        """
        return sum(group.token_count for group in self.groups)


def units_of(index: MessageIndex, kept: Collection[MessageGroup]) -> list[Unit]:
    """
    Return what may be condensed, in the order in which it should be.

    :param index: The conversation.
    :param kept: Groups that stay as they are.
    :returns: Complete earlier turns, earlier summaries, the task's steps, its summaries; each of these oldest first.
    """
    start = start_of_task(index)
    history: list[MessageGroup] = []
    task: list[MessageGroup] = []
    for group in index.included_groups():
        if group not in kept and group.kind is not MessageGroupKind.SYSTEM and not group.is_orphan:
            (task if group.positions[0] > start else history).append(group)
    return [*_units_within(Region.HISTORY, history), *_units_within(Region.TASK, task)]


def start_of_task(index: MessageIndex) -> int:
    """
    Return where the task of a user stands.

    :param index: The conversation.
    :returns: The place of its first message; -1 where no user speaks, so that the whole is the task's.
    """
    groups = index.task_groups
    return groups[0].positions[0] if groups and groups[0].kind is MessageGroupKind.USER else -1


def newest_steps(index: MessageIndex, count: int) -> list[MessageGroup]:
    """
    Return the newest steps of the task.

    :param index: The conversation.
    :param count: How many.
    """
    if count == 0:
        return []
    start = start_of_task(index)
    steps = [
        group
        for group in index.included_groups()
        if group.kind in _STEPS and group.positions[0] > start and not group.is_orphan
    ]
    return steps[-count:]


def outside_of_last(index: MessageIndex, count: int, kept: Collection[MessageGroup]) -> set[MessageGroup]:
    """
    Return what stands before the newest messages.

    :param index: The conversation.
    :param count: How many messages are to stay at least; what compaction wrote, and instructions, do not count.
    :param kept: Groups that stay whatever their place.
    :returns: Groups that are not yet condensed and may be.
    """
    outside: set[MessageGroup] = set()
    left = count
    for group in index.newest_groups():
        if group.kind in (MessageGroupKind.SYSTEM, MessageGroupKind.SUMMARY) or group.is_orphan:
            continue
        if left <= 0 and group not in kept:
            outside.add(group)
        left -= len(group.messages)
    return outside


def _units_within(region: Region, groups: Sequence[MessageGroup]) -> list[Unit]:
    """The units of one region. What compaction wrote within the raw part goes with what follows it."""
    raw: list[list[MessageGroup]] = []
    summaries: list[MessageGroup] = []
    between: list[MessageGroup] = []
    turn: int | None = None
    for group in groups:
        if group.kind is MessageGroupKind.SUMMARY:
            (between if raw else summaries).append(group)
            continue
        if region is Region.HISTORY and raw and group.turn_index == turn:
            raw[-1].extend([*between, group])
        else:
            raw.append([*between, group])
        between, turn = [], group.turn_index
    return [
        *(Unit(region, tuple(unit), is_raw=True) for unit in raw),
        *(Unit(region, (group,), is_raw=False) for group in _telling([*summaries, *between])),
    ]


def _telling(groups: Iterable[MessageGroup]) -> list[MessageGroup]:
    return [group for group in groups if not all(map(is_separator, group.messages))]

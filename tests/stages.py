"""Compactors of a user's own that the tests of compositions put together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from haystack.core.serialization import allow_deserialization_module
from haystack.dataclasses import ChatMessage

from haystack_compaction import (
    Action,
    Call,
    Compactor,
    Edit,
    MessageGroupKind,
    MessageIndex,
    apply_edit,
    ask,
    drop,
    substitute,
)
from haystack_compaction.edits import part_users

allow_deserialization_module("stages")


@dataclass(frozen=True, kw_only=True)
class OneLine(Compactor):
    """Asks the outside for one line, and puts it in the place of all that may go."""

    line: str = "[Earlier work.]"
    fails: bool = False

    def decide(self, index: MessageIndex, goal: Any) -> Any:
        groups = [group for group in self.removable_groups(index) if group.kind is not MessageGroupKind.SUMMARY]
        if not groups:
            return []
        text = yield from ask(Call(self.fetch))
        note = ChatMessage.from_user(text, meta={"context_compaction": {"strategy": "one_line"}})
        return [apply_edit(index, substitute(Action.COLLAPSE, groups, note, reason="one line")), *part_users(index)]

    def fetch(self) -> str:
        if self.fails:
            msg = "nobody there"
            raise ConnectionError(msg)
        return self.line


@dataclass(frozen=True, kw_only=True)
class DropOldest(Compactor):
    """Removes whatever may go, oldest first."""

    def propose(self, index: MessageIndex) -> Iterable[Edit]:
        for group in self.removable_groups(index):
            yield drop(group, reason="oldest")

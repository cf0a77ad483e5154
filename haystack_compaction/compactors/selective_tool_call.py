"""
Old tool-call groups go altogether: what user and model said stays, what tools were asked and returned does not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from haystack.dataclasses import ToolCall

from haystack_compaction.arguments import check_int
from haystack_compaction.compactor import Compactor
from haystack_compaction.content import content_parts
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Edit, drop
from haystack_compaction.groups import MessageGroup
from haystack_compaction.tool_call_groups import old_tool_call_groups, waiting_tokens
from haystack_compaction.validity import Allowance


@dataclass(frozen=True, kw_only=True)
class SelectiveToolCallCompactor(Compactor):
    """
    Removes old tool calls with their results, oldest first, until the target is met.

    What users said and the replies that called no tool stay, and so does what earlier compaction wrote. A group goes
    altogether: text and reasoning in a message that calls tools goes with its calls, because that message cannot be
    sent without results. Nothing is left in its place; take `ToolResultCollapseCompactor` for a line that tells what
    was called. Without a target, a budget and a trigger all goes that may.

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction import EstimatedTokenCounter, SelectiveToolCallCompactor

    messages = [ChatMessage.from_user("Compare the two files.")]
    for name in ("a.txt", "b.txt"):
        call = ToolCall(tool_name="read_file", arguments={"path": name}, id=name)
        messages.append(ChatMessage.from_assistant(tool_calls=[call]))
        messages.append(ChatMessage.from_tool("a line of the file. " * 1_000, origin=call))
        messages.append(ChatMessage.from_assistant(f"I have read {name}."))

    shorter = SelectiveToolCallCompactor().compact(messages, None, EstimatedTokenCounter())
    print([message.text for message in shorter])
    ```

    :param keep_last_tool_call_groups: The newest groups with tool calls that stay. More keeps more of what the model is
        working with, and frees less. With 0 even results may go that the model has not seen yet; calls that still wait
        for a result stay.
    :param exclude_tools: The names of tools whose calls stay. A group with such a call stays whole, with the other
        calls that were made together with it.
    """

    keep_last_tool_call_groups: int = 1
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("keep_last_tool_call_groups", self.keep_last_tool_call_groups, minimum=0)
        self._normalise_names("exclude_tools")

    @property
    def allowance(self) -> Allowance:
        """
        The newest step may go where no group is asked to be kept.
        """
        return Allowance(newest_step=self.keep_last_tool_call_groups == 0)

    def propose(self, index: MessageIndex) -> Iterator[Edit]:
        """
        Yield one edit a group: results without a call first, then groups with calls, oldest first.

        :param index: The conversation.
        :returns: Edits that remove groups.
        """
        yield from self.orphan_edits(index)
        for group in old_tool_call_groups(index, self.kept_groups(index), self.keep_last_tool_call_groups):
            if not self._is_protected(group):
                yield drop(group, reason="old tool calls")

    def deferred_tokens(self, index: MessageIndex) -> int:
        """
        Return what the groups with tool calls cost that are out of reach for now.

        :param index: The conversation after a pass that took all that it may.
        :returns: Tokens of the counter.
        """
        return waiting_tokens(index, self.keep_last_tool_call_groups)

    def _is_protected(self, group: MessageGroup) -> bool:
        names = self.exclude_tools
        if not names:
            return False
        parts = (part for message in group.messages for part in content_parts(message))
        return any(isinstance(part, ToolCall) and part.tool_name in names for part in parts)

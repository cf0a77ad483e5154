"""
What a pass of compaction did, as data: every door hands out the same.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation import MessageIndex
from haystack_compaction.edits import Edit


class Reason(str, Enum):  # noqa: UP042 - as Haystack's own enums
    """
    Why a pass ended as it did.
    """

    #: The conversation was shortened.
    COMPACTED = "compacted"

    #: It is already as small as asked for.
    FITS = "fits"

    #: The compactor's own trigger did not fire.
    NOT_TRIGGERED = "not_triggered"

    #: All that is left has to stay.
    NOTHING_MAY_GO = "nothing_may_go"

    #: It would not have become smaller, or not by enough.
    NO_GAIN = "no_gain"

    #: A counter, model, store or compactor failed; the conversation is as it was.
    FAILED = "failed"

    #: A pass that would fire waits until the conversation has grown.
    BACKED_OFF = "backed_off"


class Size(NamedTuple):
    """
    The size of a conversation.

    :param tokens: Tokens of the counter.
    :param messages: How many messages.
    :param groups: How many groups.
    """

    tokens: int
    messages: int
    groups: int

    @classmethod
    def of(cls, index: MessageIndex) -> "Size":
        """
        Return the size of what an index still includes.

        :param index: The conversation.
        :returns: Its size.
        """
        return cls(index.included_token_count, index.included_message_count, index.included_group_count)

    def to_dict(self) -> dict[str, int]:
        """
        Return the size as plain data.
        """
        return {"tokens": self.tokens, "messages": self.messages, "groups": self.groups}


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """
    What one stage of a composition did.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import ChatMessageCompactor, PipelineCompactor, ToolResultPruningCompactor

    component = ChatMessageCompactor(PipelineCompactor([ToolResultPruningCompactor()]), target_tokens=5)
    report = component.run(messages=[ChatMessage.from_user("Tell me about the Alps in a few words.")])["report"]
    assert [stage["strategy"] for stage in report["stages"]] == ["ToolResultPruningCompactor"]
    ```

    :param strategy: The class of the compactor.
    :param reason: Why it ended as it did.
    :param before: The size before it began.
    :param after: The size when it had ended.
    :param failures: What went wrong in it, one sentence each. It then changed nothing.
    :param stages: What its own stages did, where it is a composition itself.
    """

    strategy: str
    reason: Reason
    before: Size
    after: Size
    failures: tuple[str, ...] = ()
    stages: tuple["StageOutcome", ...] = ()

    @property
    def freed_tokens(self) -> int:
        """
        How much smaller the conversation became, in tokens of the counter.
        """
        return self.before.tokens - self.after.tokens

    def to_dict(self) -> dict[str, Any]:
        """
        Return it as plain data, without any content of the conversation.

        :returns: A dictionary that JSON can hold.
        """
        return {
            "strategy": self.strategy,
            "reason": self.reason.value,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "freed_tokens": self.freed_tokens,
            "failures": list(self.failures),
            "stages": [stage.to_dict() for stage in self.stages],
        }


@dataclass(frozen=True)
class Outcome:
    """
    What a pass did.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import ChatMessageCompactor, ToolResultPruningCompactor

    component = ChatMessageCompactor(ToolResultPruningCompactor(), target_tokens=1_000)
    report = component.run(messages=[ChatMessage.from_user("Hello")])["report"]
    assert report["reason"] == "fits"
    ```

    :param messages: The conversation afterwards; the same list as before where nothing was changed.
    :param reason: Why it ended so.
    :param before: The size before. Unknown, and zero, where a counter failed.
    :param after: The size afterwards.
    :param strategy: The class of the compactor.
    :param target_tokens: The size to reach, in tokens of the counter; None where something else decided.
    :param edits: What was changed, in order.
    :param failures: What went wrong, one sentence each.
    :param index: The index of `messages`, for whoever goes on from there.
    :param stages: What each stage did that was asked, where the compactor is a composition. After a stage by somebody
        else's compactor, edits name positions in what that one returned.
    """

    messages: list[ChatMessage]
    reason: Reason
    before: Size
    after: Size
    strategy: str
    target_tokens: int | None = None
    edits: tuple[Edit, ...] = ()
    failures: tuple[str, ...] = ()
    index: MessageIndex | None = None
    stages: tuple[StageOutcome, ...] = ()

    @property
    def compacted(self) -> bool:
        """
        Whether the conversation was shortened.
        """
        return self.reason is Reason.COMPACTED

    @property
    def warnings(self) -> tuple[str, ...]:
        """
        What the log should say of its failures, where nobody else keeps count of what was said.
        """
        what = "A stage of the compaction did nothing." if self.compacted else "The conversation was not compacted."
        return tuple(f"{what} {failure}" for failure in self.failures)

    @property
    def freed_tokens(self) -> int:
        """
        How much smaller it became, in tokens of the counter.
        """
        return self.before.tokens - self.after.tokens

    def to_dict(self) -> dict[str, Any]:
        """
        Return the outcome as plain data, without any content of the conversation.

        :returns: A dictionary that JSON can hold.
        """
        return {
            "reason": self.reason.value,
            "compacted": self.compacted,
            "strategy": self.strategy,
            "target_tokens": self.target_tokens,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "edits": [edit.to_dict() for edit in self.edits],
            "failures": list(self.failures),
            "stages": [stage.to_dict() for stage in self.stages],
        }

"""
Keeps the conversation of a Haystack Agent inside the model's context window.

Names are imported when they are first used, as in Haystack itself, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from haystack.core.serialization import allow_deserialization_module

if TYPE_CHECKING:
    from haystack_compaction.compactor import Compactor
    from haystack_compaction.compactors import (
        ContextWindowCompactor,
        MediaCompactor,
        PipelineCompactor,
        SelectiveToolCallCompactor,
        SlidingWindowCompactor,
        SummarizationCompactor,
        TokenBudgetCompactor,
        ToolResultCollapseCompactor,
        ToolResultPruningCompactor,
        TruncationCompactor,
    )
    from haystack_compaction.components import ChatMessageCompactor, apply_compaction, apply_compaction_async
    from haystack_compaction.conversation import MessageIndex
    from haystack_compaction.edits import Action, Edit, apply_edit, drop, rewrite, substitute
    from haystack_compaction.errors import CompactionError, CompactorError, CounterError, SummaryError, TranscriptError
    from haystack_compaction.goal import Goal
    from haystack_compaction.groups import Exchange, MessageGroup, MessageGroupKind
    from haystack_compaction.hooks import CompactionHook
    from haystack_compaction.outcome import Outcome, Reason, Size, StageOutcome
    from haystack_compaction.steps import Call, ask
    from haystack_compaction.token_counters import CachedTokenCounter, EstimatedTokenCounter, TiktokenCounter
    from haystack_compaction.transcripts import (
        Conversation,
        messages_from_dicts,
        messages_to_dicts,
        read_conversations,
        write_conversations,
    )
    from haystack_compaction.triggers import (
        AllOf,
        Always,
        AnyOf,
        GroupsExceed,
        HasToolCalls,
        MessagesExceed,
        Never,
        Not,
        TokensBelow,
        TokensExceed,
        Trigger,
        TurnsExceed,
    )

__version__ = "0.1.0"

_MODULES = {
    "Compactor": "compactor",
    "ContextWindowCompactor": "compactors",
    "MediaCompactor": "compactors",
    "PipelineCompactor": "compactors",
    "SelectiveToolCallCompactor": "compactors",
    "SlidingWindowCompactor": "compactors",
    "SummarizationCompactor": "compactors",
    "TokenBudgetCompactor": "compactors",
    "ToolResultCollapseCompactor": "compactors",
    "ToolResultPruningCompactor": "compactors",
    "TruncationCompactor": "compactors",
    "ChatMessageCompactor": "components",
    "apply_compaction": "components",
    "apply_compaction_async": "components",
    "MessageIndex": "conversation",
    "Action": "edits",
    "Edit": "edits",
    "apply_edit": "edits",
    "drop": "edits",
    "rewrite": "edits",
    "substitute": "edits",
    "CompactionError": "errors",
    "CompactorError": "errors",
    "CounterError": "errors",
    "SummaryError": "errors",
    "TranscriptError": "errors",
    "Exchange": "groups",
    "Goal": "goal",
    "MessageGroup": "groups",
    "MessageGroupKind": "groups",
    "CompactionHook": "hooks",
    "Outcome": "outcome",
    "Reason": "outcome",
    "Size": "outcome",
    "StageOutcome": "outcome",
    "Call": "steps",
    "ask": "steps",
    "CachedTokenCounter": "token_counters",
    "EstimatedTokenCounter": "token_counters",
    "TiktokenCounter": "token_counters",
    "Conversation": "transcripts",
    "messages_from_dicts": "transcripts",
    "messages_to_dicts": "transcripts",
    "read_conversations": "transcripts",
    "write_conversations": "transcripts",
    "AllOf": "triggers",
    "Always": "triggers",
    "AnyOf": "triggers",
    "GroupsExceed": "triggers",
    "HasToolCalls": "triggers",
    "MessagesExceed": "triggers",
    "Never": "triggers",
    "Not": "triggers",
    "TokensBelow": "triggers",
    "TokensExceed": "triggers",
    "Trigger": "triggers",
    "TurnsExceed": "triggers",
}

__all__ = [
    "Action",
    "AllOf",
    "Always",
    "AnyOf",
    "CachedTokenCounter",
    "Call",
    "ChatMessageCompactor",
    "CompactionError",
    "CompactionHook",
    "Compactor",
    "CompactorError",
    "ContextWindowCompactor",
    "Conversation",
    "CounterError",
    "Edit",
    "EstimatedTokenCounter",
    "Exchange",
    "Goal",
    "GroupsExceed",
    "HasToolCalls",
    "MediaCompactor",
    "MessageGroup",
    "MessageGroupKind",
    "MessageIndex",
    "MessagesExceed",
    "Never",
    "Not",
    "Outcome",
    "PipelineCompactor",
    "Reason",
    "SelectiveToolCallCompactor",
    "Size",
    "SlidingWindowCompactor",
    "StageOutcome",
    "SummarizationCompactor",
    "SummaryError",
    "TiktokenCounter",
    "TokenBudgetCompactor",
    "TokensBelow",
    "TokensExceed",
    "ToolResultCollapseCompactor",
    "ToolResultPruningCompactor",
    "TranscriptError",
    "Trigger",
    "TruncationCompactor",
    "TurnsExceed",
    "apply_compaction",
    "apply_compaction_async",
    "apply_edit",
    "ask",
    "drop",
    "messages_from_dicts",
    "messages_to_dicts",
    "read_conversations",
    "rewrite",
    "substitute",
    "write_conversations",
]

# Pipelines that name these classes can be loaded by whoever imported the package.
allow_deserialization_module("haystack_compaction")


def __getattr__(name: str) -> Any:
    """
    Import a public name when it is first used.

    :param name: The name.
    :returns: What it stands for.
    :raises AttributeError: If there is no such name.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

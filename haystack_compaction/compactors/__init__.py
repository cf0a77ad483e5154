"""
The strategies, one a file.
"""

from haystack_compaction.compactors.context_window import ContextWindowCompactor
from haystack_compaction.compactors.media import MediaCompactor
from haystack_compaction.compactors.pipeline import PipelineCompactor
from haystack_compaction.compactors.selective_tool_call import SelectiveToolCallCompactor
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.summarization import SummarizationCompactor
from haystack_compaction.compactors.token_budget import TokenBudgetCompactor
from haystack_compaction.compactors.tool_result_collapse import ToolResultCollapseCompactor
from haystack_compaction.compactors.tool_result_pruning import ToolResultPruningCompactor
from haystack_compaction.compactors.truncation import TruncationCompactor

__all__ = [
    "ContextWindowCompactor",
    "MediaCompactor",
    "PipelineCompactor",
    "SelectiveToolCallCompactor",
    "SlidingWindowCompactor",
    "SummarizationCompactor",
    "TokenBudgetCompactor",
    "ToolResultCollapseCompactor",
    "ToolResultPruningCompactor",
    "TruncationCompactor",
]

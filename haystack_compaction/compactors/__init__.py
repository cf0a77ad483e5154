"""
The strategies, one a file.
"""

from haystack_compaction.compactors.media import MediaCompactor
from haystack_compaction.compactors.tool_result_pruning import ToolResultPruningCompactor

__all__ = ["MediaCompactor", "ToolResultPruningCompactor"]

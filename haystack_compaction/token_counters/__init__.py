"""
Counters that tell what a conversation costs in tokens, one a file.
"""

from haystack_compaction.token_counters.cached_counter import CachedTokenCounter
from haystack_compaction.token_counters.estimated_counter import EstimatedTokenCounter
from haystack_compaction.token_counters.tiktoken_counter import TiktokenCounter

__all__ = ["CachedTokenCounter", "EstimatedTokenCounter", "TiktokenCounter"]

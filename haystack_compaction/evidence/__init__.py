"""
What an Agent will still need of messages that go, found without a model: what users said, and values.
"""

from haystack_compaction.evidence.collector import Evidence, evidence_budget

__all__ = ["Evidence", "evidence_budget"]

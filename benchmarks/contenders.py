"""
The compactors whose fidelity is compared: Haystack's, and those of ours that the installed version has.
"""

from typing import Any

from haystack.hooks import compaction as haystack_hooks

import haystack_compaction
from haystack_compaction import CompactionHook

HAYSTACK_WINDOW = "Haystack, window"
WITHOUT_EVIDENCE = "ours, window without evidence"
WITH_EVIDENCE = "ours, window"

_NOTE = "[{num_removed} earlier messages were removed from this conversation.]"
_LARGE_WINDOW = 10_000_000  # so that only the caller's target decides

_OURS: dict[str, tuple[str, dict[str, Any]]] = {
    WITHOUT_EVIDENCE: ("SlidingWindowCompactor", {"evidence_tokens": 0}),
    WITH_EVIDENCE: ("SlidingWindowCompactor", {}),
    "ours, pruning": ("ToolResultPruningCompactor", {}),
    "ours, collapse": ("ToolResultCollapseCompactor", {}),
    "ours, truncation": ("TruncationCompactor", {}),
    "ours, truncation with a note": ("TruncationCompactor", {"omission_note": _NOTE}),
    "ours, context window": (
        "ContextWindowCompactor",
        {"max_context_window_tokens": _LARGE_WINDOW, "max_output_tokens": 0},
    ),
}


def contenders() -> dict[str, Any]:
    """The compactors by name, each with its defaults where the name says nothing else."""
    found: dict[str, Any] = {
        HAYSTACK_WINDOW: haystack_hooks.SlidingWindowCompactor(),
        "Haystack, pruning": haystack_hooks.ToolResultPruningCompactor(),
    }
    for name, (kind, settings) in _OURS.items():
        compactor = getattr(haystack_compaction, kind, None)
        if compactor is not None:
            found[name] = compactor(**settings)
    return found | {"ours, the hook's default": CompactionHook.for_context_window(_LARGE_WINDOW, 0).compactor}

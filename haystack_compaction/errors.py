"""
What can go wrong while a conversation is compacted, and whose fault it was.

Nothing here is raised into an Agent's run: a failure is kept in the `Outcome`, said once in the log, and the
conversation stays as it was. A few places raise by choice, where `raise_on_failure=True` asks for it.
"""


class CompactionError(Exception):
    """
    The base of all errors of this package.
    """


class CounterError(CompactionError):
    """
    A token counter raised, or returned something that is no number of tokens.
    """


class CompactorError(CompactionError):
    """
    A compactor raised, or returned a conversation that breaks the contract.
    """


class SummaryError(CompactionError):
    """
    No summary was to be had from a model; the text says of which messages and why.

    The one failure of a pass that is raised, and only by a compactor with `raise_on_failure=True`.
    """


class TranscriptError(CompactionError, ValueError):
    """
    A conversation in a file cannot be read; the text names the file, the line and the reason.
    """

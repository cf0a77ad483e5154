"""
Every text that compaction leaves for a model to read, and how each is known again.

A conversation may travel through a format that has no metadata, so what compaction wrote has to be recognisable by its
words. Only a match of the whole text counts, so that a user who quotes one of these texts has not written one.
"""

import re

TOOL_RESULT_PLACEHOLDER = "[Tool result removed to free up context. Call `{tool_name}` again if you need it.]"

# An errored result keeps the beginning of its text below the placeholder.
ERROR_EXCERPT = "\nIt was an error, which began: {excerpt}"

TOOL_INPUT_PLACEHOLDER = "[removed to free up context: {num_chars} characters]"

# In the place of an image or file.
IMAGE_LINE = "[Image removed to free up context: {description}]"
FILE_LINE = "[File removed to free up context: {description}]"

SEPARATOR = "[Messages that stood between these two user messages were removed to free up context.]"

# Short, because every token of it is one less for what the note can carry.
OMISSION_NOTE = "[Removed so far to free up context: {num_removed} messages]"

# The note that Haystack's own window leaves by default.
_HAYSTACK_OMISSION_NOTE = (
    "[{num_removed} earlier messages were removed from this conversation to free up context and cannot be recovered.]"
)

RESULT_CUT_MARK = (
    "\n\n[... {num_chars} characters from the middle of this result are missing: it was too long for the context "
    "window ...]\n\n"
)

# What stands for a group of tool calls: a first line, then one line for what was said and one for each call.
COLLAPSED_CALLS = "[Tool calls, condensed from {num_messages} messages: {tools}]"
COLLAPSED_SPEECH = "The assistant said: "
COLLAPSED_CALL = "- "
COLLAPSED_REFERENCES = "Stored in full: "

# Evidence: what a note keeps of the messages that it stands for. Plain lines, to be read back from the text alone.
STATEMENTS_HEADING = "Users said, word for word:"
VALUES_HEADING = "Values seen:"

# How lines begin: a statement, or values that are words, or a single value with whatever blanks and punctuation.
ENTRY_BULLET = "- "
SINGLE_BULLET = "> "

# Whatever some program takes for the end of a line, or hides, has no place in a line of evidence.
UNSAFE_CHARACTERS = r"\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"

_LINE_REST = f"[^{UNSAFE_CHARACTERS}]++"
_STATEMENT_LINES = f"(?:\\n{re.escape(ENTRY_BULLET)}{_LINE_REST})++"
_VALUE_LINES = f"{re.escape(VALUES_HEADING)}(?:\\n[>-] {_LINE_REST})++"

#: A whole block of evidence, as `Evidence.block` writes it.
EVIDENCE_PATTERN = f"(?:{re.escape(STATEMENTS_HEADING)}{_STATEMENT_LINES}(?:\\n{_VALUE_LINES})?|{_VALUE_LINES})"

# An excerpt longer than this is no work of ours; it keeps a tool from guarding a long text with our first line.
_MAX_RECOGNISED_EXCERPT_CHARS = 2000


def _pattern_of(template: str) -> str:
    """The regular expression for a template with one field that holds a name."""
    before, _, after = template.partition("{tool_name}")
    return f"{re.escape(before)}[^`\\n]{{0,200}}{re.escape(after)}"


_PLACEHOLDER_PATTERN = re.compile(
    _pattern_of(TOOL_RESULT_PLACEHOLDER)
    + f"(?:{re.escape(ERROR_EXCERPT.partition('{excerpt}')[0])}.{{0,{_MAX_RECOGNISED_EXCERPT_CHARS}}})?",
    re.DOTALL,
)


# No name is this long; it keeps a tool from guarding a long text by the words of ours around it.
_MAX_DESCRIPTION_CHARS = 600


def _line_pattern(template: str) -> str:
    """The regular expression for a line that describes an image or file."""
    before, _, after = template.partition("{description}")
    return f"{re.escape(before)}[^\\n]{{1,{_MAX_DESCRIPTION_CHARS}}}{re.escape(after)}"


_MEDIA_LINE_PATTERN = f"(?:{_line_pattern(IMAGE_LINE)}|{_line_pattern(FILE_LINE)})"
_MEDIA_LINES_PATTERN = re.compile(f"{_MEDIA_LINE_PATTERN}(?:\\n{_MEDIA_LINE_PATTERN})*")


def is_media_text(text: str) -> bool:
    """
    Return whether a text is nothing but lines that stand in the place of images and files.

    :param text: A text part of a message or result, or several of them joined by line breaks.
    """
    return text.startswith("[") and _MEDIA_LINES_PATTERN.fullmatch(text) is not None


def is_placeholder_text(text: str) -> bool:
    """
    Return whether a tool result's whole text is the placeholder that pruning leaves by default.

    :param text: The result's text.
    :returns: Whether pruning wrote it, an excerpt of an error below it included.
    """
    return text.startswith("[Tool result removed") and _PLACEHOLDER_PATTERN.fullmatch(text) is not None


def placeholder_remainder(text: str) -> str:
    """
    Return what is left of a tool result's text that pruning took: the excerpt of an error, or nothing.

    :param text: A text for which `is_placeholder_text` holds.
    :returns: The excerpt.
    """
    return text.partition(ERROR_EXCERPT.partition("{excerpt}")[0])[2]


_COLLAPSED_PATTERN = re.compile(
    r"\[Tool calls, condensed from (\d{1,9}) messages: [^\n]+\]"
    rf"(?:\n{COLLAPSED_SPEECH}[^\n]+)?(?:\n{COLLAPSED_CALL}[^\n]+)*(?:\n{COLLAPSED_REFERENCES}[^\n]+)?"
    rf"(?:\n{EVIDENCE_PATTERN})?"
)


def collapsed_message_count(text: str) -> int | None:
    """
    Return for how many messages the line of a collapsed group stands.

    :param text: The whole text of a message.
    :returns: Their number; None where the text is none that collapsing leaves by default.
    """
    found = _COLLAPSED_PATTERN.fullmatch(text) if text.startswith("[Tool calls, condensed from ") else None
    return None if found is None else int(found[1])


def _counted_pattern_of(template: str) -> str:
    """The regular expression for a note that tells how many messages went."""
    before, _, after = template.partition("{num_removed}")
    return f"{re.escape(before)}([0-9]{{1,9}}){re.escape(after)}"


# What was found in the messages that went stands below the first line.
_OMISSION_PATTERN = re.compile(
    f"(?:{_counted_pattern_of(OMISSION_NOTE)}|{_counted_pattern_of(_HAYSTACK_OMISSION_NOTE)})(?:\n{EVIDENCE_PATTERN})?"
)


def removed_messages_in_text(text: str) -> int | None:
    """
    Return how many messages an omission note speaks of, for one whose words are ours or Haystack's.

    :param text: The message's only text.
    :returns: The number, or None where the whole text is no such note.
    """
    if text == SEPARATOR:
        return 0
    match = _OMISSION_PATTERN.fullmatch(text) if text.startswith("[") else None
    return None if match is None else int(match[1] or match[2])


def is_note_text(text: str) -> bool:
    """
    Return whether the whole text of a message is one that compaction leaves in the place of messages.

    :param text: The message's only text.
    :returns: Whether compaction wrote it.
    """
    return removed_messages_in_text(text) is not None or collapsed_message_count(text) is not None

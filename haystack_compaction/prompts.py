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

RESULT_CUT_MARK = (
    "\n\n[... {num_chars} characters from the middle of this result are missing: it was too long for the context "
    "window ...]\n\n"
)

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


def is_note_text(text: str) -> bool:
    """
    Return whether the whole text of a message is one that compaction leaves in the place of messages.

    :param text: The message's only text.
    :returns: Whether compaction wrote it.
    """
    return text == SEPARATOR

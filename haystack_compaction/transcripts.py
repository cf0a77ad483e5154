"""
Conversations in and out of files: OpenAI's chat format and Haystack's own dicts, as JSON and as JSONL.

What a file holds is seen from its content: one conversation a line, one message a line (the whole file is one
conversation then), or one JSON document, printed over as many lines as it likes: a list of messages, an object with
`messages`, or a list of conversations. Messages may be in either form, mixed too. Only one conversation is in memory at
a time.

```python
import io
from haystack_compaction import read_conversations, write_conversations

recorded = io.StringIO('{"id": "run-1", "messages": [{"role": "user", "content": "Hello"}]}')
copy = io.StringIO()
write_conversations(read_conversations(recorded, name="recorded.jsonl"), copy, form="openai")
assert copy.getvalue().strip() == recorded.getvalue()
```
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TextIO, get_args

from haystack.dataclasses import ChatMessage, ToolCall, ToolCallResult

from haystack_compaction.arguments import check_messages
from haystack_compaction.content import ContentPart, content_parts, with_parts
from haystack_compaction.conversation import MessageIndex
from haystack_compaction.errors import TranscriptError
from haystack_compaction.haystack_format import is_haystack_dict, message_from_haystack
from haystack_compaction.json_documents import MAX_LEVELS, JsonDocuments, is_deeper_than, one_line, shown
from haystack_compaction.openai_format import message_from_openai, message_to_openai

Form = Literal["haystack", "openai"]

_RESERVED_KEYS: Final = ("id", "messages")

# A document may be a list of conversations, and each of them a list of messages.
_LISTS_IN_EACH_OTHER: Final = 2


@dataclass(frozen=True)
class Conversation:
    """
    A recorded conversation.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import Conversation, read_conversations, write_conversations

    write_conversations([Conversation("first", [ChatMessage.from_user("Hello")], {})], "runs.jsonl")
    for conversation in read_conversations("runs.jsonl"):
        print(conversation.id, len(conversation.messages))
    ```

    :param id: The name that the file gives it, or None. A number is read as its digits.
    :param messages: The messages, oldest first.
    :param meta: What else the file says about it, by key.
    """

    id: str | None
    messages: list[ChatMessage]
    meta: dict[str, Any] = field(default_factory=dict)


def read_conversations(source: str | Path | TextIO | BinaryIO, *, name: str | None = None) -> Iterator[Conversation]:
    """
    Read the conversations of a file, one at a time.

    :param source: A path, or an open stream of bytes (UTF-8, with or without a byte order mark) or of text. A stream is
        read from where it stands and stays open.
    :param name: What errors call the file. Defaults to the path, or to the name of the stream.
    :returns: An iterator that reads no further than it is asked to. Results have the tool name and the arguments of the
        call that they answer, paired by occurrence, so ids may repeat.
    :raises TypeError: If `source` is neither a path nor a stream.
    :raises TranscriptError: If the file is empty, no UTF-8 text or no JSON, or if something in it is no conversation:
        one line with file, line and reason. Messages are numbered from 1.
    :raises OSError: If the file cannot be opened or read.
    """
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source), name or str(source))
    if not callable(getattr(source, "read", None)):
        raise TypeError(f"`source` must be a path or an open stream, got {source!r:.80}.")
    return _read_stream(source, name or str(getattr(source, "name", "<stream>")))


def write_conversations(
    conversations: Iterable[Conversation], target: str | Path | TextIO | BinaryIO, *, form: Form = "haystack"
) -> None:
    """
    Write conversations as JSONL, one a line.

    A file appears whole or not at all: if anything fails, reading what is to be written included, what was there
    before stays as it was. So a file can be read and written at once.

    :param conversations: The conversations, which may come from `read_conversations` as they are read.
    :param target: A path, or an open stream, which stays open.
    :param form: `"haystack"` keeps everything. `"openai"` is the chat format that most tools read; it has no place for
        metadata and for the error flag of a result, which are left out. Metadata of the conversation stays in both.
    :raises TypeError: If `target` is neither a path nor a stream, or an entry is no `Conversation`.
    :raises ValueError: If there is no such form.
    :raises TranscriptError: If a message cannot be written in this form; it says which one and why.
    :raises OSError: If the file cannot be written.
    """
    _check_form(form)
    if isinstance(target, str | os.PathLike):
        with _replaced(Path(target)) as stream:
            _write_lines(conversations, stream, form)
        return
    if not callable(getattr(target, "write", None)):
        raise TypeError(f"`target` must be a path or an open stream, got {target!r:.80}.")
    _write_lines(conversations, target, form)


def messages_from_dicts(dicts: list[dict[str, Any]]) -> list[ChatMessage]:
    """
    Read a conversation from dicts, each in OpenAI's chat format or in one of Haystack's.

    :param dicts: The messages, oldest first.
    :returns: The messages. Results have the tool name and the arguments of the call that they answer.
    :raises TypeError: If `dicts` is no list.
    :raises TranscriptError: If one of them cannot be a `ChatMessage`. Messages are numbered from 1.
    """
    if not isinstance(dicts, list):
        raise TypeError(f"`dicts` must be a list of dicts, got {type(dicts).__name__}.")
    return _with_origins([_message(number, data) for number, data in enumerate(dicts, 1)])


def messages_to_dicts(messages: list[ChatMessage], *, form: Form = "haystack") -> list[dict[str, Any]]:
    """
    Write a conversation as dicts.

    :param messages: The messages, oldest first.
    :param form: `"haystack"` keeps everything, `"openai"` has no place for metadata. There a message with several
        results becomes several messages.
    :returns: The messages as dicts.
    :raises TypeError: If `messages` is no list of `ChatMessage` objects.
    :raises ValueError: If there is no such form.
    :raises TranscriptError: If a message cannot be written in this form; it says which one and why.
    """
    _check_form(form)
    check_messages("messages", messages)
    dicts: list[dict[str, Any]] = []
    for number, message in enumerate(messages, 1):
        with _located(f"message {number}"):
            dicts += _dicts(message, form)
    return dicts


# -- reading ----------------------------------------------------------------------------------------------------------


def _read_path(path: Path, name: str) -> Iterator[Conversation]:
    with path.open("rb") as stream:
        yield from _read_stream(stream, name)


def _read_stream(stream: TextIO | BinaryIO, name: str) -> Iterator[Conversation]:
    is_empty = True
    for conversation in _read_entries(iter(JsonDocuments(stream, name)), name, _LISTS_IN_EACH_OTHER):
        is_empty = False
        yield conversation
    if is_empty:
        raise TranscriptError(f"{name}:1: the file is empty, it holds no conversation")


def _read_entries(entries: Iterator[tuple[int, Any]], name: str, lists_allowed: int) -> Iterator[Conversation]:
    """Read what stands in a file or in a list: messages, which are one conversation together, or conversations."""
    messages: list[ChatMessage] = []
    first_kind = None
    for line, value in entries:
        with _located(f"{name}:{line}"):
            kind = _kind(value, lists_allowed)
            first_kind = first_kind or kind
            if kind != first_kind:
                raise TranscriptError(f"a {kind} stands here, but what stands before it is a {first_kind}")
            if kind == "message":
                messages.append(_message(len(messages) + 1, value))
                continue
            conversation = _conversation(value) if isinstance(value, dict) else None
        if conversation is not None:
            yield conversation
        else:
            inner = value if isinstance(value, Iterator) else ((line, entry) for entry in value)
            yield from _read_entries(inner, name, lists_allowed - 1)
    is_empty_list = first_kind is None and lists_allowed < _LISTS_IN_EACH_OTHER
    if messages or is_empty_list:
        yield Conversation(None, _with_origins(messages))


def _kind(value: Any, lists_allowed: int) -> str:
    """Whether a JSON value is a message or a conversation; a list is one conversation, or several."""
    if isinstance(value, dict):
        if "messages" in value:
            return "conversation"
        if "role" in value or "_role" in value:
            return "message"
        raise TranscriptError(
            f"neither a conversation (`messages`) nor a message (`role`), it has the keys {shown(list(value))}"
        )
    if not isinstance(value, Iterator | list):
        raise TranscriptError(f"a conversation or a message must stand here, got {shown(value)}")
    if not lists_allowed:
        raise TranscriptError("a message must stand here, got a list")
    return "conversation"


def _conversation(data: dict[str, Any]) -> Conversation:
    meta = {key: value for key, value in data.items() if key not in _RESERVED_KEYS}
    identity = data.get("id")
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    if identity is not None and not isinstance(identity, str):
        raise TranscriptError(f"`id` must be a text, a whole number or null, got {shown(identity)}")
    if not isinstance(data["messages"], list):
        raise TranscriptError(f"`messages` must be a list, got {shown(data['messages'])}")
    _check_levels(meta)
    return Conversation(identity, messages_from_dicts(data["messages"]), meta)


def _message(number: int, data: Any) -> ChatMessage:
    with _located(f"message {number}"):
        if not isinstance(data, dict):
            raise TranscriptError(f"it must be an object, got {shown(data)}")
        _check_levels(data)
        return message_from_haystack(data) if is_haystack_dict(data) else message_from_openai(data)


def _check_levels(data: dict[str, Any]) -> None:
    if is_deeper_than(data, MAX_LEVELS):
        raise TranscriptError(f"it is nested more than {MAX_LEVELS} levels deep")


def _with_origins(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Give each result that does not name its tool the call that it answers."""
    if not any(_is_nameless(part) for message in messages for part in content_parts(message)):
        return messages
    calls = {
        id(exchange.result): exchange.call
        for group in MessageIndex(messages).groups
        for exchange in group.exchanges()
        if exchange.call is not None
    }
    return [_with_origin(message, calls) for message in messages]


def _with_origin(message: ChatMessage, calls: dict[int, ToolCall]) -> ChatMessage:
    parts: list[ContentPart] = []
    names = set()
    for part in content_parts(message):
        if isinstance(part, ToolCallResult) and _is_nameless(part):
            origin = calls.get(id(part)) or replace(part.origin, tool_name=message.name or "")
            names.add(origin.tool_name)
            parts.append(replace(part, origin=origin))
        else:
            parts.append(part)
    if not names:
        return message
    named = with_parts(message, parts, message.meta)
    return replace(named, _name=None) if message.name in names else named


def _is_nameless(part: object) -> bool:
    return isinstance(part, ToolCallResult) and not part.origin.tool_name


# -- writing ----------------------------------------------------------------------------------------------------------


def _check_form(form: str) -> None:
    if form not in get_args(Form):
        raise ValueError(f"`form` must be one of {', '.join(get_args(Form))}, got {form!r:.80}.")


def _dicts(message: ChatMessage, form: Form) -> list[dict[str, Any]]:
    try:
        return message_to_openai(message) if form == "openai" else [message.to_dict()]
    except TranscriptError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise TranscriptError(f"it cannot be written: {one_line(error)}") from error


def _write_lines(conversations: Iterable[Conversation], stream: Any, form: Form) -> None:
    is_text = hasattr(stream, "encoding")
    for number, conversation in enumerate(conversations, 1):
        if not isinstance(conversation, Conversation):
            raise TypeError(
                f"`conversations` must hold `Conversation` objects, entry {number} is {conversation!r:.80}."
            )
        with _located(f"conversation {number}"):
            line = _line(conversation, form) + "\n"
        stream.write(line if is_text else line.encode("utf-8"))


def _line(conversation: Conversation, form: Form) -> str:
    """The JSON of a conversation. Messages are written one by one, so that an error can name the one that fails."""
    reserved = [key for key in _RESERVED_KEYS if key in conversation.meta]
    if reserved:
        raise TranscriptError(f"`meta` must not have the key {reserved[0]!r}, which the conversation itself has")
    check_messages("messages", conversation.messages)
    texts: list[str] = []
    for number, message in enumerate(conversation.messages, 1):
        with _located(f"message {number}"):
            texts += map(_json_text, _dicts(message, form))
    identity = {} if conversation.id is None else {"id": conversation.id}
    head = _json_text(identity | conversation.meta).removesuffix("}")
    return f'{head}{", " if len(head) > 1 else ""}"messages": [{", ".join(texts)}]}}'


def _json_text(data: dict[str, Any]) -> str:
    try:
        text = json.dumps(data, ensure_ascii=False)
        return text if _is_encodable(text) else json.dumps(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise TranscriptError(f"JSON cannot hold it: {one_line(error)}") from error


def _is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold a text: half of a surrogate pair it cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    """A stream to a new file, which takes the place of the old one at the end, or is gone if anything failed."""
    path = Path(os.path.realpath(path))  # a link stays a link
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as stream:  # a device or a pipe is written to
            yield stream
        return
    new = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with new.open("x", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


# -- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Put the place in front of an error."""
    try:
        yield
    except TranscriptError as error:
        raise TranscriptError(f"{where}: {error}") from error.__cause__

"""
An exact count for OpenAI's encodings, which never panics, never hangs and never fails a run.
"""

import asyncio
from functools import partial
from threading import TIMEOUT_MAX, Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from haystack import logging
from haystack.core.serialization import default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.tools import ToolsType

from haystack_compaction.arguments import check_bool, check_int, check_messages, check_text
from haystack_compaction.errors import CounterError
from haystack_compaction.render import measured, measured_tools
from haystack_compaction.serialization import settings_from_dict
from haystack_compaction.token_counters.estimated_counter import TOKENS_PER_MESSAGE, estimated_tokens

if TYPE_CHECKING:
    from tiktoken import Encoding

logger = logging.getLogger(__name__)

# The tokenizer panics on some texts of a million characters, so it is never given that many at once.
_PIECE_CHARS: Final = 100_000

_NOT_LOADED: Final = (
    "The vocabulary of `encoding` '{encoding}' cannot be loaded ({why}). Let this machine reach the network once, or "
    "set TIKTOKEN_CACHE_DIR to a folder that holds the vocabulary."
)


class TiktokenCounter:
    """
    Counts tokens as OpenAI's models do, with `tiktoken`.

    Text that looks like a special token is text. The vocabulary is fetched at first use, or taken from the folder that
    `TIKTOKEN_CACHE_DIR` names. Where none can be had, one warning says so and the estimate of `EstimatedTokenCounter`
    is used for the life of this object. Other providers tokenize differently, by up to a third.

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import TiktokenCounter

    counter = TiktokenCounter(encoding="o200k_base", load_timeout=1.0)
    print(counter.count([ChatMessage.from_user("How are you?")]))
    ```
    """

    #: Single messages may be given, and the sums are exact.
    additive: bool = True

    def __init__(
        self,
        encoding: str = "o200k_base",
        tokens_per_image: int = 85,
        tokens_per_file: int = 1000,
        *,
        raise_on_failure: bool = False,
        load_timeout: float = 10.0,
    ) -> None:
        """
        Initialize the counter. Nothing is loaded yet.

        :param encoding: The encoding of the model. `o200k_base` is that of OpenAI's current models. A name that
            `tiktoken` does not know is answered at warm-up, like a vocabulary that cannot be loaded.
        :param tokens_per_image: What an image costs, in tokens; 85 is what OpenAI charges for a small one.
        :param tokens_per_file: What a file costs, in tokens; 1000 stands for a short document.
        :param raise_on_failure: Whether to raise where no vocabulary can be loaded, instead of estimating.
        :param load_timeout: How long to wait for the vocabulary, in seconds. `tiktoken` itself would wait for ever.
        :raises TypeError: If an argument is of the wrong type.
        :raises ValueError: If a number is negative, or the time-out is not positive.
        """
        check_text("encoding", encoding)
        check_int("tokens_per_image", tokens_per_image, minimum=0)
        check_int("tokens_per_file", tokens_per_file, minimum=0)
        check_bool("raise_on_failure", raise_on_failure)
        if isinstance(load_timeout, bool) or not isinstance(load_timeout, int | float):
            raise TypeError(f"`load_timeout` must be a number of seconds, got {load_timeout!r}.")
        if not load_timeout > 0:
            raise ValueError(f"`load_timeout` must be positive, got {load_timeout}. Nothing loads in no time.")
        self.encoding = encoding
        self.tokens_per_image = tokens_per_image
        self.tokens_per_file = tokens_per_file
        self.raise_on_failure = raise_on_failure
        self.load_timeout = load_timeout
        self._lock = Lock()
        self._loaded: Encoding | None = None
        self._failure: str | None = None

    def warm_up(self) -> None:
        """
        Load the vocabulary, once.

        :raises CounterError: If it cannot be loaded and `raise_on_failure` is set.
        """
        if self._loaded is not None:
            return
        with self._lock:
            if self._loaded is None and self._failure is None:
                self._loaded, self._failure = _load(self.encoding, self.load_timeout)
                if self._failure is not None and not self.raise_on_failure:
                    logger.warning("{failure} Tokens are estimated instead.", failure=self._failure)
        if self._failure is not None and self.raise_on_failure:
            raise CounterError(self._failure)

    def count(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> int:
        """
        Count what messages cost.

        :param messages: The messages to measure.
        :param tools: Tools whose schemas are sent along and so cost tokens too.
        :returns: Tokens; 0 where there is nothing to measure.
        :raises TypeError: If `messages` is no list of messages.
        :raises CounterError: If no vocabulary can be loaded and `raise_on_failure` is set.
        """
        if not messages:
            check_messages("messages", messages)
            if not tools:
                return 0
        self.warm_up()
        total = self._text_tokens(measured_tools(tools)) if tools else 0
        try:
            return total + sum(map(self._message_tokens, messages))
        except (AttributeError, TypeError):
            # Looked at only now, so that nothing is spent on what is right.
            check_messages("messages", messages)
            raise

    def _message_tokens(self, message: ChatMessage) -> int:
        text, images, files = measured(message)
        return (
            TOKENS_PER_MESSAGE + self._text_tokens(text) + images * self.tokens_per_image + files * self.tokens_per_file
        )

    def _text_tokens(self, text: str) -> int:
        if self._loaded is None:
            return estimated_tokens([text])[0]
        if len(text) <= _PIECE_CHARS:
            return _tokens_of_piece(self._loaded, text)
        total = start = 0
        while start < len(text):
            end = _end_of_piece(text, start)
            total += _tokens_of_piece(self._loaded, text[start:end])
            start = end
        return total

    def to_dict(self) -> dict[str, Any]:
        """
        Serialise the counter.

        :returns: A dictionary in Haystack's form.
        """
        return default_to_dict(self, **self._settings())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TiktokenCounter":
        """
        Build a counter from its serialised form.

        :param data: What `to_dict` returned.
        :returns: An equal counter.
        """
        return settings_from_dict(cls, data)

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __reduce__(self) -> tuple[Any, ...]:
        # A lock cannot be copied; a copy loads for itself, which tiktoken makes cheap the second time.
        return partial(type(self), **self._settings()), ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._settings() == other._settings()

    def __hash__(self) -> int:
        return hash((type(self), *self._settings().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._settings().items())})"


def _load(encoding: str, timeout: float) -> "tuple[Encoding | None, str | None]":
    """Load a vocabulary, or say why there is none. A fetch that hangs is left behind in a thread that keeps nobody."""
    found: list[Encoding] = []
    failures: list[str] = []

    def load() -> None:
        try:
            from tiktoken import get_encoding, list_encoding_names  # noqa: PLC0415 - importing us loads no tokenizer

            names = list_encoding_names()
            if encoding in names:
                found.append(get_encoding(encoding))
            else:
                failures.append(f"`encoding` must be one of {', '.join(sorted(names))}, got '{encoding}'.")
        # Whatever the network, the cache or the tokenizer's own exceptions made of it; nobody waits above this thread.
        except BaseException as error:  # noqa: BLE001
            failures.append(_NOT_LOADED.format(encoding=encoding, why=f"{type(error).__name__}: {error}"))

    thread = Thread(target=load, name="haystack-compaction-vocabulary", daemon=True)
    thread.start()
    thread.join(min(timeout, TIMEOUT_MAX))
    if found:
        return found[0], None
    why = f"nothing came within {timeout} seconds (`load_timeout`)"
    return None, failures[0] if failures else _NOT_LOADED.format(encoding=encoding, why=why)


def _tokens_of_piece(encoding: "Encoding", text: str) -> int:
    try:
        return len(encoding.encode_ordinary(text))
    except (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException:  # noqa: BLE001 - the tokenizer panics with an exception that is no `Exception`
        return estimated_tokens([text])[0]


def _end_of_piece(text: str, start: int) -> int:
    """Where to cut: after the last line break or, where there is none, after the last blank, else anywhere."""
    limit = start + _PIECE_CHARS
    if limit >= len(text):
        return len(text)
    for separator in ("\n", " "):
        place = text.rfind(separator, start + _PIECE_CHARS // 2, limit)
        if place >= 0:
            return place + 1
    return limit

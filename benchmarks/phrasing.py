"""
What is said in the conversations of `asked.py`: sentences from `phrases/`, with values that are drawn from a seed.

A file holds one language. `{...}` in a sentence is a slot; each use of a sentence gets a value of its own, such as no
model could guess. `phrases/held_out/` has other sentences of the same kinds.
"""

import random
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from workload import Texts

_PHRASES = Path(__file__).parent / "phrases"
_SLOT = re.compile(r"\{(\w+)\}")
_SYLLABLES = "bren cor dal fen gar hul jar kel lor mav nor pel quin ras sol tor ul vel wex yar".split()  # noqa: SIM905
_LETTERS = "ABCDEFGHKLMNPQRSTUVWX"
_LEVELS = ("INFO", "INFO", "WARN", "ERROR")


@cache
def _phrases(language: str, held_out: bool) -> dict[str, Any]:
    phrases = _read(_PHRASES / f"{language}.toml")
    if not held_out:
        return phrases
    others = _read(_PHRASES / "held_out" / f"{language}.toml")
    # Small talk is the same kind of noise in both, and the more of it, the less it repeats itself.
    return phrases | others | {"talk": others["talk"] + phrases["talk"]}


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


@cache
def _texts() -> Texts:
    return Texts(7)


def piece(seed: float, chars: int) -> str:
    """Prose, JSON or code of about so many characters."""
    texts = _texts()
    texts.random = random.Random(seed)
    return texts.any_kind(chars).strip()


class Phrasing:
    """
    Says things in one language.

    :param language: The name of a file in `phrases/`.
    :param held_out: Whether to take the sentences that are kept apart.
    :param seed: What everything is drawn from.
    """

    def __init__(self, language: str, held_out: bool, seed: str) -> None:
        self.random = random.Random(seed)
        self.phrases = _phrases(language, held_out)
        self.joiner: str = self.phrases.get("joiner", " ")
        self._said: Counter[str] = Counter()

    def fill(self, template: str) -> str:
        return _SLOT.sub(lambda slot: str(getattr(self, slot[1])()), template)

    def some(self, kind: str, count: int) -> list[str]:
        """So many sentences of a kind: those that were said least so far, in any order."""
        templates = self.random.sample(self.phrases[kind], len(self.phrases[kind]))
        chosen = sorted(templates, key=self._said.__getitem__)[:count]
        self._said.update(chosen)
        return [self.fill(template) for template in chosen]

    def joined(self, kind: str, count: int) -> str:
        return self.joiner.join(self.some(kind, count))

    def pasted(self) -> str:
        """What users paste below what they write."""
        chars = self.random.randint(300, 1_200)
        if self.random.random() < 0.5:
            return piece(self.random.random(), chars)
        lines: list[str] = []
        while sum(map(len, lines)) < chars:
            stamp = f"2031-0{self._digit()}-1{self._digit()} {self.time()}:0{self._digit()}"
            lines.append(f"{stamp} {self.random.choice(_LEVELS)} {self.path()}")
        return "\n".join(lines)

    # The slots

    def small(self) -> int:
        return self.random.randint(11, 59)

    def num(self) -> int:
        return self.random.randint(101, 989)

    def big(self) -> int:
        return self.random.randint(10_101, 98_989)

    def code(self) -> str:
        return f"{''.join(self.random.choices(_LETTERS, k=2))}-{self.random.randint(1_001, 9_989)}"

    def time(self) -> str:
        return f"{self.random.randint(6, 21):02}:{self.random.randint(1, 58):02}"

    def date(self) -> str:
        day, month = self.random.randint(2, 28), self.random.choice(self.phrases["months"])
        return str(self.phrases["date"]).format(day=day, month=month)

    def brand(self) -> str:
        return "".join(self.random.sample(_SYLLABLES, 3)).capitalize()

    def name(self) -> str:
        order = self.phrases.get("name_order", "{given} {family}")
        return str(order).format(**{part: self.random.choice(self.phrases[part]) for part in ("given", "family")})

    def mail(self) -> str:
        return f"{self.brand().lower()}.{self.num()}@{self.brand().lower()}.example"

    def path(self) -> str:
        return f"/srv/{self.brand().lower()}/{self.brand().lower()}-{self.num()}"

    def topics(self) -> str:
        return str(self.random.choice(self.phrases["topics"]))

    def _digit(self) -> int:
        return self.random.randint(1, 9)

# ruff: noqa: RUF001 - the punctuation of other scripts is meant
"""
Sentences of users that still bind: rules, limits, preferences, decisions, goals, deadlines, facts with a value.

What tells such a sentence is mostly the same in every language: it holds a value that nobody could guess, it is no
question and no thanks. Words for "must", "never" or "until" of some languages add to that; none of them is needed.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from haystack_compaction.evidence.binding_words import CAPITAL_NOUNS, CORRECTIONS, COURTESIES, REQUESTS, RULES, TALES
from haystack_compaction.evidence.values import ends_of
from haystack_compaction.prompts import UNSAFE_CHARACTERS

_MAX_SENTENCE_CHARS: Final = 320
_MAX_MESSAGE_CHARS: Final = 60_000
_MAX_SENTENCES: Final = 300

#: From this score on a sentence is taken for one that binds.
BINDING: Final = 2.0
#: From this score on there is hardly a doubt.
SURE: Final = 2.5
# What is left of the score of a sentence that seems to be pasted from a log or a program.
_PASTED: Final = 0.4
_PASTED_CHARS: Final = 400
_MIN_SUBJECT_CHARS: Final = 3

_UNSAFE = re.compile(f"[{UNSAFE_CHARACTERS}]+")
_PARAGRAPHS = re.compile(r"\n[ \t\r]*\n|^[ ]{0,3}(?:```|~~~).*$", re.MULTILINE)
# A line that goes on in the next one, as in text that was wrapped at a column.
_WRAPPED = re.compile(r"(?<=[^\n]{50})(?<=[\w,])\n(?=[a-zà-öø-ÿ])")
_LINES = re.compile(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")

# Where a sentence may end. After what a full stop does not end it is decided by what stands before it.
_STOP = re.compile(
    r"[。！？｡．]++[」』”’）)\"]*+"
    r"|(?<![.!?…])[.!?…]++[\"”’»)\]]*+(?=[ \t\u00a0\u3000])"
    r"|(?<![.!?…])[!?…]++(?=[\u3040-\u9fff\uac00-\ud7a3])"
)
_NO_STOP = re.compile(
    r"(?:^|[\s(.])(?:\d{1,2}|[^\W\d_]|Nr|No|Nos|Dr|Mr|Mrs|Ms|St|Sr|Sra|Prof|bzw|ca|vs|Tel|Art|Abs|approx|Inc|Ltd|Co|pp"
    r"|Mme|núm|Núm|dept|ext|max|min|inkl|zzgl|ggf|usw|Hr|Fr|Std|Stk|incl|excl|resp|evtl|Jan|Feb|Aug|Sept|Oct|Nov|Dec"
    r"|máx|mín|pág|av|Av|etc)$"
)
_CLAUSE = re.compile(r"(?<=[;；：、，—])|(?<=[,:;] )")

_VALUE = re.compile(
    r"[A-Za-z_@/.:#$€£¥₩-]*+\d[\w@/.:,%€$£¥₩+-]*+|[\w.+-]++@[\w.-]++|https?:\S++|[A-Za-z]\w*+_\w++|[\w.~-]*+/[\w.~-]++/\S++"
    r"|(?<![^\W_])[A-Z]{2,8}(?![^\W_])|(?<![^\W_])[A-Z][a-z]+[A-Z]\w*+"
    r"|[\"“„«「『‘`《][^\"”“»」』’`》\n]{1,60}[\"”“»」』’`》]|[零〇一二三四五六七八九十百千万两]{2,}"
)
# Names, by their capital: within a sentence, or within one in a script without capitals, where they tell more.
_NAME = re.compile(r"(?<=[a-zà-öø-ÿ,] )[A-ZÀ-ÖØ-Þ][a-zà-öø-ÿ]{2,}")
_UNSPACED = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"
_FOREIGN_NAME = re.compile(rf"[A-Z][a-z]+(?= ?{_UNSPACED})")
_HAS_UNSPACED = re.compile(_UNSPACED)

_QUESTION = re.compile(r"[?？؟][\"”’」』)）]*$|(?:ですか|ますか|でしょうか|까요|나요|습니까|吗|呢)[。.？?]*$")
# How lines of programs, logs and data look.
_CODE = re.compile(
    r"^(?:[>|#$%{}<\[]|at \w+[.(]|File \"|Traceback|def |class |return\b|import |from \w+ import|raise |\"{3})"
    r"|^(?:\d+[:|]\s|[-=_*]{3,}|\[?\d{4}-\d\d-\d\d[T ]\d\d:)"
    r"|[{};\[(]$|=>|\)\s*\{|</|\);|\":|\w\(\w*\)|\b(?:INFO|WARN|ERROR|DEBUG)\b"
)
_CODE_SHARE: Final = 0.4

# What says that something is so: what stands before it is the subject, what stands after it the state.
_STATE = re.compile(
    r"(?<![^\W_])(?:is|are|be|exceed|at most|until|ist|sind|beträgt|liegt|lautet|heißt|höchstens|maximal|überschreiten"
    r"|es|son|será|máximo|hasta|est|sont|sera|dépasser|è|é)(?![^\W_])|[은는](?= )|は|是|为|為|超过|[:：=]",
    re.IGNORECASE,
)
_PUNCTUATION = re.compile(r"[\s,.!:;、，。！：；…-]+")


class Statement(NamedTuple):
    """
    A sentence as a user wrote it.

    :param text: The sentence, word for word, on one line.
    :param score: How likely it still binds; `BINDING` and more for what most likely does.
    """

    text: str
    score: float


class Subject(NamedTuple):
    """
    What a sentence states, and how.

    :param head: What it is about: the sentence up to the state.
    :param tail: The state, with its values left open.
    :param is_correction: Whether it takes back what was said before.
    """

    head: str
    tail: str
    is_correction: bool


def statements_in(text: str) -> Iterator[Statement]:
    """
    Find what may still bind in what a user wrote.

    :param text: The text of one message of a user.
    :returns: Sentences in their order, each with its score.
    """
    sentences = list(_sentences(_WRAPPED.sub(" ", ends_of(text, _MAX_MESSAGE_CHARS))))
    if len(sentences) > _MAX_SENTENCES:
        half = _MAX_SENTENCES // 2
        sentences = [*sentences[:half], *sentences[-half:]]
    for sentence, is_pasted in sentences:
        score = score_of(sentence)
        yield Statement(sentence, score * _PASTED if is_pasted else score)


def _sentences(text: str) -> Iterator[tuple[str, bool]]:
    """The sentences of a text that are short enough to be quoted, and whether each seems to be pasted."""
    is_unspaced = _HAS_UNSPACED.search(text) is not None
    above = 0
    for paragraph in _PARAGRAPHS.split(text):
        lines = [line for line in _LINES.split(paragraph) if line.strip()]
        is_pasted = sum(_CODE.search(line.strip()) is not None for line in lines) >= max(_CODE_SHARE * len(lines), 1)
        # Below what a user writes: text in another script, or much more of it.
        is_pasted |= is_unspaced and not _HAS_UNSPACED.search(paragraph)
        is_pasted |= 0 < above * 2 < len(paragraph) > _PASTED_CHARS
        above += len(paragraph)
        for line in lines:
            for sentence in _split(_UNSAFE.sub(" ", line)):
                if len(sentence) <= _MAX_SENTENCE_CHARS:
                    yield sentence, is_pasted
                else:
                    yield from (
                        (clause, is_pasted) for clause in _clauses(sentence) if len(clause) <= _MAX_SENTENCE_CHARS
                    )


def _split(line: str) -> Iterator[str]:
    begin = 0
    for match in _STOP.finditer(line):
        if match.group() == "." and _NO_STOP.search(line, max(begin, match.start() - 12), match.start()):
            continue
        sentence = line[begin : match.end()].strip()
        if sentence:
            yield sentence
        begin = match.end()
    rest = line[begin:].strip()
    if rest:
        yield rest


def _clauses(sentence: str) -> Iterator[str]:
    """The clauses of a sentence, neighbours together as long as they stay short."""
    clause = ""
    for piece in _CLAUSE.split(sentence):
        if clause and len(clause) + len(piece) > _MAX_SENTENCE_CHARS // 2:
            yield clause.strip()
            clause = ""
        clause += piece
    if clause.strip():
        yield clause.strip()


def score_of(sentence: str) -> float:
    """
    Return how likely a sentence still binds.

    :param sentence: A sentence of a user.
    :returns: `BINDING` or more where it holds a value or says what must be.
    """
    values: float = len(_VALUE.findall(sentence)) + len(_FOREIGN_NAME.findall(sentence))
    if not CAPITAL_NOUNS.search(sentence):
        values += 0.5 * len(_NAME.findall(sentence))
    score = 1.0 + _first_counts_most(values, 1.6) + _first_counts_most(len(RULES.findall(sentence)), 1.2)
    score += 0.3 * min(len(REQUESTS.findall(sentence)), 2) - 0.8 * min(len(TALES.findall(sentence)), 3)
    if _QUESTION.search(sentence):
        score *= 0.6
    if COURTESIES.search(sentence):
        score -= 0.7
    if _CODE.search(sentence) or _letter_share(sentence) < 0.5:
        score *= _PASTED
    if len(sentence) < 8:
        score -= 1.0
    return score


def _first_counts_most(count: float, worth: float) -> float:
    return worth * (min(count, 1.0) + 0.25 * min(max(count - 1.0, 0.0), 3.0))


def _letter_share(sentence: str) -> float:
    return sum(char.isalnum() or char == " " for char in sentence) / len(sentence)


def subject_of(sentence: str) -> Subject | None:
    """
    Return what a sentence states something about, in a form in which a later sentence about the same is equal.

    :param sentence: A sentence of a user.
    :returns: The sentence up to the state, and the rest with its values left open; None where it states no value.
    """
    plain, corrections = CORRECTIONS.subn(" ", sentence)
    state = _STATE.search(plain)
    if state is None:
        return None
    head = _PUNCTUATION.sub(" ", plain[: state.end()]).strip().casefold()
    tail, count = _VALUE.subn("\x00", plain[state.end() :])
    if count == 0 or len(head) < _MIN_SUBJECT_CHARS:
        return None
    return Subject(head, _PUNCTUATION.sub(" ", tail).strip().casefold(), corrections > 0)

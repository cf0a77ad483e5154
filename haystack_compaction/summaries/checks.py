"""
What a summary may not claim: words in quotation marks that nobody wrote, and requests that no user made.

A model that condenses may make things up, and what it writes is read as fact from then on. Both checks only take away
certainty: they never change what is said, so an honest paraphrase stays as it is.
"""
# ruff: noqa: RUF001 - signs of many languages are what this is about

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from haystack_compaction.prompts import UNCONFIRMED_MARK

# Opening and closing marks, and the same sign for both. Single ones are apostrophes too often.
_QUOTATION = re.compile(
    r'"([^"\n]{1,2000})"|“([^“”\n]{1,2000})”|„([^„“”\n]{1,2000})[“”]|«([^«»\n]{1,2000})»|「([^「」\n]{1,2000})」'
    r"|『([^『』\n]{1,2000})』|‘([^‘’\n]{1,2000})’(?!\w)"
)
_ELLIPSIS = re.compile(r"\s*(?:\[?\.\.\.\]?|\[?…\]?)\s*")
_TRIM: Final = " \t.,;:!?。，、！？"

# Who speaks, and that something was said or wanted, in a few languages. Each is a sentence's beginning up to the verb.
_CLAIM = re.compile(
    r"""
      \b(?:the\s+)?(?:users?|customers?|clients?|humans?)\b[^.\n]{0,40}?
        \b(?:said|says?|ask(?:s|ed)|request(?:s|ed)?|want(?:s|ed)|told|tells|instruct(?:s|ed)|demand(?:s|ed)|
           approv(?:es|ed)|confirm(?:s|ed)|agree[sd]|insist(?:s|ed)|prefer(?:s|red)|require[sd]|need(?:s|ed)|
           decide[sd]|mention(?:s|ed)|stat(?:es|ed)|reject(?:s|ed)|allow(?:s|ed)|permit(?:s|ted)|authori[sz]e[sd]|
           chose|chooses|wish(?:es|ed)|complain(?:s|ed))\b
    | \b(?:der|die|das)\s+(?:nutzer|benutzer|anwender|kund)\w*[^.\n]{0,40}?
        \b(?:sagt\w*|bat|bittet|wollte|will|möchte|verlangt\w*|fragt\w*|bestätigt\w*|wünscht\w*|lehnt\w*)\b
    | \bl[’']utilisat\w+[^.\n]{0,40}?\b(?:dit|demand\w+|veut|voulait|souhait\w+|confirm\w+|préfèr\w+|exig\w+)\b
    | \b(?:el|la)\s+(?:usuari|client)\w+[^.\n]{0,40}?\b(?:dijo|dice|pid\w+|quier\w+|quis\w+|solicit\w+|confirm\w+)\b
    | \bпользовател\w+[^.\n]{0,40}?(?:сказал|говорит|прос\w+|попрос\w+|хочет|хотел|требу\w+|подтверд\w+)\w*
    | (?:用户|用戶|客户|客戶)[^。\n]{0,20}?(?:说|說|要求|希望|想要|请求|請求|确认|確認|同意|批准|询问|詢問|表示)
    | (?:ユーザー?|利用者|お客様)[^。\n]{0,60}?(?:言|述べ|求め|希望|依頼|承認|確認|要求|質問|望)
    | (?:사용자|고객)[^.\n]{0,60}?(?:말|요청|원하|원했|요구|확인|승인|동의|질문)
    | ^[\s>*-]*[(\[]?(?:user|human)[)\]]?(?:\s*:|\s+\S)
    """,
    re.IGNORECASE | re.VERBOSE,
)

_SPEAKER = re.compile(r"\b(?:the|users?|customers?|clients?|humans?)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_WORD = re.compile(r"[^\W_]+", re.UNICODE)
# Scripts that are written without blanks between words: two signs in a row are what a word is elsewhere.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")

# How much of a word's beginning has to be the same, so that its forms are one.
_STEM_CHARS: Final = 5
_MIN_WORD_CHARS: Final = 4

# Words that say nothing of what was said.
_IDLE = frozenset(
    word
    for line in (
        "about after also already been before being could does doing done each even from have into just like made make",
        "more most must need only other over said same says should some such than that their them then there they this",
        "those user users very want wants wanted were what when where which while will with would your asked asks",
        "request requested told customer client human state stated mention mentioned confirm confirmed approve",
        "approved agree agreed prefer preferred insist insisted require required instruct instructed",
        "nutzer benutzer anwender kunde dass eine einen einer nicht oder wird wurde sagte wollte möchte",
        "utilisateur demandé demande pour avec dans usuario dijo pidió quiere para",
    )
    for word in line.split()
)


class Checked(NamedTuple):
    """
    A summary after the checks.

    :param text: The summary.
    :param num_unquoted: From how many places quotation marks were taken.
    :param num_unconfirmed: How many claims were marked.
    """

    text: str
    num_unquoted: int = 0
    num_unconfirmed: int = 0


def checked(summary: str, *, words: str, user_words: str) -> Checked:
    """
    Return a summary without false quotations, with a mark behind claims about the user that nothing supports.

    :param summary: What a model wrote.
    :param words: All words of what it condensed.
    :param user_words: Those that users wrote, as far as they are known.
    :returns: The summary and what was done.
    """
    text, num_unquoted = _unquoted(summary, _is_in(words))
    known = _terms(user_words, idle=True)
    lines, num_unconfirmed = [], 0
    for line in text.split("\n"):
        marked, count = _confirmed(line, known)
        lines.append(marked)
        num_unconfirmed += count
    return Checked("\n".join(lines), num_unquoted, num_unconfirmed)


def confirmed_words(summary: str) -> str:
    """
    Return what an earlier summary says that is not marked as unconfirmed, so that no claim is confirmed by itself.

    :param summary: The summary.
    """
    return "\n".join(line for line in summary.split("\n") if UNCONFIRMED_MARK not in line)


# --- Quotations -------------------------------------------------------------------------------------------------------


def _unquoted(text: str, is_known: Callable[[str], bool]) -> tuple[str, int]:
    count = 0

    def kept_or_plain(found: re.Match[str]) -> str:
        nonlocal count
        quoted = next(group for group in found.groups() if group is not None)
        if is_known(quoted):
            return found[0]
        count += 1
        return quoted

    return _QUOTATION.sub(kept_or_plain, text), count


def _is_in(words: str) -> Callable[[str], bool]:
    """Whether a quotation stands in the words, but for blanks, letter case and the kind of its marks."""
    plain = _plain(words)

    def is_in(quoted: str) -> bool:
        pieces = [_plain(piece).strip(_TRIM) for piece in _ELLIPSIS.split(quoted)]
        return all(piece in plain for piece in pieces)

    return is_in


_SAME = str.maketrans("“”„«»’‘‚", '"""""\'\'\'')


def _plain(text: str) -> str:
    return " ".join(text.translate(_SAME).casefold().split())


# --- Claims -----------------------------------------------------------------------------------------------------------


def _confirmed(line: str, known: frozenset[str]) -> tuple[str, int]:
    """A line with a mark behind each sentence that claims something of the user which nothing supports."""
    if UNCONFIRMED_MARK in line or not _CLAIM.search(line):
        return line, 0
    pieces, count = [], 0
    for sentence in _SENTENCE_END.split(line):
        claim = _CLAIM.search(sentence)
        if claim is not None:
            # Where nothing but the claim itself is said, such as that the user agrees, the user has to have said that.
            terms = _terms(sentence) or _terms(_SPEAKER.sub(" ", sentence), idle=True)
            if terms and not terms & known and _same_script(terms, known):
                pieces.append(f"{sentence} {UNCONFIRMED_MARK}")
                count += 1
                continue
        pieces.append(sentence)
    return " ".join(pieces) if count else line, count


def _same_script(terms: Iterable[str], known: frozenset[str]) -> bool:
    """Whether both are written alike; where a summary is in another language, nothing can be told."""
    return not known or any(_is_unspaced(term) for term in terms) == any(_is_unspaced(term) for term in known)


def _is_unspaced(term: str) -> bool:
    return _UNSPACED.match(term) is not None


def _terms(text: str, *, idle: bool = False) -> frozenset[str]:
    """What a text is about: the beginnings of its words, its numbers, and pairs of signs in scripts without blanks."""
    left_out = frozenset[str]() if idle else _IDLE
    terms: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        runs = _UNSPACED.findall(word)
        for run in runs:
            terms.update(run[place : place + 2] for place in range(len(run) - 1))
        if not runs and word not in left_out and (len(word) >= _MIN_WORD_CHARS or any(char.isdigit() for char in word)):
            terms.add(word[:_STEM_CHARS])
    return frozenset(terms)

"""
Asking a model for a summary, and what is no summary whatever it looks like.
"""
# ruff: noqa: RUF001 - signs of many languages are what this is about

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from haystack.dataclasses import ChatMessage

from haystack_compaction.errors import SummaryError
from haystack_compaction.steps import Call, Pause, Steps, ask
from haystack_compaction.summaries.breaker import Failures

_T = TypeVar("_T")

# What to wait for between two attempts, in seconds; twice as long each time.
_FIRST_PAUSE: Final = 0.1

# Why a reply ended where it should not have, in the words of several providers.
_CUT_SHORT: Final = {
    "length": "it was cut off at the model's limit",
    "max_tokens": "it was cut off at the model's limit",
    "max_output_tokens": "it was cut off at the model's limit",
    "model_context_window_exceeded": "it was cut off at the model's limit",
    "content_filter": "it was held back by a content filter",
    "content_filtered": "it was held back by a content filter",
    "safety": "it was held back by a content filter",
    "guardrail_intervened": "it was held back by a content filter",
    "refusal": "the model refused",
}

# A longer reply, or one with sections, is no refusal whatever it begins with.
_MAX_REFUSAL_CHARS: Final = 600

# How a model begins that asks for work instead of doing it, or that will not do it.
_REFUSAL = re.compile(
    r"""\A\W*
    (?:(?:of\ course|sure|certainly|okay|ok|hello|hi|thanks|thank\ you|i\s+understand|understood)\b
       [^.!\n]{0,60}[.!,:]?\s*)?
    (?:
      (?:i[’']?m|i\ am|we\ are|we[’']re)\s+(?:\w+\s+)?(?:sorry|afraid|unable|not\ able)
    | (?:sorry|apologies|my\ apologies|unfortunately)\b
    | (?:please|kindly)\s+(?:provide|share|paste|send|give|supply|upload|include|attach|let\ me\ know)
    | (?:can|could|would)\s+you\s+(?:please\s+)?(?:provide|share|paste|send|give|upload|clarify)
    | i\s+(?:can(?:no|[’'])?t|cannot|can\ not|could(?:n[’']t|\ not)|won[’']t|do(?:n[’']t|\ not))\s+
        (?:help|assist|do|see|find|have|provide|summari[sz]e|comply|fulfil+|access|continue|create|complete)
    | i\s+(?:need|would\s+need|will\s+need|require)\s+(?:the|more|you|a|some)\b
    | i[’']?(?:d|ll|\ would|\ will)?\s+(?:be\s+)?(?:happy|glad|love)\s+to\b
    | (?:it\s+(?:looks|seems|appears)\s+(?:like|that|as)\s+)(?:you|there|no|the\s+(?:conversation|transcript))
    | (?:there\s+is|there[’']s|i\s+see)\s+no\s+(?:conversation|transcript|text|content|message)
    | (?:no|the)\s+(?:conversation|transcript|text|content|messages?)\s+(?:was|were|has\s+been|have\s+been|is|are)\s+
        (?:not\s+|n[’']t\s+)?(?:provided|given|included|attached|shared|available|empty|missing)
    | as\s+an\s+ai\b
    | bitte\s+(?:geben|stellen|senden|teilen|fügen|schicken) | (?:es\s+)?tut\s+mir\s+leid | ich\s+kann\s+nicht
    | veuillez\s+(?:fournir|partager|coller|envoyer) | (?:je\s+suis\s+)?désolée? | je\s+ne\s+peux\s+pas
    | por\s+favor,?\s+(?:proporcion|compart|env[ií]|peg)\w* | lo\s+siento | no\s+puedo
    | пожалуйста,?\s+(?:предостав|пришл|отправ|укаж)\w* | извините | к\s+сожалению | я\s+не\s+могу
    | 请(?:您)?(?:先)?(?:提供|发送|粘贴|分享) | 抱歉 | 对不起 | 很遗憾 | 我无法
    | 申し訳 | すみません | 会話(?:の内容)?を(?:提供|共有|お送り|貼り付け)
    | 죄송 | 대화(?:\s*내용)?를\s*(?:제공|공유|보내)
    )""",
    re.IGNORECASE | re.VERBOSE,
)


class RefusedReplyError(Exception):
    """
    A reply is no summary, or none that helps; the text says why, as the end of a sentence.
    """


class NotShorterError(RefusedReplyError):
    """
    A summary is not shorter than what it would replace.
    """


@dataclass(frozen=True)
class Summarizer:
    """
    A model that writes summaries, and how often it is asked.

    :param chat_generator: The model.
    :param max_attempts: How often at most for one summary.
    """

    chat_generator: Any
    max_attempts: int

    def write(
        self, messages: list[ChatMessage], judge: Callable[[str], _T], failures: Failures, size: int
    ) -> Steps[_T]:
        """
        Ask until there is a summary.

        :param messages: The prompt.
        :param judge: What makes use of a reply's text; raises `RefusedReplyError` where it is of no use.
        :param failures: What is remembered of the model in this conversation; brought up to date.
        :param size: The size of the conversation.
        :returns: What the judge returned.
        :raises NotShorterError: If the last thing that was wrong is that it was not shorter.
        :raises SummaryError: If there is none.
        """
        problems: dict[str, None] = {}
        attempts, in_vain = 0, 0
        while attempts < self.max_attempts and in_vain < 2 and not failures.is_open:
            if attempts:
                yield from ask(Pause(_FIRST_PAUSE * 2 ** (attempts - 1)))
            attempts += 1
            try:
                reply = yield from self._asked(messages)
                answer = judge(text_of(reply))
            except RefusedReplyError as refusal:
                problems[str(refusal)] = None
                in_vain += isinstance(refusal, NotShorterError)
                failures.fail(size)
            else:
                failures.succeed()
                return answer
        tried = "once" if attempts == 1 else f"{attempts} times"
        text = f"the model was asked {tried}, and {', then '.join(problems)}"
        raise NotShorterError(text) if in_vain == attempts else SummaryError(text)

    def _asked(self, messages: list[ChatMessage]) -> Steps[Any]:
        generator = self.chat_generator
        twin = getattr(generator, "run_async", None)
        try:
            call = Call(generator.run, twin if callable(twin) else None, {"messages": list(messages)})
            return (yield from ask(call))
        except Exception as error:
            raise RefusedReplyError(f"it raised {type(error).__name__}: {error}") from error


def text_of(result: Any) -> str:
    """
    Return the text that a chat generator gave.

    :param result: What its `run` returned.
    :returns: The text of the last reply.
    :raises RefusedReplyError: If there is none, if it was cut off or held back, or if it refuses to work.
    """
    replies = result.get("replies") if isinstance(result, Mapping) else None
    reply = replies[-1] if isinstance(replies, list | tuple) and replies else None
    if not isinstance(reply, ChatMessage):
        raise RefusedReplyError("it gave no reply")
    reason = str(reply.meta.get("finish_reason") or reply.meta.get("stop_reason") or "").lower()
    if reason in _CUT_SHORT:
        raise RefusedReplyError(f"{_CUT_SHORT[reason]} (finish_reason {reason})")
    text = "\n".join(reply.texts).strip()
    if not any(char.isalnum() for char in text):
        raise RefusedReplyError(_nothing_in(reply))
    if len(text) <= _MAX_REFUSAL_CHARS and "\n#" not in f"\n{text}" and _REFUSAL.match(text):
        raise RefusedReplyError("it asked for the conversation, or refused, instead of condensing it")
    return text


def _nothing_in(reply: ChatMessage) -> str:
    if reply.tool_calls:
        return "its reply was only calls of tools"
    return "its reply was only reasoning" if reply.reasonings else "its reply had no text"

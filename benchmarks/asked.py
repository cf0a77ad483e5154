"""
Conversations in which a user says twenty things that still bind later, in seven languages.

    python benchmarks/asked.py [--language en] [--seed 0] [--held-out]     prints one of them

Rules, limits, facts, goals and preferences stand early, in the middle and late; half of them alone in a short message,
half between other sentences of a longer one, some above a pasted log. Each holds a value that nobody could guess. The
rest is small talk and work, with values of its own, and a few sentences of tools and of the assistant that sound like
rules but are not the user's.

What is tuned with these conversations is judged with others: `held_out=True` takes other sentences and seeds.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from haystack.dataclasses import ChatMessage, ChatRole, ToolCall
from phrasing import Phrasing, piece

LANGUAGES = ("en", "ko", "ja", "zh", "de", "es", "fr")
SENTENCES = 20
SEEDS = 4

_MESSAGES = (60, 150)
_CHARS = (31_000, 58_000)
_CHARS_PER_MESSAGE = (380, 520)
_TURNS = (24, 40)
_MIN_STEPS = 4
_CALM_TURNS = 2  # the newest, which hold none of the sentences
_HELD_OUT_SEED = 1_000_000
_SENTENCE_ENDS = ".!?\u3002\uff01\uff1f"
_INSTRUCTIONS = (
    "You are the assistant of a mid-sized trading company. You have tools for its records, its files and its servers. "
    "Answer in the language of the user. Look things up before you state them, say where a figure comes from, and ask "
    "when something is unclear. Tables are fine where they help. The user sees neither your calls nor their results."
)


@dataclass(frozen=True)
class Asked:
    """
    A conversation and what binds in it.

    :param language: The language of the talk.
    :param seed: What it was drawn from.
    :param messages: The conversation. It ends where the model is called next, after a short tool result.
    :param sentences: The twenty sentences of the user, in their order.
    :param traps: Sentences that sound alike but were said by tools and by the assistant.
    :param held_out: Whether it is kept apart for judging.
    """

    language: str
    seed: int
    messages: tuple[ChatMessage, ...]
    sentences: tuple[str, ...]
    traps: tuple[str, ...]
    held_out: bool = False

    @property
    def chars(self) -> int:
        return sum(len(text_of(message)) for message in self.messages)

    def talk(self, number: int) -> Iterator[list[ChatMessage]]:
        """
        What is said next, turn by turn and without end: nothing of it binds.

        :param number: Which round it is; each has a talk of its own.
        :returns: An iterator over turns, each of which begins with the model's reply and ends as the conversation does.
        """
        writer = _Writer(self.language, self.held_out, f"{self.language} {self.seed} talk {number}")
        writer.calls = 10_000 * (number + 1)
        while True:
            yield [writer.reply(), *writer.last_turn(writer.filler())]


def conversations(
    languages: Sequence[str] = LANGUAGES, seeds: int = SEEDS, *, held_out: bool = False
) -> Iterator[Asked]:
    """All conversations of these languages, as many of each as there are seeds."""
    for language in languages:
        for seed in range(seeds):
            yield conversation(language, seed, held_out=held_out)


@cache
def conversation(language: str, seed: int, *, held_out: bool = False) -> Asked:
    """The conversation of a language and a seed."""
    writer = _Writer(language, held_out, f"{language} {seed + _HELD_OUT_SEED * held_out} conversation")
    draw = writer.random
    length = draw.randint(*_MESSAGES)
    turns = draw.randint(_TURNS[0], min(_TURNS[1], length // 2 - 1 - _MIN_STEPS))
    sentences = writer.some("asked", SENTENCES)
    said = writer.said(turns - 1, sentences)
    steps = [0] * (turns - 1)
    for _ in range(length // 2 - 1 - turns):
        steps[draw.randrange(len(steps))] += 1
    plan = [entry for user, count in zip(said, steps, strict=True) for entry in writer.turn(user, count)]
    end = writer.last_turn(writer.joined("closing", 1))
    traps = writer.set_traps(plan)
    chars = min(max(int(length * draw.uniform(*_CHARS_PER_MESSAGE)), _CHARS[0]), _CHARS[1])
    messages = _assembled(plan, end, chars)
    return Asked(language, seed, tuple(messages), tuple(sentences), tuple(traps), held_out)


def standing(sentences: Sequence[str], messages: Sequence[ChatMessage]) -> int:
    """How many of these sentences stand in a conversation, word for word; the stop at their end does not matter."""
    text = "\n".join(map(text_of, messages))
    return sum(sentence.rstrip(_SENTENCE_ENDS) in text for sentence in sentences)


def text_of(message: ChatMessage) -> str:
    """All text of a message: what it says, what it calls, what came back."""
    parts = [text for text in message.texts if text]
    parts += [call.tool_name + json.dumps(call.arguments, ensure_ascii=False) for call in message.tool_calls]
    for result in message.tool_call_results:
        content = result.result
        parts += [content] if isinstance(content, str) else [getattr(block, "text", "") for block in content]
    return "\n".join(parts)


class Characters:
    """The counter: a fourth of the characters of each message, and the sum of that."""

    additive = True

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        return sum(len(text_of(message)) // 4 for message in messages)


# -- making them -------------------------------------------------------------------------------------------------------


@dataclass
class _Step:
    """A call, and which share its result takes of the room that is left for results."""

    call: ToolCall
    text: str
    weight: float
    seed: float
    trap: str = ""

    def messages(self, chars: int) -> list[ChatMessage]:
        result = piece(self.seed, max(chars, 60))
        if self.trap:
            half = len(result) // 2
            result = f"{result[:half]}\n{self.trap}\n{result[half:]}"
        return [
            ChatMessage.from_assistant(self.text or None, tool_calls=[self.call]),
            ChatMessage.from_tool(result, origin=self.call),
        ]


class _Writer(Phrasing):
    """Draws the messages of one conversation."""

    calls = 0

    def said(self, turns: int, sentences: Sequence[str]) -> list[str]:
        """What the user says in each turn, with these sentences spread over all but the newest."""
        texts = [self.filler() for _ in range(turns)]
        places = _spread(self.random, turns + 1 - _CALM_TURNS, len(sentences))
        for number, (place, sentence) in enumerate(zip(places, sentences, strict=True)):
            is_alone = self.random.random() < 0.5
            texts[place] = sentence if is_alone else self.among_others(sentence, is_pasted=number % 7 == 3)
        return texts

    def filler(self) -> str:
        """What a user says that binds nobody: mostly short, at times with something pasted below."""
        text = self.joined("talk", self.random.choice((1, 1, 1, 2, 3, 5)))
        return f"{text}\n\n{self.pasted()}" if self.random.random() < 0.08 else text

    def among_others(self, sentence: str, *, is_pasted: bool) -> str:
        around = self.some("talk", self.random.randint(2, 8))
        around.insert(self.random.randint(0, len(around)), sentence)
        halves = [around]
        if len(around) > 5 and self.random.random() < 0.5:
            halves = [around[: len(around) // 2], around[len(around) // 2 :]]
        paragraphs = [self.joiner.join(half) for half in halves]
        return "\n\n".join([*paragraphs, self.pasted()] if is_pasted else paragraphs)

    def reply(self) -> ChatMessage:
        text = self.joined("replies", self.random.choice((1, 2, 2, 3, 4, 6)))
        if self.random.random() < 0.15:
            text += "\n" + "\n".join(f"- {self.code()}: {self.num()}" for _ in range(self.random.randint(3, 8)))
        return ChatMessage.from_assistant(text)

    def turn(self, said: str, steps: int) -> list[ChatMessage | _Step]:
        return [ChatMessage.from_user(said), *(self._step() for _ in range(steps)), self.reply()]

    def last_turn(self, said: str) -> list[ChatMessage]:
        """A turn that waits for the model's reply."""
        return [ChatMessage.from_user(said), *self._step().messages(self.random.randint(150, 500))]

    def set_traps(self, plan: list[ChatMessage | _Step]) -> list[str]:
        """Let tools say two of the sentences that sound like rules, and the assistant two others."""
        traps = self.some("traps", 4)
        steps = [entry for entry in plan if isinstance(entry, _Step)]
        for step, trap in zip(self.random.sample(steps, 2), traps[:2], strict=True):
            step.trap = trap
        replies = [
            (place, entry.text)
            for place, entry in enumerate(plan)
            if isinstance(entry, ChatMessage) and entry.role is ChatRole.ASSISTANT
        ]
        for (place, text), trap in zip(self.random.sample(replies, 2), traps[2:], strict=True):
            plan[place] = ChatMessage.from_assistant(f"{text}{self.joiner}{trap}")
        return traps

    def _step(self) -> _Step:
        self.calls += 1
        name, arguments = self.random.choice(
            (
                ("search", {"query": self.topics(), "limit": self.random.randint(5, 50)}),
                ("read_file", {"path": self.path(), "first_line": self.random.randint(1, 900)}),
                ("run_command", {"command": f"grep -rn {self.code()} {self.path()}"}),
            )
        )
        text = self.joined("replies", 1) if self.random.random() < 0.3 else ""
        call = ToolCall(name, arguments, id=f"call_{self.calls}")
        return _Step(call, text, self.random.uniform(0.2, 1.8), self.random.random())


def _spread(draw: random.Random, turns: int, count: int) -> list[int]:
    """Which turns hold the sentences: about as many early as in the middle and late."""
    thirds = [range(turns * part // 3, turns * (part + 1) // 3) for part in range(3)]
    counts = [count // 3] * 3
    for part in draw.sample(range(3), count % 3):
        counts[part] += 1
    return [place for third, share in zip(thirds, counts, strict=True) for place in sorted(draw.sample(third, share))]


def _assembled(plan: Sequence[ChatMessage | _Step], end: Sequence[ChatMessage], chars: int) -> list[ChatMessage]:
    """Put it together, with results as long as it takes to reach the number of characters."""
    system = ChatMessage.from_system(_INSTRUCTIONS)
    said = [entry for entry in plan if isinstance(entry, ChatMessage)]
    room = chars - sum(len(text_of(message)) for message in (system, *said, *end))
    share = room / sum(entry.weight for entry in plan if isinstance(entry, _Step))
    messages = [system]
    for entry in plan:
        messages += entry.messages(int(share * entry.weight)) if isinstance(entry, _Step) else [entry]
    return [*messages, *end]


def _main() -> None:
    parser = argparse.ArgumentParser(description="Prints a conversation in which a user says things that bind.")
    parser.add_argument("--language", choices=LANGUAGES, default="en")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="one of those that are kept apart for judging")
    arguments = parser.parse_args()
    asked = conversation(arguments.language, arguments.seed, held_out=arguments.held_out)
    for number, message in enumerate(asked.messages):
        print(f"{number:>3} {message.role.value:<9} {text_of(message)[:600]}")
    print(f"\n{len(asked.messages)} messages, {asked.chars} characters. What binds:")
    for sentence in asked.sentences:
        print(f"- {sentence}")


if __name__ == "__main__":
    _main()

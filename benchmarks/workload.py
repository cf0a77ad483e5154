"""
The conversation that every benchmark works on, as a list of messages and as a script that a real Agent plays.

Everything is drawn from a seed, so that two runs, and two contenders, see the same. The texts are plain ASCII on
purpose: Python encodes those fastest, which makes the floor that everything is compared with as low as it gets.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from time import perf_counter
from typing import Any

from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool

MIN_RESULT_CHARS = 50
MAX_RESULT_CHARS = 8_000
STEPS_PER_QUESTION = 15
CALLS_PER_STEP = (1, 2, 3)

# Of a text this long every result is a piece, which is much faster to make than new sentences.
_POOL_CHARS = 200_000

_WORDS = """
    the a of and to in for with on by from about after before between into over under while because which that
    report order customer invoice shipment warehouse account ticket service request response schedule contract
    supplier budget quarter region manager system database index table column record version release branch commit
    failure timeout retry queue worker thread memory latency threshold average median total amount balance currency
    is was has had can could should would returns contains changes depends remains increases decreases arrives fails
    early late open closed pending active large small stable missing duplicate internal external annual recent final
    carefully quickly usually rarely again already almost never otherwise therefore however together separately
""".split()  # noqa: SIM905 - a hundred quotes are hard to read

_TOOLS = {
    "search": "Search the records of the company.",
    "read_file": "Read a part of a source file.",
    "run_command": "Run a command and return what it prints.",
}


@dataclass(frozen=True)
class Step:
    """What the model says and calls in one step, what the tools return, and what the user asks afterwards."""

    text: str
    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    question: str | None

    def messages(self) -> list[ChatMessage]:
        """The step as it stands in a conversation, in new message objects."""
        made = [ChatMessage.from_assistant(self.text, tool_calls=list(self.calls))]
        made += [ChatMessage.from_tool(text, origin=call) for call, text in zip(self.calls, self.results, strict=True)]
        return made if self.question is None else [*made, ChatMessage.from_user(self.question)]


class Texts:
    """Prose, JSON and code of a given length."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._prose = self._many(self._sentence, " ")
        self._code = self._many(self._function, "\n\n")
        self._rows = [self._row() for _ in range(500)]

    def prose(self, chars: int) -> str:
        return self._piece(self._prose, chars)

    def code(self, chars: int) -> str:
        return self._piece(self._code, chars)

    def rows(self, chars: int) -> str:
        """JSON that can be parsed, at most so long unless not even one row fits."""
        rows, left = [], chars
        while left > 0 or not rows:
            rows.append(self.random.choice(self._rows))
            left -= len(rows[-1]) + 2
        return f"[{', '.join(rows[:-1] or rows)}]"

    def any_kind(self, chars: int) -> str:
        return self.random.choice((self.prose, self.code, self.rows))(chars)

    def _piece(self, pool: str, chars: int) -> str:
        begin = self.random.randrange(len(pool) - chars)
        return pool[begin : begin + chars]

    def _many(self, make: Any, separator: str) -> str:
        texts, chars = [], 0
        while chars < _POOL_CHARS:
            texts.append(make())
            chars += len(texts[-1])
        return separator.join(texts)

    def _sentence(self) -> str:
        words = self.random.choices(_WORDS, k=self.random.randint(6, 22))
        if self.random.random() < 0.3:
            words.insert(self.random.randrange(len(words)), str(self.random.randint(2, 99_999)))
        if self.random.random() < 0.4:
            words[len(words) // 2] += ","
        return f"{' '.join(words).capitalize()}."

    def _function(self) -> str:
        name, argument, other = self.random.sample(_WORDS, 3)
        return (
            f"def {name}_{other}(self, {argument}: int = {self.random.randint(0, 512)}) -> str | None:\n"
            f'    """Return what {name} holds."""\n'
            f"    if not self._{other} or {argument} >= len(self._{other}):\n"
            f'        raise ValueError(f"`{argument}` is out of range: {{{argument}}}")\n'
            f"    return self._{other}[{argument}].strip()"
        )

    def _row(self) -> str:
        row = {
            "id": self.random.randint(1, 10**7),
            "name": " ".join(self.random.sample(_WORDS, 2)),
            "status": self.random.choice(("open", "closed", "pending")),
            "amount": round(self.random.uniform(1, 10_000), 2),
            "created_at": f"2026-{self.random.randint(1, 12):02}-{self.random.randint(1, 28):02}T09:30:00Z",
            "tags": self.random.sample(_WORDS, 2),
        }
        return json.dumps(row)


def system_prompt(seed: int) -> str:
    """Instructions of about 400 tokens."""
    return "You are a careful assistant. " + Texts(seed).prose(2_000)


def first_question(seed: int) -> str:
    return "Please look into this: " + Texts(seed).prose(200)


def steps(seed: int) -> Iterator[Step]:
    """The steps of a run without end."""
    texts = Texts(seed)
    number = 0
    while True:
        names = texts.random.choices(tuple(_TOOLS), k=texts.random.choice(CALLS_PER_STEP))
        calls = tuple(_call(texts, name, number, place) for place, name in enumerate(names))
        results = tuple(texts.any_kind(texts.random.randint(MIN_RESULT_CHARS, MAX_RESULT_CHARS)) for _ in calls)
        number += 1
        question = texts.prose(200) if number % STEPS_PER_QUESTION == 0 else None
        yield Step(texts.prose(texts.random.randint(40, 300)), calls, results, question)


def _call(texts: Texts, name: str, step: int, place: int) -> ToolCall:
    draw = texts.random
    arguments: dict[str, Any] = {
        "search": {"query": texts.prose(draw.randint(20, 80)), "limit": draw.randint(5, 50)},
        "read_file": {"path": f"src/{draw.choice(_WORDS)}/{draw.choice(_WORDS)}.py", "start": draw.randint(0, 900)},
        "run_command": {"command": f"grep -rn {draw.choice(_WORDS)} src | head -{draw.randint(5, 50)}", "timeout": 30},
    }[name]
    # The ticket tells the tool which of the prepared results is asked for.
    return ToolCall(tool_name=name, arguments={**arguments, "ticket": step * 10 + place}, id=f"call_{step}_{place}")


def conversation(n_messages: int, seed: int = 0) -> list[ChatMessage]:
    """
    So many messages of one long piece of work.

    All calls are answered: where the last step does not fit, replies without calls make up the number.
    """
    messages = [ChatMessage.from_system(system_prompt(seed)), ChatMessage.from_user(first_question(seed))]
    for step in steps(seed):
        made = step.messages()
        if len(messages) + len(made) > n_messages:
            break
        messages += made
    while len(messages) < n_messages:
        messages.append(ChatMessage.from_assistant("Nothing else is needed for this part."))
    return messages[:n_messages]


def message_text(message: ChatMessage) -> str:
    """What a message holds as text: its texts, calls with their arguments as JSON, and results."""
    parts = [*message.texts]
    parts += [call.tool_name + json.dumps(call.arguments, ensure_ascii=False) for call in message.tool_calls]
    parts += [str(result.result) for result in message.tool_call_results]
    return "\n".join(parts)


# --- The same steps, played by a real Agent -------------------------------------------------------------------------


@cache
def script(n_steps: int, seed: int = 0) -> tuple[Step, ...]:
    return tuple(islice(steps(seed), n_steps))


@component
class ScriptedModel:
    """
    Replies with the steps of a script and then ends the run.

    Its tokens are four characters each. What it takes to add them up is no part of an Agent's time, so it is kept apart
    in `seconds`. For the same reason this is no `MockChatGenerator`: that one counts all words of the conversation
    at every call, which takes three quarters of a run of 1,000 steps and would make any hook look cheap.
    """

    def __init__(self, n_steps: int, *, report_usage: bool, seed: int = 0) -> None:
        self.script = script(n_steps, seed)
        self.report_usage = report_usage
        self.seconds = 0.0
        self._calls = 0
        self._tokens: dict[int, int] = {}
        self._seen: list[ChatMessage] = []  # held, so that no id is given away twice

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, list[ChatMessage]]:
        step = self.script[self._calls] if self._calls < len(self.script) else None
        self._calls += 1
        text, calls = (step.text, list(step.calls)) if step else ("That was all there is to do.", [])
        reply = ChatMessage.from_assistant(text, tool_calls=calls)
        if self.report_usage:
            reply.meta["usage"] = self._usage(messages, tools, reply)
        return {"replies": [reply]}

    def _usage(self, messages: list[ChatMessage], tools: Any, reply: ChatMessage) -> dict[str, int]:
        begin = perf_counter()
        prompt = sum(map(self._cost, messages)) + 100 * len(tools or ())
        completion = len(message_text(reply)) // 4
        self.seconds += perf_counter() - begin
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _cost(self, message: ChatMessage) -> int:
        known = self._tokens.get(id(message))
        if known is None:
            self._seen.append(message)
            known = self._tokens[id(message)] = 4 + len(message_text(message)) // 4
        return known


class NextQuestion:
    """A hook that lets the user ask something new where the script says so; it is part of every Agent measured here."""

    allowed_hook_points = ("after_tool",)

    def __init__(self, n_steps: int, seed: int = 0) -> None:
        self.script = script(n_steps, seed)

    def run(self, state: State) -> None:
        question = self.script[state.data["step_count"]].question
        if question is not None:
            state.set("messages", [ChatMessage.from_user(question)])


class TimedHook:
    """Runs another hook, and keeps how long it took and how often it changed the conversation."""

    allowed_hook_points = ("before_llm",)

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.seconds = 0.0
        self.fired = 0

    def run(self, state: State) -> None:
        before = state.data["messages"]
        begin = perf_counter()
        self.hook.run(state)
        self.seconds += perf_counter() - begin
        self.fired += state.data["messages"] is not before


def fresh_state(messages: Sequence[ChatMessage], context_tokens: int = 0) -> State:
    """A state as an Agent without tools hands it to its hooks."""
    data = {"messages": list(messages), "context_tokens": context_tokens, "tools": [], "hook_context": {}}
    return State(schema=_agents_schema(), data={"step_count": 1, "token_usage": {}, "tool_call_counts": {}, **data})


@cache
def _agents_schema() -> dict[str, Any]:
    return Agent(chat_generator=ScriptedModel(0, report_usage=False)).resolved_state_schema


@dataclass(frozen=True)
class Played:
    """
    What a run took and left.

    :param seconds: The time of the whole run, without what the model took to add up its usage.
    :param messages: The conversation at its end.
    """

    seconds: float
    messages: list[ChatMessage]


@dataclass(frozen=True)
class ScriptedAgent:
    """A real Agent with its model, ready for one run."""

    agent: Agent
    model: ScriptedModel
    seed: int = 0

    def play(self) -> Played:
        question = ChatMessage.from_user(first_question(self.seed))
        begin = perf_counter()
        result = self.agent.run(messages=[question])
        return Played(perf_counter() - begin - self.model.seconds, result["messages"])


def scripted_agent(n_steps: int, hooks: Sequence[Any] = (), *, report_usage: bool, seed: int = 0) -> ScriptedAgent:
    """
    A real Agent that plays so many steps of the script with real tools, which return prepared texts.

    :param n_steps: How many steps with tool calls there are before the final reply.
    :param hooks: What runs before each model call.
    :param report_usage: Whether replies carry a true `meta["usage"]`, or none at all.
    :param seed: The seed of the script.
    """
    model = ScriptedModel(n_steps, report_usage=report_usage, seed=seed)
    points: dict[str, list[Any]] = {"after_tool": [NextQuestion(n_steps, seed)]}
    if hooks:
        points["before_llm"] = list(hooks)
    agent = Agent(
        chat_generator=model,
        tools=_tools(n_steps, seed),
        system_prompt=system_prompt(seed),
        hooks=points,
        max_agent_steps=n_steps + 1,
    )
    return ScriptedAgent(agent, model, seed)


def _tools(n_steps: int, seed: int) -> list[Tool]:
    results = {
        call.arguments["ticket"]: result
        for step in script(n_steps, seed)
        for call, result in zip(step.calls, step.results, strict=True)
    }

    def fetch(ticket: int, **_: Any) -> str:
        return results[ticket]

    properties = {name: {"type": "string"} for name in ("query", "path", "command")}
    properties |= {name: {"type": "integer"} for name in ("limit", "start", "timeout", "ticket")}
    schema = {"type": "object", "properties": properties, "required": ["ticket"]}
    return [Tool(name=name, description=text, parameters=schema, function=fetch) for name, text in _TOOLS.items()]

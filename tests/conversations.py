"""
Conversations for the tests: a short notation, a seeded generator of random ones, and the same as hypothesis strategies.

`S U A T` are system, user, assistant and tool messages, as users write them when they report a fault:
`[S("rules"), U("task"), A(calls=["a"]), T("a", "result")]`. The random conversations are plans first, lists of small
blocks, and become messages only when they are built; the generator and the strategies draw the same plans, so what
hypothesis shrinks is the plan, not a seed.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from haystack.components.agents.state import State
from haystack.dataclasses import (
    ChatMessage,
    ChatRole,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
)
from haystack.dataclasses.chat_message import ToolCallResult
from hypothesis import strategies as st

TOOL = "lookup"
MARK = "context_compaction"

CallNotation = ToolCall | str | None | tuple[str | None, str] | tuple[str | None, str, dict[str, Any]]


# --- Notation ---------------------------------------------------------------------------------------------------------


def system_message(text: str, *, name: str | None = None, meta: dict[str, Any] | None = None) -> ChatMessage:
    return ChatMessage.from_system(text, meta=meta, name=name)


def user_message(*parts: Any, name: str | None = None, meta: dict[str, Any] | None = None) -> ChatMessage:
    """A single string becomes a plain text message, anything else a message with several parts."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return ChatMessage.from_user(parts[0], meta=meta, name=name)
    return ChatMessage.from_user(content_parts=list(parts), meta=meta, name=name)


def assistant_message(
    text: str | None = None,
    calls: Iterable[CallNotation] = (),
    *,
    reasoning: str | ReasoningContent | None = None,
    name: str | None = None,
    meta: dict[str, Any] | None = None,
) -> ChatMessage:
    """Calls are `"a"` (the id alone), `("a", "tool")`, `("a", "tool", {arguments})`, or a whole `ToolCall`."""
    return ChatMessage.from_assistant(
        text, meta=meta, name=name, tool_calls=[tool_call(call) for call in calls], reasoning=reasoning
    )


def tool_message(
    call_id: str | None,
    result: Any = "",
    *,
    name: str = TOOL,
    error: bool = False,
    meta: dict[str, Any] | None = None,
    arguments: dict[str, Any] | None = None,
) -> ChatMessage:
    origin = ToolCall(tool_name=name, arguments=arguments or {}, id=call_id)
    return ChatMessage.from_tool(result, origin=origin, error=error, meta=meta)


S = system_message
U = user_message
A = assistant_message
T = tool_message


def tool_call(notation: CallNotation) -> ToolCall:
    if isinstance(notation, ToolCall):
        return notation
    if isinstance(notation, tuple):
        call_id, name, *rest = notation
        return ToolCall(tool_name=name, arguments=rest[0] if rest else {}, id=call_id)
    return ToolCall(tool_name=TOOL, arguments={}, id=notation)


def in_one_message(*messages: ChatMessage, meta: dict[str, Any] | None = None) -> ChatMessage:
    """The results of several tool messages in a single one."""
    results = [result for message in messages for result in message.tool_call_results]
    return ChatMessage(_role=ChatRole.TOOL, _content=results, _meta=meta or {})


def image(name: str = "shot") -> ImageContent:
    return ImageContent(base64_image="iVBORw0KGgo=", mime_type="image/png", meta={"name": name}, validation=False)


def file(name: str = "report.pdf") -> FileContent:
    return FileContent(base64_data="JVBERi0xLjc=", mime_type="application/pdf", filename=name, validation=False)


def note(text: str = "A record of earlier work.", *, strategy: str = "summarization") -> ChatMessage:
    """A user message that compaction wrote, known by its metadata."""
    return ChatMessage.from_user(text, meta={MARK: {"strategy": strategy}})


def prose(chars: int, seed: int = 0) -> str:
    """Exactly so many characters of words that occur once only, so that any piece of them can be found again."""
    words: list[str] = []
    length = 0
    while length < chars:
        words.append(f"word{seed}x{len(words)}")
        length += len(words[-1]) + 1
    return " ".join(words)[:chars]


def texts_of(result: ToolCallResult) -> str:
    """The text of a result, whether it is a string or a list of parts."""
    if isinstance(result.result, str):
        return result.result
    return "".join(part.text for part in result.result if isinstance(part, TextContent))


def step(call_id: str | None, chars: int = 2000, *, name: str = TOOL, **kwargs: Any) -> list[ChatMessage]:
    """One call and its result; the text of the result is different for each id."""
    seed = sum(ord(character) for character in call_id or "")
    return [A(calls=[(call_id, name, {"query": call_id})]), T(call_id, prose(chars, seed), name=name, **kwargs)]


def steps(*call_ids: str, chars: int = 2000) -> list[ChatMessage]:
    return [message for call_id in call_ids for message in step(call_id, chars)]


def as_loaded_from_openai(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same conversation after a round trip through OpenAI's format: no metadata, no tool names in results."""
    return [
        ChatMessage.from_openai_dict_format(message.to_openai_dict_format(require_tool_call_ids=False))
        for message in messages
    ]


def agent_state(messages: Sequence[ChatMessage]) -> State:
    """A state as the Agent hands it to a hook, for a generator that reports no usage."""
    types: dict[str, Any] = {
        "step_count": int,
        "token_usage": dict[str, Any],
        "tool_call_counts": dict[str, int],
        "context_tokens": int,
        "tools": list,
        "hook_context": dict[str, Any],
        "continue_run": bool,
    }
    data = {"messages": list(messages), "step_count": 1, "token_usage": {}, "tool_call_counts": {}}
    data |= {"context_tokens": 0, "tools": [], "hook_context": {}, "continue_run": False}
    return State(schema={key: {"type": kind} for key, kind in types.items()}, data=data)


# --- Shapes that users reported ---------------------------------------------------------------------------------------


def _non_adjacent() -> list[ChatMessage]:
    return [
        S("rules"),
        U("old " + prose(300, 1)),
        A("old " + prose(300, 2)),
        U("book"),
        A(calls=["a"]),
        U("yes"),
        T("a", prose(2000, 3)),
        A(calls=["b"]),
        T("b", prose(2000, 4)),
        A("done"),
    ]


def _two_turns() -> list[ChatMessage]:
    return [
        U("first"),
        A(calls=["a", "b"]),
        T("a", prose(1500, 1)),
        T("b", prose(1500, 2)),
        U("second"),
        A(calls=["c"]),
        T("c", prose(1500, 3)),
    ]


def _large_and_small_parallel() -> list[ChatMessage]:
    return [U("go"), A(calls=["a", "b"]), T("a", prose(5000, 1)), T("b", prose(200, 2)), *step("c", 100)]


def _repeated_ids() -> list[ChatMessage]:
    repeated = [m for n in range(3) for m in (A(calls=["call_0"]), T("call_0", prose(1500, n)))]
    return [U("go"), *repeated, A("done")]


def _missing_ids() -> list[ChatMessage]:
    nameless = [m for n in range(3) for m in (A(calls=[None]), T(None, prose(1500, n)))]
    return [U("go"), *nameless, A("done")]


def _one_id_twice() -> list[ChatMessage]:
    return [
        U("go"),
        A(calls=["call_0", "call_0"]),
        T("call_0", prose(1500, 1)),
        T("call_0", prose(1500, 2)),
        *step("z", 900),
    ]


def _pending() -> list[ChatMessage]:
    return [U("go"), *steps("a", "b"), U("and then"), A(calls=["c"])]


def _half_pending() -> list[ChatMessage]:
    return [U("go"), *steps("a", "b"), A(calls=["c", "d"]), T("c", prose(1500, 9))]


def _dead() -> list[ChatMessage]:
    return [U("go"), A(calls=["lost"]), *steps("a", "b"), U("again"), A(calls=["gone", "c"]), T("c", "short"), A("ok")]


def _reasoning() -> list[ChatMessage]:
    signed = ReasoningContent("because", extra={"signature": "c2lnbmVk"})
    return [
        U("go"),
        A(reasoning=signed),
        A(calls=["a"]),
        T("a", prose(1500, 1)),
        A("thinking aloud", calls=["b", "c"], reasoning=signed),
        T("b", prose(1500, 2)),
        A(reasoning="in between"),
        T("c", prose(1500, 3)),
        *step("d", 300),
        A(reasoning="last"),
    ]


def _two_results_in_a_message() -> list[ChatMessage]:
    return [
        U("go"),
        A(calls=["a", "b"]),
        in_one_message(T("a", prose(1500, 1)), T("b", prose(1500, 2))),
        *steps("c", "d"),
    ]


def _policy_in_the_middle() -> list[ChatMessage]:
    return [S("rules"), U("task"), *step("z"), S("policy"), *steps("a", "b")]


def _errors() -> list[ChatMessage]:
    return [
        U("go"),
        A(calls=["a"]),
        T("a", "Error: no such file\n" + prose(2000, 7), error=True),
        *steps("b", "c", "d", chars=300),
    ]


def _user_goes_on() -> list[ChatMessage]:
    return [S("rules"), U("TASK"), *steps("a", "b", "c", "d"), A("pausing"), U("continue"), *steps("e", "f")]


def _users_in_a_row() -> list[ChatMessage]:
    return [S("rules"), U("document " + prose(800)), U("question", name="ann"), *steps("a", "b", "c")]


def _six_tools() -> list[ChatMessage]:
    return [U("go"), *[m for n in range(6) for m in step(f"id{n}", name=f"tool{n}")], *step("z", 10)]


def _special_tokens() -> list[ChatMessage]:
    special = "<|endoftext|> <|im_start|> <|fim_prefix|> "
    call = ("a", TOOL, {"text": special})
    return [U(special), A(calls=[call]), T("a", special * 60, arguments={"text": special}), *step("b")]


def _surrogates() -> list[ChatMessage]:
    return [U("go"), A(calls=["a"]), T("a", "\ud83d" + prose(2000)), *step("b")]


def _write_file() -> list[ChatMessage]:
    def written(n: int) -> list[ChatMessage]:
        arguments = {"path": f"src/file{n}.py", "content": prose(10_000, n)}
        return [A(calls=[(f"w{n}", "write_file", arguments)]), T(f"w{n}", "ok", name="write_file", arguments=arguments)]

    return [U("write five files"), *[message for n in range(5) for message in written(n)]]


def _screenshots() -> list[ChatMessage]:
    shots = [
        message
        for n in range(6)
        for message in (
            A(calls=[(f"s{n}", "screenshot")]),
            T(f"s{n}", [TextContent(f"page {n} " + prose(900, n)), image(f"{n}")], name="screenshot"),
        )
    ]
    return [U("look", image("first"), file()), *shots]


def _orphans() -> list[ChatMessage]:
    return [T("x", prose(1500, 1)), U("go"), *steps("a", "b"), U("and"), T("y", prose(1500, 2)), *step("c")]


def _notes() -> list[ChatMessage]:
    return [
        S("rules"),
        note(prose(400)),
        U("hello"),
        A("hi"),
        note("second", strategy="sliding_window"),
        U("task"),
        *steps("a", "b"),
    ]


def _empty_results() -> list[ChatMessage]:
    return [U("go"), A(calls=["a", "b"]), T("a", ""), T("b", []), *steps("c", "d")]


def _metadata() -> list[ChatMessage]:
    kept = {"source": "cache", "tags": ["x"], "nested": {"k": 1}}
    return [
        U("go", meta={"thread": 1}),
        A("first", calls=["a"], meta={"usage": {"total_tokens": 3}}, name="bot"),
        T("a", prose(1500), meta=kept),
        A(calls=["b"]),
        T("b", prose(1500, 2), meta={"tool_result_offloaded": ["store://1"]}),
        *steps("c", "d"),
    ]


def _many_scripts() -> list[ChatMessage]:
    chinese = "会议记录显示项目按计划推进" * 120
    return [U("総括してください"), A(calls=["a"]), T("a", chinese), A(calls=["b"]), T("b", "Привет " * 300), *step("c")]


SHAPES: dict[str, Callable[[], list[ChatMessage]]] = {
    "nothing at all": list,
    "only instructions": lambda: [S("rules")],
    "only a task": lambda: [U(prose(3000))],
    "no user": lambda: [S("rules"), *steps("a", "b", "c")],
    "talk only": lambda: [U("hi"), A("hello"), U(prose(1000)), A(prose(1000, 1)), U("bye"), A("bye")],
    "plain steps": lambda: [S("rules"), U("task"), *steps("a", "b", "c", "d"), A("done")],
    "non-adjacent results (1)": _non_adjacent,
    "two turns (2)": _two_turns,
    "large and small parallel results (3)": _large_and_small_parallel,
    "repeated ids (4)": _repeated_ids,
    "missing ids (4)": _missing_ids,
    "one id twice in a message (4)": _one_id_twice,
    "pending call (5)": _pending,
    "half of the calls pending (5)": _half_pending,
    "dead calls": _dead,
    "reasoning (6)": _reasoning,
    "two results in a message (7)": _two_results_in_a_message,
    "policy in the middle (8)": _policy_in_the_middle,
    "errors (11)": _errors,
    "user goes on (12)": _user_goes_on,
    "users in a row (12)": _users_in_a_row,
    "six tools (13)": _six_tools,
    "special tokens (20)": _special_tokens,
    "lone surrogates (23)": _surrogates,
    "large arguments (36)": _write_file,
    "screenshots (37)": _screenshots,
    "loaded from OpenAI (35)": lambda: as_loaded_from_openai([S("rules"), U("task"), *steps("a", "b", "c")]),
    "orphans": _orphans,
    "notes of earlier passes": _notes,
    "empty results": _empty_results,
    "metadata": _metadata,
    "many scripts": _many_scripts,
}


# --- Random conversations: plans --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a tool returned. `form`: text, parts, image, file; `mark`: none, own, offloaded, pruned."""

    chars: int = 1500
    form: str = "text"
    error: bool = False
    mark: str = "none"


@dataclass(frozen=True)
class Call:
    tool: int = 0
    argument_chars: int = 10
    result: Result | None = Result()


@dataclass(frozen=True)
class Step:
    """
    One assistant message with calls, and its results.

    `ids`: fresh, numbered (the same numbers in every step), same (one id for all calls), none. `layout`: adjacent,
    merged (one message with all results), user, system (such a message before the results), thinking (reasoning between
    results), reversed, late (results after the next block).
    """

    calls: tuple[Call, ...] = (Call(),)
    ids: str = "fresh"
    layout: str = "adjacent"
    text: bool = False
    thinks: str = "no"


@dataclass(frozen=True)
class Words:
    """Anything that is said outside a step. `kind`: system, user, media, assistant, reasoning, note, orphan."""

    kind: str = "user"
    chars: int = 20


Block = Step | Words

MARKS: dict[str, dict[str, Any]] = {
    "none": {},
    "own": {"source": "cache", "nested": {"k": [1]}},
    "offloaded": {"tool_result_offloaded": ["store://1"]},
    "pruned": {MARK: {"strategy": "tool_result_pruning", "original_tokens": 900}},
}
NAMES = ("search", "read_file", "write_file")
SIZES = (0, 3, 40, 700, 1300, 4000)
LAYOUTS = ("adjacent", "merged", "user", "system", "thinking", "reversed", "late")
IDS = ("fresh", "numbered", "same", "none")
KINDS = ("system", "user", "media", "assistant", "reasoning", "note", "orphan")
PLAIN_KINDS = ("user", "media", "assistant", "reasoning")


def build(plan: Sequence[Block]) -> list[ChatMessage]:
    """The messages of a plan; every text in them is different from every other."""
    return _Builder().build(plan)


class _Builder:
    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.late: list[ChatMessage] = []
        self.seed = 0

    def build(self, plan: Sequence[Block]) -> list[ChatMessage]:
        for block in plan:
            waiting, self.late = self.late, []
            if isinstance(block, Step):
                self.add_step(block)
            else:
                self.messages.append(self.words(block))
            self.messages.extend(waiting)
        self.messages.extend(self.late)
        return self.messages

    def prose(self, chars: int) -> str:
        self.seed += 1
        return prose(chars, self.seed)

    def words(self, block: Words) -> ChatMessage:
        text = self.prose(block.chars)
        makers: dict[str, Callable[[], ChatMessage]] = {
            "system": lambda: S(text),
            "user": lambda: U(text),
            "media": lambda: U(text, image(), file()),
            "assistant": lambda: A(text),
            "reasoning": lambda: A(reasoning=ReasoningContent(text or "hm", extra={"signature": "c2ln"})),
            "note": lambda: note(text),
            "orphan": lambda: T(f"orphan_{self.seed}", text),
        }
        return makers[block.kind]()

    def add_step(self, block: Step) -> None:
        self.seed += 1
        calls = [self.call(block, number, call) for number, call in enumerate(block.calls)]
        if block.thinks == "before":
            self.messages.append(A(reasoning=ReasoningContent("first", extra={"signature": "c2ln"})))
        text = self.prose(60) if block.text else None
        self.messages.append(A(text, calls=calls, reasoning="aloud" if block.thinks == "inside" else None))
        pairs = zip(calls, block.calls, strict=True)
        results = [self.result(origin, call.result) for origin, call in pairs if call.result is not None]
        self.lay_out(block, results)

    def call(self, block: Step, number: int, call: Call) -> ToolCall:
        ids = {"fresh": f"call_{self.seed}_{number}", "numbered": f"call_{number}", "same": "call_0", "none": None}
        arguments = {"path": f"p{number}", "content": self.prose(call.argument_chars)}
        return ToolCall(tool_name=NAMES[call.tool % len(NAMES)], arguments=arguments, id=ids[block.ids])

    def result(self, origin: ToolCall, result: Result) -> ChatMessage:
        text = self.prose(result.chars)
        forms: dict[str, Any] = {
            "text": text,
            "parts": [TextContent(text[: len(text) // 2]), TextContent(text[len(text) // 2 :])],
            "image": [TextContent(text), image()],
            "file": [file(), TextContent(text)],
        }
        return ChatMessage.from_tool(
            forms[result.form], origin=origin, error=result.error, meta=dict(MARKS[result.mark]) or None
        )

    def lay_out(self, block: Step, results: list[ChatMessage]) -> None:
        distinct = block.ids in ("fresh", "numbered")
        if block.layout == "merged" and len(results) > 1:
            self.messages.append(in_one_message(*results, meta=dict(results[0].meta)))
        elif block.layout == "late" and block.ids == "fresh":
            self.late = results
        elif block.layout == "reversed" and distinct:
            self.messages.extend(reversed(results))
        elif block.layout == "thinking":
            self.messages.extend(
                [*results[:1], A(reasoning="meanwhile"), *results[1:]] if len(results) > 1 else results
            )
        else:
            between = {"user": [U(self.prose(12))], "system": [S(self.prose(12))]}
            self.messages.extend([*between.get(block.layout, []), *results])


# --- Random conversations: seeded -------------------------------------------------------------------------------------


def random_conversation(rng: random.Random, *, blocks: int = 10, well_behaved: bool = False) -> list[ChatMessage]:
    """
    A conversation with everything that occurs.

    :param rng: Where the choices come from; the same state gives the same conversation.
    :param blocks: At most so many steps and other messages.
    :param well_behaved: One result a message, right after its call, tool names present, every call answered.
    """
    plan = [_random_block(rng, well_behaved) for _ in range(rng.randint(1, blocks))]
    opening: list[Block] = [Words("system", rng.choice(SIZES))] if rng.random() < 0.7 else []
    if well_behaved or rng.random() < 0.8:
        opening.append(Words("user", rng.choice(SIZES)))
    return build([*opening, *plan])


def _random_block(rng: random.Random, well_behaved: bool) -> Block:
    if rng.random() < 0.35:
        return Words(rng.choice(PLAIN_KINDS if well_behaved else KINDS), rng.choice(SIZES))
    calls = tuple(_random_call(rng, well_behaved) for _ in range(rng.choice((1, 1, 2, 3))))
    return Step(
        calls,
        ids=rng.choice(IDS),
        layout="adjacent" if well_behaved else rng.choice(LAYOUTS),
        text=rng.random() < 0.5,
        thinks=rng.choice(("no", "no", "before", "inside")),
    )


def _random_call(rng: random.Random, well_behaved: bool) -> Call:
    result = Result(
        rng.choice(SIZES),
        rng.choice(("text", "text", "text", "parts", "image", "file")),
        error=rng.random() < 0.15,
        mark=rng.choice(("none", "none", "none", "own", "offloaded", "pruned")),
    )
    answered = well_behaved or rng.random() < 0.9
    return Call(rng.randrange(3), rng.choice((0, 10, 900)), result if answered else None)


# --- Random conversations: hypothesis ---------------------------------------------------------------------------------


@st.composite
def results(draw: st.DrawFn) -> Result:
    return Result(
        draw(st.sampled_from(SIZES)),
        draw(st.sampled_from(("text", "parts", "image", "file"))),
        error=draw(st.booleans()),
        mark=draw(st.sampled_from(tuple(MARKS))),
    )


@st.composite
def steps_of_an_agent(draw: st.DrawFn, *, well_behaved: bool = False, complete: bool = False) -> Step:
    answer = results() if well_behaved or complete else st.one_of(results(), st.none())
    call = st.builds(Call, st.integers(0, 2), st.sampled_from((0, 10, 900)), answer)
    return Step(
        tuple(draw(st.lists(call, min_size=1, max_size=3))),
        ids=draw(st.sampled_from(IDS)),
        layout="adjacent" if well_behaved else draw(st.sampled_from(LAYOUTS)),
        text=draw(st.booleans()),
        thinks=draw(st.sampled_from(("no", "before", "inside"))),
    )


@st.composite
def plans(draw: st.DrawFn, *, well_behaved: bool = False, complete: bool = False, max_blocks: int = 9) -> list[Block]:
    allowed = tuple(kind for kind in KINDS if kind != "orphan") if complete else KINDS
    kinds = st.sampled_from(PLAIN_KINDS if well_behaved else allowed)
    words = st.builds(Words, kinds, st.sampled_from(SIZES))
    # Twice the steps: they are where the trouble is.
    step_blocks = steps_of_an_agent(well_behaved=well_behaved, complete=complete)
    opening: list[Block] = [Words("user", 20)] if well_behaved else []
    return opening + draw(st.lists(st.one_of(step_blocks, words, step_blocks), max_size=max_blocks))


def conversations(
    *, well_behaved: bool = False, complete: bool = False, max_blocks: int = 9
) -> st.SearchStrategy[list[ChatMessage]]:
    """
    Conversations that shrink: fewer blocks first, then simpler ones.

    :param well_behaved: One result a message, right after its call, tool names present, every call answered.
    :param complete: Every call has its results and every result its call, in whatever order.
    :param max_blocks: At most so many steps and other messages.
    """
    return plans(well_behaved=well_behaved, complete=complete, max_blocks=max_blocks).map(build)


def shares() -> st.SearchStrategy[float]:
    """The share of a conversation's size that is aimed for, from nothing to a little more than all."""
    return st.integers(0, 21).map(lambda twentieths: twentieths / 20)

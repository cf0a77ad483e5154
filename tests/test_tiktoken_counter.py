"""The exact counter: right where there is a vocabulary, the estimate and one warning where there is none."""

import copy
import logging
import pickle
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from conversations import SHAPES, A, T, U, conversations, file, image, in_one_message, random_conversation
from haystack.dataclasses import ChatMessage, TextContent
from haystack.tools import Tool, Toolset
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import KINDS, sample
from vocabulary import tokenizer, tokens, use_offline

from haystack_compaction import EstimatedTokenCounter, TiktokenCounter
from haystack_compaction.errors import CompactionError, CounterError
from haystack_compaction.token_counters.estimated_counter import TOKENS_PER_MESSAGE
from haystack_compaction.transcripts import read_conversations

RECORDED = Path(__file__).parents[2] / "shared" / "transcripts"

# Versions before 0.13 take a time that grows with the square of one repeated character.
REPEATED = 1_000_000 if tuple(map(int, version("tiktoken").split(".")[:2])) >= (0, 13) else 200_000

# Known to tiktoken, and carried by none of the test's packages: it can only be fetched.
NOT_AT_HAND = "r50k_base"

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def tool(description: str = "Find something.", *, name: str = "search") -> Tool:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    return Tool(name=name, description=description, parameters=parameters, function=print)


@pytest.fixture
def counter() -> TiktokenCounter:
    """With a vocabulary, which tiktoken keeps once it has been loaded."""
    tokenizer()
    return TiktokenCounter()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the vocabularies that were loaded."""
    tokenizer()
    names: list[str] = []
    load = tiktoken.get_encoding
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: names.append(name) or load(name))
    return names


def cost(text: str, counter: TiktokenCounter) -> int:
    return counter.count([U(text)]) - TOKENS_PER_MESSAGE


class TestSums:
    def test_nothing_costs_nothing_and_loads_nothing(self, loaded: list[str]) -> None:
        assert TiktokenCounter().count([]) == 0
        assert TiktokenCounter().count([], []) == 0
        assert loaded == []

    @settings(deadline=None)
    @given(conversations(), conversations())
    def test_two_conversations_cost_the_sum_of_both(self, first: list[ChatMessage], second: list[ChatMessage]) -> None:
        tokenizer()
        counter = TiktokenCounter()
        assert counter.count(first + second) == counter.count(first) + counter.count(second)

    @settings(deadline=None)
    @given(conversations())
    def test_a_message_costs_the_same_by_itself_as_among_others(self, messages: list[ChatMessage]) -> None:
        tokenizer()
        counter = TiktokenCounter()
        assert counter.count(messages) == sum(counter.count([message]) for message in messages)

    @pytest.mark.parametrize("name", SHAPES)
    def test_the_sums_are_exact_for_every_shape(self, name: str, counter: TiktokenCounter) -> None:
        messages = SHAPES[name]()
        assert counter.count(messages) == sum(counter.count([message]) for message in messages)

    @settings(deadline=None)
    @given(ANY_TEXT)
    def test_any_text_is_counted(self, text: str) -> None:
        tokenizer()
        assert (cost(text, TiktokenCounter()) > 0) == bool(text)

    def test_it_says_that_single_messages_may_be_given(self, counter: TiktokenCounter) -> None:
        assert counter.additive is True


class TestExactness:
    @pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_text_costs_its_tokens(self, kind: str, encoding: str) -> None:
        expected = tokens(sample(kind), encoding)
        assert cost(sample(kind), TiktokenCounter(encoding)) == expected

    def test_a_vocabulary_is_taken_from_the_folder_that_the_environment_names(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        use_offline(monkeypatch, tmp_path)
        monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
        counter = TiktokenCounter(raise_on_failure=True)
        counter.warm_up()
        assert counter.count([U("How are you?")]) == TOKENS_PER_MESSAGE + 4

    @pytest.mark.parametrize("seed", range(6))
    def test_tool_heavy_conversations_are_within_one_percent_of_the_text_that_is_sent(
        self, seed: int, counter: TiktokenCounter
    ) -> None:
        messages = _tool_heavy(random.Random(seed))
        sent = sum(map(_sent_tokens, messages))
        assert counter.count(messages) == pytest.approx(sent, rel=0.01)

    @pytest.mark.parametrize("name", ["tau-bench.jsonl", "swe-agent.jsonl", "openhands.jsonl"])
    def test_recorded_runs_are_within_one_percent_of_what_is_sent_with_its_frames(
        self, name: str, counter: TiktokenCounter
    ) -> None:
        if not RECORDED.is_dir():
            pytest.skip(f"the recorded runs are not part of the project; they are looked for in {RECORDED}")
        for run in read_conversations(RECORDED / name):
            sent = sum(_sent_tokens(message) + TOKENS_PER_MESSAGE for message in run.messages)
            assert counter.count(run.messages) == pytest.approx(sent, rel=0.01)

    @pytest.mark.parametrize("kind", ["Chinese", "Korean", "Arabic", "Russian"])
    def test_arguments_are_counted_as_they_travel_not_escaped(self, kind: str, counter: TiktokenCounter) -> None:
        call = A(calls=[("a", "write_file", {"content": sample(kind)})])
        assert counter.count([call]) == pytest.approx(counter.count([U(sample(kind))]), rel=0.05)

    def test_tools_cost_their_schemas(self, counter: TiktokenCounter) -> None:
        tools = [tool(sample("English")), tool(sample("JSON"), name="stop")]
        added = counter.count([U("hi")], tools) - counter.count([U("hi")])
        assert added == counter.count([], tools) == counter.count([], Toolset(tools))
        assert added == pytest.approx(sum(tokens(str(entry.tool_spec)) for entry in tools), rel=0.05)

    def test_images_and_files_cost_what_was_said(self) -> None:
        tokenizer()
        counter = TiktokenCounter(tokens_per_image=700, tokens_per_file=90)
        look = counter.count([U("look")])
        assert counter.count([U("look", image(), image(), file())]) == look + 2 * 700 + 90
        nested = T("a", [TextContent("look"), image(), file()])
        assert counter.count([nested]) == look + 700 + 90
        assert counter.count([in_one_message(nested, T("b", [image()]))]) == pytest.approx(look + 1490, abs=1)

    def test_reasoning_and_ids_cost_nothing(self, counter: TiktokenCounter) -> None:
        bare = A("so", calls=[(None, "search")])
        full = A("so", calls=[("id" * 50, "search")], reasoning="because " * 100)
        assert counter.count([bare]) == counter.count([full])

    def test_eight_threads_get_the_same_number_from_one_counter(self) -> None:
        tokenizer()
        counter = TiktokenCounter()
        messages = random_conversation(random.Random(3), blocks=30)
        expected = TiktokenCounter().count(messages)
        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(lambda _: counter.count(messages), range(32))) == {expected}


def _tool_heavy(rng: random.Random) -> list[ChatMessage]:
    """Steps with results of some thousand characters of every kind, and arguments in every script."""
    messages = [U(sample("English", chars=800))]
    for number in range(20):
        kinds = rng.sample(list(KINDS), 2)
        arguments = {"path": f"src/{number}.txt", "content": sample(kinds[0], number, chars=rng.randint(50, 2000))}
        messages.append(A("Let me look." if number % 2 else None, calls=[(f"call_{number}", "write_file", arguments)]))
        messages.append(T(f"call_{number}", sample(kinds[1], number, chars=rng.randint(3000, 8000))))
    return messages


def _sent_tokens(message: ChatMessage) -> int:
    """The tokens of all that travels as text, each field by itself, read from the request that Haystack makes."""
    if not (message.text or message.tool_calls or message.tool_call_results):
        return 0
    sent = message.to_openai_dict_format(require_tool_call_ids=False)
    functions = [call["function"] for call in sent.get("tool_calls") or ()]
    fields = [sent.get("content") or "", *(text for f in functions for text in (f["name"], f["arguments"]))]
    return sum(map(tokens, fields))


class TestWhatBreaksOthers:
    @pytest.mark.parametrize("special", ["<|endoftext|>", "<|endofprompt|>", "<|im_start|>", "<|fim_prefix|>"])
    def test_fault_20_special_tokens_are_text_in_results_arguments_and_schemas(
        self, special: str, counter: TiktokenCounter
    ) -> None:
        # As itself it would be one token.
        as_text = tokens(special)
        assert as_text > 1
        assert counter.count([T("a", special)]) == TOKENS_PER_MESSAGE + as_text
        plain, marked = A(calls=[("a", "f", {"x": ""})]), A(calls=[("a", "f", {"x": special})])
        assert counter.count([marked]) >= counter.count([plain]) + as_text - 2
        assert counter.count([], [tool(special)]) >= counter.count([], [tool("")]) + as_text - 2

    @pytest.mark.parametrize("char", ["a", "^", " ", "-", "é", "\n"])
    def test_fault_21_a_million_times_one_character(self, char: str, counter: TiktokenCounter) -> None:
        assert cost(char * REPEATED, counter) > REPEATED / 1000

    def test_fault_21_a_megabyte_without_a_space(self, counter: TiktokenCounter) -> None:
        text = "".join(sample("base64", seed) for seed in range(250))
        assert cost(text, counter) == pytest.approx(250 * cost(text[:4000], counter), rel=0.02)

    def test_fault_21_a_tokenizer_that_panics_is_answered_with_the_estimate(
        self, counter: TiktokenCounter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tiktoken.Encoding, "encode_ordinary", _panic)
        assert counter.count([U(sample("English"))]) == EstimatedTokenCounter().count([U(sample("English"))])

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_who_wants_to_stop_the_program_is_not_stopped(
        self, error: type[BaseException], counter: TiktokenCounter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tiktoken.Encoding, "encode_ordinary", lambda *_: (_ for _ in ()).throw(error()))
        with pytest.raises(error):
            counter.count([U("text")])

    @pytest.mark.parametrize("text", ["\ud83d", "\ude00\ud83d", "before \udc80 after"])
    def test_fault_23_lone_surrogates_are_counted(self, text: str, counter: TiktokenCounter) -> None:
        assert cost(text, counter) > 0
        assert counter.count([T("a", text)]) > TOKENS_PER_MESSAGE
        assert counter.count([A(calls=[("a", "f", {"x": text})])]) > TOKENS_PER_MESSAGE
        assert counter.count([], [tool(text)]) > 0

    def test_fault_23_a_lone_surrogate_hardly_changes_a_long_text(self, counter: TiktokenCounter) -> None:
        assert cost("\ud83d" + sample("English"), counter) == pytest.approx(cost(sample("English"), counter), abs=4)

    @pytest.mark.parametrize("chars", [32_768, 99_999, 100_000, 100_001, 250_000])
    @pytest.mark.parametrize("kind", ["English", "code", "Chinese", "digits", "logs"])
    def test_long_texts_cost_what_they_cost_in_one_piece(self, kind: str, chars: int, counter: TiktokenCounter) -> None:
        text = sample(kind, chars=chars)
        assert cost(text, counter) == pytest.approx(tokens(text), rel=0.001)


class PanicException(BaseException):
    """As the tokenizer raises it: no `Exception`, so that nothing common catches it."""


def _panic(*_: Any) -> list[int]:
    raise PanicException("stack overflow")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a proxy that nobody listens on: whatever is fetched fails at once."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    _send_everything_to(address, monkeypatch, tmp_path)


@pytest.fixture
def hanging_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache, and a proxy that takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []
        listener = threading.Thread(target=_hold, args=(server, held), daemon=True)
        listener.start()
        _send_everything_to(f"http://127.0.0.1:{server.getsockname()[1]}", monkeypatch, tmp_path)
        yield
        server.shutdown(socket.SHUT_RDWR)
        listener.join(5)
        for connection in held:
            connection.close()
    # tiktoken loads one vocabulary at a time, so what still hangs would hold up the tests that follow.
    for thread in threading.enumerate():
        if thread.name == "haystack-compaction-vocabulary":
            thread.join(5)


def _hold(server: socket.socket, held: list[socket.socket]) -> None:
    try:
        while True:
            held.append(server.accept()[0])
    except OSError:
        return


def _send_everything_to(address: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, address)
        monkeypatch.setenv(name.lower(), address)
    for name in ("NO_PROXY", "no_proxy", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(cache))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class TestWithoutAVocabulary:
    @pytest.mark.usefixtures("no_network")
    def test_fault_22_there_is_one_warning_and_the_estimate(self, caplog: pytest.LogCaptureFixture) -> None:
        counter = TiktokenCounter(NOT_AT_HAND, tokens_per_image=7)
        estimate = EstimatedTokenCounter(tokens_per_image=7)
        messages = [U("look", image()), U(sample("Chinese")), T("a", sample("JSON"))]
        for _ in range(3):
            counter.warm_up()
            assert counter.count(messages) == estimate.count(messages)
        assert counter.count(messages, [tool()]) == estimate.count(messages, [tool()])
        (warning,) = warnings_in(caplog)
        assert NOT_AT_HAND in warning
        assert "TIKTOKEN_CACHE_DIR" in warning
        assert "estimate" in warning

    @pytest.mark.usefixtures("no_network")
    def test_fault_22_the_sums_stay_exact(self) -> None:
        counter = TiktokenCounter(NOT_AT_HAND)
        messages = random_conversation(random.Random(5), blocks=30)
        assert counter.count(messages) == sum(counter.count([message]) for message in messages)

    @pytest.mark.usefixtures("no_network")
    def test_fault_22_it_is_an_error_at_warm_up_by_choice(self, caplog: pytest.LogCaptureFixture) -> None:
        counter = TiktokenCounter(NOT_AT_HAND, raise_on_failure=True)
        for ask in (counter.warm_up, counter.warm_up, lambda: counter.count([U("hi")])):
            with pytest.raises(CounterError, match=NOT_AT_HAND) as caught:
                ask()
            assert isinstance(caught.value, CompactionError)
            assert "TIKTOKEN_CACHE_DIR" in str(caught.value)
        assert warnings_in(caplog) == []

    @pytest.mark.usefixtures("hanging_network")
    def test_fault_22_a_fetch_that_hangs_is_left_after_the_time_out(self, caplog: pytest.LogCaptureFixture) -> None:
        counter = TiktokenCounter(NOT_AT_HAND, load_timeout=0.3)
        start = time.monotonic()
        assert counter.count([U("hi")]) == EstimatedTokenCounter().count([U("hi")])
        assert 0.3 <= time.monotonic() - start < 3
        assert len(warnings_in(caplog)) == 1
        assert "load_timeout" in warnings_in(caplog)[0]

    @pytest.mark.usefixtures("hanging_network")
    def test_fault_22_threads_that_ask_together_wait_once_and_warn_once(self, caplog: pytest.LogCaptureFixture) -> None:
        counter = TiktokenCounter(NOT_AT_HAND, load_timeout=0.3)
        start = time.monotonic()
        with ThreadPoolExecutor(8) as threads:
            numbers = set(threads.map(lambda _: counter.count([U("hi")]), range(8)))
        assert numbers == {EstimatedTokenCounter().count([U("hi")])}
        assert time.monotonic() - start < 3
        assert len(warnings_in(caplog)) == 1

    def test_an_encoding_that_nobody_knows_is_answered_with_those_that_exist(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert TiktokenCounter("o300k_base").count([U("hi")]) == EstimatedTokenCounter().count([U("hi")])
        assert "o300k_base" in warnings_in(caplog)[0]
        assert "o200k_base" in warnings_in(caplog)[0]
        with pytest.raises(CounterError, match="`encoding`"):
            TiktokenCounter("o300k_base", raise_on_failure=True).warm_up()

    def test_a_loader_that_panics_is_a_failure_like_any_other(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(tiktoken, "get_encoding", _panic)
        assert TiktokenCounter().count([U("hi")]) == EstimatedTokenCounter().count([U("hi")])
        assert "stack overflow" in warnings_in(caplog)[0]


class TestWarmUp:
    def test_making_a_counter_loads_nothing(self, loaded: list[str]) -> None:
        copy.deepcopy(TiktokenCounter()).to_dict()
        assert loaded == []

    def test_it_loads_once(self, loaded: list[str]) -> None:
        counter = TiktokenCounter()
        counter.warm_up()
        assert loaded == ["o200k_base"]
        counter.warm_up()
        counter.count([U("How are you?")])
        assert loaded == ["o200k_base"]

    def test_threads_that_come_together_load_once(self, loaded: list[str]) -> None:
        counter = TiktokenCounter()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: counter.warm_up(), range(8)))
        assert loaded == ["o200k_base"]


class TestSettings:
    def test_to_dict_is_the_whole_counter(self) -> None:
        counter = TiktokenCounter("cl100k_base", 7, 9, raise_on_failure=True, load_timeout=2.5)
        assert counter.to_dict() == {
            "type": "haystack_compaction.token_counters.tiktoken_counter.TiktokenCounter",
            "init_parameters": {
                "encoding": "cl100k_base",
                "tokens_per_image": 7,
                "tokens_per_file": 9,
                "raise_on_failure": True,
                "load_timeout": 2.5,
            },
        }

    @pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
    def test_it_comes_back_equal(self, warm: bool) -> None:
        tokenizer("cl100k_base")
        counter = TiktokenCounter("cl100k_base", tokens_per_image=0, load_timeout=3)
        if warm:
            counter.warm_up()
        for again in (
            TiktokenCounter.from_dict(counter.to_dict()),
            copy.copy(counter),
            copy.deepcopy(counter),
            pickle.loads(pickle.dumps(counter)),  # noqa: S301 - our own
        ):
            assert again == counter
            assert hash(again) == hash(counter)
            assert again.count([U(sample("code"))]) == counter.count([U(sample("code"))])

    def test_it_is_equal_to_one_with_the_same_settings_only(self) -> None:
        counter = TiktokenCounter()
        assert counter == TiktokenCounter("o200k_base")
        others: list[dict[str, Any]] = [
            {"encoding": "cl100k_base"},
            {"tokens_per_image": 1},
            {"tokens_per_file": 1},
            {"raise_on_failure": True},
            {"load_timeout": 1},
        ]
        assert all(counter != TiktokenCounter(**other) for other in others)
        assert counter != EstimatedTokenCounter()
        assert len({counter, TiktokenCounter(), TiktokenCounter(tokens_per_file=1)}) == 2

    def test_its_repr_is_how_it_was_made(self) -> None:
        assert repr(TiktokenCounter("cl100k_base", 7)) == (
            "TiktokenCounter(encoding='cl100k_base', tokens_per_image=7, tokens_per_file=1000, "
            "raise_on_failure=False, load_timeout=10.0)"
        )

    @pytest.mark.parametrize(
        ("name", "value", "error"),
        [
            ("encoding", None, TypeError),
            ("encoding", 200, TypeError),
            ("tokens_per_image", -1, ValueError),
            ("tokens_per_image", 1.5, TypeError),
            ("tokens_per_file", True, TypeError),
            ("tokens_per_file", "9", TypeError),
            ("raise_on_failure", 1, TypeError),
            ("load_timeout", 0, ValueError),
            ("load_timeout", -1.0, ValueError),
            ("load_timeout", float("nan"), ValueError),
            ("load_timeout", "10", TypeError),
            ("load_timeout", True, TypeError),
        ],
    )
    def test_a_wrong_argument_is_named(self, name: str, value: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match=f"`{name}`"):
            TiktokenCounter(**{name: value})

    @pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400], ids=["infinite", "huge", "beyond floats"])
    def test_one_may_wait_without_end(self, timeout: float) -> None:
        tokenizer()
        assert TiktokenCounter(load_timeout=timeout).count([U("How are you?")]) == TOKENS_PER_MESSAGE + 4

    @pytest.mark.parametrize("wrong", ["text", U("alone"), [U("hi"), "text"], ["text"], [{"role": "user"}], None, 5])
    def test_what_is_no_list_of_messages_is_named(self, wrong: Any, counter: TiktokenCounter) -> None:
        with pytest.raises(TypeError, match="`messages`"):
            counter.count(wrong)

"""The estimate: sums that are exact, an error that is known for each kind of text, and nothing that breaks it."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversations import SHAPES, A, S, T, U, conversations, file, image, in_one_message, prose
from haystack.dataclasses import ChatMessage, TextContent
from haystack.tools import Tool, Toolset
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import KINDS, sample
from vocabulary import tokenizer, tokens

from haystack_compaction import EstimatedTokenCounter, TiktokenCounter
from haystack_compaction.render import measured_text
from haystack_compaction.token_counters.estimated_counter import TOKENS_PER_MESSAGE, estimated_tokens
from haystack_compaction.transcripts import read_conversations

COUNTER = EstimatedTokenCounter()

RECORDED = Path(__file__).parents[2] / "shared" / "transcripts"

# Every character there is, halves of surrogate pairs among them.
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def estimate(text: str) -> int:
    """What the text itself costs, as a user's message."""
    return COUNTER.count([U(text)]) - TOKENS_PER_MESSAGE


def off_by(text: str) -> float:
    """The error, as a share of what the text really costs."""
    return estimate(text) / tokens(text) - 1


def tool(description: str = "Find something.", *, name: str = "search") -> Tool:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    return Tool(name=name, description=description, parameters=parameters, function=print)


class TestSums:
    def test_nothing_costs_nothing(self) -> None:
        assert COUNTER.count([]) == 0
        assert COUNTER.count([], []) == COUNTER.count([], None) == 0
        assert COUNTER.count_each([]) == []

    @settings(deadline=None)
    @given(conversations(), conversations())
    def test_two_conversations_cost_the_sum_of_both(self, first: list[ChatMessage], second: list[ChatMessage]) -> None:
        assert COUNTER.count(first + second) == COUNTER.count(first) + COUNTER.count(second)

    @settings(deadline=None)
    @given(conversations())
    def test_a_message_costs_the_same_by_itself_as_among_others(self, messages: list[ChatMessage]) -> None:
        assert COUNTER.count_each(messages) == [COUNTER.count([message]) for message in messages]
        assert sum(COUNTER.count_each(messages)) == COUNTER.count(messages)

    @settings(deadline=None)
    @given(st.lists(ANY_TEXT, max_size=12))
    def test_a_text_costs_the_same_by_itself_as_among_others(self, texts: list[str]) -> None:
        assert estimated_tokens(texts) == [estimated_tokens([text])[0] for text in texts]

    @pytest.mark.parametrize("name", SHAPES)
    def test_the_sums_are_exact_for_every_shape(self, name: str) -> None:
        messages = SHAPES[name]()
        assert COUNTER.count(messages) == sum(COUNTER.count([message]) for message in messages)
        assert COUNTER.count_each(messages) == [COUNTER.count([message]) for message in messages]

    def test_long_texts_cost_the_same_among_others_as_by_themselves(self) -> None:
        sizes = (0, 1, 255, 256, 1023, 1024, 1025, 4095, 4096, 4097, 32_767, 32_768, 32_769, 100_001)
        messages = [U(sample(kind, size, chars=size)) for size in sizes for kind in ("English", "Chinese", "logs")]
        assert COUNTER.count_each(messages) == [COUNTER.count([message]) for message in messages]

    @settings(deadline=None)
    @given(conversations(), st.randoms(use_true_random=False))
    def test_the_order_makes_no_difference(self, messages: list[ChatMessage], rng: random.Random) -> None:
        shuffled = rng.sample(messages, len(messages))
        assert COUNTER.count(shuffled) == COUNTER.count(messages)

    @settings(deadline=None)
    @given(conversations())
    def test_equal_messages_cost_the_same_and_none_is_changed(self, messages: list[ChatMessage]) -> None:
        copies = copy.deepcopy(messages)
        assert COUNTER.count(messages) == COUNTER.count(copies)
        assert messages == copies

    @settings(deadline=None)
    @given(ANY_TEXT.filter(bool))
    def test_no_text_costs_nothing(self, text: str) -> None:
        assert estimate(text) >= 1

    @pytest.mark.parametrize("message", [U(""), A(), T("a", ""), T("a", []), A(reasoning="hm")], ids=lambda m: m.role)
    def test_a_message_without_text_costs_its_frame(self, message: ChatMessage) -> None:
        assert COUNTER.count([message]) == TOKENS_PER_MESSAGE

    @pytest.mark.parametrize("make", [S, U, A, lambda text: T("a", text)], ids=["system", "user", "assistant", "tool"])
    def test_a_text_costs_the_same_in_every_role(self, make: Callable[[str], ChatMessage]) -> None:
        assert COUNTER.count([make(sample("English"))]) == COUNTER.count([U(sample("English"))])

    def test_it_says_that_single_messages_may_be_given(self) -> None:
        assert COUNTER.additive is True


class TestError:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_of_text_is_within_a_quarter(self, kind: str, seed: int) -> None:
        assert abs(off_by(sample(kind, seed))) < 0.25

    @pytest.mark.parametrize("chars", [1000, 1100, 5000, 40_000, 150_000])
    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_is_within_a_quarter_at_every_length(self, kind: str, chars: int) -> None:
        assert abs(off_by(sample(kind, chars, chars=chars))) < 0.25

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_long_text_costs_about_what_its_pieces_cost(self, kind: str) -> None:
        text = sample(kind, chars=60_000)
        pieces = sum(estimate(text[start : start + 600]) for start in range(0, len(text), 600))
        assert estimate(text) == pytest.approx(pieces, rel=0.05)

    def test_a_text_that_alternates_is_not_taken_for_one_that_repeats(self) -> None:
        # Of a long text some pairs are looked up only; every other one would be the same pair here.
        for chars in (2000, 8000, 60_000):
            alternating = estimate("a " * (chars // 2))
            assert alternating == pytest.approx(sum([estimate("a " * 100)] * (chars // 200)), rel=0.05)

    def test_fault_24_chinese_is_within_a_factor_of_one_and_a_half(self) -> None:
        text = sample("Chinese", chars=1400)
        assert 1 / 1.5 < estimate(text) / tokens(text) < 1.5

    def test_fault_24_base64_is_within_a_factor_of_one_and_a_half(self) -> None:
        text = "".join(sample("base64", seed) for seed in range(10))
        assert len(text) == 40_000
        assert 1 / 1.5 < estimate(text) / tokens(text) < 1.5

    def test_a_mixture_costs_about_the_sum_of_its_kinds(self) -> None:
        text = "\n".join(sample(kind, chars=2000) for kind in KINDS)
        assert abs(off_by(text)) < 0.1

    @pytest.mark.parametrize("name", ["tau-bench.jsonl", "swe-agent.jsonl", "openhands.jsonl"])
    def test_recorded_runs_are_within_a_quarter(self, name: str) -> None:
        if not RECORDED.is_dir():
            pytest.skip(f"the recorded runs are not part of the project; they are looked for in {RECORDED}")
        tokenizer()
        exact = TiktokenCounter()
        for run in read_conversations(RECORDED / name):
            assert COUNTER.count(run.messages) == pytest.approx(exact.count(run.messages), rel=0.25)


class TestWhatBreaksOthers:
    @pytest.mark.parametrize("char", ["a", "^", " ", "-", "é", "\n"])
    def test_fault_21_a_million_times_one_character(self, char: str) -> None:
        assert estimate(char * 1_000_000) > 1000

    def test_fault_21_a_megabyte_without_a_space(self) -> None:
        text = "".join(sample("base64", seed) for seed in range(250))
        assert estimate(text) == pytest.approx(250 * estimate(text[:4000]), rel=0.1)

    @pytest.mark.parametrize("special", ["<|endoftext|>", "<|im_start|>", "<|fim_prefix|>"])
    def test_fault_20_special_tokens_are_text_in_results_arguments_and_schemas(self, special: str) -> None:
        # As itself it would be one token.
        assert COUNTER.count([T("a", special)]) > TOKENS_PER_MESSAGE + 1
        plain, marked = A(calls=[("a", "f", {"x": ""})]), A(calls=[("a", "f", {"x": special})])
        assert COUNTER.count([marked]) > COUNTER.count([plain]) + 1
        assert COUNTER.count([], [tool(special)]) > COUNTER.count([], [tool("")]) + 1

    @pytest.mark.parametrize("text", ["\ud83d", "\ude00\ud83d", "before \udc80 after", "\ud83d" * 40_000])
    def test_fault_23_lone_surrogates_are_counted(self, text: str) -> None:
        call = A(calls=[("a", "f", {"x": text})])
        assert COUNTER.count([T("a", text)]) > TOKENS_PER_MESSAGE
        assert COUNTER.count([call]) > TOKENS_PER_MESSAGE
        assert COUNTER.count([], [tool(text)]) > 0

    def test_fault_23_half_of_a_pair_does_not_change_the_rest(self) -> None:
        assert estimate("\ud83d" + sample("English")) == pytest.approx(estimate("é" + sample("English")), rel=0.2)

    def test_control_characters_are_counted(self) -> None:
        assert estimate("\0\x01\x7f\ufeff\uffff\U0010ffff") > 0

    @pytest.mark.parametrize("size", [32_767, 32_768, 32_769, 65_536, 100_001])
    @pytest.mark.parametrize("text", ["word ", "词语", "😀", "\ud83d"])
    def test_texts_over_the_size_of_a_piece_grow_evenly(self, text: str, size: int) -> None:
        long = (text * size)[:size]
        short = (text * size)[:600]
        assert estimate(long) == pytest.approx(estimate(short) * size / 600, rel=0.05)


class TestWhatIsCounted:
    def test_images_and_files_cost_what_was_said(self) -> None:
        counter = EstimatedTokenCounter(tokens_per_image=700, tokens_per_file=90)
        words = counter.count([U("look")])
        assert counter.count([U("look", image(), image(), file())]) == words + 2 * 700 + 90

    def test_images_and_files_in_results_cost_the_same(self) -> None:
        counter = EstimatedTokenCounter(tokens_per_image=700, tokens_per_file=90)
        message = T("a", [TextContent("look"), image(), file()])
        assert counter.count([message]) == counter.count([U("look", image(), file())])
        assert counter.count_each([message, U("look")]) == [counter.count([message]), counter.count([U("look")])]
        merged = in_one_message(message, T("b", [image()]))
        assert counter.count([merged]) == counter.count([message]) + 700

    def test_they_may_be_free(self) -> None:
        free = EstimatedTokenCounter(tokens_per_image=0, tokens_per_file=0)
        assert free.count([U(image(), file())]) == TOKENS_PER_MESSAGE

    def test_the_default_rates_are_haystacks(self) -> None:
        assert COUNTER.count([U(image(), file())]) == TOKENS_PER_MESSAGE + 85 + 1000

    def test_calls_cost_about_what_their_json_costs(self) -> None:
        arguments = {"path": "src/main.py", "content": prose(3000), "options": {"force": True, "mode": None}}
        call = A(calls=[("a", "write_file", arguments)])
        assert COUNTER.count([call]) == pytest.approx(COUNTER.count([U(measured_text(call))]), rel=0.05)

    @pytest.mark.parametrize("kind", ["Chinese", "Korean", "Arabic", "Russian"])
    def test_arguments_in_any_script_are_counted_as_they_travel(self, kind: str) -> None:
        text = sample(kind)
        call = A(calls=[("a", "write_file", {"content": text})])
        assert COUNTER.count([call]) == pytest.approx(COUNTER.count([U(text)]), rel=0.05)

    def test_arguments_that_are_nested_without_end_are_counted(self) -> None:
        deep: dict[str, Any] = {}
        for _ in range(100_000):
            deep = {"in": deep}
        assert COUNTER.count([A(calls=[("a", "f", deep)])]) > TOKENS_PER_MESSAGE

    def test_tools_cost_about_what_their_schemas_cost(self) -> None:
        tools = [tool(sample("English")), tool(sample("JSON"), name="stop")]
        added = COUNTER.count([U("hi")], tools) - COUNTER.count([U("hi")])
        assert added == COUNTER.count([], tools) == COUNTER.count([], Toolset(tools))
        # Of so long a text a part is looked at, and these two kinds differ.
        assert added == pytest.approx(estimate(sample("English")) + estimate(sample("JSON")), rel=0.15)

    def test_reasoning_and_ids_cost_nothing(self) -> None:
        bare = A("so", calls=[(None, "search")])
        full = A("so", calls=[("id" * 50, "search")], reasoning="because " * 100)
        assert COUNTER.count([bare]) == COUNTER.count([full])


class TestSettings:
    def test_to_dict_is_the_whole_counter(self) -> None:
        assert EstimatedTokenCounter(tokens_per_image=7, tokens_per_file=9).to_dict() == {
            "type": "haystack_compaction.token_counters.estimated_counter.EstimatedTokenCounter",
            "init_parameters": {"tokens_per_image": 7, "tokens_per_file": 9},
        }

    @pytest.mark.parametrize("counter", [COUNTER, EstimatedTokenCounter(tokens_per_image=0, tokens_per_file=9)])
    def test_it_comes_back_equal(self, counter: EstimatedTokenCounter) -> None:
        again = EstimatedTokenCounter.from_dict(counter.to_dict())
        assert again == counter
        assert hash(again) == hash(counter)
        assert copy.deepcopy(counter) == counter

    def test_it_is_equal_to_one_with_the_same_settings_only(self) -> None:
        counter = EstimatedTokenCounter()
        assert counter == EstimatedTokenCounter()
        assert counter != EstimatedTokenCounter(tokens_per_image=1)
        assert counter != EstimatedTokenCounter(tokens_per_file=1)
        assert counter != TiktokenCounter()
        assert counter != "EstimatedTokenCounter()"
        assert len({counter, EstimatedTokenCounter(), EstimatedTokenCounter(tokens_per_file=1)}) == 2

    def test_its_repr_is_how_it_was_made(self) -> None:
        assert repr(EstimatedTokenCounter(tokens_per_image=7)) == (
            "EstimatedTokenCounter(tokens_per_image=7, tokens_per_file=1000)"
        )

    @pytest.mark.parametrize("name", ["tokens_per_image", "tokens_per_file"])
    @pytest.mark.parametrize(
        ("value", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("9", TypeError)]
    )
    def test_a_wrong_number_is_named(self, name: str, value: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match=f"`{name}`"):
            EstimatedTokenCounter(**{name: value})

    @pytest.mark.parametrize("wrong", ["text", U("alone"), [U("hi"), "text"], ["text"], [{"role": "user"}], None, 5])
    def test_what_is_no_list_of_messages_is_named(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match="`messages`"):
            COUNTER.count(wrong)

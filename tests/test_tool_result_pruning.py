"""Pruning: which old tool results become a placeholder, and what is left of them."""

import dataclasses
import json
import random
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from conversations import (
    MARK,
    SHAPES,
    TOOL,
    A,
    S,
    T,
    U,
    as_loaded_from_openai,
    file,
    image,
    in_one_message,
    prose,
    random_conversation,
    step,
    steps,
    texts_of,
)
from haystack.dataclasses import ChatMessage, TextContent
from haystack.token_counters import ApproximateTokenCounter
from naming import shown
from oracle import Facts, RecordingCounter, broken_rules

from haystack_compaction import (
    Always,
    CachedTokenCounter,
    EstimatedTokenCounter,
    TokensBelow,
    TokensExceed,
    ToolResultPruningCompactor,
    apply_compaction,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from haystack.hooks.compaction import ToolResultPruningCompactor as HaystackPruning

COUNTER = EstimatedTokenCounter()
PLACEHOLDER = "[Tool result removed to free up context. Call `{tool_name}` again if you need it.]"
FILLED = PLACEHOLDER.replace("{tool_name}", TOOL)


def prune(messages: list[ChatMessage], target_tokens: int = 0, **settings: Any) -> list[ChatMessage] | None:
    return ToolResultPruningCompactor(**settings).compact(messages, target_tokens, COUNTER)


def pruned_positions(before: Sequence[ChatMessage], after: Sequence[ChatMessage] | None) -> list[int]:
    """Where the result is another message than the original; nothing for `None`."""
    return [] if after is None else [n for n, message in enumerate(after) if message is not before[n]]


def text_at(messages: Sequence[ChatMessage] | None, position: int, number: int = 0) -> str:
    assert messages is not None
    return texts_of(messages[position].tool_call_results[number])


class TestWhenItActs:
    def test_a_conversation_that_fits_is_left_alone(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        assert prune(messages, COUNTER.count(messages)) is None

    def test_one_token_too_many_is_enough(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        assert pruned_positions(messages, prune(messages, COUNTER.count(messages) - 1)) == [2]

    def test_the_oldest_results_go_first_and_no_more_than_needed(self) -> None:
        messages = [U("go"), *steps("a", "b", "c", "d", "e")]
        one = COUNTER.count([messages[2]]) - COUNTER.count([T("a", FILLED)])
        for goes in range(1, 4):
            target = COUNTER.count(messages) - goes * one + one // 2
            assert pruned_positions(messages, prune(messages, target)) == [2, 4, 6, 8][:goes]

    def test_what_can_not_be_reached_is_approached(self) -> None:
        messages = [U("go"), *steps("a", "b", "c")]
        assert pruned_positions(messages, prune(messages, 0)) == [2, 4]

    def test_with_nothing_to_prune_there_is_no_result(self) -> None:
        assert prune([U("go"), A("hi " * 1000)], 0) is None
        assert prune([U("go"), *steps("a")], 0) is None
        assert prune([], 0) is None

    def test_without_a_budget_trigger_or_target_all_old_results_go(self) -> None:
        messages = [U("go"), *steps("a", "b", "c")]
        after = apply_compaction(messages, ToolResultPruningCompactor())
        assert pruned_positions(messages, after) == [2, 4]

    def test_without_a_budget_the_opposite_of_the_trigger_is_the_target(self) -> None:
        messages = [U("go"), *steps("a", "b", "c", "d")]
        tokens = COUNTER.count(messages)
        after = apply_compaction(
            messages, ToolResultPruningCompactor(trigger=TokensExceed(tokens - 1)), token_counter=COUNTER
        )
        assert pruned_positions(messages, after) == [2]

    def test_the_caller_s_budget_comes_before_the_opposite_of_the_trigger(self) -> None:
        messages = [U("go"), *steps("a", "b", "c", "d")]
        tokens = COUNTER.count(messages)
        assert pruned_positions(messages, prune(messages, 0, trigger=TokensExceed(tokens - 1))) == [2, 4, 6]

    def test_a_target_can_ask_for_more_than_the_budget(self) -> None:
        messages = [U("go"), *steps("a", "b", "c", "d")]
        compactor = ToolResultPruningCompactor(trigger=Always(), target=TokensBelow(1))
        assert pruned_positions(messages, compactor.compact(messages, 100_000, COUNTER)) == [2, 4, 6]


class TestPlaceholder:
    def test_it_is_the_text_that_haystack_users_know(self) -> None:
        assert ToolResultPruningCompactor().placeholder == PLACEHOLDER
        after = prune([U("go"), *steps("a", "b")])
        assert after is not None
        assert after[2].tool_call_result.result == FILLED

    def test_the_name_of_the_tool_is_filled_in_and_other_braces_are_left(self) -> None:
        after = prune(
            [U("go"), *steps("a", "b")], placeholder='{"tool": "{tool_name}", "was": {}, "x": {other}} {tool_name}'
        )
        assert text_at(after, 2) == '{"tool": "' + TOOL + '", "was": {}, "x": {other}} ' + TOOL

    def test_a_placeholder_without_the_name_is_left_as_it_is(self) -> None:
        assert text_at(prune([U("go"), *steps("a", "b")], placeholder="gone %s {0}"), 2) == "gone %s {0}"

    def test_a_name_with_braces_is_not_filled_again(self) -> None:
        after = prune([U("go"), *step("a", name="{tool_name}x"), *step("b")], placeholder="<{tool_name}>")
        assert text_at(after, 2) == "<{tool_name}x>"

    def test_fault_35_a_result_without_a_tool_name_takes_it_from_the_call_that_it_answers(self) -> None:
        messages = as_loaded_from_openai([U("go"), *step("a", name="search"), *step("b", name="read")])
        after = prune(messages)
        assert text_at(after, 2) == PLACEHOLDER.replace("{tool_name}", "search")
        assert after[2].tool_call_result.origin == messages[2].tool_call_result.origin

    def test_fault_4_a_repeated_id_takes_the_name_of_its_own_call(self) -> None:
        calls = [m for n in "xyz" for m in (A(calls=[("call_0", f"tool_{n}")]), T("call_0", prose(1500), name=""))]
        after = prune([U("go"), *calls], placeholder="{tool_name}")
        assert [text_at(after, n) for n in (2, 4)] == ["tool_x", "tool_y"]

    def test_fault_4_calls_without_ids_are_told_apart_by_position(self) -> None:
        calls = A(calls=[(None, "first"), (None, "second")])
        messages = [U("go"), calls, T(None, prose(1500), name=""), T(None, prose(1500, 2), name=""), *step("z")]
        after = prune(messages, placeholder="{tool_name}")
        assert [text_at(after, n) for n in (2, 3)] == ["first", "second"]

    def test_a_result_for_which_it_would_not_be_smaller_stays(self) -> None:
        messages = [U("go"), *step("a", 30), *step("b", 2000), *step("c")]
        assert pruned_positions(messages, prune(messages, min_tokens=0)) == [4]
        assert prune(messages, min_tokens=0, placeholder="long " * 2000) is None

    def test_an_empty_placeholder_is_allowed(self) -> None:
        assert text_at(prune([U("go"), *steps("a", "b")], placeholder=""), 2) == ""


class TestWhatStays:
    def test_calls_ids_and_flags_stay(self) -> None:
        messages = [U("go"), *step("a", error=True), *steps("b", "c")]
        after = prune(messages)
        assert after is not None
        for position in (2, 4):
            old, new = messages[position].tool_call_result, after[position].tool_call_result
            assert (new.origin, new.error) == (old.origin, old.error)
        assert [after[n] is messages[n] for n in (0, 1, 3, 5, 6)] == [True] * 5

    def test_the_metadata_is_all_that_was_there_and_the_mark(self) -> None:
        own = {"source": "cache", "nested": {"k": [1]}, "tags": ["x"]}
        messages = [U("go"), *step("a", meta=own), *step("b")]
        after = prune(messages)
        assert after is not None
        tokens = COUNTER.count([messages[2]])
        assert after[2].meta == {**own, MARK: {"strategy": "tool_result_pruning", "original_tokens": tokens}}
        assert messages[2].meta == own

    def test_the_name_of_a_message_stays(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        messages[2] = dataclasses.replace(messages[2], _name="worker")
        after = prune(messages)
        assert after is not None
        assert after[2].name == "worker"

    def test_whatever_a_subclass_of_message_adds_stays(self) -> None:
        @dataclasses.dataclass
        class Dated(ChatMessage):
            date: str = "never"

        messages = [U("go"), *steps("a", "b")]
        old = messages[2]
        messages[2] = Dated(_role=old.role, _content=old._content, date="today")
        after = prune(messages)
        assert after is not None
        assert (type(after[2]), after[2].date) == (Dated, "today")

    def test_the_metadata_of_the_copy_is_its_own(self) -> None:
        messages = [U("go"), *step("a", meta={"n": 1}), *step("b")]
        after = prune(messages)
        assert after is not None
        after[2].meta["n"] = 2
        assert messages[2].meta == {"n": 1}


class TestNewestSteps:
    def test_the_results_of_the_newest_step_are_out_of_reach(self) -> None:
        messages = [U("go"), *steps("a", "b", "c")]
        assert pruned_positions(messages, prune(messages)) == [2, 4]

    @pytest.mark.parametrize(("kept", "goes"), [(1, [2, 4, 6]), (2, [2, 4]), (3, [2]), (4, []), (9, [])])
    def test_so_many_newest_steps_are_out_of_reach(self, kept: int, goes: list[int]) -> None:
        messages = [U("go"), *steps("a", "b", "c", "d")]
        assert pruned_positions(messages, prune(messages, min_keep_steps=kept)) == goes

    def test_an_assistant_message_without_calls_uses_up_none_of_them(self) -> None:
        messages = [U("go"), *steps("a", "b"), A("so far"), A("and"), U("on"), A(reasoning="hm"), A("done")]
        assert pruned_positions(messages, prune(messages)) == [2]
        assert prune(messages, min_keep_steps=2) is None

    def test_parallel_results_of_a_step_are_out_of_reach_together(self) -> None:
        parallel = [A(calls=["x", "y"]), T("x", prose(2000)), T("y", prose(2000, 1))]
        messages = [U("go"), *step("a"), *parallel]
        assert pruned_positions(messages, prune(messages)) == [2]
        older = [U("go"), *parallel, *step("a")]
        assert pruned_positions(older, prune(older)) == [2, 3]

    def test_fault_1_a_newest_result_that_is_not_adjacent_to_its_call_is_out_of_reach(self) -> None:
        messages = [U("go"), *step("a"), A(calls=["b"]), U("yes"), T("b", prose(2000))]
        assert pruned_positions(messages, prune(messages)) == [2]

    def test_a_step_is_as_new_as_its_call_not_as_its_result(self) -> None:
        messages = [U("go"), A(calls=["a"]), A(calls=["b"]), T("b", prose(2000)), T("a", prose(2000, 1)), A("done")]
        assert pruned_positions(messages, prune(messages)) == [4]

    def test_steps_of_earlier_turns_are_within_reach(self) -> None:
        messages = [U("one"), *steps("a", "b"), A("done"), U("two"), *step("c")]
        assert pruned_positions(messages, prune(messages)) == [2, 4]

    def test_the_newest_groups_can_be_put_out_of_reach_by_count(self) -> None:
        messages = [U("go"), *steps("a", "b", "c"), A("one"), A("two")]
        assert pruned_positions(messages, prune(messages, min_keep_groups=3)) == [2, 4]
        assert pruned_positions(messages, prune(messages, min_keep_groups=4)) == [2]


class TestSkipped:
    def test_offloaded_results_keep_their_pointer(self) -> None:
        messages = [U("go"), *step("a", meta={"tool_result_offloaded": ["store://1"]}), *steps("b", "c")]
        assert pruned_positions(messages, prune(messages)) == [4]

    def test_the_protecting_keys_can_be_chosen(self) -> None:
        messages = [
            U("go"),
            *step("a", meta={"tool_result_offloaded": ["x"]}),
            *step("b", meta={"keep": False}),
            *step("c"),
        ]
        assert pruned_positions(messages, prune(messages, skip_meta_keys=("keep",))) == [2]
        assert pruned_positions(messages, prune(messages, skip_meta_keys=())) == [2, 4]

    def test_pinned_messages_stay(self) -> None:
        messages = [U("go"), *step("a", meta={"pin": True}), *steps("b", "c")]
        assert pruned_positions(messages, prune(messages, pin_meta_keys=("pin",))) == [4]

    def test_a_result_of_exactly_min_tokens_stays(self) -> None:
        messages = [U("go"), *step("a", 1500), *step("b")]
        tokens = COUNTER.count([messages[2]])
        assert prune(messages, min_tokens=tokens) is None
        assert pruned_positions(messages, prune(messages, min_tokens=tokens - 1)) == [2]

    def test_what_compaction_marked_is_not_pruned_again(self) -> None:
        marked = step("a", meta={MARK: {"strategy": "tool_result_pruning", "original_tokens": 9000}})
        messages = [U("go"), *marked, *steps("b", "c")]
        assert pruned_positions(messages, prune(messages)) == [4]

    def test_fault_35_a_placeholder_is_known_by_its_text(self) -> None:
        first = prune([U("go"), *steps("a", "b", "c")])
        assert first is not None
        loaded = as_loaded_from_openai(first)
        assert prune(loaded, min_tokens=0, placeholder="x") is None

    def test_fault_35_a_result_that_quotes_the_placeholder_is_no_placeholder(self) -> None:
        messages = [U("go"), A(calls=["a"]), T("a", FILLED + prose(2000)), *step("b")]
        assert pruned_positions(messages, prune(messages)) == [2]

    def test_fault_13_the_results_of_a_protected_tool_stay(self) -> None:
        messages = SHAPES["six tools (13)"]()
        assert pruned_positions(messages, prune(messages, exclude_tools=("tool2", "tool4"))) == [2, 4, 8, 12]

    def test_fault_13_a_protected_tool_is_known_by_its_call_when_the_result_has_no_name(self) -> None:
        messages = as_loaded_from_openai(SHAPES["six tools (13)"]())
        assert pruned_positions(messages, prune(messages, exclude_tools=["tool2", "tool4"])) == [2, 4, 8, 12]

    def test_fault_3_of_two_parallel_results_the_one_that_is_worth_it_goes(self) -> None:
        messages = SHAPES["large and small parallel results (3)"]()
        assert pruned_positions(messages, prune(messages)) == [2]


class TestErrors:
    def test_fault_11_an_errored_result_keeps_its_flag_and_its_first_line(self) -> None:
        messages = SHAPES["errors (11)"]()
        after = prune(messages)
        assert after is not None
        assert after[2].tool_call_result.error is True
        assert "Error: no such file" in text_at(after, 2)

    @pytest.mark.parametrize("chars", [1, 50, 200, 700])
    def test_so_many_characters_of_an_error_stay(self, chars: int) -> None:
        text = "#" + prose(4000)
        after = prune([U("go"), A(calls=["a"]), T("a", text, error=True), *step("b")], keep_error_chars=chars)
        assert text[:chars] in text_at(after, 2)
        assert text[: chars + 1] not in text_at(after, 2)

    def test_two_hundred_characters_stay_by_default(self) -> None:
        text = prose(4000)
        after = prune([U("go"), A(calls=["a"]), T("a", text, error=True), *step("b")])
        assert text[:200] in text_at(after, 2)
        assert text[:201] not in text_at(after, 2)

    def test_the_placeholder_is_there_too(self) -> None:
        after = prune([U("go"), *step("a", error=True), *step("b")])
        assert FILLED in text_at(after, 2)

    def test_with_0_nothing_but_the_placeholder_stays(self) -> None:
        after = prune([U("go"), *step("a", error=True), *step("b")], keep_error_chars=0)
        assert text_at(after, 2) == FILLED

    def test_a_result_that_is_no_error_keeps_nothing(self) -> None:
        after = prune([U("go"), *step("a"), *step("b")], keep_error_chars=500)
        assert text_at(after, 2) == FILLED

    def test_an_error_in_parts_keeps_the_start_of_its_text(self) -> None:
        parts = [TextContent("Error: " + prose(600)), image(), TextContent(prose(2000, 2))]
        after = prune([U("go"), A(calls=["a"]), T("a", parts, error=True), *step("b")])
        assert ("Error: " + prose(600))[:200] in text_at(after, 2)

    def test_an_error_that_is_not_longer_than_what_would_stay_is_left_alone(self) -> None:
        messages = [U("go"), *step("a", 1000, error=True), *step("b")]
        assert prune(messages, keep_error_chars=1000) is None

    def test_a_pruned_error_is_not_pruned_again(self) -> None:
        after = prune([U("go"), *step("a", 9000, error=True), *step("b")], keep_error_chars=3000)
        assert after is not None
        assert prune(after, keep_error_chars=3000) is None
        assert prune(after, keep_error_chars=0) is None


class TestSeveralResultsInAMessage:
    def pair(self, left: ChatMessage, right: ChatMessage) -> list[ChatMessage]:
        calls = [(m.tool_call_result.origin.id, m.tool_call_result.origin.tool_name) for m in (left, right)]
        return [U("go"), A(calls=calls), in_one_message(left, right, meta={"n": 1}), *step("z")]

    def test_fault_7_neither_result_is_lost(self) -> None:
        messages = self.pair(T("a", prose(2000), name="one"), T("b", prose(2000, 1), name="two", error=True))
        after = prune(messages, keep_error_chars=0)
        assert after is not None
        results = after[2].tool_call_results
        assert [(r.origin.id, r.origin.tool_name, r.error) for r in results] == [
            ("a", "one", False),
            ("b", "two", True),
        ]
        assert [texts_of(r) for r in results] == [PLACEHOLDER.replace("{tool_name}", name) for name in ("one", "two")]
        assert after[2].meta["n"] == 1

    def test_fault_7_a_small_result_beside_a_large_one_keeps_its_text(self) -> None:
        messages = self.pair(T("a", prose(4000)), T("b", "ok"))
        after = prune(messages)
        assert (text_at(after, 2, 0), text_at(after, 2, 1)) == (FILLED, "ok")

    def test_fault_7_a_protected_result_beside_another_keeps_its_text(self) -> None:
        kept = prose(2000, 1)
        messages = self.pair(T("a", prose(2000), name="one"), T("b", kept, name="two"))
        after = prune(messages, exclude_tools=("two",))
        assert text_at(after, 2, 1) == kept
        assert text_at(after, 2, 0) == PLACEHOLDER.replace("{tool_name}", "one")

    def test_fault_7_an_error_beside_another_result_keeps_its_start(self) -> None:
        text = prose(3000, 1)
        after = prune(self.pair(T("a", prose(3000)), T("b", text, error=True)))
        assert text_at(after, 2, 0) == FILLED
        assert text[:200] in text_at(after, 2, 1)


class TestMedia:
    def test_fault_37_an_image_in_a_result_counts_at_the_rate_of_the_counter(self) -> None:
        shots = [m for n in range(6) for m in (A(calls=[(f"s{n}", TOOL)]), T(f"s{n}", [image(str(n))]))]
        messages = [U("look"), *shots]
        dear, cheap = EstimatedTokenCounter(tokens_per_image=1000), EstimatedTokenCounter(tokens_per_image=85)
        compactor = ToolResultPruningCompactor()
        assert compactor.compact(messages, 0, cheap) is None
        assert pruned_positions(messages, compactor.compact(messages, 0, dear)) == [2, 4, 6, 8, 10]

    def test_fault_37_old_screenshots_go_one_by_one_until_the_target(self) -> None:
        counter = EstimatedTokenCounter(tokens_per_image=1000)
        messages = SHAPES["screenshots (37)"]()
        after = ToolResultPruningCompactor().compact(messages, counter.count(messages) - 2000, counter)
        assert pruned_positions(messages, after) == [2, 4]
        assert after[2].tool_call_result.result == PLACEHOLDER.replace("{tool_name}", "screenshot")

    def test_a_file_in_a_result_counts_at_the_rate_of_the_counter(self) -> None:
        messages = [U("read"), A(calls=["a"]), T("a", [file()]), *step("b")]
        assert pruned_positions(messages, prune(messages)) == [2]
        assert ToolResultPruningCompactor().compact(messages, 0, EstimatedTokenCounter(tokens_per_file=10)) is None

    def test_images_of_the_user_stay(self) -> None:
        messages = [U("look", image(), file()), *steps("a", "b")]
        after = prune(messages)
        assert after is not None
        assert after[0] is messages[0]


class TestToolInputs:
    def arguments(self, messages: Sequence[ChatMessage] | None) -> list[dict[str, Any]]:
        assert messages is not None
        return [message.tool_calls[0].arguments for message in messages if message.tool_calls]

    def test_arguments_stay_by_default(self) -> None:
        assert prune(SHAPES["large arguments (36)"]()) is None

    @pytest.mark.parametrize("clear", [True, ("write_file",), ["write_file"]], ids=shown)
    def test_fault_36_old_arguments_are_cut(self, clear: Any) -> None:
        messages = SHAPES["large arguments (36)"]()
        after = prune(messages, clear_tool_inputs=clear)
        before, now = self.arguments(messages), self.arguments(after)
        assert [len(arguments["content"]) < 500 for arguments in now] == [True] * 4 + [False]
        assert now[-1] == before[-1]
        assert COUNTER.count(after) < COUNTER.count(messages) / 3

    def test_fault_36_the_keys_are_kept_and_the_rest_is_valid_json(self) -> None:
        messages = SHAPES["large arguments (36)"]()
        for old, new in zip(
            self.arguments(messages), self.arguments(prune(messages, clear_tool_inputs=True)), strict=True
        ):
            assert list(old) == list(new)
            assert json.loads(json.dumps(new)) == new

    def test_fault_36_a_cut_argument_is_plainly_marked_as_removed(self) -> None:
        content = self.arguments(prune(SHAPES["large arguments (36)"](), clear_tool_inputs=True))[0]["content"]
        assert "removed" in content

    def test_fault_36_the_message_is_marked(self) -> None:
        after = prune(SHAPES["large arguments (36)"](), clear_tool_inputs=True)
        assert after is not None
        marks = [message.meta.get(MARK, {}).get("strategy") for message in after if message.tool_calls]
        assert marks == ["tool_input_clearing"] * 4 + [None]

    def test_fault_36_the_contract_holds(self) -> None:
        messages = SHAPES["large arguments (36)"]()
        facts = Facts(rewrites=frozenset({"tool", "assistant"}), cuts_inputs=True)
        after = prune(messages, clear_tool_inputs=True)
        assert broken_rules(messages, after, 0, COUNTER, facts=facts) == []

    def test_fault_36_no_more_is_cut_than_the_target_asks_for(self) -> None:
        messages = SHAPES["large arguments (36)"]()
        after = prune(messages, COUNTER.count(messages) - 1, clear_tool_inputs=True)
        assert [len(arguments["content"]) < 500 for arguments in self.arguments(after)] == [True] + [False] * 4

    def test_only_the_named_tools_are_cut(self) -> None:
        messages = SHAPES["large arguments (36)"]()
        assert prune(messages, clear_tool_inputs=("another",)) is None

    def test_a_protected_tool_keeps_its_arguments(self) -> None:
        assert prune(SHAPES["large arguments (36)"](), clear_tool_inputs=True, exclude_tools=("write_file",)) is None

    def test_a_cut_call_is_not_cut_again(self) -> None:
        after = prune(SHAPES["large arguments (36)"](), clear_tool_inputs=True)
        assert after is not None
        assert prune(after, clear_tool_inputs=True) is None

    def test_text_reasoning_ids_and_metadata_of_the_calling_message_stay(self) -> None:
        call = ("a", TOOL, {"content": prose(8000)})
        messages = [
            U("go"),
            A("writing", calls=[call], reasoning="hm", name="bot", meta={"k": 1}),
            T("a", "ok"),
            *step("b"),
        ]
        after = prune(messages, clear_tool_inputs=True)
        assert after is not None
        old, new = messages[1], after[1]
        assert (new.text, new.reasonings, new.name, new.meta["k"]) == (old.text, old.reasonings, old.name, 1)
        assert (new.tool_calls[0].id, new.tool_calls[0].tool_name) == ("a", TOOL)

    def test_arguments_of_any_shape_can_be_cut(self) -> None:
        arguments = {
            "rows": [[n, {"v": prose(50, n)}] for n in range(200)],
            "deep": {"k": prose(5000)},
            "n": 1,
            "none": None,
        }
        messages = [U("go"), A(calls=[("a", TOOL, arguments)]), T("a", "ok"), *step("b")]
        after = prune(messages, clear_tool_inputs=True)
        assert after is not None
        new = after[1].tool_calls[0].arguments
        assert list(new) == list(arguments)
        assert len(json.dumps(new)) < 2000


class TestCounting:
    def test_the_conversation_is_counted_once_and_each_candidate_with_its_replacement(self) -> None:
        counter = RecordingCounter()
        messages = [S("rules"), U("go"), *[m for n in range(50) for m in step(f"id{n}")]]
        after = ToolResultPruningCompactor().compact(messages, 0, counter)
        assert len(pruned_positions(messages, after)) == 49
        assert counter.measured <= len(messages) + 2 * 49 + 2

    def test_a_conversation_that_fits_is_counted_once(self) -> None:
        counter = RecordingCounter()
        messages = [S("rules"), U("go"), *steps("a", "b", "c")]
        assert ToolResultPruningCompactor().compact(messages, 1_000_000, counter) is None
        assert counter.measured <= len(messages)


class TestLikeHaystack:
    """With the same counter, `keep_error_chars=0`, one result a message and tool names present."""

    COUNTERS = (
        ApproximateTokenCounter(),
        ApproximateTokenCounter(chars_per_token=2.5, tokens_per_image=900),
        CachedTokenCounter(ApproximateTokenCounter()),
        EstimatedTokenCounter(),
    )

    def same(self, messages: list[ChatMessage], target: int, counter: Any, **settings: Any) -> None:
        ours = ToolResultPruningCompactor(keep_error_chars=0, **settings).compact(messages, target, counter)
        theirs = HaystackPruning(**settings).compact(messages, target, counter)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert [message.to_dict() for message in ours] == [message.to_dict() for message in theirs]
            assert [mine is original for mine, original in zip(ours, messages, strict=True)] == [
                other is original for other, original in zip(theirs, messages, strict=True)
            ]

    @pytest.mark.parametrize("seed", range(120))
    def test_the_result_equals_haystacks_on_a_random_conversation(self, seed: int) -> None:
        rng = random.Random(seed)
        messages = random_conversation(rng, blocks=14, well_behaved=True)
        counter = self.COUNTERS[seed % len(self.COUNTERS)]
        settings = {
            "min_keep_steps": rng.choice((1, 1, 2, 4)),
            "min_tokens": rng.choice((0, 100, 200, 400)),
            "placeholder": rng.choice((PLACEHOLDER, "{tool_name} {x}", "gone")),
            "skip_meta_keys": rng.choice((("tool_result_offloaded",), (), ("source",))),
        }
        size = counter.count(messages)
        for share in (0, 0.3, 0.6, 0.8, 0.95, 1):
            self.same(messages, int(size * share), counter, **settings)

    def test_most_of_these_conversations_are_pruned(self) -> None:
        conversations = [random_conversation(random.Random(seed), blocks=14, well_behaved=True) for seed in range(120)]
        assert sum(prune(messages, min_tokens=100) is not None for messages in conversations) > 60

    @pytest.mark.parametrize("shape", ["pending call (5)", "half of the calls pending (5)", "dead calls"])
    def test_a_call_without_results_makes_no_difference(self, shape: str) -> None:
        messages = SHAPES[shape]()
        self.same(messages, 0, ApproximateTokenCounter())

    def test_the_settings_that_haystack_saved_can_be_loaded(self) -> None:
        data = HaystackPruning(min_keep_steps=3, min_tokens=50, placeholder="x", skip_meta_keys=("a",)).to_dict()
        data["type"] = ToolResultPruningCompactor().to_dict()["type"]
        expected = ToolResultPruningCompactor(min_keep_steps=3, min_tokens=50, placeholder="x", skip_meta_keys=("a",))
        assert ToolResultPruningCompactor.from_dict(data) == expected


class TestSaving:
    def test_the_dictionary_is_whole(self) -> None:
        assert ToolResultPruningCompactor().to_dict() == {
            "type": "haystack_compaction.compactors.tool_result_pruning.ToolResultPruningCompactor",
            "init_parameters": {
                "trigger": None,
                "target": None,
                "min_keep_groups": 0,
                "pin_first_user_message": False,
                "pin_meta_keys": [],
                "min_keep_steps": 1,
                "min_tokens": 200,
                "placeholder": "[Tool result removed to free up context. Call `{tool_name}` again if you need it.]",
                "skip_meta_keys": ["tool_result_offloaded"],
                "exclude_tools": [],
                "clear_tool_inputs": False,
                "keep_error_chars": 200,
            },
        }

    def test_every_setting_comes_back(self) -> None:
        compactor = ToolResultPruningCompactor(
            trigger=TokensExceed(9),
            target=TokensBelow(3) & Always(),
            min_keep_groups=2,
            pin_first_user_message=True,
            pin_meta_keys=("pin",),
            min_keep_steps=3,
            min_tokens=0,
            placeholder="gone: {tool_name}",
            skip_meta_keys=("a", "b"),
            exclude_tools=("read",),
            clear_tool_inputs=("write_file",),
            keep_error_chars=0,
        )
        data = json.loads(json.dumps(compactor.to_dict()))
        assert ToolResultPruningCompactor.from_dict(data) == compactor
        assert ToolResultPruningCompactor.from_dict(data).to_dict() == compactor.to_dict()

    def test_two_with_the_same_settings_are_equal(self) -> None:
        assert ToolResultPruningCompactor(exclude_tools=["a"]) == ToolResultPruningCompactor(exclude_tools=("a",))
        assert ToolResultPruningCompactor() != ToolResultPruningCompactor(min_tokens=201)

    def test_a_compactor_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            ToolResultPruningCompactor().min_tokens = 3


class TestBadArguments:
    @pytest.mark.parametrize(
        ("argument", "value", "kind"),
        [
            ("min_keep_steps", 0, ValueError),
            ("min_keep_steps", -1, ValueError),
            ("min_keep_steps", "1", TypeError),
            ("min_keep_steps", True, TypeError),
            ("min_keep_steps", 1.5, TypeError),
            ("min_keep_steps", None, TypeError),
            ("min_tokens", -1, ValueError),
            ("min_tokens", "200", TypeError),
            ("min_tokens", None, TypeError),
            ("placeholder", 3, TypeError),
            ("placeholder", None, TypeError),
            ("placeholder", b"gone", TypeError),
            ("skip_meta_keys", "offloaded", TypeError),
            ("skip_meta_keys", (1,), TypeError),
            ("skip_meta_keys", None, TypeError),
            ("exclude_tools", "read_file", TypeError),
            ("exclude_tools", [None], TypeError),
            ("clear_tool_inputs", "write_file", TypeError),
            ("clear_tool_inputs", 3, TypeError),
            ("clear_tool_inputs", (3,), TypeError),
            ("clear_tool_inputs", None, TypeError),
            ("keep_error_chars", -1, ValueError),
            ("keep_error_chars", "all", TypeError),
            ("min_keep_groups", -1, ValueError),
            ("min_keep_groups", 1.0, TypeError),
            ("pin_meta_keys", "pin", TypeError),
            ("pin_first_user_message", "yes", TypeError),
        ],
        ids=lambda value: getattr(value, "__name__", repr(value)),
    )
    def test_each_is_refused_with_its_name_and_the_value(
        self, argument: str, value: Any, kind: type[Exception]
    ) -> None:
        with pytest.raises(kind, match=f"`{argument}` must") as failure:
            ToolResultPruningCompactor(**{argument: value})
        assert repr(value) in str(failure.value)

    def test_settings_are_given_by_name_only(self) -> None:
        with pytest.raises(TypeError):
            ToolResultPruningCompactor(1)

    def test_an_unknown_setting_is_named(self) -> None:
        with pytest.raises(TypeError, match="min_token"):
            ToolResultPruningCompactor(min_token=3)

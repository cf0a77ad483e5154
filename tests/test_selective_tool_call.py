"""Old tool-call groups go altogether."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from conversations import (
    SHAPES,
    A,
    S,
    T,
    U,
    as_loaded_from_openai,
    conversations,
    in_one_message,
    note,
    prose,
    shares,
    step,
    steps,
)
from haystack.dataclasses import ChatMessage, ReasoningContent
from hypothesis import given, settings
from oracle import Facts, RecordingCounter, broken_rules, orphans

from haystack_compaction import (
    EstimatedTokenCounter,
    MessageIndex,
    MessagesExceed,
    SelectiveToolCallCompactor,
    TokensBelow,
)
from haystack_compaction.prompts import SEPARATOR
from haystack_compaction.steps import drive

COUNTER = EstimatedTokenCounter()
FACTS = Facts(removes=True, notes=True, rewrites=frozenset())

thorough = settings(max_examples=100, deadline=None, derandomize=True)


def select(messages: Sequence[ChatMessage], target_tokens: int | None = None, **changes: Any) -> Any:
    """Everything that may go, unless there is a target."""
    return SelectiveToolCallCompactor(**changes).compact(list(messages), target_tokens, COUNTER)


def kept(messages: Sequence[ChatMessage], after: Sequence[ChatMessage] | None) -> list[str]:
    return [call.id or "" for message in after or messages for call in message.tool_calls]


class TestWhatGoes:
    def test_calls_and_results_go_and_what_was_said_stays(self) -> None:
        messages = [S("rules"), U("go"), *step("a"), A("so far"), *step("b"), U("on"), *step("c"), A("done")]
        assert select(messages) == [messages[n] for n in (0, 1, 4, 7, 8, 9, 10)]

    def test_text_beside_the_calls_goes_with_them(self) -> None:
        messages = [U("go"), A("I look it up", calls=["a"]), T("a", prose(900)), *step("b")]
        assert select(messages) == [messages[0], *messages[3:]]

    @pytest.mark.parametrize("keep", range(6))
    def test_the_newest_groups_stay_as_many_as_asked_for(self, keep: int) -> None:
        messages = [U("go"), *steps(*"abcd"), A("done")]
        after = select(messages, keep_last_tool_call_groups=keep)
        assert kept(messages, after) == list("abcd")[max(4 - keep, 0) :]

    def test_with_none_kept_even_the_newest_step_goes(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        assert select(messages, keep_last_tool_call_groups=0) == [messages[0]]

    @pytest.mark.parametrize("keep", [0, 1, 2])
    @pytest.mark.parametrize("shape", ["pending call (5)", "half of the calls pending (5)"])
    def test_fault_5_a_pending_call_stays_whole(self, shape: str, keep: int) -> None:
        messages = SHAPES[shape]()
        after = select(messages, 0, keep_last_tool_call_groups=keep)
        assert after is not None
        pending = next(n for n, message in enumerate(messages) if "c" in [call.id for call in message.tool_calls])
        assert [m for m in after if m in messages[pending:]] == messages[pending:]

    def test_a_dead_call_goes_like_any_other(self) -> None:
        messages = SHAPES["dead calls"]()
        assert kept(messages, select(messages, keep_last_tool_call_groups=0)) == []

    def test_the_oldest_go_first_and_no_more_than_the_target_asks_for(self) -> None:
        messages = [U("go"), *steps(*"abcdef")]
        size = COUNTER.count(messages)
        for share in (0.95, 0.7, 0.5, 0.3):
            after = select(messages, int(size * share))
            ids = kept(messages, after)
            assert ids == list("abcdef")[-len(ids) :]
            assert COUNTER.count(after) <= int(size * share) < COUNTER.count(after) + COUNTER.count(steps("f"))

    def test_the_own_target_decides(self) -> None:
        after = select([U("go"), *steps(*"abcdef")], 0, target=TokensBelow(3000))
        assert 2000 < COUNTER.count(after) < 3000

    def test_without_a_budget_the_opposite_of_the_trigger_is_reached(self) -> None:
        assert len(select([U("go"), *steps(*"abcdef")], trigger=MessagesExceed(9))) == 9

    def test_a_conversation_that_fits_is_left_alone(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        assert select(messages, COUNTER.count(messages)) is None

    def test_notes_and_summaries_are_never_touched(self) -> None:
        messages = [S("rules"), note(prose(900)), U("go"), *step("a"), note(prose(900, 1)), *step("b")]
        after = select(messages, 0)
        assert after == [*messages[:3], *messages[5:]]

    def test_pinned_groups_stay(self) -> None:
        messages = [U("go"), *step("a", meta={"keep": True}), *steps("b", "c")]
        assert kept(messages, select(messages, pin_meta_keys=("keep",))) == ["a", "c"]

    def test_results_without_a_call_go_first(self) -> None:
        messages = SHAPES["orphans"]()
        assert select(messages, COUNTER.count(messages) - 10) == messages[1:]
        assert orphans(select(messages)) == []

    def test_none_of_them_is_left_at_the_head(self) -> None:
        messages = [S("rules"), T("x", prose(900)), T("y", prose(900, 1)), U("go"), *steps("a", "b")]
        assert select(messages, COUNTER.count(messages) - 10) == [messages[0], *messages[3:]]

    def test_a_line_parts_users_who_would_become_neighbours(self) -> None:
        messages = [U("old"), *step("a"), U("task"), *step("b")]
        after = select(messages)
        assert [message.text for message in after[:3]] == ["old", SEPARATOR, "task"]
        assert MessageIndex(after).task_groups[0].messages == [messages[3]]


class TestExcludedTools:
    def test_fault_13_a_group_with_a_call_of_such_a_tool_stays(self) -> None:
        messages = SHAPES["six tools (13)"]()
        after = select(messages, 0, exclude_tools=("tool2",))
        assert kept(messages, after) == ["id2", "z"]

    def test_fault_13_other_calls_of_the_same_message_stay_with_it(self) -> None:
        calls = [("1", "search"), ("2", "read_policy")]
        group = [A(calls=calls), T("1", prose(900), name="search"), T("2", prose(900, 1), name="read_policy")]
        messages = [U("go"), *step("a"), *group, *step("z")]
        assert select(messages, 0, exclude_tools=["read_policy"]) == [messages[0], *messages[3:]]

    def test_fault_13_the_name_of_the_call_decides_where_the_result_has_none(self) -> None:
        messages = as_loaded_from_openai(SHAPES["six tools (13)"]())
        assert kept(messages, select(messages, 0, exclude_tools=("tool2",))) == ["id2", "z"]

    def test_they_count_among_the_newest(self) -> None:
        messages = [U("go"), *steps("a", "b"), *step("p", name="read_policy")]
        assert kept(messages, select(messages, exclude_tools=("read_policy",))) == ["p"]


class TestWholeGroups:
    def test_fault_1_what_stands_between_call_and_result_stays(self) -> None:
        messages = SHAPES["non-adjacent results (1)"]()
        for target in (None, 400, 200, 60):
            after = select(messages, target)
            assert broken_rules(messages, after, target, COUNTER, facts=FACTS) == []
        assert [message.text for message in after if message.text in ("book", "yes")] == ["book", "yes"]

    @pytest.mark.parametrize("keep", range(1, 8))
    def test_fault_2_all_results_of_a_kept_call_are_kept(self, keep: int) -> None:
        messages = SHAPES["two turns (2)"]()
        after = select(messages, 0, keep_last_tool_call_groups=keep)
        assert broken_rules(messages, after, 0, COUNTER, facts=FACTS) == []
        assert (after is None) == (keep > 1)

    def test_fault_3_parallel_results_share_their_fate(self) -> None:
        messages = SHAPES["large and small parallel results (3)"]()
        for target in range(0, COUNTER.count(messages), 200):
            assert kept(messages, select(messages, target)) == ["c"]

    @pytest.mark.parametrize("shape", ["repeated ids (4)", "missing ids (4)", "one id twice in a message (4)"])
    def test_fault_4_the_newest_of_repeated_ids_keeps_its_own_results(self, shape: str) -> None:
        messages = SHAPES[shape]()
        after = select(messages, 0)
        last = max(n for n, message in enumerate(messages) if message.tool_calls)
        assert after[-len(messages[last:]) :] == messages[last:]
        assert broken_rules(messages, after, 0, COUNTER, facts=FACTS) == []

    def test_fault_6_reasoning_goes_or_stays_with_its_calls(self) -> None:
        thought = ReasoningContent("because", extra={"signature": "c2lnbmVk"})
        messages = [U("go"), A(reasoning=thought), *step("a"), A(reasoning=thought), *step("b")]
        assert select(messages) == [messages[0], *messages[4:]]

    def test_fault_7_both_results_of_one_message_go_or_stay(self) -> None:
        group = [A(calls=["a", "b"]), in_one_message(T("a", prose(900)), T("b", prose(900, 1)))]
        assert select([U("go"), *group, *step("c")]) == [U("go"), *step("c")]
        assert kept([], select([U("go"), *step("c"), *group])) == ["a", "b"]

    @given(messages=conversations(), share=shares())
    @thorough
    def test_giving_the_last_group_back_would_pass_the_target(self, messages: list[ChatMessage], share: float) -> None:
        target = int(COUNTER.count(messages) * share)
        compactor = SelectiveToolCallCompactor()
        result = drive(compactor.steps(MessageIndex(messages, COUNTER), target))
        groups = [edit for edit in result.edits if not edit.messages]
        if result.compacted and len(groups) == len(result.edits):
            assert result.after.tokens + groups[-1].freed_tokens > target

    @given(messages=conversations(), share=shares())
    @thorough
    def test_a_second_pass_finds_nothing(self, messages: list[ChatMessage], share: float) -> None:
        target = int(COUNTER.count(messages) * share)
        after = select(messages, target)
        if after is not None:
            assert select(after, target) is None

    def test_fault_35_a_line_between_users_is_known_without_metadata(self) -> None:
        after = as_loaded_from_openai(select([U("old"), *step("a"), U("task"), *step("b")]))
        assert [message.text for message in MessageIndex(after).task_groups[0].messages] == ["task"]
        assert select(after) is None


class TestCounting:
    def test_every_message_is_counted_once(self) -> None:
        counter = RecordingCounter()
        messages = [U("go"), *[m for n in range(50) for m in step(f"id{n}")]]
        assert len(SelectiveToolCallCompactor().compact(messages, 0, counter) or []) == 3
        assert counter.measured <= len(messages)


class TestSaving:
    def test_the_dictionary_is_whole(self) -> None:
        assert SelectiveToolCallCompactor().to_dict() == {
            "type": "haystack_compaction.compactors.selective_tool_call.SelectiveToolCallCompactor",
            "init_parameters": {
                "trigger": None,
                "target": None,
                "min_keep_groups": 0,
                "pin_first_user_message": False,
                "pin_meta_keys": [],
                "keep_last_tool_call_groups": 1,
                "exclude_tools": [],
            },
        }

    def test_every_setting_comes_back(self) -> None:
        compactor = SelectiveToolCallCompactor(
            target=TokensBelow(3), min_keep_groups=2, keep_last_tool_call_groups=0, exclude_tools=["a", "b"]
        )
        data = json.loads(json.dumps(compactor.to_dict()))
        assert SelectiveToolCallCompactor.from_dict(data) == compactor


class TestBadArguments:
    @pytest.mark.parametrize(
        ("argument", "value", "kind"),
        [
            ("keep_last_tool_call_groups", -1, ValueError),
            ("keep_last_tool_call_groups", "1", TypeError),
            ("keep_last_tool_call_groups", True, TypeError),
            ("exclude_tools", "read_file", TypeError),
            ("exclude_tools", [None], TypeError),
        ],
        ids=lambda value: getattr(value, "__name__", repr(value)),
    )
    def test_each_is_refused_with_its_name_and_the_value(
        self, argument: str, value: Any, kind: type[Exception]
    ) -> None:
        with pytest.raises(kind, match=f"`{argument}` must") as failure:
            SelectiveToolCallCompactor(**{argument: value})
        assert repr(value) in str(failure.value)

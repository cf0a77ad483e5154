"""The index of a conversation: groups, turns, task, sums, and what changes them."""

import copy
import random
from collections.abc import Sequence

import pytest
from conversations import (
    MARK,
    SHAPES,
    A,
    S,
    T,
    U,
    conversations,
    in_one_message,
    note,
    prose,
    random_conversation,
    step,
    steps,
)
from haystack.dataclasses import ChatMessage, ReasoningContent
from haystack.token_counters import ApproximateTokenCounter
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import RecordingCounter, answers, orphans, task_positions

from haystack_compaction import EstimatedTokenCounter, MessageGroup, MessageGroupKind, MessageIndex

KIND = MessageGroupKind


def outline(index: MessageIndex) -> list[tuple[str, list[int]]]:
    """Each group as its kind and the positions of its messages."""
    return [(group.kind.value, list(group.positions)) for group in index.groups]


def group_of(index: MessageIndex, position: int) -> MessageGroup:
    return next(group for group in index.groups if position in group.positions)


def same_objects(left: Sequence[ChatMessage], right: Sequence[ChatMessage]) -> bool:
    return [id(message) for message in left] == [id(message) for message in right]


class TestKinds:
    def test_each_kind_of_message_gets_its_kind_of_group(self) -> None:
        index = MessageIndex([S("rules"), note(), U("task"), A("let me see"), *step("a")])
        assert outline(index) == [
            ("system", [0]),
            ("summary", [1]),
            ("user", [2]),
            ("assistant_text", [3]),
            ("tool_call", [4, 5]),
        ]

    def test_a_kind_is_its_name_in_lower_case(self) -> None:
        assert [kind.value for kind in KIND] == [kind.name.lower() for kind in KIND]
        assert KIND("tool_call") is KIND.TOOL_CALL

    def test_an_empty_list_has_no_groups(self) -> None:
        index = MessageIndex([])
        assert index.groups == []
        assert (index.total_token_count, index.included_message_count, index.total_turn_count) == (0, 0, 0)
        assert index.included_messages() == []

    def test_a_result_that_compaction_pruned_is_still_part_of_its_step(self) -> None:
        pruned = T("a", "[removed]", meta={MARK: {"strategy": "tool_result_pruning"}})
        assert outline(MessageIndex([U("go"), A(calls=["a"]), pruned])) == [("user", [0]), ("tool_call", [1, 2])]

    def test_a_call_whose_arguments_compaction_cut_is_still_a_call(self) -> None:
        cut = A(calls=["a"], meta={MARK: {"strategy": "tool_input_clearing"}})
        assert outline(MessageIndex([U("go"), cut, T("a", "ok")])) == [("user", [0]), ("tool_call", [1, 2])]

    def test_parallel_calls_and_all_their_results_are_one_group(self) -> None:
        index = MessageIndex([U("go"), A(calls=["a", "b", "c"]), T("a"), T("b"), T("c"), A("done")])
        assert outline(index) == [("user", [0]), ("tool_call", [1, 2, 3, 4]), ("assistant_text", [5])]

    def test_results_in_another_order_than_their_calls_stay_in_the_group(self) -> None:
        index = MessageIndex([A(calls=["a", "b"]), T("b", "of b"), T("a", "of a")])
        exchanges = {exchange.call.id: exchange.result.result for exchange in index.groups[0].exchanges()}
        assert exchanges == {"a": "of a", "b": "of b"}


class TestGaps:
    def test_fault_1_a_result_after_a_user_message_belongs_to_the_group_of_its_call(self) -> None:
        index = MessageIndex(SHAPES["non-adjacent results (1)"]())
        assert outline(index) == [
            ("system", [0]),
            ("user", [1]),
            ("assistant_text", [2]),
            ("user", [3]),
            ("tool_call", [4, 6]),
            ("user", [5]),
            ("tool_call", [7, 8]),
            ("assistant_text", [9]),
        ]

    def test_fault_1_excluding_a_group_with_a_gap_leaves_what_stands_in_the_gap(self) -> None:
        messages = SHAPES["non-adjacent results (1)"]()
        index = MessageIndex(messages)
        index.exclude(group_of(index, 4), "old")
        assert same_objects(index.included_messages(), [m for n, m in enumerate(messages) if n not in (4, 6)])

    def test_fault_1_included_messages_keep_their_order_across_gaps(self) -> None:
        messages = SHAPES["non-adjacent results (1)"]()
        assert same_objects(MessageIndex(messages).included_messages(), messages)

    def test_results_that_come_after_the_next_step_find_their_call(self) -> None:
        messages = [A(calls=["a"]), A(calls=["b"]), T("b"), T("a")]
        assert outline(MessageIndex(messages)) == [("tool_call", [0, 3]), ("tool_call", [1, 2])]


class TestPairing:
    def test_fault_4_a_repeated_id_never_merges_two_groups(self) -> None:
        index = MessageIndex(SHAPES["repeated ids (4)"]())
        assert [positions for kind, positions in outline(index) if kind == "tool_call"] == [[1, 2], [3, 4], [5, 6]]

    def test_fault_4_a_repeated_id_pairs_each_text_with_its_own_call(self) -> None:
        messages = [m for n in range(3) for m in (A(calls=[("call_0", "t", {"n": n})]), T("call_0", f"text {n}"))]
        index = MessageIndex(messages)
        pairs = [(e.call.arguments["n"], e.result.result) for group in index.groups for e in group.exchanges()]
        assert pairs == [(0, "text 0"), (1, "text 1"), (2, "text 2")]

    def test_fault_4_missing_ids_are_paired_by_position(self) -> None:
        calls = [(None, "t", {"n": 0}), (None, "t", {"n": 1})]
        messages = [A(calls=calls), T(None, "zero"), T(None, "one"), A(calls=[None]), T(None, "two")]
        index = MessageIndex(messages)
        assert outline(index) == [("tool_call", [0, 1, 2]), ("tool_call", [3, 4])]
        assert [(e.call.arguments["n"], e.result.result) for e in index.groups[0].exchanges()] == [
            (0, "zero"),
            (1, "one"),
        ]

    def test_fault_4_one_id_twice_in_a_message_gives_each_call_its_own_result(self) -> None:
        calls = [("call_0", "t", {"n": 0}), ("call_0", "t", {"n": 1})]
        index = MessageIndex([A(calls=calls), T("call_0", "zero"), T("call_0", "one")])
        assert len(index.groups) == 1
        assert [(e.call.arguments["n"], e.result.result, e.position) for e in index.groups[0].exchanges()] == [
            (0, "zero", 1),
            (1, "one", 2),
        ]

    def test_fault_4_a_dead_call_does_not_take_the_result_of_a_later_call_with_its_id(self) -> None:
        index = MessageIndex([U("go"), A(calls=["call_0"]), U("again"), A(calls=["call_0"]), T("call_0", "yes")])
        assert group_of(index, 1).positions == group_of(index, 1).positions != group_of(index, 4).positions
        assert group_of(index, 4) is group_of(index, 3)
        assert group_of(index, 1).is_dead

    def test_fault_7_a_message_with_two_results_answers_two_calls(self) -> None:
        both = in_one_message(T("a", "of a"), T("b", "of b"))
        index = MessageIndex([A(calls=["a", "b"]), both])
        assert outline(index) == [("tool_call", [0, 1])]
        assert [(e.call.id, e.result.result, e.position) for e in index.groups[0].exchanges()] == [
            ("a", "of a", 1),
            ("b", "of b", 1),
        ]

    def test_a_result_without_a_call_is_an_exchange_without_a_call(self) -> None:
        (exchange,) = MessageIndex([T("a", "of a")]).groups[0].exchanges()
        assert (exchange.call, exchange.result.result, exchange.position) == (None, "of a", 0)

    def test_a_call_without_a_result_is_an_exchange_without_a_result(self) -> None:
        exchanges = MessageIndex([A(calls=["a", "b"]), T("b", "of b")]).groups[0].exchanges()
        open_one = next(exchange for exchange in exchanges if exchange.call.id == "a")
        assert (open_one.result, open_one.position) == (None, None)

    @pytest.mark.parametrize("seed", range(40))
    def test_the_pairs_of_a_random_conversation_are_those_of_a_plain_search(self, seed: int) -> None:
        messages = random_conversation(random.Random(seed))
        expected = {
            (id(messages[r].tool_call_results[k]), id(messages[c].tool_calls[j]))
            for (r, k), (c, j) in answers(messages).items()
        }
        found = {
            (id(exchange.result), id(exchange.call))
            for group in MessageIndex(messages).groups
            for exchange in group.exchanges()
            if exchange.call is not None and exchange.result is not None
        }
        assert found == expected

    @pytest.mark.parametrize("seed", range(40))
    def test_every_message_is_in_exactly_one_group(self, seed: int) -> None:
        messages = random_conversation(random.Random(seed))
        positions = [position for group in MessageIndex(messages).groups for position in group.positions]
        assert sorted(positions) == list(range(len(messages)))


class TestCallsWithoutResults:
    def test_fault_5_a_call_in_the_last_assistant_message_is_pending(self) -> None:
        group = MessageIndex([U("go"), A(calls=["a"])]).groups[-1]
        assert (group.kind, group.is_pending, group.is_dead) == (KIND.TOOL_CALL, True, False)

    def test_fault_5_a_half_answered_last_step_is_pending_as_a_whole(self) -> None:
        group = MessageIndex([U("go"), A(calls=["a", "b"]), T("a")]).groups[-1]
        assert (group.is_pending, list(group.positions)) == (True, [1, 2])

    def test_fault_5_a_user_message_after_it_leaves_the_call_pending(self) -> None:
        index = MessageIndex([U("go"), A(calls=["a"]), U("yes")])
        assert group_of(index, 1).is_pending

    def test_a_call_that_a_later_assistant_message_passed_over_is_dead(self) -> None:
        group = group_of(MessageIndex([U("go"), A(calls=["a"]), U("never mind"), A("fine")]), 1)
        assert (group.is_pending, group.is_dead) == (False, True)

    def test_an_answered_step_is_neither(self) -> None:
        group = MessageIndex([U("go"), *step("a")]).groups[-1]
        assert (group.is_pending, group.is_dead, group.is_orphan) == (False, False, False)

    def test_a_result_without_a_call_is_a_group_of_its_own(self) -> None:
        index = MessageIndex([T("x", "lost"), U("go"), *step("a"), T("a", "a second answer")])
        assert [list(group.positions) for group in index.groups if group.is_orphan] == [[0], [4]]

    def test_a_result_without_its_call_is_an_exchange_without_one(self) -> None:
        (exchange,) = MessageIndex([T("nobody", "text"), U("go")]).groups[0].exchanges()
        assert (exchange.call, exchange.result.result, exchange.position) == (None, "text", 0)

    @pytest.mark.parametrize("seed", range(30))
    def test_the_orphans_of_a_random_conversation_are_the_results_that_answer_nothing(self, seed: int) -> None:
        messages = random_conversation(random.Random(seed))
        found = [position for group in MessageIndex(messages).groups if group.is_orphan for position in group.positions]
        assert sorted(found) == orphans(messages)


class TestReasoning:
    def test_fault_6_reasoning_directly_before_a_call_is_in_its_group(self) -> None:
        index = MessageIndex([U("go"), A(reasoning="hm"), A(reasoning="so"), A(calls=["a"]), T("a")])
        assert outline(index) == [("user", [0]), ("tool_call", [1, 2, 3, 4])]

    def test_fault_6_reasoning_between_a_call_and_its_results_is_in_the_group(self) -> None:
        index = MessageIndex([U("go"), A(calls=["a", "b"]), T("a"), A(reasoning="hm"), T("b"), A("done")])
        assert outline(index)[1] == ("tool_call", [1, 2, 3, 4])

    def test_fault_6_reasoning_between_two_steps_goes_with_the_call_that_it_leads_to(self) -> None:
        index = MessageIndex([U("go"), *step("a"), A(reasoning="next"), *step("b")])
        assert outline(index) == [("user", [0]), ("tool_call", [1, 2]), ("tool_call", [3, 4, 5])]

    def test_fault_6_reasoning_with_text_is_text(self) -> None:
        index = MessageIndex([U("go"), A("aloud", reasoning="hm"), *step("a")])
        assert outline(index) == [("user", [0]), ("assistant_text", [1]), ("tool_call", [2, 3])]

    def test_fault_6_reasoning_before_a_user_message_is_not_part_of_the_next_step(self) -> None:
        index = MessageIndex([U("go"), A(reasoning="hm"), U("well?"), *step("a")])
        assert outline(index)[-1] == ("tool_call", [3, 4])

    def test_fault_6_a_signature_is_left_as_it_is(self) -> None:
        signed = ReasoningContent("because", extra={"signature": "c2ln"})
        index = MessageIndex([U("go"), A(reasoning=signed), A(calls=["a"]), T("a")])
        assert index.groups[1].messages[0].reasoning is signed


class TestTurns:
    def test_a_turn_is_a_user_message_and_all_up_to_the_next(self) -> None:
        index = MessageIndex([U("one"), A("hi"), *step("a"), U("two"), A("bye")])
        assert [group.turn_index for group in index.groups] == [1, 1, 1, 2, 2]
        assert index.total_turn_count == 2

    def test_system_messages_belong_to_no_turn_wherever_they_stand(self) -> None:
        index = MessageIndex([S("rules"), U("one"), A("hi"), S("policy"), A("so")])
        assert [group.turn_index for group in index.groups] == [None, 1, 1, None, 1]

    def test_what_stands_before_the_first_user_message_is_turn_0(self) -> None:
        index = MessageIndex([S("rules"), A("welcome"), *step("a"), U("hello")])
        assert [group.turn_index for group in index.groups] == [None, 0, 0, 1]

    def test_a_group_with_a_gap_is_in_the_turn_of_its_call(self) -> None:
        index = MessageIndex([U("book"), A(calls=["a"]), U("yes"), T("a"), A("done")])
        assert group_of(index, 3).turn_index == 1
        assert group_of(index, 4).turn_index == 2

    def test_a_message_that_compaction_wrote_starts_no_turn(self) -> None:
        index = MessageIndex([U("one"), A("hi"), note(), A("so"), U("two")])
        assert index.total_turn_count == 2
        assert index.groups[-1].turn_index == 2


class TestTask:
    def positions(self, messages: list[ChatMessage]) -> list[int]:
        return [position for group in MessageIndex(messages).task_groups for position in group.positions]

    def test_the_latest_user_message_is_the_task(self) -> None:
        assert self.positions([S("rules"), U("one"), A("hi"), U("two"), *steps("a", "b")]) == [3]

    def test_fault_12_user_messages_in_a_row_are_one_task(self) -> None:
        assert self.positions([S("rules"), U("document"), U("question"), *steps("a", "b", "c")]) == [1, 2]

    def test_fault_12_an_earlier_task_is_not_the_task_any_more(self) -> None:
        assert self.positions([S("rules"), U("TASK"), *step("a"), A("pausing"), U("continue"), *step("b")]) == [5]

    def test_a_note_is_never_the_task(self) -> None:
        assert self.positions([U("task"), *step("a"), note(), *step("b")]) == [0]

    def test_a_note_ends_the_run_of_user_messages(self) -> None:
        assert self.positions([U("old"), note("between", strategy="separator"), U("document"), U("question")]) == [2, 3]

    def test_the_only_user_message_is_the_task_even_when_it_is_marked(self) -> None:
        assert self.positions([S("rules"), note(), *step("a")]) == [1]

    def test_without_a_user_message_there_is_no_task(self) -> None:
        assert self.positions([S("rules"), *step("a")]) == []

    @pytest.mark.parametrize("seed", range(40))
    def test_the_task_of_a_random_conversation_is_that_of_a_plain_search(self, seed: int) -> None:
        messages = random_conversation(random.Random(seed))
        assert self.positions(messages) == task_positions(messages)

    def test_a_later_user_message_takes_over_on_extend(self) -> None:
        index = MessageIndex([U("one"), *step("a")])
        index.extend([A("done"), U("two"), U("three")])
        assert [group.positions[0] for group in index.task_groups] == [4, 5]


class TestNewestStep:
    def test_it_is_the_last_assistant_message_with_its_results(self) -> None:
        index = MessageIndex([U("go"), *step("a"), A(calls=["b", "c"]), T("b"), T("c")])
        assert list(index.newest_step.positions) == [3, 4, 5]

    def test_a_final_answer_is_the_newest_step(self) -> None:
        index = MessageIndex([U("go"), *step("a"), A("done"), U("thanks")])
        assert list(index.newest_step.positions) == [3]

    def test_without_an_assistant_message_there_is_none(self) -> None:
        assert MessageIndex([S("rules"), U("go")]).newest_step is None

    def test_it_moves_on_when_the_index_is_extended(self) -> None:
        index = MessageIndex([U("go"), *step("a")])
        index.extend(step("b"))
        assert list(index.newest_step.positions) == [3, 4]


class TestSums:
    def test_tokens_of_a_group_are_those_of_its_messages(self) -> None:
        counter = EstimatedTokenCounter()
        for shape in SHAPES.values():
            index = MessageIndex(shape(), counter)
            assert [group.token_count for group in index.groups] == [counter.count(g.messages) for g in index.groups]

    def test_tokens_of_the_index_are_those_of_the_conversation(self) -> None:
        counter = EstimatedTokenCounter()
        messages = SHAPES["plain steps"]()
        index = MessageIndex(messages, counter)
        assert index.total_token_count == index.included_token_count == counter.count(messages)

    def test_a_counter_of_haystack_can_be_used(self) -> None:
        counter = ApproximateTokenCounter()
        messages = SHAPES["plain steps"]()
        tokens = MessageIndex(messages, counter).total_token_count
        assert tokens == pytest.approx(counter.count(messages), rel=0.02)

    def test_bytes_are_those_of_utf_8(self) -> None:
        ascii_bytes, accented, chinese = (MessageIndex([U(c * 50)]).total_byte_count for c in "eé会")
        assert (accented - ascii_bytes, chinese - ascii_bytes) == (50, 100)

    def test_fault_23_a_lone_surrogate_has_a_size(self) -> None:
        index = MessageIndex([U("go"), A(calls=["a"]), T("a", "\ud83d" * 20)])
        assert index.total_byte_count > 20
        assert index.total_token_count > 0

    def test_totals_are_sums_over_the_groups(self) -> None:
        for shape in SHAPES.values():
            messages = shape()
            index = MessageIndex(messages)
            assert index.total_group_count == len(index.groups)
            assert index.total_message_count == len(messages) == sum(group.message_count for group in index.groups)
            assert index.total_byte_count == sum(group.byte_count for group in index.groups)

    def test_excluding_leaves_the_totals(self) -> None:
        index = MessageIndex(SHAPES["plain steps"]())
        before = (index.total_group_count, index.total_message_count, index.total_token_count, index.total_byte_count)
        index.exclude(index.groups[2], "old")
        after = (index.total_group_count, index.total_message_count, index.total_token_count, index.total_byte_count)
        assert after == before


class TestMeasuring:
    def test_nothing_is_measured_before_somebody_asks(self) -> None:
        counter = RecordingCounter()
        index = MessageIndex(SHAPES["plain steps"](), counter)
        index.exclude(index.groups[2], "old")
        assert index.included_message_count > 0
        assert counter.requests == []

    def test_each_message_is_measured_once(self) -> None:
        counter = RecordingCounter()
        messages = SHAPES["plain steps"]()
        index = MessageIndex(messages, counter)
        for group in index.groups:
            assert group.token_count > 0
        assert index.total_token_count > 0
        index.exclude(index.groups[2], "old")
        assert index.included_token_count > 0
        assert [counter.times(message) for message in messages] == [1] * len(messages)

    def test_a_counter_of_unknown_kind_measures_each_message_with_the_whole_and_with_its_group(self) -> None:
        counter = RecordingCounter(additive=False)
        messages = SHAPES["plain steps"]()
        index = MessageIndex(messages, counter)
        assert [group.token_count > 0 for group in index.groups] == [True] * len(index.groups)
        index.exclude(index.groups[2], "old")
        assert index.included_token_count > 0
        assert max(counter.times(message) for message in messages) <= 2

    def test_an_extension_measures_new_messages_only(self) -> None:
        counter = RecordingCounter()
        old, new = [U("go"), *steps("a", "b", "c")], [*steps("d"), A("done")]
        index = MessageIndex(old, counter)
        assert index.included_token_count > 0
        index.extend(new)
        assert index.included_token_count == RecordingCounter().count([*old, *new])
        assert [counter.times(message) for message in [*old, *new]] == [1] * (len(old) + len(new))

    def test_an_extension_looks_at_new_messages_only(self) -> None:
        old = [_Watched.of(message) for message in [S("rules"), U("go"), *steps("a", "b", "c"), A("so"), U("on")]]
        index = MessageIndex(old)
        assert index.included_token_count > 0
        _Watched.seen.clear()
        index.extend([*steps("d"), A("done"), U("more")])
        assert index.included_token_count > 0
        assert index.total_turn_count == 3
        assert _Watched.seen == set()


class _Watched(ChatMessage):
    """A message that notes when its content is read."""

    seen: set[int] = set()  # noqa: RUF012

    @classmethod
    def of(cls, message: ChatMessage) -> ChatMessage:
        return cls(_role=message.role, _content=message._content, _name=message.name, _meta=message.meta)

    def __getattribute__(self, name: str) -> object:
        if name == "_content":
            _Watched.seen.add(id(self))
        return super().__getattribute__(name)


class TestExclude:
    def test_a_group_remembers_why_it_went(self) -> None:
        index = MessageIndex([U("go"), *steps("a", "b")])
        index.exclude(index.groups[1], "too old")
        assert (index.groups[1].is_excluded, index.groups[1].exclude_reason) == (True, "too old")
        assert (index.groups[2].is_excluded, index.groups[2].exclude_reason) == (False, None)

    def test_an_excluded_group_is_not_among_the_included_ones(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        index = MessageIndex(messages)
        index.exclude(index.groups[1], "too old")
        assert same_objects(index.included_messages(), [messages[0], *messages[3:]])
        assert [list(group.positions) for group in index.included_groups()] == [[0], [3, 4]]

    def test_all_messages_still_has_it(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        index = MessageIndex(messages)
        index.exclude(index.groups[1], "too old")
        assert same_objects(index.all_messages(), messages)

    def test_excluding_twice_counts_once(self) -> None:
        index = MessageIndex([U("go"), *steps("a", "b")])
        index.exclude(index.groups[1], "too old")
        once = (index.included_message_count, index.included_token_count, index.included_group_count)
        index.exclude(index.groups[1], "too old")
        assert (index.included_message_count, index.included_token_count, index.included_group_count) == once

    def test_a_turn_counts_while_any_of_its_groups_is_included(self) -> None:
        index = MessageIndex([U("one"), A("hi"), U("two"), A("bye")])
        index.exclude(index.groups[0], "old")
        assert index.included_turn_count == 2
        index.exclude(index.groups[1], "old")
        assert (index.included_turn_count, index.total_turn_count) == (1, 2)


class TestReplace:
    def test_the_replacement_stands_where_the_oldest_replaced_group_stood(self) -> None:
        messages = [S("rules"), U("one"), A("hi"), U("two"), *steps("a", "b")]
        index = MessageIndex(messages)
        summary = note()
        index.replace([index.groups[2], index.groups[1]], [summary], "summarised")
        assert same_objects(index.included_messages(), [messages[0], summary, *messages[3:]])

    def test_groups_that_do_not_stand_together_can_be_replaced_by_one_message(self) -> None:
        messages = [U("go"), *step("a"), A("so"), *step("b"), *step("c")]
        index = MessageIndex(messages)
        summary = note()
        index.replace([index.groups[1], index.groups[3]], [summary], "collapsed")
        assert same_objects(index.included_messages(), [messages[0], summary, messages[3], *messages[6:]])

    def test_replaced_groups_are_excluded_for_the_reason_given(self) -> None:
        index = MessageIndex([U("one"), A("hi"), U("two")])
        replaced = index.groups[1]
        index.replace([replaced], [note()], "summarised")
        assert (replaced.is_excluded, replaced.exclude_reason) == (True, "summarised")

    def test_the_replacement_is_counted(self) -> None:
        counter = EstimatedTokenCounter()
        index = MessageIndex([U("one"), A(prose(2000)), U("two")], counter)
        assert index.included_token_count > 300
        index.replace([index.groups[1]], [note("short")], "summarised")
        assert index.included_token_count == counter.count(index.included_messages())
        assert index.included_message_count == 3

    def test_a_replacement_that_compaction_wrote_is_a_summary_group(self) -> None:
        index = MessageIndex([U("one"), A("hi"), U("two")])
        index.replace([index.groups[1]], [note()], "summarised")
        assert [group.kind for group in index.included_groups()] == [KIND.USER, KIND.SUMMARY, KIND.USER]

    def test_no_original_is_forgotten(self) -> None:
        messages = [U("one"), A("hi"), U("two")]
        index = MessageIndex(messages)
        index.replace([index.groups[1]], [note()], "summarised")
        everything = {id(message) for message in index.all_messages()}
        assert {id(message) for message in messages} <= everything


class TestRewrite:
    def test_a_rewritten_message_takes_the_place_of_the_original(self) -> None:
        counter = EstimatedTokenCounter()
        messages = [U("go"), *steps("a", "b")]
        index = MessageIndex(messages, counter)
        assert index.included_token_count > 0
        group = index.groups[2]
        position = group.exchanges()[0].position
        short = T("b", "[removed]", meta={MARK: {"strategy": "tool_result_pruning"}})
        index.rewrite(group, position, short)
        assert same_objects(index.included_messages(), [*messages[:-1], short])
        assert index.included_token_count == counter.count(index.included_messages())
        assert index.included_message_count == len(messages)

    def test_the_message_itself_is_left_alone(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        before = copy.deepcopy(messages)
        index = MessageIndex(messages)
        index.rewrite(index.groups[1], index.groups[1].exchanges()[0].position, T("a", "[removed]"))
        assert messages == before


class TestExtend:
    def test_a_pending_call_gets_its_result(self) -> None:
        index = MessageIndex([U("go"), A(calls=["a"])])
        index.extend([T("a", "here")])
        assert outline(index) == [("user", [0]), ("tool_call", [1, 2])]
        assert not index.groups[1].is_pending

    def test_a_pending_call_that_is_passed_over_is_dead(self) -> None:
        index = MessageIndex([U("go"), A(calls=["a"])])
        index.extend([U("never mind"), A("fine")])
        assert (index.groups[1].is_pending, index.groups[1].is_dead) == (False, True)

    def test_reasoning_at_the_end_joins_the_call_that_follows(self) -> None:
        index = MessageIndex([U("go"), A(reasoning="hm")])
        index.extend(step("a"))
        assert outline(index) == [("user", [0]), ("tool_call", [1, 2, 3])]

    def test_extending_by_nothing_changes_nothing(self) -> None:
        messages = SHAPES["plain steps"]()
        index = MessageIndex(messages)
        index.extend([])
        assert outline(index) == outline(MessageIndex(messages))

    def test_the_callers_list_does_not_grow(self) -> None:
        messages = [U("go")]
        MessageIndex(messages).extend(step("a"))
        assert len(messages) == 1

    def test_what_was_excluded_stays_excluded(self) -> None:
        messages = [U("go"), *steps("a", "b")]
        index = MessageIndex(messages)
        index.exclude(index.groups[1], "old")
        index.extend(step("c"))
        assert index.groups[1].is_excluded
        assert index.included_message_count == len(index.included_messages()) == 5

    @given(messages=conversations(), data=st.data())
    @settings(max_examples=100, deadline=None, derandomize=True)
    def test_extending_in_parts_is_building_at_once(self, messages: list[ChatMessage], data: st.DataObject) -> None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=4), label="cuts"))
        grown = MessageIndex([])
        for start, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
            grown.extend(messages[start:end])
            # Asked in between, so that nothing is put right only because it was never remembered.
            assert grown.included_token_count >= 0
        built = MessageIndex(messages)
        assert described(grown) == described(built)


def described(index: MessageIndex) -> object:
    """All that can be seen of an index."""
    groups = [
        (g.kind, list(g.positions), g.turn_index, g.is_pending, g.is_dead, g.is_orphan, g.token_count, g.byte_count)
        for g in index.groups
    ]
    newest = index.newest_step
    return (
        groups,
        [list(group.positions) for group in index.task_groups],
        None if newest is None else list(newest.positions),
        (index.total_turn_count, index.total_token_count, index.total_byte_count, index.total_message_count),
        (index.included_turn_count, index.included_token_count, index.included_byte_count, index.included_group_count),
        [id(message) for message in index.included_messages()],
    )


class TestIncludedSums:
    @given(messages=conversations(), data=st.data(), ask_first=st.booleans())
    @settings(max_examples=100, deadline=None, derandomize=True)
    def test_they_are_what_a_new_count_gives_after_any_changes(
        self, messages: list[ChatMessage], data: st.DataObject, ask_first: bool
    ) -> None:
        counter = EstimatedTokenCounter()
        index = MessageIndex(messages, counter)
        if ask_first:
            assert index.included_token_count == counter.count(messages)
        for change in data.draw(
            st.lists(st.sampled_from(["exclude", "replace", "extend"]), max_size=5), label="changes"
        ):
            included = index.included_groups()
            if change == "extend":
                index.extend(step("more"))
            elif included:
                group = data.draw(st.sampled_from(included), label="group")
                if change == "exclude":
                    index.exclude(group, "went")
                else:
                    index.replace([group], [note("in place of it")], "replaced")
        self.check(index, counter)

    def check(self, index: MessageIndex, counter: EstimatedTokenCounter) -> None:
        included = index.included_messages()
        groups = [group for group in index.groups if not group.is_excluded]
        assert index.included_message_count == len(included)
        assert index.included_group_count == len(groups) == len(index.included_groups())
        assert index.included_token_count == counter.count(included)
        assert index.included_byte_count == MessageIndex(included).total_byte_count
        real_turns = {g.turn_index for g in groups if g.turn_index and g.kind is not KIND.SUMMARY}
        # Whether turn 0, or a turn of which only a note is left, counts as a turn is left open.
        assert len(real_turns) <= index.included_turn_count <= len(real_turns) + 2


class TestTheInputIsNotTouched:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_list_equals_a_deep_copy_after_everything(self, shape: str) -> None:
        messages = SHAPES[shape]()
        before, objects = copy.deepcopy(messages), [id(message) for message in messages]
        index = MessageIndex(messages)
        assert index.included_token_count == index.total_token_count
        for group in list(index.groups)[::2]:
            index.exclude(group, "went")
        for group in index.included_groups()[:1]:
            index.replace([group], [note()], "replaced")
        index.extend(step("more"))
        assert messages == before
        assert [id(message) for message in messages] == objects

    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_messages_come_out_as_they_went_in(self, shape: str) -> None:
        messages = SHAPES[shape]()
        index = MessageIndex(messages)
        assert same_objects(index.included_messages(), messages)
        assert same_objects(index.all_messages(), messages)


class TestBadInput:
    @pytest.mark.parametrize("messages", [None, "text", 3, [U("go"), None], [U("go"), {"role": "user"}]])
    def test_anything_but_a_list_of_messages_is_refused_by_name(self, messages: object) -> None:
        with pytest.raises(TypeError, match="`messages`"):
            MessageIndex(messages)

    def test_a_counter_that_cannot_count_is_refused_by_name(self) -> None:
        with pytest.raises(TypeError, match="`token_counter`"):
            MessageIndex([U("go")], object())

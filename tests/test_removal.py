"""What every removal of groups keeps to: no more than needed, the note paid for, a second pass with nothing to do."""

import random
from typing import Any

import pytest
from conversations import (
    A,
    S,
    T,
    U,
    conversations,
    note,
    prose,
    random_conversation,
    shares,
    step,
    steps,
)
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Facts, RecordingCounter, broken_rules

from haystack_compaction import (
    EstimatedTokenCounter,
    MessageGroup,
    MessageGroupKind,
    MessageIndex,
    Outcome,
    Reason,
    SlidingWindowCompactor,
    TruncationCompactor,
    apply_edit,
)
from haystack_compaction.steps import drive

COUNTER = EstimatedTokenCounter()
REMOVING = Facts(removes=True, notes=True, rewrites=frozenset())

thorough = settings(max_examples=150, deadline=None, derandomize=True)

removers = st.one_of(
    st.builds(
        SlidingWindowCompactor,
        min_keep_steps=st.integers(1, 3),
        min_keep_turns=st.integers(1, 2),
        evidence_tokens=st.sampled_from([None, 0, 60, 400]),
        min_keep_groups=st.integers(0, 3),
        pin_first_user_message=st.booleans(),
        pin_meta_keys=st.sampled_from([(), ("source",)]),
    ),
    st.builds(
        TruncationCompactor,
        min_keep_groups=st.integers(1, 3),
        omission_note=st.sampled_from([None, "[{num_removed} gone]"]),
        evidence_tokens=st.sampled_from([None, 0, 60]),
        pin_meta_keys=st.sampled_from([(), ("source",)]),
    ),
)


def outcome(compactor: Any, messages: list[ChatMessage], target: int, counter: Any = COUNTER) -> Outcome:
    return drive(compactor.steps(MessageIndex(messages, counter), target))


class TestAnyConversation:
    @given(messages=conversations(max_blocks=14), compactor=removers, share=shares())
    @thorough
    def test_the_contract_holds_and_a_second_pass_finds_nothing(
        self, messages: list[ChatMessage], compactor: Any, share: float
    ) -> None:
        target = int(COUNTER.count(messages) * share)
        result = outcome(compactor, messages, target)
        assert result.failures == ()
        if result.compacted:
            assert broken_rules(messages, result.messages, target, COUNTER, facts=REMOVING) == []
            assert compactor.compact(result.messages, target, COUNTER) is None

    @given(messages=conversations(max_blocks=14), compactor=removers, share=shares())
    @thorough
    def test_a_second_pass_finds_nothing_by_haystacks_counter_either(
        self, messages: list[ChatMessage], compactor: Any, share: float
    ) -> None:
        counter = ApproximateTokenCounter()
        target = int(counter.count(messages) * share)
        after = compactor.compact(messages, target, counter)
        if after is not None:
            assert compactor.compact(after, target, counter) is None

    @given(messages=conversations(complete=True, max_blocks=14), compactor=removers, share=shares())
    @thorough
    def test_nor_by_one_of_unknown_kind(self, messages: list[ChatMessage], compactor: Any, share: float) -> None:
        counter = RecordingCounter(additive=False)
        target = int(counter.count(messages) * share)
        after = compactor.compact(messages, target, counter)
        assert broken_rules(messages, after, target, counter, facts=REMOVING) == []
        if after is not None:
            assert compactor.compact(after, target, counter) is None

    @given(messages=conversations(max_blocks=14), compactor=removers, share=shares())
    @thorough
    def test_the_last_that_went_would_pass_the_target(
        self, messages: list[ChatMessage], compactor: Any, share: float
    ) -> None:
        target = int(COUNTER.count(messages) * share)
        result = outcome(compactor, messages, target)
        unit = last_unit(result, compactor)
        if unit:
            assert result.after.tokens + sum(group.token_count for group in unit) > target

    @given(messages=conversations(max_blocks=14), compactor=removers, share=shares())
    @thorough
    def test_edits_are_data_that_tell_all_that_was_done(
        self, messages: list[ChatMessage], compactor: Any, share: float
    ) -> None:
        result = outcome(compactor, messages, int(COUNTER.count(messages) * share))
        assert sum(edit.freed_tokens for edit in result.edits) == result.freed_tokens
        assert result.after.tokens == COUNTER.count(result.messages)
        index = MessageIndex(messages, COUNTER)
        groups = {tuple(group.positions): group for group in index.groups}
        for edit in result.edits:
            apply_edit(index, edit._replace(groups=tuple(groups[tuple(group.positions)] for group in edit.groups)))
        assert index.included_messages() == result.messages
        assert index.included_message_count == len(result.messages)

    @pytest.mark.parametrize("seed", range(40))
    def test_a_target_that_can_be_reached_is_reached_with_the_note_in(self, seed: int) -> None:
        messages = [*random_conversation(random.Random(seed), blocks=20, well_behaved=True), U("task"), *step("z", 200)]
        for compactor in (SlidingWindowCompactor(), TruncationCompactor(omission_note="[{num_removed} gone]")):
            least = outcome(type(compactor)(omission_note="[999 gone]", evidence_tokens=0), messages, 0).after.tokens
            for target in (least + 30, least + 90, least + 400):
                if target < COUNTER.count(messages):
                    assert outcome(compactor, messages, target).after.tokens <= target


def last_unit(result: Outcome, compactor: Any) -> list[MessageGroup]:
    """What went last, if the target was reached: a turn of the window is one piece."""
    went = [edit.groups[0] for edit in result.edits if not edit.messages and edit.reason != "folded into a newer note"]
    if not went or result.after.tokens > (result.target_tokens or 0) or went[-1].is_orphan or result.index is None:
        return []
    last, task = went[-1], result.index.task_groups
    start = task[0].positions[0] if task else -1
    if isinstance(compactor, TruncationCompactor) or last.positions[0] > start or last.kind is MessageGroupKind.SUMMARY:
        return [last]
    return [
        group
        for group in went
        if group.turn_index == last.turn_index
        and group.positions[0] < start
        and group.kind is not MessageGroupKind.SUMMARY
        and not group.is_orphan
    ]


class TestPayingForTheNote:
    def test_fault_19_a_note_that_costs_more_than_it_frees_is_not_left(self) -> None:
        messages = [S("rules"), U("hi"), A("ok"), U("task " + prose(2000)), *step("a", 400)]
        result = outcome(SlidingWindowCompactor(), messages, 0)
        assert result.reason in (Reason.NOTHING_MAY_GO, Reason.NO_GAIN)
        assert result.messages == messages

    def test_fault_19_without_a_note_it_is_worth_it(self) -> None:
        messages = [S("rules"), U("hi"), A("ok"), U("task " + prose(2000)), *step("a", 400)]
        assert outcome(SlidingWindowCompactor(omission_note=None), messages, 0).compacted

    @pytest.mark.parametrize("evidence_tokens", [None, 0, 100])
    def test_fault_19_a_target_of_600_is_reached_with_the_note_in(self, evidence_tokens: int | None) -> None:
        messages = [S("rules"), U("task"), *steps("a", "b", "c", "d", "e", "f", chars=300)]
        for chars in range(0, 200, 7):
            result = outcome(SlidingWindowCompactor(evidence_tokens=evidence_tokens), [*messages, A("x" * chars)], 600)
            assert result.after.tokens <= 600

    def test_where_the_target_is_out_of_reach_the_note_goes_in_all_the_same(self) -> None:
        messages = [S("rules"), U("task"), *steps("a", "b", "c", chars=900)]
        result = outcome(SlidingWindowCompactor(), messages, 10)
        assert any("context_compaction" in message.meta for message in result.messages)
        assert result.freed_tokens > 0

    def test_it_takes_at_most_half_of_what_is_freed(self) -> None:
        messages = [S("rules"), U("task"), *steps("a", "b", chars=300), *step("c", 4000)]
        result = outcome(SlidingWindowCompactor(evidence_tokens=5000), messages, 0)
        assert result.freed_tokens * 2 >= sum(edit.freed_tokens for edit in result.edits if not edit.messages)

    def test_the_newest_groups_stay_out_of_reach_beside_a_line_of_ours(self) -> None:
        messages = [A(calls=["a"]), U("one"), T("a", prose(900)), U("two"), *step("b", 300)]
        compactor = TruncationCompactor(min_keep_groups=3)
        after = outcome(compactor, messages, 0).messages
        assert len(after) == 5
        assert compactor.compact(after, 0, COUNTER) is None

    def test_a_summary_shorter_than_a_note_is_not_folded(self) -> None:
        messages = [S("rules"), note("short"), U("task"), *step("a", 900)]
        for compactor in (SlidingWindowCompactor(), TruncationCompactor()):
            assert compactor.compact(messages, 0, COUNTER) is None


class TestWhereTheNoteStands:
    def test_at_the_place_of_the_oldest_message_that_went(self) -> None:
        messages = [S("rules"), U("task"), *steps("a", "b", "c", chars=900)]
        assert "context_compaction" in outcome(SlidingWindowCompactor(), messages, 0).messages[2].meta

    def test_never_between_a_call_and_its_results(self) -> None:
        calls = [U("task"), A(calls=["a", "b"]), T("a"), T("a", prose(900)), T("b"), A("done")]
        after = outcome(SlidingWindowCompactor(min_keep_steps=2), calls, 0).messages
        assert after == [*calls[:3], *calls[4:]]

    def test_between_two_users_it_parts_them(self) -> None:
        pinned = U("old", meta={"keep": 1})
        messages = [pinned, A(prose(900)), U("task"), *step("a", 300)]
        after = outcome(SlidingWindowCompactor(pin_meta_keys=("keep",)), messages, 0).messages
        assert [message.meta.get("context_compaction", {}).get("strategy") for message in after[:3]] == [
            None,
            "sliding_window",
            None,
        ]


class TestWork:
    def test_each_message_is_measured_once_and_the_note_a_few_times(self) -> None:
        messages = [S("rules"), U("task"), *steps(*(f"s{n}" for n in range(400)), chars=200)]
        counter = RecordingCounter()
        target = RecordingCounter().count(messages) // 3
        assert SlidingWindowCompactor(evidence_tokens=0).compact(messages, target, counter) is not None
        assert max(counter.times(message) for message in messages) == 1
        assert counter.measured - len(messages) < 20

"""The window: what it keeps, in which order the rest goes, and that it is Haystack's where that is promised."""

import random
import warnings
from typing import Any

import pytest
from conversations import A, S, T, U, as_loaded_from_openai, note, prose, step, steps
from haystack.dataclasses import ChatMessage
from oracle import RecordingCounter

from haystack_compaction import EstimatedTokenCounter, MessagesExceed, SlidingWindowCompactor, TokensBelow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from haystack.hooks.compaction import SlidingWindowCompactor as HaystackWindow

COUNTER = EstimatedTokenCounter()
BARE = SlidingWindowCompactor(evidence_tokens=0)


def turn(name: str, chars: int = 600) -> list[ChatMessage]:
    return [U(f"question {name}"), *step(f"step {name}", chars), A(f"answer {name} {prose(100)}")]


def three_turns() -> list[ChatMessage]:
    return [S("rules"), *turn("one"), *turn("two"), U("task"), *steps("a", "b", "c", chars=600)]


def compacted(compactor: Any, messages: list[ChatMessage], target: int | None) -> list[ChatMessage]:
    after = compactor.compact(messages, target, COUNTER)
    assert after is not None
    return after


def kept(messages: list[ChatMessage], after: list[ChatMessage] | None) -> list[int]:
    there = {id(message) for message in (messages if after is None else after)}
    return [n for n, message in enumerate(messages) if id(message) in there]


def size_without(messages: list[ChatMessage], *gone: int) -> int:
    return COUNTER.count([message for n, message in enumerate(messages) if n not in gone])


class TestOrder:
    def test_whole_earlier_turns_go_first_and_oldest_first(self) -> None:
        messages = three_turns()
        after = compacted(BARE, messages, size_without(messages, *range(1, 5)) + 60)
        assert kept(messages, after) == [0, *range(5, 16)]
        assert after[1].meta["context_compaction"]["strategy"] == "sliding_window"

    def test_the_tasks_own_steps_go_when_no_earlier_turn_is_left(self) -> None:
        messages = three_turns()
        after = compacted(BARE, messages, size_without(messages, *range(1, 9), 10, 11) + 60)
        assert kept(messages, after) == [0, 9, *range(12, 16)]

    def test_what_stands_before_the_first_user_message_is_the_oldest_turn(self) -> None:
        messages = [S("rules"), *step("zero", 800), A("hello"), *three_turns()[1:]]
        after = compacted(BARE, messages, size_without(messages, 1, 2, 3) + 60)
        assert kept(messages, after) == [0, *range(4, 19)]

    def test_the_newest_step_stays_whatever_the_target(self) -> None:
        messages = three_turns()
        assert kept(messages, compacted(BARE, messages, 0)) == [0, 9, 14, 15]

    @pytest.mark.parametrize(("steps_kept", "first"), [(2, 12), (3, 10), (9, 10)])
    def test_as_many_steps_of_the_task_stay_as_asked_for(self, steps_kept: int, first: int) -> None:
        messages = three_turns()
        after = compacted(SlidingWindowCompactor(min_keep_steps=steps_kept), messages, 0)
        assert kept(messages, after) == [0, 9, *range(first, 16)]

    def test_with_no_step_kept_even_the_newest_goes(self) -> None:
        messages = three_turns()
        assert kept(messages, compacted(SlidingWindowCompactor(min_keep_steps=0), messages, 0)) == [0, 9]

    def test_as_many_turns_stay_whole_as_asked_for(self) -> None:
        messages = three_turns()
        after = compacted(SlidingWindowCompactor(min_keep_turns=2), messages, 0)
        assert kept(messages, after) == [0, *range(5, 16)]

    def test_the_newest_reply_stays_beside_a_new_task(self) -> None:
        messages = [S("rules"), *turn("one"), *turn("two"), U("and now?")]
        assert kept(messages, compacted(BARE, messages, 0)) == [0, 8, 9]


class TestWhatStays:
    def test_fault_8_instructions_stay_wherever_they_stand(self) -> None:
        messages = [S("rules"), U("task"), *step("z", 900), S("policy"), *steps("a", "b", chars=900)]
        assert {0, 4} <= set(kept(messages, compacted(BARE, messages, 0)))

    def test_fault_9_an_earlier_summary_stays_while_there_is_room(self) -> None:
        summary = note("What was done before, in twenty tokens or so.")
        messages = [S("rules"), summary, *turn("one"), U("task"), *steps("a", "b", chars=900)]
        after = compacted(BARE, messages, size_without(messages, 2, 3, 4, 5) + 60)
        assert summary in after

    def test_an_earlier_summary_goes_last_and_into_the_note(self) -> None:
        messages = [S("rules"), note(prose(900)), *turn("one"), U("task"), *steps("a", "b", chars=900)]
        after = compacted(BARE, messages, 0)
        assert kept(messages, after) == [0, 6, 9, 10]
        assert after[1].meta["context_compaction"]["removed_messages"] == 7

    def test_fault_12_users_in_a_row_are_one_task(self) -> None:
        messages = [S("rules"), *turn("one"), U(prose(500)), U("question"), *steps("a", "b", chars=900)]
        assert {5, 6} <= set(kept(messages, compacted(BARE, messages, 0)))

    def test_fault_12_the_first_user_message_can_be_pinned(self) -> None:
        messages = three_turns()
        assert 1 in kept(messages, compacted(SlidingWindowCompactor(pin_first_user_message=True), messages, 0))


class TestFault2:
    @pytest.mark.parametrize("count", range(1, 8))
    def test_a_window_of_groups_never_begins_with_a_result(self, count: int) -> None:
        messages = [U("x"), A(calls=["a", "b"]), T("a", prose(900)), T("b", prose(900)), U("y"), A(calls=["c"]), T("c")]
        after = SlidingWindowCompactor(keep_last_groups=count).compact(messages, None, COUNTER) or messages
        assert not after[0].tool_call_results
        ids = {call.id for message in after for call in message.tool_calls}
        assert ids == {result.origin.id for message in after for result in message.tool_call_results}


class TestWindowsByCount:
    def test_older_turns_go_without_any_target(self) -> None:
        messages = [S("rules"), *turn("one"), *turn("two"), *turn("three")]
        after = compacted(SlidingWindowCompactor(keep_last_turns=2), messages, None)
        assert kept(messages, after) == [0, *range(5, 13)]

    def test_older_groups_go_and_the_task_stays(self) -> None:
        messages = [S("rules"), U("task"), *steps("a", "b", "c", "d", chars=900)]
        after = compacted(SlidingWindowCompactor(keep_last_groups=2), messages, None)
        assert kept(messages, after) == [0, 1, *range(6, 10)]

    def test_they_apply_although_the_target_is_met(self) -> None:
        messages = [S("rules"), *turn("one"), *turn("two"), *turn("three")]
        after = compacted(SlidingWindowCompactor(keep_last_turns=1), messages, 1_000_000)
        assert kept(messages, after) == [0, *range(9, 13)]

    def test_a_target_takes_more_than_they_do(self) -> None:
        messages = [S("rules"), *turn("one"), *turn("two"), *turn("three")]
        after = compacted(SlidingWindowCompactor(keep_last_turns=2), messages, 0)
        assert kept(messages, after) == [0, 9, 12]

    def test_a_trigger_says_when_and_the_count_how_far(self) -> None:
        messages = [S("rules"), *turn("one"), *turn("two"), *turn("three")]
        compactor = SlidingWindowCompactor(keep_last_turns=2, trigger=MessagesExceed(12))
        assert kept(messages, compacted(compactor, messages, None)) == [0, *range(5, 13)]
        assert compactor.compact(messages[:12], None, COUNTER) is None

    def test_what_compaction_wrote_is_not_counted(self) -> None:
        messages = [S("rules"), note("a"), note("b"), U("task"), *steps("a", "b", chars=900)]
        assert SlidingWindowCompactor(keep_last_groups=3).compact(messages, None, COUNTER) is None
        assert SlidingWindowCompactor(keep_last_turns=1).compact(messages, None, COUNTER) is None

    def test_a_second_pass_finds_nothing(self) -> None:
        messages = [S("rules"), U("task"), *steps("a", "b", "c", "d", chars=900)]
        compactor = SlidingWindowCompactor(keep_last_groups=2)
        assert compactor.compact(compacted(compactor, messages, None), None, COUNTER) is None


class TestGoals:
    def test_without_any_it_refuses(self) -> None:
        with pytest.raises(ValueError, match="would remove everything"):
            SlidingWindowCompactor().compact(three_turns(), None, COUNTER)

    def test_its_own_target_is_reached_with_the_note_in(self) -> None:
        messages = three_turns()
        after = compacted(SlidingWindowCompactor(target=TokensBelow(700)), messages, None)
        assert COUNTER.count(after) < 700
        assert any("context_compaction" in message.meta for message in after)

    def test_without_a_target_the_trigger_is_reached(self) -> None:
        after = compacted(SlidingWindowCompactor(trigger=MessagesExceed(9)), three_turns(), None)
        assert len(after) == 9


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "value", "kind"),
        [
            ("min_keep_steps", -1, ValueError),
            ("min_keep_turns", 0, ValueError),
            ("keep_last_turns", 0, ValueError),
            ("keep_last_groups", 0, ValueError),
            ("evidence_tokens", -1, ValueError),
            ("omission_note", 7, TypeError),
            ("min_keep_steps", "2", TypeError),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(self, setting: str, value: Any, kind: type[Exception]) -> None:
        with pytest.raises(kind, match=f"`{setting}`"):
            SlidingWindowCompactor(**{setting: value})

    def test_haystacks_parameters_mean_the_same(self) -> None:
        parameters = HaystackWindow(min_keep_steps=2, omission_note="{num_removed} gone").to_dict()["init_parameters"]
        assert SlidingWindowCompactor(**parameters).min_keep_steps == 2


class TestBesideHaystacks:
    """Without a note, it keeps what Haystack's class keeps."""

    @pytest.mark.parametrize("min_keep_steps", [0, 1, 3])
    @pytest.mark.parametrize("seed", range(120))
    def test_it_keeps_the_same(self, seed: int, min_keep_steps: int) -> None:
        messages = plain_conversation(random.Random(seed))
        ours = SlidingWindowCompactor(min_keep_steps=min_keep_steps, omission_note=None, evidence_tokens=0)
        theirs = HaystackWindow(min_keep_steps=min_keep_steps, omission_note=None)
        counter = RecordingCounter()
        size = counter.count(messages)
        for share in (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1):
            target = int(size * share)
            wanted = theirs.compact(messages, target, counter)
            assert kept(messages, ours.compact(messages, target, counter)) == kept(messages, wanted)


def plain_conversation(rng: random.Random) -> list[ChatMessage]:
    """Results beside their calls, instructions at the head only, no users in a row."""
    messages = [S(prose(rng.choice([10, 400])))] * (rng.random() < 0.8)
    if rng.random() < 0.2:
        messages += [*step("before", 100), A("hello")]
    for number in range(rng.randint(1, 6)):
        messages.append(U(prose(rng.choice([5, 50, 700]), number)))
        for count in range(rng.randint(0, 4)):
            calls = [f"{number}_{count}_{call}" for call in range(rng.randint(1, 3))]
            results = [T(call, prose(rng.choice([3, 30, 900]))) for call in calls]
            messages += [A(prose(20) if rng.random() < 0.3 else None, calls=calls), *results]
        if rng.random() < 0.8 or messages[-1].is_from("user"):
            messages.append(A(prose(rng.choice([4, 300]))))
    return messages if rng.random() < 0.7 else [*messages, U("and now?")]


class TestAfterATripThroughOpenAIsFormat:
    @pytest.mark.parametrize("seed", range(60))
    def test_fault_35_a_second_pass_finds_nothing(self, seed: int) -> None:
        messages = as_loaded_from_openai(plain_conversation(random.Random(seed)))
        for share in (0, 0.2, 0.4, 0.6, 0.8):
            target = int(COUNTER.count(messages) * share)
            after = SlidingWindowCompactor().compact(messages, target, COUNTER)
            if after is not None:
                assert SlidingWindowCompactor().compact(as_loaded_from_openai(after), target, COUNTER) is None

    def test_fault_35_the_note_is_folded_and_its_number_goes_on(self) -> None:
        messages = three_turns()
        after = as_loaded_from_openai(compacted(BARE, messages, size_without(messages, *range(1, 5)) + 60))
        again = compacted(BARE, after, 0)
        assert [m.meta["context_compaction"]["removed_messages"] for m in again if m.meta] == [12]

    def test_fault_34_35_the_note_never_becomes_the_task(self) -> None:
        messages = [S("rules"), U("task"), *steps("a", "b", "c", chars=900)]
        after = as_loaded_from_openai(compacted(SlidingWindowCompactor(), messages, 0))
        again = SlidingWindowCompactor().compact([*after, *steps("d", "e", chars=900)], 0, COUNTER)
        assert again is not None
        assert [message.text for message in again[:2]] == ["rules", "task"]

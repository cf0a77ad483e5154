"""Truncation: the oldest groups go, whatever they are."""

from typing import Any

import pytest
from conversations import A, S, T, U, note, prose, step, steps
from haystack.dataclasses import ChatMessage

from haystack_compaction import EstimatedTokenCounter, MessagesExceed, TruncationCompactor

COUNTER = EstimatedTokenCounter()


def talk() -> list[ChatMessage]:
    return [
        S("rules"),
        U("one " + prose(300)),
        A(prose(300, 1)),
        *step("a", 400),
        U("task"),
        *steps("b", "c", chars=400),
    ]


def compacted(compactor: Any, messages: list[ChatMessage], target: int | None) -> list[ChatMessage]:
    after = compactor.compact(messages, target, COUNTER)
    assert after is not None
    return after


def kept(messages: list[ChatMessage], after: list[ChatMessage]) -> list[int]:
    there = {id(message) for message in after}
    return [n for n, message in enumerate(messages) if id(message) in there]


class TestOrder:
    @pytest.mark.parametrize(
        ("count", "left"), [(1, [0, *range(2, 10)]), (2, [0, *range(3, 10)]), (3, [0, *range(5, 10)])]
    )
    def test_groups_go_one_by_one_and_oldest_first(self, count: int, left: list[int]) -> None:
        messages = talk()
        target = COUNTER.count([messages[n] for n in left])
        assert kept(messages, compacted(TruncationCompactor(), messages, target)) == left

    def test_nothing_takes_their_place(self) -> None:
        messages = talk()
        assert len(compacted(TruncationCompactor(), messages, 0)) == 4

    def test_instructions_task_and_newest_step_stay(self) -> None:
        messages = talk()
        assert kept(messages, compacted(TruncationCompactor(), messages, 0)) == [0, 5, 8, 9]

    def test_the_newest_groups_stay_as_many_as_asked_for(self) -> None:
        messages = talk()
        assert kept(messages, compacted(TruncationCompactor(min_keep_groups=4), messages, 0)) == [0, *range(3, 10)]

    def test_with_no_group_kept_the_newest_step_goes_too(self) -> None:
        messages = talk()
        assert kept(messages, compacted(TruncationCompactor(min_keep_groups=0), messages, 0)) == [0, 5]

    def test_instructions_count_as_any_group_where_they_need_not_stay(self) -> None:
        messages = talk()
        after = compacted(TruncationCompactor(preserve_system=False), messages, COUNTER.count(messages[1:]))
        assert kept(messages, after) == list(range(1, 10))

    @pytest.mark.parametrize("messages", [[S(prose(500))], [T("nobody", prose(500))], steps("a")], ids=len)
    def test_something_is_always_left(self, messages: list[ChatMessage]) -> None:
        compactor = TruncationCompactor(preserve_system=False, min_keep_groups=0)
        assert compactor.compact(messages, 0, COUNTER) is None

    def test_results_without_a_call_at_the_head_go_together(self) -> None:
        messages = [T("x", prose(200)), T("y", prose(200, 1)), U("task"), *steps("a", "b")]
        after = compacted(TruncationCompactor(), messages, COUNTER.count(messages) - 1)
        assert kept(messages, after) == list(range(2, 7))

    def test_a_line_stands_between_users_only_while_both_are_there(self) -> None:
        old = U("old", meta={"keep": 1})
        messages = [old, A(prose(300)), U("middle"), A(prose(300, 1)), U("task"), *step("a", 300)]
        compactor = TruncationCompactor(pin_meta_keys=("keep",))
        after = compacted(compactor, messages, 0)
        assert [message.meta.get("context_compaction", {}).get("strategy") for message in after[:3]] == [
            None,
            "separator",
            None,
        ]
        assert len(after) == 5
        assert compactor.compact(after, 0, COUNTER) is None


class TestNotes:
    def test_a_note_can_be_left(self) -> None:
        messages = talk()
        after = compacted(TruncationCompactor(omission_note="{num_removed} went {x}", evidence_tokens=0), messages, 0)
        assert after[1].text == "6 went {x}"
        assert after[1].meta["context_compaction"]["strategy"] == "truncation"

    def test_earlier_summaries_go_last_and_into_one_short_note(self) -> None:
        messages = [S("rules"), note(prose(400)), note(prose(400, 1)), U("task"), *steps("a", "b", chars=400)]
        after = compacted(TruncationCompactor(evidence_tokens=0), messages, 0)
        assert len(after) == 5
        assert after[1].meta["context_compaction"]["removed_messages"] == 4

    def test_they_stay_while_there_is_room(self) -> None:
        messages = [S("rules"), note("short"), U("task"), *steps("a", "b", chars=400)]
        after = compacted(TruncationCompactor(), messages, COUNTER.count([*messages[:3], *messages[5:]]))
        assert kept(messages, after) == [0, 1, 2, 5, 6]

    def test_a_short_note_is_not_worth_another(self) -> None:
        messages = [S("rules"), note("short", strategy="sliding_window"), U("task"), *step("a", 400)]
        assert TruncationCompactor().compact(messages, 0, COUNTER) is None


class TestGoals:
    def test_without_any_it_refuses(self) -> None:
        with pytest.raises(ValueError, match="would remove everything"):
            TruncationCompactor().compact(talk(), None, COUNTER)

    def test_the_opposite_of_its_trigger_will_do(self) -> None:
        assert len(compacted(TruncationCompactor(trigger=MessagesExceed(8)), talk(), None)) == 8

    def test_with_a_note_the_trigger_is_met_all_the_same(self) -> None:
        compactor = TruncationCompactor(trigger=MessagesExceed(6), omission_note="[gone]")
        assert len(compacted(compactor, talk(), None)) <= 6


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "value", "kind"),
        [("preserve_system", 1, TypeError), ("omission_note", 1, TypeError), ("min_keep_groups", -1, ValueError)],
    )
    def test_what_makes_no_sense_is_refused_by_name(self, setting: str, value: Any, kind: type[Exception]) -> None:
        with pytest.raises(kind, match=f"`{setting}`"):
            TruncationCompactor(**{setting: value})

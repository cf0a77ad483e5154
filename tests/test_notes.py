"""The note in the place of messages that went: what it says, and how it is known again."""

from typing import Any

import pytest
from conversations import A, S, U, as_loaded_from_openai, note, prose, steps
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction.sliding_window import SlidingWindowCompactor as HaystackWindow

from haystack_compaction import (
    EstimatedTokenCounter,
    MessageGroupKind,
    MessageIndex,
    SlidingWindowCompactor,
    TruncationCompactor,
)

COUNTER = EstimatedTokenCounter()
BARE = SlidingWindowCompactor(evidence_tokens=0)
HAYSTACK_TEXT = HaystackWindow().omission_note or ""


def work(*ids: str) -> list[ChatMessage]:
    return steps(*ids, chars=900)


def compacted(messages: list[ChatMessage], compactor: Any = BARE, target: int = 0) -> list[ChatMessage]:
    after = compactor.compact(messages, target, COUNTER)
    assert after is not None
    return after


def the_note(messages: list[ChatMessage]) -> ChatMessage:
    (found,) = [message for message in messages if "context_compaction" in message.meta]
    return found


def number_in(messages: list[ChatMessage]) -> int:
    return int(the_note(messages).meta["context_compaction"]["removed_messages"])


class TestNumber:
    def test_it_counts_over_the_whole_life_of_the_conversation(self) -> None:
        messages = compacted([S("rules"), U("task"), *work("a", "b", "c")])
        assert number_in(messages) == 4
        messages = compacted([*messages, *work("d", "e")])
        assert number_in(messages) == 8
        assert "8" in (the_note(messages).text or "")

    def test_it_is_read_from_the_text_where_there_is_no_metadata(self) -> None:
        messages = as_loaded_from_openai(compacted([S("rules"), U("task"), *work("a", "b", "c")]))
        assert number_in(compacted([*messages, *work("d", "e")])) == 8

    @pytest.mark.parametrize(
        "meta", [{}, {"context_compaction": {"strategy": "sliding_window", "removed_messages": 40}}]
    )
    def test_haystacks_own_note_is_folded(self, meta: dict[str, Any]) -> None:
        haystacks = U(HAYSTACK_TEXT.replace("{num_removed}", "40"), meta=meta)
        messages = compacted([S("rules"), haystacks, U("task"), *work("a", "b", "c")])
        assert number_in(messages) == 44
        assert haystacks not in messages

    def test_a_summary_without_a_number_counts_as_one_message(self) -> None:
        assert number_in(compacted([note(prose(500)), U("task"), *work("a", "b")])) == 3

    @pytest.mark.parametrize("number", ["40", -3, True, None, 2.5])
    def test_a_number_that_is_none_counts_as_one_message(self, number: Any) -> None:
        odd = note("gone")
        odd.meta["context_compaction"] = {"strategy": "sliding_window", "removed_messages": number}
        assert number_in(compacted([odd, U("task"), *work("a", "b")])) == 3

    def test_the_line_between_two_users_counts_for_nothing(self) -> None:
        pinned = U("old", meta={"keep": 1})
        compactor = SlidingWindowCompactor(pin_meta_keys=("keep",), evidence_tokens=0)
        line = TruncationCompactor(pin_meta_keys=("keep",)).compact([pinned, A(prose(400)), U("task")], 0, COUNTER)
        assert line is None  # the newest reply stays
        messages = [pinned, A(prose(400)), U("task"), *work("a")]
        parted = TruncationCompactor(pin_meta_keys=("keep",)).compact(messages, 0, COUNTER)
        assert parted is not None
        after = compactor.compact([*parted, *work("b", "c")], 0, COUNTER)
        assert after is not None
        assert [m.meta["context_compaction"]["removed_messages"] for m in after if m.meta and "keep" not in m.meta] == [
            4
        ]

    def test_what_stayed_is_told_too(self) -> None:
        messages = compacted([S("rules"), U("task"), *work("a", "b", "c")])
        assert the_note(messages).meta["context_compaction"]["kept_messages"] == len(messages) - 1


class TestText:
    def test_it_has_the_role_of_the_user_and_one_text(self) -> None:
        message = the_note(compacted([S("rules"), U("task"), *work("a", "b", "c")], SlidingWindowCompactor()))
        assert message.is_from("user")
        assert message.texts == [message.text]

    def test_braces_of_ones_own_are_left_alone(self) -> None:
        compactor = SlidingWindowCompactor(omission_note='{"gone": {num_removed}, "{x}"}', evidence_tokens=0)
        assert the_note(compacted([U("task"), *work("a", "b")], compactor)).text == '{"gone": 2, "{x}"}'

    def test_it_stays_the_same_between_two_compactions(self) -> None:
        messages = compacted([S("rules"), U("task"), *work("a", "b", "c")], SlidingWindowCompactor(), 500)
        grown = [*messages, *work("d")]
        assert SlidingWindowCompactor().compact(grown, 10_000, COUNTER) is None
        assert the_note(grown) is the_note(messages)

    def test_there_is_never_more_than_one(self) -> None:
        messages = [S("rules"), U("task"), *work("a", "b")]
        for name in ("c", "d", "e", "f"):
            messages = compacted([*messages, *work(name)], SlidingWindowCompactor(), 400)
            assert the_note(messages)


class TestRecognition:
    def kinds(self, *messages: ChatMessage) -> list[MessageGroupKind]:
        return [group.kind for group in MessageIndex(list(messages)).groups]

    def test_it_is_known_by_its_text_alone(self) -> None:
        messages = as_loaded_from_openai(compacted([S("rules"), U("task"), *work("a", "b", "c")]))
        assert self.kinds(*messages)[2] is MessageGroupKind.SUMMARY

    def test_haystacks_default_is_known_by_its_text_alone(self) -> None:
        assert self.kinds(U(HAYSTACK_TEXT.replace("{num_removed}", "7")), U("task"))[0] is MessageGroupKind.SUMMARY

    def test_one_that_quotes_it_is_a_users_own(self) -> None:
        text = the_note(compacted([S("rules"), U("task"), *work("a", "b", "c")])).text or ""
        for quoted in (
            f"Why does it say {text}",
            f"{text} Why?",
            f"> {text}",
            f"{text}\n{text}",
            text.replace("4", "four"),
        ):
            assert self.kinds(U(quoted)) == [MessageGroupKind.USER]

    def test_it_is_known_in_one_part_only(self) -> None:
        text = the_note(compacted([S("rules"), U("task"), *work("a", "b", "c")])).text or ""
        assert self.kinds(U(text, "and more")) == [MessageGroupKind.USER]

    def test_one_of_ones_own_is_known_by_its_metadata(self) -> None:
        compactor = SlidingWindowCompactor(omission_note="gone", evidence_tokens=0)
        messages = compacted([S("rules"), U("task"), *work("a", "b", "c")], compactor)
        assert number_in(compacted([*messages, *work("d")], compactor)) == 6
        assert self.kinds(*as_loaded_from_openai(messages))[2] is MessageGroupKind.USER

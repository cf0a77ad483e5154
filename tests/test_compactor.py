"""Strategies of one's own on the base: what it keeps out of reach, what it refuses, and when it stops."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from conversations import A, S, T, U, note, step, steps
from haystack.dataclasses import ChatMessage
from oracle import broken_rules

from haystack_compaction import (
    Action,
    Call,
    Compactor,
    Edit,
    EstimatedTokenCounter,
    GroupsExceed,
    MessageGroup,
    MessageGroupKind,
    MessageIndex,
    MessagesExceed,
    Reason,
    TokensBelow,
    TokensExceed,
    ToolResultPruningCompactor,
    apply_compaction,
    apply_compaction_async,
    apply_edit,
    ask,
    drop,
    substitute,
)
from haystack_compaction.edits import part_users
from haystack_compaction.steps import drive

COUNTER = EstimatedTokenCounter()
WORDS = "many words that take some room in a conversation " * 20


@dataclass(frozen=True, kw_only=True)
class DropOldest(Compactor):
    """Removes whatever may go, oldest first."""

    def propose(self, index: MessageIndex) -> Iterable[Edit]:
        for group in self.removable_groups(index):
            yield drop(group, reason="oldest")


@dataclass(frozen=True, kw_only=True)
class DropAt(Compactor):
    """Removes the group at a place, whether that is allowed or not."""

    place: int = 0

    def propose(self, index: MessageIndex) -> Iterable[Edit]:
        yield drop(index.groups[self.place], reason="because")


@dataclass(frozen=True, kw_only=True)
class Rewrites(Compactor):
    """Puts another message in the place of the third."""

    message: Any = None

    def propose(self, index: MessageIndex) -> Iterable[Edit]:
        group = index.groups[1]
        yield Edit(Action.PRUNE, (group,), "shorter", (self.message,), group.positions[1])


@dataclass(frozen=True, kw_only=True)
class OneLine(Compactor):
    """Puts one line in the place of all that may go, and asks for the line outside."""

    line: str = "[Earlier work.]"
    fails: bool = False

    def decide(self, index: MessageIndex, goal: Any) -> Any:
        groups = self.removable_groups(index)
        if not groups:
            return []
        text = yield from ask(Call(self._fetch))
        note = ChatMessage.from_user(text, meta={"context_compaction": {"strategy": "one_line"}})
        return [apply_edit(index, substitute(Action.COLLAPSE, groups, note, reason="one line"))]

    def _fetch(self) -> str:
        if self.fails:
            raise ConnectionError("nobody there")
        return self.line


def talk(turns: int) -> list[ChatMessage]:
    return [S("rules"), *(m for n in range(turns) for m in (U(f"question {n} {WORDS}"), A(f"answer {n} {WORDS}")))]


def outcome(compactor: Compactor, messages: list[ChatMessage], target: int | None) -> Any:
    return drive(compactor.steps(MessageIndex(messages, COUNTER), target))


class TestRemoval:
    def test_it_stops_as_soon_as_the_target_is_met(self) -> None:
        messages = talk(8)
        after = DropOldest().compact(messages, COUNTER.count(messages) // 2, COUNTER)
        assert after is not None
        assert COUNTER.count(after) <= COUNTER.count(messages) // 2
        one_more = COUNTER.count([messages[1]])
        assert COUNTER.count(after) + one_more > COUNTER.count(messages) // 2 - one_more

    @pytest.mark.parametrize("target", [0, 200, 1000])
    def test_instructions_task_and_newest_step_stay_whatever_the_target(self, target: int) -> None:
        messages = [*talk(3), U(f"the task {WORDS}"), *steps("a", "b", "c", chars=2000)]
        after = apply_compaction(messages, DropOldest(), target_tokens=target)
        assert broken_rules(messages, after, target, COUNTER) == [] or after[0] is messages[0]
        assert after[0] is messages[0]
        assert messages[7] in after
        assert after[-2:] == messages[-2:]

    def test_a_result_without_its_call_goes_first(self) -> None:
        messages = [U("go"), T("nobody", WORDS), A("well"), *steps("a", "b", chars=3000)]
        after = apply_compaction(messages, DropOldest(), target_tokens=COUNTER.count(messages) - 10)
        assert messages[1] not in after
        assert len(after) == len(messages) - 1

    def test_what_compaction_wrote_goes_last(self) -> None:
        note = U(WORDS, meta={"context_compaction": {"strategy": "summarization"}})
        messages = [note, A(WORDS), U("task"), *steps("a", "b", chars=3000)]
        result = outcome(DropOldest(), messages, 0)
        assert [edit.groups[0].kind for edit in result.edits][-1] is MessageGroupKind.SUMMARY

    def test_pins_stay(self) -> None:
        first, pinned = U(f"first {WORDS}"), A(WORDS, meta={"keep": True})
        messages = [first, A(WORDS), U(WORDS), pinned, U("task"), A("fine")]
        compactor = DropOldest(pin_first_user_message=True, pin_meta_keys=("keep",))
        after = apply_compaction(messages, compactor, target_tokens=0)
        assert first in after
        assert pinned in after
        assert messages[1] not in after

    def test_the_newest_groups_stay_as_many_as_asked_for(self) -> None:
        messages = talk(6)
        after = apply_compaction(messages, DropOldest(min_keep_groups=5), target_tokens=0)
        assert after[-5:] == messages[-5:]

    def test_a_line_parts_two_user_messages_that_a_removal_made_neighbours(self) -> None:
        old, chatter, task = U(WORDS, meta={"keep": 1}), A(WORDS), U("task")
        messages = [old, chatter, task, *step("a", 400)]
        after = apply_compaction(messages, DropOldest(pin_meta_keys=("keep",)), target_tokens=0)
        assert [message.meta.get("context_compaction", {}).get("strategy") for message in after][:3] == [
            None,
            "separator",
            None,
        ]
        assert MessageIndex(after).task_groups[0].messages == [task]
        assert apply_compaction(after, DropOldest(pin_meta_keys=("keep",)), target_tokens=0) is after

    @pytest.mark.parametrize("collapses", [False, True])
    def test_a_line_parts_user_messages_that_only_a_late_result_kept_apart(self, collapses: bool) -> None:
        messages = [A(WORDS), A(calls=["a"]), U("yes"), T("a", WORDS), U("task"), *step("b", 400)]
        index = MessageIndex(messages)
        group = index.groups[1]
        edit = substitute(Action.COLLAPSE, [group], note("short"), reason="x") if collapses else drop(group, reason="x")
        apply_edit(index, edit)
        list(part_users(index))
        after = index.included_messages()
        assert [message.meta.get("context_compaction", {}).get("strategy") for message in after[-5:-2]] == [
            None,
            "separator",
            None,
        ]
        assert index.included_token_count == COUNTER.count(after)
        assert list(part_users(index)) == []


class TestGoals:
    def test_the_own_target_goes_before_the_budget(self) -> None:
        messages = talk(6)
        after = apply_compaction(messages, DropOldest(target=TokensBelow(10_000)), target_tokens=10)
        assert after is messages

    def test_without_a_target_the_opposite_of_the_trigger_is_reached(self) -> None:
        messages = talk(6)
        after = apply_compaction(messages, DropOldest(trigger=MessagesExceed(7)))
        assert len(after) == 7

    def test_a_trigger_that_does_not_fire_leaves_everything(self) -> None:
        result = outcome(DropOldest(trigger=GroupsExceed(100)), talk(6), 0)
        assert result.reason is Reason.NOT_TRIGGERED

    def test_triggers_compare_the_models_tokens(self) -> None:
        index = MessageIndex(talk(2), COUNTER, scale=3.0)
        assert TokensExceed(index.total_token_count * 2)(index)

    def test_with_none_of_the_three_all_goes_that_may(self) -> None:
        messages = talk(4)
        assert len(apply_compaction(messages, DropOldest())) == 3


class TestRules:
    @pytest.mark.parametrize(
        ("place", "rule"), [(0, "instructions"), (3, "the task"), (4, "newest step")], ids=["system", "task", "newest"]
    )
    def test_a_removal_that_breaks_one_is_named_and_changes_nothing(
        self, place: int, rule: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        messages = [S(WORDS), U(WORDS), A(WORDS), U(WORDS), *step("a", 2000)]
        result = outcome(DropAt(place=place), messages, 0)
        assert result.reason is Reason.FAILED
        assert rule in result.failures[0]
        assert result.messages == messages
        assert DropAt(place=place).compact(messages, 0, COUNTER) is None
        assert rule in caplog.text

    @pytest.mark.parametrize(
        "message",
        [U("short"), T("b", "short"), T("a", "short", error=True), A("short")],
        ids=["another role", "another id", "an error flag", "no result"],
    )
    def test_a_rewritten_message_must_keep_its_exchange(self, message: ChatMessage) -> None:
        messages = [U("go"), *steps("a", "b", chars=2000)]
        result = outcome(Rewrites(message=message), messages, 0)
        assert result.reason is Reason.FAILED
        assert "must keep" in result.failures[0]
        assert result.messages == messages

    def test_an_edit_that_makes_it_no_smaller_is_taken_back(self) -> None:
        messages = [U("go"), *steps("a", "b", chars=100)]
        result = outcome(Rewrites(message=T("a", WORDS)), messages, 0)
        assert result.reason is Reason.NO_GAIN
        assert result.messages == messages

    def test_a_strategy_without_a_method_says_what_is_missing(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Nothing(Compactor):
            """Decides nothing."""

        assert "must define `propose` or `decide`" in outcome(Nothing(), talk(3), 0).failures[0]


class TestRequests:
    async def test_one_body_serves_sync_and_async(self) -> None:
        messages = talk(5)
        after = apply_compaction(messages, OneLine(), target_tokens=0)
        assert [message.text for message in after] == [
            message.text for message in await apply_compaction_async(messages, OneLine(), target_tokens=0)
        ]
        assert after[1].text == "[Earlier work.]"
        assert len(after) == 4

    def test_its_edit_tells_what_it_freed(self) -> None:
        messages = talk(5)
        result = outcome(OneLine(), messages, 0)
        assert result.edits[0].freed_tokens == result.freed_tokens > 0
        assert result.edits[0].to_dict()["action"] == "collapse"

    def test_a_request_that_fails_leaves_the_conversation(self) -> None:
        result = outcome(OneLine(fails=True), talk(5), 0)
        assert result.reason is Reason.FAILED
        assert "nobody there" in result.failures[0]

    def test_a_summary_is_a_group_of_its_own_kind_on_the_next_pass(self) -> None:
        after = apply_compaction(talk(5), OneLine(), target_tokens=0)
        kinds = [group.kind for group in MessageIndex(after).groups]
        assert kinds[1] is MessageGroupKind.SUMMARY


class TestReplacedGroups:
    def test_a_replaced_group_leads_to_what_stands_there(self) -> None:
        index = MessageIndex(talk(3), COUNTER)
        note = U("short", meta={"context_compaction": {"strategy": "note"}})
        group: MessageGroup = index.replace(index.groups[1:3], [note], "shorter")
        assert group in index.included_groups()
        assert index.included_messages()[1] is note
        assert index.included_token_count == COUNTER.count(index.included_messages())
        index.reset()
        assert index.included_messages() == index.all_messages()

    def test_an_index_goes_on_from_what_is_left(self) -> None:
        index = MessageIndex(talk(4), COUNTER)
        index.exclude(index.groups[1], "old")
        left = index.committed()
        left.extend([U("more")])
        assert left.all_messages() == [*index.included_messages(), U("more")]
        assert left.total_token_count == COUNTER.count(left.all_messages())

    def test_groups_of_another_index_are_refused(self) -> None:
        one, other = MessageIndex(talk(2)), MessageIndex(talk(2))
        with pytest.raises(ValueError, match="`group`"):
            one.exclude(other.groups[0], "old")


class TestWhatStaysWhateverIsProposed:
    @pytest.mark.parametrize("place", [0, 1], ids=["instructions", "task"])
    def test_instructions_and_task_are_not_rewritten_either(self, place: int) -> None:
        @dataclass(frozen=True, kw_only=True)
        class RewritesAt(Compactor):
            def propose(self, index: MessageIndex) -> Iterable[Edit]:
                group = index.groups[place]
                yield Edit(Action.PRUNE, (group,), "shorter", (U("x"),), group.positions[0])

        messages = [S(WORDS), U(WORDS), *steps("a", "b")]
        assert outcome(RewritesAt(), messages, 0).reason is Reason.FAILED

    def test_the_newest_result_is_not_pruned(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class PrunesNewest(Compactor):
            def propose(self, index: MessageIndex) -> Iterable[Edit]:
                group = index.newest_step
                yield Edit(Action.PRUNE, (group,), "shorter", (T("b", "x"),), group.positions[1])

        assert outcome(PrunesNewest(), [U("go"), *steps("a", "b")], 0).reason is Reason.FAILED

    def test_metadata_is_not_lost(self) -> None:
        messages = [U("go"), A(calls=["a"]), T("a", WORDS, meta={"source": 1}), *steps("b", "c")]
        assert "metadata" in outcome(Rewrites(message=T("a", "x")), messages, 0).failures[0]

    def test_what_is_pinned_is_not_dropped(self) -> None:
        messages = [A(WORDS, meta={"keep": 1}), U("task"), *steps("a", "b")]
        assert "pinned" in outcome(DropAt(pin_meta_keys=("keep",)), messages, 0).failures[0]

    def test_a_condition_that_cannot_be_hashed_will_do(self) -> None:
        @dataclass
        class Often:
            n: int

            def __call__(self, index: MessageIndex) -> bool:
                return index.included_token_count > self.n

        messages = [U("go"), *steps("a", "b", "c", chars=3000)]
        assert ToolResultPruningCompactor(trigger=Often(100)).compact(messages, 0, COUNTER) is not None

    async def test_a_condition_that_would_have_to_be_awaited_is_refused(self) -> None:
        async def later(index: MessageIndex) -> bool:
            return True

        with pytest.raises(TypeError, match="`trigger`"):
            ToolResultPruningCompactor(trigger=later)


class Answers:
    """Somebody else's compactor."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> list[ChatMessage]:
        return self.change(list(messages))


class TestSomebodyElsesResult:
    MESSAGES = (S("rules"), U(f"document {WORDS}"), U("question"), A(WORDS), A(f"more {WORDS}"), *steps("a", "b"))

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: [m[0], m[1], m[2], m[4], m[3], *m[5:-2]],
            lambda m: [m[0], *m[2:]],
            lambda m: m[:-1],
            lambda m: [*m[:-2], m[-1]],
        ],
        ids=["another order", "half of the task gone", "a call without its result", "a result without its call"],
    )
    def test_one_that_breaks_a_rule_is_not_taken(self, change: Any) -> None:
        messages = list(self.MESSAGES)
        assert apply_compaction(messages, Answers(change), target_tokens=10) is messages

    def test_one_that_keeps_them_is_taken(self) -> None:
        messages = list(self.MESSAGES)
        after = apply_compaction(messages, Answers(lambda m: [*m[:3], *m[5:]]), target_tokens=10)
        assert after == [*messages[:3], *messages[5:]]


class TestCountersOfUnknownKind:
    def test_none_is_asked_about_a_conversation_with_a_result_without_its_call(self) -> None:
        class Strict:
            def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
                if not all(group.is_whole for group in MessageIndex(messages).groups):
                    raise ValueError("not a valid conversation")
                return COUNTER.count(messages)

        messages = [U("go"), T("nobody", WORDS), A(WORDS), U("task"), *steps("a", "b", chars=3000)]
        index = MessageIndex(messages, Strict())
        result = drive(DropOldest().steps(index, 0))
        assert result.failures == ()
        assert result.compacted

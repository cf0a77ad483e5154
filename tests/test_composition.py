"""Compactors made of compactors: who is asked, how far, what each of them did, and what is taken back."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from conversations import A, S, T, U, agent_state, file, prose, step, steps
from haystack import Pipeline
from haystack.core.errors import DeserializationError
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from oracle import RecordingCounter
from stages import DropOldest, OneLine

from haystack_compaction import (
    ChatMessageCompactor,
    CompactionHook,
    Compactor,
    ContextWindowCompactor,
    EstimatedTokenCounter,
    MessageIndex,
    MessagesExceed,
    Never,
    Outcome,
    PipelineCompactor,
    Reason,
    TokenBudgetCompactor,
    TokensBelow,
    TokensExceed,
    ToolResultCollapseCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
    apply_compaction,
    drop,
)
from haystack_compaction.steps import drive, drive_async

COUNTER = EstimatedTokenCounter()
PRUNING = ToolResultPruningCompactor()
TRUNCATION = TruncationCompactor()


def talk() -> list[ChatMessage]:
    """Instructions, an old turn, and a task of six steps with results of about 800 tokens each."""
    old = [U("first question"), A(prose(900, 9))]
    return [S("rules"), *old, U("task"), *steps("a", "b", "c", "d", "e", "f", chars=3000), A("done")]


def outcome(compactor: Compactor, messages: list[ChatMessage], target: int | None = None) -> Outcome:
    return drive(compactor.steps(MessageIndex(messages, COUNTER), target))


def tokens(messages: list[ChatMessage]) -> int:
    return COUNTER.count(messages)


@dataclass
class Watched:
    """Somebody else's compactor: it drops the oldest steps, or does what it is told, and keeps what it was given."""

    answer: Any = None
    given: list[Any] = field(default_factory=list)

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> list[ChatMessage] | None:
        self.given.append((list(messages), target_tokens))
        if isinstance(self.answer, Exception):
            raise self.answer
        return None if self.answer is None else self.answer(messages)


@dataclass(frozen=True, kw_only=True)
class DropsTheTask(Compactor):
    """Breaks a rule after it has changed a good deal."""

    def propose(self, index: MessageIndex) -> Any:
        for group in [*self.removable_groups(index), *index.task_groups]:
            yield drop(group, reason="because")


class TestWhoIsAsked:
    def test_a_gentle_stage_that_suffices_never_calls_the_next(self) -> None:
        watched = Watched()
        result = outcome(PipelineCompactor([PRUNING, watched]), talk(), tokens(talk()) - 500)
        assert result.compacted
        assert watched.given == []
        assert [stage.strategy for stage in result.stages] == ["ToolResultPruningCompactor"]

    def test_the_next_is_asked_about_what_is_left_with_the_same_target(self) -> None:
        watched = Watched()
        outcome(PipelineCompactor([PRUNING, watched]), talk(), 100)
        (messages, target), *_ = watched.given
        assert messages == PRUNING.compact(talk(), 100, COUNTER)
        assert target == 100

    def test_nobody_is_asked_about_a_conversation_that_fits(self) -> None:
        watched = Watched()
        result = outcome(PipelineCompactor([watched, PRUNING]), talk(), tokens(talk()))
        assert (result.reason, watched.given, result.stages) == (Reason.FITS, [], ())

    def test_without_early_stop_everyone_is_asked(self) -> None:
        loose = ToolResultPruningCompactor(target=TokensBelow(tokens(talk()) - 500))
        strict = TruncationCompactor(target=TokensBelow(1000))
        messages, target = talk(), tokens(talk()) - 400
        early = outcome(PipelineCompactor([loose, strict]), messages, target)
        late = outcome(PipelineCompactor([loose, strict], early_stop=False), messages, target)
        assert [len(early.stages), len(late.stages)] == [1, 2]
        assert late.after.tokens < 1000

    def test_a_stage_whose_trigger_does_not_fire_is_passed_over(self) -> None:
        result = outcome(PipelineCompactor([ToolResultPruningCompactor(trigger=Never()), TRUNCATION]), talk(), 1000)
        assert [stage.reason for stage in result.stages] == [Reason.NOT_TRIGGERED, Reason.COMPACTED]

    def test_triggers_see_what_the_stages_before_left(self) -> None:
        messages = talk()
        pruned = tokens(PRUNING.compact(messages, 0, COUNTER) or [])
        second = TruncationCompactor(trigger=TokensExceed(pruned))
        result = outcome(PipelineCompactor([PRUNING, second]), messages, 0)
        assert [stage.reason for stage in result.stages] == [Reason.COMPACTED, Reason.NOT_TRIGGERED]

    def test_the_own_trigger_of_the_whole_is_asked_first(self) -> None:
        result = outcome(PipelineCompactor([PRUNING], trigger=MessagesExceed(100)), talk(), 0)
        assert (result.reason, result.stages) == (Reason.NOT_TRIGGERED, ())

    def test_the_same_compactor_can_stand_in_it_twice(self) -> None:
        result = outcome(PipelineCompactor([PRUNING, PRUNING]), talk(), 0)
        assert [stage.reason for stage in result.stages] == [Reason.COMPACTED, Reason.NOTHING_MAY_GO]

    def test_an_earlier_one_is_asked_again_about_what_a_later_one_put_within_its_reach(self) -> None:
        pinned = [A(calls=["p"]), T("p", prose(3000), meta={"pin": True})]
        messages = [U("task"), *pinned, *step("a", 100)]
        compactor = PipelineCompactor(
            [TruncationCompactor(pin_meta_keys=("pin",)), ToolResultCollapseCompactor(evidence_tokens=0), PRUNING]
        )
        result = outcome(compactor, messages, 0)
        assert [stage.strategy for stage in result.stages] == [
            "TruncationCompactor",
            "ToolResultCollapseCompactor",
            "ToolResultPruningCompactor",
            "TruncationCompactor",
        ]
        assert compactor.compact(result.messages, 0, COUNTER) is None

    def test_nobody_is_asked_twice_about_the_same_conversation(self) -> None:
        first, last = Watched(), Watched()
        outcome(PipelineCompactor([first, PRUNING, TRUNCATION, last]), talk(), 0)
        assert len(first.given) == 2  # once more after the others
        assert len(last.given) == 1

    def test_one_that_failed_is_not_asked_again(self) -> None:
        first = Watched(ConnectionError("nobody there"))
        outcome(PipelineCompactor([first, PRUNING]), talk(), 0)
        assert len(first.given) == 1


class TestHowFar:
    def test_the_own_target_of_the_whole_goes_before_the_callers_budget(self) -> None:
        result = outcome(PipelineCompactor([PRUNING, TRUNCATION], target=TokensBelow(2500)), talk(), 10)
        assert 1000 < result.after.tokens < 2500

    def test_the_own_target_of_a_stage_goes_before_that_of_the_whole(self) -> None:
        compactor = PipelineCompactor([ToolResultPruningCompactor(target=TokensBelow(4000))], target=TokensBelow(100))
        assert 3000 < outcome(compactor, talk()).after.tokens < 4000

    def test_with_a_trigger_alone_everyone_goes_until_it_would_not_fire(self) -> None:
        compactor = PipelineCompactor([PRUNING, TRUNCATION], trigger=MessagesExceed(9))
        result = outcome(compactor, talk())
        assert result.after.messages <= 9
        assert result.after.messages > 5

    def test_a_stage_that_has_nothing_to_go_by_is_refused_with_the_way_out(self) -> None:
        compactor = PipelineCompactor([PRUNING, TRUNCATION])
        with pytest.raises(
            ValueError, match=r"`compactors\[1\]` of PipelineCompactor has nothing to go by.*`target_to"
        ):
            compactor.compact(talk(), None, COUNTER)
        with pytest.raises(ValueError, match=r"`compactors\[0\]`"):
            apply_compaction(talk(), PipelineCompactor([Watched()]))

    def test_stages_that_need_no_target_do_all_that_they_may_without_one(self) -> None:
        assert PipelineCompactor([PRUNING]).compact(talk(), None, COUNTER) == PRUNING.compact(talk(), 0, COUNTER)

    def test_stages_with_triggers_of_their_own_need_no_target(self) -> None:
        compactor = PipelineCompactor([PRUNING, TruncationCompactor(trigger=MessagesExceed(8))])
        assert 6 < len(compactor.compact(talk(), None, COUNTER) or talk()) <= 8


class TestWhatIsTakenBack:
    def test_a_stage_that_fails_leaves_what_those_before_it_did(self) -> None:
        messages, alone = talk(), PRUNING.compact(talk(), 0, COUNTER)
        for broken in (Watched(ConnectionError("nobody there")), OneLine(fails=True), DropsTheTask()):
            result = outcome(PipelineCompactor([PRUNING, broken]), messages, 0)
            assert result.compacted
            assert result.messages == alone
            assert len(result.failures) == 1
            assert [stage.reason for stage in result.stages] == [Reason.COMPACTED, Reason.FAILED]
            assert result.stages[1].failures == result.failures

    def test_those_after_it_are_asked_all_the_same(self) -> None:
        for broken in (Watched(ConnectionError("nobody there")), OneLine(fails=True), DropsTheTask()):
            result = outcome(PipelineCompactor([PRUNING, broken, TRUNCATION]), talk(), 0)
            plain = outcome(PipelineCompactor([PRUNING, TRUNCATION]), talk(), 0)
            assert result.messages == plain.messages
            assert result.after == plain.after

    def test_the_log_says_that_one_stage_failed_and_not_that_nothing_was_done(self, caplog: Any) -> None:
        PipelineCompactor([PRUNING, OneLine(fails=True)]).compact(talk(), 0, COUNTER)
        assert "A stage of the compaction did nothing. OneLine raised ConnectionError" in caplog.text

    def test_one_failure_alone_is_the_reason(self) -> None:
        messages = talk()
        result = outcome(
            PipelineCompactor([OneLine(fails=True), ToolResultPruningCompactor(min_tokens=5000)]), messages, 0
        )
        assert (result.reason, result.messages) == (Reason.FAILED, messages)
        assert result.before == result.after

    def test_one_that_gains_nothing_takes_back_only_what_it_did_itself(self) -> None:
        long = OneLine(line=prose(50_000))
        result = outcome(PipelineCompactor([PRUNING, long]), talk(), 0)
        assert [stage.reason for stage in result.stages] == [Reason.COMPACTED, Reason.NO_GAIN]
        assert result.messages == PRUNING.compact(talk(), 0, COUNTER)

    @pytest.mark.parametrize("counter", [COUNTER, ApproximateTokenCounter(), RecordingCounter(additive=False)])
    def test_the_sums_are_right_after_everything_was_taken_back_and_done_again(self, counter: Any) -> None:
        index = MessageIndex(talk(), counter)
        before = (index.included_token_count, index.included_byte_count, index.included_turn_count)
        groups, tools = index.included_group_count, index.included_tool_call_group_count
        index.begin_stage()
        drive(PRUNING.steps(index, 1500))
        middle = (index.included_messages(), index.included_token_count, index.included_byte_count)
        index.begin_stage()
        drive(ToolResultCollapseCompactor(evidence_tokens=0).steps(index, 0))
        drive(TRUNCATION.steps(index, 0))
        assert index.included_message_count < len(talk())
        index.reset()
        assert middle == (index.included_messages(), index.included_token_count, index.included_byte_count)
        index.end_stage()
        index.reset()
        index.end_stage()
        assert before == (index.included_token_count, index.included_byte_count, index.included_turn_count)
        assert (groups, tools) == (index.included_group_count, index.included_tool_call_group_count)
        assert index.included_messages() == talk()

    def test_a_stage_that_was_not_worth_it_for_the_hook_leaves_no_trace(self) -> None:
        messages = talk()
        # Ours has edited the index by the time the other one returns a list.
        last = Watched(lambda given: [*given[:2], *given[3:]])
        compactor = PipelineCompactor([PRUNING, last], early_stop=False)
        hook = CompactionHook(compactor, context_window=tokens(messages), min_freed_tokens=10**6)
        state = agent_state(messages)
        hook.run(state)
        assert state.data["messages"] == messages
        state.data["messages"] = [*messages, *step("g", 3000)]
        fresh = agent_state(state.data["messages"])
        CompactionHook(compactor, context_window=tokens(messages)).run(fresh)
        hook.min_freed_tokens = 0
        CompactionHook(compactor, context_window=tokens(messages)).run(state)
        assert state.data["messages"] == fresh.data["messages"]


class TestSomebodyElsesStage:
    def test_what_it_left_alone_is_not_measured_again(self) -> None:
        counter, messages = RecordingCounter(), talk()
        drops = Watched(lambda given: [*given[:4], *given[6:]])
        after = PipelineCompactor([PRUNING, drops, TRUNCATION]).compact(messages, 300, counter)
        assert after is not None
        assert [counter.times(message) for message in messages] == [1] * len(messages)

    def test_the_stages_after_it_go_on_with_what_it_returned(self) -> None:
        drops = Watched(lambda given: [*given[:4], *given[6:]])
        result = outcome(PipelineCompactor([PRUNING, drops, TRUNCATION]), talk(), 150)
        assert [stage.strategy for stage in result.stages] == [
            "ToolResultPruningCompactor",
            "Watched",
            "TruncationCompactor",
        ]
        assert all(stage.freed_tokens > 0 for stage in result.stages)
        assert result.index is not None
        assert result.index.included_messages() == result.messages

    @pytest.mark.parametrize(
        ("lost", "rule"),
        [(4, "instructions must stay"), (2, "what is pinned must stay"), (-1, "the newest step must stay")],
    )
    def test_it_is_held_to_the_same_contract(self, lost: int, rule: str) -> None:
        pinned = A(prose(900), meta={"pin": True})
        messages = [S("rules"), U("old"), pinned, U("more"), S("a policy"), U("task"), *steps("a", "b"), A("done")]

        def without(given: list[ChatMessage]) -> list[ChatMessage]:
            return [message for message in given if message is not messages[lost]]

        result = outcome(PipelineCompactor([Watched(without)], pin_meta_keys=("pin",)), messages, 0)
        assert (result.reason, result.messages) == (Reason.FAILED, messages)
        assert rule in result.failures[0]

    def test_a_run_goes_on_from_what_it_returned(self) -> None:
        counter, messages = RecordingCounter(), talk()
        drops = Watched(lambda given: [*given[:4], *given[6:]])
        hook = CompactionHook(PipelineCompactor([PRUNING, drops]), context_window=2400, token_counter=counter)
        state = agent_state(messages)
        hook.run(state)
        left = list(state.data["messages"])
        assert len(left) == len(messages) - 2
        state.data["messages"] = [*left, *step("g", 100)]
        hook.run(state)
        assert state.data["messages"][: len(left)] == left
        assert [counter.times(message) for message in messages] == [1] * len(messages)


class TestPins:
    def test_what_the_whole_keeps_is_kept_by_every_stage(self) -> None:
        pinned = [A(calls=["p"]), T("p", prose(3000), meta={"pin": True})]
        messages = [S("rules"), U("first question"), *pinned, U("task"), *steps("a", "b", "c", "d")]
        stages = [PRUNING, ToolResultCollapseCompactor(), TRUNCATION]
        common: dict[str, Any] = {"pin_meta_keys": ("pin",), "pin_first_user_message": True, "min_keep_groups": 3}
        for whole in (
            PipelineCompactor(stages, **common),
            TokenBudgetCompactor(10, stages, strict=True, **common),
            ContextWindowCompactor(20, 1, **common),
            PipelineCompactor([PipelineCompactor(stages)], **common),
        ):
            after = whole.compact(messages, 0, COUNTER)
            assert after is not None
            kept = {id(message) for message in after}
            assert {id(message) for message in (messages[1], *pinned, *messages[-6:])} <= kept

    def test_a_stage_keeps_what_it_keeps_by_itself_too(self) -> None:
        stage = ToolResultPruningCompactor(min_keep_groups=3, pin_meta_keys=("a",))
        whole = PipelineCompactor([stage], min_keep_groups=2, pin_meta_keys=("b",))
        messages = [U("task"), *step("x", 3000, meta={"a": 1}), *step("y", 3000, meta={"b": 1}), *steps("c", "d", "e")]
        after = whole.compact(messages, 0, COUNTER)
        assert after is None or after == messages
        assert whole.compactors == (stage,)


class TestBudget:
    def test_the_oldest_groups_go_where_the_compactors_do_not_suffice(self) -> None:
        result = outcome(TokenBudgetCompactor(1000, [PRUNING]), talk())
        assert result.after.tokens <= 1000
        assert [stage.strategy for stage in result.stages] == ["ToolResultPruningCompactor", "TruncationCompactor"]

    def test_they_stay_where_these_do(self) -> None:
        result = outcome(TokenBudgetCompactor(3500, [PRUNING]), talk())
        assert result.after.tokens <= 3500
        assert result.after.messages == len(talk())
        assert [stage.strategy for stage in result.stages] == ["ToolResultPruningCompactor"]

    @pytest.mark.parametrize(("target", "reached"), [(3000, 3000), (10_000, 5000), (None, 5000)])
    def test_the_smaller_of_both_budgets_is_kept(self, target: int | None, reached: int) -> None:
        result = outcome(TokenBudgetCompactor(5000, [PRUNING]), talk(), target)
        assert reached - 1400 < result.after.tokens <= reached
        assert result.target_tokens == reached

    def test_it_is_in_the_models_tokens(self) -> None:
        index = MessageIndex(talk(), COUNTER, scale=2.0)
        drive(TokenBudgetCompactor(2000, [PRUNING]).steps(index))
        assert index.included_token_count <= 1000

    def test_instructions_stay_unless_it_is_strict(self) -> None:
        messages = [S("rules " * 300), *talk()[1:], S("later " * 300)]
        lenient = outcome(TokenBudgetCompactor(10, [PRUNING]), messages)
        strict = outcome(TokenBudgetCompactor(10, [PRUNING], strict=True), messages)
        assert {messages[0].text, messages[-1].text} <= {message.text for message in lenient.messages}
        assert {messages[0].text, messages[-1].text}.isdisjoint({message.text for message in strict.messages})
        assert {"task", "done"} <= {message.text for message in strict.messages}
        assert strict.stages[-1].strategy == "InstructionRemoval"

    def test_instructions_go_last_and_only_as_many_as_have_to(self) -> None:
        messages = [S("first " * 300), S("second " * 300), *talk()[1:]]
        budget = tokens([messages[1], U("task"), A("done")]) + 100
        after = apply_compaction(messages, TokenBudgetCompactor(budget, [PRUNING], strict=True))
        assert [message.text for message in after if message.is_from("system")] == [messages[1].text]

    def test_pinned_instructions_stay_even_then(self) -> None:
        messages = [S("rules " * 300, meta={"pin": 1}), S("more " * 300), *talk()[1:]]
        compactor = TokenBudgetCompactor(10, [PRUNING], strict=True, pin_meta_keys=("pin",))
        after = apply_compaction(messages, compactor)
        assert [message for message in after if message.is_from("system")] == [messages[0]]

    def test_the_last_group_never_goes(self) -> None:
        messages = [S("first " * 300), S("second " * 300)]
        assert apply_compaction(messages, TokenBudgetCompactor(1, [PRUNING], strict=True)) == messages[1:]

    def test_a_target_of_its_own_leaves_room_below_the_budget(self) -> None:
        compactor = TokenBudgetCompactor(4000, [PRUNING], target=TokensBelow(2000))
        assert outcome(compactor, talk()).after.tokens < 2000
        short = apply_compaction(talk(), PRUNING, target_tokens=3900)
        assert outcome(compactor, short).reason is Reason.FITS


class TestContextWindow:
    def window(self, share: float, **settings: Any) -> ContextWindowCompactor:
        """One of which the conversation fills a share."""
        room = int(tokens(talk()) / share)
        return ContextWindowCompactor(room + 1000, 1000, **settings)

    def test_below_the_first_limit_nothing_happens(self) -> None:
        assert outcome(self.window(0.49), talk()).reason is Reason.FITS

    def test_above_the_first_limit_old_tool_calls_are_collapsed(self) -> None:
        result = outcome(self.window(0.6), talk())
        assert [stage.strategy for stage in result.stages] == ["ToolResultCollapseCompactor"]
        assert result.messages[1].text == "first question"

    def test_between_the_limits_nothing_else_goes(self) -> None:
        result = outcome(self.window(0.79, keep_last_tool_call_groups=6), talk())
        assert (result.reason, result.messages) == (Reason.NOTHING_MAY_GO, talk())
        assert [stage.reason for stage in result.stages] == [Reason.NOTHING_MAY_GO, Reason.NOT_TRIGGERED]

    def test_above_the_second_limit_the_oldest_groups_go_down_to_the_first(self) -> None:
        result = outcome(self.window(0.9, keep_last_tool_call_groups=6), talk())
        assert result.after.tokens <= tokens(talk()) / 0.9 * 0.5
        assert result.messages[1].text != "first question"

    def test_a_callers_budget_can_lower_the_limits(self) -> None:
        result = outcome(self.window(0.3), talk(), 700)
        assert result.after.tokens <= 700

    def test_a_callers_budget_cannot_raise_them(self) -> None:
        assert outcome(self.window(0.9), talk(), 10**6).messages == outcome(self.window(0.9), talk()).messages

    def test_the_limits_are_in_the_models_tokens(self) -> None:
        index = MessageIndex(talk(), COUNTER, scale=0.5)
        assert drive(self.window(0.9).steps(index)).reason is Reason.FITS


class TestOutcome:
    def test_every_stages_saving_is_in_it(self) -> None:
        result = outcome(PipelineCompactor([PRUNING, ToolResultCollapseCompactor(), TRUNCATION]), talk(), 0)
        assert result.freed_tokens == sum(stage.freed_tokens for stage in result.stages)
        assert [stage.before for stage in result.stages[1:]] == [stage.after for stage in result.stages[:-1]]
        assert (result.stages[0].before, result.stages[-1].after) == (result.before, result.after)
        assert result.before.tokens == tokens(talk())
        assert result.after.tokens == tokens(result.messages)

    def test_it_is_plain_data_that_json_gives_back(self) -> None:
        inner = PipelineCompactor([PRUNING, OneLine(fails=True)])
        data = outcome(PipelineCompactor([inner, TRUNCATION]), talk(), 0).to_dict()
        assert json.loads(json.dumps(data)) == data
        first, second = data["stages"]
        assert [stage["strategy"] for stage in first["stages"]] == ["ToolResultPruningCompactor", "OneLine"]
        assert first["failures"] == first["stages"][1]["failures"] == data["failures"]
        assert set(second) == {"strategy", "reason", "before", "after", "freed_tokens", "failures", "stages"}

    def test_that_of_a_single_compactor_has_no_stages(self) -> None:
        assert outcome(PRUNING, talk(), 0).to_dict()["stages"] == []

    def test_it_is_in_the_report_of_the_component(self) -> None:
        component = ChatMessageCompactor(PipelineCompactor([PRUNING, TRUNCATION]), target_tokens=500)
        report = component.run(messages=talk())["report"]
        assert [stage["reason"] for stage in report["stages"]] == ["compacted", "compacted"]

    def test_a_failure_beside_success_does_not_blame_the_window(self) -> None:
        hook = CompactionHook(PipelineCompactor([PRUNING, OneLine(fails=True)]), context_window=800)
        outcomes: list[Outcome] = []
        hook.on_compaction = outcomes.append
        hook.run(agent_state(talk()))
        assert outcomes[0].compacted
        assert "OneLine raised ConnectionError" in outcomes[0].failures[0]


class TestParts:
    async def test_warm_up_and_close_reach_every_stage_once(self) -> None:
        calls: list[str] = []

        class Holds(Watched):
            def warm_up(self) -> None:
                calls.append("warm_up")

            async def close_async(self) -> None:
                calls.append("close_async")

        holds = Holds()
        inner = PipelineCompactor([holds])
        for whole in (PipelineCompactor([PRUNING, inner, holds]), TokenBudgetCompactor(10, [holds])):
            whole.warm_up()
            await whole.close_async()
            assert calls == ["warm_up", "close_async"]
            calls.clear()

    def test_the_hook_asks_again_for_what_a_stage_put_off(self) -> None:
        compactor = PipelineCompactor([PRUNING, ToolResultCollapseCompactor()])
        hook = CompactionHook(compactor, context_window=2000)
        state = agent_state([U("task"), A(calls=["a"]), T("a", [file(), file()])])
        hook.run(state)
        assert tokens(state.data["messages"]) > 2000
        state.data["messages"] = [*state.data["messages"], *step("b", 800)]
        hook.run(state)
        assert tokens(state.data["messages"]) <= 2000

    def test_instructions_and_pins_are_not_waited_for(self) -> None:
        messages = [S("rules " * 500), A("pinned", meta={"pin": 1}), U("task"), *step("a", 2000)]
        compactor = PipelineCompactor([DropOldest(), DropOldest()], pin_meta_keys=("pin",))
        assert compactor.deferred_tokens(MessageIndex(messages, COUNTER)) == tokens(messages[2:])

    def test_no_more_is_waited_for_than_the_stages_put_off(self) -> None:
        index = MessageIndex([U("task " * 500), *steps("a", "b")], COUNTER)
        assert PipelineCompactor([PRUNING, Watched()]).deferred_tokens(index) == index.included_token_count
        assert PipelineCompactor([PRUNING]).deferred_tokens(index) == PRUNING.deferred_tokens(index)

    async def test_requests_of_a_stage_reach_the_driver_both_ways(self) -> None:
        compactor = PipelineCompactor([PRUNING, OneLine()])
        after = outcome(compactor, talk(), 0).messages
        assert any(message.text == "[Earlier work.]" for message in after)
        index = MessageIndex(talk(), COUNTER)
        assert (await drive_async(compactor.steps(index, 0))).messages == after

    def test_a_pass_that_is_abandoned_between_two_stages_can_be_taken_back(self) -> None:
        index = MessageIndex(talk(), COUNTER)
        steps_of_it = PipelineCompactor([PRUNING, OneLine()]).steps(index, 0)
        next(steps_of_it)
        steps_of_it.close()
        index.reset()
        assert index.included_messages() == talk()
        assert index.included_token_count == tokens(talk())


class TestSettings:
    @pytest.mark.parametrize("make", [PipelineCompactor, lambda value: TokenBudgetCompactor(10, value)])
    @pytest.mark.parametrize(
        ("value", "kind", "text"),
        [
            ([], ValueError, "`compactors` must be at least one"),
            (PRUNING, TypeError, "`compactors` must be a list"),
            ("abc", TypeError, "`compactors` must be a list"),
            ([PRUNING, None], TypeError, r"`compactors\[1\]` must have a `compact` method"),
            ([ToolResultPruningCompactor], TypeError, r"`compactors\[0\]` must be an instance"),
        ],
    )
    def test_what_are_no_compactors_is_refused_by_name(self, make: Any, value: Any, kind: Any, text: str) -> None:
        with pytest.raises(kind, match=text):
            make(value)

    @pytest.mark.parametrize(
        ("settings", "kind", "text"),
        [
            ({"max_context_window_tokens": 0}, ValueError, "`max_context_window_tokens` must be at least 1"),
            ({"max_output_tokens": 100}, ValueError, "`max_output_tokens` must be smaller"),
            ({"max_output_tokens": -1}, ValueError, "`max_output_tokens` must be at least 0"),
            ({"tool_eviction_threshold": 0}, ValueError, "`tool_eviction_threshold` and `truncation_threshold` must"),
            ({"tool_eviction_threshold": 0.9}, ValueError, "`tool_eviction_threshold` and `truncation_threshold` must"),
            ({"truncation_threshold": 1.1}, ValueError, "`tool_eviction_threshold` and `truncation_threshold` must"),
            ({"truncation_threshold": "0.8"}, TypeError, "`truncation_threshold` must be a fraction"),
            ({"truncation_threshold": float("nan")}, ValueError, "must satisfy"),
            ({"keep_last_tool_call_groups": -1}, ValueError, "`keep_last_tool_call_groups` must be at least 0"),
        ],
    )
    def test_limits_that_make_no_sense_are_refused(self, settings: Any, kind: Any, text: str) -> None:
        with pytest.raises(kind, match=text):
            ContextWindowCompactor(**{"max_context_window_tokens": 100, "max_output_tokens": 10, **settings})

    def test_the_two_thresholds_may_be_the_same(self) -> None:
        both = ContextWindowCompactor(1000, 0, tool_eviction_threshold=0.5, truncation_threshold=0.5)
        assert outcome(both, talk()).after.tokens <= 500

    @pytest.mark.parametrize("budget", [0, -5])
    def test_a_budget_below_one_is_refused(self, budget: int) -> None:
        with pytest.raises(ValueError, match="`token_budget` must be at least 1"):
            TokenBudgetCompactor(budget, [PRUNING])

    @pytest.mark.parametrize("name", ["early_stop", "strict"])
    def test_switches_are_true_or_false(self, name: str) -> None:
        with pytest.raises(TypeError, match=f"`{name}` must be True or False"):
            TokenBudgetCompactor(10, [PRUNING], **{name: 1})  # type: ignore[arg-type]

    def test_the_component_needs_no_size_where_the_compactor_knows_its_own(self) -> None:
        for compactor in (
            TokenBudgetCompactor(500, [PRUNING]),
            ContextWindowCompactor(1000, 0),
            PipelineCompactor([ToolResultPruningCompactor(trigger=TokensExceed(500))]),
        ):
            assert ChatMessageCompactor(compactor).run(messages=talk())["report"]["compacted"]
        with pytest.raises(ValueError, match="`context_window` or `target_tokens`"):
            ChatMessageCompactor(PipelineCompactor([ToolResultPruningCompactor(trigger=TokensExceed(500)), PRUNING]))


class TestSaving:
    def compactor(self) -> PipelineCompactor:
        inner = TokenBudgetCompactor(900, [PRUNING], strict=True, early_stop=False)
        window = ContextWindowCompactor(8000, 1000, keep_last_tool_call_groups=2)
        return PipelineCompactor([window, PRUNING, OneLine(), inner], trigger=TokensExceed(10), pin_meta_keys=("a",))

    def test_it_comes_back_equal_with_everything_in_it(self) -> None:
        compactor = self.compactor()
        loaded = PipelineCompactor.from_dict(json.loads(json.dumps(compactor.to_dict())))
        assert loaded == compactor
        assert hash(loaded) == hash(compactor)
        assert loaded.to_dict() == compactor.to_dict()
        assert loaded.compact(talk(), 100, COUNTER) == compactor.compact(talk(), 100, COUNTER)

    def test_it_comes_back_from_yaml_within_a_pipeline(self) -> None:
        pipeline = Pipeline()
        pipeline.add_component("compactor", ChatMessageCompactor(self.compactor(), target_tokens=500))
        loaded = Pipeline.loads(pipeline.dumps())
        assert loaded.get_component("compactor").compactor == self.compactor()

    def test_pins_of_the_whole_are_saved_once(self) -> None:
        data = self.compactor().to_dict()["init_parameters"]
        assert data["pin_meta_keys"] == ["a"]
        assert data["compactors"][1]["init_parameters"]["pin_meta_keys"] == []

    def test_a_mistake_in_a_stage_is_answered_with_its_key(self) -> None:
        data = self.compactor().to_dict()
        data["init_parameters"]["compactors"][1]["init_parameters"]["min_token"] = 5
        with pytest.raises(DeserializationError, match=r"`compactors\[1\]`.*`min_token` is not a parameter of ToolRes"):
            PipelineCompactor.from_dict(data)

    def test_two_with_other_stages_are_not_equal(self) -> None:
        assert PipelineCompactor([PRUNING]) != PipelineCompactor([TRUNCATION])
        assert PipelineCompactor([PRUNING]) != PipelineCompactor([PRUNING, PRUNING])
        assert PipelineCompactor([Watched()]) != PipelineCompactor([PRUNING])

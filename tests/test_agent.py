"""Real Agents with the hook: long runs, what a run may bring along, failures, and the faults of a whole run."""

import asyncio
import copy
import re
import time
import warnings
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from agents import (
    ANSWER,
    TASK,
    USAGES,
    ModelCounter,
    OffByAFactor,
    ScriptedModel,
    SpyTracer,
    Usage,
    agent_with,
    both_ways,
    broken_pairs,
    changes_of_the_past,
    estimate,
    library_tools,
    play,
    reading,
    same_objects,
    spied,
    state_of,
    usage_like_anthropic,
    usage_like_openai,
    usage_missing,
    warnings_in,
)
from conversations import A, T, U, prose, step, steps
from haystack import tracing
from haystack.components.agents.state import State
from haystack.components.agents.state.state_utils import replace_values
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook as as_hook
from haystack.tools import Tool, create_tool_from_function
from oracle import GarbageCounter, RaisingCounter, RecordingCounter

from haystack_compaction import CompactionHook, Outcome, ToolResultPruningCompactor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from haystack.hooks.compaction import CompactionHook as HaystackHook

WINDOW = 24_000
STEPS = 60

each_usage = pytest.mark.parametrize("usage", USAGES.values(), ids=list(USAGES))


def hook_for(window: int = WINDOW, **settings: Any) -> CompactionHook:
    settings.setdefault("token_counter", ModelCounter())
    return CompactionHook(settings.pop("compactor", ToolResultPruningCompactor()), context_window=window, **settings)


def uncompacted(steps: int = STEPS, **settings: Any) -> ScriptedModel:
    model = ScriptedModel(reading(steps, **settings))
    agent_with(model).run(messages=[ChatMessage.from_user(TASK)])
    return model


class TestLongRuns:
    def test_without_the_hook_the_run_would_need_three_windows_and_more(self) -> None:
        assert uncompacted().largest >= 3 * WINDOW

    @both_ways
    @each_usage
    async def test_no_request_is_larger_than_the_window(self, way: str, usage: Usage | None) -> None:
        model = ScriptedModel(reading(STEPS), usage=usage)
        await play(way, agent_with(model, hook_for()))
        assert len(model.requests) == STEPS + 1
        assert model.largest <= WINDOW

    @each_usage
    def test_no_request_is_larger_than_the_window_with_the_default_counter(self, usage: Usage | None) -> None:
        model = ScriptedModel(reading(STEPS), usage=usage)
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=WINDOW)
        agent_with(model, hook).run(messages=[ChatMessage.from_user(TASK)])
        assert model.largest <= WINDOW

    @pytest.mark.parametrize("factor", [0.25, 0.5, 3.0])
    @pytest.mark.parametrize("usage", [usage_like_openai, usage_like_anthropic])
    def test_a_counter_that_is_off_by_a_factor_keeps_the_window_too(self, factor: float, usage: Usage) -> None:
        model = ScriptedModel(reading(STEPS), usage=usage)
        compactor = ToolResultPruningCompactor(min_tokens=20)
        agent = agent_with(model, hook_for(compactor=compactor, token_counter=OffByAFactor(factor)))
        agent.run(messages=[ChatMessage.from_user(TASK)])
        assert model.largest <= WINDOW

    @both_ways
    @each_usage
    async def test_every_call_has_its_result_in_every_request(self, way: str, usage: Usage | None) -> None:
        model = ScriptedModel(reading(STEPS // 2, parallel=2), usage=usage)
        await play(way, agent_with(model, hook_for()))
        assert [broken_pairs(request.messages) for request in model.requests] == [[]] * len(model.requests)

    @both_ways
    async def test_instructions_and_task_are_in_every_request(self, way: str) -> None:
        model = ScriptedModel(reading(STEPS))
        await play(way, agent_with(model, hook_for()))
        assert {tuple(message.text for message in request.messages[:2]) for request in model.requests} == {
            ("You know the library well.", TASK)
        }

    @both_ways
    async def test_the_model_sees_each_new_result_whole(self, way: str) -> None:
        model, plain = ScriptedModel(reading(STEPS)), uncompacted()
        await play(way, agent_with(model, hook_for()))
        newest = [request.messages[-1].tool_call_results for request in model.requests[1:]]
        assert newest == [request.messages[-1].tool_call_results for request in plain.requests[1:]]

    @both_ways
    async def test_the_run_ends_with_the_models_answer(self, way: str) -> None:
        result = await play(way, agent_with(ScriptedModel(reading(STEPS)), hook_for()))
        assert result["last_message"].text == ANSWER
        assert result["step_count"] == STEPS + 1

    @both_ways
    async def test_messages_of_the_caller_are_untouched(self, way: str) -> None:
        given = [U("before"), *steps("a", "b", chars=30_000), A("so"), U(TASK)]
        before = copy.deepcopy(given)
        await play(way, agent_with(ScriptedModel(reading(3)), hook_for(4000)), messages=given)
        assert given == before

    async def test_the_asynchronous_run_sends_what_the_synchronous_one_sends(self) -> None:
        models = ScriptedModel(reading(STEPS)), ScriptedModel(reading(STEPS))
        await play("run", agent_with(models[0], hook_for()))
        await play("run_async", agent_with(models[1], hook_for()))
        assert [r.messages for r in models[0].requests] == [r.messages for r in models[1].requests]

    @each_usage
    def test_the_past_is_changed_in_few_of_the_steps_only(self, usage: Usage | None) -> None:
        model = ScriptedModel(reading(STEPS), usage=usage)
        agent_with(model, hook_for()).run(messages=[ChatMessage.from_user(TASK)])
        assert 0 < len(changes_of_the_past(model.requests)) <= STEPS // 4


class TestHookPoints:
    @pytest.mark.parametrize("point", ["before_run", "before_tool", "after_tool", "on_exit", "after_lunch"])
    def test_the_agent_refuses_any_other_hook_point(self, point: str) -> None:
        with pytest.raises(ValueError, match="hook point"):
            agent_with(ScriptedModel([]), hook_for(), point=point)

    @both_ways
    @each_usage
    async def test_after_run_shortens_what_is_returned(self, way: str, usage: Usage | None) -> None:
        model = ScriptedModel(reading(20), usage=usage)
        result = await play(way, agent_with(model, hook_for(8000), point="after_run"))
        assert model.largest > 8000
        assert ModelCounter().count(result["messages"]) <= 0.4 * 8000
        assert broken_pairs(result["messages"]) == []

    async def test_after_run_leaves_the_answer_in_its_place(self) -> None:
        result = await play("run", agent_with(ScriptedModel(reading(20)), hook_for(8000), point="after_run"))
        assert result["last_message"].text == result["messages"][-1].text == ANSWER

    def test_one_hook_may_stand_at_both_points(self) -> None:
        hook = hook_for(8000)
        model = ScriptedModel(reading(20))
        agent = agent_with(model, hook)
        agent.hooks["after_run"] = [hook]
        result = agent.run(messages=[ChatMessage.from_user(TASK)])
        assert model.largest <= 8000
        assert ModelCounter().count(result["messages"]) <= 8000


class _CountsCalls:
    """Haystack's protocol around our pruning, with a record of how often it was asked, and how often in vain."""

    def __init__(self, **settings: Any) -> None:
        self.inner = ToolResultPruningCompactor(**settings)
        self.answers: list[bool] = []
        self.counters: list[Any] = []

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> list[ChatMessage] | None:
        answer = self.inner.compact(messages, target_tokens, token_counter)
        self.answers.append(answer is not None)
        self.counters.append(token_counter)
        return answer


class TestPerRun:
    @both_ways
    async def test_compaction_can_be_switched_off_for_a_run(self, way: str) -> None:
        model = ScriptedModel(reading(20))
        agent = agent_with(model, hook_for(8000))
        await play(way, agent, hook_context={"compaction_enabled": False})
        assert changes_of_the_past(model.requests) == []
        assert model.largest > 8000

    @both_ways
    async def test_a_run_can_bring_its_own_compactor(self, way: str) -> None:
        built_with, brought = _CountsCalls(), _CountsCalls()
        agent = agent_with(ScriptedModel(reading(20)), hook_for(8000, compactor=built_with))
        await play(way, agent, hook_context={"compactor": brought})
        assert built_with.answers == []
        assert any(brought.answers)

    @both_ways
    async def test_a_run_can_bring_a_compactor_of_ours(self, way: str) -> None:
        model = ScriptedModel(reading(20))
        brought = ToolResultPruningCompactor(placeholder="gone: {tool_name}")
        await play(way, agent_with(model, hook_for(8000)), hook_context={"compactor": brought})
        results = [r.result for message in model.requests[-1].messages for r in message.tool_call_results]
        assert "gone: read_file" in results

    @both_ways
    async def test_a_run_can_bring_its_own_counter(self, way: str) -> None:
        built_with, brought = RecordingCounter(), RecordingCounter()
        agent = agent_with(ScriptedModel(reading(20)), hook_for(8000, token_counter=built_with))
        await play(way, agent, hook_context={"token_counter": brought})
        assert built_with.requests == []
        assert brought.requests

    async def test_the_compactor_measures_with_the_counter_of_the_run(self) -> None:
        compactor, brought = _CountsCalls(), RecordingCounter()
        agent = agent_with(ScriptedModel(reading(20)), hook_for(8000, compactor=compactor))
        await play("run", agent, hook_context={"token_counter": brought})
        assert {id(counter) for counter in compactor.counters} == {id(brought)}

    def test_the_next_run_is_as_the_hook_was_built(self) -> None:
        built_with, hook = _CountsCalls(), hook_for(8000)
        hook = hook_for(8000, compactor=built_with)
        for context in ({"compaction_enabled": False}, {"compactor": _CountsCalls()}, {"compactor": None}, None):
            built_with.answers.clear()
            agent_with(ScriptedModel(reading(20)), hook).run(messages=[U(TASK)], hook_context=context)
        assert any(built_with.answers)

    @both_ways
    @pytest.mark.parametrize(
        "context",
        [{"compactor": 5}, {"compactor": ToolResultPruningCompactor}, {"token_counter": "o200k"}],
        ids=["no compactor", "a class", "no counter"],
    )
    async def test_a_wrong_override_gives_one_warning_and_the_hooks_own_is_used(
        self, way: str, context: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        model = ScriptedModel(reading(20))
        await play(way, agent_with(model, hook_for(8000)), hook_context=context)
        assert model.largest <= 8000
        (warning,) = warnings_in(caplog)
        assert next(iter(context)) in warning

    def test_other_things_in_the_context_are_none_of_ours(self, caplog: pytest.LogCaptureFixture) -> None:
        model = ScriptedModel(reading(20))
        agent_with(model, hook_for(8000)).run(messages=[U(TASK)], hook_context={"user": 7, "store": object()})
        assert model.largest <= 8000
        assert warnings_in(caplog) == []


class TestManyRunsAtOnce:
    LENGTHS = (20, 24, 28, 32, 36, 40, 44, 48)

    def test_one_hook_in_eight_threads_does_for_each_what_it_does_alone(self) -> None:
        alone = [self.sent(hook_for(8000), steps) for steps in self.LENGTHS]
        hook = hook_for(8000)
        with ThreadPoolExecutor(max_workers=8) as pool:
            together = list(pool.map(lambda steps: self.sent(hook, steps), self.LENGTHS))
        assert together == alone

    async def test_one_hook_in_eight_tasks_does_for_each_what_it_does_alone(self) -> None:
        alone = [self.sent(hook_for(8000), steps) for steps in self.LENGTHS]
        models, hook = [ScriptedModel(reading(steps)) for steps in self.LENGTHS], hook_for(8000)
        await asyncio.gather(*(play("run_async", agent_with(model, hook)) for model in models))
        assert [[request.messages for request in model.requests] for model in models] == alone

    def sent(self, hook: CompactionHook, steps: int) -> list[tuple[ChatMessage, ...]]:
        model = ScriptedModel(reading(steps))
        agent_with(model, hook).run(messages=[ChatMessage.from_user(TASK)])
        return [request.messages for request in model.requests]


# --- Failures ---------------------------------------------------------------------------------------------------------


class _Panic(BaseException):
    """As a tokenizer written in Rust raises it: no `Exception`."""


class _Panics:
    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        raise _Panic("index out of bounds")


class _ComplainsAnew:
    """Raises with another text each time."""

    def __init__(self) -> None:
        self.times = 0

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        self.times += 1
        raise ValueError(f"request {self.times} failed")

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> None:
        self.times += 1
        raise ValueError(f"request {self.times} failed")


class _Answers:
    """A compactor that does something with the list and answers what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> Any:
        return self.answer(messages)


def _raise(messages: list[ChatMessage]) -> None:
    raise RuntimeError("the strategy is broken")


def _tamper(messages: list[ChatMessage]) -> None:
    messages.clear()


BROKEN_COMPACTORS = {
    "raises": _raise,
    "runs out of items": lambda messages: next(iter(())),
    "returns a text": lambda messages: "shorter",
    "returns texts": lambda messages: [message.text for message in messages],
    "loses calls": lambda messages: [message for message in messages if not message.tool_calls],
    "loses results": lambda messages: [message for message in messages if not message.tool_call_results],
    "loses the task": lambda messages: [message for message in messages if not message.is_from("user")],
    "loses everything": lambda messages: [],
}
FAILING_COUNTERS = {
    "raises": RaisingCounter,
    "panics": _Panics,
    "answers None": lambda: GarbageCounter(None),
    "answers a text": lambda: GarbageCounter("12"),
    "answers a negative number": lambda: GarbageCounter(-1),
    "answers no number": lambda: GarbageCounter(float("nan")),
}


class _AsksAModel:
    """A compactor that needs a model, and has no idea what to do when that fails."""

    def __init__(self, chat_generator: Any) -> None:
        self.chat_generator = chat_generator

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> list[ChatMessage]:
        reply = self.chat_generator.run(messages=messages)["replies"][0]
        return [messages[0], ChatMessage.from_user(reply.text), *messages[1:2]]


def _unreachable(messages: list[ChatMessage]) -> str:
    raise ConnectionError("the model cannot be reached")


def failing(**parts: Any) -> CompactionHook:
    """A hook that would start in the middle of a run which, uncompacted, still fits into the window."""
    return hook_for(40_000, compact_at=0.4, compact_to=0.2, **parts)


@both_ways
class TestFailures:
    """Nothing that fails ends the run or changes the conversation, and each is said once."""

    async def ends_as_if_there_were_no_hook(self, way: str, hook: CompactionHook) -> None:
        model, plain = ScriptedModel(reading(20)), ScriptedModel(reading(20))
        # A failure that cannot be told of across threads hangs the await for ever.
        result = await asyncio.wait_for(play(way, agent_with(model, hook)), timeout=10)
        await play(way, agent_with(plain))
        assert result["last_message"].text == ANSWER
        assert [request.messages for request in model.requests] == [request.messages for request in plain.requests]

    @pytest.mark.parametrize("answer", BROKEN_COMPACTORS.values(), ids=list(BROKEN_COMPACTORS))
    async def test_of_a_compactor(self, way: str, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
        await self.ends_as_if_there_were_no_hook(way, failing(compactor=_Answers(answer)))
        assert len(warnings_in(caplog)) == 1

    @pytest.mark.parametrize("counter", FAILING_COUNTERS.values(), ids=list(FAILING_COUNTERS))
    async def test_of_a_counter(self, way: str, counter: Any, caplog: pytest.LogCaptureFixture) -> None:
        await self.ends_as_if_there_were_no_hook(way, failing(token_counter=counter()))
        assert len(warnings_in(caplog)) == 1

    async def test_of_a_generator(self, way: str, caplog: pytest.LogCaptureFixture) -> None:
        compactor = _AsksAModel(MockChatGenerator(response_fn=_unreachable))
        await self.ends_as_if_there_were_no_hook(way, failing(compactor=compactor))
        (warning,) = warnings_in(caplog)
        assert "the model cannot be reached" in warning

    @pytest.mark.parametrize("part", ["compactor", "token_counter"])
    async def test_that_are_worded_anew_each_time_are_said_once_too(
        self, way: str, part: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.ends_as_if_there_were_no_hook(way, failing(**{part: _ComplainsAnew()}))
        assert len(warnings_in(caplog)) == 1

    async def test_a_compactor_that_empties_the_list_it_is_given_empties_a_copy(self, way: str) -> None:
        await self.ends_as_if_there_were_no_hook(way, failing(compactor=_Answers(_tamper)))

    async def test_a_compactor_that_returns_more_than_it_got_is_not_followed(self, way: str) -> None:
        await self.ends_as_if_there_were_no_hook(
            way, failing(compactor=_Answers(lambda messages: [*messages, U("and one more")]))
        )

    async def test_of_a_callback_do_not_take_back_what_was_compacted(
        self, way: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def complain(outcome: Outcome) -> None:
            raise RuntimeError("the dashboard is down")

        model = ScriptedModel(reading(20))
        result = await play(way, agent_with(model, hook_for(8000, on_compaction=complain)))
        assert result["last_message"].text == ANSWER
        assert model.largest <= 8000
        (warning,) = warnings_in(caplog)
        assert "the dashboard is down" in warning

    async def test_a_callback_that_empties_what_it_is_told_does_not_empty_the_conversation(self, way: str) -> None:
        model, plain = ScriptedModel(reading(20)), ScriptedModel(reading(20))
        await play(way, agent_with(model, hook_for(8000, on_compaction=lambda outcome: outcome.messages.clear())))
        await play(way, agent_with(plain, hook_for(8000)))
        assert [request.messages for request in model.requests] == [request.messages for request in plain.requests]

    async def test_a_run_after_a_failed_one_is_compacted_as_ever(self, way: str) -> None:
        hook = hook_for(8000)
        await play(way, agent_with(ScriptedModel(reading(20)), hook), hook_context={"token_counter": RaisingCounter()})
        model = ScriptedModel(reading(20))
        await play(way, agent_with(model, hook))
        assert model.largest <= 8000


def test_the_users_interrupt_passes_through() -> None:
    def interrupted(messages: list[ChatMessage]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hook_for(1000, compactor=_Answers(interrupted)).run(state_of([U("go"), *steps("a", "b", "c", chars=4000)]))


# --- Cancellation and the event loop ----------------------------------------------------------------------------------


class _Sleeps(RecordingCounter):
    """Counts slowly, as a counter behind a network does, and wants whole groups."""

    def __init__(self, seconds: float) -> None:
        super().__init__(additive=False)
        self.seconds = seconds

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        time.sleep(self.seconds)
        return super().count(messages, tools)


class _SleepsAsync(_Answers):
    async def compact_async(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> Any:
        await asyncio.sleep(60)


async def longest_gap(work: Awaitable[Any]) -> float:
    """How long the event loop was held up at most while the work was done, by a heartbeat every 10 ms."""
    gaps, clock = [0.0], asyncio.get_running_loop().time

    async def beat() -> None:
        last = clock()
        while True:
            await asyncio.sleep(0.01)
            gaps.append(clock() - last)
            last = clock()

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    await work
    beating.cancel()
    assert len(gaps) > 10, "the work was done before it could hold up anything"
    return max(gaps)


class TestEventLoop:
    def state(self) -> State:
        return state_of([U("go"), *steps("a", "b", "c", chars=4000)])

    async def test_fault_38_a_slow_counter_does_not_hold_up_the_event_loop(self) -> None:
        state, hook = self.state(), hook_for(2000, token_counter=_Sleeps(0.15))
        assert await longest_gap(hook.run_async(state)) < 0.1
        assert len({m.tool_call_result.result for m in state.data["messages"] if m.tool_call_result}) == 2

    async def test_fault_38_nor_does_a_foreign_compactor_that_counts_by_itself(self) -> None:
        state = self.state()
        hook = hook_for(2000, compactor=_CountsCalls(), token_counter=_Sleeps(0.15))
        assert await longest_gap(hook.run_async(state)) < 0.1

    async def test_fault_38_a_whole_run_does_not_hold_up_the_event_loop(self) -> None:
        model = ScriptedModel(reading(4, chars=2500))
        agent = agent_with(model, hook_for(2500, token_counter=_Sleeps(0.15)))
        assert await longest_gap(play("run_async", agent)) < 0.1
        assert changes_of_the_past(model.requests)


class TestCancellation:
    """A run that is cancelled in the middle of a pass leaves everything as it was."""

    async def cancelled(self, work: Awaitable[Any], after: float = 0.05) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_while_the_counter_is_at_work(self) -> None:
        messages = [U("go"), *steps("a", "b", "c", chars=4000)]
        before, state = copy.deepcopy(messages), state_of(messages, context_tokens=7)
        await self.cancelled(hook_for(2000, token_counter=_Sleeps(0.2)).run_async(state))
        await asyncio.sleep(0.3)
        assert same_objects(state.data["messages"], messages)
        assert messages == before
        assert state.data["context_tokens"] == 7

    async def test_while_a_compactor_waits_for_something(self) -> None:
        messages = [U("go"), *steps("a", "b", "c", chars=4000)]
        state = state_of(messages)
        await self.cancelled(hook_for(2000, compactor=_SleepsAsync(None)).run_async(state))
        assert same_objects(state.data["messages"], messages)

    async def test_the_hook_goes_on_with_the_same_state_afterwards(self) -> None:
        counter = _Sleeps(0.2)
        state, hook = state_of([U("go"), *steps("a", "b", "c", chars=4000)]), hook_for(2000, token_counter=counter)
        await self.cancelled(hook.run_async(state))
        await asyncio.sleep(0.3)
        counter.seconds = 0
        fresh = state_of(state.data["messages"])
        hook_for(2000, token_counter=RecordingCounter(additive=False)).run(fresh)
        await hook.run_async(state)
        assert state.data["messages"] == fresh.data["messages"]

    async def test_of_a_whole_run_leaves_the_callers_messages(self, caplog: pytest.LogCaptureFixture) -> None:
        given = [U("old"), *steps("a", "b", "c", chars=9000), A("done"), U(TASK)]
        before = copy.deepcopy(given)
        agent = agent_with(ScriptedModel(reading(9)), hook_for(3000, token_counter=_Sleeps(0.2)))
        await self.cancelled(play("run_async", agent, messages=given), after=0.1)
        assert given == before
        assert warnings_in(caplog) == []


# --- Faults -----------------------------------------------------------------------------------------------------------


def with_usage(message: ChatMessage, usage: dict[str, Any] | None) -> ChatMessage:
    return replace(message, _meta={"usage": usage})


def reported(usage: dict[str, Any] | None) -> int:
    """What the Agent keeps of a report: input and output as they stand there."""
    usage = usage or {}
    return int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))


class TestUsage:
    """Faults 14 and 15: what the last reply reported is read as the provider meant it."""

    def state(self, usage: dict[str, Any] | None) -> State:
        # By the model's tokenizer 5,150 tokens before the reply, and 60 for the reply.
        reply = A("now " * 56)
        return state_of(
            [U("x " * 5146), with_usage(reply, usage)], context_tokens=reported(usage), tools=library_tools()
        )

    @pytest.mark.parametrize(
        ("usage", "tokens"),
        [
            ({"prompt_tokens": 12, "completion_tokens": 60, "cache_read_input_tokens": 5165}, 5237),
            ({"prompt_tokens": 5200, "prompt_tokens_details": {"cached_tokens": 5100}}, 5260),
            (
                {
                    "prompt_tokens": 5200,
                    "completion_tokens": 60,
                    "prompt_tokens_details": {"cached_tokens": 5100},
                },
                5260,
            ),
        ],
        ids=["beside the input", "inside the input", "inside the input, output reported"],
    )
    def test_fault_14_cached_input_counts_once(self, usage: dict[str, Any], tokens: int) -> None:
        assert estimate(hook_for(), self.state(usage)) == pytest.approx(tokens, abs=5)

    @pytest.mark.parametrize(
        "usage",
        [
            None,
            {},
            {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            {"prompt_tokens": 0, "completion_tokens": 60},
            {"total_tokens": 5260},
        ],
        ids=["none", "empty", "all zero", "no input", "only a total"],
    )
    def test_fault_15_without_a_usable_report_the_local_count_decides(self, usage: dict[str, Any] | None) -> None:
        state = self.state(usage)
        local = ModelCounter().count(state.data["messages"], state.data["tools"])
        assert estimate(hook_for(), state) == local

    def test_fault_14_a_run_with_cached_input_beside_the_input_is_compacted_in_time(self) -> None:
        model = ScriptedModel(reading(20), usage=usage_like_anthropic)
        agent_with(model, hook_for(8000, token_counter=OffByAFactor(0.4))).run(messages=[U(TASK)])
        assert model.largest <= 8000


class TestScale:
    """Fault 16: neither a counter that is off nor reasoning turns into overhead that pushes the target to zero."""

    WINDOW = 16_000

    def left(self, messages: list[ChatMessage], counter: Any, **usage: Any) -> float:
        """The share of the window that the compacted request fills, by the model's own tokenizer."""
        last = max(n for n, message in enumerate(messages) if message.is_from("assistant"))
        report = {"prompt_tokens": ModelCounter().count(messages[:last]), "completion_tokens": 30, **usage}
        messages[last] = with_usage(messages[last], report)
        state = state_of(messages, context_tokens=reported(report))
        hook_for(self.WINDOW, token_counter=counter).run(state)
        return ModelCounter().count(state.data["messages"]) / self.WINDOW

    def test_fault_16_a_counter_that_is_a_quarter_of_the_truth(self) -> None:
        text = "会议记录显示项目按计划推进"
        long = [(text * 80)[n : n + 1000] for n in range(13)]
        messages = [U("总结"), *(m for n, t in enumerate(long) for m in (A(calls=[f"c{n}"]), T(f"c{n}", t)))]
        counter = RecordingCounter()
        assert ModelCounter().count(messages) == pytest.approx(13_000, rel=0.05)
        assert counter.count(messages) == pytest.approx(3300, rel=0.1)
        assert 0.3 <= self.left(messages, counter) <= 0.42

    @pytest.mark.parametrize("factor", [0.25, 0.5, 1, 1.8])
    def test_fault_16_a_counter_that_is_off_by_a_factor(self, factor: float) -> None:
        messages = [U("go"), *steps(*(f"c{n}" for n in range(14)), chars=2600)]
        assert 0.75 * self.WINDOW < ModelCounter().count(messages) < self.WINDOW
        assert 0.3 <= self.left(messages, OffByAFactor(factor)) <= 0.42

    @pytest.mark.parametrize("details", ["completion_tokens_details", "output_tokens_details"])
    def test_fault_16_a_reply_with_nine_thousand_tokens_of_reasoning(self, details: str) -> None:
        messages = [U("go"), *steps(*(f"c{n}" for n in range(14)), chars=2600)]
        left = self.left(messages, ModelCounter(), completion_tokens=9030, **{details: {"reasoning_tokens": 9000}})
        assert 0.3 <= left <= 0.42

    def test_fault_16_reasoning_alone_starts_no_compaction(self) -> None:
        messages = [U("go"), *steps(*(f"c{n}" for n in range(8)), chars=2600)]
        details = {"completion_tokens": 9030, "completion_tokens_details": {"reasoning_tokens": 9000}}
        before = ModelCounter().count(messages) / self.WINDOW
        assert 0.4 < before < 0.6
        assert self.left(messages, ModelCounter(), **details) == before


def dump(chars: int) -> str:
    """Return a text of so many characters, whose words all differ."""
    return f"HEAD {prose(chars, 7)} TAIL"


def dumping(*sizes: int) -> list[list[ToolCall]]:
    return [[ToolCall(tool_name="dump", arguments={"chars": n}, id=f"d{k}")] for k, n in enumerate(sizes)]


def dump_tool() -> list[Tool]:
    return [create_tool_from_function(dump)]


def last_result(messages: Any) -> str:
    return str([r.result for message in messages for r in message.tool_call_results][-1])


@pytest.mark.parametrize("usage", [usage_like_openai, usage_missing])
class TestOversizedResults:
    """Fault 17: a newest result that alone is larger than the room left."""

    WINDOW = 4000
    HUGE = 26_000

    def run(self, usage: Usage, *sizes: int, **settings: Any) -> ScriptedModel:
        model = ScriptedModel(dumping(*sizes), usage=usage)
        agent_with(model, hook_for(self.WINDOW, **settings), tools=dump_tool()).run(messages=[U(TASK)])
        return model

    def test_fault_17_it_is_cut_to_head_and_tail_with_a_mark(self, usage: Usage) -> None:
        assert ModelCounter().count([T("d", dump(self.HUGE))]) > 10_000
        model = self.run(usage, self.HUGE, *[300] * 5)
        shown = last_result(model.requests[1].messages)
        assert shown.startswith("HEAD word7x0 ")
        assert shown.endswith(" TAIL")
        assert len(shown) < self.HUGE / 4
        assert "missing" in shown

    def test_fault_17_the_mark_says_how_much_is_missing(self, usage: Usage) -> None:
        shown = last_result(self.run(usage, self.HUGE, 300).requests[1].messages)
        whole = dump(self.HUGE)
        head = next(n for n, (one, other) in enumerate(zip(shown, whole, strict=False)) if one != other)
        tail = next(n for n, (one, other) in enumerate(zip(shown[::-1], whole[::-1], strict=False)) if one != other)
        numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", shown[head : len(shown) - tail])]
        # Head and tail may run a few characters into the mark where they happen to agree with it.
        assert any(number == pytest.approx(len(whole) - head - tail, abs=5) for number in numbers)

    def test_fault_17_it_takes_at_most_half_of_the_window(self, usage: Usage) -> None:
        model = self.run(usage, self.HUGE, 300)
        assert ModelCounter().count([model.requests[1].messages[-1]]) <= self.WINDOW / 2

    def test_fault_17_no_request_is_larger_than_the_window(self, usage: Usage) -> None:
        assert self.run(usage, self.HUGE, *[300] * 5).largest <= self.WINDOW
        assert self.run(usage, *[self.HUGE] * 6).largest <= self.WINDOW

    @pytest.mark.parametrize("sizes", [(26_000, *[300] * 5), (26_000,) * 6], ids=["one huge", "six huge"])
    def test_fault_17_there_is_one_warning(
        self, usage: Usage, sizes: tuple[int, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        self.run(usage, *sizes)
        assert len(warnings_in(caplog)) == 1

    def test_fault_17_the_compactor_is_not_called_in_vain_in_each_step(self, usage: Usage) -> None:
        compactor = _CountsCalls()
        self.run(usage, self.HUGE, *[300] * 5, compactor=compactor)
        assert compactor.answers.count(False) <= 1

    def test_fault_17_the_cut_is_not_final(self, usage: Usage) -> None:
        model = self.run(usage, self.HUGE, *[3000] * 4)
        first = next(message for message in model.requests[-1].messages if message.tool_call_results)
        assert "removed" in str(first.tool_call_results[0].result)

    def test_a_result_that_fits_into_the_window_is_left_whole(self, usage: Usage) -> None:
        model = self.run(usage, 3000, 3000, 3000)
        assert [len(last_result(request.messages)) for request in model.requests[1:]] == [len(dump(3000))] * 3

    def test_a_result_above_a_limit_of_its_own_is_cut_even_where_there_is_room(self, usage: Usage) -> None:
        model = self.run(usage, 3000, max_result_tokens=500)
        assert ModelCounter().count([model.requests[1].messages[-1]]) <= 500

    def test_parallel_results_are_cut_so_that_all_together_fit(self, usage: Usage) -> None:
        calls = [[ToolCall(tool_name="dump", arguments={"chars": n}, id=f"d{n}") for n in (26_000, 20_000, 200)]]
        model = ScriptedModel(calls, usage=usage)
        agent_with(model, hook_for(self.WINDOW), tools=dump_tool()).run(messages=[U(TASK)])
        results = [message.tool_call_results[0].result for message in model.requests[1].messages[-3:]]
        assert model.largest <= self.WINDOW
        assert results[2] == dump(200)
        assert all(str(result).startswith("HEAD") for result in results)


@pytest.mark.parametrize("usage", [usage_like_openai, usage_missing])
class TestNearTheFloor:
    """Fault 18: what must stay is nearly what starts a compaction."""

    WINDOW = 4000

    def run(self, usage: Usage, steps: int = 8) -> ScriptedModel:
        # The task alone fills 62 % of the window, a step 8 %.
        task = U("word " * 2480)
        model = ScriptedModel(dumping(*[620] * steps), usage=usage)
        agent_with(model, hook_for(self.WINDOW, compactor=ToolResultPruningCompactor()), tools=dump_tool()).run(
            messages=[task]
        )
        return model

    def test_fault_18_old_messages_stay_the_same_objects_in_most_steps(self, usage: Usage) -> None:
        model = self.run(usage)
        assert 1 <= len(changes_of_the_past(model.requests)) <= 4

    def test_fault_18_the_window_is_kept_all_the_same(self, usage: Usage) -> None:
        assert self.run(usage).largest <= self.WINDOW

    def test_fault_18_one_warning_says_that_what_must_stay_is_too_large(
        self, usage: Usage, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.run(usage)
        assert len(warnings_in(caplog)) == 1


# --- Other hooks in the list ------------------------------------------------------------------------------------------


def grown(*, usage: bool = True) -> State:
    """A conversation of nearly 10,000 tokens whose last reply tells what was sent, by the model's tokenizer."""
    messages = [U("go"), *steps(*(f"c{n}" for n in range(10)), chars=2600)]
    report = usage_like_openai(
        ModelCounter().count(messages[:-2], library_tools()), ModelCounter().count(messages[-2:-1])
    )
    if usage:
        messages[-2] = with_usage(messages[-2], report)
    return state_of(messages, context_tokens=reported(report) if usage else 0, tools=library_tools())


def request_tokens(state: State) -> int:
    return ModelCounter().count(state.data["messages"], state.data["tools"])


def theirs(window: int, **settings: Any) -> Any:
    return HaystackHook(ToolResultPruningCompactor(), context_window=window, token_counter=ModelCounter(), **settings)


PAIRS = {
    "ours after ours": (hook_for, hook_for),
    "ours after Haystack's": (theirs, hook_for),
    "Haystack's after ours": (hook_for, theirs),
}


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without"])
@pytest.mark.parametrize(("first", "second"), PAIRS.values(), ids=list(PAIRS))
class TestTwoHooks:
    def in_turn(self, state: State, *hooks: Any) -> SpyTracer:
        with spied() as tracer:
            for hook in hooks:
                with tracing.tracer.trace("hook"):
                    hook.run(state)
        return tracer

    def test_the_second_decides_on_the_new_size(self, usage: bool, first: Any, second: Any) -> None:
        state = grown(usage=usage)
        before = request_tokens(state)
        tracer = self.in_turn(state, first(12_000), second(12_000))
        sizes = tracer.tagged("estimated_context_tokens")
        assert tracer.tagged("compacted")[0] is True
        assert sizes[0] == pytest.approx(before, rel=0.03)
        assert sizes[1] == pytest.approx(request_tokens(state), rel=0.03)

    def test_the_second_does_nothing_where_the_first_was_enough(self, usage: bool, first: Any, second: Any) -> None:
        state = grown(usage=usage)
        first(12_000).run(state)
        after = list(state.data["messages"])
        second(12_000).run(state)
        assert same_objects(state.data["messages"], after)

    def test_the_second_goes_on_where_the_first_was_not(self, usage: bool, first: Any, second: Any) -> None:
        state = grown(usage=usage)
        self.in_turn(state, first(12_000, compact_to=0.6), second(8000, compact_at=0.5))
        assert request_tokens(state) <= 0.42 * 8000

    def test_a_run_with_both_is_compacted_no_more_often_than_with_one(
        self, usage: bool, first: Any, second: Any
    ) -> None:
        report = usage_like_openai if usage else usage_missing
        models = [ScriptedModel(reading(30), usage=report) for _ in range(2)]
        agent_with(models[0], first(WINDOW)).run(messages=[U(TASK)])
        agent_with(models[1], first(WINDOW), second(WINDOW)).run(messages=[U(TASK)])
        assert models[1].largest <= WINDOW
        assert changes_of_the_past(models[1].requests) == changes_of_the_past(models[0].requests)


class TestWhatOthersChange:
    """The hook remembers a run from step to step, and believes what it remembers only while it is true."""

    def test_context_tokens_are_set_to_what_was_kept(self) -> None:
        state = grown()
        hook_for(12_000).run(state)
        assert state.data["context_tokens"] == pytest.approx(
            ModelCounter().count(state.data["messages"][:-1], state.data["tools"]), rel=0.03
        )

    def test_context_tokens_stay_zero_where_nothing_was_reported(self) -> None:
        state = grown(usage=False)
        hook_for(12_000).run(state)
        assert state.data["context_tokens"] == 0

    def test_another_conversation_in_the_same_state_is_measured_anew(self) -> None:
        hook, state = hook_for(12_000), grown(usage=False)
        hook.run(state)
        state.data["messages"] = [U("another"), *steps(*(f"x{n}" for n in range(10)), chars=2600)]
        fresh = state_of(state.data["messages"], tools=library_tools())
        hook.run(state)
        hook_for(12_000).run(fresh)
        assert state.data["messages"] == fresh.data["messages"]
        assert request_tokens(state) <= 0.42 * 12_000

    @pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without"])
    @pytest.mark.parametrize("window", [40_000, 16_500], ids=["room", "over the trigger"])
    def test_what_another_hook_replaced_in_the_middle_does_not_come_back(self, usage: bool, window: int) -> None:
        state = grown(usage=usage)
        hook = hook_for(window, max_result_tokens=400)
        hook.run(state)
        redacted = T("c4", "REDACTED")
        state.data["messages"][10] = redacted
        state.data["messages"] += step("new", chars=9000)
        hook.run(state)
        assert state.data["messages"][10] is redacted
        assert ModelCounter().count([state.data["messages"][-1]]) <= 400

    @both_ways
    @pytest.mark.parametrize("kept", ["as it was", "zero", "stale"])
    @pytest.mark.parametrize("usage", [usage_like_openai, usage_like_anthropic, usage_missing])
    async def test_a_restored_state_goes_on_within_the_window(self, way: str, kept: str, usage: Usage) -> None:
        saved = self.saved_run(usage)

        @as_hook
        def restore(state: State) -> None:
            state.set("messages", saved.data["messages"], handler_override=replace_values)
            tokens = {"as it was": saved.data["context_tokens"], "zero": 0, "stale": 50}[kept]
            state.set("context_tokens", tokens)

        model = ScriptedModel(reading(20), usage=usage)
        agent = agent_with(model, hook_for(8000))
        agent.hooks["before_run"] = [restore]
        await play(way, agent)
        assert model.largest <= 8000
        assert [broken_pairs(request.messages) for request in model.requests] == [[]] * len(model.requests)

    def saved_run(self, usage: Usage) -> State:
        """The state of a long run without compaction, saved and loaded."""
        kept: list[dict[str, Any]] = []

        @as_hook
        def save(state: State) -> None:
            kept.append(state.to_dict(skip_keys=["tools", "hook_context"]))

        agent = agent_with(ScriptedModel(reading(12), usage=usage), save)
        agent.run(messages=[ChatMessage.from_user(TASK)])
        return State.from_dict(kept[-1])

    def test_the_second_run_over_a_returned_conversation_starts_from_what_it_is_given(self) -> None:
        hook = hook_for(8000)
        first = agent_with(ScriptedModel(reading(20)), hook).run(messages=[U(TASK)])
        model = ScriptedModel(reading(20))
        agent_with(model, hook).run(messages=[*first["messages"][1:], U("And now the others.")])
        assert model.largest <= 8000
        assert [broken_pairs(request.messages) for request in model.requests] == [[]] * len(model.requests)

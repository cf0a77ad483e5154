"""Without an Agent: the function for any list, and the component alone and in a pipeline."""

import asyncio
import copy
import json
from typing import Any

import pytest
from agents import ModelCounter, OffByAFactor, library_tools, same_objects, usage_like_openai, warnings_in
from conversations import SHAPES, A, S, T, U, step, steps
from haystack import Pipeline, component
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Toolset
from naming import shown
from oracle import Facts, GarbageCounter, RaisingCounter, RecordingCounter, broken_rules

from haystack_compaction import (
    Always,
    ChatMessageCompactor,
    EstimatedTokenCounter,
    MessagesExceed,
    Never,
    Outcome,
    TokensBelow,
    TokensExceed,
    ToolResultPruningCompactor,
    apply_compaction,
    apply_compaction_async,
)

COUNTER = ModelCounter()


def conversation() -> list[ChatMessage]:
    """Eight steps of about 1,000 tokens each, by the model's tokenizer."""
    return [S("rules"), U("go"), *steps(*"abcdefgh", chars=2600), A("done")]


async def by_run(compacting: ChatMessageCompactor, **inputs: Any) -> dict[str, Any]:
    return compacting.run(**inputs)


async def by_run_async(compacting: ChatMessageCompactor, **inputs: Any) -> dict[str, Any]:
    return await compacting.run_async(**inputs)


async def in_a_pipeline(compacting: ChatMessageCompactor, **inputs: Any) -> dict[str, Any]:
    return pipeline_of(compacting).run({"compactor": inputs})["compactor"]


async def in_a_pipeline_async(compacting: ChatMessageCompactor, **inputs: Any) -> dict[str, Any]:
    return (await pipeline_of(compacting).run_async({"compactor": inputs}))["compactor"]


def pipeline_of(compacting: ChatMessageCompactor) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("compactor", compacting)
    return pipeline


DOORS = {
    "run": by_run,
    "run_async": by_run_async,
    "pipeline": in_a_pipeline,
    "pipeline, async": in_a_pipeline_async,
}
each_door = pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS))


def component_for(compactor: Any = None, **settings: Any) -> ChatMessageCompactor:
    settings.setdefault("token_counter", COUNTER)
    return ChatMessageCompactor(ToolResultPruningCompactor() if compactor is None else compactor, **settings)


class TestFunction:
    @pytest.fixture(params=["sync", "async"])
    def apply(self, request: pytest.FixtureRequest) -> Any:
        if request.param == "sync":
            return apply_compaction
        return lambda *args, **kwargs: asyncio.run(apply_compaction_async(*args, **kwargs))

    def test_a_list_above_the_target_is_shortened_to_it(self, apply: Any) -> None:
        messages = conversation()
        after = apply(messages, ToolResultPruningCompactor(), token_counter=COUNTER, target_tokens=4000)
        assert broken_rules(messages, after, 4000, COUNTER) == []
        assert 2500 < COUNTER.count(after) <= 4000

    def test_a_list_that_fits_comes_back_as_it_is(self, apply: Any) -> None:
        messages = conversation()
        after = apply(messages, ToolResultPruningCompactor(), token_counter=COUNTER, target_tokens=50_000)
        assert same_objects(after, messages)

    def test_what_cannot_be_shortened_comes_back_as_it_is(self, apply: Any) -> None:
        messages = [U("word " * 900)]
        assert same_objects(apply(messages, ToolResultPruningCompactor(), target_tokens=10), messages)

    def test_the_default_counter_is_the_estimate(self, apply: Any) -> None:
        messages = conversation()
        target = EstimatedTokenCounter().count(messages) - 1
        after = apply(messages, ToolResultPruningCompactor(), target_tokens=target)
        assert sum(old is not new for old, new in zip(messages, after, strict=True)) == 1

    def test_without_any_target_pruning_does_all_that_it_may(self, apply: Any) -> None:
        after = apply(conversation(), ToolResultPruningCompactor())
        assert sum("context_compaction" in message.meta for message in after) == 7

    def test_without_a_target_the_opposite_of_the_trigger_is_the_target(self, apply: Any) -> None:
        after = apply(conversation(), ToolResultPruningCompactor(trigger=TokensExceed(5000)), token_counter=COUNTER)
        assert 3500 < COUNTER.count(after) <= 5000

    def test_the_compactors_own_target_decides(self, apply: Any) -> None:
        compactor = ToolResultPruningCompactor(target=TokensBelow(6000))
        after = apply(conversation(), compactor, token_counter=COUNTER, target_tokens=100)
        assert 4500 < COUNTER.count(after) < 6000

    def test_the_input_is_untouched(self, apply: Any) -> None:
        messages = conversation()
        before, objects = copy.deepcopy(messages), list(messages)
        apply(messages, ToolResultPruningCompactor(clear_tool_inputs=True), target_tokens=0)
        assert messages == before
        assert same_objects(messages, objects)

    def test_a_result_is_another_list(self, apply: Any) -> None:
        messages = conversation()
        assert apply(messages, ToolResultPruningCompactor(), target_tokens=0) is not messages

    def test_a_failing_counter_leaves_the_list_and_one_warning(
        self, apply: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        messages = conversation()
        after = apply(messages, ToolResultPruningCompactor(), token_counter=RaisingCounter(), target_tokens=10)
        assert same_objects(after, messages)
        assert len(warnings_in(caplog)) == 1

    @pytest.mark.parametrize(
        ("settings", "kind", "name"),
        [
            ({"messages": None}, TypeError, "messages"),
            ({"messages": "text"}, TypeError, "messages"),
            ({"messages": [{"role": "user"}]}, TypeError, "messages"),
            ({"messages": [None]}, TypeError, "messages"),
            ({"compactor": None}, TypeError, "compactor"),
            ({"compactor": ToolResultPruningCompactor}, TypeError, "compactor"),
            ({"token_counter": 4}, TypeError, "token_counter"),
            ({"target_tokens": -1}, ValueError, "target_tokens"),
            ({"target_tokens": 10.0}, TypeError, "target_tokens"),
            ({"target_tokens": True}, TypeError, "target_tokens"),
            ({"target_tokens": "10"}, TypeError, "target_tokens"),
        ],
        ids=shown,
    )
    def test_a_bad_argument_is_refused_by_name(
        self, apply: Any, settings: dict[str, Any], kind: type[Exception], name: str
    ) -> None:
        arguments = {"messages": conversation(), "compactor": ToolResultPruningCompactor(), **settings}
        with pytest.raises(kind, match=f"`{name}`"):
            apply(arguments.pop("messages"), arguments.pop("compactor"), **arguments)


class TestConstructor:
    @pytest.mark.parametrize(
        ("settings", "kind", "name"),
        [
            ({"context_window": 0}, ValueError, "context_window"),
            ({"context_window": "1000"}, TypeError, "context_window"),
            ({"context_window": 1000, "compact_at": 0.3}, ValueError, "compact_at"),
            ({"context_window": 1000, "compact_to": 0}, ValueError, "compact_to"),
            ({"context_window": 1000, "compact_to": "0.4"}, TypeError, "compact_to"),
            ({"target_tokens": -1}, ValueError, "target_tokens"),
            ({"target_tokens": 1.0}, TypeError, "target_tokens"),
            ({"target_tokens": 100, "compactor": 5}, TypeError, "compactor"),
            ({"target_tokens": 100, "compactor": None}, TypeError, "compactor"),
            ({"target_tokens": 100, "token_counter": "estimate"}, TypeError, "token_counter"),
            ({"target_tokens": 100, "on_compaction": "print"}, TypeError, "on_compaction"),
        ],
        ids=shown,
    )
    def test_a_bad_argument_is_refused_by_name(
        self, settings: dict[str, Any], kind: type[Exception], name: str
    ) -> None:
        arguments = {"compactor": ToolResultPruningCompactor(), **settings}
        with pytest.raises(kind, match=f"`{name}`"):
            ChatMessageCompactor(arguments.pop("compactor"), **arguments)

    def test_one_of_window_and_target_is_needed(self) -> None:
        with pytest.raises(ValueError, match=r"`context_window`.*`target_tokens`"):
            ChatMessageCompactor(ToolResultPruningCompactor())

    def test_a_compactor_with_a_trigger_of_its_own_needs_neither(self) -> None:
        compacting = component_for(ToolResultPruningCompactor(trigger=TokensExceed(5000)))
        assert COUNTER.count(compacting.run(messages=conversation())["messages"]) <= 5000

    def test_zero_is_a_target(self) -> None:
        after = component_for(target_tokens=0).run(messages=conversation())["messages"]
        assert sum("context_compaction" in message.meta for message in after) == 7


@each_door
class TestWindow:
    async def test_a_conversation_that_fills_it_is_brought_down(self, door: Any) -> None:
        messages = conversation()
        result = await door(component_for(context_window=8000), messages=messages)
        # A pipeline hands a copy of the messages on, so they are compared by what is in them.
        assert len(result["messages"]) == len(messages)
        assert 0.3 * 8000 < COUNTER.count(result["messages"]) <= 0.4 * 8000

    async def test_a_conversation_that_does_not_is_left(self, door: Any) -> None:
        result = await door(component_for(context_window=100_000), messages=conversation())
        assert result["messages"] == conversation()
        assert result["report"]["compacted"] is False

    async def test_fractions_may_be_chosen(self, door: Any) -> None:
        compacting = component_for(context_window=20_000, compact_at=0.3, compact_to=0.2)
        assert COUNTER.count((await door(compacting, messages=conversation()))["messages"]) <= 4000

    async def test_tools_take_room(self, door: Any) -> None:
        tools, tokens = library_tools() * 5, COUNTER.count(conversation())
        window = int(tokens / 0.65)
        assert COUNTER.count([], tools) > 0.1 * tokens
        alone = await door(component_for(context_window=window), messages=conversation())
        assert alone["report"]["compacted"] is False
        result = await door(component_for(context_window=window), messages=conversation(), tools=tools)
        assert COUNTER.count(result["messages"], tools) <= 0.4 * window

    async def test_a_target_at_run_time_goes_before_the_window(self, door: Any) -> None:
        result = await door(component_for(context_window=100_000), messages=conversation(), target_tokens=3000)
        assert COUNTER.count(result["messages"]) <= 3000


@each_door
class TestTarget:
    async def test_whatever_is_larger_is_shortened(self, door: Any) -> None:
        result = await door(component_for(target_tokens=5000), messages=conversation())
        assert 3900 < COUNTER.count(result["messages"]) <= 5000

    async def test_whatever_is_not_is_left(self, door: Any) -> None:
        target = COUNTER.count(conversation())
        result = await door(component_for(target_tokens=target), messages=conversation())
        assert result["messages"] == conversation()
        assert result["report"]["reason"] == "fits"

    async def test_a_target_at_run_time_goes_before_the_one_that_it_was_built_with(self, door: Any) -> None:
        compacting = component_for(target_tokens=100)
        result = await door(compacting, messages=conversation(), target_tokens=5000)
        assert 3900 < COUNTER.count(result["messages"]) <= 5000

    async def test_zero_at_run_time_is_a_target_too(self, door: Any) -> None:
        result = await door(component_for(target_tokens=50_000), messages=conversation(), target_tokens=0)
        assert result["report"]["target_tokens"] == 0
        assert sum("context_compaction" in message.meta for message in result["messages"]) == 7

    async def test_an_empty_conversation_is_left(self, door: Any) -> None:
        result = await door(component_for(target_tokens=0), messages=[])
        assert result["messages"] == []


class TestComponent:
    def test_a_report_of_usage_that_belongs_to_another_request_is_not_used(self) -> None:
        messages = conversation()
        messages[-1].meta["usage"] = usage_like_openai(90_000, 10)
        assert component_for(context_window=50_000).run(messages=messages)["report"]["compacted"] is False

    def test_tools_may_be_a_toolset(self) -> None:
        tools = Toolset(library_tools())
        result = component_for(context_window=8000).run(messages=conversation(), tools=tools)
        assert COUNTER.count(result["messages"], list(tools)) <= 3200

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("settings", [{"context_window": 600}, {"target_tokens": 300}], ids=["window", "target"])
    def test_the_contract_holds_for_every_shape(self, shape: str, settings: dict[str, Any]) -> None:
        messages = SHAPES[shape]()
        before, objects = copy.deepcopy(messages), list(messages)
        after = component_for(**settings).run(messages=messages)["messages"]
        changed = None if same_objects(after, messages) else after
        assert messages == before
        assert same_objects(messages, objects)
        assert broken_rules(messages, changed, None, COUNTER, facts=Facts(cuts_newest=True)) == []

    @pytest.mark.parametrize("messages", [None, "text", [None], [U("go"), "text"], [{"role": "user"}]], ids=shown)
    @pytest.mark.parametrize("settings", [{"context_window": 600}, {"target_tokens": 300}], ids=["window", "target"])
    async def test_anything_but_messages_is_refused_by_name(self, messages: Any, settings: dict[str, Any]) -> None:
        compacting = component_for(**settings)
        with pytest.raises(TypeError, match="`messages`"):
            compacting.run(messages=messages)
        with pytest.raises(TypeError, match="`messages`"):
            await compacting.run_async(messages=messages)

    @pytest.mark.parametrize(("target", "kind"), [(-1, ValueError), ("5", TypeError), (True, TypeError)])
    def test_a_bad_target_at_run_time_is_refused_by_name(self, target: Any, kind: type[Exception]) -> None:
        with pytest.raises(kind, match="`target_tokens`"):
            component_for(context_window=600).run(messages=conversation(), target_tokens=target)

    @pytest.mark.parametrize("counter", [RaisingCounter(), GarbageCounter(None), GarbageCounter(-1)])
    @pytest.mark.parametrize("settings", [{"context_window": 600}, {"target_tokens": 300}], ids=["window", "target"])
    async def test_a_counter_that_fails_leaves_the_conversation_and_one_warning(
        self, counter: Any, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        messages = conversation()
        result = await component_for(token_counter=counter, **settings).run_async(messages=messages)
        assert same_objects(result["messages"], messages)
        assert (result["report"]["reason"], len(result["report"]["failures"])) == ("failed", 1)
        assert len(warnings_in(caplog)) == 1

    def test_a_compactor_that_fails_leaves_the_conversation_and_one_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        messages = conversation()
        result = component_for(_Raises(), target_tokens=300).run(messages=messages)
        assert same_objects(result["messages"], messages)
        assert "no idea" in result["report"]["failures"][0]
        assert len(warnings_in(caplog)) == 1

    def test_a_callback_gets_the_outcome(self) -> None:
        outcomes: list[Outcome] = []
        result = component_for(target_tokens=5000, on_compaction=outcomes.append).run(messages=conversation())
        assert [outcome.to_dict() for outcome in outcomes] == [result["report"]]

    def test_a_callback_that_fails_ends_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        def complain(outcome: Outcome) -> None:
            raise RuntimeError("the dashboard is down")

        result = component_for(target_tokens=5000, on_compaction=complain).run(messages=conversation())
        assert COUNTER.count(result["messages"]) <= 5000
        assert len(warnings_in(caplog)) == 1

    def test_one_component_serves_runs_with_and_without_need(self) -> None:
        compacting = component_for(context_window=8000)
        results = [compacting.run(messages=messages) for messages in (conversation(), [U("hi")], conversation())]
        assert [result["report"]["compacted"] for result in results] == [True, False, True]
        assert results[0] == results[2]

    @pytest.mark.parametrize("factor", [0.5, 2])
    def test_without_a_report_the_counters_tokens_are_the_windows(self, factor: float) -> None:
        counter = OffByAFactor(factor)
        result = component_for(context_window=int(8000 * factor), token_counter=counter).run(messages=conversation())
        assert counter.count(result["messages"]) <= 0.4 * 8000 * factor

    async def test_warm_up_and_close_reach_compactor_and_counter_once(self) -> None:
        counter, compactor = _Part(), _Part()
        compacting = component_for(compactor, target_tokens=5, token_counter=counter)
        compacting.warm_up()
        compacting.close()
        await compacting.warm_up_async()
        await compacting.close_async()
        assert counter.calls == compactor.calls == ["warm_up", "close", "warm_up", "close"]


class _Raises:
    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> None:
        raise RuntimeError("no idea what to do")


class _Part(RecordingCounter):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> None:
        return None

    def warm_up(self) -> None:
        self.calls.append("warm_up")

    def close(self) -> None:
        self.calls.append("close")


class TestReport:
    def report(self, messages: list[ChatMessage] | None = None, **settings: Any) -> dict[str, Any]:
        return component_for(**settings).run(messages=conversation() if messages is None else messages)["report"]

    @pytest.mark.parametrize(
        "settings",
        [
            {"context_window": 8000},
            {"context_window": 100_000},
            {"target_tokens": 5000},
            {"target_tokens": 50_000},
            {"target_tokens": 5, "token_counter": RaisingCounter()},
            {"compactor": ToolResultPruningCompactor(trigger=Never())},
            {"compactor": ToolResultPruningCompactor(trigger=Always(), clear_tool_inputs=True)},
        ],
        ids=shown,
    )
    def test_it_is_plain_data(self, settings: dict[str, Any]) -> None:
        report = self.report(**settings)
        assert json.loads(json.dumps(report)) == report

    def test_its_keys_are_always_the_same(self) -> None:
        keys = {
            tuple(self.report(**settings))
            for settings in ({"context_window": 8000}, {"target_tokens": 50_000}, {"target_tokens": 5})
        }
        assert keys == {
            ("reason", "compacted", "strategy", "target_tokens", "before", "after", "edits", "failures", "stages"),
        }

    def test_the_same_input_gives_the_same_report(self) -> None:
        assert self.report(context_window=8000) == self.report(context_window=8000)

    def test_it_tells_what_was_done(self) -> None:
        report = self.report(target_tokens=5000)
        assert (report["reason"], report["compacted"], report["target_tokens"]) == ("compacted", True, 5000)
        assert report["strategy"] == "ToolResultPruningCompactor"
        assert report["before"] == {"tokens": COUNTER.count(conversation()), "messages": 19, "groups": 11}
        assert report["after"]["messages"] == 19
        assert report["failures"] == []

    def test_its_edits_add_up_to_what_was_freed(self) -> None:
        report = self.report(target_tokens=5000)
        freed = report["before"]["tokens"] - report["after"]["tokens"]
        assert sum(edit["freed_tokens"] for edit in report["edits"]) == freed > 0

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"target_tokens": 50_000}, "fits"),
            ({"compactor": ToolResultPruningCompactor(trigger=MessagesExceed(99))}, "not_triggered"),
            ({"compactor": ToolResultPruningCompactor(min_tokens=5000), "target_tokens": 5}, "nothing_may_go"),
            ({"token_counter": RaisingCounter(), "target_tokens": 5}, "failed"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_it_gives_the_reason_where_nothing_was_done(self, settings: dict[str, Any], reason: str) -> None:
        report = self.report(**settings)
        assert (report["reason"], report["compacted"], report["edits"]) == (reason, False, [])

    def test_it_holds_nothing_of_the_conversation(self) -> None:
        messages = [U("a secret task"), *[m for n in "abcd" for m in (A(calls=[n]), T(n, f"secret{n} " * 900))]]
        assert "secret" not in json.dumps(self.report(messages, target_tokens=100))


@component
class Retriever:
    """Stands for a message store's retriever."""

    @component.output_types(messages=list[ChatMessage])
    def run(self, topic: str) -> dict[str, Any]:
        return {"messages": [*conversation(), U(topic)]}


class TestInAPipeline:
    def pipeline(self, *, prompt: bool) -> Pipeline:
        pipeline = Pipeline()
        pipeline.add_component("retriever", Retriever())
        pipeline.add_component("compactor", component_for(context_window=8000))
        pipeline.add_component("llm", MockChatGenerator(response_fn=_size_of_the_prompt))
        pipeline.connect("retriever.messages", "compactor.messages")
        if prompt:
            template = [ChatMessage.from_user("{{ history | length }} messages, the last: {{ history[-1].text }}")]
            pipeline.add_component("prompt", ChatPromptBuilder(template=template, required_variables="*"))
            pipeline.connect("compactor.messages", "prompt.history")
            pipeline.connect("prompt.prompt", "llm.messages")
        else:
            pipeline.connect("compactor.messages", "llm.messages")
        return pipeline

    @pytest.mark.parametrize("way", ["run", "run_async"])
    async def test_it_stands_between_a_retriever_and_a_chat_generator(self, way: str) -> None:
        inputs = {"retriever": {"topic": "what now?"}}
        pipeline = self.pipeline(prompt=False)
        result = await pipeline.run_async(inputs) if way == "run_async" else pipeline.run(inputs)
        assert int(result["llm"]["replies"][0].text) <= 3200
        assert result["compactor"]["report"]["compacted"] is True

    def test_it_stands_between_a_retriever_and_a_prompt_builder(self) -> None:
        result = self.pipeline(prompt=True).run({"retriever": {"topic": "what now?"}}, include_outputs_from={"prompt"})
        assert result["prompt"]["prompt"][0].text == "20 messages, the last: what now?"

    def test_its_sockets_are_what_it_takes_and_gives(self) -> None:
        pipeline = pipeline_of(component_for(context_window=8000))
        inputs, outputs = pipeline.inputs()["compactor"], pipeline.outputs()["compactor"]
        assert {name: socket["is_mandatory"] for name, socket in inputs.items()} == {
            "messages": True,
            "target_tokens": False,
            "tools": False,
        }
        assert outputs["messages"]["type"] == list[ChatMessage]
        assert set(outputs) == {"messages", "report"}

    def test_a_single_step_of_history_is_enough(self) -> None:
        result = pipeline_of(component_for(context_window=50)).run({"compactor": {"messages": [U("go"), *step("a")]}})
        assert len(result["compactor"]["messages"]) == 3


def _size_of_the_prompt(messages: list[ChatMessage]) -> str:
    return str(COUNTER.count(messages))

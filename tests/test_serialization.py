"""Saved and loaded: equal dumps, equal objects, the same results; and what is wrong in a file is named."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import TASK, library_tools, read_file
from conversations import A, S, T, U, prose, steps
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.token_counters import ApproximateTokenCounter
from naming import shown

from haystack_compaction import (
    AllOf,
    Always,
    AnyOf,
    CachedTokenCounter,
    ChatMessageCompactor,
    CompactionHook,
    EstimatedTokenCounter,
    GroupsExceed,
    HasToolCalls,
    MessageIndex,
    MessagesExceed,
    Never,
    Not,
    Outcome,
    TiktokenCounter,
    TokensBelow,
    TokensExceed,
    ToolResultPruningCompactor,
    TurnsExceed,
)

# --- What can be imported by name -------------------------------------------------------------------------------------

TOLD: list[str] = []


def many_messages(index: MessageIndex) -> bool:
    return index.included_message_count > 4


def small_enough(index: MessageIndex) -> bool:
    return index.included_token_count < 1500


def tell(outcome: Outcome) -> None:
    TOLD.append(outcome.reason.value)


def next_step(messages: list[ChatMessage]) -> ChatMessage:
    """Read nine files, whatever is left of the conversation, and say at the end what is left of it."""
    calls = [call for message in messages for call in message.tool_calls]
    if len(calls) < 9:
        arguments = {"path": "argparse.py", "max_chars": 4000 + len(calls)}
        call = ToolCall(tool_name="read_file", arguments=arguments, id=f"call_{len(calls)}")
        return ChatMessage.from_assistant(tool_calls=[call], meta={"usage": None})
    pruned = sum("context_compaction" in message.meta for message in messages)
    return ChatMessage.from_assistant(f"{len(messages)} messages, {pruned} of them pruned", meta={"usage": None})


TRIGGERS = {
    "always": Always(),
    "never": Never(),
    "tokens exceed": TokensExceed(2000),
    "tokens below": TokensBelow(900),
    "messages exceed": MessagesExceed(3),
    "turns exceed": TurnsExceed(2),
    "groups exceed": GroupsExceed(3),
    "has tool calls": HasToolCalls(),
    "all of": AllOf(TokensExceed(10), HasToolCalls(), MessagesExceed(1)),
    "any of": TokensExceed(10_000) | HasToolCalls(),
    "not": ~HasToolCalls(),
    "nested": AnyOf(Not(AllOf(Always(), Not(Never()))), TokensExceed(5) & ~TurnsExceed(9)),
    "a function": many_messages,
    "a function among others": AllOf(many_messages, Always()),
    "not a function": Not(many_messages),
}
COUNTERS = {
    "estimate": EstimatedTokenCounter(),
    "estimate, with settings": EstimatedTokenCounter(tokens_per_image=7, tokens_per_file=9),
    "tiktoken": TiktokenCounter(encoding="cl100k_base", tokens_per_image=3, load_timeout=2.5),
    "cached": CachedTokenCounter(EstimatedTokenCounter(tokens_per_file=3)),
    "Haystack's": ApproximateTokenCounter(chars_per_token=3.5),
    "Haystack's, cached": CachedTokenCounter(ApproximateTokenCounter()),
}
COMPACTORS = {
    "pruning": ToolResultPruningCompactor(),
    "pruning, with settings": ToolResultPruningCompactor(
        min_keep_steps=2,
        min_tokens=0,
        placeholder='{tool_name}: {"gone": "yes"} -> weg',
        skip_meta_keys=("keep", "hold"),
        exclude_tools=("ask",),
        clear_tool_inputs=("write_file",),
        keep_error_chars=0,
        min_keep_groups=3,
        pin_first_user_message=True,
        pin_meta_keys=("pinned",),
    ),
    "pruning, arguments too": ToolResultPruningCompactor(clear_tool_inputs=True),
    "pruning, with a trigger and a target": ToolResultPruningCompactor(trigger=Always(), target=TokensBelow(500)),
    "pruning, with functions": ToolResultPruningCompactor(trigger=many_messages, target=small_enough),
}


def conversation() -> list[ChatMessage]:
    return [S("rules"), U("go"), *steps(*"abcdef", chars=2600), A("done")]


# --- Pipelines --------------------------------------------------------------------------------------------------------


def pipeline_with(compacting: ChatMessageCompactor) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("compactor", compacting)
    return pipeline


def pipeline_with_agent(hook: CompactionHook) -> Pipeline:
    agent = Agent(
        chat_generator=MockChatGenerator(response_fn=next_step),
        tools=library_tools()[:1],
        hooks={"before_llm": [hook], "after_run": [hook]},
    )
    pipeline = Pipeline()
    pipeline.add_component("agent", agent)
    return pipeline


def reloaded(pipeline: Pipeline) -> Pipeline:
    return Pipeline.loads(pipeline.dumps(), allowed_modules=[__name__, read_file.__module__])


def hook_in(pipeline: Pipeline) -> CompactionHook:
    return pipeline.get_component("agent").hooks["before_llm"][0]


def settings_of(thing: Any) -> dict[str, Any]:
    names = ("compactor", "context_window", "compact_at", "compact_to", "target_tokens", "token_counter")
    others = ("on_compaction", "max_output_tokens", "min_freed_tokens", "max_result_tokens")
    return {name: getattr(thing, name) for name in (*names, *others) if hasattr(thing, name)}


def equal(one: Any, other: Any) -> bool:
    """Haystack's counters compare by identity, so settings are compared by what they are saved as."""
    return bool(one == other) or (type(one) is type(other) and one.to_dict() == other.to_dict())


class TestHookInAnAgent:
    @pytest.mark.parametrize("compactor", COMPACTORS.values(), ids=list(COMPACTORS))
    @pytest.mark.parametrize("counter", COUNTERS.values(), ids=list(COUNTERS))
    def test_dumps_and_objects_are_equal_after_loading(self, compactor: Any, counter: Any) -> None:
        pipeline = pipeline_with_agent(CompactionHook(compactor, context_window=4000, token_counter=counter))
        loaded = reloaded(pipeline)
        assert loaded.dumps() == pipeline.dumps()
        before, after = settings_of(hook_in(pipeline)), settings_of(hook_in(loaded))
        assert all(equal(before[name], after[name]) for name in before)

    @pytest.mark.parametrize("trigger", TRIGGERS.values(), ids=list(TRIGGERS))
    def test_every_trigger_comes_back_equal_as_trigger_and_target(self, trigger: Any) -> None:
        compactor = ToolResultPruningCompactor(trigger=trigger, target=trigger)
        loaded = reloaded(pipeline_with_agent(CompactionHook(compactor, context_window=4000)))
        assert hook_in(loaded).compactor == compactor

    def test_a_hook_comes_back_equal_with_every_setting(self) -> None:
        hook = CompactionHook(
            COMPACTORS["pruning, with settings"],
            context_window=12_345,
            compact_at=0.85,
            compact_to=0.35,
            token_counter=CachedTokenCounter(EstimatedTokenCounter(tokens_per_image=9)),
            max_output_tokens=2000,
            min_freed_tokens=300,
            max_result_tokens=4000,
            on_compaction=tell,
        )
        assert hook_in(reloaded(pipeline_with_agent(hook))) == hook

    def test_the_loaded_pipeline_gives_the_same_result(self) -> None:
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=6000, on_compaction=tell)
        pipeline, inputs = pipeline_with_agent(hook), {"agent": {"messages": [U(TASK)]}}
        loaded = reloaded(pipeline)
        TOLD.clear()
        first = pipeline.run(inputs)["agent"]
        told = list(TOLD)
        second = loaded.run(inputs)["agent"]
        assert second["messages"] == first["messages"]
        assert TOLD[len(told) :] == told
        assert not first["last_message"].text.endswith(" 0 of them pruned")

    def test_the_agent_alone_comes_back_with_its_hook(self) -> None:
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=6000)
        agent = Agent(chat_generator=MockChatGenerator("x"), hooks={"before_llm": [hook], "after_run": [hook]})
        assert Agent.from_dict(agent.to_dict()).hooks["after_run"] == [hook]

    def test_the_whole_of_what_is_saved(self) -> None:
        hook = CompactionHook(
            ToolResultPruningCompactor(trigger=TokensExceed(10)), context_window=6000, on_compaction=tell
        )
        pruning = f"{ToolResultPruningCompactor.__module__}.ToolResultPruningCompactor"
        assert hook.to_dict() == {
            "type": "haystack_compaction.hooks.CompactionHook",
            "init_parameters": {
                "compactor": {
                    "type": pruning,
                    "init_parameters": {
                        "trigger": {
                            "type": "haystack_compaction.triggers.TokensExceed",
                            "init_parameters": {"n": 10},
                        },
                        "target": None,
                        "min_keep_groups": 0,
                        "pin_first_user_message": False,
                        "pin_meta_keys": [],
                        "min_keep_steps": 1,
                        "min_tokens": 200,
                        "placeholder": (
                            "[Tool result removed to free up context. Call `{tool_name}` again if you need it.]"
                        ),
                        "skip_meta_keys": ["tool_result_offloaded"],
                        "exclude_tools": [],
                        "clear_tool_inputs": False,
                        "keep_error_chars": 200,
                    },
                },
                "context_window": 6000,
                "compact_at": 0.7,
                "compact_to": 0.4,
                "token_counter": EstimatedTokenCounter().to_dict(),
                "max_output_tokens": 0,
                "min_freed_tokens": 0,
                "max_result_tokens": None,
                "on_compaction": f"{__name__}.tell",
            },
        }


class TestComponentInAPipeline:
    @pytest.mark.parametrize("compactor", COMPACTORS.values(), ids=list(COMPACTORS))
    @pytest.mark.parametrize(
        "sizes",
        [
            {"context_window": 4000},
            {"context_window": 4000, "compact_at": 0.5, "compact_to": 0.1},
            {"target_tokens": 9},
        ],
        ids=["window", "fractions", "target"],
    )
    def test_dumps_settings_and_results_are_equal_after_loading(self, compactor: Any, sizes: dict[str, Any]) -> None:
        pipeline = pipeline_with(ChatMessageCompactor(compactor, **sizes))
        loaded = reloaded(pipeline)
        assert loaded.dumps() == pipeline.dumps()
        assert settings_of(loaded.get_component("compactor")) == settings_of(pipeline.get_component("compactor"))
        inputs = {"compactor": {"messages": conversation()}}
        assert loaded.run(inputs) == pipeline.run(inputs)

    @pytest.mark.parametrize("trigger", TRIGGERS.values(), ids=list(TRIGGERS))
    def test_every_trigger_decides_the_same_after_loading(self, trigger: Any) -> None:
        compactor = ToolResultPruningCompactor(trigger=trigger, target=small_enough)
        pipeline = pipeline_with(ChatMessageCompactor(compactor))
        inputs = {"compactor": {"messages": conversation()}}
        assert reloaded(pipeline).run(inputs) == pipeline.run(inputs)

    @pytest.mark.parametrize("counter", COUNTERS.values(), ids=list(COUNTERS))
    def test_every_counter_comes_back_equal(self, counter: Any) -> None:
        pipeline = pipeline_with(
            ChatMessageCompactor(ToolResultPruningCompactor(), target_tokens=100, token_counter=counter)
        )
        assert equal(reloaded(pipeline).get_component("compactor").token_counter, counter)

    def test_a_callback_is_saved_by_its_import_name(self) -> None:
        pipeline = pipeline_with(
            ChatMessageCompactor(ToolResultPruningCompactor(), target_tokens=100, on_compaction=tell)
        )
        assert f"{__name__}.tell" in pipeline.dumps()
        assert reloaded(pipeline).get_component("compactor").on_compaction is tell

    def test_a_component_comes_back_equal(self) -> None:
        compacting = ChatMessageCompactor(ToolResultPruningCompactor(min_tokens=3), context_window=5000)
        assert reloaded(pipeline_with(compacting)).get_component("compactor").to_dict() == compacting.to_dict()

    def test_text_of_any_kind_survives(self) -> None:
        compactor = ToolResultPruningCompactor(placeholder="# no: 'yes' \"x\"\n\té {tool_name} 会议 {other}: - [")
        loaded = reloaded(pipeline_with(ChatMessageCompactor(compactor, target_tokens=1)))
        assert loaded.get_component("compactor").compactor == compactor

    def test_lists_where_tuples_are_taken_are_the_same_setting(self) -> None:
        assert ToolResultPruningCompactor(exclude_tools=["a"]) == ToolResultPruningCompactor(  # type: ignore[arg-type]
            exclude_tools=("a",)
        )


class TestWhatCannotBeSaved:
    @pytest.mark.parametrize(
        "thing",
        [
            ToolResultPruningCompactor(trigger=lambda index: True),
            CompactionHook(ToolResultPruningCompactor(), context_window=9, on_compaction=lambda outcome: None),
            ChatMessageCompactor(ToolResultPruningCompactor(), target_tokens=9, on_compaction=lambda outcome: None),
        ],
        ids=["trigger", "hook", "component"],
    )
    def test_a_lambda_is_refused_when_saving(self, thing: Any) -> None:
        with pytest.raises(Exception, match=r"(?i)lambda"):
            thing.to_dict()


# --- Mistakes in a file -----------------------------------------------------------------------------------------------


def whole_text(error: BaseException) -> str:
    """The text of an error with those that led to it, as a user reads them."""
    chain: list[str] = []
    current: BaseException | None = error
    while current is not None:
        chain.append(str(current))
        current = current.__cause__ or current.__context__
    return "\n".join(chain)


MISTAKES = {
    "wrong type of a number": ("context_window", "a lot"),
    "wrong type of a fraction": ("compact_at", "0.7x"),
    "bad window": ("context_window", -1),
    "bad fraction": ("compact_to", 0.9),
    "unknown parameter": ("context_windw", 4000),
    "a counter that does not exist": (
        "token_counter",
        {"type": "haystack_compaction.token_counters.NoSuchCounter", "init_parameters": {}},
    ),
    "a counter without a module": ("token_counter", {"type": "NoSuchCounter", "init_parameters": {}}),
    "a counter with an unknown parameter": (
        "token_counter",
        {**EstimatedTokenCounter().to_dict(), "init_parameters": {"tokens_per_imge": 5}},
    ),
    "no counter at all": ("token_counter", "estimate"),
    "a list as counter": ("token_counter", [1, 2]),
    "no compactor": ("compactor", None),
    "a text as compactor": ("compactor", "pruning"),
    "a compactor without a type": ("compactor", {"init_parameters": {}}),
    "a counter as compactor": ("compactor", EstimatedTokenCounter().to_dict()),
    "a callback that does not exist": ("on_compaction", "haystack_compaction.hooks.no_such_function"),
    "a callback without a module": ("on_compaction", "no_such_function"),
    "a callback that is no function": ("on_compaction", 5),
}
COMPACTOR_MISTAKES = {
    "unknown parameter": ("min_keep_stepps", 1),
    "wrong type": ("min_keep_steps", "one"),
    "a float": ("min_tokens", 3.5),
    "bad value": ("min_keep_steps", 0),
    "negative": ("min_tokens", -1),
    "a text for a list": ("exclude_tools", "read_file"),
    "numbers for names": ("skip_meta_keys", [1, 2]),
    "no placeholder": ("placeholder", None),
    "a text for yes or no": ("pin_first_user_message", "no"),
    "a number for yes or no": ("clear_tool_inputs", 1),
    "a trigger that does not exist": (
        "trigger",
        {"type": "haystack_compaction.triggers.NoSuchTrigger", "init_parameters": {}},
    ),
    "a trigger that is a number": ("trigger", 4000),
    "a trigger function that does not exist": ("trigger", f"{__name__}.no_such_function"),
    "a target that is no function": ("target", f"{__name__}.TOLD"),
}


class TestMistakes:
    """Each gives an error when the file is loaded, never later, and its text names the key."""

    def error_of(self, text: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is what is tested
            Pipeline.loads(text, allowed_modules=[__name__, read_file.__module__])
        return whole_text(caught.value)

    def hook_text(self, name: str, value: Any) -> str:
        pipeline = pipeline_with_agent(CompactionHook(ToolResultPruningCompactor(), context_window=4000))
        data = yaml.safe_load(pipeline.dumps())
        hooks = data["components"]["agent"]["init_parameters"]["hooks"]
        hooks["before_llm"][0]["init_parameters"][name] = value
        return yaml.safe_dump(data)

    def component_text(self, name: str, value: Any, *, inside: str | None = None) -> str:
        pipeline = pipeline_with(ChatMessageCompactor(ToolResultPruningCompactor(), context_window=4000))
        data = yaml.safe_load(pipeline.dumps())
        parameters = data["components"]["compactor"]["init_parameters"]
        (parameters[inside]["init_parameters"] if inside else parameters)[name] = value
        return yaml.safe_dump(data)

    @pytest.mark.parametrize(("name", "value"), MISTAKES.values(), ids=list(MISTAKES))
    def test_in_a_hook(self, name: str, value: Any) -> None:
        assert f"`{name}`" in self.error_of(self.hook_text(name, value))

    @pytest.mark.parametrize(("name", "value"), MISTAKES.values(), ids=list(MISTAKES))
    def test_in_a_component(self, name: str, value: Any) -> None:
        assert f"`{name}`" in self.error_of(self.component_text(name, value))

    @pytest.mark.parametrize(("name", "value"), COMPACTOR_MISTAKES.values(), ids=list(COMPACTOR_MISTAKES))
    def test_in_a_compactor(self, name: str, value: Any) -> None:
        assert f"`{name}`" in self.error_of(self.component_text(name, value, inside="compactor"))

    @pytest.mark.parametrize(
        ("counter", "name", "value"),
        [
            (EstimatedTokenCounter(), "tokens_per_image", -1),
            (EstimatedTokenCounter(), "tokens_per_file", "many"),
            (TiktokenCounter(), "encoding", 5),
            (TiktokenCounter(), "load_timeout", -1.0),
            (CachedTokenCounter(EstimatedTokenCounter()), "token_counter", None),
        ],
        ids=lambda value: str(value) if isinstance(value, str) else "",
    )
    def test_in_a_counter(self, counter: Any, name: str, value: Any) -> None:
        data = counter.to_dict()
        data["init_parameters"][name] = value
        assert f"`{name}`" in self.error_of(self.component_text("token_counter", data))

    @pytest.mark.parametrize("parameters", [{"n": -4}, {"n": "many"}, {"n": 1.5}, {}, None, {"m": 4}], ids=shown)
    def test_in_a_trigger(self, parameters: Any) -> None:
        data = {"type": "haystack_compaction.triggers.TokensExceed", "init_parameters": parameters}
        error = self.error_of(self.component_text("trigger", data, inside="compactor"))
        assert re.search(r"[`'][nm][`']", error.partition("Original error")[2])

    def test_an_unknown_parameter_is_answered_with_the_right_ones(self) -> None:
        error = self.error_of(self.hook_text("context_windw", 4000))
        assert "context_window" in error
        assert "token_counter" in error

    def test_a_missing_window_is_named(self) -> None:
        data = yaml.safe_load(self.hook_text("compact_at", 0.7))
        hooks = data["components"]["agent"]["init_parameters"]["hooks"]
        del hooks["before_llm"][0]["init_parameters"]["context_window"]
        assert "context_window" in self.error_of(yaml.safe_dump(data))

    def test_a_missing_compactor_is_named(self) -> None:
        data = yaml.safe_load(self.component_text("compact_at", 0.7))
        del data["components"]["compactor"]["init_parameters"]["compactor"]
        assert "compactor" in self.error_of(yaml.safe_dump(data))

    def test_loading_does_not_change_what_it_is_given(self) -> None:
        data = CompactionHook(COMPACTORS["pruning, with a trigger and a target"], context_window=9).to_dict()
        again = CompactionHook.from_dict(data)
        assert data == again.to_dict()
        assert CompactionHook.from_dict(data) == again


# --- Trust ------------------------------------------------------------------------------------------------------------

LOAD = """
from haystack import Pipeline
text = open({file!r}, encoding="utf-8").read()
Pipeline.loads(text, **{settings!r})
print("loaded")
"""


class TestTrustedModules:
    """Code that imports the package may load what names it; other code has to say that it trusts it."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "pipeline.yaml"
        compactor = ToolResultPruningCompactor(trigger=TokensExceed(5))
        path.write_text(pipeline_with(ChatMessageCompactor(compactor, context_window=4000)).dumps(), encoding="utf-8")
        return path

    def run(self, file: Path, before: str = "", **settings: Any) -> "subprocess.CompletedProcess[str]":
        code = before + LOAD.format(file=str(file), settings=settings)
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own

    def test_without_the_import_it_is_refused(self, file: Path) -> None:
        done = self.run(file)
        assert done.returncode != 0
        assert "haystack_compaction" in done.stderr
        assert "allowed_modules" in done.stderr

    def test_with_the_import_it_loads(self, file: Path) -> None:
        done = self.run(file, before="import haystack_compaction\n")
        assert (done.stdout.strip(), done.returncode) == ("loaded", 0), done.stderr

    def test_with_allowed_modules_it_loads(self, file: Path) -> None:
        done = self.run(file, allowed_modules=["haystack_compaction"])
        assert (done.stdout.strip(), done.returncode) == ("loaded", 0), done.stderr

    def test_a_function_of_somebody_elses_is_not_trusted_with_it(self, file: Path) -> None:
        text = file.read_text(encoding="utf-8").replace("on_compaction: null", "on_compaction: os.system")
        file.write_text(text, encoding="utf-8")
        done = self.run(file, before="import haystack_compaction\n")
        assert done.returncode != 0
        assert "on_compaction" in done.stderr or "os" in done.stderr


def test_a_result_loaded_from_yaml_is_marked_by_the_same_metadata() -> None:
    messages = [U("go"), A(calls=["a"]), T("a", prose(4000)), A(calls=["b"]), T("b", "ok")]
    loaded = reloaded(pipeline_with(ChatMessageCompactor(ToolResultPruningCompactor(), target_tokens=10)))
    after = loaded.run({"compactor": {"messages": messages}})["compactor"]["messages"]
    tokens = EstimatedTokenCounter().count([messages[2]])
    assert after[2].meta["context_compaction"] == {"strategy": "tool_result_pruning", "original_tokens": tokens}

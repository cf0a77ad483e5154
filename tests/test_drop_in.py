"""
Beside Haystack's own compaction: the same code with another import line, ours in theirs, theirs in ours.

Haystack's parts are looked up in what is installed: 3.1 has two compactors, 3.4 has four.
"""

import copy
import importlib
import inspect
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import (
    ANSWER,
    TASK,
    ScriptedModel,
    agent_with,
    both_ways,
    broken_pairs,
    changes_of_the_past,
    library_tools,
    reading,
    run_hook,
    same_objects,
    state_of,
    usage_missing,
    warnings_in,
)
from conversations import A, S, T, U, prose, random_conversation, steps
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from haystack.token_counters import TiktokenCounter as HaystackTiktokenCounter
from oracle import Facts, broken_rules
from vocabulary import use_offline

import haystack_compaction
from haystack_compaction import CompactionHook, ToolResultPruningCompactor, apply_compaction

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from haystack.hooks import compaction as theirs

PLACEHOLDER = "[Tool result removed to free up context. Call `{tool_name}` again if you need it.]"
COUNTER = ApproximateTokenCounter()


def conversation(chars: int = 2600) -> list[ChatMessage]:
    return [S("rules"), U("go"), *steps(*"abcdefgh", chars=chars)]


# --- The code of the documentation ------------------------------------------------------------------------------------

# As a user of Haystack has it: what follows the import line is never changed.
DOCUMENTED = """
from {module} import CompactionHook, ToolResultPruningCompactor

compactor = ToolResultPruningCompactor(min_keep_steps=1, min_tokens=200)
hook = CompactionHook(compactor=compactor, context_window=8_000, compact_at=0.7, compact_to=0.4, token_counter=counter)
"""


def documented(module: str, code: str = DOCUMENTED, **names: Any) -> dict[str, Any]:
    namespace = {"counter": COUNTER, **names}
    exec(compile(code.replace("{module}", module), "<documented>", "exec"), namespace)  # noqa: S102 - our own text
    return namespace


@pytest.fixture(params=["haystack.hooks.compaction", "haystack_compaction"])
def module(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def shipped_example() -> str:
    """The example that Haystack's pruning compactor has in its docstring."""
    text = inspect.getdoc(theirs.ToolResultPruningCompactor) or ""
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    if found is None or "haystack.hooks.compaction" not in found[1]:
        pytest.skip("this Haystack has no example for its pruning compactor")
    return found[1]


class TestDocumentedCode:
    def test_the_shipped_example_runs_after_changing_the_import_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
        code = shipped_example().replace("haystack.hooks.compaction", "haystack_compaction")
        namespace = documented("haystack_compaction", code, web_search=library_tools()[0])
        hook = namespace["agent"].hooks["before_llm"][0]
        assert isinstance(hook, CompactionHook)
        assert (hook.context_window, hook.compact_at, hook.compact_to) == (400_000, 0.7, 0.4)

    def test_a_placeholder_takes_the_place_of_old_results(self, module: str) -> None:
        state = state_of(conversation(9000))
        documented(module)["hook"].run(state)
        assert state.data["messages"][3].tool_call_result.result == PLACEHOLDER.replace("{tool_name}", "lookup")

    def test_metadata_says_what_happened(self, module: str) -> None:
        state = state_of(conversation(9000))
        tokens = COUNTER.count([state.data["messages"][3]])
        documented(module)["hook"].run(state)
        assert state.data["messages"][3].meta == {
            "context_compaction": {"strategy": "tool_result_pruning", "original_tokens": tokens}
        }

    def test_compact_returns_a_new_list_or_none(self, module: str) -> None:
        compactor, messages = documented(module)["compactor"], conversation()
        shorter = compactor.compact(messages=messages, target_tokens=3000, token_counter=COUNTER)
        assert isinstance(shorter, list)
        assert shorter is not messages
        assert compactor.compact(messages=messages, target_tokens=90_000, token_counter=COUNTER) is None
        assert compactor.compact(messages=[U("hi")], target_tokens=0, token_counter=COUNTER) is None

    async def test_compact_async_returns_the_same(self, module: str) -> None:
        compactor, arguments = documented(module)["compactor"], {"target_tokens": 3000, "token_counter": COUNTER}
        again = await compactor.compact_async(messages=conversation(), **arguments)
        assert again == compactor.compact(messages=conversation(), **arguments)

    def test_bad_settings_are_refused_with_the_same_kind_of_error(self, module: str) -> None:
        names = documented(module)
        with pytest.raises(ValueError, match="`context_window`"):
            names["CompactionHook"](names["compactor"], context_window=0)
        with pytest.raises(ValueError, match="`compact_at`"):
            names["CompactionHook"](names["compactor"], context_window=9, compact_at=0.4, compact_to=0.4)
        with pytest.raises(ValueError, match="`min_keep_steps`"):
            names["ToolResultPruningCompactor"](min_keep_steps=0)
        with pytest.raises(ValueError, match="`min_tokens`"):
            names["ToolResultPruningCompactor"](min_tokens=-1)

    def test_settings_can_be_read_where_haystack_has_them(self, module: str) -> None:
        names = documented(module)
        hook, compactor = names["hook"], names["compactor"]
        assert (hook.compactor, hook.token_counter) == (compactor, COUNTER)
        assert (hook.context_window, hook.compact_at, hook.compact_to) == (8000, 0.7, 0.4)
        assert (compactor.min_keep_steps, compactor.min_tokens) == (1, 200)
        assert (compactor.placeholder, tuple(compactor.skip_meta_keys)) == (PLACEHOLDER, ("tool_result_offloaded",))

    @pytest.mark.parametrize("name", ["CompactionHook", "ToolResultPruningCompactor", "compact"])
    def test_every_parameter_of_haystacks_is_taken_under_its_name_with_its_default(self, name: str) -> None:
        if name == "compact":
            one, other = theirs.ToolResultPruningCompactor.compact, ToolResultPruningCompactor.compact
        else:
            one, other = getattr(theirs, name), getattr(haystack_compaction, name)
        known = inspect.signature(other).parameters
        for parameter in inspect.signature(one).parameters.values():
            assert known[parameter.name].default == parameter.default
            assert known[parameter.name].kind == parameter.kind


@pytest.fixture(scope="module")
def conversations_of_agents() -> list[list[ChatMessage]]:
    """Under the condition of spec 4: one result a message right after its call, tool names present."""
    return [random_conversation(random.Random(seed), blocks=14, well_behaved=True) for seed in range(60)]


class TestBothHooks:
    """The same hook from either package over the same conversations, by the same counter."""

    def after(self, hook: Any, messages: list[ChatMessage], **settings: Any) -> Any:
        state = state_of(messages, **settings)
        assert hook.run(state) is None
        return state.data["messages"], state.data["context_tokens"]

    def pair(self, messages: list[ChatMessage], share: float) -> tuple[Any, Any]:
        # A multiple of ten, so that both round the same target.
        window = max(10, int(COUNTER.count(messages) * share) // 10 * 10)
        settings = {"context_window": window, "token_counter": COUNTER}
        ours = ToolResultPruningCompactor(keep_error_chars=0)
        return (
            theirs.CompactionHook(theirs.ToolResultPruningCompactor(), **settings),
            CompactionHook(ours, max_result_tokens=10**9, **settings),
        )

    @pytest.mark.parametrize("share", [2.0, 1.4, 1.1])
    def test_without_usage_they_do_the_same(
        self, share: float, conversations_of_agents: list[list[ChatMessage]]
    ) -> None:
        changed = 0
        for messages in conversations_of_agents:
            one, other = (self.after(hook, copy.deepcopy(messages)) for hook in self.pair(messages, share))
            assert other == one
            changed += one[0] != messages
        assert share == 2.0 or changed > 5

    @pytest.mark.parametrize("share", [1.6, 1.4])  # less would be too little for the newest result, which ours cuts
    def test_schemas_of_tools_are_taken_off_alike(
        self, share: float, conversations_of_agents: list[list[ChatMessage]]
    ) -> None:
        tools = library_tools()
        for messages in conversations_of_agents:
            one, other = (self.after(hook, copy.deepcopy(messages), tools=tools) for hook in self.pair(messages, share))
            assert other == one

    @both_ways
    async def test_whole_runs_send_the_same(self, way: str) -> None:
        # 8,000 tokens of which the newest result takes 1,500, so nothing but pruning has anything to do.
        models = [ScriptedModel(reading(30), usage=usage_missing) for _ in range(2)]
        for model, source in zip(models, ("haystack.hooks.compaction", "haystack_compaction"), strict=True):
            agent = agent_with(model, documented(source)["hook"])
            inputs = {"messages": [ChatMessage.from_user(TASK)]}
            result = await agent.run_async(**inputs) if way == "run_async" else agent.run(**inputs)
            assert result["last_message"].text == ANSWER
        assert [r.messages for r in models[1].requests] == [r.messages for r in models[0].requests]


# --- Ours in theirs ---------------------------------------------------------------------------------------------------


class TestOursInTheirs:
    @both_ways
    async def test_our_compactor_works_through_a_long_run_in_haystacks_hook(self, way: str) -> None:
        model = ScriptedModel(reading(30))
        hook = theirs.CompactionHook(ToolResultPruningCompactor(), context_window=16_000)
        agent = agent_with(model, hook)
        inputs = {"messages": [ChatMessage.from_user(TASK)]}
        result = await agent.run_async(**inputs) if way == "run_async" else agent.run(**inputs)
        assert result["last_message"].text == ANSWER
        assert model.largest <= 16_000
        assert changes_of_the_past(model.requests)
        assert [broken_pairs(request.messages) for request in model.requests] == [[]] * len(model.requests)

    @pytest.mark.parametrize(
        "counter",
        [
            haystack_compaction.EstimatedTokenCounter(),
            haystack_compaction.CachedTokenCounter(haystack_compaction.EstimatedTokenCounter()),
        ],
        ids=["estimate", "cached"],
    )
    def test_our_counters_work_in_haystacks_hook(self, counter: Any) -> None:
        state = state_of(conversation())
        theirs.CompactionHook(theirs.ToolResultPruningCompactor(), context_window=5000, token_counter=counter).run(
            state
        )
        assert counter.count(state.data["messages"]) <= 2000

    def test_haystacks_hook_with_our_parts_comes_back_from_its_saved_form(self) -> None:
        hook = theirs.CompactionHook(
            ToolResultPruningCompactor(min_tokens=5),
            context_window=5000,
            token_counter=haystack_compaction.EstimatedTokenCounter(tokens_per_image=3),
        )
        loaded = theirs.CompactionHook.from_dict(hook.to_dict())
        assert loaded.compactor == hook.compactor
        assert loaded.token_counter == hook.token_counter


# --- Theirs in ours ---------------------------------------------------------------------------------------------------


def _sliding_window(folder: Path) -> Any:
    return theirs.SlidingWindowCompactor()


def _pruning(folder: Path) -> Any:
    return theirs.ToolResultPruningCompactor()


def _summarization(folder: Path) -> Any:
    return theirs.SummarizationCompactor(MockChatGenerator("Old work: eight look-ups, all fine."))


def _offloading(folder: Path) -> Any:
    stores = importlib.import_module("haystack.hooks.tool_result_offloading")
    return theirs.ToolResultOffloadCompactor(store=stores.FileSystemToolResultStore(root=folder))


THEIRS: dict[str, tuple[Callable[[Path], Any], Facts]] = {
    "SlidingWindowCompactor": (_sliding_window, Facts(removes=True, notes=True)),
    "ToolResultPruningCompactor": (_pruning, Facts()),
    "SummarizationCompactor": (_summarization, Facts(removes=True, notes=True)),
    "ToolResultOffloadCompactor": (
        _offloading,
        Facts(adds_meta=frozenset({"context_compaction", "tool_result_offloaded"})),
    ),
}


def their_compactor(name: str, folder: Path) -> tuple[Any, Facts]:
    try:
        getattr(theirs, name)
    except (AttributeError, ImportError):
        pytest.skip(f"the installed Haystack has no {name}")
    make, facts = THEIRS[name]
    return make(folder), facts


def test_no_compactor_of_haystacks_is_left_out() -> None:
    there = {name for name in dir(theirs) if name.endswith("Compactor") and name != "Compactor"}
    assert there <= set(THEIRS)


@pytest.mark.parametrize("name", THEIRS)
class TestTheirsInOurs:
    @both_ways
    async def test_it_brings_the_conversation_down_within_the_contract(
        self, name: str, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        compactor, facts = their_compactor(name, tmp_path)
        messages = conversation()
        before, state = copy.deepcopy(messages), state_of(messages)
        await run_hook(way, CompactionHook(compactor, context_window=5500, token_counter=COUNTER), state)
        after = state.data["messages"]
        assert messages == before
        assert not same_objects(after, messages)
        assert broken_rules(messages, after, 2200, COUNTER, facts=facts) == []
        assert COUNTER.count(after) <= 2200
        assert warnings_in(caplog) == []

    @both_ways
    async def test_a_long_run_stays_inside_the_window(self, name: str, way: str, tmp_path: Path) -> None:
        compactor, _ = their_compactor(name, tmp_path)
        model = ScriptedModel(reading(30))
        agent = agent_with(model, CompactionHook(compactor, context_window=16_000, token_counter=COUNTER))
        inputs = {"messages": [ChatMessage.from_user(TASK)]}
        result = await agent.run_async(**inputs) if way == "run_async" else agent.run(**inputs)
        assert result["last_message"].text == ANSWER
        assert model.largest <= 16_000
        assert changes_of_the_past(model.requests)
        assert [broken_pairs(request.messages) for request in model.requests] == [[]] * len(model.requests)

    def test_it_works_without_an_agent(self, name: str, tmp_path: Path) -> None:
        compactor, facts = their_compactor(name, tmp_path)
        messages = conversation()
        after = apply_compaction(messages, compactor, token_counter=COUNTER, target_tokens=3000)
        assert not same_objects(after, messages)
        assert broken_rules(messages, after, 3000, COUNTER, facts=facts) == []

    def test_it_needs_a_target_without_an_agent(self, name: str, tmp_path: Path) -> None:
        compactor, _ = their_compactor(name, tmp_path)
        with pytest.raises(ValueError, match="`target_tokens`"):
            apply_compaction(conversation(), compactor)

    def test_it_works_with_our_counter_as_with_theirs(self, name: str, tmp_path: Path) -> None:
        compactor, facts = their_compactor(name, tmp_path)
        counter = haystack_compaction.CachedTokenCounter(haystack_compaction.EstimatedTokenCounter())
        messages = conversation()
        state = state_of(messages)
        CompactionHook(compactor, context_window=5500, token_counter=counter).run(state)
        assert broken_rules(messages, state.data["messages"], 2200, counter, facts=facts) == []
        assert not same_objects(state.data["messages"], messages)

    def test_it_is_saved_and_loaded_with_our_hook(self, name: str, tmp_path: Path) -> None:
        compactor, _ = their_compactor(name, tmp_path)
        hook = CompactionHook(compactor, context_window=5500, token_counter=COUNTER)
        loaded = CompactionHook.from_dict(hook.to_dict())
        assert type(loaded.compactor) is type(compactor)
        assert loaded.to_dict() == hook.to_dict()

    def test_it_can_be_brought_along_for_a_run(self, name: str, tmp_path: Path) -> None:
        compactor, _ = their_compactor(name, tmp_path)
        hook = CompactionHook(_NeverAsked(), context_window=5500, token_counter=COUNTER)
        state = state_of(conversation(), hook_context={"compactor": compactor})
        hook.run(state)
        assert COUNTER.count(state.data["messages"]) <= 2200


class _NeverAsked:
    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> None:
        raise AssertionError("the run brought its own compactor")


def test_a_generator_that_fails_in_haystacks_summariser_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    their_compactor("SummarizationCompactor", tmp_path)

    def unreachable(messages: list[ChatMessage]) -> str:
        raise ConnectionError("the model cannot be reached")

    for response in (unreachable, lambda messages: "", lambda messages: "  "):
        compactor = theirs.SummarizationCompactor(MockChatGenerator(response_fn=response))
        messages = conversation()
        state = state_of(messages)
        CompactionHook(compactor, context_window=5500, token_counter=COUNTER).run(state)
        assert same_objects(state.data["messages"], messages)


class _Panic(BaseException):
    """As a tokenizer written in Rust raises it: no `Exception`."""


class _WantsWholeGroups:
    """Counts whole conversations, and fails on a result by itself, which Haystack's pruning asks for."""

    def __init__(self, failure: type[BaseException]) -> None:
        self.failure = failure

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        if len(messages) == 1 and messages[0].tool_call_results:
            raise self.failure("a result without its call")
        return COUNTER.count(messages, tools)


@both_ways
@pytest.mark.parametrize("failure", [ValueError, _Panic])
async def test_fault_25_a_counter_that_fails_inside_haystacks_pruning_ends_nothing(
    way: str, failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    messages = conversation()
    state = state_of(messages)
    counter = _WantsWholeGroups(failure)
    hook = CompactionHook(theirs.ToolResultPruningCompactor(), context_window=5500, token_counter=counter)
    await run_hook(way, hook, state)
    assert same_objects(state.data["messages"], messages)
    assert len(warnings_in(caplog)) == 1


# --- Their counters in our hook ---------------------------------------------------------------------------------------


class TestTheirCounters:
    @pytest.mark.parametrize(
        "counter",
        [
            ApproximateTokenCounter(),
            ApproximateTokenCounter(chars_per_token=3),
            haystack_compaction.CachedTokenCounter(ApproximateTokenCounter()),
        ],
        ids=["default", "three characters", "cached"],
    )
    @both_ways
    async def test_the_approximate_counter(self, way: str, counter: Any) -> None:
        messages = conversation()
        state = state_of(messages, tools=library_tools())
        await run_hook(
            way, CompactionHook(ToolResultPruningCompactor(), context_window=6000, token_counter=counter), state
        )
        after = state.data["messages"]
        assert broken_rules(messages, after, 2400, counter) == []
        assert counter.count(after, library_tools()) <= 2400

    @both_ways
    async def test_the_tiktoken_counter(self, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        use_offline(monkeypatch, tmp_path)
        counter = HaystackTiktokenCounter()
        messages = conversation()
        state = state_of(messages)
        await run_hook(
            way, CompactionHook(ToolResultPruningCompactor(), context_window=8000, token_counter=counter), state
        )
        assert broken_rules(messages, state.data["messages"], 3200, counter) == []
        assert counter.count(state.data["messages"]) <= 3200

    def test_fault_20_their_tiktoken_counter_fails_on_special_tokens_and_ends_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        use_offline(monkeypatch, tmp_path)
        messages = [U("go"), A(calls=["a"]), T("a", "<|endoftext|> " + prose(9000)), *steps("b", "c")]
        state = state_of(messages)
        CompactionHook(ToolResultPruningCompactor(), context_window=3000, token_counter=HaystackTiktokenCounter()).run(
            state
        )
        assert len(state.data["messages"]) == len(messages)

    def test_fault_22_their_tiktoken_counter_without_a_vocabulary_ends_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        counter = HaystackTiktokenCounter()
        monkeypatch.setattr(type(counter), "count", _no_network)
        messages = conversation()
        state = state_of(messages)
        CompactionHook(ToolResultPruningCompactor(), context_window=3000, token_counter=counter).run(state)
        assert same_objects(state.data["messages"], messages)
        assert len(warnings_in(caplog)) == 1


def _no_network(*arguments: Any, **settings: Any) -> int:
    raise ConnectionError("no route to host")

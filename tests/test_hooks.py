"""The hook by itself: what it refuses, what it reaches, what it tells, and what its settings do."""

import copy
import pickle
import threading
from typing import Any

import pytest
from agents import (
    ModelCounter,
    OffByAFactor,
    both_ways,
    estimate,
    library_tools,
    run_hook,
    same_objects,
    spied,
    state_of,
    usage_like_openai,
    warnings_in,
)
from conversations import A, S, T, U, agent_state, image, in_one_message, prose, step, steps
from haystack import tracing
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage, TextContent
from naming import shown
from oracle import Facts, RaisingCounter, RecordingCounter, broken_rules

from haystack_compaction import (
    ChatMessageCompactor,
    CompactionHook,
    EstimatedTokenCounter,
    MessagesExceed,
    Outcome,
    Reason,
    TiktokenCounter,
    TokensExceed,
    ToolResultPruningCompactor,
    TurnsExceed,
)

NAMES = tuple("abcdefgh")


def hook_for(window: int, **settings: Any) -> CompactionHook:
    settings.setdefault("token_counter", ModelCounter())
    return CompactionHook(settings.pop("compactor", ToolResultPruningCompactor()), context_window=window, **settings)


def conversation(chars: int = 2600) -> list[ChatMessage]:
    """Eight steps of about 1,000 tokens each, by the model's tokenizer."""
    return [S("rules"), U("go"), *steps(*NAMES, chars=chars)]


def told(state: State, window: int, **settings: Any) -> list[Outcome]:
    """The outcomes that a hook hands out."""
    outcomes: list[Outcome] = []
    hook_for(window, on_compaction=outcomes.append, **settings).run(state)
    return outcomes


class TestConstructor:
    def test_defaults_are_those_that_haystack_users_know(self) -> None:
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=1000)
        assert (hook.compact_at, hook.compact_to, hook.max_output_tokens, hook.min_freed_tokens) == (0.7, 0.4, 0, 0)
        assert (hook.max_result_tokens, hook.on_compaction) == (None, None)
        assert hook.token_counter == EstimatedTokenCounter()

    def test_it_may_stand_at_two_points(self) -> None:
        assert tuple(CompactionHook.allowed_hook_points) == ("before_llm", "after_run")

    @pytest.mark.parametrize(
        ("settings", "kind", "name"),
        [
            ({"context_window": 0}, ValueError, "context_window"),
            ({"context_window": -5}, ValueError, "context_window"),
            ({"context_window": 1000.0}, TypeError, "context_window"),
            ({"context_window": "1000"}, TypeError, "context_window"),
            ({"context_window": None}, TypeError, "context_window"),
            ({"context_window": True}, TypeError, "context_window"),
            ({"compact_at": 0.4}, ValueError, "compact_at"),
            ({"compact_at": 1.01}, ValueError, "compact_at"),
            ({"compact_at": "0.7"}, TypeError, "compact_at"),
            ({"compact_to": 0}, ValueError, "compact_to"),
            ({"compact_to": -0.1}, ValueError, "compact_to"),
            ({"compact_to": None}, TypeError, "compact_to"),
            ({"max_output_tokens": -1}, ValueError, "max_output_tokens"),
            ({"max_output_tokens": 1000}, ValueError, "max_output_tokens"),
            ({"max_output_tokens": 1.5}, TypeError, "max_output_tokens"),
            ({"min_freed_tokens": -1}, ValueError, "min_freed_tokens"),
            ({"min_freed_tokens": "1"}, TypeError, "min_freed_tokens"),
            ({"max_result_tokens": 0}, ValueError, "max_result_tokens"),
            ({"max_result_tokens": -1}, ValueError, "max_result_tokens"),
            ({"max_result_tokens": 2.5}, TypeError, "max_result_tokens"),
            ({"compactor": None}, TypeError, "compactor"),
            ({"compactor": "pruning"}, TypeError, "compactor"),
            ({"compactor": ToolResultPruningCompactor}, TypeError, "compactor"),
            ({"token_counter": "o200k_base"}, TypeError, "token_counter"),
            ({"token_counter": len}, TypeError, "token_counter"),
            ({"token_counter": ModelCounter}, TypeError, "token_counter"),
            ({"on_compaction": "print"}, TypeError, "on_compaction"),
            ({"on_compaction": 5}, TypeError, "on_compaction"),
        ],
        ids=shown,
    )
    def test_a_bad_argument_is_refused_by_name(
        self, settings: dict[str, Any], kind: type[Exception], name: str
    ) -> None:
        arguments = {"compactor": ToolResultPruningCompactor(), "context_window": 1000, **settings}
        with pytest.raises(kind, match=f"`{name}`"):
            CompactionHook(arguments.pop("compactor"), **arguments)

    @pytest.mark.parametrize(
        ("settings", "value"),
        [
            ({"context_window": -5}, "-5"),
            ({"compact_at": 1.01}, "1.01"),
            ({"max_output_tokens": 1234}, "1234"),
            ({"min_freed_tokens": -77}, "-77"),
            ({"max_result_tokens": -88}, "-88"),
        ],
        ids=shown,
    )
    def test_a_refusal_gives_the_value(self, settings: dict[str, Any], value: str) -> None:
        arguments = {"context_window": 1000, **settings}
        with pytest.raises(ValueError, match=value):
            CompactionHook(ToolResultPruningCompactor(), **arguments)

    def test_everything_but_the_compactor_is_given_by_name(self) -> None:
        with pytest.raises(TypeError):
            CompactionHook(ToolResultPruningCompactor(), 1000)  # type: ignore[misc]


class TestForContextWindow:
    def test_it_builds_a_hook_for_the_window(self) -> None:
        hook = CompactionHook.for_context_window(128_000, 16_000)
        assert (hook.context_window, hook.max_output_tokens) == (128_000, 16_000)

    def test_the_hook_keeps_the_window_less_the_output(self) -> None:
        state = state_of(conversation())
        CompactionHook.for_context_window(9000, 1000).run(state)
        assert EstimatedTokenCounter().count(state.data["messages"]) <= 0.4 * 8000

    @pytest.mark.parametrize(
        ("window", "output", "kind", "name"),
        [
            (0, 0, ValueError, "window"),
            (1000, 1000, ValueError, "max_output_tokens"),
            (1000, -1, ValueError, "max_output_tokens"),
            ("1000", 0, TypeError, "window"),
            (1000, None, TypeError, "max_output_tokens"),
        ],
    )
    def test_bad_numbers_are_refused_by_name(self, window: Any, output: Any, kind: type[Exception], name: str) -> None:
        with pytest.raises(kind, match=f"`.*{name}.*`"):
            CompactionHook.for_context_window(window, output)


class TestIdentity:
    def test_hooks_with_the_same_settings_are_equal(self) -> None:
        one = CompactionHook(ToolResultPruningCompactor(), context_window=1000)
        assert one == CompactionHook(ToolResultPruningCompactor(), context_window=1000)
        assert hash(one) == hash(CompactionHook(ToolResultPruningCompactor(), context_window=1000))

    @pytest.mark.parametrize(
        "settings",
        [
            {"context_window": 1001},
            {"compact_at": 0.8},
            {"compact_to": 0.3},
            {"max_output_tokens": 1},
            {"min_freed_tokens": 1},
            {"max_result_tokens": 100},
            {"on_compaction": print},
            {"token_counter": RecordingCounter()},
        ],
        ids=lambda settings: next(iter(settings)),
    )
    def test_each_setting_makes_a_difference(self, settings: dict[str, Any]) -> None:
        plain = CompactionHook(ToolResultPruningCompactor(), context_window=1000)
        assert plain != CompactionHook(ToolResultPruningCompactor(), **{"context_window": 1000, **settings})

    def test_another_compactor_makes_a_difference(self) -> None:
        one = CompactionHook(ToolResultPruningCompactor(min_tokens=1), context_window=1000)
        assert one != CompactionHook(ToolResultPruningCompactor(), context_window=1000)

    def test_it_equals_nothing_else(self) -> None:
        assert CompactionHook(ToolResultPruningCompactor(), context_window=1000) != "hook"

    def test_its_repr_shows_strategy_and_window(self) -> None:
        shown = repr(CompactionHook(ToolResultPruningCompactor(min_tokens=7), context_window=12_345))
        assert "CompactionHook" in shown
        assert "min_tokens=7" in shown
        assert "12345" in shown


# --- Warm-up and close ------------------------------------------------------------------------------------------------


class _Part(RecordingCounter):
    """A counter and a compactor that writes down how it is treated."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> None:
        return None

    def warm_up(self) -> None:
        self.calls.append("warm_up")

    def close(self) -> None:
        self.calls.append("close")


class _AsyncPart(_Part):
    async def warm_up_async(self) -> None:
        self.calls.append("warm_up_async")

    async def close_async(self) -> None:
        self.calls.append("close_async")


class _ThreadPart(_Part):
    def warm_up(self) -> None:
        self.calls.append("loop" if threading.current_thread() is threading.main_thread() else "thread")


class TestLifecycle:
    @pytest.mark.parametrize("method", ["warm_up", "close"])
    def test_compactor_and_counter_are_reached_once(self, method: str) -> None:
        compactor, counter = _AsyncPart(), _AsyncPart()
        getattr(hook_for(1000, compactor=compactor, token_counter=counter), method)()
        assert compactor.calls == counter.calls == [method]

    @pytest.mark.parametrize("method", ["warm_up_async", "close_async"])
    async def test_their_asynchronous_forms_are_preferred(self, method: str) -> None:
        compactor, counter = _AsyncPart(), _AsyncPart()
        await getattr(hook_for(1000, compactor=compactor, token_counter=counter), method)()
        assert compactor.calls == counter.calls == [method]

    @pytest.mark.parametrize("method", ["warm_up", "close"])
    async def test_parts_that_are_only_synchronous_are_reached_as_well(self, method: str) -> None:
        compactor, counter = _Part(), _Part()
        await getattr(hook_for(1000, compactor=compactor, token_counter=counter), f"{method}_async")()
        assert compactor.calls == counter.calls == [method]

    async def test_a_synchronous_warm_up_does_not_hold_up_the_event_loop(self) -> None:
        part = _ThreadPart()
        await hook_for(1000, compactor=_Part(), token_counter=part).warm_up_async()
        assert part.calls == ["thread"]

    @pytest.mark.parametrize("method", ["warm_up", "close"])
    async def test_one_object_in_both_places_is_reached_once(self, method: str) -> None:
        part = _Part()
        hook = hook_for(1000, compactor=part, token_counter=part)
        getattr(hook, method)()
        await getattr(hook, f"{method}_async")()
        assert part.calls == [method, method]

    async def test_parts_without_any_of_these_are_passed_over(self) -> None:
        hook = hook_for(1000, token_counter=RecordingCounter())
        hook.warm_up()
        await hook.warm_up_async()
        hook.close()
        await hook.close_async()

    def test_a_vocabulary_that_is_required_fails_at_warm_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "/nonexistent/folder")
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
        counter = TiktokenCounter(encoding="p50k_edit", raise_on_failure=True, load_timeout=1.0)
        with pytest.raises(Exception, match="p50k_edit"):
            hook_for(1000, token_counter=counter).warm_up()


# --- Spans ------------------------------------------------------------------------------------------------------------


def tags_of(hook: CompactionHook, state: State) -> dict[str, Any]:
    prefix = "haystack.agent.hook.compaction."
    with spied() as tracer, tracing.tracer.trace("hook"):
        hook.run(state)
    return {key.removeprefix(prefix): value for key, value in tracer.spans[0].tags.items() if key.startswith(prefix)}


class TestSpans:
    def test_a_compaction_sets_what_haystacks_own_hook_sets(self) -> None:
        tags = tags_of(hook_for(8000), state_of(conversation()))
        assert tags["strategy"] == (
            f"{ToolResultPruningCompactor.__module__}.{ToolResultPruningCompactor.__qualname__}"
        )
        assert tags["estimated_context_tokens"] == ModelCounter().count(conversation())
        assert (tags["triggered"], tags["target_tokens"], tags["compacted"]) == (True, 3200, True)

    def test_sizes_before_and_after_are_set_in_tokens_messages_and_groups(self) -> None:
        state = state_of(conversation())
        tags = tags_of(hook_for(8000), state)
        sizes = {key: value for key, value in tags.items() if "before" in key or "after" in key}
        counted = ModelCounter().count(conversation()), ModelCounter().count(state.data["messages"])
        assert sizes == {
            "tokens_before": counted[0],
            "tokens_after": counted[1],
            "messages_before": 18,
            "messages_after": 18,
            "groups_before": 10,
            "groups_after": 10,
        }

    def test_below_the_trigger_nothing_is_said_of_a_target(self) -> None:
        tags = tags_of(hook_for(100_000), state_of(conversation()))
        assert tags["triggered"] is False
        assert "target_tokens" not in tags
        assert not tags.get("compacted", False)

    def test_a_pass_that_found_nothing_says_so(self) -> None:
        tags = tags_of(hook_for(800), state_of([U("word " * 700)]))
        assert (tags["triggered"], tags["compacted"]) == (True, False)

    def test_a_foreign_compactor_goes_by_its_own_name(self) -> None:
        tags = tags_of(hook_for(8000, compactor=_Part()), state_of(conversation()))
        assert tags["strategy"] == f"{_Part.__module__}._Part"

    def test_a_counter_that_fails_still_leaves_tags(self) -> None:
        tags = tags_of(hook_for(8000, token_counter=RaisingCounter()), state_of(conversation()))
        assert tags["triggered"] is False

    async def test_the_asynchronous_way_sets_the_same(self) -> None:
        prefix = "haystack.agent.hook.compaction."
        with spied() as tracer, tracing.tracer.trace("hook"):
            await hook_for(8000).run_async(state_of(conversation()))
        ours = {k.removeprefix(prefix): v for k, v in tracer.spans[0].tags.items() if k.startswith(prefix)}
        assert ours == tags_of(hook_for(8000), state_of(conversation()))

    def test_the_target_is_in_tokens_of_the_counter(self) -> None:
        messages = conversation()
        report = usage_like_openai(ModelCounter().count(messages[:-2]), ModelCounter().count(messages[-2:-1]))
        messages[-2].meta["usage"] = report
        state = state_of(messages, context_tokens=report["total_tokens"])
        assert tags_of(hook_for(8000, token_counter=OffByAFactor(0.5)), state)["target_tokens"] == pytest.approx(
            6400 / 4, rel=0.01
        )

    def test_without_tracing_nothing_happens(self) -> None:
        state = state_of(conversation())
        hook_for(8000).run(state)
        assert ModelCounter().count(state.data["messages"]) <= 3200


# --- The Agent's state ------------------------------------------------------------------------------------------------


class TestState:
    @both_ways
    async def test_the_new_conversation_keeps_the_contract(self, way: str) -> None:
        messages = conversation()
        state = state_of(messages)
        await run_hook(way, hook_for(8000), state)
        after = state.data["messages"]
        assert broken_rules(messages, after, 3200, ModelCounter(), facts=Facts(cuts_newest=True)) == []

    @both_ways
    async def test_below_the_trigger_the_list_itself_is_left(self, way: str) -> None:
        state = state_of(conversation())
        given = state.data["messages"]
        await run_hook(way, hook_for(100_000), state)
        assert state.data["messages"] is given

    @both_ways
    @pytest.mark.parametrize("messages", [[], [S("rules")], [U("")]], ids=["none", "only instructions", "no text"])
    async def test_hardly_anything_is_left_as_it_is(
        self, way: str, messages: list[ChatMessage], caplog: pytest.LogCaptureFixture
    ) -> None:
        state = state_of(messages)
        await run_hook(way, hook_for(1), state)
        assert same_objects(state.data["messages"], messages)
        assert len(warnings_in(caplog)) <= 1

    def test_it_returns_nothing(self) -> None:
        assert hook_for(8000).run(state_of(conversation())) is None  # type: ignore[func-returns-value]

    def test_starts_at_the_very_fraction_and_not_below(self) -> None:
        tokens = ModelCounter().count(conversation())
        at, below = state_of(conversation()), state_of(conversation())
        hook_for(2 * tokens, compact_at=0.5).run(at)
        hook_for(2 * tokens + 2, compact_at=0.5).run(below)
        assert at.data["messages"] != conversation()
        assert below.data["messages"] == conversation()

    def test_schemas_of_tools_take_room(self) -> None:
        tools = library_tools()
        plain = estimate(hook_for(100_000), state_of(conversation()))
        assert estimate(hook_for(100_000), state_of(conversation(), tools=tools)) == plain + ModelCounter().count(
            [], tools
        )

    def test_the_output_reserve_is_taken_off_first(self) -> None:
        state = state_of(conversation())
        hook_for(12_000, max_output_tokens=4000).run(state)
        assert 0.3 * 8000 < ModelCounter().count(state.data["messages"]) <= 0.4 * 8000

    def test_a_state_without_the_agents_keys_is_enough(self) -> None:
        state = State(schema={}, data={"messages": conversation()})
        hook_for(8000).run(state)
        assert ModelCounter().count(state.data["messages"]) <= 3200

    @pytest.mark.parametrize("value", [None, "many", -5, 1.5], ids=shown)
    def test_context_tokens_that_are_no_count_are_none(self, value: Any) -> None:
        state = state_of(conversation())
        state.data["context_tokens"] = value
        assert estimate(hook_for(100_000), state) == ModelCounter().count(conversation())

    def test_a_second_pass_over_the_result_changes_nothing(self) -> None:
        state = state_of(conversation())
        hook_for(8000).run(state)
        after = list(state.data["messages"])
        hook_for(8000, compact_at=0.41).run(state)
        assert same_objects(state.data["messages"], after)


# --- What it tells ----------------------------------------------------------------------------------------------------


class TestOnCompaction:
    def test_a_compaction_is_told_with_sizes_edits_and_target(self) -> None:
        state = state_of(conversation())
        (outcome,) = told(state, 8000)
        assert (outcome.reason, outcome.compacted, outcome.target_tokens) == (Reason.COMPACTED, True, 3200)
        assert outcome.before.tokens == ModelCounter().count(conversation())
        assert outcome.after.tokens == ModelCounter().count(state.data["messages"])
        assert outcome.messages == state.data["messages"]
        assert len(outcome.edits) == sum(
            old is not new for old, new in zip(conversation(), outcome.messages, strict=True) if old != new
        )

    def test_a_pass_in_vain_is_told_with_its_reason(self) -> None:
        (outcome,) = told(state_of([U("word " * 700)]), 800)
        assert (outcome.reason, outcome.compacted, outcome.edits) == (Reason.NOTHING_MAY_GO, False, ())

    def test_a_failure_is_told_with_what_went_wrong(self) -> None:
        (outcome,) = told(state_of(conversation()), 8000, token_counter=RaisingCounter())
        assert outcome.reason is Reason.FAILED
        assert "the tokenizer is broken" in outcome.failures[0]

    def test_a_trigger_that_did_not_fire_is_told(self) -> None:
        compactor = ToolResultPruningCompactor(trigger=MessagesExceed(1000))
        (outcome,) = told(state_of(conversation()), 8000, compactor=compactor)
        assert outcome.reason is Reason.NOT_TRIGGERED

    async def test_the_asynchronous_way_tells_the_same(self) -> None:
        outcomes: list[Outcome] = []
        await hook_for(8000, on_compaction=outcomes.append).run_async(state_of(conversation()))
        assert [o.to_dict() for o in outcomes] == [o.to_dict() for o in told(state_of(conversation()), 8000)]


# --- Settings ---------------------------------------------------------------------------------------------------------


class TestMinFreedTokens:
    def freed(self, minimum: int) -> int:
        state = state_of(conversation())
        hook_for(8000, min_freed_tokens=minimum).run(state)
        return ModelCounter().count(conversation()) - ModelCounter().count(state.data["messages"])

    def test_what_frees_enough_is_applied(self) -> None:
        freed = self.freed(0)
        assert freed > 0
        assert self.freed(freed) == freed

    def test_what_frees_less_is_not_applied(self) -> None:
        assert self.freed(self.freed(0) + 1) == 0

    def test_what_was_not_applied_is_told(self) -> None:
        (outcome,) = told(state_of(conversation()), 8000, min_freed_tokens=50_000)
        assert (outcome.reason, outcome.edits) == (Reason.NO_GAIN, ())

    def test_it_is_in_the_models_tokens(self) -> None:
        messages = conversation()
        report = usage_like_openai(ModelCounter().count(messages[:-2]), ModelCounter().count(messages[-2:-1]))
        messages[-2].meta["usage"] = report
        state = state_of(messages, context_tokens=report["total_tokens"])
        # The counter sees a quarter of what is freed, about 1,300 tokens of 5,300.
        hook_for(8000, token_counter=OffByAFactor(0.25), min_freed_tokens=3000).run(state)
        assert not same_objects(state.data["messages"], messages)


class TestMaxResultTokens:
    def test_a_newest_result_above_it_is_cut_to_it(self) -> None:
        state = state_of([U("go"), *step("a", chars=9000)])
        hook_for(100_000, max_result_tokens=500).run(state)
        assert 300 <= ModelCounter().count([state.data["messages"][-1]]) <= 500

    def test_the_cut_result_keeps_its_call_its_flag_and_its_metadata(self) -> None:
        result = T("a", prose(9000), error=True, meta={"source": "cache"})
        state = state_of([U("go"), A(calls=["a"]), result])
        hook_for(100_000, max_result_tokens=500).run(state)
        cut = state.data["messages"][-1]
        assert cut.tool_call_result.error is True
        assert cut.tool_call_result.origin == result.tool_call_result.origin
        assert cut.meta["source"] == "cache"
        assert cut.meta["context_compaction"]["strategy"]

    @pytest.mark.parametrize("limit", [None, 900], ids=["the window", "a limit of its own"])
    @pytest.mark.parametrize(
        "newest",
        [
            [A(calls=["a"]), T("a", [TextContent(prose(2000, n)) for n in range(12)])],
            [A(calls=["a"]), T("a", [TextContent(prose(15_000, 1)), image(), TextContent(prose(15_000, 2))])],
            [A(calls=["a", "b"]), in_one_message(T("a", prose(15_000, 1)), T("b", prose(15_000, 2)))],
            [A(calls=["a", "b"]), T("a", prose(9000, 1)), T("b", prose(9000, 2))],
            [A(calls=["a"]), U("go on"), T("a", prose(19_000))],
        ],
        ids=["many parts", "text around an image", "two in a message", "two messages", "not next to its call"],
    )
    def test_newest_results_of_any_form_are_cut_to_fit(self, newest: list[ChatMessage], limit: int | None) -> None:
        messages = [U("go"), *newest]
        before, state = copy.deepcopy(messages), state_of(messages)
        hook_for(4000, max_result_tokens=limit).run(state)
        after = state.data["messages"]
        assert messages == before
        assert ModelCounter().count(after) <= 4000
        assert broken_rules(messages, after, None, ModelCounter(), facts=Facts(cuts_newest=True)) == []

    def test_a_newest_result_below_it_stays(self) -> None:
        messages = [U("go"), *step("a", chars=600)]
        state = state_of(messages)
        hook_for(100_000, max_result_tokens=500).run(state)
        assert same_objects(state.data["messages"], messages)

    def test_older_results_stay_as_they_are(self) -> None:
        messages = [U("go"), *step("a", chars=9000), *step("b", chars=300)]
        state = state_of(messages)
        hook_for(100_000, max_result_tokens=500).run(state)
        assert same_objects(state.data["messages"], messages)

    def test_a_result_is_cut_once(self) -> None:
        state = state_of([U("go"), *step("a", chars=9000)])
        hook = hook_for(100_000, max_result_tokens=500)
        hook.run(state)
        after = list(state.data["messages"])
        hook.run(state)
        assert same_objects(state.data["messages"], after)

    def test_it_is_in_the_models_tokens(self) -> None:
        messages = [U("go"), *step("z", chars=9000), *step("a", chars=9000)]
        report = usage_like_openai(ModelCounter().count(messages[:-2]), ModelCounter().count(messages[-2:-1]))
        messages[-2].meta["usage"] = report
        state = state_of(messages, context_tokens=report["total_tokens"])
        hook_for(100_000, token_counter=OffByAFactor(0.4), max_result_tokens=1000).run(state)
        assert 600 <= ModelCounter().count([state.data["messages"][-1]]) <= 1050


class TestBackOff:
    """A pass that frees nothing is not tried again until the conversation has grown."""

    def messages(self) -> list[ChatMessage]:
        return [U("word " * 2900), *step("a", chars=200)]

    def test_the_compactor_is_not_asked_again_while_nothing_has_changed(self) -> None:
        compactor = _InVain()
        hook, state = hook_for(4000, compactor=compactor), state_of(self.messages())
        for _ in range(5):
            hook.run(state)
        assert compactor.times == 1

    def test_it_is_not_asked_for_a_little_more(self) -> None:
        compactor = _InVain()
        hook, state = hook_for(4000, compactor=compactor), state_of(self.messages())
        hook.run(state)
        state.data["messages"] += [A("a word")]
        hook.run(state)
        assert compactor.times == 1

    def test_it_is_asked_again_when_the_conversation_has_grown(self) -> None:
        compactor = _InVain()
        hook, state = hook_for(4000, compactor=compactor), state_of(self.messages())
        hook.run(state)
        state.data["messages"] += step("b", chars=2000)
        hook.run(state)
        assert compactor.times == 2

    def test_what_became_prunable_meanwhile_goes_before_the_window_is_full(self) -> None:
        hook, state = hook_for(4000), state_of(self.messages())
        for name in "bcdefg":
            state.data["messages"] += step(name, chars=700)
            hook.run(state)
            assert ModelCounter().count(state.data["messages"]) <= 4000

    def test_one_warning_says_that_what_must_stay_is_too_large(self, caplog: pytest.LogCaptureFixture) -> None:
        hook, state = hook_for(4000), state_of(self.messages())
        for name in "bcd":
            hook.run(state)
            state.data["messages"] += step(name, chars=700)
        assert len(warnings_in(caplog)) == 1

    def test_each_run_is_warned_by_itself(self, caplog: pytest.LogCaptureFixture) -> None:
        hook = hook_for(4000)
        for _ in range(2):
            hook.run(state_of(self.messages()))
        assert len(warnings_in(caplog)) == 2

    def test_one_run_does_not_hold_back_another(self) -> None:
        compactor = _InVain()
        hook = hook_for(4000, compactor=compactor)
        for _ in range(3):
            hook.run(state_of(self.messages()))
        assert compactor.times == 3

    def test_a_warning_tells_nothing_of_the_conversation(self, caplog: pytest.LogCaptureFixture) -> None:
        hook_for(4000).run(state_of([U("secret " * 2900), *step("a", chars=200)]))
        (warning,) = warnings_in(caplog)
        assert "secret" not in warning


class _InVain:
    """Never finds anything that may go."""

    def __init__(self) -> None:
        self.times = 0

    def compact(self, messages: list[ChatMessage], target_tokens: int, token_counter: Any) -> None:
        self.times += 1


class TestTriggersUnderTheHook:
    """Token numbers of triggers and targets are the model's tokens here."""

    def compacted(self, limit: int, factor: float) -> bool:
        messages = conversation()
        report = usage_like_openai(ModelCounter().count(messages[:-2]), ModelCounter().count(messages[-2:-1]))
        messages[-2].meta["usage"] = report
        state = state_of(messages, context_tokens=report["total_tokens"])
        compactor = ToolResultPruningCompactor(trigger=TokensExceed(limit), min_tokens=50)
        hook_for(8000, compactor=compactor, token_counter=OffByAFactor(factor)).run(state)
        return not same_objects(state.data["messages"], messages)

    @pytest.mark.parametrize("factor", [0.25, 1, 1.8])
    def test_a_counter_that_is_off_by_a_factor_is_off_for_no_trigger(self, factor: float) -> None:
        tokens = ModelCounter().count(conversation())
        assert self.compacted(int(tokens * 0.95), factor)
        assert not self.compacted(int(tokens * 1.05), factor)


def test_growing_messages_are_measured_once_each() -> None:
    counter, messages = RecordingCounter(), conversation(300)
    hook, state = hook_for(100_000, token_counter=counter), state_of([])
    for message in messages:
        state.data["messages"] = [*state.data["messages"], message]
        hook.run(state)
    assert [counter.times(message) for message in messages] == [1] * len(messages)


class TestWhatIsSaidOfALargeConversation:
    """The warning that what must stay is too large is given only where that is so."""

    def large(self) -> Any:
        return agent_state([U("go"), *steps("a", "b", "c", chars=9000)])

    def test_a_trigger_of_the_compactor_that_does_not_fire_is_no_reason(self, caplog: pytest.LogCaptureFixture) -> None:
        state = self.large()
        before = state.data["messages"]
        CompactionHook(ToolResultPruningCompactor(trigger=TurnsExceed(9)), context_window=4000).run(state)
        assert state.data["messages"] == before
        assert "must stay" not in caplog.text

    def test_a_pass_that_was_not_worth_it_is_no_reason(self, caplog: pytest.LogCaptureFixture) -> None:
        CompactionHook(ToolResultPruningCompactor(), context_window=6000, min_freed_tokens=50_000).run(self.large())
        assert "must stay" not in caplog.text


class TestANewestResultThatIsCut:
    def reported(self, messages: list[ChatMessage]) -> Any:
        """A state whose newest reply tells just what the Agent keeps, as in the middle of a run."""
        usage = {"prompt_tokens": 4000, "completion_tokens": 10}
        newest = [A(calls=["z"], meta={"usage": usage}), T("z", prose(9000))]
        state = agent_state([*messages, *newest])
        state.data["context_tokens"] = 4010
        return state

    def test_does_not_bring_back_what_another_hook_replaced(self) -> None:
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=100_000, max_result_tokens=500)
        first = [U("go"), *steps("a", "b", "c", chars=900)]
        state = agent_state(first)
        hook.run(state)
        redacted = [*first[:2], T("a", "[redacted]"), *first[3:]]
        later = self.reported(redacted)
        state.data.update(later.data)
        hook.run(state)
        assert state.data["messages"][2].tool_call_result.result == "[redacted]"
        assert len(state.data["messages"][-1].tool_call_result.result) < 9000

    def test_stays_whole_where_it_is_pinned(self) -> None:
        compactor = ToolResultPruningCompactor(pin_meta_keys=("keep",))
        state = agent_state([U("go"), A(calls=["a"]), T("a", prose(40_000), meta={"keep": 1})])
        CompactionHook(compactor, context_window=4000).run(state)
        assert len(state.data["messages"][-1].tool_call_result.result) == 40_000

    def test_says_nothing_of_a_strategy_that_did_not_run(self, caplog: pytest.LogCaptureFixture) -> None:
        state = agent_state([U("go"), A(calls=["a"]), T("a", prose(40_000))])
        CompactionHook(ToolResultPruningCompactor(trigger=TurnsExceed(9)), context_window=4000).run(state)
        assert "cut to its head and tail" in caplog.text
        assert "must stay" not in caplog.text

    def test_is_told_of_by_the_component_too(self, caplog: pytest.LogCaptureFixture) -> None:
        component = ChatMessageCompactor(ToolResultPruningCompactor(), context_window=4000)
        component.run([U("go"), A(calls=["a"]), T("a", prose(40_000))])
        assert "cut to its head and tail" in caplog.text

    def test_a_hook_can_be_pickled(self) -> None:
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=4000)
        assert pickle.loads(pickle.dumps(hook)) == hook  # noqa: S301 - made here

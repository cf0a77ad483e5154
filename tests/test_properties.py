"""What holds for any conversation and any target: hypothesis looks for the ones for which it does not."""

import copy
import json
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from conversations import MARK, agent_state, conversations, shares
from haystack.dataclasses import ChatMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Facts, RecordingCounter, answers, broken_rules, orphans, steps_with_results
from stages import OneLine

from haystack_compaction import (
    AllOf,
    Always,
    AnyOf,
    CompactionHook,
    EstimatedTokenCounter,
    GroupsExceed,
    HasToolCalls,
    MediaCompactor,
    MessageIndex,
    MessagesExceed,
    Never,
    Not,
    PipelineCompactor,
    SelectiveToolCallCompactor,
    SlidingWindowCompactor,
    TokenBudgetCompactor,
    TokensBelow,
    TokensExceed,
    ToolResultCollapseCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
    TurnsExceed,
)
from haystack_compaction.steps import drive

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from haystack.hooks.compaction import SlidingWindowCompactor as HaystackWindow
    from haystack.hooks.compaction import ToolResultPruningCompactor as HaystackPruning

COUNTER = EstimatedTokenCounter()

CLEARING = Facts(rewrites=frozenset({"tool", "assistant"}), cuts_inputs=True)

thorough = settings(max_examples=100, deadline=None, derandomize=True)


@st.composite
def prunings(draw: st.DrawFn, *, inputs: bool = True) -> ToolResultPruningCompactor:
    clear = st.sampled_from([False, True, ("write_file",)]) if inputs else st.just(False)
    return ToolResultPruningCompactor(
        min_keep_steps=draw(st.integers(1, 3)),
        min_tokens=draw(st.sampled_from([0, 100, 200, 500])),
        placeholder=draw(st.sampled_from([ToolResultPruningCompactor().placeholder, "", "{tool_name} went {x}"])),
        skip_meta_keys=draw(st.sampled_from([("tool_result_offloaded",), (), ("source",)])),
        exclude_tools=draw(st.sampled_from([(), ("search",), ("search", "read_file")])),
        clear_tool_inputs=draw(clear),
        keep_error_chars=draw(st.sampled_from([0, 200, 1000])),
    )


def target_of(messages: Sequence[ChatMessage], share: float) -> int:
    return int(COUNTER.count(list(messages)) * share)


def rewritten(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> list[int]:
    return [n for n, message in enumerate(after) if message is not before[n]]


def given_back(before: Sequence[ChatMessage], after: Sequence[ChatMessage], position: int) -> int:
    """The size of the result if one message were still the original."""
    return COUNTER.count([*after[:position], before[position], *after[position + 1 :]])


class TestContract:
    @given(messages=conversations(), compactor=prunings(), share=shares())
    @thorough
    def test_it_holds(self, messages: list[ChatMessage], compactor: ToolResultPruningCompactor, share: float) -> None:
        untouched, target = copy.deepcopy(messages), target_of(messages, share)
        after = compactor.compact(messages, target, COUNTER)
        assert messages == untouched
        assert broken_rules(messages, after, target, COUNTER, facts=CLEARING) == []

    @given(messages=conversations(complete=True), compactor=prunings(), share=shares())
    @thorough
    def test_it_holds_with_a_counter_of_unknown_kind(
        self, messages: list[ChatMessage], compactor: ToolResultPruningCompactor, share: float
    ) -> None:
        counter = RecordingCounter(additive=False)
        target = int(counter.count(messages) * share)
        after = compactor.compact(messages, target, counter)
        assert broken_rules(messages, after, target, counter, facts=CLEARING) == []
        if after is not None:
            assert compactor.compact(after, target, counter) is None

    @given(messages=conversations(), compactor=prunings(), share=shares())
    @thorough
    def test_a_second_pass_finds_nothing(
        self, messages: list[ChatMessage], compactor: ToolResultPruningCompactor, share: float
    ) -> None:
        target = target_of(messages, share)
        after = compactor.compact(messages, target, COUNTER)
        if after is not None:
            assert compactor.compact(after, target, COUNTER) is None

    @given(messages=conversations(), compactor=prunings(), high=shares(), low=shares())
    @thorough
    def test_two_passes_keep_the_contract_as_one_does(
        self, messages: list[ChatMessage], compactor: ToolResultPruningCompactor, high: float, low: float
    ) -> None:
        first = compactor.compact(messages, target_of(messages, high), COUNTER) or messages
        target = target_of(messages, low)
        second = compactor.compact(first, target, COUNTER)
        assert broken_rules(first, second, target, COUNTER, facts=CLEARING) == []

    @given(messages=conversations(), share=shares())
    @thorough
    async def test_the_asynchronous_way_gives_the_same(self, messages: list[ChatMessage], share: float) -> None:
        compactor, target = ToolResultPruningCompactor(min_tokens=50), target_of(messages, share)
        assert await compactor.compact_async(messages, target, COUNTER) == compactor.compact(messages, target, COUNTER)


@st.composite
def stages(draw: st.DrawFn) -> Any:
    """Any compactor that there is, Haystack's own and one that asks the outside included."""
    keep = draw(st.integers(1, 3))  # with none kept, the newest step may go
    common: dict[str, Any] = {
        "min_keep_groups": draw(st.sampled_from([1, 1, 3])),
        "pin_meta_keys": draw(st.sampled_from([(), (), ("source",)])),
    }
    makers: list[Callable[[], Any]] = [
        lambda: draw(prunings()),
        lambda: MediaCompactor(keep_last_media=keep - 1, **common),
        lambda: ToolResultCollapseCompactor(keep_last_tool_call_groups=keep, **common),
        lambda: SelectiveToolCallCompactor(keep_last_tool_call_groups=keep, **common),
        lambda: TruncationCompactor(**common),
        lambda: SlidingWindowCompactor(min_keep_turns=1, **common),
        lambda: SlidingWindowCompactor(keep_last_turns=keep, **common),
        lambda: HaystackPruning(min_tokens=50),
        HaystackWindow,
        OneLine,
    ]
    return draw(st.sampled_from(makers))()


@st.composite
def compositions(draw: st.DrawFn) -> Any:
    compactors = draw(st.lists(stages(), min_size=1, max_size=4))
    common: dict[str, Any] = {
        "min_keep_groups": draw(st.sampled_from([0, 0, 2])),
        "pin_meta_keys": draw(st.sampled_from([(), ("source",)])),
        "pin_first_user_message": draw(st.booleans()),
    }
    kind = draw(st.sampled_from(["pipeline", "budget", "nested"]))
    if kind == "budget":
        return TokenBudgetCompactor(draw(st.sampled_from([1, 300, 1500])), compactors, **common)
    if kind == "nested" and len(compactors) > 1:
        compactors = [compactors[0], PipelineCompactor(compactors[1:])]
    return PipelineCompactor(compactors, early_stop=draw(st.booleans()), **common)


ALL_ALLOWED = Facts(
    removes=True,
    notes=True,
    rewrites=frozenset({"tool", "assistant", "user"}),
    cuts_inputs=True,
    strips=True,
    own_goal=True,
)


class TestCompositions:
    @given(messages=conversations(), compactor=compositions(), share=shares())
    @thorough
    def test_the_contract_holds(self, messages: list[ChatMessage], compactor: Any, share: float) -> None:
        untouched, target = copy.deepcopy(messages), target_of(messages, share)
        after = compactor.compact(messages, target, COUNTER)
        assert messages == untouched
        assert broken_rules(messages, after, target, COUNTER, facts=ALL_ALLOWED) == []

    @given(messages=conversations(), compactor=compositions(), share=shares())
    @thorough
    def test_a_second_pass_finds_nothing(self, messages: list[ChatMessage], compactor: Any, share: float) -> None:
        target = target_of(messages, share)
        outcome = drive(compactor.steps(MessageIndex(messages, COUNTER), target))
        # What somebody else's compactor was refused may be right for what the others left.
        if outcome.compacted and not outcome.failures:
            assert compactor.compact(outcome.messages, target, COUNTER) is None

    @given(messages=conversations(), compactor=compositions(), share=shares())
    @thorough
    async def test_saved_and_loaded_it_does_the_same_sync_and_async(
        self, messages: list[ChatMessage], compactor: Any, share: float
    ) -> None:
        target = target_of(messages, share)
        after = compactor.compact(messages, target, COUNTER)
        loaded = type(compactor).from_dict(json.loads(json.dumps(compactor.to_dict())))
        assert loaded == compactor
        assert loaded.compact(messages, target, COUNTER) == after
        assert await loaded.compact_async(messages, target, COUNTER) == after

    @given(messages=conversations(), compactor=compositions(), share=shares())
    @thorough
    def test_what_is_left_is_what_its_sums_say(self, messages: list[ChatMessage], compactor: Any, share: float) -> None:
        index = MessageIndex(messages, COUNTER)
        outcome = drive(compactor.steps(index, target_of(messages, share)))
        left = MessageIndex(outcome.messages, COUNTER)
        assert outcome.index is not None
        assert outcome.index.included_messages() == outcome.messages
        assert outcome.index.included_token_count == left.total_token_count == outcome.after.tokens
        assert outcome.index.included_message_count == left.total_message_count == outcome.after.messages
        assert outcome.index.included_group_count == left.total_group_count
        index.reset()
        assert index.included_messages() == messages
        assert index.included_token_count == COUNTER.count(messages)


class TestInTheHook:
    """The hook remembers what it did and tried; that memory must not cost the model its window."""

    pipeline = PipelineCompactor(
        [ToolResultPruningCompactor(), ToolResultCollapseCompactor(), SlidingWindowCompactor(), TruncationCompactor()]
    )

    @given(
        messages=conversations(well_behaved=True, max_blocks=12),
        compactor=st.sampled_from([ToolResultPruningCompactor(), pipeline]),
        share=st.sampled_from([0.3, 0.6, 0.9]),
    )
    @thorough
    def test_it_never_sends_more_than_the_window_where_a_fresh_hook_would_not(
        self, messages: list[ChatMessage], compactor: Any, share: float
    ) -> None:
        window = max(target_of(messages, share), 1)
        remembering, state = self.hook(compactor, window), agent_state([])
        for position, message in enumerate(messages):
            state.data["messages"] = [*state.data["messages"], message]
            if message.is_from("assistant") or any(m.tool_call_results for m in messages[position + 1 : position + 2]):
                continue  # the model is asked after the user and after the last of the results
            fresh = agent_state(state.data["messages"])
            remembering.run(state)
            self.hook(compactor, window).run(fresh)
            if COUNTER.count(fresh.data["messages"]) <= window:
                assert COUNTER.count(state.data["messages"]) <= window

    def hook(self, compactor: Any, window: int) -> CompactionHook:
        return CompactionHook(compactor, context_window=window, token_counter=COUNTER)


class TestNoMoreThanNeeded:
    """Rule 6: what went is a prefix of the strategy's own order, and the last of it was needed."""

    @given(messages=conversations(), compactor=prunings(inputs=False), share=shares())
    @thorough
    def test_giving_the_last_result_back_would_pass_the_target(
        self, messages: list[ChatMessage], compactor: ToolResultPruningCompactor, share: float
    ) -> None:
        target = target_of(messages, share)
        after = compactor.compact(messages, target, COUNTER)
        if after is not None:
            assert max(given_back(messages, after, n) for n in rewritten(messages, after)) > target

    @given(messages=conversations(well_behaved=True), compactor=prunings(inputs=False), share=shares())
    @thorough
    def test_what_went_are_the_oldest_that_may_go(
        self, messages: list[ChatMessage], compactor: ToolResultPruningCompactor, share: float
    ) -> None:
        target = target_of(messages, share)
        allowed = eligible(messages, compactor)
        after = compactor.compact(messages, target, COUNTER)
        if after is None:
            assert COUNTER.count(messages) <= target or allowed == []
            return
        went = rewritten(messages, after)
        assert went == allowed[: len(went)]
        assert given_back(messages, after, went[-1]) > target
        assert COUNTER.count(after) <= target or went == allowed

    @given(messages=conversations(), compactor=prunings(inputs=False))
    @thorough
    def test_all_that_may_go_goes_when_the_target_is_out_of_reach(
        self, messages: list[ChatMessage], compactor: ToolResultPruningCompactor
    ) -> None:
        after = compactor.compact(messages, 0, COUNTER) or messages
        went = set(rewritten(messages, after)) - uncertain(messages)
        assert sorted(went) == [n for n in eligible(messages, compactor) if n not in uncertain(messages)]

    @given(messages=conversations(well_behaved=True), shares_of_it=st.lists(shares(), min_size=2, max_size=4))
    @thorough
    def test_a_lower_target_never_prunes_less(self, messages: list[ChatMessage], shares_of_it: list[float]) -> None:
        compactor = ToolResultPruningCompactor(min_tokens=50)
        went = [
            rewritten(messages, compactor.compact(messages, target_of(messages, share), COUNTER) or messages)
            for share in sorted(shares_of_it, reverse=True)
        ]
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(went))


def uncertain(messages: Sequence[ChatMessage]) -> set[int]:
    """Messages for which the rules leave room: several results in one, and results without a call."""
    several = {n for n, message in enumerate(messages) if len(message.tool_call_results) > 1}
    return several | set(orphans(messages))


def eligible(messages: Sequence[ChatMessage], compactor: ToolResultPruningCompactor) -> list[int]:
    """Positions of the results that may be pruned, worked out from the words of the specification."""
    steps = steps_with_results(messages)
    newest = {position for _, results in steps[len(steps) - compactor.min_keep_steps :] for position in results}
    newest = {p for _, results in steps for p in results} if len(steps) <= compactor.min_keep_steps else newest
    names = {result[0]: messages[call[0]].tool_calls[call[1]].tool_name for result, call in answers(messages).items()}
    return [
        n
        for n, message in enumerate(messages)
        if len(message.tool_call_results) == 1
        and n not in newest
        and MARK not in message.meta
        and not any(key in message.meta for key in compactor.skip_meta_keys)
        and names.get(n, message.tool_call_results[0].origin.tool_name) not in compactor.exclude_tools
        and COUNTER.count([message]) > compactor.min_tokens
        and _shrinks(message, compactor)
    ]


def _shrinks(message: ChatMessage, compactor: ToolResultPruningCompactor) -> bool:
    """Whether this very message gets smaller, tried in a conversation where nothing stands in the way of it."""
    origin = message.tool_call_results[0].origin
    later = ChatMessage.from_assistant(tool_calls=[origin]), ChatMessage.from_tool("ok", origin=origin)
    alone = [ChatMessage.from_assistant(tool_calls=[origin]), message, *[m for _ in range(3) for m in later]]
    return compactor.compact(alone, 0, COUNTER) is not None


class TestSaving:
    numbered = st.sampled_from([TokensExceed, TokensBelow, MessagesExceed, TurnsExceed, GroupsExceed])
    simple = st.one_of(
        st.builds(lambda make, n: make(n), numbered, st.integers(0, 10**9)),
        st.sampled_from([Always(), Never(), HasToolCalls()]),
    )
    triggers = st.recursive(
        simple,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: AllOf(*parts)),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: AnyOf(*parts)),
            inner.map(Not),
        ),
        max_leaves=6,
    )

    @given(trigger=triggers)
    @thorough
    def test_a_trigger_comes_back_equal(self, trigger: Any) -> None:
        self.round_trip(trigger)

    @given(compactor=prunings(), trigger=st.one_of(st.none(), triggers), target=st.one_of(st.none(), triggers))
    @thorough
    def test_a_compactor_comes_back_equal(
        self, compactor: ToolResultPruningCompactor, trigger: Any, target: Any
    ) -> None:
        self.round_trip(compactor)
        self.round_trip(ToolResultPruningCompactor(trigger=trigger, target=target))

    def round_trip(self, thing: Any) -> None:
        load: Callable[[dict[str, Any]], Any] = type(thing).from_dict
        once = load(json.loads(json.dumps(thing.to_dict())))
        assert once == thing
        assert hash(once) == hash(thing)
        assert once.to_dict() == thing.to_dict()
        assert load(once.to_dict()) == thing

    @given(messages=conversations(), trigger=triggers)
    @thorough
    def test_a_trigger_decides_the_same_after_it_was_saved(self, messages: list[ChatMessage], trigger: Any) -> None:
        loaded = type(trigger).from_dict(trigger.to_dict())
        for fires in (trigger, loaded):
            compactor = ToolResultPruningCompactor(trigger=fires, min_tokens=0)
            plain = ToolResultPruningCompactor(min_tokens=0).compact(messages, 0, COUNTER)
            assert compactor.compact(messages, 0, COUNTER) in (None, plain)
        assert self.acts(trigger, messages) == self.acts(loaded, messages)

    def acts(self, trigger: Any, messages: list[ChatMessage]) -> bool:
        return ToolResultPruningCompactor(trigger=trigger, min_tokens=0).compact(messages, 0, COUNTER) is not None

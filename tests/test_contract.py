"""
The contract of spec 4, held for every compactor over every shape of conversation.

A new compactor is one more line in `COMPACTORS`: the settings to try, and what it is allowed to do.
"""

import copy
import random
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from agents import FirstSentences, NoSummaries
from conversations import SHAPES, A, S, T, U, agent_state, file, note, prose, random_conversation, step, steps
from haystack.core.serialization import allow_deserialization_module
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from naming import shown
from oracle import Facts, GarbageCounter, RaisingCounter, RecordingCounter, StrictCounter, broken_rules

from haystack_compaction import (
    Always,
    CachedTokenCounter,
    ChatMessageCompactor,
    CompactionHook,
    ContextWindowCompactor,
    EstimatedTokenCounter,
    MediaCompactor,
    MessageGroup,
    MessagesExceed,
    Not,
    PipelineCompactor,
    SelectiveToolCallCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    TokenBudgetCompactor,
    TokensBelow,
    TokensExceed,
    ToolResultCollapseCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
    apply_compaction,
    apply_compaction_async,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from haystack.hooks.compaction import CompactionHook as HaystackHook
    from haystack.hooks.compaction import ToolResultPruningCompactor as HaystackPruning

Make = Callable[[], Any]
Way = Callable[[Any, list[ChatMessage], int, Any], Awaitable[list[ChatMessage] | None]]

PRUNING = Facts()
REMOVING = Facts(removes=True, notes=True)
CLEARING = Facts(rewrites=frozenset({"tool", "assistant"}), cuts_inputs=True)
STRIPPING = Facts(rewrites=frozenset({"tool", "user", "assistant"}), strips=True)
COLLAPSING = Facts(removes=True, notes=True, rewrites=frozenset())


def tools_only(group: MessageGroup) -> str:
    """A formatter of a user's own."""
    return ", ".join(exchange.call.tool_name for exchange in group.exchanges() if exchange.call)


# A function in a saved pipeline is imported only from a module that is trusted.
allow_deserialization_module(__name__)
allow_deserialization_module("agents")

WINDOW = Facts(removes=True, notes=True, rewrites=frozenset())
SILENT_WINDOW = Facts(removes=True, notes=True, rewrites=frozenset(), keeps_newest_step=False)
BY_COUNT = Facts(removes=True, notes=True, rewrites=frozenset(), own_goal=True)
TRUNCATION = Facts(removes=True, notes=True, rewrites=frozenset())

COMPACTORS: dict[str, tuple[Make, Facts]] = {
    "pruning": (ToolResultPruningCompactor, PRUNING),
    "pruning everything": (lambda: ToolResultPruningCompactor(min_tokens=0, skip_meta_keys=()), PRUNING),
    "pruning, two steps kept": (lambda: ToolResultPruningCompactor(min_keep_steps=2), PRUNING),
    "pruning, errors too": (lambda: ToolResultPruningCompactor(keep_error_chars=0, placeholder="-"), PRUNING),
    "pruning, arguments too": (lambda: ToolResultPruningCompactor(clear_tool_inputs=True, min_tokens=0), CLEARING),
    "pruning, named arguments": (lambda: ToolResultPruningCompactor(clear_tool_inputs=("write_file",)), CLEARING),
    "pruning, some pinned": (
        lambda: ToolResultPruningCompactor(pin_meta_keys=("source",), pin_first_user_message=True, min_keep_groups=2),
        PRUNING,
    ),
    "pruning with a goal of its own": (
        lambda: ToolResultPruningCompactor(trigger=MessagesExceed(3), target=TokensBelow(300)),
        Facts(own_goal=True),
    ),
    "media": (MediaCompactor, STRIPPING),
    "media, none kept": (lambda: MediaCompactor(keep_last_media=0), STRIPPING),
    "media, one kept": (lambda: MediaCompactor(keep_last_media=1), STRIPPING),
    "media, some pinned": (
        lambda: MediaCompactor(
            keep_last_media=0, pin_meta_keys=("source",), pin_first_user_message=True, min_keep_groups=2
        ),
        STRIPPING,
    ),
    "media with a goal of its own": (
        lambda: MediaCompactor(keep_last_media=0, trigger=MessagesExceed(3), target=TokensBelow(300)),
        Facts(rewrites=STRIPPING.rewrites, strips=True, own_goal=True),
    ),
    "collapse": (ToolResultCollapseCompactor, COLLAPSING),
    "collapse, no group kept": (
        lambda: ToolResultCollapseCompactor(keep_last_tool_call_groups=0, evidence_tokens=0),
        replace(COLLAPSING, keeps_newest_step=False),
    ),
    "collapse, two groups kept": (lambda: ToolResultCollapseCompactor(keep_last_tool_call_groups=2), COLLAPSING),
    "collapse to a few words": (
        lambda: ToolResultCollapseCompactor(max_summary_chars=120, evidence_tokens=1_000),
        COLLAPSING,
    ),
    "collapse with a formatter": (lambda: ToolResultCollapseCompactor(formatter=tools_only), COLLAPSING),
    "collapse, some pinned": (
        lambda: ToolResultCollapseCompactor(pin_meta_keys=("source",), pin_first_user_message=True, min_keep_groups=2),
        COLLAPSING,
    ),
    "collapse with a goal of its own": (
        lambda: ToolResultCollapseCompactor(trigger=MessagesExceed(3), target=TokensBelow(300)),
        replace(COLLAPSING, own_goal=True),
    ),
    "selective": (SelectiveToolCallCompactor, COLLAPSING),
    "selective, no group kept": (
        lambda: SelectiveToolCallCompactor(keep_last_tool_call_groups=0),
        replace(COLLAPSING, keeps_newest_step=False),
    ),
    "selective, two groups kept": (lambda: SelectiveToolCallCompactor(keep_last_tool_call_groups=2), COLLAPSING),
    "selective, a tool excluded": (lambda: SelectiveToolCallCompactor(exclude_tools=("search", "tool3")), COLLAPSING),
    "selective, some pinned": (
        lambda: SelectiveToolCallCompactor(pin_meta_keys=("source",), pin_first_user_message=True, min_keep_groups=2),
        COLLAPSING,
    ),
    "selective with a goal of its own": (
        lambda: SelectiveToolCallCompactor(trigger=MessagesExceed(3), target=TokensBelow(300)),
        replace(COLLAPSING, own_goal=True),
    ),
    "window": (SlidingWindowCompactor, WINDOW),
    "window, bare note": (lambda: SlidingWindowCompactor(evidence_tokens=0), WINDOW),
    "window, much evidence": (lambda: SlidingWindowCompactor(evidence_tokens=5000), WINDOW),
    "window, own note": (
        lambda: SlidingWindowCompactor(omission_note="{x} {num_removed} gone", min_keep_steps=3),
        WINDOW,
    ),
    "window, no note": (lambda: SlidingWindowCompactor(omission_note=None), SILENT_WINDOW),
    "window, no step kept": (lambda: SlidingWindowCompactor(min_keep_steps=0, min_keep_turns=1), SILENT_WINDOW),
    "window, turns kept": (
        lambda: SlidingWindowCompactor(min_keep_turns=2, pin_first_user_message=True, pin_meta_keys=("source",)),
        WINDOW,
    ),
    "window of turns": (lambda: SlidingWindowCompactor(keep_last_turns=2), BY_COUNT),
    "window of groups": (
        lambda: SlidingWindowCompactor(keep_last_groups=3, omission_note=None),
        replace(BY_COUNT, keeps_newest_step=False),
    ),
    "window with a goal of its own": (
        lambda: SlidingWindowCompactor(trigger=MessagesExceed(3), target=TokensBelow(300)),
        BY_COUNT,
    ),
    "truncation": (TruncationCompactor, TRUNCATION),
    "truncation with a note": (
        lambda: TruncationCompactor(omission_note="{num_removed} gone", min_keep_groups=3),
        TRUNCATION,
    ),
    "truncation, instructions too": (
        lambda: TruncationCompactor(preserve_system=False),
        replace(TRUNCATION, keeps_system=False),
    ),
    "truncation of all": (
        lambda: TruncationCompactor(min_keep_groups=0, evidence_tokens=0),
        replace(TRUNCATION, keeps_newest_step=False),
    ),
    "truncation to few messages": (
        lambda: TruncationCompactor(trigger=MessagesExceed(4), target=Not(MessagesExceed(4))),
        replace(TRUNCATION, own_goal=True),
    ),
}

COMPACTORS |= {
    "one stage": (lambda: PipelineCompactor([ToolResultPruningCompactor()]), PRUNING),
    "two stages": (lambda: PipelineCompactor([ToolResultPruningCompactor(), TruncationCompactor()]), REMOVING),
    "three stages": (
        lambda: PipelineCompactor(
            [ToolResultPruningCompactor(), ToolResultCollapseCompactor(), TruncationCompactor()], early_stop=False
        ),
        REMOVING,
    ),
    "four stages, a foreign one among them": (
        lambda: PipelineCompactor(
            [
                ToolResultPruningCompactor(clear_tool_inputs=True),
                HaystackPruning(min_tokens=20),
                ToolResultCollapseCompactor(keep_last_tool_call_groups=0),
                TruncationCompactor(),
            ]
        ),
        replace(REMOVING, rewrites=frozenset({"tool", "assistant"}), cuts_inputs=True, keeps_newest_step=False),
    ),
    "a foreign stage first": (
        lambda: PipelineCompactor([HaystackPruning(), ToolResultPruningCompactor(min_tokens=20)]),
        PRUNING,
    ),
    "stages that go by triggers of their own": (
        lambda: PipelineCompactor(
            [
                ToolResultPruningCompactor(trigger=MessagesExceed(3), target=TokensBelow(600)),
                TruncationCompactor(trigger=TokensExceed(900), target=TokensBelow(300)),
            ],
            early_stop=False,
        ),
        replace(REMOVING, own_goal=True),
    ),
    "stages, some pinned": (
        lambda: PipelineCompactor(
            [ToolResultPruningCompactor(), TruncationCompactor()],
            pin_meta_keys=("source",),
            pin_first_user_message=True,
            min_keep_groups=2,
        ),
        REMOVING,
    ),
    "stages within a stage": (
        lambda: PipelineCompactor(
            [
                PipelineCompactor([ToolResultPruningCompactor(), HaystackPruning()]),
                TokenBudgetCompactor(700, [ToolResultPruningCompactor(min_tokens=20)]),
            ]
        ),
        replace(REMOVING, own_goal=True),
    ),
    "a budget": (
        lambda: TokenBudgetCompactor(700, [ToolResultPruningCompactor()]),
        replace(REMOVING, own_goal=True),
    ),
    "a budget, strictly": (
        lambda: TokenBudgetCompactor(1, [ToolResultPruningCompactor()], strict=True),
        replace(REMOVING, own_goal=True, keeps_system=False),
    ),
    "a budget beyond any target": (
        lambda: TokenBudgetCompactor(10**9, [ToolResultPruningCompactor()], early_stop=False),
        REMOVING,
    ),
    "a context window": (lambda: ContextWindowCompactor(2000, 400), replace(REMOVING, own_goal=True)),
    "a context window, all tool calls": (
        lambda: ContextWindowCompactor(10**9, 1, keep_last_tool_call_groups=0),
        replace(REMOVING, keeps_newest_step=False),
    ),
}

WITH_FOREIGN_STAGES = ("four stages, a foreign one among them", "a foreign stage first", "stages within a stage")

SUMMARIES = Facts(removes=True, notes=True, rewrites=frozenset())

COMPACTORS |= {
    "summaries": (lambda: SummarizationCompactor(FirstSentences(), max_attempts=1), SUMMARIES),
    "summaries in small calls": (
        lambda: SummarizationCompactor(
            FirstSentences(20), max_attempts=1, max_summary_input_tokens=600, evidence_tokens=0
        ),
        SUMMARIES,
    ),
    "summaries, no step kept": (
        lambda: SummarizationCompactor(
            FirstSentences(), max_attempts=1, min_keep_steps=0, approximate_summary_tokens=100
        ),
        replace(SUMMARIES, keeps_newest_step=False),
    ),
    "summaries, two steps kept": (
        lambda: SummarizationCompactor(
            FirstSentences(20), max_attempts=1, min_keep_steps=2, approximate_summary_tokens=50, evidence_tokens=0
        ),
        SUMMARIES,
    ),
    "summaries, some pinned": (
        lambda: SummarizationCompactor(
            FirstSentences(20),
            max_attempts=1,
            pin_meta_keys=("source",),
            pin_first_user_message=True,
            min_keep_groups=2,
        ),
        SUMMARIES,
    ),
    "summaries by count": (
        lambda: SummarizationCompactor(FirstSentences(20), max_attempts=1, keep_last_messages=3, evidence_tokens=0),
        replace(SUMMARIES, own_goal=True),
    ),
    "summaries with a goal of its own": (
        lambda: SummarizationCompactor(
            FirstSentences(), max_attempts=1, trigger=MessagesExceed(3), target=TokensBelow(300)
        ),
        replace(SUMMARIES, own_goal=True),
    ),
    "summaries that fail, with a window": (
        lambda: SummarizationCompactor(NoSummaries(), max_attempts=1, fallback=SlidingWindowCompactor()),
        WINDOW,
    ),
}

KEEPS_TWO_STEPS = {
    "media",
    "stages, some pinned",
    "pruning, two steps kept",
    "pruning, some pinned",
    "window, own note",
    "truncation with a note",
}
KEEPS_ONE_TURN = {"window, turns kept"}
TAKES_THE_NEWEST = {"window, no step kept", "truncation of all"}

# Shapes in which every result has its call and every call its results, but for a call that waits for them.
VALID_SHAPES = [
    name for name in SHAPES if name not in ("nothing at all", "dead calls", "orphans", "half of the calls pending (5)")
]

each_compactor = pytest.mark.parametrize("compactor", COMPACTORS)
each_shape = pytest.mark.parametrize("shape", SHAPES)
# One setting of each class, for what does not hang on settings.
each_class = pytest.mark.parametrize(
    "compactor", {type(make()): name for name, (make, _) in COMPACTORS.items()}.values()
)


def made(compactor: str) -> tuple[Any, Facts]:
    make, facts = COMPACTORS[compactor]
    return make(), facts


def targets(messages: Sequence[ChatMessage], counter: Any) -> list[int]:
    """Those that faults were reported with, and shares of the conversation's own size."""
    size = counter.count(list(messages))
    return sorted({0, 60, 200, 400, *(int(size * share) for share in (0.25, 0.5, 0.75, 0.95, 1))})


# --- Ways to the same result ------------------------------------------------------------------------------------------


async def directly(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    return compactor.compact(messages, target, counter)


async def by_keyword(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    return compactor.compact(messages=messages, target_tokens=target, token_counter=counter)


async def asynchronously(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    return await compactor.compact_async(messages, target, counter)


async def saved_and_loaded(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    loaded = type(compactor).from_dict(compactor.to_dict())
    assert loaded == compactor
    return loaded.compact(messages, target, counter)


async def without_an_agent(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    after = apply_compaction(messages, compactor, token_counter=counter, target_tokens=target)
    return None if _same_objects(after, messages) else after


async def without_an_agent_async(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    after = await apply_compaction_async(messages, compactor, token_counter=counter, target_tokens=target)
    return None if _same_objects(after, messages) else after


async def as_a_component(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    component = ChatMessageCompactor(compactor, target_tokens=target, token_counter=counter)
    after = component.run(messages=messages)["messages"]
    return None if _same_objects(after, messages) else after


def _same_objects(left: Sequence[ChatMessage], right: Sequence[ChatMessage]) -> bool:
    return [id(message) for message in left] == [id(message) for message in right]


WAYS: dict[str, Way] = {
    "directly": directly,
    "by keyword": by_keyword,
    "asynchronously": asynchronously,
    "saved and loaded": saved_and_loaded,
    "without an agent": without_an_agent,
    "without an agent, async": without_an_agent_async,
    "as a component": as_a_component,
}

COUNTERS: dict[str, Callable[[], Any]] = {
    "estimate": EstimatedTokenCounter,
    "haystack's": ApproximateTokenCounter,
    "haystack's, cached": lambda: CachedTokenCounter(ApproximateTokenCounter()),
    "estimate, cached": lambda: CachedTokenCounter(EstimatedTokenCounter()),
}


async def hold_to_the_contract(
    compactor: Any, facts: Facts, messages: list[ChatMessage], target: int, counter: Any, way: Way = directly
) -> list[ChatMessage] | None:
    """Compact, and hold input, result and a second pass against the contract."""
    before, objects = copy.deepcopy(messages), list(messages)
    after = await way(compactor, messages, target, counter)
    assert messages == before, "the input was changed"
    assert _same_objects(messages, objects), "the input list was changed"
    assert after is not messages
    assert broken_rules(messages, after, target, counter, facts=facts) == []
    if after is not None:
        assert await way(compactor, list(after), target, counter) is None, "a second pass found more to do"
    return after


class TestEveryShape:
    @each_compactor
    @each_shape
    async def test_the_contract_holds(self, compactor: str, shape: str) -> None:
        counter = EstimatedTokenCounter()
        for target in targets(SHAPES[shape](), counter):
            await hold_to_the_contract(*made(compactor), SHAPES[shape](), target, counter)

    @each_compactor
    @pytest.mark.parametrize("seed", range(12))
    async def test_the_contract_holds_for_random_conversations(self, compactor: str, seed: int) -> None:
        counter = EstimatedTokenCounter()
        for number in range(4):
            messages = random_conversation(random.Random(seed * 100 + number))
            for target in targets(messages, counter)[::2]:
                await hold_to_the_contract(*made(compactor), messages, target, counter)

    @each_compactor
    @pytest.mark.parametrize("way", WAYS)
    async def test_every_way_gives_the_same(self, compactor: str, way: str) -> None:
        counter = EstimatedTokenCounter()
        for shape in SHAPES.values():
            messages = shape()
            target = counter.count(messages) // 2
            after = await hold_to_the_contract(*made(compactor), messages, target, counter, WAYS[way])
            assert after == made(compactor)[0].compact(messages, target, counter)

    @each_compactor
    @pytest.mark.parametrize("counter", COUNTERS)
    async def test_the_contract_holds_with_every_counter(self, compactor: str, counter: str) -> None:
        for shape in SHAPES.values():
            counting = COUNTERS[counter]()
            messages = shape()
            for target in targets(messages, counting)[::3]:
                await hold_to_the_contract(*made(compactor), messages, target, counting)


class TestFaults:
    @each_compactor
    @pytest.mark.parametrize("target", [400, 200, 60])
    async def test_fault_1_a_call_and_its_result_share_their_fate(self, compactor: str, target: int) -> None:
        messages = SHAPES["non-adjacent results (1)"]()
        after = await hold_to_the_contract(*made(compactor), messages, target, EstimatedTokenCounter())
        there = messages if after is None else after
        calls = {call.id for message in there for call in message.tool_calls}
        results = {result.origin.id for message in there for result in message.tool_call_results}
        assert calls == results

    @each_compactor
    async def test_fault_2_what_is_kept_never_starts_with_a_result(self, compactor: str) -> None:
        messages = SHAPES["two turns (2)"]()
        counter = EstimatedTokenCounter()
        for target in range(0, counter.count(messages), 150):
            after = await hold_to_the_contract(*made(compactor), messages, target, counter)
            assert not (after or messages)[0].tool_call_results

    @each_compactor
    async def test_fault_3_a_target_between_two_parallel_results_is_all_or_nothing(self, compactor: str) -> None:
        messages = SHAPES["large and small parallel results (3)"]()
        counter = EstimatedTokenCounter()
        for target in range(0, counter.count(messages), 100):
            after = await hold_to_the_contract(*made(compactor), messages, target, counter)
            ids = {result.origin.id for message in after or messages for result in message.tool_call_results}
            assert ids >= {"a", "b"} or not ids & {"a", "b"}

    @each_compactor
    async def test_fault_5_a_pending_call_stays_whole(self, compactor: str) -> None:
        for shape in ("pending call (5)", "half of the calls pending (5)"):
            messages = SHAPES[shape]()
            after = await hold_to_the_contract(*made(compactor), messages, 0, EstimatedTokenCounter())
            pending = next(message for message in reversed(messages) if message.tool_calls)
            assert any(message is pending for message in after or messages)

    @each_compactor
    async def test_fault_6_kept_reasoning_is_unchanged(self, compactor: str) -> None:
        messages = SHAPES["reasoning (6)"]()
        thoughts = [reasoning.to_dict() for message in messages for reasoning in message.reasonings]
        after = await hold_to_the_contract(*made(compactor), messages, 0, EstimatedTokenCounter())
        kept = [reasoning.to_dict() for message in after or messages for reasoning in message.reasonings]
        assert all(thought in thoughts for thought in kept)
        if not made(compactor)[1].removes:
            assert kept == thoughts

    @each_compactor
    async def test_fault_8_a_policy_in_the_middle_survives_any_target(self, compactor: str) -> None:
        messages = SHAPES["policy in the middle (8)"]()
        if not made(compactor)[1].keeps_system:
            pytest.skip("it may remove instructions")
        for target in (0, 60, 400, 1500):
            after = await hold_to_the_contract(*made(compactor), messages, target, EstimatedTokenCounter())
            assert any(message is messages[4] for message in after or messages)

    @each_compactor
    @pytest.mark.parametrize("shape", ["user goes on (12)", "users in a row (12)"])
    async def test_fault_12_every_message_of_the_task_survives(self, compactor: str, shape: str) -> None:
        messages = SHAPES[shape]()
        after = await hold_to_the_contract(*made(compactor), messages, 0, EstimatedTokenCounter())
        wanted = {"continue"} if shape == "user goes on (12)" else {messages[1].text, "question"}
        assert wanted <= {message.text for message in after or messages}

    @each_compactor
    async def test_fault_20_special_tokens_are_plain_text(self, compactor: str) -> None:
        await hold_to_the_contract(*made(compactor), SHAPES["special tokens (20)"](), 0, EstimatedTokenCounter())

    @each_compactor
    async def test_fault_23_lone_surrogates_end_nothing(self, compactor: str) -> None:
        await hold_to_the_contract(*made(compactor), SHAPES["lone surrogates (23)"](), 0, EstimatedTokenCounter())


class TestCountersOfUnknownKind:
    """Those of a user's own: nothing is known of them but that a whole conversation, or a whole group, can be given."""

    @each_compactor
    @pytest.mark.parametrize("shape", [shape for shape in VALID_SHAPES if shape != "pending call (5)"])
    async def test_the_contract_holds(self, compactor: str, shape: str) -> None:
        for target in targets(SHAPES[shape](), RecordingCounter()):
            counter = RecordingCounter(additive=False)
            await hold_to_the_contract(*made(compactor), SHAPES[shape](), target, counter)

    @each_compactor
    async def test_a_second_pass_finds_nothing_where_their_proportions_are_not_those_of_the_estimate(
        self, compactor: str
    ) -> None:
        calls = A(calls=[("x", "write_file", {"content": "plain words " * 90}), ("y", "read_file")])
        results = [T("x", "会" * 1000, name="write_file"), T("y", "plain english words " * 50, name="read_file")]
        messages = [U("go"), calls, *results, *step("z")]
        await hold_to_the_contract(*made(compactor), messages, 0, RecordingCounter(additive=False))


class TestCountersThatFail:
    @each_class
    @pytest.mark.parametrize("shape", VALID_SHAPES)
    async def test_fault_25_no_counter_is_asked_for_a_fragment(self, compactor: str, shape: str) -> None:
        if compactor in WITH_FOREIGN_STAGES:
            pytest.skip("Haystack's own asks for fragments")
        messages = SHAPES[shape]()
        size = RecordingCounter().count(messages)
        for target in (0, 200, size // 2, int(size * 0.9)):
            counter = StrictCounter(messages, end_may_go=not made(compactor)[1].keeps_newest_step)
            after = await way_without_failure(made(compactor)[0], messages, target, counter)
            assert counter.refused == []
            assert broken_rules(messages, after, target, EstimatedTokenCounter(), facts=made(compactor)[1]) == []

    @each_compactor
    async def test_fault_25_a_strict_counter_does_not_prevent_compaction(self, compactor: str) -> None:
        if compactor in KEEPS_ONE_TURN:
            pytest.skip("it keeps a conversation of one turn as it is")
        messages = [S("rules"), *SHAPES["screenshots (37)"](), *steps("d", "e", chars=4000), A("done")]
        counter = StrictCounter(messages, end_may_go=not made(compactor)[1].keeps_newest_step)
        assert made(compactor)[0].compact(messages, 0, counter) is not None

    @each_class
    @each_shape
    async def test_fault_25_a_counter_that_raises_changes_nothing_and_ends_nothing(
        self, compactor: str, shape: str
    ) -> None:
        messages = SHAPES[shape]()
        before = copy.deepcopy(messages)
        for way in (directly, asynchronously, without_an_agent, as_a_component):
            assert await way(made(compactor)[0], messages, 0, RaisingCounter()) is None
        assert messages == before

    @each_class
    @pytest.mark.parametrize("answer", [None, -1, "x", float("nan"), 1e400, [], True, {}], ids=shown)
    async def test_what_is_no_count_changes_nothing_and_ends_nothing(self, compactor: str, answer: Any) -> None:
        for shape in ("plain steps", "reasoning (6)", "orphans", "large arguments (36)"):
            messages = SHAPES[shape]()
            before = copy.deepcopy(messages)
            for way in (directly, asynchronously, without_an_agent, as_a_component):
                assert await way(made(compactor)[0], messages, 0, GarbageCounter(answer)) is None
            assert messages == before

    @each_compactor
    async def test_a_counter_that_fails_half_way_changes_nothing_or_keeps_the_contract(self, compactor: str) -> None:
        messages = SHAPES["plain steps"]()
        for healthy in range(12):
            after = made(compactor)[0].compact(messages, 0, _BreaksDown(healthy))
            assert broken_rules(messages, after, 0, EstimatedTokenCounter(), facts=made(compactor)[1]) == []


async def way_without_failure(compactor: Any, messages: list[ChatMessage], target: int, counter: Any) -> Any:
    before = copy.deepcopy(messages)
    after = await directly(compactor, messages, target, counter)
    assert messages == before
    return after


class _BreaksDown:
    """Counts a few times, then raises for ever."""

    def __init__(self, healthy: int) -> None:
        self.healthy = healthy

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        if self.healthy == 0:
            msg = "the tokenizer broke down"
            raise RuntimeError(msg)
        self.healthy -= 1
        return EstimatedTokenCounter().count(messages, tools)


class TestInsideOurHook:
    """What one request could not free, a later one may: the window is kept in every one of them."""

    @each_compactor
    def test_a_pass_that_freed_nothing_is_tried_again_when_a_new_step_puts_an_old_one_within_reach(
        self, compactor: str
    ) -> None:
        if "two " in compactor or compactor in KEEPS_TWO_STEPS | KEEPS_ONE_TURN or compactor.endswith("some pinned"):
            pytest.skip("it keeps both steps of this conversation, or both files")
        if compactor in TAKES_THE_NEWEST or not made(compactor)[1].keeps_newest_step:
            pytest.skip("it does not wait for a new step")
        counter = EstimatedTokenCounter()
        hook = CompactionHook(made(compactor)[0], context_window=2000, token_counter=counter)
        state = agent_state([U("task"), A(calls=["a"]), T("a", [file(), file()])])
        hook.run(state)
        assert counter.count(state.data["messages"]) > 2000
        state.data["messages"] = [*state.data["messages"], *step("b", 800)]
        hook.run(state)
        assert counter.count(state.data["messages"]) <= 2000


class TestInsideHaystacksHook:
    """Any compactor of ours works in the hook that Haystack ships."""

    @each_class
    @each_shape
    @pytest.mark.parametrize("run", ["run", "run_async"])
    async def test_the_contract_holds(self, compactor: str, shape: str, run: str) -> None:
        counter = ApproximateTokenCounter()
        instance, facts = made(compactor)
        for share in (1.3, 0.8, 0.3):
            messages = SHAPES[shape]()
            before = copy.deepcopy(messages)
            window = max(1, int(counter.count(messages) * share))
            state = agent_state(messages)
            hook = HaystackHook(instance, context_window=window, compact_at=0.7, compact_to=0.4, token_counter=counter)
            outcome = getattr(hook, run)(state)
            if run == "run_async":
                await outcome
            after = state.data["messages"]
            assert messages == before
            changed = None if _same_objects(after, messages) else after
            assert broken_rules(messages, changed, int(window * 0.4), counter, facts=facts) == []

    @each_compactor
    def test_it_brings_the_conversation_down(self, compactor: str) -> None:
        if compactor in KEEPS_ONE_TURN:
            pytest.skip("it keeps a conversation of one turn as it is")
        messages = SHAPES["screenshots (37)"]()
        state = agent_state(messages)
        HaystackHook(made(compactor)[0], context_window=800, token_counter=ApproximateTokenCounter()).run(state)
        assert not _same_objects(state.data["messages"], messages)


class TestBadInput:
    @each_class
    @pytest.mark.parametrize("way", [directly, asynchronously], ids=lambda way: way.__name__)
    @pytest.mark.parametrize("messages", [None, "text", 7, [None], [U("go"), "text"], [{"role": "user"}]], ids=shown)
    async def test_anything_but_messages_is_refused_by_name(self, compactor: str, way: Way, messages: Any) -> None:
        with pytest.raises(TypeError, match="`messages`"):
            await way(made(compactor)[0], messages, 100, EstimatedTokenCounter())

    @each_class
    @pytest.mark.parametrize("way", [directly, asynchronously], ids=lambda way: way.__name__)
    @pytest.mark.parametrize(
        ("target", "kind"), [("100", TypeError), (1.5, TypeError), (True, TypeError), (-1, ValueError)]
    )
    async def test_a_target_that_is_no_count_is_refused_by_name(
        self, compactor: str, way: Way, target: Any, kind: type[Exception]
    ) -> None:
        with pytest.raises(kind, match="`target_tokens`"):
            await way(made(compactor)[0], [U("go"), *step("a")], target, EstimatedTokenCounter())

    @each_class
    @pytest.mark.parametrize("way", [directly, asynchronously], ids=lambda way: way.__name__)
    @pytest.mark.parametrize("counter", ["o200k_base", 4, object(), EstimatedTokenCounter], ids=shown)
    async def test_a_counter_that_cannot_count_is_refused_by_name(self, compactor: str, way: Way, counter: Any) -> None:
        with pytest.raises(TypeError, match="`token_counter`"):
            await way(made(compactor)[0], [U("go"), *step("a")], 10, counter)


class TestSettings:
    @each_compactor
    def test_a_compactor_equals_another_with_its_settings(self, compactor: str) -> None:
        assert made(compactor)[0] == made(compactor)[0]

    @each_compactor
    def test_a_compactor_can_be_copied(self, compactor: str) -> None:
        instance = made(compactor)[0]
        assert copy.deepcopy(instance) == instance

    @each_compactor
    def test_its_repr_shows_its_class(self, compactor: str) -> None:
        instance = made(compactor)[0]
        assert type(instance).__name__ in repr(instance)

    @each_compactor
    def test_one_object_serves_two_conversations_in_turn(self, compactor: str) -> None:
        counter = EstimatedTokenCounter()
        instance = made(compactor)[0]
        shapes = [shape() for shape in SHAPES.values()]
        fresh = [made(compactor)[0].compact(messages, 100, counter) for messages in shapes]
        assert [instance.compact(messages, 100, counter) for messages in shapes] == fresh

    def test_a_plain_trigger_that_always_fires_changes_nothing_about_the_result(self) -> None:
        counter = EstimatedTokenCounter()
        for shape in SHAPES.values():
            messages = shape()
            plain = ToolResultPruningCompactor().compact(messages, 300, counter)
            assert ToolResultPruningCompactor(trigger=Always()).compact(messages, 300, counter) == plain


class TestTheOracleItself:
    """A judge that never objects is worth nothing: here is one breach of each rule."""

    counter = EstimatedTokenCounter()
    free = Facts(removes=True, notes=True, rewrites=frozenset({"tool", "assistant"}), cuts_inputs=True)

    def sentences(self, before: list[ChatMessage], after: list[ChatMessage], facts: Facts | None = None) -> str:
        return " / ".join(broken_rules(before, after, 0, self.counter, facts=facts or self.free))

    def test_it_accepts_what_is_right(self) -> None:
        before = [S("rules"), U("old"), *steps("a", "b"), U("task"), *step("c")]
        after = [before[0], note("what was"), *before[6:]]
        assert self.sentences(before, after) == ""

    def test_it_sees_a_result_that_is_not_smaller(self) -> None:
        before = [U("go"), *steps("a", "b")]
        assert "not strictly smaller" in self.sentences(before, list(before))

    def test_it_sees_a_change_that_was_not_asked_for(self) -> None:
        before = [U("go"), *steps("a", "b")]
        broken = broken_rules(before, [before[0], *before[3:]], 100_000, self.counter, facts=self.free)
        assert any("was changed" in sentence for sentence in broken)

    @pytest.mark.parametrize(
        ("keep", "complaint"),
        [
            ([0, 1, 3, 4, 5, 6], "the call that belongs to it is gone"),
            ([0, 1, 2, 4, 5, 6], "the result that belongs to it is gone"),
            ([1, 4, 5, 6], "system message 0"),
            ([0, 1, 2, 3, 5, 6], "of the task"),
            ([0, 1, 2, 3, 4], "of the newest step"),
            ([0, 4, 2, 3, 5, 6], "out of its order"),
        ],
    )
    def test_it_sees_what_is_missing(self, keep: list[int], complaint: str) -> None:
        before = [S("rules"), U("old"), *step("a"), U("task"), *step("b")]
        assert complaint in self.sentences(before, [before[n] for n in keep])

    def test_it_sees_a_removal_by_one_that_may_not_remove(self) -> None:
        before = [U("go"), *steps("a", "b")]
        assert "removes none" in self.sentences(before, [before[0], *before[3:]], Facts())

    def test_it_sees_a_message_from_nowhere(self) -> None:
        before = [U("go"), *steps("a", "b")]
        assert "comes from nowhere" in self.sentences(before, [S("hello"), *before[3:]])

    def test_it_sees_a_text_under_another_call(self) -> None:
        before = [U("go"), *[m for n in range(3) for m in (A(calls=["c"]), T("c", prose(900, n)))]]
        assert "now answers" in self.sentences(before, [before[n] for n in (0, 1, 4, 5, 6)])

    @pytest.mark.parametrize(
        ("copied", "complaint"),
        [
            (T("a", "short", meta={"k": 1}), "does not say which strategy"),
            (T("a", "short", meta={"context_compaction": {"strategy": "x"}}), "other metadata changed"),
            (T("a", "short", error=True, meta={"k": 1, "context_compaction": {"strategy": "x"}}), "comes from nowhere"),
            (T("z", "short", meta={"k": 1, "context_compaction": {"strategy": "x"}}), "comes from nowhere"),
        ],
    )
    def test_it_sees_what_a_copy_lost(self, copied: ChatMessage, complaint: str) -> None:
        before = [U("go"), *step("a", meta={"k": 1}), *step("b")]
        assert complaint in self.sentences(before, [*before[:2], copied, *before[3:]])

    def test_it_sees_lost_arguments(self) -> None:
        before = [U("go"), A(calls=[("a", "t", {"x": prose(3000), "y": 1})]), T("a", "ok", name="t"), *step("b")]
        cut = A(calls=[("a", "t", {"x": "-"})], meta={"context_compaction": {"strategy": "x"}})
        assert "lost or gained names" in self.sentences(before, [before[0], cut, *before[2:]])

    def test_it_sees_users_who_became_neighbours(self) -> None:
        before = [U("one"), A(prose(900)), U("two"), *step("a")]
        assert "became neighbours" in self.sentences(before, [before[0], *before[2:]])

"""Recorded runs of real agents: each through component and hook at three budgets, each result against the contract."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agents import FirstSentences
from conversations import agent_state
from haystack.components.agents.state import State
from haystack.dataclasses import ChatMessage
from oracle import Facts, answers, broken_rules

from haystack_compaction import (
    ChatMessageCompactor,
    CompactionHook,
    EstimatedTokenCounter,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    apply_compaction,
)
from haystack_compaction.transcripts import read_conversations

FOLDER = Path(__file__).parents[2] / "shared" / "transcripts"
FILES = {"tau-bench.jsonl": (50, 1306), "swe-agent.jsonl": (2, 40), "openhands.jsonl": (1, 47)}

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"the recorded runs are not part of the project; they are looked for in {FOLDER}"
)

COUNTER = EstimatedTokenCounter()
PRUNING = Facts()
IN_THE_HOOK = Facts(cuts_newest=True)
SUMMARIES = Facts(removes=True, notes=True, rewrites=frozenset())
CLEARING = Facts(rewrites=frozenset({"tool", "assistant"}), cuts_inputs=True)

_loaded: dict[str, list[Any]] = {}


def recorded(file: str) -> list[Any]:
    """The runs of a file, read once; the tests never change them, and hold that."""
    if file not in _loaded:
        _loaded[file] = list(read_conversations(FOLDER / file))
    return _loaded[file]


each_file = pytest.mark.parametrize("file", FILES)
each_run = pytest.mark.parametrize(
    ("file", "number"), [(file, number) for file, (runs, _) in FILES.items() for number in range(runs)]
)


def same_objects(left: Sequence[ChatMessage], right: Sequence[ChatMessage]) -> bool:
    return [id(message) for message in left] == [id(message) for message in right]


class TestReading:
    @each_file
    def test_every_run_and_message_is_read(self, file: str) -> None:
        runs = recorded(file)
        assert (len(runs), sum(len(run.messages) for run in runs)) == FILES[file]

    @each_file
    def test_results_have_the_names_of_the_tools_that_gave_them(self, file: str) -> None:
        for run in recorded(file):
            for (result, number), (call, call_number) in answers(run.messages).items():
                origin = run.messages[result].tool_call_results[number].origin
                assert origin.tool_name == run.messages[call].tool_calls[call_number].tool_name

    @each_file
    def test_what_is_read_is_unchanged_by_all_the_other_tests(self, file: str) -> None:
        fresh = list(read_conversations(FOLDER / file))
        assert [run.messages for run in fresh] == [run.messages for run in recorded(file)]


class TestThroughTheComponent:
    @each_run
    @pytest.mark.parametrize("share", [0.75, 0.4, 0.1])
    def test_the_contract_holds(self, file: str, number: int, share: float) -> None:
        messages = recorded(file)[number].messages
        before = copy.deepcopy(messages)
        target = int(COUNTER.count(messages) * share)
        component = ChatMessageCompactor(
            ToolResultPruningCompactor(min_tokens=50), target_tokens=target, token_counter=COUNTER
        )
        after = component.run(messages=messages)["messages"]
        assert messages == before
        changed = None if same_objects(after, messages) else after
        assert broken_rules(messages, changed, target, COUNTER, facts=PRUNING) == []

    @each_run
    def test_the_contract_holds_with_a_window(self, file: str, number: int) -> None:
        messages = recorded(file)[number].messages
        window = COUNTER.count(messages)
        component = ChatMessageCompactor(ToolResultPruningCompactor(), context_window=window, token_counter=COUNTER)
        after = component.run(messages=messages)["messages"]
        changed = None if same_objects(after, messages) else after
        assert broken_rules(messages, changed, int(window * 0.4), COUNTER, facts=IN_THE_HOOK) == []

    @each_run
    def test_no_placeholder_lacks_the_name_of_its_tool(self, file: str, number: int) -> None:
        messages = recorded(file)[number].messages
        after = apply_compaction(messages, ToolResultPruningCompactor(min_tokens=30))
        assert not any("``" in str(r.result) for m in after if m not in messages for r in m.tool_call_results)

    @each_run
    def test_old_arguments_can_be_cut_too(self, file: str, number: int) -> None:
        messages = recorded(file)[number].messages
        compactor = ToolResultPruningCompactor(min_tokens=0, clear_tool_inputs=True)
        after = compactor.compact(messages, 0, COUNTER)
        assert broken_rules(messages, after, 0, COUNTER, facts=CLEARING) == []
        if after is not None:
            assert compactor.compact(after, 0, COUNTER) is None


class TestThroughTheHook:
    @each_run
    @pytest.mark.parametrize("share", [1.3, 0.9, 0.5])
    def test_the_contract_holds(self, file: str, number: int, share: float) -> None:
        messages = recorded(file)[number].messages
        before = copy.deepcopy(messages)
        window = int(COUNTER.count(messages) * share)
        state = agent_state(messages)
        CompactionHook(ToolResultPruningCompactor(), context_window=window, token_counter=COUNTER).run(state)
        after = state.data["messages"]
        assert messages == before
        changed = None if same_objects(after, messages) else after
        assert broken_rules(messages, changed, int(window * 0.4), COUNTER, facts=IN_THE_HOOK) == []

    @each_run
    async def test_the_asynchronous_way_gives_the_same(self, file: str, number: int) -> None:
        messages = recorded(file)[number].messages
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=COUNTER.count(messages))
        one, other = agent_state(messages), agent_state(messages)
        hook.run(one)
        await hook.run_async(other)
        assert one.data["messages"] == other.data["messages"]

    @each_run
    def test_a_run_grown_step_by_step_keeps_the_contract_at_every_step(self, file: str, number: int) -> None:
        recording = recorded(file)[number].messages
        window = int(COUNTER.count(recording) * 0.8)
        hook = CompactionHook(ToolResultPruningCompactor(), context_window=window, token_counter=COUNTER)
        state = agent_state([])
        for position, message in enumerate(recording):
            state.data["messages"] = [*state.data["messages"], message]
            if message.tool_call_results or message.is_from("user"):
                self.hold_one_step(hook, state, f"{file} {number} at message {position}")

    def hold_one_step(self, hook: CompactionHook, state: State, where: str) -> None:
        given = list(state.data["messages"])
        hook.run(state)
        after = state.data["messages"]
        if not same_objects(after, given):
            assert broken_rules(given, after, None, COUNTER, facts=IN_THE_HOOK) == [], where


class TestSummaries:
    """With a summariser that answers with the first sentence of each message it is shown."""

    @each_run
    @pytest.mark.parametrize("share", [0.75, 0.4, 0.1])
    def test_the_result_is_smaller_or_the_same_and_no_call_too_large(
        self, file: str, number: int, share: float
    ) -> None:
        messages = recorded(file)[number].messages
        before = copy.deepcopy(messages)
        target = int(COUNTER.count(messages) * share)
        summariser = FirstSentences()
        compactor = SummarizationCompactor(summariser, max_attempts=1)
        after = compactor.compact(messages, target, COUNTER)
        assert messages == before
        assert broken_rules(messages, after, target, COUNTER, facts=SUMMARIES) == []
        assert all(COUNTER.count(request) <= 8000 for request in summariser.requests)
        if after is not None:
            assert compactor.compact(after, target, COUNTER) is None

    @each_run
    def test_ten_passes_over_a_growing_conversation_keep_the_summary_bounded(self, file: str, number: int) -> None:
        recording = recorded(file)[number].messages
        target = int(COUNTER.count(recording) * 0.4)
        summariser = FirstSentences()
        compactor = SummarizationCompactor(summariser, max_attempts=1, approximate_summary_tokens=200)
        messages: list[ChatMessage] = []
        for start in range(10):
            messages = [*messages, *recording[start * len(recording) // 10 : (start + 1) * len(recording) // 10]]
            after = compactor.compact(messages, target, COUNTER)
            assert broken_rules(messages, after, target, COUNTER, facts=SUMMARIES) == []
            messages = messages if after is None else after
            for message in messages:
                if (message.meta.get("context_compaction") or {}).get("strategy") == "summarization":
                    # Half as long again as expected, the marks, and evidence of at most a fifth of the target.
                    assert COUNTER.count([message]) <= 300 + 80 + max(target // 5, 100)
        assert all(COUNTER.count(request) <= 8000 for request in summariser.requests)

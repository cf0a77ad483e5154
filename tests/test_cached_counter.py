"""A counter that remembers: each message asked for once, nothing kept alive, nothing mistaken for another."""

import copy
import gc
import pickle
import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import pytest
from conversations import SHAPES, A, S, T, U, conversations, prose, random_conversation, steps
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from haystack.tools import Tool, Toolset
from hypothesis import given, settings
from naming import shown
from oracle import RecordingCounter

from haystack_compaction import CachedTokenCounter, EstimatedTokenCounter, TiktokenCounter

ESTIMATE = EstimatedTokenCounter()


class Recorder(RecordingCounter):
    """Records tools and the life of the counter as well."""

    def __init__(self, *, additive: bool = True) -> None:
        super().__init__(additive=additive)
        self.tools: list[list[str]] = []
        self.events: list[str] = []

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        if tools:
            self.tools.append([tool.name for tool in tools])
        return super().count(messages, tools) + 100 * len(tools or ())

    def warm_up(self) -> None:
        self.events.append("warm_up")

    def close(self) -> None:
        self.events.append("close")


class AsyncRecorder(Recorder):
    async def warm_up_async(self) -> None:
        self.events.append("warm_up_async")

    async def close_async(self) -> None:
        self.events.append("close_async")


class FailsOnce(RecordingCounter):
    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        tokens = super().count(messages, tools)
        if len(self.requests) == 1:
            raise OSError("the service is away")
        return tokens


def tool(name: str = "search") -> Tool:
    return Tool(name=name, description="Find something.", parameters={"type": "object"}, function=print)


def conversation() -> list[ChatMessage]:
    return [S("rules"), U("task"), *steps("a", "b", "c"), A("done")]


class TestSingleMessages:
    def test_each_message_is_asked_for_once_in_its_life(self) -> None:
        inner = RecordingCounter()
        counter = CachedTokenCounter(inner)
        messages = conversation()
        for _ in range(3):
            counter.count(messages)
            counter.count(list(reversed(messages)))
            for message in messages:
                counter.count([message])
        assert [inner.times(message) for message in messages] == [1] * len(messages)
        assert inner.measured == len(messages)

    def test_a_longer_conversation_costs_a_count_of_what_is_new(self) -> None:
        inner = RecordingCounter()
        counter = CachedTokenCounter(inner)
        messages: list[ChatMessage] = []
        for message in conversation():
            messages.append(message)
            assert counter.count(messages) == RecordingCounter().count(messages)
            assert inner.requests[-1] == [message]
        assert inner.measured == len(messages)

    @settings(deadline=None)
    @given(conversations(), conversations())
    def test_it_says_what_the_counter_says(self, first: list[ChatMessage], second: list[ChatMessage]) -> None:
        counter = CachedTokenCounter(ESTIMATE)
        for messages in (first, second, first + second, second + first, first, [*first, *first]):
            assert counter.count(messages) == ESTIMATE.count(messages)

    @pytest.mark.parametrize("name", SHAPES)
    def test_the_sums_are_exact_for_every_shape(self, name: str) -> None:
        messages = SHAPES[name]()
        counter = CachedTokenCounter(ESTIMATE)
        assert counter.count(messages) == sum(counter.count([message]) for message in messages)

    def test_nothing_costs_nothing_and_asks_nothing(self) -> None:
        inner = RecordingCounter()
        assert CachedTokenCounter(inner).count([]) == 0
        assert CachedTokenCounter(inner).count([], []) == 0
        assert inner.requests == []

    def test_a_message_that_occurs_twice_counts_twice(self) -> None:
        inner = RecordingCounter()
        counter = CachedTokenCounter(inner)
        message = U("again")
        assert counter.count([message, message]) == 2 * counter.count([message])
        assert inner.times(message) == 1

    def test_equal_messages_are_different_messages(self) -> None:
        inner = RecordingCounter()
        counter = CachedTokenCounter(inner)
        messages = conversation()
        copies = copy.deepcopy(messages)
        assert counter.count(messages) == counter.count(copies)
        assert inner.measured == 2 * len(messages)

    def test_a_count_of_zero_is_remembered_too(self) -> None:
        inner = RecordingCounter()
        inner.count = lambda messages, tools=None: inner.requests.append(messages) or 0  # type: ignore[method-assign]
        counter = CachedTokenCounter(inner)
        message = U("free")
        assert counter.count([message]) == counter.count([message]) == 0
        assert len(inner.requests) == 1

    @pytest.mark.parametrize("additive", [True, False])
    def test_a_count_that_failed_is_asked_for_again(self, additive: bool) -> None:
        counter = CachedTokenCounter(FailsOnce(additive=additive))
        messages = [U("hi")]
        with pytest.raises(OSError, match="away"):
            counter.count(messages)
        assert counter.count(messages) == RecordingCounter().count(messages)


@pytest.fixture(params=[True, False], ids=["by message", "by list"])
def additive(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class TestForgetting:
    def test_no_message_is_kept_alive(self, additive: bool) -> None:
        inner = EstimatedTokenCounter() if additive else ApproximateTokenCounter()
        counter = CachedTokenCounter(inner)
        messages = conversation()
        counter.count(messages)
        dying = [ref(message) for message in messages]
        del messages
        gc.collect()
        assert [message() for message in dying] == [None] * len(dying)

    def test_one_that_dies_is_forgotten_and_the_others_are_not(self) -> None:
        inner = RecordingCounter()
        counter = CachedTokenCounter(inner)
        messages = conversation()
        counter.count(messages)
        inner.requests.clear()
        del messages[2:5]
        gc.collect()
        counter.count(messages)
        assert inner.requests == []

    def test_what_takes_the_identity_of_a_dead_message_is_counted_for_itself(self, additive: bool) -> None:
        counter = CachedTokenCounter(EstimatedTokenCounter() if additive else ApproximateTokenCounter())
        exact = EstimatedTokenCounter() if additive else ApproximateTokenCounter()
        seen: set[int] = set()
        reused = 0
        for number in range(2000):
            message = U("word " * (number % 50))
            reused += id(message) in seen
            seen.add(id(message))
            assert counter.count([message]) == exact.count([message])
        assert reused > 100

    def test_lists_of_which_a_message_dies_are_counted_anew(self) -> None:
        inner = RecordingCounter(additive=False)
        counter = CachedTokenCounter(inner)
        first = U("stays")
        for number in range(200):
            # The second takes the identity of the one that has just died, so the key is the same each time.
            messages = [first, U("word " * number)]
            inner.requests.clear()
            assert counter.count(messages) == RecordingCounter().count(messages)
            assert len(inner.requests) == 1
            del messages

    def test_lists_are_forgotten_with_any_message_of_theirs(self) -> None:
        inner = RecordingCounter(additive=False)
        inner.count = _length  # type: ignore[method-assign]
        counter = CachedTokenCounter(inner)
        first, others = U("stays"), [U(f"word {number}") for number in range(2000)]
        gc.collect()
        tracemalloc.start()
        try:
            for other in others:
                counter.count([first, other])
            full = tracemalloc.get_traced_memory()[0]
            del other
            others.clear()
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert kept < full / 4

    def test_a_message_that_dies_while_others_are_counted_harms_nothing(self) -> None:
        counter = CachedTokenCounter(ESTIMATE)
        cycle: list[Any] = []
        for number in range(300):
            message = U(f"word {number}")
            counter.count([message])
            # Only the garbage collector frees it, at a time of its own.
            cycle = [message, cycle]
            cycle.append(cycle)
            if number % 10 == 0:
                cycle = []
        gc.collect()
        assert counter.count([U("word")]) == ESTIMATE.count([U("word")])

    def test_a_counter_that_dies_before_its_messages_harms_nothing(self, additive: bool) -> None:
        messages = conversation()
        counter = CachedTokenCounter(RecordingCounter(additive=additive))
        counter.count(messages)
        del counter
        gc.collect()
        del messages
        gc.collect()

    @pytest.mark.parametrize("alive", [False, True], ids=["that died", "that live"])
    def test_it_keeps_little_for_messages(self, alive: bool) -> None:
        counter = CachedTokenCounter(ESTIMATE)
        counter.count([U("warm")])
        messages = [U(prose(20, number)) for number in range(4000)]
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            counter.count(messages)
            if not alive:
                messages.clear()
            gc.collect()
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert kept / 4000 <= (300 if alive else 100)


class TestLists:
    """Of a counter that does not say that single messages may be given."""

    def test_a_list_is_asked_for_once_and_whole(self) -> None:
        inner = RecordingCounter(additive=False)
        counter = CachedTokenCounter(inner)
        messages = conversation()
        assert counter.additive is False
        for _ in range(3):
            assert counter.count(messages) == RecordingCounter().count(messages)
            counter.count(messages[2:4])
        assert inner.requests == [messages, messages[2:4]]

    def test_a_new_list_of_the_same_messages_is_the_same(self) -> None:
        inner = RecordingCounter(additive=False)
        counter = CachedTokenCounter(inner)
        messages = conversation()
        counter.count(messages)
        counter.count(list(messages))
        assert len(inner.requests) == 1

    def test_order_and_length_make_another_list(self) -> None:
        inner = RecordingCounter(additive=False)
        counter = CachedTokenCounter(inner)
        first, second = U("one"), U("two and more")
        for messages in ([first, second], [second, first], [first], [second], [first, first], [first, second, first]):
            assert counter.count(messages) == RecordingCounter().count(messages)
        assert len(inner.requests) == 6

    def test_nothing_is_asked_as_it_is(self) -> None:
        inner = RecordingCounter(additive=False)
        inner.count = lambda messages, tools=None: 3  # type: ignore[method-assign]
        assert CachedTokenCounter(inner).count([]) == 3

    def test_a_list_with_tools_is_asked_for_with_them(self) -> None:
        inner = Recorder(additive=False)
        counter = CachedTokenCounter(inner)
        messages = conversation()
        assert counter.count(messages, [tool()]) == RecordingCounter().count(messages) + 100
        assert counter.count(messages) == RecordingCounter().count(messages)

    def test_an_attribute_that_is_only_true_enough_is_not_believed(self) -> None:
        inner = RecordingCounter()
        inner.additive = 1  # type: ignore[assignment]
        assert CachedTokenCounter(inner).additive is False

    def test_the_lists_of_a_growing_conversation_do_not_fill_the_memory(self) -> None:
        inner = RecordingCounter(additive=False)
        inner.count = _length  # type: ignore[method-assign]
        counter = CachedTokenCounter(inner)
        messages = [U(f"word {number}") for number in range(400)]
        gc.collect()
        tracemalloc.start()
        try:
            for end in range(1, len(messages) + 1):
                counter.count(messages[:end])
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        # All of these lists together have 80,000 places, at more than 100 bytes each.
        assert kept < 3 * 2**20

    def test_no_messages_with_tools_are_the_tools(self) -> None:
        assert CachedTokenCounter(Recorder(additive=False)).count([], [tool()]) == 100


class TestTools:
    @pytest.mark.parametrize("messages", [[], [U("hi")]], ids=["no messages", "a message"])
    def test_tools_are_asked_for_once(self, messages: list[ChatMessage]) -> None:
        inner = Recorder()
        counter = CachedTokenCounter(inner)
        tools = [tool("search"), tool("stop")]
        for _ in range(3):
            assert counter.count(messages, tools) == RecordingCounter().count(messages) + 200
            assert counter.count(messages) == RecordingCounter().count(messages)
        assert inner.tools == [["search", "stop"]]

    def test_a_new_list_or_toolset_of_the_same_tools_is_the_same(self) -> None:
        inner = Recorder()
        counter = CachedTokenCounter(inner)
        tools = [tool("search"), tool("stop")]
        assert counter.count([], tools) == counter.count([], list(tools)) == counter.count([], Toolset(tools)) == 200
        assert inner.tools == [["search", "stop"]]

    def test_other_tools_are_asked_for_themselves(self) -> None:
        counter = CachedTokenCounter(Recorder())
        tools = [tool(f"tool_{number}") for number in range(100)]
        for number in (*range(1, 100), *range(1, 100)):
            assert counter.count([], tools[:number]) == 100 * number

    def test_tools_that_die_are_not_taken_for_others(self) -> None:
        counter = CachedTokenCounter(ESTIMATE)
        for number in range(300):
            tools = [tool("search" * (number % 40 + 1))]
            assert counter.count([], tools) == ESTIMATE.count([], tools)
            del tools

    def test_of_many_sets_of_tools_few_are_kept_alive(self) -> None:
        counter = CachedTokenCounter(ESTIMATE)
        dying = []
        for number in range(200):
            tools = [tool(f"tool_{number}")]
            counter.count([], tools)
            dying.append(ref(tools[0]))
        del tools
        gc.collect()
        assert sum(entry() is not None for entry in dying) < 50


class TestThreads:
    def test_eight_threads_get_the_same_numbers(self, additive: bool) -> None:
        inner = RecordingCounter(additive=additive)
        counter = CachedTokenCounter(inner)
        messages = random_conversation(random.Random(1), blocks=60)
        expected = [RecordingCounter().count(messages[:end]) for end in range(1, len(messages) + 1)]

        def count_all(_: int) -> list[int]:
            return [counter.count(messages[:end]) for end in range(1, len(messages) + 1)]

        with ThreadPoolExecutor(8) as threads:
            assert all(numbers == expected for numbers in threads.map(count_all, range(16)))

    def test_messages_that_die_in_eight_threads_are_forgotten_in_all(self, additive: bool) -> None:
        counter = CachedTokenCounter(RecordingCounter(additive=additive))
        counter.token_counter.count = _length  # type: ignore[method-assign]
        shared = [U("shared")]
        wrong: list[int] = []
        start = threading.Barrier(8)

        def work(seed: int) -> None:
            rng = random.Random(seed)
            start.wait()
            for _ in range(400):
                messages = [U("w" * rng.randrange(50)), *shared, U("w" * rng.randrange(50))]
                if counter.count(messages) != _length(messages):
                    wrong.append(seed)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []

    def test_tools_from_eight_threads_are_all_right(self) -> None:
        counter = CachedTokenCounter(Recorder())
        tools = [tool(f"tool_{number}") for number in range(80)]
        with ThreadPoolExecutor(8) as threads:
            numbers = list(threads.map(lambda n: counter.count([], tools[: n % 80 + 1]), range(800)))
        assert numbers == [100 * (n % 80 + 1) for n in range(800)]


def _length(messages: list[ChatMessage], tools: Any = None) -> int:
    return sum(len(message.text or "") for message in messages)


class TestLifecycle:
    def test_warm_up_and_close_reach_the_counter(self) -> None:
        inner = Recorder()
        counter = CachedTokenCounter(CachedTokenCounter(inner))
        counter.warm_up()
        counter.close()
        assert inner.events == ["warm_up", "close"]

    @pytest.mark.parametrize(
        ("kind", "events"),
        [(Recorder, ["warm_up", "close"]), (AsyncRecorder, ["warm_up_async", "close_async"])],
        ids=["sync methods only", "async twins"],
    )
    async def test_they_do_so_on_an_event_loop(self, kind: type[Recorder], events: list[str]) -> None:
        inner = kind()
        counter = CachedTokenCounter(CachedTokenCounter(inner))
        await counter.warm_up_async()
        await counter.close_async()
        assert inner.events == events

    async def test_a_counter_without_them_is_left_alone(self) -> None:
        counter = CachedTokenCounter(RecordingCounter())
        counter.warm_up()
        counter.close()
        await counter.warm_up_async()
        await counter.close_async()


class TestNested:
    @pytest.mark.parametrize("additive", [True, False])
    def test_a_cache_of_a_cache_is_a_cache(self, additive: bool) -> None:
        inner = RecordingCounter(additive=additive)
        counter = CachedTokenCounter(CachedTokenCounter(inner))
        messages = conversation()
        assert counter.additive is additive
        assert counter.count(messages) == counter.count(messages) == RecordingCounter().count(messages)
        assert inner.measured == len(messages)


class TestSettings:
    def test_to_dict_is_the_whole_counter(self) -> None:
        assert CachedTokenCounter(EstimatedTokenCounter(tokens_per_image=7)).to_dict() == {
            "type": "haystack_compaction.token_counters.cached_counter.CachedTokenCounter",
            "init_parameters": {
                "token_counter": {
                    "type": "haystack_compaction.token_counters.estimated_counter.EstimatedTokenCounter",
                    "init_parameters": {"tokens_per_image": 7, "tokens_per_file": 1000},
                }
            },
        }

    @pytest.mark.parametrize(
        "inner",
        [EstimatedTokenCounter(tokens_per_file=3), TiktokenCounter("cl100k_base"), CachedTokenCounter(ESTIMATE)],
        ids=["estimate", "tiktoken", "cached"],
    )
    def test_it_comes_back_equal(self, inner: Any) -> None:
        counter = CachedTokenCounter(inner)
        again = CachedTokenCounter.from_dict(counter.to_dict())
        assert again == counter
        assert hash(again) == hash(counter)
        assert again.additive == counter.additive

    def test_haystacks_counters_come_back_too(self) -> None:
        counter = CachedTokenCounter(ApproximateTokenCounter(chars_per_token=3.5))
        again = CachedTokenCounter.from_dict(counter.to_dict())
        assert again.to_dict() == counter.to_dict()
        assert again.count(conversation()) == counter.count(conversation())

    def test_a_copy_remembers_nothing_and_works(self) -> None:
        counter = CachedTokenCounter(ESTIMATE)
        messages = conversation()
        counter.count(messages)
        for again in (copy.copy(counter), copy.deepcopy(counter), pickle.loads(pickle.dumps(counter))):  # noqa: S301
            assert again == counter
            assert again.count(messages) == counter.count(messages)

    def test_it_is_equal_to_one_that_asks_an_equal_counter_only(self) -> None:
        counter = CachedTokenCounter(EstimatedTokenCounter())
        counter.count(conversation())
        assert counter == CachedTokenCounter(EstimatedTokenCounter())
        assert counter != CachedTokenCounter(EstimatedTokenCounter(tokens_per_file=1))
        assert counter != EstimatedTokenCounter()
        assert counter != CachedTokenCounter(counter)
        assert len({counter, CachedTokenCounter(EstimatedTokenCounter())}) == 1

    def test_its_repr_is_how_it_was_made(self) -> None:
        assert repr(CachedTokenCounter(EstimatedTokenCounter())) == f"CachedTokenCounter({ESTIMATE!r})"

    @pytest.mark.parametrize("wrong", [None, 5, "text", ["list"], EstimatedTokenCounter, object()], ids=shown)
    def test_what_is_no_counter_is_named(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match="`token_counter`"):
            CachedTokenCounter(wrong)

    @pytest.mark.parametrize("inner", [ESTIMATE, ApproximateTokenCounter()], ids=["by message", "by list"])
    @pytest.mark.parametrize("wrong", ["text", U("alone"), [U("hi"), "text"], ["text"], [{"role": "user"}], None, 5])
    def test_what_is_no_list_of_messages_is_named(self, wrong: Any, inner: Any) -> None:
        for tools in (None, [tool()]):
            with pytest.raises(TypeError, match="`messages`"):
                CachedTokenCounter(inner).count(wrong, tools)

    def test_results_and_calls_are_messages_like_all_others(self) -> None:
        messages = [A(calls=["a"]), T("a", "found")]
        assert CachedTokenCounter(ESTIMATE).count(messages) == ESTIMATE.count(messages)

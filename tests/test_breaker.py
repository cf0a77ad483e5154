"""The memory of a model's failures: per conversation, weak, bounded, and safe between threads."""

import gc
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

from conversations import A, S, U
from haystack.dataclasses import ChatMessage

from haystack_compaction import MessageIndex
from haystack_compaction.summaries.breaker import FailureMemory, Failures, failures_in, remember


class Model:
    """Any model."""


def failed(times: int, tokens: int = 100) -> Failures:
    failures = Failures()
    failures.see(tokens)
    for _ in range(times):
        failures.fail(tokens)
    return failures


class TestFailures:
    def test_three_in_a_row_open_it(self) -> None:
        assert [failed(times).is_open for times in range(5)] == [False, False, False, True, True]

    def test_a_success_in_between_closes_it(self) -> None:
        failures = failed(2)
        failures.succeed()
        failures.fail(100)
        assert not failures.is_open

    def test_growth_by_a_quarter_closes_it(self) -> None:
        failures = failed(3)
        failures.see(124)
        assert failures.is_open
        failures.see(125)
        assert not failures.is_open

    def test_a_conversation_that_something_else_keeps_short_is_tried_again_once_it_took_in_a_lot(self) -> None:
        failures = failed(3)
        for _ in range(7):
            failures.leave(60)
            failures.see(88)
            assert failures.is_open
        failures.leave(60)
        failures.see(88)
        assert not failures.is_open


class TestMemory:
    def test_it_is_found_again_by_any_of_the_messages(self) -> None:
        memory, model, messages = FailureMemory(), Model(), [U("one"), U("two")]
        memory.keep(model, messages, failed(2))
        assert memory.recall(model, messages[1:]).in_a_row == 2
        assert memory.recall(model, [U("one")]).in_a_row == 0
        assert memory.recall(Model(), messages).in_a_row == 0

    def test_it_holds_neither_messages_nor_models_alive(self) -> None:
        memory, model, message = FailureMemory(), Model(), U("one")
        memory.keep(model, [message], failed(2))
        seen = ref(message), ref(model)
        del model, message
        gc.collect()
        assert [one() for one in seen] == [None, None]

    def test_it_is_bounded(self) -> None:
        memory, model = FailureMemory(), Model()
        messages = [U(str(n)) for n in range(3000)]
        for message in messages:
            memory.keep(model, [message], failed(1))
        known = [memory.recall(model, [message]).in_a_row for message in messages]
        assert sum(known) == 1024
        assert known[-1] == 1

    def test_threads_do_not_disturb_each_other(self) -> None:
        memory, models = FailureMemory(), [Model() for _ in range(8)]

        def work(number: int) -> int:
            messages = [ChatMessage.from_user(str(n)) for n in range(200)]
            for message in messages:
                memory.keep(models[number], [message], failed(1))
            return sum(memory.recall(models[number], [message]).in_a_row for message in messages[-50:])

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [50] * 8


class TestOfAConversation:
    def test_a_model_that_cannot_be_referred_to_weakly_is_remembered_as_well(self) -> None:
        model = "a model"
        index = MessageIndex([S("rules"), U("task"), A("ok")])
        remember(index, model, failed(2))
        assert failures_in(index, model).in_a_row == 2

    def test_the_memory_of_a_run_goes_with_its_index(self) -> None:
        model = Model()
        index = MessageIndex([S("rules"), U("task"), A("ok")])
        index.memory = {}
        remember(index, model, failed(2))
        index.exclude(index.groups[2], "old")
        assert failures_in(index.committed(), model).in_a_row == 2
        assert failures_in(MessageIndex(index.all_messages()), model).in_a_row == 0

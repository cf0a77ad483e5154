"""Work that yields requests, stepped by hand and by both drivers."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest
from naming import shown

from haystack_compaction import Call, ask
from haystack_compaction.steps import drive, drive_async

Work = Generator[Any, Any, Any]
Driver = Callable[[Work], Any]


async def synchronously(steps: Work) -> Any:
    return drive(steps)


both_drivers = pytest.mark.parametrize("driver", [synchronously, drive_async], ids=["drive", "drive_async"])


def double(number: int) -> int:
    return 2 * number


async def double_async(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def fail(**arguments: Any) -> None:
    raise OSError("the store is full")


async def fail_async(**arguments: Any) -> None:
    raise OSError("the store is full")


def twice(number: int) -> Call:
    return Call(double, double_async, {"number": number})


def adding(*numbers: int) -> Work:
    total = 0
    for number in numbers:
        total += yield from ask(twice(number))
    return total


def with_fallback(request: Any, seen: list[BaseException]) -> Work:
    try:
        return (yield from ask(request))
    except OSError as error:
        seen.append(error)
    return (yield from ask(twice(21)))


class TestByHand:
    """No driver, no mock: a test answers the requests itself."""

    def test_a_request_comes_out_and_the_answer_goes_in(self) -> None:
        steps = adding(1, 2)
        assert next(steps) == twice(1)
        assert steps.send(10) == twice(2)
        with pytest.raises(StopIteration) as end:
            steps.send(20)
        assert end.value.value == 30

    def test_nothing_is_performed_until_somebody_does(self) -> None:
        called: list[int] = []
        steps = adding_to(called)
        request = next(steps)
        assert called == []
        request.perform()
        assert called == [1]

    def test_a_failure_is_thrown_in_at_the_yield(self) -> None:
        seen: list[BaseException] = []
        steps = with_fallback(twice(1), seen)
        next(steps)
        assert steps.throw(OSError("no")) == twice(21)
        assert len(seen) == 1


def adding_to(called: list[int]) -> Work:
    yield from ask(Call(lambda: called.append(1)))


@both_drivers
class TestDrivers:
    async def test_the_answers_reach_whoever_asked(self, driver: Driver) -> None:
        assert await driver(adding(1, 2, 3)) == 12

    async def test_work_without_a_request_returns_its_value(self, driver: Driver) -> None:
        assert await driver(adding()) == 0

    @pytest.mark.parametrize("value", [None, 0, False, [], "x"], ids=shown)
    async def test_any_value_may_be_returned(self, driver: Driver, value: Any) -> None:
        def steps() -> Work:
            answer = yield from ask(Call(lambda: value))
            return (answer, value)

        assert await driver(steps()) == (value, value)

    async def test_a_request_that_fails_is_raised_at_the_yield(self, driver: Driver) -> None:
        seen: list[BaseException] = []
        assert await driver(with_fallback(Call(fail, fail_async), seen)) == 42
        assert [str(error) for error in seen] == ["the store is full"]

    async def test_a_failure_that_nobody_catches_comes_out(self, driver: Driver) -> None:
        def steps() -> Work:
            yield from ask(Call(fail, fail_async))

        with pytest.raises(OSError, match="the store is full"):
            await driver(steps())

    async def test_a_failure_of_the_work_itself_comes_out(self, driver: Driver) -> None:
        def steps() -> Work:
            yield from ask(twice(1))
            raise ZeroDivisionError("a mistake")

        with pytest.raises(ZeroDivisionError, match="a mistake"):
            await driver(steps())

    async def test_a_second_failure_after_a_caught_one_is_raised_too(self, driver: Driver) -> None:
        def steps() -> Work:
            caught = 0
            for _ in range(3):
                try:
                    yield from ask(Call(fail, fail_async))
                except OSError:
                    caught += 1
            return caught

        assert await driver(steps()) == 3

    async def test_stop_iteration_from_a_request_arrives_as_a_runtime_error(self, driver: Driver) -> None:
        def steps() -> Work:
            try:
                yield from ask(Call(lambda: next(iter(()))))
            except RuntimeError:
                return "no more"

        work = asyncio.ensure_future(driver(steps()))
        done, _ = await asyncio.wait([work], timeout=5)
        assert done, "the await hangs for ever"
        assert work.result() == "no more"

    async def test_stop_iteration_inside_the_work_is_an_error_and_hangs_nothing(self, driver: Driver) -> None:
        def steps() -> Work:
            yield from ask(twice(1))
            next(iter(()))

        work = asyncio.ensure_future(driver(steps()))
        done, _ = await asyncio.wait([work], timeout=5)
        assert done, "the await hangs for ever"
        assert isinstance(work.exception(), RuntimeError)

    async def test_work_may_hand_over_to_other_work(self, driver: Driver) -> None:
        def steps() -> Work:
            first = yield from adding(1, 2)
            second = yield from adding(3)
            return first, second

        assert await driver(steps()) == (6, 6)

    async def test_what_the_work_holds_is_released_at_the_end(self, driver: Driver) -> None:
        released: list[str] = []

        def steps() -> Work:
            try:
                yield from ask(Call(fail, fail_async))
            finally:
                released.append("yes")

        with pytest.raises(OSError, match="full"):
            await driver(steps())
        assert released == ["yes"]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    async def test_an_interrupt_in_a_request_is_not_handed_to_the_work(
        self, driver: Driver, kind: type[BaseException]
    ) -> None:
        caught: list[BaseException] = []

        def interrupted() -> None:
            raise kind

        def steps() -> Work:
            try:
                yield from ask(Call(interrupted))
            except Exception as error:  # noqa: BLE001 - this is what is tested
                caught.append(error)

        # Straight through the loop an interrupt would end pytest as well, so only the sync driver is asked.
        if driver is synchronously:
            with pytest.raises(kind):
                drive(steps())
        assert caught == []


class TestCall:
    def test_performed_in_the_calling_thread_by_drive(self) -> None:
        def steps() -> Work:
            return (yield from ask(Call(threading.get_ident)))

        assert drive(steps()) == threading.get_ident()

    async def test_without_a_twin_it_runs_in_a_thread(self) -> None:
        def steps() -> Work:
            return (yield from ask(Call(threading.get_ident)))

        assert await drive_async(steps()) != threading.get_ident()

    async def test_with_a_twin_the_twin_is_awaited_on_the_loop(self) -> None:
        async def where() -> int:
            return threading.get_ident()

        def steps() -> Work:
            return (yield from ask(Call(fail, where)))

        assert await drive_async(steps()) == threading.get_ident()

    def test_the_twin_is_no_concern_of_the_sync_driver(self) -> None:
        assert drive(ask(Call(double, fail_async, {"number": 4}))) == 8

    def test_arguments_are_passed_by_name(self) -> None:
        assert Call(double, arguments={"number": 5}).perform() == 10

    async def test_arguments_are_passed_by_name_to_the_twin(self) -> None:
        assert await Call(fail, double_async, {"number": 5}).perform_async() == 10

    def test_calls_with_the_same_content_are_equal(self) -> None:
        assert twice(3) == twice(3)
        assert twice(3) != twice(4)


class TestAsync:
    async def test_work_that_computes_does_not_hold_up_the_event_loop(self) -> None:
        def steps() -> Work:
            time.sleep(0.2)
            yield from ask(twice(1))
            time.sleep(0.2)

        ticks = 0
        work = asyncio.ensure_future(drive_async(steps()))
        while not work.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 15

    async def test_a_cancellation_passes_through_and_is_not_handed_to_the_work(self) -> None:
        caught: list[BaseException] = []

        async def wait() -> None:
            await asyncio.sleep(60)

        def steps() -> Work:
            try:
                yield from ask(Call(fail, wait))
            except Exception as error:  # noqa: BLE001 - this is what is tested
                caught.append(error)

        await self.cancelled(steps())
        assert caught == []

    async def test_a_cancellation_closes_work_that_waits(self) -> None:
        closed: list[str] = []

        async def wait() -> None:
            await asyncio.sleep(60)

        def steps() -> Work:
            try:
                yield from ask(Call(fail, wait))
            finally:
                closed.append("yes")

        await self.cancelled(steps())
        assert closed == ["yes"]

    async def test_a_cancellation_while_the_work_computes_is_a_cancellation(self) -> None:
        def steps() -> Work:
            time.sleep(0.3)
            yield from ask(twice(1))

        await self.cancelled(steps())
        await asyncio.sleep(0.35)

    async def test_a_request_is_not_performed_after_a_cancellation(self) -> None:
        performed: list[str] = []

        def steps() -> Work:
            time.sleep(0.2)
            yield from ask(Call(lambda: performed.append("yes")))

        await self.cancelled(steps())
        await asyncio.sleep(0.3)
        assert performed == []

    async def test_many_at_once_do_not_mix_their_answers(self) -> None:
        works = [adding(*range(n)) for n in range(20)]
        assert await asyncio.gather(*map(drive_async, works)) == [n * (n - 1) for n in range(20)]

    async def cancelled(self, steps: Work) -> None:
        work = asyncio.ensure_future(drive_async(steps))
        await asyncio.sleep(0.05)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

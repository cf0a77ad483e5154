"""
Work that needs the outside now and then, written once for sync and async.

A compactor decides; now and then it needs something that only the outside can give, such as a model's reply. It then
*yields a request* and goes on with what is sent back, much as httpx's `auth_flow` yields requests to its client:

    def decide(self, index, goal):
        reply = yield from ask(Call(generator.run, generator.run_async, {"messages": prompt}))
        ...

`drive` performs each request in the calling thread, `drive_async` awaits it; `decide` is the same code for both. A
request that fails is raised at the `yield`, so a fallback is `try`/`except` around it. Only `Exception` is handed back
that way: a cancellation passes through. A test steps the generator by hand and needs no mock; a dry run answers the
requests without performing them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Request(Protocol):
    """
    Something that the core needs from the outside, and the two ways to get it.
    """

    def perform(self) -> Any:
        """
        Get it in the calling thread.
        """
        ...

    async def perform_async(self) -> Any:
        """
        Get it without holding up the event loop.
        """
        ...


Steps = Generator[Request, Any, T]


@dataclass(frozen=True)
class Call:
    """
    The request to call a function, or its async twin where there is one.

    :param function: Called by `drive`, and in a thread by `drive_async` where there is no twin.
    :param async_function: Awaited by `drive_async`.
    :param arguments: The keyword arguments for either.
    """

    function: Callable[..., Any]
    async_function: Callable[..., Awaitable[Any]] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def perform(self) -> Any:
        """
        Call the function.
        """
        try:
            return self.function(**self.arguments)
        except BaseException as error:
            raise _failure(self.function, error) from error

    async def perform_async(self) -> Any:
        """
        Await the twin, or call the function in a thread.
        """
        if self.async_function is None:
            return await asyncio.to_thread(self.perform)
        try:
            return await self.async_function(**self.arguments)
        except BaseException as error:
            raise _failure(self.async_function, error) from error


@dataclass(frozen=True)
class Pause:
    """
    The request to let some time pass before the next attempt.

    :param seconds: How long.
    """

    seconds: float

    def perform(self) -> None:
        """
        Sleep.
        """
        time.sleep(self.seconds)

    async def perform_async(self) -> None:
        """
        Sleep without holding up the event loop.
        """
        await asyncio.sleep(self.seconds)


def _failure(function: Any, error: BaseException) -> BaseException:
    """
    What a failed call raises: itself, or an error in the place of one that cannot be handed on.

    `StopIteration` can neither leave a thread nor enter a generator, and code written in Rust panics with an exception
    that is no `Exception`, which would end the run of whoever called. Cancellation and the like pass through.
    """
    passed_on = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)
    if isinstance(error, passed_on) or (isinstance(error, Exception) and not isinstance(error, StopIteration)):
        return error
    return RuntimeError(f"{getattr(function, '__qualname__', function)!r} raised {type(error).__name__}: {error}")


def ask(request: Request) -> Steps[Any]:
    """
    Yield one request and return the answer.

    :param request: What is needed.
    :returns: What the driver got for it.
    """
    return (yield request)


def drive(steps: Steps[T]) -> T:
    """
    Run steps to their end in the calling thread.

    :param steps: The generator to run.
    :returns: What the generator returns.
    """
    answer: Any = None
    failure: Exception | None = None
    while True:
        try:
            request = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as stop:
            value: T = stop.value
            return value
        answer = failure = None
        try:
            answer = request.perform()
        except Exception as error:  # noqa: BLE001 - every failure belongs to whoever asked
            failure = error


async def drive_async(steps: Steps[T]) -> T:
    """
    Run steps to their end without holding up the event loop.

    The core is advanced in a thread, because it measures, and a counter may be slow.

    :param steps: The generator to run.
    :returns: What the generator returns.
    """
    try:
        advance = await asyncio.to_thread(_advance, steps, None, None)
        while isinstance(advance, _Needs):
            try:
                answer = await advance.request.perform_async()
            except Exception as error:  # noqa: BLE001 - every failure belongs to whoever asked
                advance = await asyncio.to_thread(_advance, steps, None, error)
            else:
                advance = await asyncio.to_thread(_advance, steps, answer, None)
        return advance.value
    finally:
        # A generator that still computes in its thread, as after a cancellation, cannot be closed: it ends by itself.
        with suppress(ValueError):
            steps.close()


@dataclass(frozen=True, slots=True)
class _Needs:
    request: Request


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    value: T


def _advance(steps: Steps[T], answer: Any, error: Exception | None) -> "_Needs | _Done[T]":
    """Go to the next request or to the end; the end is a value, because `StopIteration` cannot leave a thread."""
    try:
        return _Needs(steps.send(answer) if error is None else steps.throw(error))
    except StopIteration as stop:
        return _Done(stop.value)

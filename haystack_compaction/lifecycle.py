"""
Warm-up and close over the parts of an object, sync and async.

Parts come from anywhere (Haystack's, the user's), so each method is optional; the async twin is preferred where there
is one, and an object that stands in two places is reached once.
"""

import asyncio
from collections.abc import Iterable
from typing import Any


class HandsOnLifecycle:
    """
    An object that is warmed up and closed by warming up and closing its parts.
    """

    def lifecycle_parts(self) -> Iterable[Any]:
        """
        Return the parts.

        :returns: Any objects; None among them is passed over.
        """
        return ()

    def warm_up(self) -> None:
        """
        Warm up the parts, such as a counter that loads a vocabulary.
        """
        _call_each(self.lifecycle_parts(), "warm_up")

    async def warm_up_async(self) -> None:
        """
        Warm up the parts on the serving event loop; one that only does it sync does it in a thread.
        """
        await _call_each_async(self.lifecycle_parts(), "warm_up")

    def close(self) -> None:
        """
        Release what the parts hold.
        """
        _call_each(self.lifecycle_parts(), "close")

    async def close_async(self) -> None:
        """
        Release what the parts hold on the serving event loop; one that only does it sync does it in a thread.
        """
        await _call_each_async(self.lifecycle_parts(), "close")


def _distinct(parts: Iterable[Any]) -> list[Any]:
    return list({id(part): part for part in parts if part is not None}.values())


def _call_each(parts: Iterable[Any], method: str) -> None:
    for part in _distinct(parts):
        function = getattr(part, method, None)
        if callable(function):
            function()


async def _call_each_async(parts: Iterable[Any], method: str) -> None:
    for part in _distinct(parts):
        function = getattr(part, f"{method}_async", None)
        if callable(function):
            await function()
            continue
        function = getattr(part, method, None)
        if callable(function):
            # A vocabulary or a model may be loaded here, which is no work for the event loop.
            await asyncio.to_thread(function)

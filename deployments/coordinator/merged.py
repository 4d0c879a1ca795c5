"""Several streams as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

Item = TypeVar("Item")


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """The items of all streams as they come, each stream's in its order; a slow reader holds every stream back.

    The first stream that fails ends the others, and so does closing this generator.
    """
    waiting = {_next_of(stream): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = waiting.pop(task)
                for item in task.result():
                    waiting[_next_of(stream)] = stream
                    yield item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


def _next_of(stream: AsyncGenerator[Item, None]) -> asyncio.Task[list[Item]]:
    return asyncio.create_task(_next(stream))


async def _next(stream: AsyncGenerator[Item, None]) -> list[Item]:
    """The next item alone, or nothing at the end."""
    try:
        return [await anext(stream)]
    except StopAsyncIteration:
        return []

"""What asyncio's tasks need in several places: an end for certain, and a wait that is only ever shortened."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.5


async def wait(wake: asyncio.Event, within_s: float) -> None:
    """Until the event is set, or for so long."""
    try:
        async with asyncio.timeout(within_s):
            await wake.wait()
    except TimeoutError:
        pass


async def end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel the tasks and wait for their ends, whatever these are. One that goes on is cancelled again: a library may lose a cancellation
    that comes in the same moment as what it waited for (`asyncio.wait_for` of Python 3.11 does)."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)

"""Ending asyncio tasks for certain."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.5


async def end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel the tasks and wait for their ends, whatever these are. One that goes on is cancelled again: a library may lose a cancellation
    that comes in the same moment as what it waited for (`asyncio.wait_for` of Python 3.11 does)."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)

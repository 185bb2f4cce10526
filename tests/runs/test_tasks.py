"""The end of tasks that do not take the first cancellation."""

import asyncio

from waystation import tasks


async def deaf(times: int, ended: list[str]) -> None:
    """A task that loses so many cancellations, as a library might."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if times == 0:
                ended.append("deaf")
                raise
            times -= 1


async def failing() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("on the way out")


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    ended: list[str] = []
    several = [asyncio.create_task(deaf(times, ended)) for times in (0, 1, 2)] + [asyncio.create_task(failing())]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await tasks.end(several)
    assert (all(task.done() for task in several), len(ended)) == (True, 3)
    await asyncio.wait(several)
    assert isinstance(several[-1].exception(), OSError)


async def test_tasks_that_have_ended_or_are_none_need_no_wait() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    async with asyncio.timeout(1):
        await tasks.end([task])
        await tasks.end([])

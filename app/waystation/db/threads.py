"""Threads that run transactions for an event loop.

A standard executor would do; but of the time of a transaction that does nothing, half goes into its futures, which are made for threads
that wait. Here the loop's own future is resolved in one call.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class Threads:
    """`count` threads that take jobs from one queue, each in the order in which it was given."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """The result of a job, for the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future, result, error)

        self._jobs.put((work, tell))
        return future

    def call(self, work: Callable[[], T]) -> T:
        """The result of a job, for a thread that waits for it."""
        future: Future[T] = Future()

        def tell(result: Any, error: BaseException | None) -> None:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._jobs.put((work, tell))
        return future.result()

    def close(self) -> None:
        """Wait until all jobs are done and the threads have ended. Blocks."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, tell = job
            try:
                result, error = work(), None
            except BaseException as exc:  # noqa: BLE001  # carried over to whoever waits
                result, error = None, exc
            tell(result, error)
            del job, work, tell, result, error  # nothing is kept alive until the next job


def _resolve(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # nobody waits any more
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

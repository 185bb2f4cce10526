"""A process that only executes runs: the container without HTTP, until it is told to stop."""

import asyncio
import signal
from collections.abc import Callable, Iterable

from waystation import logs
from waystation.agents.base import BaseAgent
from waystation.config import Settings
from waystation.container import Container


def run_worker(settings: Settings, agents: Iterable[BaseAgent]) -> None:
    """Execute until SIGTERM or SIGINT, then drain. Blocks."""
    logs.configure(settings.log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_work(settings, agents))


async def _work(settings: Settings, agents: Iterable[BaseAgent]) -> None:
    container = Container(settings, agents)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        container.begin_drain()
        stopped.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C leaves at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await container.start()
        await stopped.wait()
    finally:
        await container.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop

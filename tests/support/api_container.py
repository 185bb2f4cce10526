"""A process of Waystation without HTTP: the container, and what is asked of it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa

from support.api_server import QUICK
from waystation.agents.base import BaseAgent
from waystation.config import Settings
from waystation.container import Container
from waystation.domain.access import Principal
from waystation.domain.event import Event, Segment, decode
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run, RunInput
from waystation.runs.request import RunRequest, Ticket
from waystation.store import events
from waystation.store import runs as run_store

NOBODY = Principal(request_id="test")


class Process:
    def __init__(self, container: Container) -> None:
        self.container = container

    async def submit(self, message: str = "hi", agent: str = "small", **fields: Any) -> Ticket:
        request = RunRequest(agent_id=agent, input=RunInput(message=message), **fields)
        return await self.container.runs.submit(request, NOBODY)

    async def ended(self, message: str = "hi", agent: str = "small", **fields: Any) -> Run:
        """A run that was waited for."""
        ticket = await self.submit(message, agent, **fields)
        async with asyncio.timeout(20):
            return (await self.container.watch.settled(ticket.run_id)).run

    async def cancel(self, ticket: Ticket, wait_s: float = 0.0) -> tuple[Run, bool]:
        return await self.container.runs.cancel(ticket.agent_id, ticket.run_id, NOBODY, wait_s)

    async def run(self, run_id: str) -> Run:
        """The run as it is stored."""
        found = await self.container.database.read(run_store.find, run_id)
        assert found is not None
        return found

    async def until(self, run_id: str, *statuses: str, within_s: float = 10.0) -> Run:
        async with asyncio.timeout(within_s):
            while (run := await self.run(run_id)).status not in [RunStatus(status) for status in statuses]:
                await asyncio.sleep(0.01)
        return run

    async def log(self, run_id: str) -> list[Event]:
        """The stored log, of which it is checked that it has no gap."""
        segments: list[Segment] = await self.container.database.read(events.read_all, run_id)
        decoded = [decode(line) for segment in segments for _, _, line in segment.each()]
        assert [index for index, _ in decoded] == list(range(len(decoded)))
        return [event for _, event in decoded if event is not None]

    async def names(self, run_id: str) -> list[str]:
        return [event.name for event in await self.log(run_id)]

    async def sql(self, statement: str, **parameters: Any) -> list[Any]:
        def execute(conn: sa.Connection) -> list[Any]:
            result = conn.execute(sa.text(statement), parameters)
            return list(result) if result.returns_rows else []

        return await self.container.database.write(execute)

    async def drained(self, within_s: float = 10.0) -> None:
        """Until a drain has stopped what was executed."""
        async with asyncio.timeout(within_s):
            while not self.container.hub.is_closed:
                await asyncio.sleep(0.01)

    async def idle(self, within_s: float = 10.0) -> None:
        """Until nothing is executed."""
        async with asyncio.timeout(within_s):
            while self.container.executor.running or self.container.slots.used:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def process(database_url: str, agents: Iterable[BaseAgent], **settings: Any) -> AsyncIterator[Process]:
    container = Container(Settings(database_url=database_url, **{**QUICK, **settings}), agents)
    await container.start()
    try:
        yield Process(container)
    finally:
        await container.close()

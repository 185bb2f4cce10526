"""The claim loop beside runs that start at once: real processes without HTTP, on SQLite."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.api_container import Process, process
from waystation.agents.native.agent import Agent
from waystation.agents.native.models.scripted import ScriptedModel


@pytest.fixture
async def busy(sqlite_url: str) -> AsyncIterator[Process]:
    """A process with one slot, whose claim loop never rests."""
    agent = Agent(id="small", model=ScriptedModel(lambda messages: ["ok"]))
    async with process(sqlite_url, [agent], worker_concurrency=1, poll_s=0.0001) as found:
        yield found


async def test_runs_that_come_one_by_one_start_at_once_whatever_the_claim_loop_does(busy: Process) -> None:
    for _ in range(50):  # the next one is sent as soon as the end of the last is told
        await busy.ended()
    # Of a run that starts at once the first event is stored with its acceptance, and alone.
    first = await busy.sql("SELECT last_index FROM run_events WHERE first_index = 0")
    assert [row.last_index for row in first] == [0] * 50


async def test_a_backlog_is_claimed_as_slots_become_free(busy: Process) -> None:
    tickets = [await busy.submit(background=True) for _ in range(12)]
    async with asyncio.timeout(10):
        details = [await busy.container.watch.settled(ticket.run_id) for ticket in tickets]
    assert [detail.run.status.value for detail in details] == ["COMPLETED"] * 12
    await busy.idle()

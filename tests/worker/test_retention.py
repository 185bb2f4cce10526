"""What is removed by age, and what stays, on both databases; what a viewer of a removed log is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa
from benchmarks.stub_agents import stub_agents

from support.api_container import NOBODY, Process, process
from support.store_ops import rows_of_session
from waystation.clock import now
from waystation.domain.event import Gap, Segment
from waystation.runs.request import ContinueRequest
from waystation.store import retention

DAY_S = 86_400.0


@pytest.fixture
async def keeping(database_url: str) -> AsyncIterator[Process]:
    """A process that keeps logs for a day and runs for ten."""
    async with process(database_url, stub_agents(), keep_logs_days=1, keep_runs_days=10) as found:
        yield found


async def age(server: Process, run_id: str, days: float) -> None:
    await server.sql("UPDATE runs SET finished_at = :at WHERE id = :id", at=now() - days * DAY_S, id=run_id)


async def aged(server: Process, days: float, message: str = "hi", **fields: object) -> str:
    """A run of the session s that has ended some days ago."""
    run = await server.ended(message, "native", session_id="s", **fields)
    await age(server, run.id, days)
    return run.id


async def run_ids(server: Process) -> list[str]:
    return [row[0] for row in await server.sql("SELECT id FROM runs ORDER BY seq")]


async def seen(server: Process, run_id: str, after: int = -1) -> list[Segment | Gap]:
    return [item async for item in server.container.watch.segments(run_id, after)]


async def test_nothing_is_removed_unless_the_settings_say_so(database_url: str) -> None:
    async with process(database_url, stub_agents()) as server:
        ids = [await aged(server, 10_000), await aged(server, 10_000)]
        await server.container.retention.remove()
        assert await run_ids(server) == ids and len(await server.names(ids[0])) > 3


async def test_an_old_log_goes_whole_and_the_run_stays(keeping: Process) -> None:
    old, young = await aged(keeping, 2), await aged(keeping, 0.5)
    before = (await keeping.run(old), await seen(keeping, old))
    await keeping.container.retention.remove()
    assert (await keeping.names(old), len(await keeping.names(young)) > 3) == ([], True)
    assert await keeping.run(old) == before[0]
    gap, last = await seen(keeping, old)
    assert gap == Gap(0, before[0].next_index - 2)
    assert isinstance(last, Segment) and (last.first_index, last.ends_leg) == (before[0].next_index - 1, True)
    assert b'"RunCompleted"' in last.lines and b"Hello from the stub." in last.lines


async def test_the_log_of_a_run_that_is_paused_stays(keeping: Process) -> None:
    paused = await aged(keeping, 2, "confirm")
    await keeping.container.retention.remove()
    assert (await keeping.names(paused))[-1] == "RunPaused"


async def test_a_log_that_is_too_long_for_a_slice_loses_its_beginning_first(keeping: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = await aged(keeping, 2, "slow 5 20")
    few = sa.delete(retention.run_events).where(retention._segments.in_(retention._of_logs.limit(2)))
    monkeypatch.setattr(retention, "REMOVE_SEGMENTS", few)
    place = await keeping.container.database.write(retention.remove_logs, now(), retention.START, 10)
    first, *rest = await seen(keeping, run_id)
    assert (place, isinstance(first, Gap), isinstance(rest[-1], Segment)) == (retention.START, True, True)
    await keeping.container.retention.remove()
    assert await keeping.names(run_id) == []


async def test_an_old_run_goes_with_all_that_is_its_own_but_for_what_the_session_goes_on_from(keeping: Process) -> None:
    ids = [await aged(keeping, 20), await aged(keeping, 20, "fail"), await aged(keeping, 20), await aged(keeping, 20, "fail")]
    await keeping.container.retention.remove()
    assert await run_ids(keeping) == ids[2:]
    left = await rows_of_session(keeping.container.database, "s")
    assert (left["runs"], left.get("run_events"), left["sessions"]) == (2, None, 1)
    owners = await keeping.sql("SELECT DISTINCT run_id FROM run_messages")
    assert {row[0] for row in owners} <= set(ids[2:])
    next_run = await keeping.ended("hi", "native", session_id="s")
    assert next_run.status.value == "COMPLETED"


async def test_a_young_run_stays_and_so_does_what_a_sibling_goes_on_from(keeping: Process) -> None:
    source = await aged(keeping, 20)
    request = ContinueRequest(agent_id="native", run_id=source, input="again")
    sibling = (await keeping.container.continuations.go_on(request, NOBODY)).run_id
    await keeping.until(sibling, "COMPLETED")
    last = await aged(keeping, 1)
    await keeping.container.retention.remove()
    assert await run_ids(keeping) == [source, sibling, last]
    await age(keeping, sibling, 20)
    await keeping.container.retention.remove()
    await keeping.container.retention.remove()
    assert await run_ids(keeping) == [last]


async def test_the_key_of_a_removed_run_does_not_start_it_again(keeping: Process) -> None:
    await aged(keeping, 20, idempotency_key="k", request_hash="h")
    await aged(keeping, 20)
    await keeping.container.retention.remove()
    assert [tuple(row) for row in await keeping.sql("SELECT agent_id, idempotency_key FROM deleted_keys")] == [("native", "k")]


async def test_two_processes_remove_at_once(keeping: Process, database_url: str) -> None:
    old = [await aged(keeping, 20, "chunks 30") for _ in range(30)]
    young = [await aged(keeping, 2) for _ in range(20)]
    async with process(database_url, stub_agents(), keep_logs_days=1, keep_runs_days=10) as second:
        await asyncio.gather(*(server.container.retention.remove() for server in (keeping, second)))
    assert await run_ids(keeping) == young and not set(old) & set(young)
    left = await rows_of_session(keeping.container.database, "s")
    assert (left["runs"], left.get("run_events")) == (20, None)

"""Live: one suite over every way in which processes tell each other. Polls are so rare here that nothing arrives in time by one."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from support.api_agents import Gate, gated
from support.api_container import Process, process
from waystation.domain.event import Segment
from waystation.live.base import MOST_BYTES, News

SOON_S = 2.0
RARE = {"poll_s": 30, "cancel_takeover_s": 60, "cancel_grace_s": 0.05, "worker_concurrency": 1}


class Pair:
    """Two processes on one database. `a` has one slot and an agent that stops at `gate`; so has `b`, at a gate of its own."""

    def __init__(self, a: Process, b: Process, gate: Gate, gate_of_b: Gate) -> None:
        self.a = a
        self.b = b
        self.gate = gate
        self.gate_of_b = gate_of_b

    async def know_each_other(self) -> None:
        async with asyncio.timeout(10):
            while not all(p.container.live.has_others and p.container.live.is_connected for p in (self.a, self.b)):
                await asyncio.sleep(0.01)


@pytest.fixture(params=["sqlite", "postgresql", "redis and sqlite", "redis and postgresql", "pgbouncer and postgresql"])
def wiring(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of both processes."""
    *more, database = request.param.split(" and ")
    url = request.getfixturevalue("sqlite_url" if database == "sqlite" else "postgres_url")
    if "pgbouncer" in more:
        return {"database_url": request.getfixturevalue("pgbouncer_server").url_of(url), "database_direct_url": url}
    return {"database_url": url} | ({"redis_url": request.getfixturevalue("redis_server")} if "redis" in more else {})


@pytest.fixture
async def pair(wiring: dict[str, Any]) -> AsyncIterator[Pair]:
    (agent, gate), (same, gate_of_b) = gated("small"), gated("small")
    async with process(agents=[agent], **RARE, **wiring) as a, process(agents=[same], **RARE, **wiring) as b:
        found = Pair(a, b, gate, gate_of_b)
        await found.know_each_other()
        yield found
        gate.opened.set()
        gate_of_b.opened.set()


async def watched(process: Process, run_id: str) -> list[tuple[int, float]]:
    """The indices that a viewer is given, each with its time."""
    seen: list[tuple[int, float]] = []
    async for item in process.container.watch.segments(run_id, -1):
        assert isinstance(item, Segment)
        seen += [(index, time.monotonic()) for index, _, _ in item.each()]
    return seen


async def attached(process: Process, count: int = 1) -> None:
    """Until so many viewers have read the store and wait."""
    async with asyncio.timeout(SOON_S):
        while sum(channel.end >= 0 for channel in process.container.hub.remote()) < count:
            await asyncio.sleep(0.005)


async def test_a_viewer_elsewhere_is_given_events_soon_after_their_commit(pair: Pair) -> None:
    ticket = await pair.a.submit()
    viewer = asyncio.create_task(watched(pair.b, ticket.run_id))
    await pair.gate.reached.wait()
    await attached(pair.b)
    pair.gate.opened.set()
    opened_at = time.monotonic()
    async with asyncio.timeout(SOON_S):
        seen = await viewer
    assert [index for index, _ in seen] == list(range(len(await pair.a.log(ticket.run_id))))
    assert seen[-1][1] - opened_at < SOON_S


async def test_a_run_that_finds_no_slot_here_starts_elsewhere(pair: Pair) -> None:
    await pair.a.submit()
    await pair.gate.reached.wait()
    ticket = await pair.a.submit(background=True)
    async with asyncio.timeout(SOON_S):
        await pair.gate_of_b.reached.wait()
    assert pair.b.container.executor.running == {ticket.run_id: 1}


async def test_a_run_of_a_process_that_executes_nothing_starts_elsewhere(wiring: dict[str, Any]) -> None:
    (agent, gate), (same, gate_of_b) = gated("small"), gated("small")
    async with process(agents=[agent], worker=False, **RARE, **wiring) as a, process(agents=[same], **RARE, **wiring) as b:
        await Pair(a, b, gate, gate_of_b).know_each_other()
        ticket = await a.submit()
        async with asyncio.timeout(SOON_S):
            await gate_of_b.reached.wait()
        assert b.container.executor.running == {ticket.run_id: 1}
        gate_of_b.opened.set()


async def test_what_a_drain_hands_back_starts_elsewhere(pair: Pair) -> None:
    ticket = await pair.a.submit(max_attempts=2)
    await pair.gate.reached.wait()
    pair.a.container.begin_drain()
    async with asyncio.timeout(SOON_S):
        await pair.gate_of_b.reached.wait()
    assert list(pair.b.container.executor.running) == [ticket.run_id]


async def test_a_cancel_reaches_the_process_that_executes(pair: Pair) -> None:
    # The lease brings requests too, up to a second later: most of them can't be so quick.
    took_s = []
    for _ in range(8):
        pair.gate.reached.clear()
        ticket = await pair.a.submit()
        await pair.gate.reached.wait()
        began = time.monotonic()
        run, is_stopping = await pair.b.cancel(ticket, wait_s=SOON_S)
        took_s.append(time.monotonic() - began)
        assert (run.status.value, is_stopping) == ("CANCELLED", False)
        await pair.a.idle()
    assert statistics.median(took_s) < 0.25


async def test_a_viewer_elsewhere_sees_the_end_of_a_run_that_nobody_executes(pair: Pair) -> None:
    ticket = await pair.a.submit(background=True, available_at=time.time() + 3600)
    viewer = asyncio.create_task(watched(pair.a, ticket.run_id))
    settled = asyncio.create_task(pair.a.container.watch.settled(ticket.run_id))
    async with asyncio.timeout(SOON_S):
        while pair.a.container.hub.stats()["users"] < 2:
            await asyncio.sleep(0.005)
    await pair.b.cancel(ticket)
    async with asyncio.timeout(SOON_S):
        assert [index for index, _ in await viewer] == [0]
        assert (await settled).run.status.value == "CANCELLED"


# ---- without wake-ups ------------------------------------------------------------------------------------------------------------


async def test_all_works_by_polling_when_every_wake_up_is_lost(database_url: str) -> None:
    settings = {"database_url": database_url, "redis_url": "redis://127.0.0.1:1", "poll_s": 0.3, "worker_concurrency": 1}
    (agent, gate), (same, gate_of_b) = gated("small"), gated("small")
    async with process(agents=[agent], **settings) as a, process(agents=[same], **settings) as b:
        ticket = await a.submit()
        viewer = asyncio.create_task(watched(b, ticket.run_id))
        await gate.reached.wait()
        waiting = await a.submit(background=True)
        async with asyncio.timeout(5):
            await gate_of_b.reached.wait()
        run, is_stopping = await a.cancel(waiting, wait_s=5)
        assert (run.status.value, is_stopping) == ("CANCELLED", False)
        gate.opened.set()
        async with asyncio.timeout(5):
            assert [index for index, _ in await viewer] == list(range(len(await a.log(ticket.run_id))))
        assert not a.container.live.is_connected
        assert (await a.container.health.check()).ok


async def cut_notices(process: Process, _redis_url: str) -> None:
    await process.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_notify%' AND pid <> pg_backend_pid()")


async def cut_redis(_process: Process, redis_url: str) -> None:
    async with Redis.from_url(redis_url) as client:
        await client.client_kill_filter(_type="pubsub")


@pytest.mark.parametrize(("with_redis", "cut"), [(False, cut_notices), (True, cut_redis)], ids=["postgresql", "redis"])
async def test_a_link_that_was_cut_is_opened_again_and_nothing_is_missed(
    postgres_url: str, redis_server: str, with_redis: bool, cut: Callable[..., Any]
) -> None:
    settings = {"database_url": postgres_url, "redis_url": redis_server if with_redis else None, **RARE}
    (agent, gate), (same, _) = gated("small"), gated("small")
    async with process(agents=[agent], **settings) as a, process(agents=[same], **settings) as b:
        pair = Pair(a, b, gate, gate)
        await pair.know_each_other()
        ticket = await a.submit()
        viewer = asyncio.create_task(watched(b, ticket.run_id))
        await gate.reached.wait()
        await attached(b)
        await cut(a, redis_server)
        gate.opened.set()
        async with asyncio.timeout(SOON_S):
            assert [index for index, _ in await viewer] == list(range(len(await a.log(ticket.run_id))))
        await pair.know_each_other()


# ---- news ------------------------------------------------------------------------------------------------------------------------


def test_news_come_out_as_they_went_in() -> None:
    news = News(moved={"r1": 7, "r2": 0}, is_due=True, cancels=["r3"])
    assert News.decode(news.encode()) == news


def test_news_that_would_be_too_long_say_everything() -> None:
    news = News(moved={f"{n:036}": 1_000_000 for n in range(200)})
    assert len(news.encode()) < MOST_BYTES
    assert News.decode(news.encode()) == News(is_everything=True)


@pytest.mark.parametrize("text", ["", "*", "[]", '{"moved": {"r1": "7"}}', '{"cancels": 1}'])
def test_news_that_can_not_be_read_may_say_anything(text: str) -> None:
    assert News.decode(text) == News(is_everything=True)

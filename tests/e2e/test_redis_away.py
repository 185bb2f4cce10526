"""Redis stops, hangs and comes back while two servers are under load: one line each time, slower tails, and nothing else."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from support.e2e_history import check_ends, problems, read_history
from support.e2e_load import Load
from support.e2e_viewer import Viewer, health, until
from support.private_redis import PrivateRedis, private_redis
from support.server import running

LOST, BACK = "no wake-ups between processes", "wake-ups between processes are back"
POLL_S = 5
"""So rare that a poll can't be mistaken for a wake-up."""


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A database of the kind that a test asks for."""
    found: str = request.getfixturevalue(request.param)
    return found


async def connected(clients: list[httpx.AsyncClient], wanted: bool) -> None:
    async def is_so() -> bool:
        return all([(await health(client))["live"]["connected"] is wanted for client in clients])

    await until(is_so, 20, f"wake-ups through Redis: {wanted}")


@contextlib.asynccontextmanager
async def loaded(bases: list[str]) -> AsyncIterator[list[Load]]:
    """A load at each server; when this ends, every run has been seen to its end."""
    loads = [Load(base, seed=random.SystemRandom().randrange(10**6), clients=3) for base in bases]
    tasks = [asyncio.create_task(load.run()) for load in loads]
    try:
        yield loads
        for load in loads:
            load.stop()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def watched_and_cancelled_elsewhere(here: httpx.AsyncClient, there: httpx.AsyncClient) -> tuple[list[Viewer], float]:
    """A foreground run of one server, watched at the other, and a second one that the other is asked to cancel; how long both took."""
    began = time.monotonic()
    run, long = Viewer("native"), Viewer("native")
    await run.post(here, "slow 5 20", limit=1)
    await long.post(here, "slow 600 100", limit=3)
    there_too = Viewer("native", run.run_id)
    async with asyncio.timeout(30):
        await there_too.follow(there)
        answer = await there.post(f"/agents/native/runs/{long.run_id}/cancel", params={"wait": 15})
    assert (there_too.end, answer.json()["status"]) == ("RunCompleted", "CANCELLED")
    return [run, long, there_too], time.monotonic() - began


@pytest.mark.parametrize(
    ("url", "lose", "regain"),
    [
        ("sqlite_url", PrivateRedis.stop, PrivateRedis.start),
        ("postgres_url", PrivateRedis.stop, PrivateRedis.start),
        ("postgres_url", PrivateRedis.hang, PrivateRedis.go_on),
    ],
    indirect=["url"],
    ids=["sqlite, stopped and started", "postgresql, stopped and started", "postgresql, hung"],
)
async def test_redis_may_go_away_and_come_back_under_load(
    url: str, tmp_path: Path, lose: Callable[[PrivateRedis], None], regain: Callable[[PrivateRedis], None]
) -> None:
    viewers: list[Viewer] = []
    with private_redis() as redis:
        settings = {"redis_url": redis.url, "poll_s": POLL_S}
        with running(url, tmp_path, **settings) as a, running(url, tmp_path, **settings) as b:
            async with a.client() as on_a, b.client() as on_b, loaded([a.base, b.base]) as loads:
                await connected([on_a, on_b], True)
                lose(redis)
                await connected([on_a, on_b], False)
                viewers += (await watched_and_cancelled_elsewhere(on_a, on_b))[0]
                assert [(await health(client))["status"] for client in (on_a, on_b)] == ["ok", "ok"]
                await asyncio.to_thread(regain, redis)
                await connected([on_a, on_b], True)
                seen, took_s = await watched_and_cancelled_elsewhere(on_b, on_a)
                viewers += seen
                assert took_s < POLL_S / 2
            assert [(server.log.count(LOST), server.log.count(BACK)) for server in (a, b)] == [(1, 1), (1, 1)]
            assert [word for word in ("Traceback", " ERROR ", "loop failed") if word in a.log + b.log] == []
    history = await read_history(url)
    assert problems(history, [*viewers, *(viewer for load in loads for viewer in load.viewers)]) == []
    assert [problem for load in loads for problem in load.problems] == []
    assert [problem for problem in check_ends(history) if " ended CANCELLED " not in problem] == []

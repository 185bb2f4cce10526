"""Two servers that poll so rarely that only wake-ups can be in time: by NOTIFY, through Redis, or by a look at the SQLite file."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.e2e_viewer import Viewer, started
from support.server import Server, running

RARE = {"poll_s": 30, "cancel_takeover_s": 60}


@pytest.fixture(params=["sqlite", "postgresql", "redis and postgresql"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """The first has one slot."""
    *redis, database = request.param.split(" and ")
    url = request.getfixturevalue("sqlite_url" if database == "sqlite" else "postgres_url")
    more = {"redis_url": request.getfixturevalue("redis_server")} if redis else {}
    with running(url, tmp_path, worker_concurrency=1, **RARE, **more) as a, running(url, tmp_path, **RARE, **more) as b:
        yield a, b


async def test_the_health_says_how_processes_wake_each_other(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> None:
    kind = {"sqlite": "local", "postgresql": "postgresql"}.get(request.node.callspec.params["pair"], "redis")
    for server in pair:
        async with server.client() as http:
            assert (await http.get("/health")).json()["live"] == {"kind": kind, "connected": True}


async def test_a_run_is_started_watched_and_cancelled_across_servers_at_once(pair: tuple[Server, Server]) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        holder = await started(on_a, "native", "slow 600 100")
        cancels, whole = [], []
        for _ in range(8):
            began = time.monotonic()
            # The only slot of the first server is taken: the second one executes, and both viewers see it.
            run = await started(on_a, "native", "slow 2 50")
            viewers = [Viewer("native", run.run_id) for _ in range(2)]
            async with asyncio.timeout(5):
                await asyncio.gather(viewers[0].follow(on_a), viewers[1].follow(on_b))
            whole.append(time.monotonic() - began)
            assert [viewer.end for viewer in viewers] == ["RunCompleted"] * 2
            assert viewers[0].lines == viewers[1].lines
            cancels.append(await _cancelled(on_a, (await started(on_a, "native", "slow 600 100")).run_id))
        await on_b.post(f"/agents/native/runs/{holder.run_id}/cancel", params={"wait": 5})
    assert statistics.median(whole) < 1
    assert statistics.median(cancels) < 0.25


async def _cancelled(http: httpx.AsyncClient, run_id: str) -> float:
    """How long it took from the request, at the server that does not execute, to the stored end."""
    async with asyncio.timeout(5):
        while (await http.get(f"/agents/native/runs/{run_id}")).json()["status"] != "RUNNING":
            await asyncio.sleep(0.01)
    began = time.monotonic()
    answer = await http.post(f"/agents/native/runs/{run_id}/cancel", params={"wait": 5})
    assert answer.json()["status"] == "CANCELLED"
    return time.monotonic() - began

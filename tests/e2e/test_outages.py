"""The store goes away for a while: what runs goes on, what comes is refused, and the server comes back by itself."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import services
from support.e2e_history import problems, read_history
from support.e2e_viewer import Viewer, get_run, started, until
from support.server import Server, running


@pytest.fixture
def private() -> Iterator[services.PrivatePostgres]:
    with services.private_postgres() as found:
        yield found


@pytest.fixture
def url(private: services.PrivatePostgres) -> Iterator[str]:
    with services.database_of(private.url) as found:
        yield found


async def submitted(client: httpx.AsyncClient) -> tuple[int, str | None, bool]:
    answer = await client.post("/agents/plain/runs", data={"message": "hi", "stream": "false"})
    return answer.status_code, answer.json().get("error_type"), "retry-after" in answer.headers


async def health_status(client: httpx.AsyncClient) -> int:
    return (await client.get("/health")).status_code


async def back_to_health(client: httpx.AsyncClient, within_s: float) -> None:
    async def is_healthy() -> bool:
        return await health_status(client) == 200

    await until(is_healthy, within_s, "a healthy server")


@contextlib.asynccontextmanager
async def outage(private: services.PrivatePostgres, seconds: float, mode: str) -> Any:
    """The database is away for at least so long, and back when this ends."""
    await asyncio.to_thread(private.stop, mode)
    began = time.monotonic()
    try:
        yield
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
    finally:
        await asyncio.to_thread(private.start)


def rows_of(server: Server, history: Any) -> list[tuple[str, int, int]]:
    return sorted((run.row["status"], run.row["epoch"], run.row["takeovers"]) for run in history.runs.values())


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_postgresql_may_go_away_for_a_while_and_what_runs_goes_on(
    private: services.PrivatePostgres, url: str, tmp_path: Path, mode: str
) -> None:
    with running(url, tmp_path) as server:
        async with server.client() as client:
            runs = [await started(client, agent, "slow 60 100") for agent in ("native", "plain", "ext")]
            viewers = [Viewer(run.agent, run.run_id) for run in runs]
            watching = [asyncio.create_task(viewer.follow(client)) for viewer in viewers]
            waiting = asyncio.create_task(client.post("/agents/ext/runs", data={"message": "slow 20 100", "stream": "false"}))
            await asyncio.sleep(1)
            async with outage(private, 3, mode):
                refusals = [await submitted(client) for _ in range(3)]
                assert await health_status(client) == 503
            await back_to_health(client, 10)
            assert await submitted(client) == (200, None, False)
            async with asyncio.timeout(20):
                await asyncio.gather(*watching)
            waited = await waiting
        history = await read_history(url)
    assert refusals == [(503, "unavailable", True)] * 3
    assert (waited.status_code, waited.json()["status"]) == (200, "COMPLETED")
    assert [viewer.end for viewer in viewers] == ["RunCompleted"] * 3
    assert problems(history, viewers) == []
    assert {row[2] for row in rows_of(server, history)} == {0}
    assert "Traceback" not in server.log


async def test_streams_and_reads_during_an_outage_of_postgresql_are_refused_in_words(
    private: services.PrivatePostgres, url: str, tmp_path: Path
) -> None:
    with running(url, tmp_path) as server:
        async with server.client() as client:
            run = await (await started(client, "plain", "hi")).follow(client)
            base = f"/agents/plain/runs/{run.run_id}"
            async with outage(private, 0, "immediate"):
                requests = [("GET", base), ("GET", f"{base}/events"), ("POST", f"{base}/resume"), ("POST", f"{base}/cancel"),
                            ("GET", "/agents/plain/runs"), ("GET", "/sessions"), ("GET", "/queue/stats")]  # fmt: skip
                answers = [await client.request(method, path) for method, path in requests]
                agents = await client.get("/agents")
            await back_to_health(client, 10)
            assert (await get_run(client, run))["status"] == "COMPLETED"
    assert [(a.status_code, a.json()["error_type"]) for a in answers] == [(503, "unavailable")] * len(answers)
    assert all("retry-after" in answer.headers for answer in answers)
    assert agents.status_code == 200
    assert "Traceback" not in server.log


async def test_two_servers_outlive_an_outage_without_burying_each_other(
    private: services.PrivatePostgres, url: str, tmp_path: Path
) -> None:
    with running(url, tmp_path) as a, running(url, tmp_path) as b:
        async with a.client() as on_a, b.client() as on_b:
            runs = [await started(client, "ext", "slow 80 100") for client in (on_a, on_b) for _ in range(4)]
            await asyncio.sleep(1)
            async with outage(private, 4, "immediate"):
                pass
            async with asyncio.timeout(25):
                await asyncio.gather(*(run.follow(client) for run in runs for client in (on_a,)))
            workers = (await on_b.get("/queue/stats")).json()["workers"]
        history = await read_history(url)
    assert problems(history, runs) == []
    assert rows_of(a, history) == [("COMPLETED", 1, 0)] * 8
    assert [worker["dead"] for worker in workers] == [False, False]


async def test_a_sqlite_file_that_is_locked_from_outside_stops_nothing_that_runs(sqlite_url: str, tmp_path: Path) -> None:
    with running(sqlite_url, tmp_path) as server:
        async with server.client() as client:
            viewer = await started(client, "plain", "slow 100 100")
            watching = asyncio.create_task(viewer.follow(client))
            await asyncio.sleep(0.5)
            locker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
            locker.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            refusal = await client.post("/agents/ext/runs", data={"message": "hi", "stream": "false"}, timeout=40)
            refused_s = time.monotonic() - began
            sick = await health_status(client)
            locker.execute("ROLLBACK")
            locker.close()
            await back_to_health(client, 10)
            assert await submitted(client) == (200, None, False)
            async with asyncio.timeout(30):
                await watching
    print(f"refused after {refused_s:.1f} s")
    history = await read_history(sqlite_url)
    assert (refusal.status_code, refusal.json()["error_type"], sick) == (503, "unavailable", 503)
    assert refused_s < 8
    assert problems(history, [viewer]) == []
    assert rows_of(server, history) == [("COMPLETED", 1, 0)] * 2
    assert "Traceback" not in server.log

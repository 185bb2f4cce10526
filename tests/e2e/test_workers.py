"""Servers that only accept and show runs, and processes that only execute them."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.e2e_history import check_ends, problems, read_history
from support.e2e_load import Load
from support.e2e_viewer import Viewer, get_run, health, started, until
from support.server import Server, WorkerProcess, running

AGENTS = ("native", "plain", "ext")


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with running(database_url, tmp_path, worker=False) as found:
        yield found


@pytest.fixture
def worker(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with running(database_url, tmp_path, WorkerProcess, drain_s=1) as found:
        yield found


async def stats(client: httpx.AsyncClient) -> dict[str, int]:
    counts: dict[str, int] = (await client.get("/queue/stats")).json()["counts"]
    return {name: counts[name] for name in ("queued", "running")}


async def test_a_server_without_a_worker_lets_runs_wait_and_says_so(server: Server, database_url: str, tmp_path: Path) -> None:
    async with server.client() as client:
        viewer = Viewer("plain")
        streamed = asyncio.create_task(viewer.post(client, "slow 5 20"))
        answered = asyncio.create_task(client.post("/agents/native/runs", data={"message": "hi", "stream": "false"}))
        cancelled = await started(client, "ext", "hi")

        async def all_wait() -> bool:
            return await stats(client) == {"queued": 3, "running": 0}

        await until(all_wait, 5, "all runs are accepted")
        found = await health(client)
        assert (found["status"], found["worker"]["slots"], found["worker"]["lease"]) == ("ok", 0, True)
        answer = await client.post(f"/agents/ext/runs/{cancelled.run_id}/cancel")
        assert answer.json()["status"] == "CANCELLED"
        await asyncio.sleep(1.5)
        assert await stats(client) == {"queued": 2, "running": 0}
        with running(database_url, tmp_path, WorkerProcess):
            assert (await streamed, (await answered).json()["status"]) == (200, "COMPLETED")
    assert viewer.end == "RunCompleted"
    assert problems(await read_history(database_url), [viewer]) == []


async def test_what_a_worker_executes_is_streamed_waited_for_resumed_continued_and_cancelled_at_the_server(
    server: Server, worker: Server, database_url: str
) -> None:
    async with server.client() as client:
        streams = [Viewer(agent) for agent in AGENTS]
        assert await asyncio.gather(*(viewer.post(client, "slow 10 50") for viewer in streams)) == [200] * 3
        left = Viewer("native")
        await left.post(client, "slow 30 50", limit=4)
        await left.follow(client)
        long = await started(client, "plain", "slow 300 100")
        await long.watch(client, limit=3)
        assert (await client.post(f"/agents/plain/runs/{long.run_id}/cancel", params={"wait": 10})).json()["status"] == "CANCELLED"
        await long.follow(client)
        paused = (await client.post("/agents/native/runs", data={"message": "confirm", "stream": "false"})).json()
        tool = {"tool_call_id": paused["tools"][0]["tool_call_id"], "confirmed": True}
        path = f"/agents/native/runs/{paused['run_id']}/continue"
        gone_on = (await client.post(path, json={"tools": [tool], "stream": False})).json()
    assert [viewer.end for viewer in (*streams, left, long)] == [*["RunCompleted"] * 4, "RunCancelled"]
    assert (paused["status"], gone_on["status"]) == ("PAUSED", "COMPLETED")
    assert problems(await read_history(database_url), [*streams, left, long]) == []


async def test_a_worker_drains_hands_back_releases_its_lease_and_exits_with_0(
    server: Server, worker: Server, database_url: str, tmp_path: Path
) -> None:
    async with server.client() as client:
        short, long = await started(client, "plain", "slow 8 100"), await started(client, "native", "slow 40 100")
        for run in (short, long):
            await run.watch(client, limit=2)
        assert await asyncio.to_thread(worker.terminate) == 0
        assert [(await get_run(client, run))["status"] for run in (short, long)] == ["COMPLETED", "PENDING"]
        assert len((await client.get("/queue/stats")).json()["workers"]) == 1
        with running(database_url, tmp_path, WorkerProcess):
            await asyncio.gather(short.follow(client), long.follow(client))
    history = await read_history(database_url)
    assert history.runs[long.run_id].row["takeovers"] == 0
    assert problems(history, [short, long]) == []
    assert (worker.log.count(" started "), "Traceback" in worker.log) == (1, False)


async def test_a_second_interrupt_of_a_worker_leaves_at_once(sqlite_url: str, tmp_path: Path) -> None:
    with running(sqlite_url, tmp_path, WorkerProcess, drain_s=60) as worker, running(sqlite_url, tmp_path, worker=False) as server:
        async with server.client() as client:
            run = await started(client, "plain", "slow 300 100")
            await run.watch(client, limit=2)
        assert worker.process is not None
        worker.process.send_signal(signal.SIGINT)

        async def drains() -> bool:
            return " draining " in worker.log

        await until(drains, 5, "the worker drains")
        worker.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(worker.process.wait, 5) == -signal.SIGINT


@pytest.mark.timeout(120)
async def test_the_runs_of_killed_workers_go_on_in_the_others(server: Server, worker: Server, database_url: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("WAYSTATION_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"WAYSTATION_TEST_SEED={seed}")
    rng, load = random.Random(seed), Load(server.base, seed)
    with running(database_url, tmp_path, WorkerProcess) as second:
        async with server.client() as client, asyncio.timeout(100), asyncio.TaskGroup() as group:
            clients = group.create_task(load.run())
            for victim in (worker, second) * 3:
                await asyncio.sleep(rng.uniform(0.5, 1.5))
                victim.kill()
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                victim.spawn()
            load.stop()

            async def is_idle() -> bool:
                return clients.done() and await stats(client) == {"queued": 0, "running": 0}

            await until(is_idle, 60, "all runs have ended")
    history = await read_history(database_url)
    assert [*load.problems, *problems(history, load.viewers)] == []
    assert any(run.row["takeovers"] for run in history.runs.values())
    assert check_ends(history) == []

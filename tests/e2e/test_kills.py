"""kill -9 at random moments under load: whatever a client has seen is there, and everything ends."""

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from support.e2e_history import History, check_ends, problems, read_history
from support.e2e_load import Load
from support.e2e_viewer import until
from support.server import Server

BUGS_IN_LOG = ("Traceback", "execution failed", "loop failed", "request failed", "operation refused", "agent failed")


async def kill_at_random(server: Server, kills: int, rng: random.Random) -> None:
    """Kill and restart; about one restart in five is killed as well before it is done."""
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        server.kill()
        if rng.random() < 0.2:
            server.spawn()
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            server.kill()
        await asyncio.to_thread(server.start)


async def history_after_kills(url: str, folder: Path, kills: int) -> tuple[History, list[str]]:
    seed = int(os.environ.get("WAYSTATION_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"WAYSTATION_TEST_SEED={seed}")
    server, began = Server(url, folder), time.monotonic()
    await asyncio.to_thread(server.start)
    load = Load(server.base, seed)
    try:
        async with server.client() as client, asyncio.timeout(170), asyncio.TaskGroup() as group:
            clients = group.create_task(load.run())
            await kill_at_random(server, kills, random.Random(seed))
            load.stop()

            async def is_idle() -> bool:
                counts = (await client.get("/queue/stats")).json()["counts"]
                return clients.done() and counts["queued"] == counts["running"] == 0

            await until(is_idle, 60, "all runs have ended")
    finally:
        server.kill()
    history = await read_history(url)
    log = [f"the log has {word!r}: {server.log[server.log.index(word) :][:1500]}" for word in BUGS_IN_LOG if word in server.log]
    known = sum(bool(viewer.run_id) for viewer in load.viewers)
    print(
        f"{kills} kills, {time.monotonic() - began:.0f} s, {load.submitted} submissions, {known} known runs, "
        f"{sum(v.cuts for v in load.viewers)} cuts; {dict(history.count())}"
    )
    return history, [*load.problems, *problems(history, load.viewers), *log]


@pytest.mark.timeout(220)
async def test_twenty_kills_under_load_lose_nothing_that_a_client_has_seen(sqlite_url: str, tmp_path: Path) -> None:
    history, found = await history_after_kills(sqlite_url, tmp_path, kills=20)
    assert found == []
    assert check_ends(history) == []
    assert len(history.runs) > 50


@pytest.mark.timeout(220)
async def test_kills_lose_nothing_on_postgresql_either(postgres_url: str, tmp_path: Path) -> None:
    history, found = await history_after_kills(postgres_url, tmp_path, kills=5)
    assert found == []
    assert check_ends(history) == []

"""A rolling restart of all replicas under load: clients see refusals and cut streams, and nothing is lost or repeated."""

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from support.chaos_agents import EFFECTS
from support.e2e_history import History, problems, read_history
from support.rolling_load import RollingLoad
from support.server import Server, WorkerProcess

AGENTS = "tests/support/chaos_agents.py"
DRAIN_S = 1
"""Shorter than the longest runs of the load, so that some of them are handed back."""


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A database of the kind that a test asks for."""
    found: str = request.getfixturevalue(request.param)
    return found


def replicas_of(url: str, folder: Path, kinds: list[type[Server]]) -> list[Server]:
    return [kind(url, folder, agents=AGENTS, drain_s=DRAIN_S, worker_concurrency=16) for kind in kinds]


async def restart_each(replicas: list[Server]) -> None:
    """One after the other, as a deployment does: the next one goes when the one before is up."""
    for replica in replicas:
        await asyncio.to_thread(replica.terminate)
        await asyncio.to_thread(replica.start)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize(
    ("url", "kinds"),
    [
        ("sqlite_url", [Server, Server]),
        ("postgres_url", [Server, Server, Server]),
        ("postgres_url", [Server, Server, WorkerProcess]),
    ],
    indirect=["url"],
    ids=["two servers on sqlite", "three servers on postgresql", "two servers and a worker on postgresql"],
)
async def test_a_rolling_restart_of_all_replicas_under_load_loses_and_repeats_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[type[Server]]
) -> None:
    effects = tmp_path / "effects"
    monkeypatch.setenv(EFFECTS, str(effects))
    replicas = replicas_of(url, tmp_path, kinds)
    seed = int(os.environ.get("WAYSTATION_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"WAYSTATION_TEST_SEED={seed}")
    load = RollingLoad([replica.base for replica in replicas if replica.command == "serve"], seed)
    try:
        await asyncio.gather(*(asyncio.to_thread(replica.start) for replica in replicas))
        submitting = asyncio.create_task(load.run())
        await asyncio.sleep(1)
        began = time.monotonic()
        await restart_each(replicas)
        print(f"{len(replicas)} restarts in {time.monotonic() - began:.1f} s, {len(load.viewers)} runs, {load.refusals}")
        load.stop()
        async with asyncio.timeout(45):
            await submitting
        logs = "".join(replica.log for replica in replicas)
    finally:
        for replica in replicas:
            replica.kill()
    history = await read_history(url)
    assert [*load.problems, *problems(history, load.viewers)] == []
    check_runs(history, load)
    assert sorted(effects.read_text().split()) == sorted(load.notes)
    assert any(viewer.cuts for viewer in load.viewers), "no stream was cut: nothing was tried"
    assert any(run.row["epoch"] > 1 for run in history.runs.values()), "no run was handed back: nothing was tried"
    assert "Traceback" not in logs


def check_runs(history: History, load: RollingLoad) -> None:
    """Every accepted run is there once, has completed, and was never taken for the run of a dead process."""
    assert sorted(history.runs) == sorted(viewer.run_id for viewer in load.viewers)
    rows = [run.row for run in history.runs.values()]
    assert {row["status"] for row in rows} == {"COMPLETED"}
    assert {row["takeovers"] for row in rows} == {0}
    assert {viewer.end for viewer in load.viewers} == {"RunCompleted"}
    for viewer in load.viewers:
        assert sorted(viewer.lines) == list(range(len(viewer.lines)))

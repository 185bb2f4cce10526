"""The queue over real processes: tools that outlast a lease, a long line beside other sessions, servers that have nothing to do."""

import asyncio
import itertools
import time
from collections import Counter
from pathlib import Path

import asyncpg
import httpx
import pytest

from support.e2e_history import problems, read_history
from support.e2e_viewer import started
from support.server import clean_environment, running

DEATH_S = 10 * 0.5  # ten unchanged reads of a lease, at least half a second apart
QUIET_S = 10


async def finished(client: httpx.AsyncClient, agent: str, run_id: str, within_s: float = 60) -> dict[str, object]:
    """The run at its end."""
    async with asyncio.timeout(within_s):
        while True:
            run = (await client.get(f"/agents/{agent}/runs/{run_id}")).json()
            if run["status"] not in ("PENDING", "RUNNING"):
                return dict(run)
            await asyncio.sleep(0.1)


async def test_a_tool_that_outlasts_a_lease_is_called_once(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = tmp_path / "effects"
    monkeypatch.setenv("SLOW_EFFECTS", str(effects))
    assert "SLOW_EFFECTS" in clean_environment()
    agents = "tests/support/slow_agents.py"
    with running(database_url, tmp_path, agents=agents) as a, running(database_url, tmp_path, agents=agents):
        async with a.client() as client:
            asked = {name: await started(client, "slow", f"{name} {2 * DEATH_S} {name}") for name in ("in_a_thread", "in_the_loop")}
            runs = [await finished(client, "slow", viewer.run_id) for viewer in asked.values()]
    assert sorted(effects.read_text().split()) == ["in_a_thread", "in_the_loop"]
    history = await read_history(database_url)
    assert [(run["status"], history.runs[str(run["run_id"])].row["epoch"]) for run in runs] == [("COMPLETED", 1)] * 2


async def test_twenty_turns_of_one_session_run_in_their_order_and_starve_no_other(database_url: str, tmp_path: Path) -> None:
    line, others = [], []
    with running(database_url, tmp_path) as a, running(database_url, tmp_path) as b:
        async with a.client() as on_a, b.client() as on_b:
            for number in range(20):
                client = (on_a, on_b)[number % 2]
                line.append(await started(client, "native", "slow 3 100", session_id="line", max_attempts="2"))
                others.append(await started(client, "native", "hi", session_id=f"other-{number}", max_attempts="2"))
            for viewer in (*line, *others):
                await finished(on_a, "native", viewer.run_id)
    history = await read_history(database_url)
    assert problems(history, []) == []
    rows = {run_id: run.row for run_id, run in history.runs.items()}
    assert Counter((row["status"], row["attempt"], row["takeovers"]) for row in rows.values()) == {("COMPLETED", 1, 0): 40}
    times = [(rows[viewer.run_id]["started_at"], rows[viewer.run_id]["finished_at"]) for viewer in line]
    assert all(ended <= began + 0.05 for (_, ended), (began, _) in itertools.pairwise(times))
    # The line takes six seconds at least: who is not in it had ended long before.
    assert sum(rows[viewer.run_id]["finished_at"] < times[9][0] for viewer in others) == 20


async def test_servers_that_have_nothing_to_do_say_nothing_and_ask_little(postgres_url: str, tmp_path: Path) -> None:
    asked = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    with running(postgres_url, tmp_path) as a, running(postgres_url, tmp_path) as b:
        async with a.client() as client:
            await finished(client, "native", (await started(client, "native", "hi")).run_id)
        await asyncio.sleep(2)
        connection = await asyncpg.connect(postgres_url)
        try:
            logs, before, began = a.log + b.log, await connection.fetchval(asked), time.monotonic()
            await asyncio.sleep(QUIET_S)
            await asyncio.sleep(1.5)  # PostgreSQL tells of its statistics now and then
            transactions, took_s = await connection.fetchval(asked) - before, time.monotonic() - began
        finally:
            await connection.close()
        assert a.log + b.log == logs
    assert transactions / took_s / 2 < 12

"""A real pgbouncer in transaction mode before PostgreSQL: everything holds with a direct URL, and without one the start is refused."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from support import services
from support.e2e_history import check_ends, problems, read_history
from support.e2e_load import Load
from support.e2e_viewer import Viewer, started, until
from support.pgbouncer import SERVER_CONNECTIONS, Pgbouncer, pgbouncer
from support.server import Server, WorkerProcess, running
from waystation.db import schema
from waystation.db.engine import open_database
from waystation.errors import ConfigError

RARE = {"poll_s": 30, "cancel_takeover_s": 60}
DIRECT_CONNECTIONS = 4
"""Of one process: two for the hot statements, one for the lease, one for LISTEN."""


@pytest.fixture
def bouncer(postgres_server: str) -> Iterator[Pgbouncer]:
    with pgbouncer(postgres_server) as found:
        yield found


async def test_servers_behind_pgbouncer_start_watch_and_cancel_across_each_other_at_once(
    bouncer: Pgbouncer, postgres_url: str, tmp_path: Path
) -> None:
    urls = {"database_url": bouncer.url_of(postgres_url), "database_direct_url": postgres_url}
    with running(folder=tmp_path, worker_concurrency=1, **RARE, **urls) as a, running(folder=tmp_path, **RARE, **urls) as b:
        async with a.client() as on_a, b.client() as on_b:
            holder = await started(on_a, "native", "slow 600 100")
            began = time.monotonic()
            run = await started(on_a, "native", "slow 2 50")
            viewers = [Viewer("native", run.run_id) for _ in range(2)]
            async with asyncio.timeout(10):
                await asyncio.gather(viewers[0].follow(on_a), viewers[1].follow(on_b))
            assert time.monotonic() - began < 5, "only NOTIFY can be in time"
            assert viewers[0].lines == viewers[1].lines
            began = time.monotonic()
            answer = await on_b.post(f"/agents/native/runs/{holder.run_id}/cancel", params={"wait": 10})
            assert (answer.json()["status"], time.monotonic() - began < 5) == ("CANCELLED", True)
            assert (await on_a.get("/health")).json()["live"] == {"kind": "postgresql", "connected": True}
    assert problems(await read_history(postgres_url), [*viewers, holder]) == []


@pytest.mark.timeout(120)
async def test_a_load_through_pgbouncer_survives_the_deaths_of_a_worker_and_of_pgbouncer_itself(
    bouncer: Pgbouncer, postgres_url: str, tmp_path: Path
) -> None:
    urls = {"database_url": bouncer.url_of(postgres_url), "database_direct_url": postgres_url}
    with running(folder=tmp_path, **urls) as server, running(folder=tmp_path, kind=WorkerProcess, **urls) as worker:
        load = Load(server.base, seed=random.SystemRandom().randrange(10**6), clients=8)
        submitting = asyncio.create_task(load.run())
        await asyncio.sleep(2)
        direct, pooled = await connections_of(postgres_url)
        worker.kill()
        await asyncio.sleep(1)
        await asyncio.to_thread(worker.start)
        bouncer.kill()
        await asyncio.sleep(1)
        await asyncio.to_thread(bouncer.start)
        await asyncio.sleep(2)
        load.stop()
        async with asyncio.timeout(60):
            await submitting

        async def is_idle() -> bool:
            async with server.client() as client:
                counts = (await client.get("/queue/stats")).json()["counts"]
            return not (counts["queued"] or counts["running"])

        await until(is_idle, 30, "all runs have ended")
        logs = server.log + worker.log
    history = await read_history(postgres_url)
    assert [*load.problems, *problems(history, load.viewers), *check_ends(history)] == []
    assert len(history.runs) > 20
    assert 0 < direct <= 2 * DIRECT_CONNECTIONS
    assert 0 < pooled <= SERVER_CONNECTIONS
    assert "prepared statement" not in logs
    assert "Traceback" not in logs


async def test_while_pgbouncer_is_away_reads_are_refused_in_words_and_what_runs_goes_on(
    bouncer: Pgbouncer, postgres_url: str, tmp_path: Path
) -> None:
    with running(bouncer.url_of(postgres_url), tmp_path, database_direct_url=postgres_url) as server:
        async with server.client() as client:
            run = await started(client, "ext", "slow 40 100")
            watching = asyncio.create_task(run.follow(client))

            async def has_begun() -> bool:
                return bool(run.lines)

            await until(has_begun, 10, "the run has begun")
            bouncer.kill()
            refused = await client.get("/sessions")
            await asyncio.sleep(2)
            await asyncio.to_thread(bouncer.start)
            async with asyncio.timeout(20):
                await watching
    assert (refused.status_code, refused.json()["error_type"], "retry-after" in refused.headers) == (503, "unavailable", True)
    history = await read_history(postgres_url)
    assert problems(history, [run]) == []
    row = history.runs[run.run_id].row
    assert (row["status"], row["epoch"], row["takeovers"]) == ("COMPLETED", 1, 0)
    assert "Traceback" not in server.log


async def connections_of(url: str) -> tuple[int, int]:
    """How many connections PostgreSQL has of the processes themselves, and of pgbouncer, which adds an address to their name."""
    connection = await asyncpg.connect(url)
    try:
        query = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'waystation%'"
        names = [row["application_name"] for row in await connection.fetch(query)]
    finally:
        await connection.close()
    return names.count("waystation"), len(names) - names.count("waystation")


async def test_sixteen_transactions_at_once_share_three_connections(bouncer: Pgbouncer, postgres_url: str) -> None:
    database = open_database(bouncer.url_of(postgres_url), direct_url=postgres_url)
    try:
        await database.check()
        assert await schema.upgrade(database)
        found = await asyncio.gather(*(database.read(schema.current_revision) for _ in range(200)))
        assert set(found) == {schema.HEAD}
    finally:
        await database.close()


async def test_tables_are_made_once_when_processes_start_together_behind_pgbouncer(bouncer: Pgbouncer, postgres_url: str) -> None:
    databases = [open_database(bouncer.url_of(postgres_url), direct_url=postgres_url) for _ in range(3)]
    try:
        made = await asyncio.gather(*(schema.upgrade(database) for database in databases))
        assert sorted(made) == [False, False, True]
    finally:
        for database in databases:
            await database.close()


@pytest.mark.parametrize("settings", ["", "ignore_startup_parameters = enable_seqscan,enable_hashjoin,enable_mergejoin,lock_timeout"])
async def test_without_a_direct_url_the_start_is_refused_in_one_line(postgres_server: str, postgres_url: str, settings: str) -> None:
    with pgbouncer(postgres_server, settings) as bouncer:
        pooled = bouncer.url_of(postgres_url)
        with pytest.raises(ConfigError, match=r"^WAYSTATION_DATABASE_URL leads to a pooler: WAYSTATION_DATABASE_DIRECT_URL must"):
            await checked(pooled)
        with pytest.raises(ConfigError, match=r"^WAYSTATION_DATABASE_DIRECT_URL leads to a pooler: "):
            await checked(pooled, pooled)


def test_the_command_says_it_and_ends(bouncer: Pgbouncer, postgres_url: str, tmp_path: Path) -> None:
    server = Server(bouncer.url_of(postgres_url), tmp_path)
    server.spawn()
    assert server.process is not None
    assert server.process.wait(20) == 2
    assert "leads to a pooler" in server.log
    assert len(server.log.splitlines()) == 1


def test_two_urls_must_lead_to_one_database(bouncer: Pgbouncer, postgres_server: str, postgres_url: str) -> None:
    with services.database_of(postgres_server) as other, pytest.raises(ConfigError, match="lead to different databases"):
        asyncio.run(checked(bouncer.url_of(postgres_url), other))


async def checked(url: str, direct_url: str | None = None) -> None:
    database = open_database(url, direct_url=direct_url)
    try:
        await database.check()
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("url", "direct"),
    [("sqlite://", "postgresql://x@127.0.0.1/x"), ("postgresql://x@127.0.0.1/x", "sqlite://"), ("postgresql://x@127.0.0.1/x", "mysql://x")],
)
def test_a_direct_url_that_can_not_be_one_is_refused(url: str, direct: str) -> None:
    with pytest.raises(ConfigError, match="WAYSTATION_DATABASE_DIRECT_URL"):
        open_database(url, direct_url=direct)

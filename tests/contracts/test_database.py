"""Transactions of both kinds of database: what a failed, cancelled or cut one leaves behind, and what its error is taken for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa

from waystation.db.engine import Database, open_database
from waystation.db.prepared import Prepared
from waystation.db.tables import Int, run_messages, runs
from waystation.errors import StoreUnavailableError

FIND_SEQ = Prepared(sa.select(runs.c.seq).where(runs.c.seq == sa.bindparam("seq", type_=Int)))
STORE = Prepared(sa.insert(run_messages))
TOO_BIG = 2**70


def message(run_id: str) -> dict[str, Any]:
    return {"run_id": run_id, "session_id": "s", "first_index": 0, "last_index": 0, "payload": "{}"}


def store(conn: sa.Connection, *run_ids: str) -> None:
    STORE.many(conn, [message(run_id) for run_id in run_ids])


def stored(conn: sa.Connection) -> list[str]:
    return list(conn.scalars(sa.select(run_messages.c.run_id).order_by(run_messages.c.run_id)))


def store_and_fail(conn: sa.Connection, run_id: str) -> None:
    store(conn, run_id)
    raise LookupError


def backend(conn: sa.Connection) -> int:
    return int(conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[Database]:
    found = open_database(postgres_url)
    yield found
    await found.close()


async def test_a_value_that_does_not_fit_is_no_outage(database: Database) -> None:
    for ask in (database.hot, database.write, database.read):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # which error it is differs by database
            await ask(FIND_SEQ.rows, {"seq": TOO_BIG})
        assert not isinstance(caught.value, StoreUnavailableError)
    assert list(await database.hot(FIND_SEQ.rows, {"seq": 1})) == []


async def test_a_hot_transaction_that_fails_leaves_nothing_and_the_next_one_commits(database: Database) -> None:
    with pytest.raises(LookupError):
        await database.hot(store_and_fail, "r1")
    await database.hot(store, "r2", "r3")
    assert await database.read(stored) == ["r2", "r3"]


async def test_statements_of_both_kinds_are_in_one_hot_transaction(database: Database) -> None:
    def both(conn: sa.Connection, fails: bool) -> list[str]:
        store(conn, "r1")
        conn.execute(sa.insert(run_messages), message("r2"))
        if fails:
            raise LookupError
        return stored(conn)

    with pytest.raises(LookupError):
        await database.hot(both, True)
    assert await database.hot(both, False) == ["r1", "r2"]
    assert await database.read(stored) == ["r1", "r2"]


async def test_hot_transactions_keep_their_connection(postgres: Database) -> None:
    first = await postgres.hot(backend)
    with pytest.raises(LookupError):
        await postgres.hot(store_and_fail, "r1")
    assert await postgres.hot(backend) == first


async def test_a_hot_connection_that_the_server_has_ended_is_an_outage_once(postgres: Database) -> None:
    pid = await postgres.hot(backend)
    await postgres.write(lambda conn: conn.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid}).all())
    with pytest.raises(StoreUnavailableError):
        await postgres.hot(store, "r1")
    await postgres.hot(store, "r1")
    assert await postgres.read(stored) == ["r1"]


async def test_a_cancelled_hot_transaction_leaves_nothing_and_no_connection_behind(postgres: Database) -> None:

    def slow(conn: sa.Connection) -> None:
        store(conn, "r1")
        conn.execute(sa.text("SELECT pg_sleep(30)"))

    task = asyncio.create_task(postgres.hot(slow))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await postgres.hot(store, "r2")
    assert await postgres.read(stored) == ["r2"]
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
    assert await postgres.read(lambda conn: conn.execute(sa.text(others)).scalar_one()) == 0

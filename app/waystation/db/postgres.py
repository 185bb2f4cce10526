"""PostgreSQL's connections: those of the hot statements, which stay open, and engines of SQLAlchemy for the rest."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from waystation.db.dialect import is_outage, is_transient
from waystation.db.prepared import DRIVER
from waystation.errors import StoreConflictError, StoreUnavailableError

T = TypeVar("T")

# The hot statements go by index, and a claim by the index that has its order. Planned while the tables are small, or before their
# statistics know how much waits, a join would be cached as a sequential scan, and a claim would sort all that waits.
HOT_SETTINGS = {
    "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "enable_bitmapscan": "off",
    "jit": "off", "lock_timeout": "1000",
}  # fmt: skip
POSTGRES_TIMEOUT_S = 10.0
HOT_CONNECTIONS = 2


class HotConnections:
    """Connections that stay open between transactions, which are begun and ended on the driver.

    To take a connection from a pool and to give it back costs as much as a transaction of three statements. Two are enough: one for the
    ledger, one for the claim.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._may_run = asyncio.Semaphore(HOT_CONNECTIONS)
        self._idle: list[AsyncConnection] = []

    async def run(self, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        async with self._may_run:
            conn: AsyncConnection | None = None
            try:
                conn = self._idle.pop() if self._idle else await self._connected()
                result: T = await conn.run_sync(_in_driver_transaction, f, *args, **kwargs)
            except Exception as exc:
                error = told(exc)
                if conn is not None and not isinstance(error, StoreUnavailableError):
                    self._idle.append(conn)
                else:
                    # The others lead to the same server.
                    await drop_connections(*([conn] if conn else []), *self._idle)
                    self._idle.clear()
                raise error from exc
            except BaseException:
                # Cancelled: nobody knows how far the transaction has come.
                if conn is not None:
                    await drop_connections(conn)
                raise
            self._idle.append(conn)
            return result

    async def close(self) -> None:
        await drop_connections(*self._idle)
        self._idle.clear()
        await self._engine.dispose()

    async def _connected(self) -> AsyncConnection:
        conn = await self._engine.connect()
        raw = await conn.get_raw_connection()
        conn.info[DRIVER] = PostgresDriver(raw.driver_connection)
        return conn


class PostgresDriver:
    """asyncpg's own connection, for hot statements. Called in the greenlet of `run_sync`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._has_begun = False

    def rows(self, sql: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = await_only(self._raw.fetch(sql, *values))
        return found

    def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        if len(values) == 1:
            await_only(self._raw.execute(sql, *values[0]))
        else:
            await_only(self._raw.executemany(sql, values))

    def begin(self) -> None:
        if not self._has_begun:
            await_only(self._raw.execute("BEGIN"))
            self._has_begun = True

    def commit(self) -> None:
        if self._has_begun:
            self._has_begun = False
            await_only(self._raw.execute("COMMIT"))

    def roll_back(self) -> None:
        self._has_begun = False
        await_only(self._raw.execute("ROLLBACK"))  # also after a COMMIT that failed; without a transaction it is only a notice


def _in_driver_transaction(conn: sa.Connection, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    driver: PostgresDriver = conn.info[DRIVER]
    try:
        if not getattr(f, "begins_late", False):
            driver.begin()
        result = f(conn, *args, **kwargs)
        driver.commit()
    except Exception:
        driver.roll_back()
        raise
    finally:
        if conn.in_transaction():
            conn.rollback()  # SQLAlchemy's word for it; on the server there is none any more
    return result


async def drop_connections(*connections: AsyncConnection) -> None:
    """Close connections in whatever state they are."""
    for conn in connections:
        with suppress(Exception):
            await conn.invalidate()
            await conn.close()


def told(error: Exception) -> Exception:
    """An error as it leaves the store."""
    if is_transient(error):
        return StoreConflictError()
    if is_outage(error):
        return StoreUnavailableError()
    return error


def postgres_engine(url: sa.URL, settings: dict[str, str], driver: Mapping[str, Any] | None = None, /, **options: Any) -> AsyncEngine:
    return create_async_engine(
        url,
        connect_args={
            "timeout": POSTGRES_TIMEOUT_S,
            "command_timeout": 60,
            "server_settings": {"application_name": "waystation", **settings},
            **(driver or {}),
        },
        **options,
    )

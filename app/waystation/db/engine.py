"""How a storage function is run in one transaction, on SQLite and on PostgreSQL.

A storage function is a plain sync function `f(conn, *args)` made of Core statements. On SQLite it runs in ONE writer thread, one
hop per transaction, or in a small pool of reader threads; on PostgreSQL through asyncpg with `run_sync`. Every trouble of the
database itself leaves here as StoreUnavailableError; what a statement did wrong stays as it is.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from waystation.db.dialect import is_outage, is_transient
from waystation.db.prepared import DRIVER
from waystation.db.threads import Threads
from waystation.errors import ConfigError, StoreConflictError, StoreUnavailableError

T = TypeVar("T")
P = ParamSpec("P")
StorageFunction = Callable[Concatenate[sa.Connection, P], T]

LOCK_WAIT_S = 5.0
LOCK_RETRY_S = 0.001
CHECKPOINT_S = 0.25
READERS = 2

# The hot statements go by index. Planned while the tables are small, a join would be cached as a sequential scan.
HOT_SETTINGS = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "lock_timeout": "1000"}
POSTGRES_TIMEOUT_S = 10.0
HOT_CONNECTIONS = 2


class Database(Protocol):
    """`read` and `write` run in a transaction each; `hot` is `write` for the ledger and the claim, on a connection of its own."""

    @property
    def url(self) -> sa.URL: ...

    async def read(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def hot(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    def sync_write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same from a thread without an event loop, on a connection of that thread: for the lease."""
        ...

    async def close(self) -> None: ...


def open_database(url: str, *, synchronous: str = "NORMAL") -> Database:
    """The database behind a URL of the settings. Nothing is connected yet."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as exc:
        raise ConfigError("WAYSTATION_DATABASE_URL is not a database URL: expected sqlite:///file or postgresql://user@host/name") from exc
    match parsed.get_backend_name():
        case "sqlite":
            return SqliteDatabase(parsed.database or "", synchronous)
        case "postgresql" | "postgres":
            return PostgresDatabase(parsed.set(drivername="postgresql+asyncpg"))
        case other:
            raise ConfigError(f"WAYSTATION_DATABASE_URL: {other!r} is not supported; use sqlite or postgresql")


class SqliteDatabase:
    """A file (or memory, for tests and tries), in WAL mode. In memory there is one connection, so readers use the writer's."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._path = "" if path == ":memory:" else path
        self.url = sa.URL.create("sqlite", database=self._path or None)
        self._synchronous = synchronous
        self._writer = Threads(1, "waystation-writer")
        self._readers = Threads(READERS, "waystation-reader") if self._path else self._writer
        self._local = threading.local()
        self._engines: list[sa.Engine] = []
        self._stop = threading.Event()
        self._checkpoints = threading.Thread(target=self._checkpoint, name="waystation-checkpoint", daemon=True) if self._path else None
        if self._checkpoints:
            self._checkpoints.start()

    async def read(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        begin = "BEGIN" if self._path else "BEGIN IMMEDIATE"
        return await self._readers.run(lambda: self._run(begin, f, *args, **kwargs))

    async def write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.run(lambda: self._run("BEGIN IMMEDIATE", f, *args, **kwargs))

    hot = write

    def sync_write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._path:
            return self._writer.call(lambda: self._run("BEGIN IMMEDIATE", f, *args, **kwargs))
        return self._run("BEGIN IMMEDIATE", f, *args, **kwargs)

    async def close(self) -> None:
        self._stop.set()
        if self._checkpoints:
            await asyncio.to_thread(self._checkpoints.join)
        for pool in {self._writer, self._readers}:
            await asyncio.to_thread(pool.close)
        for engine in self._engines:
            engine.dispose()

    def _run(self, begin: str, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        conn = self._connected()
        raw = conn.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        try:
            _execute_patiently(raw, begin)
            result = f(conn, *args, **kwargs)
            raw.execute("COMMIT")  # not commit(), which has SQLite read the word anew each time
        except Exception as exc:
            raw.rollback()
            if is_outage(exc):
                raise StoreUnavailableError from exc
            raise
        finally:
            # SQLAlchemy takes its first statement for the begin of a transaction, and has to be told that there is none any more.
            if conn.in_transaction():
                conn.rollback()
        return result

    def _connected(self) -> sa.Connection:
        try:
            return self._connection()
        except sa.exc.SQLAlchemyError as exc:
            raise StoreUnavailableError from exc

    def _connection(self) -> sa.Connection:
        """The connection of this thread."""
        conn: sa.Connection | None = getattr(self._local, "conn", None)
        if conn is None or conn.closed or conn.invalidated:
            engine = self._engine()
            conn = self._local.conn = engine.connect()
            conn.info[DRIVER] = SqliteDriver(conn.connection.driver_connection)
            self._engines.append(engine)
        return conn

    def _engine(self) -> sa.Engine:
        # isolation_level None: the driver begins nothing by itself.
        engine = sa.create_engine(self.url, poolclass=sa.StaticPool, connect_args={"check_same_thread": False, "isolation_level": None})

        @sa.event.listens_for(engine, "connect")
        def _pragmas(connection: sqlite3.Connection, _record: Any) -> None:
            # busy_timeout only for what can't be retried by us; its growing sleeps cost half a second under load.
            connection.execute("PRAGMA busy_timeout = 2000")
            # SQLite does not wait at all for this one: processes that start together on a new file are in each other's way.
            _execute_patiently(connection, "PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint = 16000")
            connection.execute("PRAGMA cache_size = -20000")
            connection.execute("PRAGMA busy_timeout = 0")

        return engine

    def _checkpoint(self) -> None:
        """Moves the log into the file from a thread of its own, so that no commit has to wait for it."""
        connection: sqlite3.Connection | None = None
        while not self._stop.wait(CHECKPOINT_S):
            try:
                connection = connection or sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error:
                connection = None  # tried again at the next turn; the automatic checkpoint stands under it
        if connection:
            connection.close()


class SqliteDriver:
    """SQLite's own connection, for hot statements. Its transaction has begun before and ends after them: a lone statement would be no
    cheaper."""

    def __init__(self, raw: Any) -> None:
        self._raw: sqlite3.Connection = raw

    def begin(self) -> None:
        pass

    def commit(self) -> None:
        pass

    def rows(self, sql: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return self._raw.execute(sql, values).fetchall()

    def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        self._raw.executemany(sql, values)


def _execute_patiently(raw: sqlite3.Connection, statement: str) -> None:
    """Wait for another process's lock by asking every millisecond, LOCK_WAIT_S at most."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            raw.execute(statement)
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(LOCK_RETRY_S)


class PostgresDatabase:
    """A pool for everything, and connections of their own for the hot statements."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self._engine = postgres_engine(url, {}, pool_size=8, max_overflow=8, pool_timeout=POSTGRES_TIMEOUT_S, pool_use_lifo=True)
        self._hot = HotConnections(postgres_engine(url, HOT_SETTINGS, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT"))
        self._thread = threading.local()

    async def read(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._in_transaction(self._engine, f, *args, **kwargs)

    async def write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._in_transaction(self._engine, f, *args, **kwargs)
        except StoreConflictError:
            # Two transactions met: one of them is simply done again.
            return await self._in_transaction(self._engine, f, *args, **kwargs)

    async def hot(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._hot.run(f, *args, **kwargs)

    def sync_write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        runner: asyncio.Runner | None = getattr(self._thread, "runner", None)
        if runner is None:
            runner = self._thread.runner = asyncio.Runner()
            self._thread.engine = postgres_engine(self.url, {"lock_timeout": "1000"}, pool_size=1, max_overflow=0)
        return runner.run(self._in_transaction(self._thread.engine, f, *args, **kwargs))

    async def close(self) -> None:
        await self._engine.dispose()
        await self._hot.close()

    async def _in_transaction(self, engine: AsyncEngine, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            async with engine.begin() as conn:
                return await conn.run_sync(f, *args, **kwargs)
        except Exception as exc:
            raise _told(exc) from exc


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
                told = _told(exc)
                if conn is not None and not isinstance(told, StoreUnavailableError):
                    self._idle.append(conn)
                else:
                    # The others lead to the same server.
                    await drop_connections(*([conn] if conn else []), *self._idle)
                    self._idle.clear()
                raise told from exc
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


def _told(error: Exception) -> Exception:
    """An error as it leaves the store."""
    if is_transient(error):
        return StoreConflictError()
    if is_outage(error):
        return StoreUnavailableError()
    return error


def postgres_engine(url: sa.URL, settings: dict[str, str], **options: Any) -> AsyncEngine:
    return create_async_engine(
        url,
        connect_args={
            "timeout": POSTGRES_TIMEOUT_S,
            "command_timeout": 60,
            "server_settings": {"application_name": "waystation", **settings},
        },
        **options,
    )

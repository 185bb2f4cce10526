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
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from waystation.db.dialect import is_outage
from waystation.db.pooler import POOLED, check_same, check_session
from waystation.db.postgres import HOT_SETTINGS, POSTGRES_TIMEOUT_S, HotConnections, postgres_engine, told
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

    async def alter(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what changes tables: never through a pooler."""
        ...

    async def check(self) -> None:
        """Raise ConfigError if the URLs do not lead where they must."""
        ...

    async def close(self) -> None: ...


def open_database(url: str, *, direct_url: str | None = None, synchronous: str = "NORMAL") -> Database:
    """The database behind the URLs of the settings. Nothing is connected yet. With `direct_url`, `url` may lead to a pooler of
    transactions, and the other one leads to the same PostgreSQL itself."""
    parsed = _parsed("WAYSTATION_DATABASE_URL", url)
    direct = _parsed("WAYSTATION_DATABASE_DIRECT_URL", direct_url) if direct_url else None
    if parsed.get_backend_name() == "sqlite":
        if direct is not None:
            raise ConfigError("WAYSTATION_DATABASE_DIRECT_URL is for PostgreSQL behind a pooler; WAYSTATION_DATABASE_URL is of SQLite.")
        return SqliteDatabase(parsed.database or "", synchronous)
    if direct is not None and direct.get_backend_name() == "sqlite":
        raise ConfigError("WAYSTATION_DATABASE_DIRECT_URL must lead to the PostgreSQL of WAYSTATION_DATABASE_URL.")
    return PostgresDatabase(parsed, direct)


def _parsed(name: str, url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as exc:
        raise ConfigError(f"{name} is not a database URL: expected sqlite:///file or postgresql://user@host/name") from exc
    match parsed.get_backend_name():
        case "sqlite":
            return parsed
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+asyncpg")
        case other:
            raise ConfigError(f"{name}: {other!r} is not supported; use sqlite or postgresql")


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
    alter = write

    async def check(self) -> None:
        pass

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
    """A pool for everything, and connections of their own for the hot statements and the lease.

    The pool may lead through a pooler; then `direct_url` is PostgreSQL itself, for all that needs a session.
    """

    def __init__(self, url: sa.URL, direct_url: sa.URL | None = None) -> None:
        self.url = url
        self.direct_url = direct_url or url
        self._is_pooled = direct_url is not None
        self._engine = postgres_engine(
            url, {}, POOLED if self._is_pooled else {}, pool_size=8, max_overflow=8, pool_timeout=POSTGRES_TIMEOUT_S, pool_use_lifo=True
        )
        self._sessions = postgres_engine(self.direct_url, HOT_SETTINGS, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        self._hot = HotConnections(self._sessions)
        self._thread = threading.local()

    async def read(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._in_transaction(self._engine, f, *args, **kwargs)

    async def write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._in_transactions(self._engine, f, *args, **kwargs)

    async def hot(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._hot.run(f, *args, **kwargs)

    def sync_write(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        runner: asyncio.Runner | None = getattr(self._thread, "runner", None)
        if runner is None:
            runner = self._thread.runner = asyncio.Runner()
            self._thread.engine = postgres_engine(self.direct_url, {"lock_timeout": "1000"}, pool_size=1, max_overflow=0)
        return runner.run(self._in_transaction(self._thread.engine, f, *args, **kwargs))

    async def alter(self, f: StorageFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        engine = postgres_engine(self.direct_url, {}, poolclass=sa.NullPool)
        return await self._in_transactions(engine, f, *args, **kwargs)

    async def check(self) -> None:
        try:
            await check_session(self._sessions, "WAYSTATION_DATABASE_DIRECT_URL" if self._is_pooled else "WAYSTATION_DATABASE_URL")
            if self._is_pooled:
                await check_same(self._engine, self._sessions)
        except Exception as exc:
            raise told(exc) from exc

    async def close(self) -> None:
        await self._engine.dispose()
        await self._hot.close()

    async def _in_transactions(self, engine: AsyncEngine, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return await self._in_transaction(engine, f, *args, **kwargs)
        except StoreConflictError:
            # Two transactions met: one of them is simply done again.
            return await self._in_transaction(engine, f, *args, **kwargs)

    async def _in_transaction(self, engine: AsyncEngine, f: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            async with engine.begin() as conn:
                return await conn.run_sync(f, *args, **kwargs)
        except Exception as exc:
            raise told(exc) from exc

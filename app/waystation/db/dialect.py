"""The one place that knows which database it is: what has to be written differently for SQLite and PostgreSQL."""

import sqlite3
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from waystation.db.tables import Text

__all__ = ["by_dialect", "ignore_conflicts", "is_transient", "json_rows", "lock_schema", "state_of"]

ITEMS = "rows"
MIGRATION_LOCK = 0x5741_5953  # "WAYS"
SQLITE_OUTAGES = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL,
})  # fmt: skip
TRANSIENT_STATES = frozenset({"40P01", "40001", "55P03"})  # deadlock, serialization failure, lock_timeout


class JsonRows(FunctionElement[Any]):
    """Items, seen by the statement as a table: a JSON array of objects in ONE parameter. On SQLite also, where it is compiled with
    `lone_item`, one item with a parameter for each column; `Prepared` knows."""

    inherit_cache = True


@compiles(JsonRows, "postgresql")
def _json_rows_postgresql(element: Any, compiler: Any, **kw: Any) -> str:
    types = compiler.dialect.type_compiler_instance
    columns = ", ".join(f"{c.name} {types.process(c.type)}" for c in element.type._elements)
    array = compiler.process(sa.cast(element.clauses.clauses[0], JSONB), **kw)
    return f"(SELECT * FROM jsonb_to_recordset({array}) AS r({columns}))"


@compiles(JsonRows, "sqlite")
def _json_rows_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    if kw.get("lone_item"):
        parameters = {c.name: sa.bindparam(f"{ITEMS}_{c.name}", type_=c.type) for c in element.type._elements}
        return f"(SELECT {', '.join(f'{compiler.process(p, **kw)} AS {name}' for name, p in parameters.items())})"
    columns = ", ".join(f"json_extract(value, '$.{c.name}') AS {c.name}" for c in element.type._elements)
    return f"(SELECT {columns} FROM json_each({compiler.process(element.clauses, **kw)}))"


def item_column(parameter: str) -> str | None:
    """The column of a lone item that a parameter has."""
    return parameter.removeprefix(f"{ITEMS}_") if parameter.startswith(f"{ITEMS}_") else None


def json_rows(parameter: str = ITEMS, /, **columns: sa.types.TypeEngine[Any]) -> Any:
    """The columns of the items that a statement is executed for; their `.table` goes into FROM."""
    values = JsonRows(sa.bindparam(parameter, type_=Text))
    return values.table_valued(*(sa.column(n, t) for n, t in columns.items()), name="v" if parameter == ITEMS else parameter).c


def ignore_conflicts(table: sa.Table) -> Any:
    """An INSERT whose statement may end in ON CONFLICT DO NOTHING; PostgreSQL's form compiles on SQLite too."""
    return insert(table)


def by_dialect(conn: sa.Connection, *, sqlite: Any, postgresql: Any) -> Any:
    """The form of a statement for the database of this connection."""
    return sqlite if conn.dialect.name == "sqlite" else postgresql


def is_transient(error: Exception) -> bool:
    """Whether another transaction was in the way, so that the same one may well succeed when it is done once more."""
    return state_of(error) in TRANSIENT_STATES


def state_of(error: Exception) -> str | None:
    """The SQLSTATE with which PostgreSQL refused, if that is what happened."""
    return _state_of(_original(error))


def is_outage(error: Exception) -> bool:
    """Whether the database itself is the trouble (out of reach, full, locked, shut down), not what was asked of it."""
    original = _original(error)
    if isinstance(original, sqlite3.Error):
        # The primary code is in the low byte. Code 1 is an error of SQL or of a value, but for tables that are not there.
        code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        return code in SQLITE_OUTAGES or "no such table" in str(original)
    if isinstance(original, sa.exc.TimeoutError | OSError | asyncpg.InternalClientError):
        return True  # the last: a connection that was lost while it was idle
    if isinstance(original, asyncpg.InterfaceError):
        return not isinstance(original, ValueError)  # a value that does not fit is an InterfaceError too
    # 08 connection, 53 resources, 57 shut down or restarting, 58 system, 25006 read-only standby,
    # 42P01 tables that are not there
    state = _state_of(original) or ""
    return getattr(error, "connection_invalidated", False) or state[:2] in ("08", "53", "57", "58") or state in ("25006", "42P01")


def _original(error: Exception) -> BaseException:
    """The driver's error behind one of SQLAlchemy, or the error itself: hot statements raise the driver's own."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _state_of(error: BaseException) -> str | None:
    state: str | None = getattr(error, "sqlstate", None)
    return state


def lock_schema(conn: sa.Connection) -> None:
    """Lets one process at a time change the tables, until its transaction ends. SQLite's write transaction does so by itself."""
    if conn.dialect.name == "postgresql":
        conn.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})

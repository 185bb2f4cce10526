"""The one place that knows which database it is: what has to be written differently for SQLite and PostgreSQL."""

import sqlite3
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from waystation.db.tables import Text

__all__ = ["by_dialect", "ignore_conflicts", "is_transient", "json_rows", "lock_schema"]

MIGRATION_LOCK = 0x5741_5953  # "WAYS"
SQLITE_OUTAGES = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL,
})  # fmt: skip
TRANSIENT_STATES = frozenset({"40P01", "40001", "55P03"})  # deadlock, serialization failure, lock_timeout


class JsonRows(FunctionElement[Any]):
    """A JSON array of objects, sent as ONE parameter, seen by the statement as a table."""

    inherit_cache = True


@compiles(JsonRows, "postgresql")
def _json_rows_postgresql(element: Any, compiler: Any, **kw: Any) -> str:
    types = compiler.dialect.type_compiler_instance
    columns = ", ".join(f"{c.name} {types.process(c.type)}" for c in element.type._elements)
    array = compiler.process(sa.cast(element.clauses.clauses[0], JSONB), **kw)
    return f"(SELECT * FROM jsonb_to_recordset({array}) AS r({columns}))"


@compiles(JsonRows, "sqlite")
def _json_rows_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    columns = ", ".join(f"json_extract(value, '$.{c.name}') AS {c.name}" for c in element.type._elements)
    return f"(SELECT {columns} FROM json_each({compiler.process(element.clauses, **kw)}))"


def json_rows(**columns: sa.types.TypeEngine[Any]) -> Any:
    """The columns of the parameter `:rows`, a JSON array of objects; their `.table` goes into FROM."""
    parameter = sa.bindparam("rows", type_=Text)
    return JsonRows(parameter).table_valued(*(sa.column(n, t) for n, t in columns.items()), name="v").c


def ignore_conflicts(table: sa.Table) -> Any:
    """An INSERT whose statement may end in ON CONFLICT DO NOTHING; PostgreSQL's form compiles on SQLite too."""
    return insert(table)


def by_dialect(conn: sa.Connection, *, sqlite: Any, postgresql: Any) -> Any:
    """The form of a statement for the database of this connection."""
    return sqlite if conn.dialect.name == "sqlite" else postgresql


def is_transient(error: BaseException | None) -> bool:
    """Whether another transaction was in the way, so that the same one may well succeed when it is done once more."""
    return isinstance(error, sa.exc.DBAPIError) and getattr(error.orig, "sqlstate", None) in TRANSIENT_STATES


def is_outage(error: Exception) -> bool:
    """Whether the database itself is the trouble (out of reach, full, locked, shut down), not what was asked of it."""
    if isinstance(error, sa.exc.TimeoutError | OSError):
        return True
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        # The primary code is in the low byte. Code 1 is an error of SQL or of a value, but for tables that are not there.
        code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        return code in SQLITE_OUTAGES or "no such table" in str(original)
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    if isinstance(error, sa.exc.InterfaceError):
        return True
    state = getattr(error.orig, "sqlstate", None) or ""
    # 08 connection, 53 resources, 57 shut down or restarting, 58 system, 25006 read-only standby,
    # 42P01 tables that are not there
    return error.connection_invalidated or state[:2] in ("08", "53", "57", "58") or state in ("25006", "42P01")


def lock_schema(conn: sa.Connection) -> None:
    """Lets one process at a time change the tables, until its transaction ends. SQLite's write transaction does so by itself."""
    if conn.dialect.name == "postgresql":
        conn.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})

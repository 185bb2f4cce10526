"""Hot statements, which on SQLite run on the driver's cursor.

They are Core statements like all others, compiled once. What SQLAlchemy does anew at each execution (cache keys, contexts, result
processors) costs 75 µs a statement here, three times what SQLite itself takes for a small one; on PostgreSQL it is lost beside the
round trip, and the driver needs what SQLAlchemy puts around it. Values come back as the driver has them: a flag of SQLite is 0 or 1.
A connection that somebody listens to is served by SQLAlchemy, so that the listener sees every statement.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa


class Prepared:
    """A Core statement without expanding parameters. Compiled when it is first needed."""

    __slots__ = ("_defaults", "_make_row", "_names", "_sql", "statement")

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self._sql = ""
        self._names: Sequence[str] = ()
        self._defaults: dict[str, Any] = {}
        self._make_row: Any = tuple

    def rows(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Execute it; the rows that it returns, with the names of its columns."""
        raw = self._raw(conn)
        if raw is None:
            return conn.execute(self.statement, dict(parameters)).all()
        return list(map(self._make_row, raw.execute(self._sql, self._values(parameters))))

    def many(self, conn: sa.Connection, items: Sequence[Mapping[str, Any]]) -> None:
        """Execute it for each item; it returns nothing."""
        raw = self._raw(conn)
        if raw is None:
            conn.execute(self.statement, [dict(item) for item in items])
        else:
            raw.executemany(self._sql, map(self._values, items))

    def _values(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        defaults = self._defaults
        return tuple([parameters[name] if name in parameters else defaults[name] for name in self._names])

    def _raw(self, conn: sa.Connection) -> Any:
        """SQLite's own connection, or None where SQLAlchemy is to execute."""
        if conn.dialect.name != "sqlite" or conn.dispatch.before_cursor_execute:
            return None
        if not self._sql:
            self._compile(conn.dialect)
        return conn.connection.driver_connection

    def _compile(self, dialect: sa.Dialect) -> None:
        compiled: Any = self.statement.compile(dialect=dialect)
        self._names = tuple(compiled.positiontup or ())
        self._defaults = {name: value for name, value in compiled.params.items() if value is not None}
        if returned := [column.name for column in self.statement.exported_columns]:
            row: Any = namedtuple("Row", returned)  # type: ignore[misc]
            self._make_row = row._make
        self._sql = str(compiled)

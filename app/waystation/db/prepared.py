"""Hot statements, which run on the driver's connection.

They are Core statements like all others, compiled once for each dialect. What SQLAlchemy does anew at each execution (cache keys,
contexts, result processors) costs several times what the driver takes for a small one. Values come back as the driver has them: a flag
of SQLite is 0 or 1.

Only on connections whose transactions `db.engine` begins and ends on the driver too: those have a `Driver` in their `info`. On any other
connection, and on one that somebody listens to, SQLAlchemy executes them.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from pydantic_core import to_json

from waystation.db.dialect import ITEMS, item_column

DRIVER = "waystation.driver"

F = TypeVar("F", bound=Callable[..., Any])


class Driver(Protocol):
    """A driver's connection. Values are given by position."""

    def begin(self) -> None:
        """Begin a transaction, unless one has begun."""
        ...

    def commit(self) -> None:
        """Commit the transaction, if one has begun."""
        ...

    def rows(self, sql: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]: ...
    def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None: ...


class Prepared:
    """A Core statement without expanding parameters. Compiled when it is first needed.

    `alone`: where no transaction has begun yet, it may be one by itself.
    """

    __slots__ = ("_alone", "_forms", "statement")

    def __init__(self, statement: Any, *, alone: bool = False) -> None:
        self.statement = statement
        self._alone = alone
        self._forms: dict[tuple[str, bool], _Form] = {}

    def rows(self, conn: sa.Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Execute it; the rows that it returns, with the names of its columns."""
        driver = _driver_of(conn)
        if driver is None:
            return conn.execute(self.statement, dict(parameters)).all()
        if not self._alone:
            driver.begin()
        form = self._form(conn.dialect)
        return list(map(form.make_row, driver.rows(form.sql, form.values(parameters))))

    def each(self, conn: sa.Connection, items: Sequence[Mapping[str, Any]], **parameters: Any) -> Sequence[Any]:
        """Execute it over `json_rows`, for these items; no items, no statement. The rows that it returns."""
        if not items:
            return ()
        if len(items) == 1 and conn.dialect.name == "sqlite":
            # SQLite reads a JSON array anew for each column of each row. Items one by one would cost a busy process more than that:
            # with each statement the thread gives the interpreter away and waits for it.
            form, driver = self._form(conn.dialect, lone_item=True), _driver_of(conn)
            values = form.values_of_item(items[0], parameters)
            found: Any = conn.exec_driver_sql(form.sql, values).all() if driver is None else driver.rows(form.sql, values)
            return list(map(form.make_row, found))
        return self.rows(conn, {ITEMS: to_json(items, inf_nan_mode="constants").decode(), **parameters})

    def many(self, conn: sa.Connection, items: Sequence[Mapping[str, Any]]) -> None:
        """Execute it for each item; it returns nothing."""
        driver = _driver_of(conn)
        if driver is None:
            conn.execute(self.statement, [dict(item) for item in items])
        else:
            driver.begin()
            form = self._form(conn.dialect)
            driver.many(form.sql, [form.values(item) for item in items])

    def _form(self, dialect: sa.Dialect, *, lone_item: bool = False) -> "_Form":
        form = self._forms.get((dialect.name, lone_item))
        if form is None:
            form = self._forms[dialect.name, lone_item] = _Form(self.statement, dialect, lone_item=lone_item)
        return form


class _Form:
    """A statement as text for one dialect, with the order of its values."""

    __slots__ = ("_defaults", "_names", "_places", "make_row", "sql")

    def __init__(self, statement: Any, dialect: sa.Dialect, *, lone_item: bool) -> None:
        compiled: Any = statement.compile(dialect=dialect, compile_kwargs={"lone_item": True} if lone_item else {})
        self.sql = str(compiled)
        self._names = tuple(compiled.positiontup or ())
        # What is a column of the lone item, and what the name of another parameter.
        self._places = tuple((item_column(name), name) for name in self._names)
        self._defaults = {name: value for name, value in compiled.params.items() if value is not None}
        self.make_row: Any = tuple
        if returned := [column.name for column in statement.exported_columns]:
            row: Any = namedtuple("Row", returned)  # type: ignore[misc]
            self.make_row = row._make

    def values(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        defaults = self._defaults
        return tuple([parameters[name] if name in parameters else defaults[name] for name in self._names])

    def values_of_item(self, item: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values for a lone item. A column that it lacks is NULL, as it is in JSON."""
        defaults = self._defaults
        return tuple([
            item.get(column) if column else parameters[name] if name in parameters else defaults[name]
            for column, name in self._places
        ])  # fmt: skip


def begins_late(f: F) -> F:
    """Marks a storage function that says itself when its transaction begins: with its first statement that is not `alone`, or by
    `begin`. It must do so before it has SQLAlchemy execute a statement that writes."""
    f.begins_late = True  # type: ignore[attr-defined]
    return f


def begin(conn: sa.Connection) -> None:
    """Begin the transaction of a function that begins late, if that has not happened."""
    if driver := _driver_of(conn):
        driver.begin()


def commit(conn: sa.Connection) -> None:
    """Commit what a function that begins late has done so far, where the database takes more than one transaction for it."""
    if driver := _driver_of(conn):
        driver.commit()


def _driver_of(conn: sa.Connection) -> Driver | None:
    if conn.dispatch.before_cursor_execute:
        return None
    driver: Driver | None = conn.info.get(DRIVER)
    return driver

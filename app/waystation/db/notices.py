"""LISTEN and NOTIFY on a connection of their own. One channel; every process on the database hears it."""

from collections.abc import Callable
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from waystation.db.postgres import drop_connections, postgres_engine

CHANNEL = "waystation"
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class Notices:
    """A link of `live.remote`."""

    def __init__(self, url: sa.URL) -> None:
        self._engine = postgres_engine(url, {}, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        self._connection: AsyncConnection | None = None
        self._driver: Any = None

    async def open(self, on_text: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        try:
            self._connection = await self._engine.connect()
            self._driver = (await self._connection.get_raw_connection()).driver_connection
            self._driver.add_termination_listener(lambda _: on_lost())
            await self._driver.add_listener(CHANNEL, lambda _driver, _pid, _channel, text: on_text(text))
        except (sa.exc.SQLAlchemyError, *DRIVER_ERRORS) as exc:
            raise ConnectionError(str(exc)) from exc

    async def send(self, text: str) -> None:
        try:
            await self._driver.execute("SELECT pg_notify($1, $2)", CHANNEL, text)
        except DRIVER_ERRORS as exc:
            raise ConnectionError(str(exc)) from exc

    async def close(self) -> None:
        if self._connection is not None:
            await drop_connections(self._connection)
            self._connection = None

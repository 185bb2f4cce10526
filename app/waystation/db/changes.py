"""Whether anybody has committed to a SQLite file: the cheapest question there is, on a connection of its own thread."""

import asyncio
import sqlite3

from waystation.db.threads import Threads
from waystation.errors import StoreUnavailableError


class FileChanges:
    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = Threads(1, "waystation-changes")
        self._connection: sqlite3.Connection | None = None

    async def version(self) -> int:
        """Another number after each commit of any process, this one included. Raises StoreUnavailableError."""
        try:
            return await self._thread.run(self._version)
        except sqlite3.Error as exc:
            raise StoreUnavailableError from exc

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.close)
        if self._connection is not None:
            self._connection.close()

    def _version(self) -> int:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

"""Live on one machine: nothing is sent. Other processes on the same SQLite file see that it has changed."""

import asyncio

from waystation.db.changes import FileChanges
from waystation.errors import StoreUnavailableError
from waystation.live.base import News, OnNews

LOOK_S = 0.05
ALONE_S = 1.0


class LocalLive:
    """`changes` is None for a database in memory, which has no other processes."""

    kind = "local"
    is_connected = True

    def __init__(self, changes: FileChanges | None, on_news: OnNews) -> None:
        self.has_others = True
        self._changes = changes
        self._on_news = on_news

    def tell_events(self, run_id: str, last_index: int) -> None:
        pass

    def tell_due(self) -> None:
        pass

    def tell_cancel(self, run_id: str) -> None:
        pass

    async def run(self) -> None:
        seen = 0
        while True:
            if self._changes is None or not self.has_others:
                await asyncio.sleep(ALONE_S)
                continue
            await asyncio.sleep(LOOK_S)
            try:
                version = await self._changes.version()
            except StoreUnavailableError:
                continue
            if version != seen:
                seen = version
                self._on_news(News(is_everything=True))

    async def close(self) -> None:
        if self._changes is not None:
            await self._changes.close()

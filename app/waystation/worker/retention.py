"""Retention: removes logs and runs by their age, where the settings say so.

It goes in slices, each a short transaction. How many runs the next one looks at follows from how long the last one took, and between two it
rests for longer than that, so that runs under way hardly notice.
"""

import asyncio
import time

from waystation.clock import now
from waystation.config import Settings
from waystation.db.engine import Database, StorageFunction
from waystation.errors import StoreUnavailableError
from waystation.store import retention
from waystation.store.retention import START, Place

EVERY_S = 600.0
DAY_S = 86_400.0
FIRST_SLICE = 50
MOST_IN_SLICE = 200
SLICE_S = 0.02
"""What a slice should take; others wait for it on SQLite."""


class Retention:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._logs_place = START
        """Nothing ends before it any more, so the logs up to it need no second look. Runs do: what they are kept for may go."""

    async def run(self) -> None:
        while True:
            try:
                await self.remove()
            except StoreUnavailableError:
                pass  # the ledger tells of it; the next round goes on
            await asyncio.sleep(EVERY_S)

    async def remove(self) -> None:
        """One round: all that is old by now."""
        at = now()
        if (days := self._settings.keep_runs_days) is not None:
            await self._slices(retention.remove_runs, at - days * DAY_S, START)
        if (days := self._settings.keep_logs_days) is not None:
            self._logs_place = await self._slices(retention.remove_logs, at - days * DAY_S, self._logs_place)

    async def _slices(self, f: StorageFunction[[float, Place, int], Place | None], before: float, place: Place) -> Place:
        count = FIRST_SLICE
        while True:
            began = time.monotonic()
            reached = await self._database.write(f, before, place, count)
            took_s = time.monotonic() - began
            if reached is None:
                return place
            place = reached
            count = max(1, min(MOST_IN_SLICE, int(count * SLICE_S / took_s), 2 * count))
            await asyncio.sleep(2 * took_s)

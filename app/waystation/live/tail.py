"""The tail: feeds the channels of runs that other processes execute, by asking the store for all of them at once."""

import asyncio

from waystation.db.engine import Database
from waystation.errors import StoreUnavailableError
from waystation.live.hub import Hub
from waystation.store.looks import read_news


class Tail:
    """`poll_s` is how often the store is asked while nobody wakes the tail."""

    def __init__(self, database: Database, hub: Hub, poll_s: float) -> None:
        self._database = database
        self._hub = hub
        self._poll_s = poll_s
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            known = {channel.run_id: channel.end for channel in self._hub.remote()}
            if not known:
                continue
            try:
                news = await self._database.read(read_news, known)
            except StoreUnavailableError:
                continue  # viewers wait; the next turn asks again
            for channel in self._hub.remote():
                if channel.run_id not in known:
                    continue
                segments = news.get(channel.run_id)
                if segments is None:
                    channel.is_gone = True
                    channel.wake()
                for segment in segments or ():
                    channel.publish(segment)

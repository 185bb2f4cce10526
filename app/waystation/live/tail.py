"""The tail: feeds the channels of runs that other processes execute, by asking the store for many of them at once.

News name the runs to ask for. Under them stands a poll that asks for all; its time runs on while news come, so that a run whose news
were lost does not wait behind others.
"""

import asyncio

from waystation.db.engine import Database
from waystation.errors import StoreUnavailableError
from waystation.live.base import News
from waystation.live.hub import Channel, Hub
from waystation.store.looks import read_news


class Tail:
    """`poll_s` is how often the store is asked for all runs that are watched."""

    def __init__(self, database: Database, hub: Hub, poll_s: float) -> None:
        self._database = database
        self._hub = hub
        self._poll_s = poll_s
        self._wake = asyncio.Event()
        self._asks_all = False
        self._moved: dict[str, int] = {}

    def hear(self, news: News) -> None:
        self._asks_all |= news.is_everything
        for run_id, last_index in news.moved.items():
            channel = self._hub.find_remote(run_id)
            if channel is not None and channel.end < last_index:
                self._moved[run_id] = last_index
        if self._asks_all or self._moved:
            self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        poll_at = loop.time() + self._poll_s
        while True:
            try:
                async with asyncio.timeout_at(poll_at):
                    await self._wake.wait()
            except TimeoutError:
                self._asks_all = True
            self._wake.clear()
            if self._asks_all:
                poll_at = loop.time() + self._poll_s
            await self._ask()

    async def _ask(self) -> None:
        moved, self._moved = self._moved, {}
        channels = self._hub.remote() if self._asks_all else [c for run_id in moved if (c := self._hub.find_remote(run_id))]
        self._asks_all = False
        if not channels:
            return
        try:
            news = await self._database.read(read_news, {channel.run_id: channel.end for channel in channels})
        except StoreUnavailableError:
            return  # viewers wait; the next poll asks again
        for channel in channels:
            if channel.owner is not None:
                continue  # its execution has begun here meanwhile
            segments = news.get(channel.run_id)
            if segments is None:
                channel.is_gone = True
                channel.wake()
            for segment in segments or ():
                channel.publish(segment)
            if segments and channel.end < moved.get(channel.run_id, -1):
                self._again(channel, moved[channel.run_id])

    def _again(self, channel: Channel, last_index: int) -> None:
        """Only a page of the log was read."""
        self._moved[channel.run_id] = max(last_index, self._moved.get(channel.run_id, -1))
        self._wake.set()

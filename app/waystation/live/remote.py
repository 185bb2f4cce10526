"""News over a link: a connection that brings each text to every process, the sender included.

1. What is told while a text is on its way goes with the next one, and the next waits a few milliseconds. So a process sends some hundred
   texts a second at most, whatever its runs do.
2. While no other process lives nothing is gathered.
3. A link that is lost is opened again. What was missed meanwhile is not known, here and elsewhere: both are told "everything".
4. A link whose own words do not come back is lost, whatever its socket says.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from waystation import tasks
from waystation.clock import new_id
from waystation.live.base import News, OnNews
from waystation.logs import get_logger

log = get_logger(__name__)

GATHER_S = 0.005
ECHO_S = 5.0
SILENCE_S = 10.0
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
CLOSE_S = 1.0


class Link(Protocol):
    """`open` and `send` raise OSError when the link can't be had or is lost; `on_lost` is called as soon as that is known. `close` takes
    any state, and `open` may follow it."""

    async def open(self, on_text: Callable[[str], None], on_lost: Callable[[], None]) -> None: ...
    async def send(self, text: str) -> None: ...
    async def close(self) -> None: ...


class RemoteLive:
    def __init__(self, kind: str, link: Link, on_news: OnNews) -> None:
        self.kind = kind
        self.is_connected = False
        self.has_others = True
        self._link = link
        self._on_news = on_news
        self._id = new_id()
        self._gathered = News()
        self._wake = asyncio.Event()
        self._unheard_since: float | None = None
        self._is_missed = False

    # ---- what is told ------------------------------------------------------------------------------------------------------
    def tell_events(self, run_id: str, last_index: int) -> None:
        if self.has_others and self.is_connected:
            self._gathered.moved[run_id] = last_index
            self._wake.set()

    def tell_due(self) -> None:
        if self.has_others and self.is_connected:
            self._gathered.is_due = True
            self._wake.set()

    def tell_cancel(self, run_id: str) -> None:
        if self.has_others and self.is_connected:
            self._gathered.cancels.append(run_id)
            self._wake.set()

    # ---- the link ----------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        wait_s = RETRY_FIRST_S
        while True:
            try:
                async with asyncio.timeout(ECHO_S):
                    await self._link.open(self._hear, self._wake.set)
                self._begin()
                wait_s = RETRY_FIRST_S
                await self._send_for_ever()
            except OSError as error:
                self._note_lost(error)
                await self._link.close()
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_MOST_S)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                if self.is_connected and self._gathered != News():
                    await self._link.send(self._take())
        except OSError:
            pass  # others find it by their polls
        self.is_connected = False
        await self._link.close()

    def _begin(self) -> None:
        self.is_connected = True
        self._unheard_since = None
        self._gathered = News(is_everything=True)
        self._wake.set()
        self._on_news(News(is_everything=True))
        if self._is_missed:
            self._is_missed = False
            log.info("wake-ups between processes are back", kind=self.kind)

    def _note_lost(self, error: OSError) -> None:
        self.is_connected = False
        if not self._is_missed:
            self._is_missed = True
            log.warning("no wake-ups between processes; the store is polled", kind=self.kind, error=str(error) or type(error).__name__)

    async def _send_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await tasks.wait(self._wake, SILENCE_S)  # with nothing to tell, an empty text shows whether the link still works
            self._wake.clear()
            if self._unheard_since is None:
                self._unheard_since = loop.time()
            elif loop.time() - self._unheard_since > ECHO_S:
                raise ConnectionError("own words do not come back")
            async with asyncio.timeout(ECHO_S):
                await self._link.send(self._take())
            await asyncio.sleep(GATHER_S)

    def _take(self) -> str:
        news, self._gathered = self._gathered, News()
        return f"{self._id} {news.encode()}"

    def _hear(self, text: str) -> None:
        sender, _, body = text.partition(" ")
        if sender == self._id:
            self._unheard_since = None
        else:
            self.has_others = True
            self._on_news(News.decode(body))

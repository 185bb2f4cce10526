"""The hub: fans committed events out to the viewers of this process.

1. A viewer registers, then reads the store, then waits, unless the channel has moved meanwhile. So no event can fall between
   reading and waiting.
2. Viewers hold a cursor, not a queue. A channel keeps a bounded window of recent segments; who falls behind it reads the store.
   A stalled reader therefore costs nothing.
3. A run that this process executes publishes into its channel after each commit, and other processes are told. Channels of other runs
   are fed by the `Tail`, which asks the store for many of them at once.
"""

import asyncio
from collections import deque
from typing import Any

from waystation.domain.event import Segment
from waystation.domain.run import RunDetail
from waystation.live.base import Live

WINDOW_BYTES = 1024 * 1024


class Channel:
    """The recent segments of one run, and who waits for the next. Only used in the event loop."""

    __slots__ = (
        "_bytes", "_enders", "_live", "_segments", "_waiters", "detail", "end", "has_ended", "is_gone", "owner",
        "run_id", "users", "version",
    )  # fmt: skip

    def __init__(self, run_id: str, live: Live) -> None:
        self.run_id = run_id
        self._live = live
        self.users = 0
        self.owner: object | None = None
        """The execution of this process that publishes all that is committed of the run, if there is one."""
        self.end = -1
        """The highest index that is known to be committed."""
        self.detail: RunDetail | None = None
        """How the leg ended, once it has, if this process executed it."""
        self._segments: deque[Segment] = deque()
        self._bytes = 0
        self.has_ended = False
        """Whether the last event seen ends a leg."""
        self.version = 0
        """Counts what happened to the channel: who looked at the store waits only if it has not moved meanwhile."""
        self.is_gone = False
        """Whether the run was deleted."""
        self._waiters: set[asyncio.Future[None]] = set()
        self._enders: set[asyncio.Future[None]] = set()

    def begin_leg(self, owner: object) -> None:
        """An execution of this process begins to publish. What is known of an earlier leg's end is not true any more."""
        self.owner = owner
        self.detail = None
        self.has_ended = False

    def end_leg(self, owner: object) -> None:
        """An execution has ended. Who still waits must look at the store: it may have ended without a word."""
        if self.owner is owner:
            self.owner = None
            self.wake()

    def committed(self, segment: Segment) -> None:
        """Events that this process has committed."""
        self.publish(segment)
        self._live.tell_events(self.run_id, segment.last_index)

    def publish(self, segment: Segment) -> None:
        """Committed events, in order. Events that the channel has seen already are ignored."""
        if segment.last_index <= self.end:
            return
        if self._segments and segment.first_index != self.end + 1:
            self._segments.clear()
            self._bytes = 0
        self._segments.append(segment)
        self._bytes += len(segment.lines)
        while self._bytes > WINDOW_BYTES and len(self._segments) > 1:
            self._bytes -= len(self._segments.popleft().lines)
        self.end = segment.last_index
        self.has_ended = segment.ends_leg
        self.version += 1
        _wake(self._waiters)
        if segment.ends_leg:
            _wake(self._enders)

    def since(self, index: int) -> list[Segment] | None:
        """The committed segments behind an index: empty if there are none yet; None if the window does not reach back so far, or
        nothing is known of the run yet, so that the store must be asked."""
        if self.end <= index:
            return [] if self.owner is not None or self.end >= 0 else None
        if not self._segments or self._segments[0].first_index > index + 1:
            return None
        return [segment.after(index) for segment in self._segments if segment.last_index > index]

    def know(self, end: int) -> None:
        """The store was asked: everything up to this index is committed, and what comes will be published."""
        if end > self.end:
            self._segments.clear()
            self._bytes = 0
            self.end = end

    def forget(self) -> None:
        """Drop what is known, so that everybody asks the store."""
        self._segments.clear()
        self._bytes = 0
        self.end = -1
        self.wake()

    def wake(self) -> None:
        """Have everybody look again."""
        self.version += 1
        _wake(self._waiters)
        _wake(self._enders)

    async def changed(self) -> None:
        """Until something is published."""
        await _wait_in(self._waiters)

    async def ended(self) -> None:
        """Until the end of a leg is published."""
        await _wait_in(self._enders)


def _wake(waiters: "set[asyncio.Future[None]]") -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


async def _wait_in(waiters: "set[asyncio.Future[None]]") -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.add(waiter)
    try:
        await waiter
    finally:
        waiters.discard(waiter)


class Hub:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._channels: dict[str, Channel] = {}
        self.is_closed = False
        """Set when this process executes nothing any more: who waits for the end of a run must look for it elsewhere."""

    def attach(self, run_id: str) -> Channel:
        """Register an interest in a run. Every attach needs its detach."""
        channel = self._channels.get(run_id)
        if channel is None:
            channel = self._channels[run_id] = Channel(run_id, self._live)
        channel.users += 1
        return channel

    def detach(self, channel: Channel) -> None:
        channel.users -= 1
        if channel.users == 0 and self._channels.get(channel.run_id) is channel:
            del self._channels[channel.run_id]

    def close(self) -> None:
        self.is_closed = True
        for channel in self._channels.values():
            channel.wake()

    def look_again(self, run_id: str, last_index: int) -> None:
        """Something of the run was committed outside its execution: its viewers, here and elsewhere, must ask the store."""
        channel = self._channels.get(run_id)
        if channel is not None:
            channel.forget()
        self._live.tell_events(run_id, last_index)

    def find_remote(self, run_id: str) -> Channel | None:
        """The channel of a run that is watched here and executed elsewhere."""
        channel = self._channels.get(run_id)
        return channel if channel is not None and channel.owner is None else None

    def remote(self) -> list[Channel]:
        """Channels of runs that this process does not execute."""
        return [channel for channel in self._channels.values() if channel.owner is None]

    def stats(self) -> dict[str, Any]:
        return {"channels": len(self._channels), "users": sum(channel.users for channel in self._channels.values())}

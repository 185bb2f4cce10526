"""Event streams: the frames, and a response of our own that sends them.

A stream of Waystation is a viewer of a log: headers and a first comment go out at once, whole committed segments as one send, a comment
when nothing was sent for a while. A stream whose source fails is cut, never ended cleanly, so that clients can tell the two apart; so is
one that the server closes because it shuts down, after a comment that says so. Why not a library: docs/decisions/0003.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from waystation.domain.event import LEG_ENDS, Segment
from waystation.errors import AppError
from waystation.logs import get_logger

log = get_logger(__name__)

FIRST_COMMENT = b": stream\n"
PING = b": ping\n"
GOING_AWAY = b": the server is shutting down; connect again to go on\n"
RETRY = b"retry: 1000\n"

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class EventFilter:
    """Which events a viewer wants: names, or beginnings of names followed by `*`. The cursor stays that of the whole log."""

    def __init__(self, names: str | None = None) -> None:
        wanted = [name.strip() for name in (names or "").split(",") if name.strip()]
        self._names = {name for name in wanted if not name.endswith("*")}
        self._beginnings = tuple(name[:-1] for name in wanted if name.endswith("*"))
        self.takes_all = not wanted

    @classmethod
    def content_only(cls) -> "EventFilter":
        return cls(",".join(["RunContent", *LEG_ENDS]))

    def takes(self, name: str) -> bool:
        return self.takes_all or name in self._names or name.startswith(self._beginnings)


def frame(index: int, name: str, line: bytes) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (index, name.encode(), line)


def frames(segment: Segment, wanted: EventFilter) -> bytes:
    """A segment as the frames that a viewer wants, maybe none. The first event of a run also carries the `retry:` field."""
    parts = [frame(index, name, line) for index, name, line in segment.each() if wanted.takes(name)]
    if segment.first_index == 0 and parts:
        parts[0] = parts[0][:-1] + RETRY + b"\n"
    return b"".join(parts)


def notice(name: str, **fields: object) -> bytes:
    """A frame that is no event of the run: it has no id, so it never moves a client's cursor."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json({"event": name, **fields}))


class Pings:
    """One clock for all streams: sends a comment to those that were silent for `interval_s`, and closes all at shutdown."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._streams: set[EventStream] = set()
        self._sends: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def add(self, stream: "EventStream") -> None:
        self._streams.add(stream)
        if self._closed:
            stream.go_away()

    def discard(self, stream: "EventStream") -> None:
        self._streams.discard(stream)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._interval_s / 4))
            due = time.monotonic() - self._interval_s + 1.5
            for stream in list(self._streams):
                if stream.sent_at < due and not stream.is_sending:
                    self._keep(asyncio.create_task(stream.ping(), name="ping"))

    def close_all(self) -> None:
        """Close the streams that are open, and those that will be opened, once each has begun."""
        self._closed = True
        for stream in list(self._streams):
            stream.go_away()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)


class EventStream(Response):
    """An ASGI application that answers one request with a stream of ready frames.

    `on_leave` is awaited when the client goes away before the end.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        pings: Pings,
        *,
        headers: dict[str, str] | None = None,
        on_leave: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        # Not Response's own construction: that is for a body that is known.
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = [*HEADERS, *((name.lower().encode(), value.encode()) for name, value in (headers or {}).items())]
        self._chunks = chunks
        self._pings = pings
        self._on_leave = on_leave
        self._task: asyncio.Task[None] | None = None
        self._send: Send | None = None
        self._left = False
        self._going_away = False
        self.sent_at = 0.0
        self.is_sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._task = asyncio.current_task()
        self._send = send
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._write(FIRST_COMMENT)
        self._pings.add(self)
        listener = asyncio.create_task(self._listen(receive), name="stream listener")
        try:
            async for chunk in self._chunks:
                if chunk:
                    await self._write(chunk)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not (self._left or self._going_away):
                raise
            if self._task:
                self._task.uncancel()
        except AppError as error:
            # The headers are gone: all that can still be told is that this was not the end.
            log.warning("stream cut", error_type=error.error_type)
        finally:
            self._pings.discard(self)
            listener.cancel()
            await self._chunks.aclose()
        await self._after()

    async def _after(self) -> None:
        if self._going_away and self._send:
            # Without the end of the body: the server then closes the connection, and clients see a cut.
            await self._write(GOING_AWAY)
        elif self._left and self._on_leave:
            await self._on_leave()

    async def ping(self) -> None:
        await self._write(PING)

    def go_away(self) -> None:
        """The server shuts down: say so and cut the stream."""
        self._going_away = True
        if self._task:
            self._task.cancel()

    async def _write(self, body: bytes) -> None:
        assert self._send is not None
        self.is_sending = True
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            self.is_sending = False
            self.sent_at = time.monotonic()

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        if self._task:
            self._task.cancel()

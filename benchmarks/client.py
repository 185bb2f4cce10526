"""A load client that is not the limit: bare asyncio, prepared requests, kept connections, no HTTP library.

It speaks just enough HTTP/1.1 for the servers measured here: answers with a length, and chunked ones.
"""

import asyncio
import time
from dataclasses import dataclass, field
from urllib.parse import urlencode


@dataclass(slots=True)
class Sample:
    """What a load has seen. Times are in seconds."""

    latencies_s: list[float] = field(default_factory=list)
    first_event_s: list[float] = field(default_factory=list)
    events: int = 0
    errors: int = 0
    wall_s: float = 0.0

    def percentile_ms(self, share: float, values: list[float] | None = None) -> float:
        ordered = sorted(self.latencies_s if values is None else values)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000 if ordered else float("nan")


def request(path: str, fields: dict[str, str]) -> bytes:
    """A form submission as bytes."""
    body = urlencode(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        return self

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    async def _send(self, data: bytes) -> tuple[int, bytes]:
        assert self._reader is not None and self._writer is not None
        self._writer.write(data)
        head = await self._reader.readuntil(b"\r\n\r\n")
        return int(head[9:12]), head.lower()

    async def call(self, data: bytes) -> tuple[int, bytes]:
        """Status and body of an answer that is not streamed."""
        assert self._reader is not None
        status, head = await self._send(data)
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        return status, await self._reader.readexactly(int(length))

    async def stream(self, data: bytes) -> tuple[int, float, int]:
        """Status, seconds until the first event, and the number of events of a streamed answer."""
        assert self._reader is not None
        began = time.perf_counter()
        status, _ = await self._send(data)
        first, count = 0.0, 0
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            chunk = await self._reader.readexactly(size + 2)
            events = chunk.count(b"\ndata:")
            if events and not count:
                first = time.perf_counter() - began
            count += events
        await self._reader.readline()
        return status, first, count


async def submit_for(port: int, data: bytes, callers: int, seconds: float) -> Sample:
    """Submit runs and wait for their answers, over and over, with a number of callers at the same time."""
    sample, end = Sample(), time.perf_counter() + seconds

    async def caller() -> None:
        connection = await Connection(port).open()
        while (began := time.perf_counter()) < end:
            status, body = await connection.call(data)
            sample.latencies_s.append(time.perf_counter() - began)
            sample.errors += status != 200 or b"COMPLETED" not in body
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    sample.wall_s = time.perf_counter() - began
    return sample


async def stream_times(port: int, data: bytes, streams: int, times: int) -> Sample:
    """Read streams to their end, `streams` at the same time, `times` times each."""
    sample = Sample()

    async def viewer() -> None:
        connection = await Connection(port).open()
        for _ in range(times):
            status, first, events = await connection.stream(data)
            sample.first_event_s.append(first)
            sample.events += events
            sample.errors += status != 200 or not events
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(viewer() for _ in range(streams)))
    sample.wall_s = time.perf_counter() - began
    return sample

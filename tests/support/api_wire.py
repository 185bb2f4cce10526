"""The bytes of event streams, and connections that behave badly on purpose."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

ENDS = {"RunCompleted", "RunError", "RunCancelled", "RunPaused"}


@dataclass(frozen=True)
class Frame:
    """One event of a stream; `index` is its id, None for a notice."""

    index: int | None
    name: str
    data: dict[str, Any]


def frames_of(raw: bytes | str) -> list[Frame]:
    """The frames of a stream that ended, read strictly: anything that the contract does not allow is an error."""
    body = raw.encode() if isinstance(raw, str) else raw
    assert not body.startswith(b"\xef\xbb\xbf") and b"\r" not in body
    *blocks, rest = body.split(b"\n\n")
    assert all(line.startswith(b":") for line in rest.split(b"\n") if line), f"half a frame at the end: {rest!r}"
    return [_frame(block.decode()) for block in blocks]


def _frame(block: str) -> Frame:
    lines = [line for line in block.split("\n") if not line.startswith(":")]
    fields = dict(line.split(": ", 1) for line in lines)
    assert len(fields) == len(lines) and set(fields) <= {"id", "event", "data", "retry"}, block
    index = int(fields["id"]) if "id" in fields else None
    data = json.loads(fields["data"])
    assert data["event"] == fields["event"] and data.get("event_index") == index and "data" not in data, block
    return Frame(index, fields["event"], data)


def names(frames: list[Frame]) -> list[str]:
    return [frame.name for frame in frames]


def indices(frames: list[Frame]) -> list[int]:
    """The indices of the run's events; notices have none."""
    return [frame.index for frame in frames if frame.index is not None]


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.data.get("content") or "" for frame in frames if frame.name == "RunContent")


@dataclass
class Wire:
    """One HTTP/1.1 connection whose every byte the test decides."""

    port: int
    reader: asyncio.StreamReader = field(init=False)
    writer: asyncio.StreamWriter = field(init=False)

    async def open(self, *, receive_buffer: int | None = None) -> "Wire":
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=2**26)
        return self

    async def send(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> "Wire":
        """A request with a length; header names with `_` for `-`."""
        told = {"Host": "t", "Content-Type": "application/json", "Content-Length": str(len(body))}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items() if value)]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()
        return self

    async def submit(self, agent: str = "plain", **fields: Any) -> "Wire":
        return await self.send(f"/agents/{agent}/runs", json.dumps(fields).encode())

    async def head(self) -> tuple[int, dict[str, str]]:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end. IncompleteReadError: the stream was cut."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def until(self, mark: bytes) -> bytes:
        """Everything up to a mark in the body, whole chunks."""
        got = b""
        while mark not in got:
            part = await self.chunk()
            assert part, got
            got += part
        return got

    async def body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        got = b""
        while part := await self.chunk():
            got += part
        return got

    async def rest_of_a_cut(self) -> bytes:
        """What came before the connection was closed without the end of the body."""
        got = await self.reader.read()
        assert not got.endswith(b"0\r\n\r\n")
        return got

    def reset(self) -> None:
        """Leave with a RST, as a process that dies does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

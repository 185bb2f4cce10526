"""An endpoint of webhooks on loopback: a real server that answers by a script, and a verification that knows only the specification."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(100, 132))).decode()

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} Scripted", *headers, "content-length: 0", "", ""]).encode()


@dataclass
class Call:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def payload(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


class Receiver:
    """What came, in order. `replies` are given one by one, then `default` to all that follow."""

    def __init__(self) -> None:
        self.port = 0
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        self.default: Reply = OK
        self.open = 0
        self.most_open = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def until(self, count: int, within_s: float = 15.0) -> list[Call]:
        """The calls, once there are so many."""
        async with asyncio.timeout(within_s):
            while len(self.calls) < count:
                await asyncio.sleep(0.01)
        return self.calls

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.calls.append(Call(head[0].split(" ")[1], headers, body))
            reply = self.replies.pop(0) if self.replies else self.default
            if callable(reply):
                await reply(writer)
            else:
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the caller has hung up
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


def verified(call: Call, secret: str = SECRET) -> bool:
    """Whether a call is signed with the secret, by the words of Standard Webhooks: the base64 of HMAC-SHA256 over `id.timestamp.body`,
    the key being what stands in base64 behind `whsec_`."""
    key = base64.b64decode(secret.split("_", 1)[1])
    signed = call.headers["webhook-id"].encode() + b"." + call.headers["webhook-timestamp"].encode() + b"." + call.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    fresh = abs(time.time() - int(call.headers["webhook-timestamp"])) < 60
    return fresh and f"v1,{expected}" in call.headers["webhook-signature"].split(" ")

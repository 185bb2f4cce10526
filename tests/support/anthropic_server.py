"""A scripted Messages API of Anthropic's on 127.0.0.1, as much of it as the `claude` binary asks for.

Each request for a message takes the next step of the script; when none is left, the model says `done`. All requests are recorded.
It answers streaming requests with server-sent events and others with one JSON body, as the real API does.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, kw_only=True)
class Usage:
    input: int = 11
    output: int = 7
    cache_read: int = 0
    cache_write: int = 0

    def wire(self) -> dict[str, int]:
        return {
            "input_tokens": self.input,
            "output_tokens": self.output,
            "cache_read_input_tokens": self.cache_read,
            "cache_creation_input_tokens": self.cache_write,
        }


@dataclass(frozen=True, kw_only=True)
class Say:
    """An answer: thinking, then text. `cut_after` closes the connection after so many pieces."""

    text: str = ""
    thinking: str = ""
    chunk_chars: int = 8
    delay_s: float = 0.0
    cut_after: int | None = None
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, kw_only=True)
class Call:
    """The model asks for a tool. `text` comes before the call."""

    tool: str
    args: dict[str, Any]
    id: str
    text: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, kw_only=True)
class Fail:
    status: int
    message: str = "scripted failure"


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Nothing comes any more; before the first byte, or after the head of the stream."""

    after_head: bool = False


Step = Say | Call | Fail | Hang


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    def texts(self, role: str) -> list[str]:
        """The texts of all messages of a role, without what the binary adds of its own (`<system-reminder>`)."""
        found: list[str] = []
        for message in self.body["messages"]:
            if message["role"] != role:
                continue
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            found += [block["text"] for block in blocks if block["type"] == "text"]
        return [text for text in found if not text.lstrip().startswith("<system-reminder>")]

    def results(self) -> list[dict[str, Any]]:
        """All tool results in it."""
        return [
            block
            for message in self.body["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "tool_result"
        ]


class AnthropicServer:
    """`async with AnthropicServer([step, ...]) as server`: `server.url` is the base address, `server.requests` what was asked."""

    def __init__(self, script: Sequence[Step] = ()) -> None:
        self.requests: list[Request] = []
        self.hung_up = asyncio.Event()
        """Set once a client has closed its connection before its answer was complete."""
        self._script = list(script)
        self._numbers = itertools.count(1)
        self._arrived = asyncio.Condition()
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_post("/v1/messages", self._message)
        app.router.add_post("/v1/messages/count_tokens", self._count)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)

    async def __aenter__(self) -> "AnthropicServer":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._runner.cleanup()

    def then(self, *steps: Step) -> None:
        self._script.extend(steps)

    async def asked(self, count: int = 1) -> Request:
        """The `count`-th request, as soon as it is there."""
        async with asyncio.timeout(30), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def _count(self, request: web.Request) -> web.Response:
        return web.json_response({"input_tokens": len(await request.read()) // 4 + 1})

    async def _message(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        async with self._arrived:
            self.requests.append(Request(request.path_qs, {name.lower(): value for name, value in request.headers.items()}, body))
            self._arrived.notify_all()
        step = self._script.pop(0) if self._script else Say(text="done")
        try:
            return await self._answer(request, body, step)
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up.set()
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any], step: Step) -> web.StreamResponse:
        if isinstance(step, Fail):
            kind = ERROR_TYPES.get(step.status, "api_error")
            return web.json_response({"type": "error", "error": {"type": kind, "message": step.message}}, status=step.status)
        if isinstance(step, Hang) and not step.after_head:
            await asyncio.Event().wait()
        number = next(self._numbers)
        if not body.get("stream") and not isinstance(step, Hang):
            return web.json_response(_whole(step, number, body["model"]))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await stream.prepare(request)
        pieces = 0
        async for event in _events(step, number, body["model"]):
            await stream.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            if isinstance(step, Say) and event["type"] == "content_block_delta":
                pieces += 1
                await asyncio.sleep(step.delay_s)
                if pieces == step.cut_after and request.transport is not None:
                    request.transport.close()
                    return stream
        return stream


def _head(number: int, model: str, usage: dict[str, int]) -> dict[str, Any]:
    return {
        "id": f"msg_{number:024d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _blocks(step: Say | Call) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if isinstance(step, Say) and step.thinking:
        blocks.append({"type": "thinking", "thinking": step.thinking, "signature": "c2lnbmVk"})
    if step.text:
        blocks.append({"type": "text", "text": step.text})
    if isinstance(step, Call):
        blocks.append({"type": "tool_use", "id": step.id, "name": step.tool, "input": step.args})
    return blocks


def _stop_reason(step: Say | Call) -> str:
    return "tool_use" if isinstance(step, Call) else "end_turn"


def _whole(step: Say | Call, number: int, model: str) -> dict[str, Any]:
    return _head(number, model, step.usage.wire()) | {"content": _blocks(step), "stop_reason": _stop_reason(step)}


async def _events(step: Say | Call | Hang, number: int, model: str) -> AsyncIterator[dict[str, Any]]:
    usage = Usage().wire() if isinstance(step, Hang) else step.usage.wire()
    yield {"type": "message_start", "message": _head(number, model, usage | {"output_tokens": 1})}
    yield {"type": "ping"}
    if isinstance(step, Hang):
        await asyncio.Event().wait()
        return
    for index, block in enumerate(_blocks(step)):
        empty, deltas = _parts(block, step.chunk_chars if isinstance(step, Say) else 16)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": _stop_reason(step), "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def _parts(block: dict[str, Any], chars: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as the stream brings it: its empty start and its pieces."""
    match block["type"]:
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in _cut(block["text"], chars)]
        case "thinking":
            pieces = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(block["thinking"], chars)]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*pieces, signature]
        case _:
            text = json.dumps(block["input"])
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in _cut(text, chars)]


def _cut(text: str, chars: int) -> list[str]:
    return [text[start : start + chars] for start in range(0, len(text), chars)]

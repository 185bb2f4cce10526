"""Pure-ASGI middleware: ids of requests, and the limit on bodies.

Not one of Starlette's BaseHTTPMiddleware kind: that costs as much as a whole route, ends broken streams cleanly, and ties background
work to the client's connection.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waystation.clock import new_id
from waystation.errors import PayloadTooLargeError


class RequestIdMiddleware:
    """Gives every request an id of its own, in `request.state.request_id` and in the header X-Request-ID of the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        header = (b"x-request-id", request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, send_with_id)


class BodyLimitMiddleware:
    """Refuses bodies over a limit: at once where the length is told, else when the limit is passed."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        told_too_large = length.isdigit() and int(length) > self._max_bytes
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            if told_too_large:
                raise self._refusal()
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._max_bytes:
                    raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(f"The body is larger than {self._max_bytes} bytes.", limit_bytes=self._max_bytes)

"""The FastAPI application: routes, errors, middleware, and the life of the container."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from waystation.api import agents, approvals, checkpoints, control, errors, ops, queue, runs, sessions, webhooks
from waystation.api.middleware import BodyLimitMiddleware, RequestIdMiddleware
from waystation.api.sse import Pings
from waystation.container import Container

EXPOSED = ["Location", "X-Run-Id", "X-Session-Id", "X-Request-ID", "Retry-After"]

DESCRIPTION = "A server for AI agents. Every run is a durable record with one gapless event log; any connection is only a viewer of it."


def package_version() -> str:
    try:
        return version("waystation")
    except PackageNotFoundError:
        return "0"


def build_app(make_container: Callable[[], Container], cors_origins: tuple[str, ...], max_body_bytes: int, ping_s: float) -> FastAPI:
    """The application. The container is made when it starts, in the loop that serves."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        container = app.state.container = make_container()
        pings = app.state.pings = Pings(ping_s)
        clock = asyncio.create_task(pings.run(), name="pings")
        restore = _drain_on_sigterm(container, pings)
        try:
            await container.start()
            yield
        finally:
            restore()
            pings.close_all()
            clock.cancel()
            await container.close()

    app = FastAPI(title="Waystation", version=package_version(), description=DESCRIPTION, lifespan=lifespan)
    # Not include_router: a router inside a router matches every path twice. The busiest routes come first, before FastAPI's own.
    others = (control, sessions, checkpoints, agents, approvals, queue, webhooks, ops)
    routers = [runs.direct, runs.router, *(module.router for module in others)]
    app.router.routes[:0] = [route for router in routers for route in router.routes]
    errors.install(app)
    app.add_middleware(BodyLimitMiddleware, max_bytes=max_body_bytes)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors_origins), allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED
        )
    app.add_middleware(RequestIdMiddleware)
    return app


Handler = Callable[[int, FrameType | None], Any] | int | None


def _drain_on_sigterm(container: Container, pings: Pings) -> Callable[[], None]:
    """Begin to drain when the signal comes, before the web server waits for its connections: it would wait for streams that end only
    when it is told to. The handler that was there is called as before. Returns what puts it back."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    before: dict[signal.Signals, Handler] = {}

    def begin() -> None:
        container.begin_drain()
        pings.close_all()

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin)
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.getsignal(number)
        signal.signal(number, handle)

    def restore() -> None:
        for number, previous in before.items():
            signal.signal(number, previous)

    return restore

"""The whole server in the test's own event loop, on a port of its own: real HTTP, and the container within reach."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import sqlalchemy as sa
import uvicorn
from benchmarks.stub_agents import stub_agents
from fastapi import FastAPI

from waystation.agents.base import BaseAgent
from waystation.config import Settings
from waystation.container import Container
from waystation.main import Waystation

QUICK = {"poll_s": 0.1, "drain_s": 0.2, "cancel_grace_s": 0.3, "cancel_takeover_s": 5.0}
"""Settings that keep tests short; none changes what a client may rely on."""


class ApiServer:
    """A server that runs; `http` is a client of it."""

    def __init__(self, port: int, waystation: Waystation) -> None:
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self.app = waystation.app
        self.http = self.client()

    @property
    def container(self) -> Container:
        found: Container = self.app.state.container
        return found

    def client(self, **more: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base, timeout=20, trust_env=False, verify=False, **more)

    async def run(self, message: str = "hi", agent: str = "plain", **fields: Any) -> dict[str, Any]:
        """A run that was waited for, as JSON."""
        body = {"message": message, "stream": False, **fields}
        answer = await self.http.post(f"/agents/{agent}/runs", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def enqueue(self, message: str = "hi", agent: str = "plain", **fields: Any) -> str:
        """The id of a run in the background."""
        body = {"message": message, "stream": False, "background": True, **fields}
        answer = await self.http.post(f"/agents/{agent}/runs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def get(self, run_id: str, agent: str = "plain") -> dict[str, Any]:
        answer = await self.http.get(f"/agents/{agent}/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def until(self, run_id: str, *statuses: str, agent: str = "plain", within_s: float = 10.0) -> dict[str, Any]:
        """The run, once it has one of the statuses."""
        async with asyncio.timeout(within_s):
            while True:
                run = await self.get(run_id, agent)
                if run["status"] in statuses:
                    return run
                await asyncio.sleep(0.01)

    async def events(self, run_id: str, agent: str = "plain", after: int = -1) -> list[dict[str, Any]]:
        """What is stored of a run's log behind an index."""
        answer = await self.http.get(f"/agents/{agent}/runs/{run_id}/events", params={"wait": 0, "after": after})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["events"])

    async def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Rows of a statement, straight from the database."""

        def execute(conn: sa.Connection) -> list[Any]:
            result = conn.execute(sa.text(statement), parameters)
            return list(result) if result.returns_rows else []

        return await self.container.database.write(execute)

    async def count(self, table: str) -> int:
        rows = await self.sql(f"SELECT count(*) FROM {table}")
        return int(rows[0][0])


@asynccontextmanager
async def api_server(
    database_url: str,
    agents: Iterable[BaseAgent] | None = None,
    *,
    prepare: Callable[[FastAPI], None] | None = None,
    **settings: Any,
) -> AsyncIterator[ApiServer]:
    """`prepare` may change the application before it is served, as a user would."""
    chosen = Settings(database_url=database_url, **{**QUICK, **settings})
    waystation = Waystation(agents=stub_agents() if agents is None else agents, settings=chosen)
    if prepare:
        prepare(waystation.app)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only by the number
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(waystation.app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    # The parts of `server.serve`, without its loop that looks for signals ten times a second.
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    assert server.started, "the server did not start"
    api = ApiServer(listener.getsockname()[1], waystation)
    try:
        yield api
    finally:
        await api.http.aclose()
        await _shut_down(server)


async def _shut_down(server: uvicorn.Server) -> None:
    """What `server.shutdown` does, without its pause of a tenth of a second."""
    for accepting in server.servers:
        accepting.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    async with asyncio.timeout(5):
        while server.server_state.connections or server.server_state.tasks:
            await asyncio.sleep(0.002)
    await server.lifespan.shutdown()

"""`make cancels`: how long a cancel takes from one server to a run that another executes.

Two servers on one store. Each run is started at one of them, and cancelled at the other once it has streamed its first events; the time
is from sending the cancel to its answer, which with `?wait=` comes when CANCELLED is stored. Prints a table in Markdown.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.run import fresh_database
from benchmarks.servers import PORT, ROOT

POSTGRES = "postgresql://postgres@127.0.0.1:5432"
REDIS = "redis://127.0.0.1:6379"
NOBODY_THERE = "redis://127.0.0.1:1"
AGENTS = ("native", "plain", "ext")


@dataclass(frozen=True)
class Wiring:
    name: str
    is_sqlite: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    is_owner_silent: bool = False
    times: int = 300


WIRINGS = (
    Wiring("PostgreSQL, NOTIFY"),
    Wiring("PostgreSQL, Redis", settings={"WAYSTATION_REDIS_URL": REDIS}),
    Wiring("SQLite", is_sqlite=True),
    Wiring("PostgreSQL, every wake-up lost", settings={"WAYSTATION_REDIS_URL": NOBODY_THERE}, times=60),
    Wiring("SQLite, every wake-up lost", is_sqlite=True, settings={"WAYSTATION_REDIS_URL": NOBODY_THERE}, times=60),
    Wiring("PostgreSQL, the owner is silent", is_owner_silent=True, times=15),
    Wiring("SQLite, the owner is silent", is_sqlite=True, is_owner_silent=True, times=15),
)


class Served:
    """A server process and a client of it."""

    def __init__(self, port: int, settings: dict[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WAYSTATION_", "OPENAI_", "ANTHROPIC_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "waystation.cli.main", "serve", "benchmarks/stub_agents.py", "--port", str(port)],
            cwd=ROOT, env={"PYTHONPATH": str(ROOT), **kept, **settings, "WAYSTATION_LOG_LEVEL": "error"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)

    async def healthy(self) -> "Served":
        async with asyncio.timeout(30):
            while True:
                try:
                    if (await self.http.get("/health")).status_code == httpx.codes.OK:
                        return self
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)

    async def end(self) -> None:
        await self.http.aclose()
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@asynccontextmanager
async def pair(settings: dict[str, str]) -> AsyncIterator[tuple[Served, Served]]:
    settings = {**settings, "WAYSTATION_DRAIN_S": "0"}
    first = Served(PORT, settings)
    second: Served | None = None
    try:
        await first.healthy()
        second = await Served(PORT + 1, settings).healthy()
        yield first, second
    finally:
        for server in filter(None, (second, first)):
            await server.end()


async def started(server: Served, agent: str) -> str:
    """The id of a run that this server executes and nobody watches."""
    form = {"message": "slow 3000 20", "stream": "true"}
    async with server.http.stream("POST", f"/agents/{agent}/runs", data=form) as answer:
        async for line in answer.aiter_lines():
            if line == "event: RunContent":
                break
        return answer.headers["x-run-id"]


async def cancelled(server: Served, agent: str, run_id: str) -> float:
    """Milliseconds until a cancel was answered with CANCELLED."""
    began = time.perf_counter()
    answer = await server.http.post(f"/agents/{agent}/runs/{run_id}/cancel", params={"wait": 20})
    took = (time.perf_counter() - began) * 1000
    assert answer.json()["status"] == "CANCELLED", answer.text
    return took


async def measure(wiring: Wiring, store: str) -> str:
    took: list[float] = []
    async with pair({"WAYSTATION_DATABASE_URL": store, **wiring.settings}) as (owner, other):
        for agent in itertools.islice(itertools.cycle(AGENTS), wiring.times):
            run_id = await started(owner, agent)
            if wiring.is_owner_silent:
                owner.process.send_signal(signal.SIGSTOP)
            took.append(await cancelled(other, agent, run_id))
            if wiring.is_owner_silent:
                owner.process.send_signal(signal.SIGCONT)
                await owner.healthy()
    took.sort()
    return f"| {wiring.name} | {len(took)} | {took[len(took) // 2]:.0f} | {took[int(len(took) * 0.99)]:.0f} | {took[-1]:.0f} |"


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, wiring in enumerate(WIRINGS):
            sqlite = f"sqlite:///{Path(folder) / f'{number}.db'}"
            store = sqlite if wiring.is_sqlite else asyncio.run(fresh_database(POSTGRES, "waystation_cancels"))
            rows.append(asyncio.run(measure(wiring, store)))
            print(rows[-1], flush=True)
    print("\n| wake-ups | cancels | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()

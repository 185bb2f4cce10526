"""Clients of several replicas: each goes to any of them, comes back to another when one is away, and writes down what it was told."""

import asyncio
import random
import time
import uuid
from typing import Any

import httpx

from support.e2e_load import message
from support.e2e_viewer import Viewer

AGENTS = ("native", "native", "plain", "ext")
TAKEOVER = b'"type":"takeover"'


class Roamer(Viewer):
    """A viewer that follows its run at any replica. `gaps_s`: how long nothing was seen before each takeover."""

    def __init__(self, agent: str, run_id: str = "") -> None:
        super().__init__(agent, run_id)
        self.gaps_s: list[float] = []
        self._seen_at = time.monotonic()

    def _take(self, number: int | None, name: str, line: bytes) -> None:
        if name == "CustomEvent" and TAKEOVER in line:
            self.gaps_s.append(time.monotonic() - self._seen_at)
        self._seen_at = time.monotonic()
        super()._take(number, name, line)

    async def roam(self, clients: list[httpx.AsyncClient], rng: random.Random) -> None:
        """Watch the run to its end."""
        while self.end is None and not self.problems:
            try:
                status = await self.watch(rng.choice(clients))
            except httpx.HTTPError:
                self.cuts += 1
                await asyncio.sleep(0.1)
                continue
            if status not in (200, 503):
                self.problems.append(f"{self.run_id}: {status} when it was watched after {self.last}")
            elif status == 503:
                await asyncio.sleep(0.1)


class ChaosLoad:
    """`limit` submissions in all, by `count` clients. `asked` are the runs that a client wanted to cancel, `cancelled` those of
    which one was told that they are CANCELLED, `notes` the words whose writing was asked for."""

    def __init__(self, bases: list[str], seed: int, limit: int, count: int) -> None:
        self.viewers: list[Roamer] = []
        self.problems: list[str] = []
        self.asked: set[str] = set()
        self.cancelled: set[str] = set()
        self.notes: list[str] = []
        self.submitted = 0
        self._bases = bases
        self._limit = limit
        self._rngs = [random.Random(f"{seed}-{n}") for n in range(count)]
        self._sessions = {agent: [f"{agent}-{uuid.uuid4().hex[:8]}" for _ in range(4)] for agent in {*AGENTS}}

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        clients = [httpx.AsyncClient(base_url=base, timeout=30, trust_env=False, limits=limits) for base in self._bases]
        try:
            async with asyncio.TaskGroup() as group:
                for rng in self._rngs:
                    group.create_task(self._client(clients, rng))
        finally:
            for client in clients:
                await client.aclose()

    async def _client(self, clients: list[httpx.AsyncClient], rng: random.Random) -> None:
        ways = (self._stream, self._stream, self._vanish, self._background, self._background, self._wait, self._cancel, self._note)
        while self.submitted < self._limit:
            self.submitted += 1
            agent = rng.choice(AGENTS)
            fields = {"message": message(rng)}
            if rng.random() < 0.5:  # the sessions of all clients: their turns come from every replica at once
                fields |= {"session_id": rng.choice(self._sessions[agent]), "on_busy": "enqueue"}
            await rng.choice(ways)(clients, agent, fields, rng)

    # ---- what a client does ------------------------------------------------------------------------------------------------
    async def _stream(
        self, clients: list[httpx.AsyncClient], agent: str, fields: dict[str, str], rng: random.Random, limit: int | None = None
    ) -> None:
        viewer = Roamer(agent)
        self.viewers.append(viewer)
        try:
            await self._check(await viewer.post(rng.choice(clients), limit=limit, **fields))  # type: ignore[arg-type]
        except httpx.HTTPError:
            viewer.cuts += 1
        if viewer.run_id:
            await viewer.roam(clients, rng)

    async def _vanish(self, clients: list[httpx.AsyncClient], agent: str, fields: dict[str, str], rng: random.Random) -> None:
        """Leave after a few events, and come back."""
        await self._stream(clients, agent, fields, rng, limit=rng.randint(1, 4))

    async def _background(self, clients: list[httpx.AsyncClient], agent: str, fields: dict[str, str], rng: random.Random) -> Roamer:
        viewer = await self._accepted(clients, agent, fields, rng)
        await viewer.roam(clients, rng)
        return viewer

    async def _wait(self, clients: list[httpx.AsyncClient], agent: str, fields: dict[str, str], rng: random.Random) -> None:
        try:
            answer = await rng.choice(clients).post(f"/agents/{agent}/runs", data=fields | {"stream": "false"})
            if await self._check(answer.status_code):
                self.viewers.append(Roamer(agent, answer.json()["run_id"]))  # it watches nothing, and knows that the run is there
        except httpx.HTTPError:
            await asyncio.sleep(0.05)

    async def _cancel(self, clients: list[httpx.AsyncClient], agent: str, fields: dict[str, str], rng: random.Random) -> None:
        """Cancel at some moment of the run's life, at any replica."""
        viewer = await self._accepted(clients, agent, fields | {"message": "slow 40 50"}, rng)
        self.asked.add(viewer.run_id)
        await asyncio.sleep(rng.uniform(0, 1.5))
        for _ in range(50):
            try:
                answer = await rng.choice(clients).post(f"/agents/{agent}/runs/{viewer.run_id}/cancel", params={"wait": "5"})
            except httpx.HTTPError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code == 200:
                if answer.json()["status"] == "CANCELLED":
                    self.cancelled.add(viewer.run_id)
                break
            await self._check(answer.status_code)
        await viewer.roam(clients, rng)

    async def _note(self, clients: list[httpx.AsyncClient], _agent: str, _fields: dict[str, str], rng: random.Random) -> None:
        word = f"w{rng.getrandbits(64):x}"
        self.notes.append(word)
        await self._background(clients, "effect", {"message": f"note {word}"}, rng)

    async def _accepted(self, clients: list[httpx.AsyncClient], agent: str, fields: dict[str, str], rng: random.Random) -> Roamer:
        """A background run, submitted under one key at one replica after the other until it is answered."""
        headers = {"Idempotency-Key": f"key-{rng.getrandbits(64):x}"}
        data: dict[str, Any] = fields | {"background": "true", "stream": "false"}
        while True:
            try:
                answer = await rng.choice(clients).post(f"/agents/{agent}/runs", data=data, headers=headers)
                if await self._check(answer.status_code):
                    viewer = Roamer(agent, answer.json()["run_id"])
                    self.viewers.append(viewer)
                    return viewer
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)

    async def _check(self, status: int) -> bool:
        """Whether the answer is an acceptance. A refusal because the server is not ready, or the line is full, is waited out."""
        if status in (429, 503):
            await asyncio.sleep(0.1)
        elif status not in (200, 202):
            self.problems.append(f"a request was answered {status}")
        return status in (200, 202)

"""Clients as a balancer without sticky sessions would serve them, of runs that can all go on elsewhere; each refusal is written down."""

import asyncio
import random
import uuid
from collections import Counter

import httpx

from support.chaos_load import Roamer

SESSIONS = 4


class RollingLoad:
    """`clients` of them, each with one run at a time, submitted with a key until it is accepted and followed to its end at any server.

    `refusals` counts what clients were refused with; `problems` are answers that no client should see.
    """

    def __init__(self, bases: list[str], seed: int, clients: int = 10) -> None:
        self.viewers: list[Roamer] = []
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.refusals: Counter[str] = Counter()
        self._bases = bases
        self._rngs = [random.Random(f"{seed}-{n}") for n in range(clients)]
        self._sessions = [uuid.uuid4().hex for _ in range(SESSIONS)]
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Submit nothing more; `run` returns when every run has been seen to its end."""
        self._stop.set()

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
        while not self._stop.is_set():
            agent, fields = self._turn(rng)
            viewer = await self._accepted(clients, agent, fields, rng)
            self.viewers.append(viewer)
            await viewer.roam(clients, rng)

    def _turn(self, rng: random.Random) -> tuple[str, dict[str, str]]:
        if rng.random() < 0.3:
            word = f"w{rng.getrandbits(64):x}"
            self.notes.append(word)
            return "effect", {"message": f"note {word}"}
        message = rng.choice((f"slow {rng.randint(5, 15)} 50", f"slow {rng.randint(30, 60)} 50", "chunks 200", "hi"))
        fields = {"message": message}
        if rng.random() < 0.3:
            fields |= {"session_id": rng.choice(self._sessions), "on_busy": "enqueue"}
        return "native", fields

    async def _accepted(self, clients: list[httpx.AsyncClient], agent: str, fields: dict[str, str], rng: random.Random) -> Roamer:
        """Repeated with its key, at any server, until it is accepted: in the background, or streamed and cut at its first bytes."""
        data = fields | {"background": rng.choice(("true", "false")), "stream": "true"}
        headers = {"Idempotency-Key": f"key-{rng.getrandbits(64):x}"}
        while True:
            try:
                async with rng.choice(clients).stream("POST", f"/agents/{agent}/runs", data=data, headers=headers) as answer:
                    if answer.status_code == 200:
                        return Roamer(agent, answer.headers["x-run-id"])
                    self._note_refusal(answer)
            except httpx.ConnectError:
                self.refusals["connection refused"] += 1
            except httpx.HTTPError:
                self.refusals["connection cut"] += 1
            await asyncio.sleep(0.1)

    def _note_refusal(self, answer: httpx.Response) -> None:
        self.refusals[str(answer.status_code)] += 1
        if answer.status_code != 503 or "retry-after" not in answer.headers:
            self.problems.append(f"a submission was answered {answer.status_code} {dict(answer.headers)}")

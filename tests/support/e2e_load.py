"""A load of several clients that go on through kills and restarts of the server."""

import asyncio
import random
import uuid

import httpx

from support.e2e_viewer import Viewer

AGENTS = ("native", "plain", "ext")
REFUSALS = (429, 503)


class Load:
    """`viewers` are all runs that a client got to know; `problems` what no client should see; `answers` counts statuses."""

    def __init__(self, base: str, seed: int, clients: int = 8) -> None:
        self.viewers: list[Viewer] = []
        self.problems: list[str] = []
        self.submitted = 0
        self._base = base
        self._clients = [random.Random(f"{seed}-{i}") for i in range(clients)]
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Submit nothing more; `run` returns when every run that is known has been seen to its end."""
        self._stop.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for rng in self._clients:
                group.create_task(self._client(rng))

    async def _client(self, rng: random.Random) -> None:
        sessions = {agent: [f"{agent}-{uuid.uuid4().hex[:8]}" for _ in range(2)] for agent in AGENTS}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._base, timeout=30, trust_env=False, limits=limits) as client:
            while not self._stop.is_set():
                agent = rng.choice(AGENTS)
                fields = {"message": message(rng)}
                if rng.random() < 0.4:
                    fields |= {"session_id": rng.choice(sessions[agent]), "on_busy": "enqueue"}
                await rng.choice((self._stream, self._stream, self._background, self._wait))(client, agent, fields, rng)
                await asyncio.sleep(rng.uniform(0, 0.1))

    async def _stream(self, client: httpx.AsyncClient, agent: str, fields: dict[str, str], rng: random.Random) -> None:
        viewer = Viewer(agent)
        self.viewers.append(viewer)
        self.submitted += 1
        try:
            await self._check(await viewer.post(client, **fields))  # type: ignore[misc]
        except httpx.HTTPError:
            viewer.cuts += 1
        if viewer.run_id:
            await viewer.follow(client)

    async def _background(self, client: httpx.AsyncClient, agent: str, fields: dict[str, str], rng: random.Random) -> None:
        """Submitted with a key until it is answered, so that it must be accepted once and only once."""
        headers = {"Idempotency-Key": f"key-{rng.getrandbits(64):x}"}
        fields = fields | {"background": "true", "stream": rng.choice(("true", "false"))}
        self.submitted += 1
        while True:
            try:
                async with client.stream("POST", f"/agents/{agent}/runs", data=fields, headers=headers) as answer:
                    if await self._check(answer.status_code):
                        viewer = Viewer(agent, answer.headers["x-run-id"])
                        self.viewers.append(viewer)
                        break
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)
        await viewer.follow(client)

    async def _wait(self, client: httpx.AsyncClient, agent: str, fields: dict[str, str], rng: random.Random) -> None:
        self.submitted += 1
        try:
            await self._check((await client.post(f"/agents/{agent}/runs", data=fields | {"stream": "false"})).status_code)
        except httpx.HTTPError:
            await asyncio.sleep(0.05)

    async def _check(self, status: int) -> bool:
        """Whether the answer is an acceptance. A refusal because the server is not ready is waited out."""
        if status in REFUSALS:
            await asyncio.sleep(0.1)
        elif status not in (200, 202):
            self.problems.append(f"a submission was answered {status}")
        return status in (200, 202)


def message(rng: random.Random) -> str:
    match rng.randrange(5):
        case 0:
            return f"slow {rng.randint(10, 40)} {rng.randint(10, 50)}"
        case 1:
            return f"slow {rng.randint(3, 10)} {rng.randint(50, 200)}"
        case 2:
            return f"chunks {rng.randint(20, 2000)}"
        case 3:
            return "tool"
        case _:
            return "hi"

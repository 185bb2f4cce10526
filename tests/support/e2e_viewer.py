"""A client of event streams as a user would write it: it keeps what it has seen, comes back with its last index when a stream is
cut, and writes down whatever a stream must never do."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx

ENDS = ("RunCompleted", "RunError", "RunCancelled", "RunPaused")


class Frames:
    """Takes bytes as they come and gives the frames that are complete: id (None without one), event name, data."""

    def __init__(self) -> None:
        self._rest = b""
        self.comments: list[bytes] = []
        """Comment lines; one that came before its block was complete may be told twice."""

    def feed(self, data: bytes) -> Iterator[tuple[int | None, str, bytes]]:
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        for block in blocks:
            fields = {}
            for line in block.split(b"\n"):
                name, _, value = line.partition(b": ")
                if line.startswith(b":"):
                    self.comments.append(line)
                else:
                    fields[name] = value
            if b"data" in fields:
                number = fields.get(b"id")
                yield None if number is None else int(number), fields.get(b"event", b"").decode(), fields[b"data"]
        self.comments += [line for line in self._rest.split(b"\n")[:-1] if line.startswith(b":")]


class Viewer:
    """What one client has seen of one run. `lines` are the data of the events by index; `problems` are sentences."""

    def __init__(self, agent: str, run_id: str = "", *, after: int = -1) -> None:
        self.agent = agent
        self.run_id = run_id
        self.last = after
        self.lines: dict[int, bytes] = {}
        self.end: str | None = None
        self.cuts = 0
        self.problems: list[str] = []
        self.comments: list[bytes] = []

    async def take(self, response: httpx.Response, limit: int | None = None) -> None:
        """Read a stream to its end, or until `limit` events were seen. httpx.HTTPError if it is cut."""
        self.run_id = self.run_id or response.headers["x-run-id"]
        frames = Frames()
        self.comments = frames.comments
        async for chunk in response.aiter_raw():
            for number, name, line in frames.feed(chunk):
                self._take(number, name, line)
                if limit is not None and len(self.lines) >= limit:
                    return
        if self.end is None:
            self.problems.append(f"{self.run_id}: the stream ended cleanly after {self.last}, without the end of the run")

    def _take(self, number: int | None, name: str, line: bytes) -> None:
        if number is None:
            self.problems.append(f"{self.run_id}: unexpected notice {name}")
            return
        if number != self.last + 1:
            self.problems.append(f"{self.run_id}: event {number} came after {self.last}")
        if self.end:
            self.problems.append(f"{self.run_id}: event {number} came after the end {self.end}")
        self.last = number
        self.lines[number] = line
        if name in ENDS:
            self.end = name

    async def post(self, client: httpx.AsyncClient, message: str, limit: int | None = None, **fields: Any) -> int:
        """Submit a run and read its stream; the status. httpx.HTTPError if it is cut."""
        async with client.stream("POST", f"/agents/{self.agent}/runs", data={"message": message, **fields}) as answer:
            if answer.status_code == 200:
                await self.take(answer, limit)
            return answer.status_code

    async def watch(self, client: httpx.AsyncClient, limit: int | None = None) -> int:
        """Read the stream of the run from the last index on; the status. httpx.HTTPError if it is cut."""
        path = f"/agents/{self.agent}/runs/{self.run_id}/events"
        async with client.stream("GET", path, params={"after": self.last}) as answer:
            if answer.status_code == 200:
                await self.take(answer, limit)
            return answer.status_code

    async def follow(self, client: httpx.AsyncClient) -> "Viewer":
        """Watch until the run has ended, coming back whenever the stream is cut or the server is away."""
        while self.end is None:
            try:
                status = await self.watch(client)
            except httpx.HTTPError:
                self.cuts += 1
                await asyncio.sleep(0.15)
                continue
            if status == 503:
                await asyncio.sleep(0.1)
            elif status != 200:
                self.problems.append(f"{self.run_id}: {status} when it was watched after {self.last}")
                break
        return self


async def started(client: httpx.AsyncClient, agent: str, message: str, **fields: Any) -> Viewer:
    """A background run: a viewer of it that has seen nothing yet."""
    fields = {"background": "true", "stream": "false", **fields}
    answer = await client.post(f"/agents/{agent}/runs", data={"message": message, **fields})
    assert answer.status_code == 202, answer.text
    return Viewer(agent, answer.json()["run_id"])


async def get_run(client: httpx.AsyncClient, viewer: Viewer) -> dict[str, Any]:
    answer = await client.get(f"/agents/{viewer.agent}/runs/{viewer.run_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def health(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/health")).json()
    return found


async def until(condition: Any, within_s: float, what: str) -> Any:
    """Ask an async function until what it answers is true; that answer."""
    end = asyncio.get_running_loop().time() + within_s
    while True:
        if found := await condition():
            return found
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"not within {within_s} s: {what}")
        await asyncio.sleep(0.05)

"""Clients that go away without a word, or stay and never read: nothing of them is left behind, and nobody else notices."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from support.e2e_history import problems, read_history
from support.e2e_sockets import header, open_files, open_sockets, post, read_until, reset, rss_bytes, watch
from support.e2e_viewer import Frames, Viewer, get_run, health, started, until
from support.server import Server, running

MEGABYTE = 1024 * 1024
FIFTY_MEGABYTES = "chunks 200000"
MOST_FILES = 60  # 32 at rest, of which the database's come as they are needed


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Server]:
    with running(sqlite_url, tmp_path, worker_concurrency=256) as found:
        yield found


async def at_rest(server: Server, client: httpx.AsyncClient) -> int:
    """Sockets that the server holds when nothing runs and nobody watches."""

    async def is_idle() -> bool:
        now = await health(client)
        return now["viewers"] == {"channels": 0, "users": 0} and now["worker"]["running"] == 0

    try:
        await until(is_idle, 15, "no viewers and no runs")
    except AssertionError as error:
        raise AssertionError(f"{error}: {await health(client)}") from error
    await asyncio.sleep(0.2)
    assert open_files(server.pid) < MOST_FILES
    return open_sockets(server.pid)


def probe(server: Server) -> httpx.AsyncClient:
    """A client that holds one connection, whatever it asks."""
    return server.client(limits=httpx.Limits(max_connections=1, keepalive_expiry=60))


async def test_two_hundred_clients_that_vanish_in_mid_stream_leave_nothing_behind(server: Server, sqlite_url: str) -> None:
    async with probe(server) as client:
        before = await at_rest(server, client)
        sockets = [post(server.port, ("native", "plain", "ext")[i % 3], "slow 30 50") for i in range(200)]
        answers = [read_until(sock, b"id: 2\n") for sock in sockets]
        for sock in sockets:
            reset(sock)
        assert await at_rest(server, client) == before
        honest = Viewer("plain")
        await honest.post(client, "hi")
    assert honest.end == "RunCompleted"
    history = await read_history(sqlite_url)
    assert problems(history, [honest]) == []
    assert [history.runs[header(answer, "x-run-id")].row["status"] for answer in answers] == ["COMPLETED"] * 200
    assert "Traceback" not in server.log


async def test_clients_that_are_gone_before_the_headers_leave_nothing_behind(server: Server, sqlite_url: str) -> None:
    async with probe(server) as client:
        before = await at_rest(server, client)
        for i in range(200):
            reset(post(server.port, "plain", "slow 3 20", stream=("true", "false")[i % 2]))
        assert await at_rest(server, client) == before
        honest = Viewer("plain")
        await honest.post(client, "hi")
    assert honest.end == "RunCompleted"
    assert problems(await read_history(sqlite_url), [honest]) == []
    assert "Traceback" not in server.log


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_a_client_that_vanishes_cancels_its_run_once_if_it_asked_for_that(server: Server, sqlite_url: str, stream: str) -> None:
    async with probe(server) as client:
        before = await at_rest(server, client)
        fields = {"on_disconnect": "cancel", "stream": stream}
        sockets = [post(server.port, ("native", "plain", "ext")[i % 3], "slow 400 50", **fields) for i in range(48)]

        async def all_run() -> bool:
            return (await health(client))["worker"]["running"] == 48

        await until(all_run, 10, "48 runs")
        await asyncio.sleep(0.3)
        for sock in sockets:
            reset(sock)
        assert await at_rest(server, client) == before
    history = await read_history(sqlite_url)
    assert problems(history, []) == []
    assert history.count() == {"native CANCELLED": 16, "plain CANCELLED": 16, "ext CANCELLED": 16}


async def test_stalled_readers_that_vanish_leave_nothing_behind(server: Server) -> None:
    async with probe(server) as client:
        before = await at_rest(server, client)
        run = await (await started(client, "ext", "chunks 20000")).follow(client)
        sockets = [watch(server.port, "ext", run.run_id, receive_buffer=4096) for _ in range(40)]

        async def all_watch() -> bool:
            return bool((await health(client))["viewers"]["users"] == 40)

        await until(all_watch, 10, "40 viewers")
        await asyncio.sleep(0.5)
        for sock in sockets:
            reset(sock)
        assert await at_rest(server, client) == before


async def test_ids_of_five_thousand_deltas_are_unique_and_growing(server: Server) -> None:
    async with server.client() as client:
        for agent in ("native", "ext"):
            viewer = Viewer(agent)
            await viewer.post(client, "chunks 5000")
            assert viewer.problems == []
            assert viewer.end == "RunCompleted"
            assert list(viewer.lines) == list(range(len(viewer.lines)))
            assert len(viewer.lines) > 5000


def read_run(sock: socket.socket, already: bytes) -> list[int]:
    """The ids of all events of a stream that is read at last."""
    frames, ids, chunk = Frames(), [], already
    while True:
        for number, name, _ in frames.feed(chunk):
            ids += [] if number is None else [number]
            if name == "RunCompleted":
                return ids
        chunk = sock.recv(1 << 20)
        assert chunk, f"the stream ended after {ids[-1:]}"


async def most_memory(server: Server, client: httpx.AsyncClient, viewer: Viewer) -> int:
    """The most memory that the server needs while a run goes on."""
    most = rss_bytes(server.pid)
    while (found := await get_run(client, viewer))["status"] in ("PENDING", "RUNNING"):
        most = max(most, rss_bytes(server.pid))
        await asyncio.sleep(0.1)
    assert found["status"] == "COMPLETED"
    return most


async def test_readers_that_stall_cost_little_memory_and_lose_nothing(server: Server) -> None:
    async with probe(server) as client:
        alone = await most_memory(server, client, await started(client, "ext", FIFTY_MEGABYTES))
        stalled = post(server.port, "ext", FIFTY_MEGABYTES, receive_buffer=4096)
        head = read_until(stalled, b"\r\n\r\n")
        viewer = Viewer("ext", header(head, "x-run-id"))
        more = [watch(server.port, "ext", viewer.run_id, receive_buffer=4096) for _ in range(20)]
        watched = await most_memory(server, client, viewer)
        ids = await asyncio.to_thread(read_run, stalled, head.partition(b"\r\n\r\n")[2])
    for sock in (stalled, *more):
        reset(sock)
    print(f"{alone / MEGABYTE:.0f} MB without readers, {watched / MEGABYTE:.0f} MB with 21 that stall")
    assert watched - alone < 21 * 5 * MEGABYTE
    assert ids == list(range(len(ids)))
    assert len(ids) > 200_000


async def busy_connections(url: str) -> int:
    """Connections to the database that are in use."""
    connection = await asyncpg.connect(url)
    try:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waystation' AND state <> 'idle' AND datname = $1"
        return int(await connection.fetchval(query, url.rpartition("/")[2]))
    finally:
        await connection.close()


async def test_a_hundred_idle_streams_cost_the_rest_of_the_server_nothing(postgres_url: str, tmp_path: Path) -> None:
    with running(postgres_url, tmp_path) as server:
        async with server.client() as client:
            quiet = await started(client, "ext", "slow 1 60000")
            sockets = [watch(server.port, "ext", quiet.run_id) for _ in range(100)]
            await asyncio.to_thread(lambda: [read_until(sock, b"id: 0\n") for sock in sockets])
            delays = []
            for _ in range(50):
                began = time.monotonic()
                assert (await client.get("/agents")).status_code == 200
                delays.append(time.monotonic() - began)
            viewer = Viewer("plain")
            await viewer.post(client, "hi")
            in_use = sorted([await busy_connections(postgres_url) for _ in range(9)])
            assert viewer.end == "RunCompleted"
            assert sorted(delays)[47] < 0.25
            assert in_use[4] == 0
            assert (await client.post(f"/agents/ext/runs/{quiet.run_id}/cancel?wait=5")).json()["status"] == "CANCELLED"
            ends = await asyncio.to_thread(lambda: [read_until(sock, b"event: RunCancelled\n") for sock in sockets])
    assert len(ends) == 100

"""SIGTERM: streams are told and cut, runs get their grace time, what is left is handed back, the process ends in time."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.e2e_history import problems, read_history
from support.e2e_sockets import header, post, read_to_end, read_until, reset, watch
from support.e2e_viewer import Viewer, started
from support.server import Server, running

GRACE_S = 2


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Server]:
    with running(sqlite_url, tmp_path, drain_s=GRACE_S) as found:
        yield found


@pytest.fixture
def server_of_each_kind(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with running(database_url, tmp_path, drain_s=GRACE_S) as found:
        yield found


async def cut_stream(viewer: Viewer, client: httpx.AsyncClient) -> str:
    """Watch until the server closes the stream; how the client sees that."""
    try:
        await viewer.watch(client)
    except httpx.RemoteProtocolError as error:
        return str(error)
    return "ended cleanly"


async def test_streams_are_told_and_cut_runs_get_their_grace_and_the_rest_goes_on_in_the_next_process(
    server_of_each_kind: Server, database_url: str, tmp_path: Path
) -> None:
    server = server_of_each_kind
    limits = httpx.Limits(max_connections=None)
    async with server.client(limits=limits) as client:
        short = [await started(client, agent, "slow 10 100") for agent in ("native", "plain", "ext")]
        long = [await started(client, agent, "slow 60 100") for agent in ("native", "plain")]
        viewers = [Viewer(run.agent, run.run_id) for run in (short + long) * 4]
        streams = [asyncio.create_task(cut_stream(viewer, client)) for viewer in viewers]
        await asyncio.sleep(0.4)
        told, exit_code = time.monotonic(), asyncio.create_task(asyncio.to_thread(server.terminate))
        cuts = await asyncio.gather(*streams)
        assert time.monotonic() - told < 1
        assert await exit_code in (0, -signal.SIGTERM)
        assert GRACE_S < time.monotonic() - told < GRACE_S + 5
    assert {cut for cut in cuts if "incomplete" not in cut} == set()
    assert all(any(b"shutting down" in comment for comment in viewer.comments) for viewer in viewers)
    history = await read_history(database_url)
    assert [history.runs[run.run_id].row["status"] for run in short + long] == ["COMPLETED"] * 3 + ["PENDING"] * 2
    assert [history.runs[run.run_id].row["takeovers"] for run in long] == [0, 0]
    with running(database_url, tmp_path) as following:
        async with following.client(limits=limits) as client:
            await asyncio.gather(*(viewer.follow(client) for viewer in viewers))
    assert {viewer.end for viewer in viewers} == {"RunCompleted"}
    assert problems(await read_history(database_url), viewers) == []
    assert "Traceback" not in server.log


async def test_a_second_sigterm_changes_nothing(server: Server, sqlite_url: str) -> None:
    async with server.client() as client:
        run = await started(client, "plain", "slow 12 100")
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    server.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(server.process.wait, GRACE_S + 5) in (0, -signal.SIGTERM)
    assert (await read_history(sqlite_url)).runs[run.run_id].row["status"] == "COMPLETED"
    assert "Traceback" not in server.log


async def test_a_client_that_waits_gets_the_run_if_it_ends_in_the_grace_and_an_honest_refusal_if_not(server: Server) -> None:
    async with server.client() as client:
        short, long = (
            asyncio.create_task(client.post("/agents/plain/runs", data={"message": message, "stream": "false"}))
            for message in ("slow 10 100", "slow 80 100")
        )
        await asyncio.sleep(0.4)
        await asyncio.to_thread(server.terminate)
        finished, refused = await short, await long
    assert (finished.status_code, finished.json()["status"]) == (200, "COMPLETED")
    assert (refused.status_code, refused.json()["error_type"]) == (503, "unavailable")
    assert refused.headers["retry-after"]
    assert refused.headers["location"].endswith(refused.headers["x-run-id"])


async def test_nothing_new_is_taken_while_the_server_drains(server: Server, sqlite_url: str) -> None:
    async with server.client() as client:
        await started(client, "plain", "slow 15 100")
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        outcomes = set()
        while server.process.poll() is None:
            try:
                answer = await client.post("/agents/plain/runs", data={"message": "hi", "stream": "false"})
                outcomes.add((answer.status_code, answer.json().get("error_type"), "retry-after" in answer.headers))
            except httpx.HTTPError:
                outcomes.add((0, "refused", False))
            await asyncio.sleep(0.02)
    # The signal may find a submission under way: that one is taken, and then executed.
    assert outcomes - {(503, "unavailable", True), (200, None, False)} == {(0, "refused", False)}
    assert {run.row["status"] for run in (await read_history(sqlite_url)).runs.values()} == {"COMPLETED"}


async def test_readers_that_stall_do_not_hold_up_the_shutdown(sqlite_url: str, tmp_path: Path) -> None:
    with running(sqlite_url, tmp_path, drain_s=1) as server:
        async with server.client() as client:
            run = await (await started(client, "ext", "chunks 50000")).follow(client)
        stalled = [watch(server.port, "ext", run.run_id, receive_buffer=4096) for _ in range(3)]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await asyncio.to_thread(server.terminate)
        assert time.monotonic() - began < 1 + 5
    for sock in stalled:
        reset(sock)


async def test_a_stream_that_is_opened_just_before_the_signal_is_cut_and_not_ended(sqlite_url: str, tmp_path: Path) -> None:
    with running(sqlite_url, tmp_path, drain_s=1) as server:
        sock = post(server.port, "plain", "slow 100 50")
        head = read_until(sock, b"id: 0\n")
        await asyncio.to_thread(server.terminate)
        rest = await asyncio.to_thread(read_to_end, sock)
    assert header(head, "location").startswith("/agents/plain/runs/")
    assert b"shutting down" in rest
    assert not rest.endswith(b"0\r\n\r\n")


async def come_back_until_refused(viewer: Viewer, client: httpx.AsyncClient) -> None:
    """A client that reconnects at once, whenever its stream is cut."""
    while True:
        try:
            await viewer.watch(client)
        except httpx.ConnectError:
            return
        except httpx.HTTPError:
            continue


async def test_clients_that_reconnect_at_once_do_not_hold_up_the_shutdown(sqlite_url: str, tmp_path: Path) -> None:
    with running(sqlite_url, tmp_path, drain_s=1) as server:
        async with server.client(limits=httpx.Limits(max_connections=None)) as client:
            run = await started(client, "plain", "slow 150 100")
            viewers = [asyncio.create_task(come_back_until_refused(Viewer("plain", run.run_id), client)) for _ in range(20)]
            await asyncio.sleep(0.5)
            began = time.monotonic()
            await asyncio.to_thread(server.terminate)
            assert time.monotonic() - began < 1 + 5
            await asyncio.gather(*viewers)


@pytest.mark.parametrize("late_ms", [0, 20])
async def test_a_run_that_is_submitted_as_the_signal_comes_is_not_left_running(postgres_url: str, tmp_path: Path, late_ms: int) -> None:
    with running(postgres_url, tmp_path, drain_s=0) as server:
        async with server.client() as client:
            fields = {"message": "slow 100 100", "background": "true", "stream": "false"}
            posts = [asyncio.create_task(client.post("/agents/plain/runs", data=fields)) for _ in range(8)]
            await asyncio.sleep(late_ms / 1000)
            began = time.monotonic()
            await asyncio.to_thread(server.terminate)
            assert time.monotonic() - began < 5
            await asyncio.gather(*posts, return_exceptions=True)
    left = (await read_history(postgres_url)).runs.values()
    assert {run.row["status"] for run in left} <= {"PENDING"}
    assert "Traceback" not in server.log

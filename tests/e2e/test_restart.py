"""After a crash and a restart: what was left behind goes on at once, can be cancelled, and keeps its numbers and its keys."""

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.e2e_history import problems, read_history
from support.e2e_viewer import Viewer, get_run, started
from support.server import ROOT, Server, running


@pytest.fixture
def server(sqlite_url: str, tmp_path: Path) -> Iterator[Server]:
    with running(sqlite_url, tmp_path) as found:
        yield found


@pytest.fixture
def server_of_each_kind(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with running(database_url, tmp_path) as found:
        yield found


async def seen_until(client: httpx.AsyncClient, viewer: Viewer, count: int) -> Viewer:
    """The viewer, once it has seen so many events and has left."""
    await viewer.watch(client, limit=count)
    return viewer


async def test_what_a_crash_left_behind_goes_on_at_once_and_its_viewers_at_the_next_index(
    server_of_each_kind: Server, database_url: str
) -> None:
    server = server_of_each_kind
    async with server.client() as client:
        runs = [await started(client, agent, "slow 30 100") for agent in ("native", "plain", "ext")]
        viewers = [await seen_until(client, run, 8) for run in runs]
        server.kill()
        await asyncio.to_thread(server.start)
        healthy = time.monotonic()
        for viewer in viewers:
            await viewer.watch(client, limit=len(viewer.lines) + 3)
        assert time.monotonic() - healthy < 2.5
        assert all(viewer.problems == [] and b'"takeover"' in b"".join(viewer.lines.values()) for viewer in viewers)
        await asyncio.gather(*(viewer.follow(client) for viewer in viewers))
    assert [viewer.end for viewer in viewers] == ["RunCompleted"] * 3
    assert problems(await read_history(database_url), viewers) == []


async def test_a_run_left_behind_by_a_crash_can_be_cancelled_and_frees_its_session(server_of_each_kind: Server, database_url: str) -> None:
    server = server_of_each_kind
    async with server.client() as client:
        run = await seen_until(client, await started(client, "native", "slow 300 100", session_id="s1"), 5)
        server.kill()
        await asyncio.to_thread(server.start)
        answer = await client.post(f"/agents/native/runs/{run.run_id}/cancel", params={"wait": 5})
        assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLED")
        await run.follow(client)
        following = await client.post("/agents/native/runs", data={"message": "hi", "session_id": "s1", "stream": "false"})
        assert (following.status_code, following.json()["content"]) == (200, "Hello from the stub.")
    assert run.end == "RunCancelled"
    assert problems(await read_history(database_url), [run]) == []


async def test_a_session_that_a_crash_left_busy_refuses_with_its_run_until_that_has_ended(server: Server) -> None:
    async with server.client() as client:
        run = await seen_until(client, await started(client, "plain", "slow 20 100", session_id="s1"), 3)
        server.kill()
        await asyncio.to_thread(server.start)
        fields = {"message": "hi", "session_id": "s1", "stream": "false"}
        refused = await client.post("/agents/plain/runs", data=fields)
        assert (refused.status_code, refused.json()["run_id"]) == (409, run.run_id)
        await run.follow(client)
        assert run.end == "RunCompleted"
        assert (await client.post("/agents/plain/runs", data=fields)).status_code == 200


async def test_an_idempotency_key_finds_its_run_after_a_crash_while_it_runs_and_when_it_has_ended(server: Server) -> None:
    headers, fields = {"Idempotency-Key": "k1"}, {"message": "slow 15 100", "background": "true", "stream": "false"}
    async with server.client() as client:
        first = await client.post("/agents/plain/runs", data=fields, headers=headers)
        await asyncio.sleep(0.5)
        server.kill()
        await asyncio.to_thread(server.start)
        second = await client.post("/agents/plain/runs", data=fields, headers=headers)
        viewer = await Viewer("plain", first.json()["run_id"]).follow(client)
        third = await client.post("/agents/plain/runs", data=fields | {"background": "false"}, headers=headers)
        other = await client.post("/agents/plain/runs", data=fields | {"message": "hi"}, headers=headers)
    assert {answer.json()["run_id"] for answer in (first, second, third)} == {viewer.run_id}
    assert (third.status_code, third.json()["status"], viewer.end) == (200, "COMPLETED", "RunCompleted")
    assert (other.status_code, other.json()["error_type"]) == (409, "idempotency_conflict")


async def test_an_old_cursor_goes_on_after_a_restart_by_get_and_by_resume(server: Server) -> None:
    async with server.client() as client:
        viewer = Viewer("native")
        await viewer.post(client, "chunks 60")
        server.kill()
        await asyncio.to_thread(server.start)
        path = f"/agents/native/runs/{viewer.run_id}"
        by_get = await client.get(f"{path}/events", headers={"Last-Event-ID": "20"})
        by_resume = await client.post(f"{path}/resume", data={"last_event_index": "20"})
        seen_all = await client.get(f"{path}/events", params={"after": viewer.last})
    expected = list(range(21, viewer.last + 1))
    for answer in (by_get, by_resume):
        assert [int(number) for number in re.findall(r"^id: (\d+)$", answer.text, re.M)] == expected
    assert seen_all.status_code == 204


async def test_a_run_that_loses_its_process_too_often_ends_in_an_error(sqlite_url: str, tmp_path: Path) -> None:
    with running(sqlite_url, tmp_path, max_takeovers=1) as server:
        async with server.client() as client:
            run = await seen_until(client, await started(client, "plain", "slow 300 100"), 3)
            for _ in range(2):
                server.kill()
                await asyncio.to_thread(server.start)
                await asyncio.wait_for(run.watch(client, limit=len(run.lines) + 1), 5)
            await run.follow(client)
            found = await get_run(client, run)
    assert (found["status"], found["error"]["type"], run.end) == ("ERROR", "worker_lost", "RunError")
    assert problems(await read_history(sqlite_url), [run]) == []


def test_a_stream_that_dies_with_its_server_is_an_error_for_curl(sqlite_url: str, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    assert curl, "curl is needed for this test"
    with running(sqlite_url, tmp_path) as server:
        url = f"{server.base}/agents/plain/runs"
        process = subprocess.Popen([curl, "-sN", url, "-d", "message=slow 100 50"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        read = b""
        while b"id: 5\n" not in read:
            read += os.read(process.stdout.fileno(), 65536)
        server.kill()
        process.stdout.read()
        assert process.wait(10) == 18  # partial file


def test_no_middleware_of_the_kind_that_ends_broken_streams_cleanly() -> None:
    uses = re.compile(r"^\s*(from|import) .*BaseHTTPMiddleware|\(BaseHTTPMiddleware|@\w+\.middleware\(", re.M)
    assert [path.name for path in (ROOT / "app").rglob("*.py") if uses.search(path.read_text())] == []

"""Two servers on one database: every run is seen, cancelled and taken over from either of them."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.e2e_history import problems, read_history
from support.e2e_viewer import Viewer, started, until
from support.server import Server, running


@pytest.fixture
def pair(database_url: str, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    with running(database_url, tmp_path) as a, running(database_url, tmp_path) as b:
        yield a, b


async def running_on(client: httpx.AsyncClient, agent: str, message: str, **fields: str) -> Viewer:
    """A foreground run, which executes on the server that was asked; its client has left after the first events."""
    viewer = Viewer(agent)
    await viewer.post(client, message, limit=3, **fields)
    return viewer


async def test_a_run_is_watched_live_from_either_server(pair: tuple[Server, Server], database_url: str) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        queued = [await started(on_a, agent, "slow 20 100") for agent in ("native", "plain", "ext")]
        here = await running_on(on_a, "native", "slow 20 100")
        viewers = [Viewer(run.agent, run.run_id) for run in (*queued, here) for _ in (0, 1)]
        began = time.monotonic()
        await asyncio.gather(*(viewer.follow((on_a, on_b)[i % 2]) for i, viewer in enumerate(viewers)))
        took_s = time.monotonic() - began
    assert [(viewer.end, viewer.cuts) for viewer in viewers] == [("RunCompleted", 0)] * 8
    assert took_s < 2 + 3
    assert problems(await read_history(database_url), [*viewers, here]) == []


async def test_either_server_cancels_what_the_other_executes(pair: tuple[Server, Server], database_url: str) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        runs = [await running_on(on_a, agent, "slow 300 100") for agent in ("native", "plain", "ext")]
        watching = [asyncio.create_task(run.follow(on_a)) for run in runs]
        began = time.monotonic()
        answers = [await on_b.post(f"/agents/{run.agent}/runs/{run.run_id}/cancel") for run in runs]
        assert [answer.json()["status"] for answer in answers] == ["RUNNING"] * 3
        assert all(answer.json()["cancel_requested"] for answer in answers)
        async with asyncio.timeout(10):
            await asyncio.gather(*watching)
        took_s = time.monotonic() - began
        again = [await on_b.post(f"/agents/{run.agent}/runs/{run.run_id}/cancel") for run in runs]
    assert took_s < 2.5
    assert [answer.json()["status"] for answer in again] == ["CANCELLED"] * 3
    assert problems(await read_history(database_url), runs) == []


async def test_a_session_is_busy_on_both_servers(pair: tuple[Server, Server], database_url: str) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        run = await running_on(on_a, "plain", "slow 15 100", session_id="s1")
        refused = await on_b.post("/agents/plain/runs", data={"message": "hi", "session_id": "s1"})
        assert (refused.status_code, refused.json()["error_type"], refused.json()["run_id"]) == (409, "session_busy", run.run_id)
        fields = {"message": "hi", "session_id": "s1", "on_busy": "enqueue", "stream": "false"}
        queued = await on_b.post("/agents/plain/runs", data=fields)
        assert (queued.status_code, queued.json()["status"]) == (200, "COMPLETED")
        await run.follow(on_b)
    assert problems(await read_history(database_url), [run]) == []


async def test_of_eight_turns_at_once_over_both_servers_exactly_one_is_taken(pair: tuple[Server, Server], database_url: str) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        for n in range(10):
            fields = {"message": "slow 3 50", "session_id": f"s{n}", "stream": "false"}
            answers = await asyncio.gather(*(c.post("/agents/native/runs", data=fields) for c in (on_a, on_b) * 4))
            taken = [answer.json()["run_id"] for answer in answers if answer.status_code == 200]
            refused = [answer.json()["run_id"] for answer in answers if answer.status_code == 409]
            assert (len(taken), refused) == (1, taken * 7)
    history = await read_history(database_url)
    assert len(history.runs) == 10
    assert problems(history, []) == []


async def test_one_key_over_both_servers_makes_one_run(pair: tuple[Server, Server], database_url: str) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        for n in range(10):
            fields = {"message": "slow 3 50", "stream": "false"}
            posts = (c.post("/agents/plain/runs", data=fields, headers={"Idempotency-Key": f"k{n}"}) for c in (on_a, on_b) * 3)
            answers = await asyncio.gather(*posts)
            assert [answer.status_code for answer in answers] == [200] * 6
            assert len({answer.json()["run_id"] for answer in answers}) == 1
    history = await read_history(database_url)
    assert len(history.runs) == 10
    assert problems(history, []) == []


async def test_the_other_server_takes_over_when_one_is_killed_and_no_viewer_hangs(pair: tuple[Server, Server], database_url: str) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        runs = [await running_on(on_a, agent, "slow 40 100", session_id=agent) for agent in ("native", "plain", "ext")]
        viewers = [Viewer(run.agent, run.run_id) for run in runs]
        watching = [asyncio.create_task(viewer.follow(on_b)) for viewer in viewers]
        fields = {"message": "hi", "session_id": "plain", "stream": "false", "on_busy": "enqueue"}
        queued = asyncio.create_task(on_b.post("/agents/plain/runs", data=fields))
        await asyncio.sleep(1)
        pair[0].kill()
        killed = time.monotonic()

        async def all_taken_over() -> bool:
            return all(b'"takeover"' in b"".join(viewer.lines.values()) for viewer in viewers)

        await until(all_taken_over, 5, "all runs were taken over")
        assert time.monotonic() - killed < 3.5
        async with asyncio.timeout(20):
            await asyncio.gather(*watching)
            assert (await queued).json()["status"] == "COMPLETED"
    assert [(viewer.end, viewer.cuts) for viewer in viewers] == [("RunCompleted", 0)] * 3
    assert problems(await read_history(database_url), [*runs, *viewers]) == []


async def test_a_server_that_was_frozen_for_dead_leaves_no_trace_when_it_wakes(sqlite_url: str, tmp_path: Path) -> None:
    with running(sqlite_url, tmp_path) as a, running(sqlite_url, tmp_path) as b:
        async with a.client() as on_a, b.client() as on_b:
            runs = [await running_on(on_a, agent, "slow 60 100") for agent in ("native", "plain", "ext")]
            assert a.process is not None
            a.process.send_signal(signal.SIGSTOP)
            try:
                viewers = [Viewer(run.agent, run.run_id) for run in runs]
                watching = [asyncio.create_task(viewer.follow(on_b)) for viewer in viewers]

                async def all_warned() -> bool:
                    return all(b'"takeover"' in b"".join(viewer.lines.values()) for viewer in viewers)

                await until(all_warned, 20, "all runs were taken over")
            finally:
                a.process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(20):
                await asyncio.gather(*watching)
            after = Viewer("plain")
            await after.post(on_a, "hi")
    assert [(viewer.end, viewer.cuts) for viewer in viewers] == [("RunCompleted", 0)] * 3
    assert after.end == "RunCompleted"
    assert problems(await read_history(sqlite_url), [*runs, *viewers, after]) == []


@pytest.mark.parametrize(("rule", "left"), [("interrupt", ["first", "second", "queued"]), ("rollback", ["second", "queued"])])
async def test_a_turn_of_one_server_gives_way_to_one_that_the_other_accepts(
    pair: tuple[Server, Server], database_url: str, rule: str, left: list[str]
) -> None:
    async with pair[0].client() as on_a, pair[1].client() as on_b:
        for agent in ("native", "plain", "ext"):
            first = await running_on(on_a, agent, "slow 300 100", session_id=agent)
            queued = await started(on_a, agent, "hi", session_id=agent)
            second = Viewer(agent)
            began = time.monotonic()
            await second.post(on_b, "chunks 5", session_id=agent, on_busy=rule)
            assert time.monotonic() - began < 2 + 3
            await asyncio.gather(first.follow(on_b), queued.follow(on_a))
            assert [viewer.end for viewer in (first, second, queued)] == ["RunCancelled", "RunCompleted", "RunCompleted"]
            names = {first.run_id: "first", second.run_id: "second", queued.run_id: "queued"}
            listed = (await on_a.get(f"/sessions/{agent}/runs")).json()
            assert sorted(names[run["run_id"]] for run in listed) == sorted(left)
            history = await read_history(database_url)
            began_at = [history.runs[viewer.run_id].row["started_at"] for viewer in (first, second, queued)]
            assert began_at == sorted(began_at)
            assert problems(history, [first, second, queued]) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "silent"])
async def test_a_turn_is_rolled_back_also_when_its_server_is_gone(database_url: str, tmp_path: Path, how: signal.Signals) -> None:
    with running(database_url, tmp_path) as a, running(database_url, tmp_path) as b:
        async with a.client() as on_a, b.client() as on_b:
            first = await running_on(on_a, "native", "slow 300 100", session_id="s")
            assert a.process is not None
            a.process.send_signal(how)
            try:
                second = Viewer("native")
                await second.post(on_b, "hi", session_id="s", on_busy="rollback")
                await first.follow(on_b)
                assert (first.end, second.end) == ("RunCancelled", "RunCompleted")
                listed = (await on_b.get("/sessions/s/runs")).json()
                assert [run["run_id"] for run in listed] == [second.run_id]
            finally:
                a.process.send_signal(signal.SIGCONT)
    assert problems(await read_history(database_url), [first, second]) == []

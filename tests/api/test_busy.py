"""One turn per session at a time: refusals, the line, and what never mixes."""

import asyncio
import logging

import pytest

from support.api_agents import Gate, SmallAgent, gated
from support.api_server import ApiServer, api_server
from support.api_wire import Wire
from waystation.agents.turn import Emitter, Turn


@pytest.mark.parametrize("agent", ["native", "ext"])
async def test_a_busy_session_is_refused_before_the_first_byte(
    api_on_each: ApiServer, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B44, B49: with what the client needs, and one warning line."""
    api, path = api_on_each, f"/agents/{agent}/runs"
    first = await api.enqueue("slow 200 20", agent, session_id="s")
    await api.until(first, "RUNNING", agent=agent)
    caplog.clear()
    answer = await api.http.post(path, data={"message": "hi", "session_id": "s"})
    body = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/json")
    assert (body["error_type"], body["error_id"], body["run_id"], body["session_id"]) == ("session_busy", "session_busy", first, "s")
    assert body["request_id"] == answer.headers["x-request-id"]
    assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "false")
    logged = [record for record in caplog.records if record.name.startswith("waystation")]
    assert [(record.levelname, record.exc_info) for record in logged] == [("WARNING", None)]
    assert body["request_id"] in caplog.text and "Traceback" not in caplog.text
    assert await api.count("runs") == 1
    await api.http.post(f"{path}/{first}/cancel", params={"wait": 5})


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"background": True, "on_busy": "reject"}])
async def test_a_busy_session_is_refused_in_every_mode(sqlite_url: str, fields: dict[str, object]) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        answer = await api.http.post("/agents/gated/runs", json={"message": "hi", "session_id": "s", **fields})
        assert (answer.status_code, answer.json()["error_type"]) == (409, "session_busy")
        gate.opened.set()


async def test_a_connection_outlives_a_refusal(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """B49: three requests over one connection."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        wire = await Wire(api.port).open()
        for _ in range(3):
            await wire.submit("gated", message="hi", session_id="s")
            status, headers = await wire.head()
            assert status == 409 and "close" not in headers.get("connection", "")
            await wire.body(headers)
        gate.opened.set()
        await wire.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_of_many_at_once_one_is_accepted_and_the_others_are_told_busy(api_on_each: ApiServer) -> None:
    """B44, B46, B51: a session that is new, too, and no 5xx."""
    api = api_on_each
    answers = await asyncio.gather(*(
        api.http.post("/agents/plain/runs", json={"message": "slow 5 20", "stream": False, "session_id": "new"}) for _ in range(20)
    ))  # fmt: skip
    codes = sorted(answer.status_code for answer in answers)
    accepted = {answer.json()["run_id"] for answer in answers if answer.status_code == 200}
    assert set(codes) == {200, 409}
    listed = {run["run_id"] for run in (await api.http.get("/sessions/new/runs")).json()}
    assert listed == accepted and (await api.http.get("/sessions")).json()["meta"]["total_count"] == 1


async def test_queued_turns_run_in_their_order_one_at_a_time(sqlite_url: str) -> None:
    """B116."""
    order: list[str] = []
    running = 0

    async def turn(turn: Turn, emit: Emitter) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.005)
        order.append(turn.run.input.message)
        running -= 1

    async with api_server(sqlite_url, [SmallAgent(turn)]) as api:
        ids = [await api.enqueue(f"m{number}", "small", session_id="s", max_attempts=2) for number in range(20)]
        runs = [await api.until(run_id, "COMPLETED", agent="small") for run_id in ids]
        assert order == [f"m{number}" for number in range(20)]
        assert {run["metadata"]["attempts"] for run in runs} == {1}


async def test_a_foreground_turn_may_wait_in_line(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        waiting = asyncio.create_task(api.run(agent="gated", session_id="s", on_busy="enqueue"))
        await asyncio.sleep(0.1)
        assert not waiting.done() and gate.passed == 0
        gate.opened.set()
        assert (await waiting)["status"] == "COMPLETED"


async def test_other_sessions_are_not_held_up(sqlite_url: str) -> None:
    """B56, B116."""
    gate = Gate()

    async def turn(turn: Turn, emit: Emitter) -> None:
        if turn.run.session_id == "slow":
            await gate.wait()

    async with api_server(sqlite_url, [SmallAgent(turn)]) as api:
        held = [await api.enqueue(agent="small", session_id="slow") for _ in range(5)]
        for number in range(5):
            assert (await api.run(agent="small", session_id=f"other{number}"))["status"] == "COMPLETED"
        gate.opened.set()
        for run_id in held:
            await api.until(run_id, "COMPLETED", agent="small")


async def test_a_session_belongs_to_the_agent_of_its_first_run(api: ApiServer) -> None:
    """B54."""
    await api.run(agent="plain", session_id="s")
    answer = await api.http.post("/agents/native/runs", data={"message": "hi", "session_id": "s"})
    assert (answer.status_code, answer.json()["error_type"]) == (409, "session_of_other_agent")
    assert await api.count("runs") == 1


async def test_a_session_of_another_user_is_not_found_and_nothing_is_stored(api: ApiServer) -> None:
    """B92."""
    await api.run(session_id="s", user_id="a")
    answer = await api.http.post("/agents/plain/runs", data={"message": "hi", "session_id": "s", "user_id": "b"})
    assert (answer.status_code, answer.json()["error_type"]) == (404, "session_not_found")
    assert await api.count("runs") == 1
    nobody = await api.run(session_id="s")
    assert nobody["user_id"] == "a", "a run posted into an owned session belongs to the session's owner"


async def test_a_paused_native_run_leaves_its_session_free(api: ApiServer) -> None:
    """B56."""
    assert (await api.run("confirm", "native", session_id="s"))["status"] == "PAUSED"
    assert (await api.run("hi", "native", session_id="s"))["status"] == "COMPLETED"


async def test_a_session_takes_a_hundred_waiting_turns_and_then_says_429(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        body = {"message": "hi", "session_id": "s", "background": True, "stream": False}
        answers = [await api.http.post("/agents/gated/runs", json=body) for _ in range(101)]
        gate.opened.set()
        assert [answer.status_code for answer in answers[:100]] == [202] * 100
        assert (answers[100].status_code, answers[100].json()["error_type"]) == (429, "queue_full")
        assert answers[100].headers["retry-after"]

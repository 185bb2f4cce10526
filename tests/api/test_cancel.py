"""Cancelling runs in every state of their lives."""

import asyncio
from typing import Any

import pytest

from support.api_agents import Gate, SmallAgent, gated
from support.api_server import ApiServer, api_server
from support.api_wire import ENDS, frames_of, names
from waystation.agents.native.agent import Agent
from waystation.agents.native.models.scripted import Call, ScriptedModel
from waystation.agents.turn import Emitter, Turn
from waystation.domain.message import Message, repaired


async def cancel(api: ApiServer, run_id: str, agent: str = "plain", wait: float = 5) -> dict[str, Any]:
    answer = await api.http.post(f"/agents/{agent}/runs/{run_id}/cancel", params={"wait": wait})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("agent", ["native", "ext"])
async def test_a_running_run_is_cancelled_with_what_it_said(api_on_each: ApiServer, agent: str) -> None:
    """B30, B32."""
    api = api_on_each
    viewer = asyncio.create_task(api.http.post(f"/agents/{agent}/runs", data={"message": "slow 500 10", "session_id": "s"}))
    run_id = ""
    while not run_id:
        run_id = next((run["run_id"] for run in (await api.http.get(f"/agents/{agent}/runs")).json()), "")
    await asyncio.sleep(0.2)
    body = await cancel(api, run_id, agent)
    frames = frames_of((await asyncio.wait_for(viewer, 1)).content)
    run = await api.get(run_id, agent)
    assert body == {"run_id": run_id, "session_id": "s", "status": "CANCELLED"}
    assert frames[-1].name == "RunCancelled" and [n for n in names(frames) if n in ENDS] == ["RunCancelled"]
    assert run["status"] == "CANCELLED" and run["content"] and run["content"] == frames[-1].data["content"]
    assert (await api.http.get("/sessions/s")).json()["chat_history"], "the turn did not vanish"
    assert (await api.run("hi", agent, session_id="s"))["status"] == "COMPLETED", "B37: the session goes on"


async def test_without_a_wait_the_answer_is_honest(sqlite_url: str) -> None:
    """B34: RUNNING and cancel_requested while it is stopping."""
    stopping = asyncio.Event()

    async def turn(turn: Turn, emit: Emitter) -> None:
        await turn.cancel.wait()
        await stopping.wait()

    async with api_server(sqlite_url, [SmallAgent(turn)], cancel_grace_s=5) as api:
        run_id = await api.enqueue(agent="small", session_id="s")
        await api.until(run_id, "RUNNING", agent="small")
        expected = {"run_id": run_id, "session_id": "s", "status": "RUNNING", "cancel_requested": True}
        assert await cancel(api, run_id, "small", 0) == expected == await cancel(api, run_id, "small", 0.05)
        assert (await api.get(run_id, "small"))["cancel_requested"] is True
        stopping.set()
        assert (await cancel(api, run_id, "small"))["status"] == "CANCELLED"


async def test_a_queued_run_is_cancelled_at_once(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        first = await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        queued = await api.enqueue(agent="gated", session_id="s")
        assert (await cancel(api, queued, "gated", 0))["status"] == "CANCELLED"
        log = await api.events(queued, "gated")
        assert [event["event"] for event in log] == ["RunCancelled"] and log[0]["event_index"] == 0
        gate.opened.set()
        assert (await api.until(first, "COMPLETED", agent="gated"))["status"] == "COMPLETED"
        assert gate.passed == 1


async def test_a_paused_run_is_cancelled_and_its_approval_with_it(api: ApiServer) -> None:
    run = await api.run("approve", "native")
    assert (await cancel(api, run["run_id"], "native", 0))["status"] == "CANCELLED"
    assert (await api.http.get("/approvals")).json()["data"][0]["status"] == "cancelled"
    again = await api.http.post(f"/agents/native/runs/{run['run_id']}/continue", json={"tools": []})
    assert (again.status_code, again.json()["error_type"]) == (409, "run_not_continuable")


async def test_a_finished_run_stays_what_it_is(api: ApiServer) -> None:
    """B33: terminal is terminal."""
    for word, status in [("hi", "COMPLETED"), ("fail", "ERROR")]:
        run = await api.run(word)
        assert [(await cancel(api, run["run_id"]))["status"] for _ in range(2)] == [status, status]
        assert await api.get(run["run_id"]) == run


async def test_cancelling_is_idempotent(api: ApiServer) -> None:
    run_id = await api.enqueue("slow 500 10")
    answers = await asyncio.gather(*(cancel(api, run_id) for _ in range(10)))
    assert {answer["status"] for answer in answers} == {"CANCELLED"}
    assert [event["event"] for event in await api.events(run_id)].count("RunCancelled") == 1


async def test_unknown_runs_and_bad_waits_are_refused(api: ApiServer) -> None:
    run = await api.run()
    for path in (f"/agents/native/runs/{run['run_id']}", "/agents/plain/runs/nope"):
        answer = await api.http.post(f"{path}/cancel")
        assert (answer.status_code, answer.json()["error_type"]) == (404, "run_not_found")
    for wait in ("-1", "31", "nan", "x"):
        answer = await api.http.post(f"/agents/plain/runs/{run['run_id']}/cancel", params={"wait": wait})
        assert answer.status_code == 422


async def test_no_tool_starts_after_the_cancel_is_answered(sqlite_url: str) -> None:
    """B33: cancelled during the first of five."""
    gate, effects = Gate(), []

    async def work(number: int) -> str:
        """Work."""
        effects.append(number)
        await gate.wait()
        return "done"

    def script(messages: list[Message]) -> list[Any]:
        count = sum(message.role == "tool" for message in messages)
        return [Call("work", {"number": count})] if count < 5 else ["end"]

    agent = Agent(id="native", model=ScriptedModel(script), tools=[work])
    async with api_server(sqlite_url, [agent]) as api:
        run_id = await api.enqueue(agent="native")
        await gate.reached.wait()
        assert (await cancel(api, run_id, "native"))["status"] == "CANCELLED"
        gate.opened.set()
        await asyncio.sleep(0.1)
        assert effects == [0] and (await api.get(run_id, "native"))["status"] == "CANCELLED"


async def test_a_session_is_usable_after_a_cancel_between_calls_and_results(sqlite_url: str) -> None:
    """B43: one of three parallel calls had ended."""
    gate, seen = Gate(), []

    async def quick() -> str:
        """Quick."""
        return "result"

    async def slow() -> str:
        """Slow."""
        await gate.wait()
        return "never"

    def script(messages: list[Message]) -> list[Any]:
        seen.append(list(messages))
        return [Call("quick"), Call("slow"), Call("slow")] if messages[-1].content == "go" else ["fine"]

    model = ScriptedModel(script)
    agent = Agent(id="native", model=model, tools=[quick, slow], add_history_to_context=True)
    async with api_server(sqlite_url, [agent]) as api:
        run_id = await api.enqueue("go", "native", session_id="s")
        await gate.reached.wait()
        await asyncio.sleep(0.05)
        await cancel(api, run_id, "native")
        cancelled = await api.get(run_id, "native")
        again = await api.run("hello", "native", session_id="s")
        assert again["status"] == "COMPLETED"
        assert seen[-1] == repaired(seen[-1]) and any(message.role == "tool" for message in seen[-1])
        done = [tool for tool in cancelled["tools"] if tool["tool_name"] == "quick"]
        assert done[0]["result"] == "result", "B30: finished calls are kept"


@pytest.mark.parametrize("at", [0.0, 0.005, 0.02])
async def test_a_cancel_at_any_moment_leaves_one_end(api: ApiServer, at: float) -> None:
    """B33, B41: many at once, and each answer is about its own run."""
    ids = [await api.enqueue("tool", "native", session_id=f"s{number}") for number in range(10)]
    await asyncio.sleep(at)
    answers = await asyncio.gather(*(cancel(api, run_id, "native") for run_id in ids))
    for number, (run_id, answer) in enumerate(zip(ids, answers, strict=True)):
        log = [event["event"] for event in await api.events(run_id, "native")]
        assert (answer["run_id"], answer["session_id"]) == (run_id, f"s{number}")
        assert len([name for name in log if name in ENDS]) == 1
        assert log[-1] == {"CANCELLED": "RunCancelled", "COMPLETED": "RunCompleted"}[answer["status"]]
        assert (await api.get(run_id, "native"))["status"] == answer["status"]


async def test_a_run_is_cancelled_from_another_process_without_any_wake_up(sqlite_url: str) -> None:
    """B34."""
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as owner, api_server(sqlite_url, [agent]) as other:
        answer = await owner.http.send(
            owner.http.build_request("POST", "/agents/gated/runs", data={"message": "hi"}), stream=True
        )  # fmt: skip
        await gate.reached.wait()
        body = await cancel(other, answer.headers["x-run-id"], "gated", 4)
        assert body["status"] == "CANCELLED" and gate.passed == 0
        assert frames_of(await answer.aread())[-1].name == "RunCancelled"

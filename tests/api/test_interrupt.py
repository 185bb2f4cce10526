"""on_busy=interrupt and rollback: a turn that takes the place of the one in flight."""

import asyncio
import time
from typing import Any

import pytest

from support.api_agents import Gate, SmallAgent, gated
from support.api_server import ApiServer, api_server
from support.store_ops import interrupting
from waystation.agents.base import Capability
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.clock import now
from waystation.domain.requirement import Requirement, ToolExecution
from waystation.domain.retry import RetryPolicy
from waystation.errors import AgentError
from waystation.store.operations import Verdict

RULES = ["interrupt", "rollback"]


class ForgettingAgent(SmallAgent):
    """An external agent whose conversation is our messages."""

    capabilities = frozenset({Capability.ROLLBACK})


async def in_flight(api: ApiServer, agent: str, **fields: Any) -> str:
    run_id = await api.enqueue("slow 400 20", agent, session_id="s", **fields)
    await api.until(run_id, "RUNNING", agent=agent)
    return run_id


async def questions(api: ApiServer, agent: str) -> list[str]:
    """What the session's history says that the user asked."""
    session = (await api.http.get("/sessions/s", params={"type": "agent"})).json()
    return [message["content"] for message in session["chat_history"] if message["role"] == "user"]


@pytest.mark.parametrize("agent", ["native", "ext"])
async def test_an_interrupted_turn_is_cancelled_and_stays_in_the_history(api_on_each: ApiServer, agent: str) -> None:
    api = api_on_each
    first = await in_flight(api, agent)
    second = await api.run("hi", agent, session_id="s", on_busy="interrupt")
    assert second["status"] == "COMPLETED"
    assert (await api.get(first, agent))["status"] == "CANCELLED"
    listed = (await api.http.get("/sessions/s/runs")).json()
    assert [run["run_id"] for run in listed] == [first, second["run_id"]]
    assert await questions(api, agent) == ["slow 400 20", "hi"]
    assert [event["event"] for event in await api.events(first, agent)][-1] == "RunCancelled"


@pytest.mark.parametrize("agent", ["native", "ext"])
async def test_a_turn_that_is_rolled_back_is_cancelled_and_leaves_the_history(api_on_each: ApiServer, agent: str) -> None:
    api = api_on_each
    first = await in_flight(api, agent)
    second = await api.run("hi", agent, session_id="s", on_busy="rollback")
    assert second["status"] == "COMPLETED"
    listed = (await api.http.get("/sessions/s/runs")).json()
    assert [run["run_id"] for run in listed] == [second["run_id"]]
    assert await questions(api, agent) == ["hi"]
    assert (await api.get(first, agent))["status"] == "CANCELLED", "it is read by its id"


async def test_later_turns_are_not_given_what_was_rolled_back(sqlite_url: str) -> None:
    given: list[list[str | None]] = []
    gate = Gate()

    async def turn(turn: Turn, emit: Emitter) -> TurnResult:
        given.append([message.content for message in turn.history if message.role == "user"])
        if turn.run.input.message == "waits":
            await gate.wait()
        return TurnResult(content="ok")

    agent = ForgettingAgent(turn)
    agent.history_runs = 5
    async with api_server(sqlite_url, [agent]) as api:
        await api.run("kept", "small", session_id="s")
        await api.enqueue("waits", "small", session_id="s")
        await gate.reached.wait()
        await api.run("new", "small", session_id="s", on_busy="rollback")
        await api.run("next", "small", session_id="s")
    assert given == [[], ["kept"], ["kept"], ["kept", "new"]]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", [{"stream": True}, {"stream": False}, {"background": True}, {"background": True, "stream": False}])
async def test_it_works_in_every_mode_and_in_a_free_session(api: ApiServer, rule: str, mode: dict[str, bool]) -> None:
    body = {"message": "hi", "session_id": "s", "on_busy": rule, **mode}
    free = await api.http.post("/agents/plain/runs", json=body)
    await api.until(free.headers["x-run-id"], "COMPLETED")
    first = await in_flight(api, "plain")
    busy = await api.http.post("/agents/plain/runs", json=body)
    await api.until(busy.headers["x-run-id"], "COMPLETED")
    assert (await api.get(first))["status"] == "CANCELLED"
    assert free.status_code == busy.status_code == (202 if mode == {"background": True, "stream": False} else 200)


async def test_it_starts_as_soon_as_the_turn_has_ended_and_long_before_the_next_poll(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent], poll_s=30.0) as api:
        await api.enqueue(agent="gated", session_id="s")
        await gate.reached.wait()
        gate.reached.clear()
        began = time.monotonic()
        second = asyncio.create_task(api.run(agent="gated", session_id="s", on_busy="interrupt"))
        async with asyncio.timeout(5):
            await gate.reached.wait()
        assert time.monotonic() - began < 2
        gate.opened.set()
        assert (await second)["status"] == "COMPLETED"


async def test_it_runs_before_those_in_line_and_each_tells_its_place(sqlite_url: str) -> None:
    order: list[str] = []
    gate = Gate()

    async def turn(turn: Turn, emit: Emitter) -> None:
        order.append(turn.run.input.message)
        await gate.wait()

    async with api_server(sqlite_url, [SmallAgent(turn)], cancel_grace_s=1.0) as api:
        held = await api.enqueue("held", "small", session_id="s")
        await gate.reached.wait()
        line = [await api.enqueue(name, "small", session_id="s") for name in ("a", "b")]
        assert [(await api.get(run_id, "small"))["queue_position"] for run_id in line] == [1, 2]
        assert "queue_position" not in await api.get(held, "small")
        first = await api.enqueue("first", "small", session_id="s", on_busy="interrupt")
        listed = (await api.http.get("/agents/small/runs", params={"session_id": "s"})).json()
        assert {run["run_input"]: run.get("queue_position") for run in listed} == {"held": None, "first": 1, "a": 2, "b": 3}
        gate.opened.set()
        for run_id in (*line, first):
            await api.until(run_id, "COMPLETED", agent="small")
    assert order == ["held", "first", "a", "b"]


async def test_of_two_the_later_cancels_the_earlier(sqlite_url: str) -> None:
    agent, gate = gated()
    async with api_server(sqlite_url, [agent]) as api:
        runs = [await api.enqueue(agent="gated", session_id="s", on_busy="interrupt") for _ in range(5)]
        gate.opened.set()
        await api.until(runs[-1], "COMPLETED", agent="gated")
        assert [(await api.get(run_id, "gated"))["status"] for run_id in runs] == ["CANCELLED"] * 4 + ["COMPLETED"]


async def until_retried(api: ApiServer, run_id: str) -> None:
    """Until the first attempt has failed."""
    async with asyncio.timeout(5):
        while (await api.get(run_id, "small"))["status"] != "PENDING" or not await api.events(run_id, "small"):
            await asyncio.sleep(0.01)


async def test_a_turn_that_waits_for_its_next_attempt_is_cancelled(sqlite_url: str) -> None:
    async def turn(turn: Turn, emit: Emitter) -> None:
        if turn.run.input.message == "fails":
            raise AgentError("not now", retryable=True)

    agent = SmallAgent(turn, retry=RetryPolicy(attempts=3, delay_s=500))
    async with api_server(sqlite_url, [agent]) as api:
        first = await api.enqueue("fails", "small", session_id="s")
        await until_retried(api, first)
        second = await api.run("hi", "small", session_id="s", on_busy="interrupt")
        assert (second["status"], (await api.get(first, "small"))["status"]) == ("COMPLETED", "CANCELLED")


async def paused_turn(turn: Turn, emit: Emitter) -> TurnResult | None:
    if turn.run.input.message != "ask":
        return None
    tool = ToolExecution(tool_call_id="c", tool_name="t", requires_confirmation=True)
    return TurnResult(requirements=[Requirement(id="r", created_at=0.0, tool_execution=tool)])


async def test_a_paused_turn_that_keeps_its_session_is_cancelled(sqlite_url: str) -> None:
    async with api_server(sqlite_url, [SmallAgent(paused_turn)]) as api:
        first = await api.run("ask", "small", session_id="s")
        second = await api.run("hi", "small", session_id="s", on_busy="interrupt")
        assert (first["status"], second["status"]) == ("PAUSED", "COMPLETED")
        assert (await api.get(first["run_id"], "small"))["status"] == "CANCELLED"


async def test_a_paused_native_turn_has_left_its_session_and_is_left_alone(api: ApiServer) -> None:
    first = await api.run("confirm", "native", session_id="s")
    second = await api.run("hi", "native", session_id="s", on_busy="rollback")
    assert (first["status"], second["status"]) == ("PAUSED", "COMPLETED")
    assert (await api.get(first["run_id"], "native"))["status"] == "PAUSED"


async def test_an_agent_that_can_not_forget_refuses_a_rollback_and_takes_an_interrupt(sqlite_url: str) -> None:
    agent, gate = gated()
    gate.opened.set()
    async with api_server(sqlite_url, [agent]) as api:
        answer = await api.http.post("/agents/gated/runs", data={"message": "hi", "on_busy": "rollback"})
        assert (answer.status_code, answer.json()["error_type"]) == (501, "not_supported")
        assert await api.count("runs") == 0 and await api.count("sessions") == 0
        assert (await api.run(agent="gated", on_busy="interrupt"))["status"] == "COMPLETED"


async def test_a_repeated_request_with_a_key_cancels_nothing_more(api: ApiServer) -> None:
    await in_flight(api, "plain")
    body = {"message": "slow 20 20", "session_id": "s", "on_busy": "interrupt", "stream": False}
    answers = [await api.http.post("/agents/plain/runs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.json()["status"] for answer in answers] == ["COMPLETED"] * 2
    assert answers[0].json()["run_id"] == answers[1].json()["run_id"]


async def test_nobody_interrupts_a_session_of_another_user_or_agent(api: ApiServer) -> None:
    first = await in_flight(api, "plain", user_id="a")
    for agent, user, refusal in [("plain", "b", "session_not_found"), ("native", "a", "session_of_other_agent")]:
        body = {"message": "hi", "session_id": "s", "user_id": user, "on_busy": "rollback"}
        assert (await api.http.post(f"/agents/{agent}/runs", json=body)).json()["error_type"] == refusal
    assert (await api.get(first))["status"] == "RUNNING"
    assert "cancel_requested" not in await api.get(first)
    await api.http.post(f"/agents/plain/runs/{first}/cancel", params={"wait": 5})


# ---- a crash between the acceptance and the cancel ---------------------------------------------------------------------------


async def accept_and_tell_nobody(api: ApiServer) -> str:
    """A run that goes first, of a process that was lost just after its commit."""
    accept = interrupting("new", "s", agent_id="small", created_at=now(), available_at=now(), drops=True)
    answer = await api.container.ledger.accept(accept)
    assert answer.verdict is Verdict.WAITS and len(answer.asked) == 1
    api.container.worker.wake()
    return "new"


async def test_a_running_turn_finds_that_it_was_asked_to_stop(sqlite_url: str) -> None:
    agent, gate = gated("small")
    async with api_server(sqlite_url, [agent]) as api:
        first = await api.enqueue(agent="small", session_id="s")
        await gate.reached.wait()
        new = await accept_and_tell_nobody(api)
        await api.until(first, "CANCELLED", agent="small")
        gate.opened.set()
        await api.until(new, "COMPLETED", agent="small")
        assert [run["run_id"] for run in (await api.http.get("/sessions/s/runs")).json()] == [new]


async def test_a_paused_turn_that_was_asked_to_stop_is_ended_by_recovery(sqlite_url: str) -> None:
    async with api_server(sqlite_url, [SmallAgent(paused_turn)], cancel_takeover_s=0.1) as api:
        first = await api.run("ask", "small", session_id="s")
        new = await accept_and_tell_nobody(api)
        await api.until(new, "COMPLETED", agent="small")
        assert (await api.get(first["run_id"], "small"))["status"] == "CANCELLED"
        assert [run["run_id"] for run in (await api.http.get("/sessions/s/runs")).json()] == [new]


async def test_a_turn_between_two_attempts_that_was_asked_to_stop_is_claimed_and_ended(sqlite_url: str) -> None:
    async def turn(turn: Turn, emit: Emitter) -> None:
        if turn.run.input.message == "fails":
            raise AgentError("not now", retryable=True)

    async with api_server(sqlite_url, [SmallAgent(turn, retry=RetryPolicy(attempts=3, delay_s=500))], cancel_takeover_s=500.0) as api:
        first = await api.enqueue("fails", "small", session_id="s")
        await until_retried(api, first)
        new = await accept_and_tell_nobody(api)
        await api.until(new, "COMPLETED", agent="small")
        assert (await api.get(first, "small"))["status"] == "CANCELLED"

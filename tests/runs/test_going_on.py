"""Attempts and takeovers: what becomes of a run that failed, or whose process was lost; and that nothing leaks."""

import asyncio
import gc
from collections.abc import Callable

import pytest
from benchmarks.stub_agents import stub_agents

from support.api_agents import Gate, ResumingAgent, SmallAgent, TurnFunction
from support.api_container import NOBODY, Process, process
from waystation.agents.turn import Emitter, Turn
from waystation.domain.event import CustomEvent, RunContent
from waystation.domain.retry import RetryPolicy
from waystation.errors import AgentError, AppError
from waystation.runs.request import ContinueRequest

AT_ONCE = RetryPolicy(attempts=3, delay_s=0.01)


def failing(times: int, *, retryable: bool = True) -> TurnFunction:
    async def turn(turn: Turn, emit: Emitter) -> None:
        emit(RunContent(content=f"try {turn.run.attempt} "))
        if turn.run.attempt <= times:
            raise AgentError("Overloaded.", error_type="overloaded", retryable=retryable)

    return turn


@pytest.mark.parametrize(
    ("agent", "status", "attempts", "content"),
    [
        (SmallAgent(failing(0), retry=AT_ONCE), "COMPLETED", 1, "try 1 "),
        (SmallAgent(failing(2), retry=AT_ONCE), "COMPLETED", 3, "try 3 "),
        (SmallAgent(failing(9), retry=AT_ONCE), "ERROR", 3, "Overloaded."),
        (SmallAgent(failing(9, retryable=False), retry=AT_ONCE), "ERROR", 1, "Overloaded."),
        (SmallAgent(failing(1)), "ERROR", 1, "Overloaded."),
    ],
)
async def test_a_turn_is_started_as_often_as_its_policy_says(
    database_url: str, agent: SmallAgent, status: str, attempts: int, content: str
) -> None:
    """B115."""
    async with process(database_url, [agent]) as server:
        ticket = await server.submit()
        run = await server.until(ticket.run_id, "COMPLETED", "ERROR")
        assert (run.status, run.attempt, run.output.content) == (status, attempts, content)
        log = await server.log(run.id)
        told = [event.warning["attempt"] for event in log if isinstance(event, CustomEvent) and event.warning]
        assert told == list(range(1, attempts)) and run.epoch == attempts and not run.holds_session
        await server.idle()


async def test_an_unforeseen_exception_is_not_tried_again(sqlite_url: str) -> None:
    async def turn(turn: Turn, emit: Emitter) -> None:
        raise ValueError("a bug")

    async with process(sqlite_url, [SmallAgent(turn, retry=AT_ONCE)]) as server:
        run = await server.ended()
        assert (run.status, run.error.type, run.attempt) == ("ERROR", "internal_error", 1)


async def test_a_run_that_waits_for_its_next_attempt_keeps_its_session_and_can_be_cancelled(sqlite_url: str) -> None:
    agent = SmallAgent(failing(9), retry=RetryPolicy(attempts=2, delay_s=60))
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit(session_id="s")
        run = await server.until(ticket.run_id, "PENDING")
        assert run.holds_session and (run.attempt, run.available_at > run.created_at + 50) == (2, True)
        with pytest.raises(AppError, match="turn in flight"):
            await server.submit(session_id="s")
        assert (await server.cancel(ticket))[0].status == "CANCELLED"
        assert (await server.run(ticket.run_id)).output.content is None


# ---- takeovers --------------------------------------------------------------------------------------------------------------------


async def lose(server: Process, run_id: str) -> None:
    """Take the run from its owner, as recovery does when a process has died."""
    from waystation.clock import now
    from waystation.store import runs as run_store

    worker = (await server.run(run_id)).worker_id
    assert worker is not None
    assert await server.container.database.write(run_store.hand_back_runs_of, worker, now()) == [run_id]
    server.container.executor.drop_all()
    await server.idle()
    server.container.worker.wake()


def hanging_first(made: Callable[..., SmallAgent]) -> tuple[SmallAgent, Gate, list[Turn]]:
    """An agent whose first start hangs after it has said something; later ones say the rest."""
    gate, turns = Gate(), []

    async def turn(turn: Turn, emit: Emitter) -> None:
        turns.append(turn)
        emit(RunContent(content=f"start {len(turns)} "))
        await emit.stored()
        if len(turns) == 1:
            await gate.wait()

    return made(turn), gate, turns


async def test_an_agent_that_can_go_on_takes_its_run_over(sqlite_url: str) -> None:
    agent, gate, turns = hanging_first(ResumingAgent)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit()
        await gate.reached.wait()
        await lose(server, ticket.run_id)
        run = await server.until(ticket.run_id, "COMPLETED", "ERROR")
        assert (run.status, run.attempt, run.takeovers, run.output.content) == ("COMPLETED", 1, 1, "start 1 start 2 ")
        assert [turn.resumed for turn in turns] == [False, True]
        assert [w["type"] for w in run.metadata["warnings"]] == ["takeover"]
        assert await server.names(run.id) == ["RunStarted", "RunContent", "CustomEvent", "RunContent", "RunCompleted"]


async def test_an_agent_that_can_not_go_on_starts_anew_while_attempts_are_left(sqlite_url: str) -> None:
    agent, gate, turns = hanging_first(SmallAgent)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit(max_attempts=2)
        await gate.reached.wait()
        await lose(server, ticket.run_id)
        run = await server.until(ticket.run_id, "COMPLETED", "ERROR")
        assert (run.status, run.attempt, run.output.content) == ("COMPLETED", 2, "start 2 ")
        assert [turn.resumed for turn in turns] == [False, False]
        warning = (await server.log(run.id))[2].warning
        assert (warning["type"], warning["discard_from"]) == ("takeover", 1)


async def test_without_attempts_the_run_ends_in_error_worker_lost(sqlite_url: str) -> None:
    """B50: and its session is free."""
    agent, gate, turns = hanging_first(SmallAgent)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit(session_id="s")
        await gate.reached.wait()
        await lose(server, ticket.run_id)
        run = await server.until(ticket.run_id, "COMPLETED", "ERROR")
        assert (run.status, run.error.type, run.error.retryable, len(turns)) == ("ERROR", "worker_lost", True, 1)
        assert await server.names(run.id) == ["RunStarted", "RunContent", "RunError"]
        assert (await server.ended(session_id="s")).status == "COMPLETED"


@pytest.mark.parametrize(("takeovers", "status"), [(3, "COMPLETED"), (4, "ERROR")])
async def test_a_run_is_taken_over_only_so_often(sqlite_url: str, takeovers: int, status: str) -> None:
    agent, gate, _ = hanging_first(ResumingAgent)
    async with process(sqlite_url, [agent], max_takeovers=3) as server:
        ticket = await server.submit()
        await gate.reached.wait()
        await server.sql("UPDATE runs SET takeovers = :n", n=takeovers - 1)
        await lose(server, ticket.run_id)
        run = await server.until(ticket.run_id, "COMPLETED", "ERROR")
        assert (run.status, run.error.type if run.error else None) == (status, None if status == "COMPLETED" else "worker_lost")


async def test_a_lost_run_whose_cancel_was_requested_ends_cancelled(sqlite_url: str) -> None:
    """B34, B50."""
    agent, gate, turns = hanging_first(ResumingAgent)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit()
        await gate.reached.wait()
        await server.sql("UPDATE runs SET cancel_requested = :yes", yes=True)
        await lose(server, ticket.run_id)
        run = await server.until(ticket.run_id, "CANCELLED", "COMPLETED", "ERROR")
        assert (run.status, len(turns)) == ("CANCELLED", 1) and (await server.names(run.id))[-1] == "RunCancelled"


# ---- nothing leaks ------------------------------------------------------------------------------------------------------------------


async def test_after_many_mixed_runs_every_slot_is_free_and_no_task_is_left(sqlite_url: str) -> None:
    """B18, B68: completed, failed, tried again, cancelled, paused, continued, queued and refused ones; garbage is collected."""
    before = asyncio.all_tasks()
    async with process(sqlite_url, stub_agents(), worker_concurrency=8) as server:

        async def one(number: int) -> None:
            word, agent = [("hi", "plain"), ("fail", "plain"), ("confirm", "native"), ("tool", "ext"), ("slow 50 10", "ext")][number % 5]
            try:
                ticket = await server.submit(word, agent, session_id=f"s{number % 23}-{agent}", background=number % 3 == 0)
            except AppError:
                return
            if word.startswith("slow"):
                await server.cancel(ticket, wait_s=5)
            detail = await server.container.watch.settled(ticket.run_id)
            if detail.run.status == "PAUSED" and number % 2:
                asked = ContinueRequest(agent_id=agent, run_id=ticket.run_id, answers=[])
                with pytest.raises(AppError, match="still waits"):
                    await server.container.continuations.go_on(asked, NOBODY)
            gc.collect() if number % 50 == 0 else None

        await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(200))), 30)
        await server.idle()
        assert server.container.slots.used == 0 and server.container.hub.stats() == {"channels": 0, "users": 0}
        counts = {row[0]: row[1] for row in await server.sql("SELECT status, count(*) FROM runs GROUP BY status")}
        assert set(counts) <= {"COMPLETED", "ERROR", "CANCELLED", "PAUSED"}
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before

"""How a turn is stopped: agents that obey, that are slow to, and that do not. However it ends, the run ends once."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import pytest

from support.api_agents import Gate, SmallAgent, TurnFunction
from support.api_container import Process, process
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.domain.event import RunContent


def first_says(turn_function: TurnFunction) -> tuple[SmallAgent, asyncio.Event]:
    """An agent that says something before it does what it does, and when it has."""
    begun = asyncio.Event()

    async def turn(turn: Turn, emit: Emitter) -> TurnResult | None:
        emit(RunContent(content="partial "))
        await emit.stored()
        begun.set()
        return await turn_function(turn, emit)

    return SmallAgent(turn), begun


async def never_ends(turn: Turn, emit: Emitter) -> None:
    await asyncio.Event().wait()


async def swallows_one(turn: Turn, emit: Emitter) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def swallows_one_and_goes_on(turn: Turn, emit: Emitter) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


async def raises_in_its_interrupt(turn: Turn, emit: Emitter) -> None:
    async def interrupt() -> None:
        raise RuntimeError("the SDK is broken")

    turn.cancel.bind(interrupt)
    await asyncio.Event().wait()


async def hangs_in_its_interrupt(turn: Turn, emit: Emitter) -> None:
    async def interrupt() -> None:
        await asyncio.Event().wait()

    turn.cancel.bind(interrupt)
    await asyncio.Event().wait()


async def obeys_its_interrupt(turn: Turn, emit: Emitter) -> None:
    stopped = asyncio.Event()

    async def interrupt() -> None:
        stopped.set()

    turn.cancel.bind(interrupt)
    await stopped.wait()


async def fails_when_it_is_stopped(turn: Turn, emit: Emitter) -> None:
    await turn.cancel.wait()
    raise RuntimeError("the SDK ended with code 1")


async def answers_when_it_is_stopped(turn: Turn, emit: Emitter) -> TurnResult:
    await turn.cancel.wait()
    return TurnResult(content="as if nothing had happened")


async def talks_while_it_is_stopped(turn: Turn, emit: Emitter) -> None:
    await turn.cancel.wait()
    for _ in range(100):
        emit(RunContent(content="and on "))
        await asyncio.sleep(0)


KINDS = [
    never_ends, swallows_one, raises_in_its_interrupt, hangs_in_its_interrupt, obeys_its_interrupt, fails_when_it_is_stopped,
    answers_when_it_is_stopped, talks_while_it_is_stopped, swallows_one_and_goes_on,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_turn_ends_cancelled_whatever_its_agent_does(sqlite_url: str, kind: TurnFunction) -> None:
    """B30, B32, B33, B36."""
    agent, begun = first_says(kind)
    async with process(sqlite_url, [agent], cancel_takeover_s=600) as server:
        ticket = await server.submit()
        await begun.wait()
        run, stopping = await server.cancel(ticket, wait_s=1.5)
        assert not stopping
        assert (run.status, run.output.content[:8]) == ("CANCELLED", "partial ")
        names = await server.names(run.id)
        assert names[0] == "RunStarted" and names[-1] == "RunCancelled" and names.count("RunCancelled") == 1
        await server.idle()


@pytest.mark.parametrize("kind", [never_ends, swallows_one, obeys_its_interrupt, answers_when_it_is_stopped, swallows_one_and_goes_on])
async def test_a_turn_that_takes_too_long_ends_in_error_timeout(sqlite_url: str, kind: TurnFunction) -> None:
    agent, _ = first_says(kind)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit(timeout_s=0.2)
        run = await server.until(ticket.run_id, "ERROR", within_s=1.5)
        assert run.error is not None and run.error.type == "timeout"
        assert await server.names(run.id) == ["RunStarted", "RunContent", "RunError"]
        await server.idle()


async def test_a_run_that_was_asked_to_stop_before_its_turn_began_starts_nothing(sqlite_url: str) -> None:
    """B33."""
    gate = Gate()
    async with process(sqlite_url, [SmallAgent(gate.turn)], worker_concurrency=1) as server:
        await server.submit(session_id="a")
        await gate.reached.wait()
        waiting = await server.submit(session_id="b")
        run, stopping = await server.cancel(waiting)
        assert (run.status, stopping, await server.names(run.id)) == ("CANCELLED", False, ["RunCancelled"])
        gate.opened.set()
        await server.idle()
        assert gate.passed == 1


class Odd(BaseException):
    """What some libraries raise to get past `except Exception`."""


def own_cancellation() -> BaseException:
    return asyncio.CancelledError("of the agent's own")


@pytest.mark.parametrize("error", [Odd, own_cancellation])
async def test_a_turn_that_raises_past_exception_ends_in_error_at_once(
    sqlite_url: str, error: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """B01, B38: nobody has cancelled it, so it is a failure of the agent."""
    caplog.set_level(logging.CRITICAL, "asyncio")

    async def raising(turn: Turn, emit: Emitter) -> None:
        raise error()

    agent, _ = first_says(raising)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit()
        run = await server.until(ticket.run_id, "ERROR", within_s=0.8)
        assert run.error is not None and run.error.type == "internal_error"


async def test_a_turn_in_a_task_group_of_another_library_is_stopped_cleanly(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """B38: many at once, each stopped from another task."""
    import anyio

    async def turn(turn: Turn, emit: Emitter) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            emit(RunContent(content="x"))
            await anyio.sleep_forever()

    async with process(sqlite_url, [SmallAgent(turn)]) as server:
        tickets = [await server.submit() for _ in range(10)]
        await asyncio.sleep(0.1)
        ended = await asyncio.gather(*(server.cancel(ticket, wait_s=5) for ticket in tickets))
        assert {run.status for run, _ in ended} == {"CANCELLED"} and "cancel scope" not in caplog.text


async def test_cancelling_again_and_again_is_answered_alike(sqlite_url: str) -> None:
    agent, begun = first_says(never_ends)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit()
        await begun.wait()
        answers = await asyncio.gather(*(server.cancel(ticket, wait_s=3) for _ in range(5)))
        assert {(run.status, stopping) for run, stopping in answers} == {("CANCELLED", False)}
        assert (await server.names(ticket.run_id)).count("RunCancelled") == 1


async def test_an_owner_that_does_not_stop_loses_its_run_and_can_write_no_more(sqlite_url: str) -> None:
    """B62: ended over its head, the session free at once."""
    released = asyncio.Event()

    async def deaf(turn: Turn, emit: Emitter) -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        emit(RunContent(content="too late"))
        await emit.room()

    agent, begun = first_says(deaf)
    async with process(sqlite_url, [agent], cancel_takeover_s=0.3) as server:
        ticket = await server.submit(session_id="s")
        await begun.wait()
        await server.cancel(ticket)
        run = await server.until(ticket.run_id, "CANCELLED", within_s=5)
        log = await server.names(run.id)
        released.set()
        await server.idle()
        assert (await server.run(run.id)) == run
        assert await server.names(run.id) == log == ["RunStarted", "RunContent", "RunCancelled"]


async def test_a_cancelled_first_turn_keeps_the_conversation_of_its_sdk(sqlite_url: str) -> None:
    """B37: the next turn goes on with it."""

    async def tells_its_session(turn: Turn, emit: Emitter) -> None:
        emit.external_session("sdk-1")
        await never_ends(turn, emit)

    agent, begun = first_says(tells_its_session)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit(session_id="s")
        await begun.wait()
        await server.cancel(ticket, wait_s=10)
        assert await server.sql("SELECT external_session_id FROM sessions WHERE id = 's'") == [("sdk-1",)]


async def test_a_drained_run_is_handed_back_with_what_it_said(sqlite_url: str) -> None:
    """B63: not cancelled, not failed: any process may go on with it."""
    agent, begun = first_says(never_ends)
    async with process(sqlite_url, [agent]) as server:
        ticket = await server.submit(session_id="s")
        await begun.wait()
        server.container.begin_drain()
        await server.drained()
        run = await server.run(ticket.run_id)
        assert (run.status, run.holds_session, run.worker_id, run.epoch) == ("PENDING", True, None, 2)
        assert await server.names(run.id) == ["RunStarted", "RunContent"]
        await _nothing_left(server)


async def _nothing_left(server: Process) -> None:
    assert not server.container.executor.running and server.container.slots.used == 0

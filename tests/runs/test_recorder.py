"""The recorder against a real ledger: what the store refuses, what another process owns, and how much may wait."""

import asyncio

import pytest

from support.api_agents import Gate, SmallAgent
from support.api_container import process
from support.live import alone
from waystation.agents.turn import CancelToken, Emitter, StopReason, Turn, TurnResult
from waystation.domain.event import RunContent
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import Message
from waystation.domain.run import Run, RunInput
from waystation.errors import RunCancelledError
from waystation.live.hub import Hub
from waystation.runs import recorder as recording
from waystation.runs.recorder import Recorder
from waystation.store.ledger import Ledger, Source
from waystation.store.operations import Step, Stepped

REFUSE = """CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN NEW.payload LIKE '%POISON%'
BEGIN SELECT RAISE(ABORT, 'refused'); END"""


@pytest.mark.parametrize("table", ["run_events", "run_messages"])
async def test_a_step_that_the_store_refuses_is_taken_back_and_the_run_ends_in_error(sqlite_url: str, table: str) -> None:
    """B57, B72: the log has no gap, and nothing claims to be complete."""

    async def turn(turn: Turn, emit: Emitter) -> TurnResult:
        emit(RunContent(content="good "))
        await emit.stored()
        emit(RunContent(content="POISON"))
        emit.message(Message(id="m", role="assistant", content="POISON"))
        await emit.stored()
        return TurnResult(content="never reached")

    async with process(sqlite_url, [SmallAgent(turn)]) as server:
        await server.sql(REFUSE.format(table=table))
        run = await server.ended()
        assert (run.status, run.error.type) == ("ERROR", "store_unavailable")
        assert await server.names(run.id) == ["RunStarted", "RunContent", "RunError"]
        stored = await server.run(run.id)
        assert (stored.status, stored.next_index, stored.holds_session) == ("ERROR", 3, False)
        assert (await server.ended("again", session_id="other")).status == "ERROR"
        await server.idle()


async def test_a_run_beside_one_that_is_refused_is_not_touched(sqlite_url: str) -> None:
    async def turn(turn: Turn, emit: Emitter) -> None:
        emit(RunContent(content=turn.run.input.message))
        await emit.stored()

    async with process(sqlite_url, [SmallAgent(turn)]) as server:
        await server.sql(REFUSE.format(table="run_events"))
        ended = await asyncio.gather(*(server.ended(word) for word in ["hi", "POISON"] * 10))
        assert [run.status for run in ended] == ["COMPLETED", "ERROR"] * 10


async def test_an_end_that_the_store_refuses_is_not_shown_as_complete(sqlite_url: str) -> None:
    """B57."""

    async def turn(turn: Turn, emit: Emitter) -> TurnResult:
        return TurnResult(content="POISON")

    async with process(sqlite_url, [SmallAgent(turn)], poll_s=0.05) as server:
        await server.sql(REFUSE.format(table="run_events"))
        ticket = await server.submit()
        run = await server.until(ticket.run_id, "ERROR", within_s=10)
        assert "RunCompleted" not in await server.names(run.id) and (await server.names(run.id))[-1] == "RunError"


async def test_a_run_that_another_process_owns_writes_nothing_more(sqlite_url: str) -> None:
    """B62: no event, no message, no end."""
    gate = Gate()

    async def turn(turn: Turn, emit: Emitter) -> None:
        emit(RunContent(content="mine"))
        await emit.stored()
        await gate.wait()
        emit(RunContent(content="stale"))
        emit.message(Message(id="m", role="assistant", content="stale"))
        await emit.stored()

    async with process(sqlite_url, [SmallAgent(turn)]) as server:
        ticket = await server.submit()
        await gate.reached.wait()
        await server.sql("UPDATE runs SET epoch = epoch + 1, worker_id = 'other'")
        await server.sql(
            "INSERT INTO workers (id, host, boot_id, pid, process_started, started_at, renewed_at) "
            "SELECT 'other', host, boot_id, pid, process_started, 0, 0 FROM workers LIMIT 1"
        )
        gate.opened.set()
        await server.idle()
        run = await server.run(ticket.run_id)
        assert (run.status, run.epoch, run.next_index) == ("RUNNING", 2, 2)
        assert await server.names(run.id) == ["RunStarted", "RunContent"]
        assert (await server.sql("SELECT count(*) FROM run_messages"))[0][0] == 0


class HeldLedger(Ledger):
    """A ledger whose store never answers: steps are gathered and stay."""

    def __init__(self) -> None:
        self.sources: list[Source] = []

    def gather(self, source: Source) -> None:
        self.sources.append(source)


def recorder() -> tuple[Recorder, CancelToken]:
    run = Run(id="r", agent_id="a", session_id="s", user_id=None, status=RunStatus.RUNNING, input=RunInput(message="hi"), created_at=0)
    cancel = CancelToken()
    return Recorder(run, "A", HeldLedger(), Hub(alone()).attach("r"), cancel), cancel


async def test_what_can_not_be_stored_is_bounded_and_then_stops_the_turn() -> None:
    """B23, B90: 64 MB a run; emitting itself never blocks."""
    emit, cancel = recorder()
    piece = RunContent(content="x" * 1_000_000)
    while not cancel.requested:
        assert emit(piece) < 70
    assert cancel.reason is StopReason.STORE and emit.next_index * 1_000_000 > recording.MOST_PENDING_BYTES - 2_000_000
    with pytest.raises(RunCancelledError):
        await emit.room()


async def test_a_producer_waits_while_too_much_is_pending_and_goes_on_when_it_is_stored() -> None:
    emit, _ = recorder()
    for _ in range(recording.MOST_PENDING_EVENTS):
        emit(RunContent(content="x"))
    waiting = asyncio.create_task(emit.room())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    step = emit.take()
    assert isinstance(step, Step) and step.events.count == recording.MOST_PENDING_EVENTS
    emit.settle(Stepped(True))
    await asyncio.wait_for(waiting, 1)


async def test_nothing_is_published_before_the_store_has_it() -> None:
    emit, _ = recorder()
    emit(RunContent(content="x"))
    step, channel = emit.take(), emit._channel
    assert channel.since(-1) is None and step is not None
    emit.settle(Stepped(True))
    found = channel.since(-1)
    assert found is not None and [segment.last_index for segment in found] == [0]


async def test_a_cancel_request_that_the_store_tells_stops_the_turn() -> None:
    emit, cancel = recorder()
    emit(RunContent(content="x"))
    emit.take()
    emit.settle(Stepped(True, cancel_requested=True))
    assert cancel.reason is StopReason.CANCELLED


async def test_a_step_that_is_not_owned_leaves_no_trace() -> None:
    emit, cancel = recorder()
    emit(RunContent(content="x"))
    emit.take()
    emit.settle(Stepped(False))
    emit(RunContent(content="y"))
    assert cancel.reason is StopReason.LOST and emit.take() is None and emit._channel.end == -1

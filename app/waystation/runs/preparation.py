"""Making a turn ready: what the agent is given, read from the store unless the acceptance has brought it along.

Here it is decided how a run that was begun before goes on: after a pause, at another attempt, or after its process was lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from waystation.agents.base import BaseAgent, Capability
from waystation.agents.turn import CancelToken, Turn
from waystation.db.engine import Database
from waystation.domain.branch import lineage
from waystation.domain.event import CustomEvent, Event, RunContinued, RunPaused, RunStarted
from waystation.domain.run import Run, RunFailure
from waystation.domain.session import Session
from waystation.errors import StoreUnavailableError
from waystation.runs import outcome
from waystation.runs.recorder import Recorder
from waystation.store.details import StoredTurn, read_turn
from waystation.store.operations import Accepted, PastRun

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """How a leg begins: the turn and the events to emit before it; or the failure that ends it at once."""

    run: Run
    turn: Turn
    events: list[Event]
    failure: RunFailure | None = None


def history_runs_of(run: Run, agent: BaseAgent) -> int:
    """How many earlier runs the agent is given as history; a request may turn history on or off for itself."""
    match run.input.add_history_to_context:
        case False:
            return 0
        case True:
            return agent.history_runs or DEFAULT_HISTORY_RUNS
        case _:
            return agent.history_runs


DEFAULT_HISTORY_RUNS = 3


class Preparation:
    """`max_takeovers`: how often a run may go on after its process was lost."""

    def __init__(self, database: Database, max_takeovers: int) -> None:
        self._database = database
        self._max_takeovers = max_takeovers

    async def of(self, run: Run, agent: BaseAgent, recorder: Recorder, cancel: CancelToken, accepted: Accepted | None) -> Going:
        """The beginning of a leg. `accepted` is given for a run that this process has just accepted: then nothing is read but
        what the acceptance could not bring along."""
        if accepted is not None and run.forked_from_run_id is None and not run.input.files:
            stored = StoredTurn(session=accepted.session, history=accepted.history)
        else:
            stored = await _when_reachable(lambda: self._database.read(read_turn, run, history_runs_of(run, agent)))
        recorder.restore(stored.segments, stored.messages)
        turn = self._turn(run, recorder, cancel, stored)
        started = RunStarted(model=agent.model, model_provider=agent.model_provider)
        if accepted is not None:
            return Going(run=run, turn=turn, events=[])
        last = recorder.fold.last_event
        if last is None:
            return Going(run=run, turn=turn, events=[started])
        if last is RunPaused:
            return Going(run=run, turn=turn, events=[RunContinued()])
        if last is CustomEvent and recorder.fold.waits_for_attempt:
            return Going(run=run, turn=turn, events=[])
        return self._take_over(run, agent, recorder, turn)

    def _turn(self, run: Run, recorder: Recorder, cancel: CancelToken, stored: StoredTurn) -> Turn:
        session = stored.session or Session(
            id=run.session_id, agent_id=run.agent_id, user_id=run.user_id, created_at=run.created_at, updated_at=run.created_at
        )
        source = run.forked_from_run_id
        past = before(stored.history, source) if source else lineage(stored.history[::-1])
        history = [message for earlier in past if earlier.id != run.id for message in earlier.messages if message.role != "system"]
        fold = recorder.fold
        return Turn(
            run=run,
            session=session,
            cancel=cancel,
            history=history,
            messages=stored.messages,
            requirements=run.requirements,
            attachments=stored.attachments,
            tools=[tool for call_id, tool in fold.tools.items() if call_id in fold.completed_calls or call_id in fold.started_calls],
            started_calls=frozenset(fold.started_calls),
        )

    def _take_over(self, run: Run, agent: BaseAgent, recorder: Recorder, turn: Turn) -> Going:
        """Go on after the process was lost or drained: from where the log stops, as another attempt, or not at all."""
        fold = recorder.fold
        if run.takeovers <= self._max_takeovers and Capability.RESUME_TURN in agent.capabilities:
            discard = fold.open_request_at if fold.open_request_at is not None else recorder.next_index
            return Going(run=run, turn=replace(turn, resumed=True), events=[outcome.takeover_warning(run, discard)])
        if run.attempt < run.max_attempts and run.takeovers <= self._max_takeovers:
            again = replace(run, attempt=run.attempt + 1)
            return Going(run=again, turn=replace(turn, run=again), events=[outcome.takeover_warning(again, fold.content_from)])
        lost = RunFailure(type="worker_lost", message=outcome.LOST_MESSAGE, retryable=True)
        return Going(run=run, turn=turn, events=[], failure=lost)


def before(history: list[PastRun], source_id: str) -> list[PastRun]:
    """What came before the source of a sibling, in the source's own branch: the sibling holds the source's messages itself."""
    ids = [past.id for past in history]
    if source_id not in ids:
        return []
    upto = history[: ids.index(source_id) + 1]
    branch = lineage(upto[::-1])
    return [past for past in branch if past.id != source_id]


async def _when_reachable(read: Callable[[], Awaitable[T]]) -> T:
    """Read, again and again while the store is out of reach: a claimed run waits for it."""
    delay = 0.1
    while True:
        try:
            return await read()
        except StoreUnavailableError:
            await asyncio.sleep(delay)
            delay = min(delay * 2, 2.0)

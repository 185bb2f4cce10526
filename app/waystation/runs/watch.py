"""Watching a run's log from an index on: the one code behind streams, resumes, long polls and waiting for an answer.

Register, read the store, wait (see `live.hub`). A viewer ends when it has delivered the event that ends the run. It ends at a pause
too, unless it came after it: then it waits for the continuation.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import sqlalchemy as sa

from waystation.clock import now
from waystation.db.engine import Database
from waystation.domain.event import Envelope, Event, RunCancelled, RunCompleted, RunError, RunPaused, Segment
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run, RunDetail
from waystation.errors import RunNotFoundError
from waystation.live.hub import Hub
from waystation.store import events
from waystation.store import runs as run_store


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that are not kept any more, first and last included."""

    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class State:
    """Where a run's log stands: its status, and the index of its next event."""

    status: RunStatus
    next_index: int

    def is_over_at(self, index: int) -> bool:
        """Whether nothing comes behind an index, unless a pause is continued."""
        return self.status not in (RunStatus.PENDING, RunStatus.RUNNING) and index >= self.next_index - 1


class Watch:
    def __init__(self, database: Database, hub: Hub) -> None:
        self._database = database
        self._hub = hub

    async def state(self, run_id: str) -> State:
        """Raises RunNotFoundError."""
        found = await self._database.read(run_store.find_state, run_id)
        if found is None:
            raise RunNotFoundError(run_id)
        return State(*found)

    async def segments(self, run_id: str, after: int, *, waits_when_paused: bool = False) -> AsyncIterator[Segment | Gap]:
        """The committed events behind an index, as they come. `waits_when_paused`: do not end at a pause that was over before."""
        channel = self._hub.attach(run_id)
        cursor, waits = after, waits_when_paused
        try:
            while not channel.is_gone:
                version, found = channel.version, channel.since(cursor)
                if found is None or (not found and channel.has_ended):
                    look = await self._database.read(_look, run_id, cursor, waits)
                    for item in look.made:
                        yield item
                    if look.is_over:
                        return
                    found = look.segments
                    channel.know(min(cursor, look.end))
                for segment in found:
                    if segment.first_index > cursor + 1:
                        yield Gap(cursor + 1, segment.first_index - 1)
                    cursor, waits = segment.last_index, False
                    yield segment
                    if segment.ends_leg and await self._ends(run_id, segment):
                        return
                if not found and channel.version == version:
                    await channel.changed()
        finally:
            self._hub.detach(channel)

    async def _ends(self, run_id: str, segment: Segment) -> bool:
        """Whether this end of a leg is the end of the log: a pause may have been continued since."""
        *_, (index, name, _) = segment.each()
        if name != RunPaused.name:
            return True
        found = await self._database.read(run_store.find_state, run_id)
        return found is None or State(*found).is_over_at(index)

    async def settled(self, run_id: str) -> RunDetail:
        """Wait until the leg has ended: the run as it then is."""
        channel = self._hub.attach(run_id)
        try:
            while True:
                if channel.detail is not None:
                    return channel.detail
                version = channel.version
                if not channel.is_local:
                    state = await self.state(run_id)
                    if state.is_over_at(state.next_index):
                        return await self._database.read(read_detail, run_id)
                    channel.know(state.next_index - 1)
                if channel.version == version:
                    await channel.ended()
        finally:
            self._hub.detach(channel)


def read_detail(conn: sa.Connection, run_id: str) -> RunDetail:
    """A run with its messages. Raises RunNotFoundError."""
    run = run_store.find(conn, run_id)
    if run is None:
        raise RunNotFoundError(run_id)
    return RunDetail(run=run, messages=events.messages_of(conn, [run_id]).get(run_id, []))


@dataclass(frozen=True, slots=True)
class Look:
    """What the store has behind a cursor. `made` is told instead of events that are not kept any more: the gap, and the last event
    made anew from the run. `end` is the index of the last event; `is_over`: nothing more will come."""

    segments: list[Segment]
    made: list[Segment | Gap]
    is_over: bool
    end: int


def _look(conn: sa.Connection, run_id: str, cursor: int, waits: bool) -> Look:
    # The run first: what it says to be committed is then found, also where each statement sees a new snapshot.
    run = run_store.find(conn, run_id)
    if run is None:
        return Look([], [], True, -1)
    end = run.next_index - 1
    if segments := events.read(conn, run_id, cursor):
        return Look(segments, [], False, max(end, segments[-1].last_index))
    if run.status in (RunStatus.PENDING, RunStatus.RUNNING):
        return Look([], [], False, end)
    if cursor >= end:
        return Look([], [], not (waits and run.status is RunStatus.PAUSED), end)
    gap: list[Segment | Gap] = [Gap(cursor + 1, end - 1)] if cursor < end - 1 else []
    return Look([], [*gap, _last_segment(run)], True, end)


def _last_segment(run: Run) -> Segment:
    index = run.next_index - 1
    envelope = Envelope(run_id=run.id, session_id=run.session_id, agent_id=run.agent_id, agent_name=run.agent_id)
    return Segment(index, index, envelope.line(last_event(run), index, run.finished_at or now()), True)


def last_event(run: Run) -> Event:
    """The event that ended the last leg of a run, made from the run."""
    output = run.output
    content = output.content if output else None
    match run.status:
        case RunStatus.ERROR:
            kind = run.error.type if run.error else "agent_error"
            return RunError(content=str(content or ""), error_type=kind, error_id=kind)
        case RunStatus.CANCELLED:
            return RunCancelled(reason="The run was cancelled.", content=content if isinstance(content, str) else None)
        case RunStatus.PAUSED:
            waiting = [requirement.wire() for requirement in run.requirements]
            tools = [requirement.tool_execution.model_dump(mode="json") for requirement in run.requirements]
            return RunPaused(content=str(content or ""), tools=tools, requirements=waiting)
        case _:
            kind = output.content_type if output else "str"
            return RunCompleted(content=content, content_type=kind, metrics=run.metrics.wire())

"""What a viewer finds behind its cursor."""

from dataclasses import dataclass

import sqlalchemy as sa

from waystation.clock import now
from waystation.db.tables import Text
from waystation.db.tables import runs as run_table
from waystation.domain.event import Envelope, Event, Gap, RunCancelled, RunCompleted, RunError, RunPaused, Segment
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run
from waystation.store import events
from waystation.store import runs as run_store

MOVED = sa.select(run_table.c.id, run_table.c.next_index).where(run_table.c.id.in_(sa.bindparam("runs", type_=Text, expanding=True)))


def read_news(conn: sa.Connection, known: dict[str, int]) -> dict[str, list[Segment]]:
    """For each run (id → highest index known) the next segments that are stored beyond it. A deleted run is left out."""
    moved = conn.execute(MOVED, {"runs": list(known)}).all()
    return {row.id: events.read(conn, row.id, known[row.id]) if row.next_index > known[row.id] + 1 else [] for row in moved}


@dataclass(frozen=True, slots=True)
class Look:
    """What the store has behind a cursor. `made` is told instead of events that are not kept any more: the gap, and the last event
    made anew from the run. `end` is the index of the last event; `is_over`: nothing more will come."""

    segments: list[Segment]
    made: list[Segment | Gap]
    is_over: bool
    end: int


def look(conn: sa.Connection, run_id: str, cursor: int, waits: bool) -> Look:
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

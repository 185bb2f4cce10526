"""Runs together with their messages, and what a turn needs to begin."""

from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from waystation.domain.event import Segment
from waystation.domain.lifecycle import RunStatus
from waystation.domain.media import Attachment
from waystation.domain.message import Message
from waystation.domain.page import Page
from waystation.domain.run import Run, RunDetail
from waystation.domain.session import Session
from waystation.errors import RunNotFoundError
from waystation.store import events, runs, sessions
from waystation.store.accept import read_history
from waystation.store.line import queue_positions
from waystation.store.operations import PastRun


def read_detail(conn: sa.Connection, run_id: str) -> RunDetail:
    """A run with its messages. Raises RunNotFoundError."""
    run = runs.find(conn, run_id)
    if run is None:
        raise RunNotFoundError(run_id)
    return _with_messages(conn, [run])[0]


def list_details(conn: sa.Connection, /, **filters: Any) -> Page[RunDetail]:
    """A page of runs with their messages. Takes what `runs.list_runs` takes."""
    page = runs.list_runs(conn, **filters)
    return Page(items=_with_messages(conn, page.items), total=page.total, request=page.request)


def _with_messages(conn: sa.Connection, found: list[Run]) -> list[RunDetail]:
    messages = events.messages_of(conn, [run.id for run in found])
    positions = queue_positions(conn, [run.id for run in found if run.status is RunStatus.PENDING])
    return [RunDetail(run=run, messages=messages.get(run.id, []), queue_position=positions.get(run.id)) for run in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """What the store holds for a turn. `session` is None if it was deleted meanwhile."""

    session: Session | None
    history: list[PastRun] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)


def read_turn(conn: sa.Connection, run: Run, history_runs: int) -> StoredTurn:
    """Everything a turn of this run is given, in one transaction."""
    history = read_history(conn, {run.session_id: history_runs}, run.forked_from_run_id) if history_runs else {}
    begun = run.next_index > 0 or run.forked_from_run_id is not None
    return StoredTurn(
        session=sessions.find(conn, run.session_id),
        history=history.get(run.session_id, []),
        messages=events.messages_of(conn, [run.id]).get(run.id, []) if begun else [],
        segments=events.read_all(conn, run.id) if run.next_index > 0 else [],
        attachments=files_of(conn, run) if run.input.files else [],
    )


def files_of(conn: sa.Connection, run: Run) -> list[Attachment]:
    """The files of a run. A sibling has those of its source."""
    owner: Run | None = run
    while owner is not None:
        if found := events.attachments_of(conn, owner.id):
            return found
        owner = runs.find(conn, owner.forked_from_run_id) if owner.forked_from_run_id else None
    return []

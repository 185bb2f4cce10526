"""On PostgreSQL: what is ordinary in a batch, as one statement for the runs to accept and one for the steps.

A lone statement is a transaction by itself, so a run that comes alone makes two round trips instead of eleven. What a statement did not
do, and whatever is not ordinary, goes the way of `accept` and `step`, which can tell why.

Within one statement no part sees what another has written, but through RETURNING. A session that another process creates meanwhile is
therefore neither created nor known here: nothing of its run is stored, and the second way finds it.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from waystation.db.dialect import json_rows
from waystation.db.prepared import Prepared, begin
from waystation.db.tables import Int, Text, run_events, run_messages, runs, sessions
from waystation.store.accept import (
    NEW,
    accepting,
    bring_past,
    creating_sessions,
    item_of,
    locking_sessions,
    message_row,
)
from waystation.store.operations import Accept, Accepted, Step, Stepped, Verdict
from waystation.store.rows import dumps
from waystation.store.step import FENCE, SESSION_END, ending_in_session, fence_item, segment_of, session_end, stepped_of

Answers = tuple[dict[str, Accepted], dict[tuple[str, int], Stepped]]


def write(conn: sa.Connection, new: list[Accept], steps: list[Step]) -> Answers:
    """The answers to what could be stored."""
    new = [a for a in new if _is_ordinary_accept(a)]
    steps = [s for s in steps if _is_ordinary_step(s)]
    sessions_ended = [s.session_id for s in steps if s.finish]
    if len(set(sessions_ended)) < len(sessions_ended):
        steps = []  # an UPDATE changes a row once, whatever it is joined with
    if new and steps:
        begin(conn)
    return _accept(conn, new), _step(conn, steps)


# ---- accept ------------------------------------------------------------------------------------------------------------------
v: Any = sa.select(json_rows(**NEW, first=Text).id.table).cte("v").c
_created = creating_sessions(v).returning(sessions.c.id, sessions.c.agent_id, sessions.c.user_id).cte("created")
_known = sa.select(sessions.c.id, sessions.c.agent_id, sessions.c.user_id).join_from(v.id.table, sessions, sessions.c.id == v.session_id)
_owners = _created.select().union_all(locking_sessions(_known).cte("known").select()).cte("owners")
_accepted = accepting(v, _owners.c, locks=False).returning(runs.c.id, runs.c.session_id, runs.c.status, runs.c.user_id).cte("accepted")
_first = (
    sa.insert(run_events)
    .from_select(
        ["run_id", "session_id", "first_index", "last_index", "payload"],
        sa.select(_accepted.c.id, _accepted.c.session_id, sa.literal_column("0"), v.events - 1, v.first)
        .join_from(_accepted, v.id.table, v.id == _accepted.c.id)
        .where(_accepted.c.status == "RUNNING", v.first.is_not(None)),
    )
    .cte("first_events")
)
ACCEPT = Prepared(
    sa.select(
        _accepted.c.id,
        _accepted.c.status,
        _accepted.c.user_id,
        _accepted.c.session_id.in_(sa.select(_created.c.id)).label("is_new"),
    ).add_cte(_first),
    alone=True,
)


def _is_ordinary_accept(a: Accept) -> bool:
    return not (a.may_wait or a.idempotency_key is not None or a.messages or a.attachments or a.replaces_run_id)


def _accept(conn: sa.Connection, new: list[Accept]) -> dict[str, Accepted]:
    items = [item_of(a) | {"first": a.first.lines.decode() if a.first else None} for a in sorted(new, key=lambda a: a.run.session_id)]
    rows = {row.id: row for row in ACCEPT.each(conn, items)}
    answers: dict[str, Accepted] = {}
    started: list[Accept] = []
    for a in new:
        if row := rows.get(a.run.id):
            verdict = Verdict.STARTED if row.status == "RUNNING" else Verdict.WAITS
            answers[a.run.id] = Accepted(verdict, a.run.id, a.run.session_id, row.user_id)
            if verdict is Verdict.STARTED and not row.is_new:
                started.append(a)
    bring_past(conn, started, answers)
    return answers


# ---- step --------------------------------------------------------------------------------------------------------------------
_fenced = FENCE.statement.cte("fenced")
_COLUMNS: dict[str, Any] = {"run_id": Text, "epoch": Int, "session_id": Text, "first_index": Int, "last_index": Int, "payload": Text}


def _lines(table: sa.Table, name: str) -> Any:
    """Lines of events or messages, given as an array for each column, of the runs that passed the fence."""
    arrays: list[Any] = [sa.bindparam(f"{name}_{column}", type_=ARRAY(type_)) for column, type_ in _COLUMNS.items()]
    columns: list[Any] = [sa.column(column, type_) for column, type_ in _COLUMNS.items()]
    given = sa.func.unnest(*arrays).table_valued(*columns, name=name).render_derived()
    stored = [column for column in _COLUMNS if column != "epoch"]
    passed = sa.select(*(given.c[column] for column in stored)).join_from(
        given, _fenced, sa.and_(_fenced.c.id == given.c.run_id, _fenced.c.epoch == given.c.epoch)
    )
    return sa.insert(table).from_select(stored, passed).cte(f"stored_{name}")


_end = json_rows("ends", **SESSION_END, epoch=Int)
STEP = Prepared(
    sa.select(_fenced.c.id, _fenced.c.epoch, _fenced.c.cancel_requested, _fenced.c.waiting).add_cte(
        _lines(run_events, "events"),
        _lines(run_messages, "messages"),
        ending_in_session(_end).where(_fenced.c.id == _end.last_run, _fenced.c.epoch == _end.epoch).cte("ended"),
    ),
    alone=True,
)


def _is_ordinary_step(s: Step) -> bool:
    return s.finish is None or not (s.finish.session_state or s.finish.approvals or s.finish.deliveries)


def _step(conn: sa.Connection, steps: list[Step]) -> dict[tuple[str, int], Stepped]:
    if not steps:
        return {}
    steps = sorted(steps, key=lambda s: s.run_id)
    ends = [session_end(s, s.finish) | {"epoch": s.epoch} for s in steps if s.finish and s.finish.usage is not None]
    events = [segment_of(s.run_id, s.session_id, s.first_index, s.events) | {"epoch": s.epoch} for s in steps if s.events.count]
    messages = [message_row(s.run_id, s.session_id, s.messages) | {"epoch": s.epoch} for s in steps if s.messages]
    rows = STEP.rows(
        conn,
        {
            "rows": dumps([fence_item(s) for s in steps]),
            "ends": dumps(ends),
            **{f"events_{column}": [row[column] for row in events] for column in _COLUMNS},
            **{f"messages_{column}": [row[column] for row in messages] for column in _COLUMNS},
        },
    )
    return {(row.id, row.epoch): stepped_of(row) for row in rows}

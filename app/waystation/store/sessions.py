"""Sessions: reads, narrow writes, forks, and deletion that leaves nothing behind."""

from typing import Any

import sqlalchemy as sa

from waystation.clock import new_id
from waystation.db.dialect import ignore_conflicts
from waystation.db.tables import BY_SESSION, Text, deleted_keys, run_messages, runs, sessions
from waystation.domain.metrics import COUNTS
from waystation.domain.page import Page, PageRequest
from waystation.domain.run import Run
from waystation.domain.session import Session, SessionFilter, SessionPatch
from waystation.errors import SessionNotFoundError
from waystation.store.rows import RUN_COLUMNS, SESSION_COLUMNS, dumps, run_from_row, session_from_row

SORTABLE = {"created_at": sessions.c.created_at, "updated_at": sessions.c.updated_at, "session_name": sessions.c.name}

FIND = sa.select(*SESSION_COLUMNS).where(sessions.c.id == sa.bindparam("session"))


def find(conn: sa.Connection, session_id: str) -> Session | None:
    row = conn.execute(FIND, {"session": session_id}).first()
    return session_from_row(row) if row else None


def create(conn: sa.Connection, session: Session) -> bool:
    """False: the id is taken."""
    values = {
        "id": session.id,
        "agent_id": session.agent_id,
        "user_id": session.user_id,
        "name": session.name,
        "state": dumps(session.state),
        "metadata": dumps(session.metadata),
        "forked_from_session_id": session.forked_from_session_id,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
    }
    return conn.execute(ignore_conflicts(sessions).values(**values).on_conflict_do_nothing().returning(sessions.c.id)).first() is not None


def patch(conn: sa.Connection, session_id: str, change: SessionPatch, at: float) -> bool:
    """Write the fields that the change names and no other. False: there is no such session."""
    values: dict[str, Any] = {"updated_at": at}
    if "name" in change.given:
        values["name"] = change.name
    for field in ("state", "metadata", "summary"):
        if field in change.given:
            value = getattr(change, field)
            values[field] = None if value is None else dumps(value)
    return conn.execute(sa.update(sessions).where(sessions.c.id == session_id).values(**values)).rowcount == 1


def list_sessions(conn: sa.Connection, wanted: SessionFilter, request: PageRequest) -> Page[Session]:
    conditions: list[sa.ColumnElement[bool]] = []
    shown_name = sa.func.coalesce(sessions.c.name, sessions.c.first_message, "")
    if wanted.user_id is not None:
        conditions.append(sessions.c.user_id == wanted.user_id)
    if wanted.agent_id is not None:
        conditions.append(sessions.c.agent_id == wanted.agent_id)
    for text in (wanted.name, wanted.search):
        if text is not None:
            conditions.append(sa.func.lower(shown_name).contains(text.lower(), autoescape=True))
    order = SORTABLE[wanted.sort_by]
    by = (order.desc(), sessions.c.id.desc()) if wanted.descending else (order, sessions.c.id)
    rows = conn.execute(sa.select(*SESSION_COLUMNS).where(*conditions).order_by(*by).limit(request.limit).offset(request.offset)).all()
    total = conn.execute(sa.select(sa.func.count()).select_from(sessions).where(*conditions)).scalar_one()
    return Page(items=[session_from_row(row) for row in rows], total=total, request=request)


def unfinished_runs(conn: sa.Connection, session_id: str) -> list[Run]:
    """Runs of the session that go on, wait or are paused."""
    statement = sa.select(*RUN_COLUMNS).where(runs.c.session_id == session_id, runs.c.status.in_(["PENDING", "RUNNING", "PAUSED"]))
    return [run_from_row(row) for row in conn.execute(statement)]


def delete(conn: sa.Connection, session_id: str, at: float) -> bool:
    """Delete a session with everything of it, unless a run of it goes on or waits (then False). Keys leave a mark, so that a
    repeated request does not start its run again."""
    conn.execute(sa.select(sessions.c.id).where(sessions.c.id == session_id).with_for_update())  # an acceptance shares this lock
    in_flight = sa.select(runs.c.id).where(runs.c.session_id == session_id, runs.c.status.in_(["PENDING", "RUNNING"])).limit(1)
    if conn.execute(in_flight).first():
        return False
    marks = sa.select(runs.c.idempotency_scope, runs.c.agent_id, runs.c.idempotency_key, runs.c.created_at).where(
        runs.c.session_id == session_id, runs.c.idempotency_key.is_not(None)
    )
    columns = ["idempotency_scope", "agent_id", "idempotency_key", "created_at"]
    conn.execute(ignore_conflicts(deleted_keys).from_select(columns, marks).on_conflict_do_nothing())
    ids = list(conn.execute(sa.select(runs.c.id).where(runs.c.session_id == session_id)).scalars())
    for table in BY_SESSION:
        for start in range(0, len(ids), 500):
            conn.execute(sa.delete(table).where(table.c.run_id.in_(ids[start : start + 500])))
    conn.execute(sa.delete(runs).where(runs.c.session_id == session_id))
    conn.execute(sa.delete(sessions).where(sessions.c.id == session_id))
    return True


def get_visible(conn: sa.Connection, session_id: str, user_id: str | None) -> Session:
    """Raises SessionNotFoundError, also for a session of another user."""
    session = find(conn, session_id)
    if session is None or (user_id is not None and session.user_id not in (None, user_id)):
        raise SessionNotFoundError(session_id)
    return session


def patch_visible(conn: sa.Connection, session_id: str, change: SessionPatch, user_id: str | None, at: float) -> Session:
    get_visible(conn, session_id, user_id)
    patch(conn, session_id, change, at)
    return get_visible(conn, session_id, user_id)


COPIED = [
    "agent_id", "user_id", "kind", "status", "next_index", "attempt", "max_attempts", "available_at", "timeout_s", "background",
    "on_disconnect", "input", "output", "error", "metrics", "metadata", "model", "model_provider", "dropped_from_history",
    "created_at", "started_at", "finished_at",
]  # fmt: skip


FINAL_STATUSES = ("COMPLETED", "CANCELLED", "ERROR")
SUMS = ("runs", "cost", "first_message", *COUNTS)


def fork(conn: sa.Connection, source: Session, at: float) -> Session:
    """A new session with copies of the finished runs of another one and their messages, and with its sums. The copies have no
    events: their log is told as a gap and its last event."""
    copy = Session(
        id=new_id(), agent_id=source.agent_id, user_id=source.user_id, name=source.name, state=source.state,
        metadata=source.metadata, forked_from_session_id=source.id, created_at=at, updated_at=at,
    )  # fmt: skip
    create(conn, copy)
    sums = {name: getattr(source, name) for name in SUMS}
    conn.execute(sa.update(sessions).where(sessions.c.id == copy.id).values(**sums))
    finished = (
        sa.select(runs.c.id, runs.c.forked_from_run_id, runs.c.replaced_by_run_id)
        .where(runs.c.session_id == source.id, runs.c.status.in_(FINAL_STATUSES))
        .order_by(runs.c.seq)
    )  # fmt: skip
    found = conn.execute(finished).all()
    new_ids = {row.id: new_id() for row in found}
    for row in found:
        # The branches of the copy are those of its source: else its history would have what was said twice.
        branch = {name: new_ids.get(row._mapping[name]) for name in ("forked_from_run_id", "replaced_by_run_id")}
        _copy_run(conn, row.id, {"id": new_ids[row.id], "session_id": copy.id, "idempotency_scope": "", **branch})
    return copy


def _copy_run(conn: sa.Connection, run_id: str, own: dict[str, str | None]) -> None:
    """Copy a run with what is its own instead of the original's."""
    values = (sa.literal(value, type_=Text) for value in own.values())
    source = sa.select(*values, *(runs.c[name] for name in COPIED)).where(runs.c.id == run_id)
    conn.execute(sa.insert(runs).from_select([*own, *COPIED], source, include_defaults=False))
    messages = sa.select(
        sa.literal(own["id"], type_=Text), sa.literal(own["session_id"], type_=Text),
        run_messages.c.first_index, run_messages.c.last_index, run_messages.c.payload,
    ).where(run_messages.c.run_id == run_id)  # fmt: skip
    columns = ["run_id", "session_id", "first_index", "last_index", "payload"]
    conn.execute(sa.insert(run_messages).from_select(columns, messages))


def forget_old_keys(conn: sa.Connection, before: float, limit: int) -> int:
    """Forget Idempotency-Keys older than a time, `limit` at most; how many were forgotten."""
    old = sa.select(runs.c.seq).where(runs.c.idempotency_key.is_not(None), runs.c.created_at < before).limit(limit)
    forgotten = conn.execute(sa.update(runs).where(runs.c.seq.in_(old)).values(idempotency_key=None)).rowcount
    key = sa.tuple_(*deleted_keys.primary_key.columns)
    old_marks = sa.select(*deleted_keys.primary_key.columns).where(deleted_keys.c.created_at < before).limit(limit)
    return max(forgotten, conn.execute(sa.delete(deleted_keys).where(key.in_(old_marks))).rowcount)

"""Accepting runs: sessions, runs and keys of a whole batch in a few statements, each of which tells what it did not do.

1. New sessions (DO NOTHING where they are there), then the runs. A busy session is asked for in the statement itself; the
   unique index on holders is only the guard against what another process commits meanwhile.
2. Rows go in the order of their sessions, one run per session, so that concurrent batches queue and never cross.
3. A row that is not returned was refused. Only then is asked why: key used, key deleted, foreign session, busy.
"""

import itertools
from typing import Any

import sqlalchemy as sa

from waystation.clock import now
from waystation.db.dialect import by_dialect, ignore_conflicts, json_rows
from waystation.db.prepared import Prepared
from waystation.db.tables import (
    PENDING,
    RUNNING,
    Bool,
    Float,
    Int,
    Text,
    attachments,
    deleted_keys,
    run_messages,
    runs,
    sessions,
)
from waystation.domain.session import MAX_SHOWN_NAME_CHARS
from waystation.store.line import UNFINISHED, make_way, may_enter, other
from waystation.store.operations import Accept, Accepted, PastRun, Verdict
from waystation.store.rows import SESSION_COLUMNS, dumps, endpoints_json, input_json, messages_from_payload, session_from_row

NEW: dict[str, Any] = {
    "id": Text, "session_id": Text, "agent_id": Text, "user_id": Text, "kind": Text, "worker_id": Text, "may_wait": Bool,
    "events": Int, "idempotency_scope": Text, "idempotency_key": Text, "request_hash": Text, "max_attempts": Int,
    "available_at": Float, "timeout_s": Float, "background": Bool, "on_disconnect": Text, "metadata": Text, "webhooks": Text, "model": Text,
    "model_provider": Text, "forked_from_run_id": Text, "forked_from_message_index": Int, "created_at": Float,
    "first_message": Text, "input": Text, "now": Float, "goes_first": Bool, "takes_session": Bool,
}  # fmt: skip


def creating_sessions(v: Any) -> Any:
    """The sessions of new runs, where they are not there yet. `v` has the columns of NEW."""
    return (
        ignore_conflicts(sessions)
        .from_select(
            ["id", "agent_id", "user_id", "first_message", "created_at", "updated_at"],
            sa.select(v.session_id, v.agent_id, v.user_id, v.first_message, v.created_at, v.created_at).where(sa.true()),
            include_defaults=False,
        )
        .on_conflict_do_nothing()
    )


_COPIED = (
    "id", "agent_id", "session_id", "kind", "max_attempts", "available_at", "timeout_s", "background", "on_disconnect",
    "idempotency_scope", "idempotency_key", "request_hash", "input", "metadata", "webhooks", "model", "model_provider",
    "forked_from_run_id", "forked_from_message_index", "created_at", "goes_first",
)  # fmt: skip


def accepting(v: Any, owners: Any, *, locks: bool) -> Any:
    """The runs that may be accepted. `owners` has id, agent and user of their sessions; `locks` if that is the table itself."""
    # A scalar subquery, not EXISTS: PostgreSQL would rather hash all holders once than probe the index for each row.
    busy = sa.select(other.c.seq).where(other.c.session_id == v.session_id, UNFINISHED).limit(1).scalar_subquery().is_not(None)
    may_start = sa.and_(v.worker_id.is_not(None), sa.or_(v.takes_session, ~busy), v.available_at <= v.created_at)
    new = (
        sa.select(v.id.table, may_start.label("starts"))
        .where(sa.or_(v.may_wait, ~busy))
        .order_by(v.session_id)
        .cte("new")
        .prefix_with("MATERIALIZED")
        .c
    )
    chosen = (
        sa.select(
            *(new[name] for name in _COPIED),
            sa.func.coalesce(owners.user_id, new.user_id),
            sa.case((new.starts, RUNNING), else_=PENDING),
            sa.case((new.starts, 1), else_=0),
            sa.case((new.starts, new.events), else_=0),
            sa.case((new.starts, new.worker_id)),
            sa.or_(new.starts, new.takes_session),
            sa.case((new.starts, new.now)),
            sa.case((new.starts, new.now + new.timeout_s)),
        )
        .join_from(new.id.table, owners.id.table, may_enter(owners, new))
        .order_by(new.session_id)
    )
    if locks:
        chosen = locking_sessions(chosen)
    names = [*_COPIED, "user_id", "status", "epoch", "next_index", "worker_id", "holds_session", "started_at", "deadline_at"]
    return ignore_conflicts(runs).from_select(names, chosen, include_defaults=False).on_conflict_do_nothing()


def locking_sessions(chosen: Any) -> Any:
    """A select of sessions, which waits for those that are being deleted."""
    return chosen.with_for_update(read=True, key_share=True, of=sessions)


v = json_rows(**NEW)
CREATE_SESSIONS = Prepared(creating_sessions(v).returning(sessions.c.id))
DROP_SESSIONS = sa.delete(sessions).where(sessions.c.id == sa.bindparam("session"), sessions.c.runs == 0)
ADOPT_SESSIONS = (
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("session"), sessions.c.agent_id.is_(None))
    .values(agent_id=sa.bindparam("agent"))
)
ACCEPT = Prepared(accepting(v, sessions.c, locks=True).returning(runs.c.id, runs.c.status, runs.c.user_id))

v = json_rows(id=Text, idempotency_scope=Text, agent_id=Text, idempotency_key=Text)
FIND_KEYS = Prepared(
    sa.select(v.id, runs.c.id.label("run_id"), runs.c.session_id, runs.c.request_hash).join_from(
        v.id.table,
        runs,
        sa.and_(
            runs.c.idempotency_scope == v.idempotency_scope,
            runs.c.agent_id == v.agent_id,
            runs.c.idempotency_key == v.idempotency_key,
            runs.c.idempotency_key.is_not(None),
        ),
    )
)
FIND_DELETED_KEYS = Prepared(
    sa.select(v.id).join_from(
        v.id.table,
        deleted_keys,
        sa.and_(
            deleted_keys.c.idempotency_scope == v.idempotency_scope,
            deleted_keys.c.agent_id == v.agent_id,
            deleted_keys.c.idempotency_key == v.idempotency_key,
        ),
    )
)

# Runs that may wait, but for whose session or user too many wait already.
MOST_WAITING_PER_SESSION = 100
MOST_WAITING_PER_USER = 1_000

v = json_rows(id=Text, session_id=Text, user_id=Text)


def _waiting(*conditions: Any) -> sa.ScalarSelect[int]:
    return sa.select(sa.func.count()).select_from(other).where(*conditions).scalar_subquery()


FIND_FULL = Prepared(
    sa.select(v.id).where(
        sa.or_(
            _waiting(other.c.session_id == v.session_id, UNFINISHED, other.c.status == PENDING) >= MOST_WAITING_PER_SESSION,
            _waiting(other.c.user_id == v.user_id, other.c.status == PENDING) >= MOST_WAITING_PER_USER,
        )
    )
)

# Runs that an earlier try has stored whose answer was lost.
FIND_OWN = sa.select(runs.c.id, runs.c.status, runs.c.user_id).where(runs.c.id.in_(sa.bindparam("ids", type_=Text, expanding=True)))

v = json_rows(id=Text, session_id=Text)
_in_flight = (
    sa.select(other.c.id)
    .where(other.c.session_id == v.session_id, UNFINISHED)
    .order_by(other.c.holds_session.desc(), other.c.seq)
    .limit(1)
    .scalar_subquery()
)
DIAGNOSE = Prepared(
    sa.select(v.id, sessions.c.agent_id, sessions.c.user_id, _in_flight.label("in_flight")).join_from(
        v.id.table, sessions, sessions.c.id == v.session_id
    )
)

v = json_rows(session_id=Text)
FIND_SESSIONS = Prepared(sa.select(*SESSION_COLUMNS).join_from(v.session_id.table, sessions, sessions.c.id == v.session_id), alone=True)

# Runs whose messages the next turn goes on from. The literals are those of the lifecycle's names.
REMEMBERED = sa.and_(
    runs.c.status.in_([sa.literal_column("'COMPLETED'"), sa.literal_column("'CANCELLED'")]),
    runs.c.dropped_from_history.is_(sa.false()),
    runs.c.replaced_by_run_id.is_(None),
)
_last = (
    sa.select(runs.c.seq, runs.c.id, runs.c.forked_from_run_id)
    .where(runs.c.session_id == v.session_id, REMEMBERED)
    .order_by(runs.c.seq.desc())
    .limit(sa.bindparam("runs", type_=Int))
)
_lateral = _last.lateral("last").c
_history_columns = (run_messages.c.first_index, run_messages.c.payload)
HISTORY_POSTGRESQL = Prepared(
    sa.select(v.session_id, _lateral.seq, _lateral.id, _lateral.forked_from_run_id, *_history_columns)
    .join_from(v.session_id.table, _lateral.seq.table, sa.true())
    .join(run_messages, run_messages.c.run_id == _lateral.id)
    .order_by(_lateral.seq, run_messages.c.first_index),
    alone=True,
)
_last_seq = _last.with_only_columns(runs.c.seq).correlate(v.session_id.table)
HISTORY_SQLITE = Prepared(
    sa.select(v.session_id, other.c.seq, other.c.id, other.c.forked_from_run_id, *_history_columns)
    .join_from(v.session_id.table, other, other.c.seq.in_(_last_seq))
    .join(run_messages, run_messages.c.run_id == other.c.id)
    .order_by(other.c.seq, run_messages.c.first_index)
)

SOURCES = sa.select(runs.c.seq, runs.c.id, runs.c.forked_from_run_id).where(
    runs.c.id.in_(sa.bindparam("sources", expanding=True)), runs.c.seq > sa.bindparam("first", type_=Int)
)

STORE_MESSAGES = Prepared(sa.insert(run_messages))
STORE_ATTACHMENTS = sa.insert(attachments)
MARK_REPLACED = sa.update(runs).where(runs.c.id == sa.bindparam("source")).values(replaced_by_run_id=sa.bindparam("sibling"))


def accept(conn: sa.Connection, new: list[Accept]) -> dict[str, Accepted]:
    """Accept the runs, at most one per session: answers by run id. Refusals are answers, never exceptions."""
    items = [item_of(a) for a in sorted(new, key=lambda a: a.run.session_id)]
    keyed = [item for item in items if item["idempotency_key"] is not None]
    gone = {row.id for row in FIND_DELETED_KEYS.each(conn, keyed)}
    answers = {a.run.id: Accepted(Verdict.DELETED, None, a.run.session_id) for a in new if a.run.id in gone}
    answers |= _full(conn, [item for item in items if item["may_wait"] and item["id"] not in gone])
    items = [item for item in items if item["id"] not in answers]
    created = {row.id for row in CREATE_SESSIONS.each(conn, items)}
    asked = make_way(conn, items)
    stored: dict[str, sa.Row[Any]] = {row.id: row for row in ACCEPT.each(conn, items)}
    before: set[str] = set()
    if left := [item for item in items if item["id"] not in stored]:
        found: Any = conn.execute(FIND_OWN, {"ids": [item["id"] for item in left]}).all()
        own = {row.id: row for row in found}
        before, stored = set(own), stored | own
        left = [item for item in left if item["id"] not in own]
        refused, again = _refusals(conn, left)
        created |= {row.id for row in CREATE_SESSIONS.each(conn, again)}
        for session_id, run_ids in make_way(conn, again).items():
            asked[session_id] = [*asked.get(session_id, []), *run_ids]
        stored |= {row.id: row for row in ACCEPT.each(conn, again)}
        answers |= refused
        if unused := created - {item["session_id"] for item in items if item["id"] in stored}:
            conn.execute(DROP_SESSIONS, [{"session": session} for session in sorted(unused)])
    for a in new:
        if row := stored.get(a.run.id):
            verdict = Verdict.STARTED if row.status == "RUNNING" else Verdict.WAITS
            answers[a.run.id] = Accepted(
                verdict, a.run.id, a.run.session_id, row.user_id, was_stored=a.run.id in before, asked=asked.get(a.run.session_id, [])
            )
    accepted = [a for a in new if a.run.id in stored]
    _store_what_comes_along(conn, [a for a in accepted if a.run.id not in before])
    started = [a for a in accepted if answers[a.run.id].verdict is Verdict.STARTED and a.run.session_id not in created]
    bring_past(conn, started, answers)
    return answers


def item_of(a: Accept) -> dict[str, Any]:
    run = a.run
    return {
        "id": run.id,
        "session_id": run.session_id,
        "agent_id": run.agent_id,
        "user_id": run.user_id,
        "kind": run.kind,
        "worker_id": a.worker_id,
        "may_wait": a.may_wait,
        "events": a.first.count if a.first else 0,
        "idempotency_scope": a.idempotency_scope,
        "idempotency_key": a.idempotency_key,
        "request_hash": run.request_hash,
        "max_attempts": run.max_attempts,
        "available_at": run.available_at,
        "timeout_s": run.timeout_s,
        "background": run.background,
        "on_disconnect": run.on_disconnect.value,
        "metadata": dumps(run.metadata) if run.metadata else None,
        "webhooks": endpoints_json(run.webhooks) if run.webhooks else None,
        "model": run.model,
        "model_provider": run.model_provider,
        "forked_from_run_id": run.forked_from_run_id,
        "forked_from_message_index": run.forked_from_message_index,
        "created_at": run.created_at,
        "first_message": run.input.message[:MAX_SHOWN_NAME_CHARS],
        "input": input_json(run.input),
        "now": now(),  # when it starts, if it does: it may have waited for the store since it was sent
        "goes_first": a.goes_first,
        "drops": a.drops,
        "takes_session": False,
    }


def _full(conn: sa.Connection, waiting: list[dict[str, Any]]) -> dict[str, Accepted]:
    """Answers for those that can't wait, because too many do already. A used key comes before that."""
    full = {row.id for row in FIND_FULL.each(conn, waiting)}
    refused = [item for item in waiting if item["id"] in full]
    used = {row.id: row for row in FIND_KEYS.each(conn, [i for i in refused if i["idempotency_key"] is not None])}
    return {
        item["id"]: _used(key) if (key := used.get(item["id"])) else Accepted(Verdict.FULL, None, item["session_id"])
        for item in refused
    }  # fmt: skip


def _used(key: sa.Row[Any]) -> Accepted:
    return Accepted(Verdict.EXISTS, key.run_id, key.session_id, request_hash=key.request_hash)


def _refusals(conn: sa.Connection, left: list[dict[str, Any]]) -> tuple[dict[str, Accepted], list[dict[str, Any]]]:
    """Why these were not stored; and those worth storing once more: a session that had no agent yet was adopted, or was deleted
    meanwhile, or a run that may wait lost it to another process while the statement ran (a new statement sees that)."""
    used = {row.id: row for row in FIND_KEYS.each(conn, [i for i in left if i["idempotency_key"] is not None])}
    why = {row.id: row for row in DIAGNOSE.each(conn, left)}
    answers: dict[str, Accepted] = {}
    again: list[dict[str, Any]] = []
    for item in left:
        run_id, session_id = item["id"], item["session_id"]
        reason = why.get(run_id)
        if key := used.get(run_id):
            answers[run_id] = _used(key)
        elif reason is None:
            answers[run_id] = Accepted(Verdict.BUSY, None, session_id)
            again.append(item)
        elif None not in (reason.user_id, item["user_id"]) and reason.user_id != item["user_id"]:
            answers[run_id] = Accepted(Verdict.OTHER_USER, None, session_id)
        elif reason.agent_id not in (None, item["agent_id"]):
            answers[run_id] = Accepted(Verdict.OTHER_AGENT, None, session_id)
        else:
            answers[run_id] = Accepted(Verdict.BUSY, reason.in_flight, session_id)
            if reason.agent_id is None:
                conn.execute(ADOPT_SESSIONS, {"session": session_id, "agent": item["agent_id"]})
            if reason.agent_id is None or item["may_wait"]:
                again.append(item)
    return answers, again


def _store_what_comes_along(conn: sa.Connection, accepted: list[Accept]) -> None:
    if messages := [(a.run, a.messages) for a in accepted if a.messages]:
        STORE_MESSAGES.many(conn, [message_row(run.id, run.session_id, lines) for run, lines in messages])
    files = [_attachment_row(a, file) for a in accepted for file in a.attachments]
    if files:
        conn.execute(STORE_ATTACHMENTS, files)
    if replaced := [{"source": a.replaces_run_id, "sibling": a.run.id} for a in accepted if a.replaces_run_id]:
        conn.execute(MARK_REPLACED, replaced)


def message_row(run_id: str, session_id: str, lines: Any) -> dict[str, Any]:
    last_index = lines.first_index + lines.count - 1
    return {
        "run_id": run_id, "session_id": session_id, "first_index": lines.first_index, "last_index": last_index,
        "payload": lines.payload,
    }  # fmt: skip


def _attachment_row(a: Accept, file: Any) -> dict[str, Any]:
    return {
        "id": file.id, "run_id": a.run.id, "session_id": a.run.session_id, "name": file.name, "mime_type": file.mime_type,
        "kind": file.kind.value, "metadata": dumps(file.metadata) if file.metadata else None, "content": file.content,
        "created_at": a.run.created_at,
    }  # fmt: skip


def bring_past(conn: sa.Connection, started: list[Accept], answers: dict[str, Accepted]) -> None:
    """Fill in session and history of the runs that start in a session that was there before."""
    by_session = {a.run.session_id: a for a in started}
    for row in FIND_SESSIONS.each(conn, [{"session_id": session_id} for session_id in by_session]):
        answers[by_session[row.id].run.id].session = session_from_row(row)
    wanted = {a.run.session_id: a.history_runs for a in started if a.history_runs}
    for session_id, past in read_history(conn, wanted).items():
        answers[by_session[session_id].run.id].history = past


def read_history(conn: sa.Connection, wanted: dict[str, int], source: str | None = None) -> dict[str, list[PastRun]]:
    """The last runs of each session (how many, by session id) with their messages, oldest first. Sources of siblings, and
    `source`, are among them without messages where they are not remembered themselves (replaced, failed)."""
    if not wanted:
        return {}
    statement = by_dialect(conn, sqlite=HISTORY_SQLITE, postgresql=HISTORY_POSTGRESQL)
    found = statement.each(conn, [{"session_id": s} for s in wanted], runs=max(wanted.values()))
    past: dict[str, list[tuple[int, PastRun]]] = {}
    keys = itertools.groupby(found, lambda r: (r.session_id, r.seq, r.id, r.forked_from_run_id))
    for (session_id, seq, run_id, forked_from), group in keys:
        messages = [message for row in group for message in messages_from_payload(row.payload)]
        past.setdefault(session_id, []).append((seq, PastRun(run_id, forked_from, messages)))
    return {session_id: _with_sources(conn, last[-wanted[session_id] :], source) for session_id, last in past.items()}


def _with_sources(conn: sa.Connection, last: list[tuple[int, PastRun]], source: str | None) -> list[PastRun]:
    """A branch leaves at the place of its source, so that must be known even if nothing of it is remembered."""
    known = dict(last)
    while missing := {source, *(run.forked_from_run_id for run in known.values())} - {run.id for run in known.values()} - {None}:
        rows = conn.execute(SOURCES, {"sources": sorted(id for id in missing if id), "first": last[0][0]}).all()
        if not rows:
            break
        known |= {row.seq: PastRun(row.id, row.forked_from_run_id, []) for row in rows}
    return [known[seq] for seq in sorted(known)]

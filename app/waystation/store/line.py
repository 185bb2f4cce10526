"""The line of a session: which of its waiting runs goes before which, and how a run that goes first gets its place.

A run submitted with interrupt or rollback goes first. What it asks to make way is asked in the transaction that accepts it:

1. The holder of the session is locked, so it can't end before this commit. A holder that is found is asked to stop, and the new run
   waits behind it: no claim can come between, since each sees the holder or else the new run.
2. Without a holder the new run takes the session itself, started or not. The unique index on holders tells whether a claim was quicker;
   then all is done once more, and that claim's run is the holder.
3. What waits and goes first itself is asked too. This is a second statement, which sees what an acceptance has committed that held
   the lock before.

A run that is asked has `cancel_requested`; what ends it is told from there, whoever that is (see `RunService`). `drop_requested` makes
the end of the run, in whatever way, drop it from the history.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from waystation.db.dialect import json_rows
from waystation.db.prepared import Prepared
from waystation.db.tables import PENDING, Bool, Float, Text, runs, sessions

other = runs.alias("other")
UNFINISHED = sa.text("(other.holds_session OR other.status = 'PENDING')")  # word for word as in ix_runs_unfinished


def goes_before(one: Any, run: Any) -> sa.ColumnElement[bool]:
    """Whether one waiting run goes before another of its session. Both are columns of runs."""
    return sa.or_(
        sa.and_(one.goes_first == run.goes_first, one.seq < run.seq),
        sa.and_(one.goes_first, sa.not_(run.goes_first)),
    )


# ---- places ------------------------------------------------------------------------------------------------------------------
_ahead = (
    sa.select(sa.func.count())
    .select_from(other)
    .where(
        other.c.session_id == runs.c.session_id, UNFINISHED, other.c.status == PENDING,
        sa.or_(other.c.holds_session, goes_before(other.c, runs.c)),
    )
    .correlate(runs)
    .scalar_subquery()
)  # fmt: skip
PLACES = sa.select(runs.c.id, sa.case((runs.c.holds_session, 0), else_=_ahead).label("ahead")).where(
    runs.c.id.in_(sa.bindparam("ids", type_=Text, expanding=True)), runs.c.status == PENDING
)


def queue_positions(conn: sa.Connection, run_ids: Sequence[str]) -> dict[str, int]:
    """The place of each of these runs that waits among those of its session, in the order in which they are claimed. 1: the next."""
    return {row.id: row.ahead + 1 for row in conn.execute(PLACES, {"ids": list(run_ids)})} if run_ids else {}


# ---- making way --------------------------------------------------------------------------------------------------------------
_NEW: dict[str, Any] = {
    "id": Text, "session_id": Text, "agent_id": Text, "user_id": Text, "drops": Bool, "idempotency_scope": Text,
    "idempotency_key": Text, "created_at": Float,
}  # fmt: skip
v = json_rows(**_NEW)


def may_enter(owners: Any, new: Any) -> sa.ColumnElement[bool]:
    """Whether a session takes a run of this agent and user. `owners` has id, agent and user of sessions."""
    return sa.and_(
        owners.id == new.session_id,
        owners.agent_id == new.agent_id,
        sa.or_(owners.user_id.is_(None), new.user_id.is_(None), owners.user_id == new.user_id),
    )


# In the order of steps (see `store.step`), so that a batch and one of them queue and never cross.
LOCK_HOLDERS = Prepared(
    sa.select(other.c.id)
    .join_from(v.id.table, sessions, may_enter(sessions.c, v))
    .join(other, sa.and_(other.c.session_id == v.session_id, sa.text("other.holds_session")))
    .order_by(other.c.id)
    .with_for_update(of=other)
)
_by_id = sa.select(other.c.seq).where(other.c.id == v.id).correlate(v.id.table)
_by_key = (
    sa.select(other.c.seq)
    .where(
        other.c.idempotency_scope == v.idempotency_scope,
        other.c.agent_id == v.agent_id,
        other.c.idempotency_key == v.idempotency_key,
        other.c.idempotency_key.is_not(None),
    )
    .correlate(v.id.table)
)
ASK_TO_MAKE_WAY = Prepared(
    sa.update(runs)
    .where(
        may_enter(sessions.c, v),
        runs.c.session_id == v.session_id,
        sa.text("(runs.holds_session OR runs.status = 'PENDING')"),
        sa.or_(runs.c.holds_session, runs.c.goes_first),
        # An acceptance that is repeated, or that will find its key used, asks nobody.
        ~_by_id.exists(),
        ~_by_key.exists(),
    )
    .values(
        cancel_requested=sa.true(),
        cancel_requested_at=sa.func.coalesce(runs.c.cancel_requested_at, v.created_at),
        drop_requested=sa.or_(runs.c.drop_requested, v.drops),
        # One that waits is due at once: whoever claims it ends it, if this process does not come to it.
        available_at=sa.case((runs.c.status == PENDING, v.created_at), else_=runs.c.available_at),
    )
    .returning(runs.c.id, runs.c.session_id, runs.c.holds_session)
)


def make_way(conn: sa.Connection, items: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Ask the runs that are in the way of these to stop: their ids, by session. An item that finds no holder is marked to take its
    session itself."""
    first = [item for item in items if item["goes_first"]]
    if not first:
        return {}
    LOCK_HOLDERS.each(conn, first)
    asked: dict[str, list[str]] = {}
    held: set[str] = set()
    for row in ASK_TO_MAKE_WAY.each(conn, first):
        asked.setdefault(row.session_id, []).append(row.id)
        if row.holds_session:
            held.add(row.session_id)
    for item in first:
        item["takes_session"] = item["session_id"] not in held
    return asked

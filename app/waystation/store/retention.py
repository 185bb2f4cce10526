"""Removing what is old, a slice at a time. Safe in several processes at once: rows that another one works on are passed over.

A place says how far the finished runs have been looked through, in the order of their ends.
"""

from typing import Any

import sqlalchemy as sa

from waystation.db.dialect import ignore_conflicts
from waystation.db.tables import BY_SESSION, CANCELLED, COMPLETED, ERROR, Float, Int, deleted_keys, run_events, runs
from waystation.store.line import other

Place = tuple[float, int]
START: Place = (0.0, 0)
MOST_SEGMENTS = 500
"""Of logs, in a slice."""

_finished_at, _seq = sa.bindparam("finished_at", type_=Float), sa.bindparam("seq", type_=Int)
ENDED = (
    sa.select(runs.c.finished_at, runs.c.seq, runs.c.id)
    .where(
        runs.c.finished_at.is_not(None),
        runs.c.status.in_([COMPLETED, CANCELLED, ERROR]),  # a pause has the time of its leg's end
        runs.c.finished_at < sa.bindparam("before", type_=Float),
        sa.tuple_(runs.c.finished_at, runs.c.seq) > sa.tuple_(_finished_at, _seq),
    )
    .order_by(runs.c.finished_at, runs.c.seq)
    .limit(sa.bindparam("count", type_=Int))
)

_segments = sa.tuple_(run_events.c.run_id, run_events.c.first_index)
_of_logs = (
    sa.select(run_events.c.run_id, run_events.c.first_index)
    .where(run_events.c.run_id.in_(sa.bindparam("runs", expanding=True)))
    .order_by(run_events.c.run_id, run_events.c.first_index)
    .limit(MOST_SEGMENTS)
)
ANY_SEGMENT = sa.select(run_events.c.run_id).where(run_events.c.run_id.in_(sa.bindparam("runs", expanding=True))).limit(1)
REMOVE_SEGMENTS = sa.delete(run_events).where(_segments.in_(_of_logs))

# What the next turn of its session goes on from, and all that came after it, is kept; so is what a sibling goes on from, whose files
# may be those of its source.
_later = sa.select(other.c.seq).where(
    other.c.session_id == runs.c.session_id, other.c.seq > runs.c.seq, other.c.status == COMPLETED,
    other.c.dropped_from_history.is_(sa.false()), other.c.replaced_by_run_id.is_(None),
)  # fmt: skip
# A scalar subquery, not EXISTS: PostgreSQL would walk all siblings.
_sibling = sa.select(other.c.seq).where(other.c.forked_from_run_id == runs.c.id).limit(1).scalar_subquery()
REMOVABLE = (
    sa.select(runs.c.id, *(runs.c[column.name] for column in deleted_keys.c))
    .where(runs.c.id.in_(sa.bindparam("runs", expanding=True)), _later.exists(), _sibling.is_(None))
    .with_for_update(skip_locked=True, of=runs)
)
MARK_KEYS = (
    ignore_conflicts(deleted_keys).values({column.name: sa.bindparam(column.name) for column in deleted_keys.c}).on_conflict_do_nothing()
)


def remove_logs(conn: sa.Connection, before: float, place: Place, count: int) -> Place | None:
    """Remove the logs of up to `count` runs that ended before a time. Where to go on, None at the end. A log that is too long for one slice
    loses its beginning first."""
    ended = _ended(conn, before, place, count)
    if not ended:
        return None
    ids = {"runs": [row.id for row in ended]}
    conn.execute(REMOVE_SEGMENTS, ids)
    return place if conn.execute(ANY_SEGMENT, ids).first() else _place_of(ended)


def remove_runs(conn: sa.Connection, before: float, place: Place, count: int) -> Place | None:
    """Remove those of up to `count` runs that ended before a time which nothing goes on from, with all that is theirs. Where to go on,
    None at the end. Their Idempotency-Keys leave marks."""
    ended = _ended(conn, before, place, count)
    if not ended:
        return None
    removable = conn.execute(REMOVABLE, {"runs": [row.id for row in ended]}).all()
    if keyed := [row._asdict() for row in removable if row.idempotency_key is not None]:
        conn.execute(MARK_KEYS, keyed)
    if ids := [row.id for row in removable]:
        for table in BY_SESSION:
            conn.execute(sa.delete(table).where(table.c.run_id.in_(ids)))
        conn.execute(sa.delete(runs).where(runs.c.id.in_(ids)))
    return _place_of(ended)


def _ended(conn: sa.Connection, before: float, place: Place, count: int) -> list[Any]:
    return list(conn.execute(ENDED, {"before": before, "finished_at": place[0], "seq": place[1], "count": count}))


def _place_of(ended: list[Any]) -> Place:
    return ended[-1].finished_at, ended[-1].seq

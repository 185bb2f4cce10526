"""The runs as a queue: pages by status, how many there are of each, and what is stuck.

Everything here is read through partial indexes, so that it costs what has not completed, not what was ever stored; only the number of
completed runs has to be counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waystation.db.tables import CANCELLED, COMPLETED, ERROR, PAUSED, PENDING, RUNNING, Float, runs, workers
from waystation.domain.lifecycle import RunStatus
from waystation.domain.page import Page, PageRequest
from waystation.domain.run import Run
from waystation.store.line import UNFINISHED, other
from waystation.store.rows import RUN_COLUMNS, run_from_row

_SET_ASIDE = sa.text("runs.status IN ('PAUSED', 'CANCELLED', 'ERROR')")  # word for word as in ix_runs_set_aside
PATIENCE_S = 300.0
"""For how long a run may be left to the rules before it counts as stuck."""

HAS_STATUS: dict[RunStatus, sa.ColumnElement[bool]] = {
    RunStatus.PENDING: runs.c.status == PENDING,
    RunStatus.RUNNING: runs.c.status == RUNNING,
    RunStatus.PAUSED: sa.and_(_SET_ASIDE, runs.c.status == PAUSED),
    RunStatus.CANCELLED: sa.and_(_SET_ASIDE, runs.c.status == CANCELLED),
    RunStatus.ERROR: sa.and_(_SET_ASIDE, runs.c.status == ERROR),
    RunStatus.COMPLETED: runs.c.status == COMPLETED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run as the queue shows it."""

    run: Run
    idempotency_key: str | None


def _jobs(conn: sa.Connection, wanted: sa.ColumnElement[bool], order: Any) -> list[Job]:
    found = [run_from_row(row) for row in conn.execute(sa.select(*RUN_COLUMNS).where(wanted).order_by(order))]
    keyed = sa.select(runs.c.id, runs.c.idempotency_key).where(runs.c.id.in_([run.id for run in found]))
    keys = {row.id: row.idempotency_key for row in conn.execute(keyed)}
    return [Job(run=run, idempotency_key=keys.get(run.id)) for run in found]


def find_job(conn: sa.Connection, run_id: str) -> Job | None:
    found = _jobs(conn, runs.c.id == run_id, runs.c.seq)
    return found[0] if found else None


def list_jobs(
    conn: sa.Connection, statuses: Sequence[RunStatus], request: PageRequest, *, user_id: str | None, descending: bool
) -> Page[Job]:
    """One page of the runs of these statuses, of one user if one is given, in the order of their acceptance."""
    owned = sa.true() if user_id is None else runs.c.user_id == user_id
    order = sa.desc if descending else sa.asc
    upto = request.offset + request.limit
    # The first of each status, then the first of them: each is read through its own index.
    firsts = [
        sa.select(runs.c.seq).where(HAS_STATUS[status], owned).order_by(order(runs.c.seq)).limit(upto).subquery()
        for status in statuses
    ]  # fmt: skip
    found = sa.union_all(*(sa.select(first.c.seq) for first in firsts)).subquery()
    page = sa.select(found.c.seq).order_by(order(found.c.seq)).limit(request.limit).offset(request.offset)
    items = _jobs(conn, runs.c.seq.in_(page), order(runs.c.seq))
    return Page(items=items, total=sum(count(conn, status, owned) for status in statuses), request=request)


def count(conn: sa.Connection, status: RunStatus, owned: sa.ColumnElement[bool] | None = None) -> int:
    wanted = [HAS_STATUS[status]] if owned is None else [HAS_STATUS[status], owned]
    return conn.execute(sa.select(sa.func.count()).select_from(runs).where(*wanted)).scalar_one()


OLDEST = sa.select(sa.func.min(runs.c.created_at)).where(runs.c.status == PENDING)
DEPTHS = sa.select(runs.c.agent_id, sa.func.count().label("waiting")).where(runs.c.status == PENDING).group_by(runs.c.agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """`counts` has what is not completed; `waiting` the depth of the queue of each agent; `oldest_at` when its oldest was accepted."""

    counts: dict[RunStatus, int]
    waiting: dict[str, int]
    oldest_at: float | None
    stuck: int


def read_state(conn: sa.Connection, silent_since: float) -> QueueState:
    return QueueState(
        counts={status: count(conn, status) for status in HAS_STATUS if status is not RunStatus.COMPLETED},
        waiting={row.agent_id: row.waiting for row in conn.execute(DEPTHS)},
        oldest_at=conn.execute(OLDEST).scalar(),
        stuck=count_stuck(conn, silent_since),
    )


_since = sa.bindparam("since", type_=Float)
STUCK_RUNNING = (
    sa.select(sa.func.count())
    .select_from(runs.outerjoin(workers, workers.c.id == runs.c.worker_id))
    .where(
        runs.c.status == RUNNING,
        sa.or_(workers.c.id.is_(None), workers.c.dead_at < _since, workers.c.renewed_at < _since, runs.c.deadline_at < _since),
    )
)
_ended_holders = sa.select(other.c.session_id).where(
    sa.text("other.holds_session"), UNFINISHED, other.c.status.in_([COMPLETED, CANCELLED, ERROR])
)
STUCK_PENDING = sa.select(sa.func.count()).where(runs.c.status == PENDING, runs.c.session_id.in_(_ended_holders))


def count_stuck(conn: sa.Connection, since: float) -> int:
    """Unfinished runs that no rule will move. It is a fault of the server if there are any.

    RUNNING without an owner; or of one that has been dead or silent, or past the run's deadline, since before `since`: recovery and
    the owner should have moved it long ago. PENDING behind a run that has ended and still holds the session.
    """
    running = conn.execute(STUCK_RUNNING, {"since": since}).scalar_one()
    return running + conn.execute(STUCK_PENDING).scalar_one()

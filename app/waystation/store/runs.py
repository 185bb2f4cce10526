"""Runs outside the ledger: claims, hand-backs, cancels, pauses that go on, and reads.

The only module besides the ledger's statements that writes a status. Every change is a compare-and-set whose sources are those of
`domain.lifecycle`; every change that the owner of a run did not make raises the epoch, so that the fence refuses the owner.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from waystation.clock import now
from waystation.db.tables import (
    CANCELLED,
    COMPLETED,
    ERROR,
    PAUSED,
    PENDING,
    RUNNING,
    Float,
    Int,
    Text,
    approvals,
    runs,
    workers,
)
from waystation.domain.lifecycle import RunStatus, sources_of
from waystation.domain.metrics import COUNTS
from waystation.domain.page import Page, PageRequest
from waystation.domain.run import Run
from waystation.domain.webhook import NewDelivery
from waystation.errors import SessionBusyError, SessionTakenError
from waystation.store import workers as worker_store
from waystation.store.line import UNFINISHED, goes_before, other
from waystation.store.operations import EventLines
from waystation.store.rows import RUN_COLUMNS, run_from_row
from waystation.store.step import END_IN_SESSION, STORE_EVENTS
from waystation.store.webhooks import store_of_run

LITERALS = {
    RunStatus.PENDING: PENDING, RunStatus.RUNNING: RUNNING, RunStatus.PAUSED: PAUSED,
    RunStatus.COMPLETED: COMPLETED, RunStatus.CANCELLED: CANCELLED, RunStatus.ERROR: ERROR,
}  # fmt: skip


def _may_become(target: RunStatus, *without: RunStatus) -> sa.ColumnElement[bool]:
    return runs.c.status.in_([LITERALS[source] for source in sorted(sources_of(target) - set(without))])


# ---- claim ---------------------------------------------------------------------------------------------------------------
_held = sa.select(other.c.session_id).where(sa.text("other.holds_session"))  # hashed once: a blocked row costs 0.2 µs, not 2.5
_ahead = sa.select(other.c.seq).where(
    other.c.session_id == runs.c.session_id, UNFINISHED, other.c.status == PENDING, goes_before(other.c, runs.c)
)
_worker = sa.bindparam("worker", type_=Text)
# Locked on PostgreSQL: a death that is being written waits for this claim or this claim for it, and then finds it.
_alive = sa.select(workers.c.id).where(workers.c.id == _worker, workers.c.dead_at.is_(None)).with_for_update(read=True).cte("alive")


def _due(*conditions: sa.ColumnElement[bool]) -> sa.Select[int]:
    return (
        sa.select(runs.c.seq)
        .where(
            runs.c.status == PENDING,
            runs.c.available_at <= sa.bindparam("now", type_=Float),
            # An expression, not the column: else all that an agent ever did might be walked for what of it waits.
            sa.func.coalesce(runs.c.agent_id, "").in_(sa.bindparam("agents", type_=Text, expanding=True)),
            *conditions,
            # A run that was handed back still holds its session: it goes on, whoever is ahead.
            sa.or_(runs.c.holds_session, sa.and_(runs.c.session_id.not_in(_held), ~_ahead.exists())),
        )
        .order_by(runs.c.seq)
        .limit(sa.bindparam("slots", type_=Int))
    )


def _claiming(*conditions: sa.ColumnElement[bool]) -> Any:
    # A process that was declared dead, or whose row is gone, takes nothing, whether it knows or not: its runs are given to others.
    taken = _due(*conditions, sa.select(_alive.c.id).exists()).with_for_update(skip_locked=True, of=runs).cte("due")
    return (
        sa.update(runs)
        .where(runs.c.seq.in_(sa.select(taken.c.seq)))  # they are locked, and nothing else is asked: SQLite would walk what waits for it
        .values(
            status=RUNNING,
            holds_session=sa.true(),
            epoch=runs.c.epoch + 1,
            worker_id=_worker,
            started_at=sa.func.coalesce(runs.c.started_at, sa.bindparam("now", type_=Float)),
            deadline_at=sa.func.coalesce(runs.c.deadline_at, sa.bindparam("now", type_=Float) + runs.c.timeout_s),
        )
        .returning(*RUN_COLUMNS)
    )


COUNT_DUE = sa.select(sa.func.count()).select_from(_due().subquery())
CLAIM = _claiming()
_passed_over = sa.bindparam("passed_over", type_=Text, expanding=True)
CLAIM_OF_OTHERS = _claiming(sa.func.coalesce(runs.c.user_id, "").not_in(_passed_over))


def claim(
    conn: sa.Connection, worker_id: str, agent_ids: Sequence[str], slots: int, at: float, passed_over: Sequence[str] = ()
) -> list[Run]:
    """Take up to `slots` due runs, oldest first, none of the users that are passed over. SessionTakenError: a foreground run won one of the
    sessions meanwhile; ask again."""
    parameters: dict[str, Any] = {"worker": worker_id, "agents": list(agent_ids), "slots": slots, "now": at}
    statement = CLAIM
    if passed_over:
        statement, parameters["passed_over"] = CLAIM_OF_OTHERS, list(passed_over)
    try:
        rows = conn.execute(statement, parameters).all()
    except sa.exc.IntegrityError as exc:
        raise SessionTakenError from exc
    return sorted((run_from_row(row) for row in rows), key=lambda run: run.seq)


def claim_now(conn: sa.Connection, worker_id: str, agent_ids: Sequence[str], slots: int, passed_over: Sequence[str] = ()) -> list[Run]:
    """The same, as of the moment in which the store takes it: the call may have waited for a connection, or the process been stopped."""
    return claim(conn, worker_id, agent_ids, slots, now(), passed_over)


def count_due(conn: sa.Connection, agent_ids: Sequence[str], most: int, at: float) -> int:
    """How many runs could be claimed now; it counts no further than `most`."""
    return conn.execute(COUNT_DUE, {"agents": list(agent_ids), "slots": most, "now": at}).scalar() or 0


NEXT_DUE = sa.select(sa.func.min(runs.c.available_at)).where(
    runs.c.status == PENDING, runs.c.available_at > sa.bindparam("now", type_=Float)
)


def next_due_at(conn: sa.Connection, at: float) -> float | None:
    """When the next run that is not due yet will be."""
    return conn.execute(NEXT_DUE, {"now": at}).scalar()


# ---- hand back -------------------------------------------------------------------------------------------------------------
_HANDED_BACK = {
    "status": PENDING, "worker_id": None, "epoch": runs.c.epoch + 1, "available_at": sa.bindparam("now", type_=Float),
}  # fmt: skip
HAND_BACK_RUN = (
    sa.update(runs)
    .where(runs.c.id == sa.bindparam("run"), runs.c.epoch == sa.bindparam("seen"), _may_become(RunStatus.PENDING, RunStatus.PAUSED))
    .values(**_HANDED_BACK)
    .returning(runs.c.id)
)
HAND_BACK_ORPHAN = (
    sa.update(runs)
    .where(runs.c.id == sa.bindparam("run"), runs.c.epoch == sa.bindparam("seen"), runs.c.status == RUNNING)
    .values(**_HANDED_BACK, takeovers=runs.c.takeovers + 1)
    .returning(runs.c.id)
)
HAND_BACK_LOST = (
    sa.update(runs)
    .where(runs.c.worker_id == sa.bindparam("worker"), runs.c.status == RUNNING)
    .values(**_HANDED_BACK, takeovers=runs.c.takeovers + 1)
    .returning(runs.c.id)
)


def hand_back(conn: sa.Connection, run_id: str, epoch: int, at: float) -> bool:
    """Give a run back so that any worker goes on with it. It keeps its session. False: somebody else has it already."""
    return conn.execute(HAND_BACK_RUN, {"run": run_id, "seen": epoch, "now": at}).first() is not None


def hand_back_lost(conn: sa.Connection, run_id: str, epoch: int, at: float) -> bool:
    """Give a run back that its process does not execute. It counts as a takeover, so that this can't go on for ever."""
    return conn.execute(HAND_BACK_ORPHAN, {"run": run_id, "seen": epoch, "now": at}).first() is not None


def hand_back_runs_of(conn: sa.Connection, worker_id: str, at: float) -> list[str]:
    """Give back all runs of a worker that was lost; each counts as a takeover. Idempotent."""
    return [row.id for row in conn.execute(HAND_BACK_LOST, {"worker": worker_id, "now": at})]


def hand_back_ownerless(conn: sa.Connection, at: float) -> list[str]:
    """Give back running runs whose process has no lease any more. Idempotent."""
    owners = sa.select(workers.c.id).where(workers.c.id == runs.c.worker_id)
    lost = sa.select(runs.c.worker_id).where(runs.c.status == RUNNING, ~owners.exists()).distinct()
    return [run_id for worker_id in conn.execute(lost).scalars().all() for run_id in hand_back_runs_of(conn, worker_id, at)]


def running_of(conn: sa.Connection, worker_id: str) -> list[tuple[str, int]]:
    """Id and epoch of the runs that this worker is held to execute."""
    rows = conn.execute(sa.select(runs.c.id, runs.c.epoch).where(runs.c.worker_id == worker_id, runs.c.status == RUNNING))
    return [(row.id, row.epoch) for row in rows]


# ---- cancel ----------------------------------------------------------------------------------------------------------------
REQUEST_CANCEL = (
    sa.update(runs)
    .where(runs.c.id == sa.bindparam("run"), runs.c.status == RUNNING)
    .values(
        cancel_requested=sa.true(),
        cancel_requested_at=sa.func.coalesce(runs.c.cancel_requested_at, sa.bindparam("now", type_=Float)),
    )
    .returning(runs.c.id)
)


def request_cancel(conn: sa.Connection, run_id: str, at: float) -> bool:
    """Ask the owner of a running run to stop it. False: it is not running."""
    return conn.execute(REQUEST_CANCEL, {"run": run_id, "now": at}).first() is not None


def cancel_requests_of(conn: sa.Connection, worker_id: str) -> list[str]:
    """The runs of this worker that are to be cancelled."""
    statement = sa.select(runs.c.id).where(runs.c.worker_id == worker_id, runs.c.status == RUNNING, runs.c.cancel_requested)
    return list(conn.execute(statement).scalars())


def renew_and_ask(conn: sa.Connection, worker_id: str, at: float) -> tuple[bool, list[str]]:
    """Renew a lease, and bring the cancel requests of the worker's runs along. (False, []): it was declared dead."""
    alive = worker_store.renew(conn, worker_id, at)
    return alive, cancel_requests_of(conn, worker_id) if alive else []


def release_and_hand_back(conn: sa.Connection, worker_id: str, at: float) -> None:
    """End a lease in good order. Runs that it still held (an acceptance or a claim that was just under way) are given back, which is no
    takeover: nothing was lost."""
    left = sa.update(runs).where(runs.c.worker_id == worker_id, runs.c.status == RUNNING).values(**_HANDED_BACK)
    conn.execute(left, {"now": at})
    worker_store.release(conn, worker_id)


def unanswered_cancels(conn: sa.Connection, before: float) -> tuple[list[Run], float | None]:
    """Runs that hold their session, were asked to stop before this time and have not: nobody executes them, or their owner is silent. And
    when the oldest other request was made."""
    asked = (sa.text("runs.holds_session"), runs.c.cancel_requested)
    found = conn.execute(sa.select(*RUN_COLUMNS).where(*asked, runs.c.cancel_requested_at < before))
    oldest = sa.select(sa.func.min(runs.c.cancel_requested_at)).where(*asked, runs.c.cancel_requested_at >= before)
    return [run_from_row(row) for row in found], conn.execute(oldest).scalar()


def end_idle(
    conn: sa.Connection,
    run: Run,
    status: RunStatus,
    event: EventLines,
    values: dict[str, str],
    first_message: str,
    at: float,
    deliveries: Sequence[NewDelivery] = (),
) -> bool:
    """End a run that nobody executes (queued, paused, handed back), or one whose owner does not answer, in one commit with its
    last event. `run` is as it was read; False: it has changed since, so read it again."""
    statement = (
        sa.update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.next_index == run.next_index)
        .where(runs.c.status == LITERALS[run.status], _may_become(status))
        .values(
            status=LITERALS[status],
            epoch=run.epoch + 1,
            next_index=run.next_index + event.count,
            holds_session=sa.false(),
            dropped_from_history=runs.c.drop_requested,
            worker_id=None,
            finished_at=at,
            **values,
        )
    )
    if conn.execute(statement).rowcount != 1:
        return False
    STORE_EVENTS.many(conn, [{
        "run_id": run.id, "session_id": run.session_id, "first_index": run.next_index,
        "last_index": run.next_index + event.count - 1, "payload": event.lines.decode(),
    }])  # fmt: skip
    END_IN_SESSION.many(conn, [{
        "session": run.session_id, "run_count": 1, "cost": None, "first_message": first_message, "external": None,
        "last_run": run.id, "at": at, **{f"add_{name}": 0 for name in COUNTS},
    }])  # fmt: skip
    # What the run still asked of an admin needs no answer any more.
    conn.execute(
        sa.update(approvals).where(approvals.c.run_id == run.id, approvals.c.status == "pending").values(status="cancelled", updated_at=at)
    )
    store_of_run(conn, run, deliveries, at)
    return True


# ---- going on after a pause --------------------------------------------------------------------------------------------------
def reopen(conn: sa.Connection, run: Run, output: str, worker_id: str | None, at: float) -> Run | None:
    """Let a paused run go on with its answered requirements: RUNNING for this worker, else PENDING for anybody.

    `run` is as it was read; None: it has changed since. SessionBusyError: another turn has the session (only where the run gave
    it up when it paused).
    """
    running = worker_id is not None
    if running and not run.holds_session:
        in_flight = find_in_flight(conn, run.session_id, besides=run.id)
        if in_flight is not None:
            raise SessionBusyError(run_id=in_flight, session_id=run.session_id)
    statement = (
        sa.update(runs)
        .where(runs.c.id == run.id, runs.c.epoch == run.epoch, runs.c.status == PAUSED)
        .values(
            status=RUNNING if running else PENDING,
            holds_session=sa.true() if running else runs.c.holds_session,
            epoch=run.epoch + 1,
            worker_id=worker_id,
            output=output,
            available_at=at,
            deadline_at=at + runs.c.timeout_s,
        )
        .returning(*RUN_COLUMNS)
    )
    try:
        row = conn.execute(statement).first()
    except sa.exc.IntegrityError as exc:
        raise SessionBusyError(run_id=None, session_id=run.session_id) from exc
    return run_from_row(row) if row else None


def find_in_flight(conn: sa.Connection, session_id: str, *, besides: str | None = None) -> str | None:
    """The run that makes a session busy: the one that holds it, else the oldest that waits."""
    statement = (
        sa.select(other.c.id).where(other.c.session_id == session_id, UNFINISHED).order_by(other.c.holds_session.desc(), other.c.seq)
    )
    return next((id for id in conn.execute(statement).scalars() if id != besides), None)


# ---- reads -------------------------------------------------------------------------------------------------------------------
FIND = sa.select(*RUN_COLUMNS).where(runs.c.id == sa.bindparam("run"))
STATE = sa.select(runs.c.agent_id, runs.c.session_id, runs.c.user_id, runs.c.status, runs.c.next_index).where(
    runs.c.id == sa.bindparam("run")
)


def find(conn: sa.Connection, run_id: str) -> Run | None:
    row = conn.execute(FIND, {"run": run_id}).first()
    return run_from_row(row) if row else None


def find_state(conn: sa.Connection, run_id: str) -> tuple[RunStatus, int] | None:
    """Status and next index of a run: what a viewer needs to know whether to wait."""
    row = conn.execute(STATE, {"run": run_id}).first()
    return (RunStatus(row.status), row.next_index) if row else None


def list_runs(
    conn: sa.Connection,
    /,
    *,
    request: PageRequest,
    agent_id: str | None = None,
    session_id: str | None = None,
    user_id: str | None = None,
    status: RunStatus | None = None,
    created_after: float | None = None,
    created_before: float | None = None,
    descending: bool = False,
) -> Page[Run]:
    """One page of runs in the order of their acceptance. Dropped turns are left out."""
    conditions: list[sa.ColumnElement[bool]] = [runs.c.dropped_from_history.is_(sa.false())]
    for column, value in ((runs.c.agent_id, agent_id), (runs.c.session_id, session_id), (runs.c.user_id, user_id)):
        if value is not None:
            conditions.append(column == value)
    if status is RunStatus.REGENERATED:
        conditions += [runs.c.status == COMPLETED, runs.c.replaced_by_run_id.is_not(None)]
    elif status is not None:
        conditions.append(runs.c.status == LITERALS[status])
        if status is RunStatus.COMPLETED:
            conditions.append(runs.c.replaced_by_run_id.is_(None))  # those are shown as REGENERATED
    if created_after is not None:
        conditions.append(runs.c.created_at >= created_after)
    if created_before is not None:
        conditions.append(runs.c.created_at <= created_before)
    order = runs.c.seq.desc() if descending else runs.c.seq
    rows = conn.execute(sa.select(*RUN_COLUMNS).where(*conditions).order_by(order).limit(request.limit).offset(request.offset)).all()
    total = conn.execute(sa.select(sa.func.count()).select_from(runs).where(*conditions)).scalar_one()
    return Page(items=[run_from_row(row) for row in rows], total=total, request=request)

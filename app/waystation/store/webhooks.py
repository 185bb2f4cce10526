"""Deliveries of webhooks: stored with the end or pause they tell of, claimed by one process at a time, recorded, replayed.

1. A claim sets `next_attempt_at` to the end of its lease. If its process dies, the delivery is due again then, under the same id.
2. Claims and replays raise the epoch. What an attempt came to is recorded only under the epoch of its claim: a late answer never
   undoes a replay.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waystation.db.tables import Text, webhook_deliveries
from waystation.domain.page import Page, PageRequest
from waystation.domain.run import Run
from waystation.domain.webhook import Delivery, DeliveryStatus, NewDelivery, target_of

LEASE_S = 60.0
MOST_LOOKED_AT = 200

_table = webhook_deliveries
_PENDING = sa.text("webhook_deliveries.status = 'pending'")  # word for word as in ix_webhook_deliveries_due

STORE = sa.insert(_table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a process can deliver: to endpoints of the agents it serves and, if it has the secret for them, of runs. `busy` targets
    have as many attempts under way as they may."""

    agents: Sequence[str]
    signs_runs: bool
    busy: Collection[str] = ()


def delivery_row(run_id: str, session_id: str, agent_id: str, new: NewDelivery, at: float) -> dict[str, Any]:
    return {
        "id": new.id, "run_id": run_id, "session_id": session_id, "agent_id": agent_id, "source": new.endpoint.source,
        "endpoint": new.endpoint.id, "url": new.endpoint.url, "target": target_of(agent_id, new.endpoint), "event": new.event,
        "payload": new.payload, "status": "pending", "next_attempt_at": at, "created_at": at,
    }  # fmt: skip


def store_of_run(conn: sa.Connection, run: Run, deliveries: Sequence[NewDelivery], at: float) -> None:
    if deliveries:
        conn.execute(STORE, [delivery_row(run.id, run.session_id, run.agent_id, new, at) for new in deliveries])


def _within(reach: Reach) -> sa.ColumnElement[bool]:
    of_agents = sa.and_(_table.c.source == "agent", _table.c.agent_id.in_(reach.agents))
    mine = sa.or_(of_agents, _table.c.source == "run") if reach.signs_runs else of_agents
    return sa.and_(_PENDING, mine, _table.c.target.not_in(reach.busy))


def next_due_at(conn: sa.Connection, reach: Reach) -> float | None:
    """When the next delivery within reach is due; it may have been for long."""
    statement = sa.select(_table.c.next_attempt_at).where(_within(reach)).order_by(_table.c.next_attempt_at).limit(1)
    return conn.execute(statement).scalar()


def claim(conn: sa.Connection, reach: Reach, count: int, of_target: int, at: float) -> list[Delivery]:
    """Take up to `count` due deliveries, of each target at most `of_target`, for LEASE_S."""
    due = (
        sa.select(_table.c.id, _table.c.target, _table.c.next_attempt_at)
        .where(_within(reach), _table.c.next_attempt_at <= at)
        .order_by(_table.c.next_attempt_at)
        .limit(MOST_LOOKED_AT)
        .subquery()
    )
    place = sa.func.row_number().over(partition_by=due.c.target, order_by=due.c.next_attempt_at).label("place")
    placed = sa.select(due.c.id, due.c.next_attempt_at, place).subquery()
    chosen = sa.select(placed.c.id).where(placed.c.place <= of_target).order_by(placed.c.next_attempt_at).limit(count)
    statement = (
        sa.update(_table)
        # Due once more: another process may have claimed it while this statement waited for the row.
        .where(_table.c.id.in_(chosen), _PENDING, _table.c.next_attempt_at <= at)
        .values(
            epoch=_table.c.epoch + 1,
            attempts=_table.c.attempts + 1,
            tries=_table.c.tries + 1,
            next_attempt_at=at + LEASE_S,
            last_attempt_at=at,
        )
        .returning(*_table.c)
    )
    return [_from_row(row) for row in conn.execute(statement)]


def record(
    conn: sa.Connection,
    delivery: Delivery,
    status: DeliveryStatus,
    *,
    next_attempt_at: float | None,
    status_code: int | None,
    error: str | None,
    at: float,
) -> bool:
    """What an attempt came to. False: it was claimed or replayed since, or deleted with its run."""
    statement = (
        sa.update(_table)
        .where(_table.c.id == delivery.id, _table.c.epoch == delivery.epoch)
        .values(
            status=status.value,
            next_attempt_at=next_attempt_at,
            last_status_code=status_code,
            last_error=error,
            delivered_at=at if status is DeliveryStatus.DELIVERED else _table.c.delivered_at,
        )
    )
    return conn.execute(statement).rowcount == 1


def replay(conn: sa.Connection, run_id: str, delivery_id: str, at: float) -> Delivery | None:
    """Have a delivery sent once more, now, and again as often as a new one. None: the run has no such delivery."""
    statement = (
        sa.update(_table)
        .where(_table.c.id == delivery_id, _table.c.run_id == run_id)
        .values(status="pending", epoch=_table.c.epoch + 1, tries=0, next_attempt_at=at)
        .returning(*_table.c)
    )
    row = conn.execute(statement).first()
    return _from_row(row) if row else None


FIND = sa.select(_table).where(_table.c.id == sa.bindparam("id", type_=Text), _table.c.run_id == sa.bindparam("run", type_=Text))


def find(conn: sa.Connection, run_id: str, delivery_id: str) -> Delivery | None:
    row = conn.execute(FIND, {"id": delivery_id, "run": run_id}).first()
    return _from_row(row) if row else None


def list_of_run(conn: sa.Connection, run_id: str, request: PageRequest) -> Page[Delivery]:
    """One page of the deliveries of a run, oldest first."""
    mine = _table.c.run_id == run_id
    rows = conn.execute(
        sa.select(_table).where(mine).order_by(_table.c.created_at, _table.c.id).limit(request.limit).offset(request.offset)
    ).all()
    total = conn.execute(sa.select(sa.func.count()).select_from(_table).where(mine)).scalar_one()
    return Page(items=[_from_row(row) for row in rows], total=total, request=request)


def _from_row(row: Any) -> Delivery:
    values = row._asdict()
    return Delivery(**{**values, "status": DeliveryStatus(values["status"])})

"""The leases: one row per process. A death is written, never inferred by the one who reads it alone."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waystation.db.tables import workers
from waystation.store.rows import dumps, loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that executes runs. `renewals` counts up while it lives; `dead_at` is when its death was written.

    `boot_id`, `pid` and `process_started` say which process of which start of which machine it is. It executes `slots` runs of its
    `agents` at a time, or none.
    """

    id: str
    host: str
    boot_id: str
    pid: int
    process_started: str
    slots: int = 0
    agents: tuple[str, ...] = ()
    renewals: int = 0
    started_at: float = 0.0
    renewed_at: float = 0.0
    dead_at: float | None = None


def register(conn: sa.Connection, worker: Worker) -> None:
    values = {name: getattr(worker, name) for name in Worker.__slots__}
    conn.execute(sa.insert(workers).values(**values | {"agents": dumps(worker.agents)}))


def renew(conn: sa.Connection, worker_id: str, at: float) -> bool:
    """Count the lease up. False: this worker was declared dead, or its row is gone: it must stop all it does."""
    statement = (
        sa.update(workers)
        .where(workers.c.id == worker_id, workers.c.dead_at.is_(None))
        .values(renewals=workers.c.renewals + 1, renewed_at=at)
    )
    return conn.execute(statement).rowcount == 1


def declare_dead(conn: sa.Connection, worker_id: str, seen_renewals: int, at: float) -> bool:
    """Write the death of a worker whose lease still stands where it was seen. False: it has moved, or is dead already."""
    statement = (
        sa.update(workers)
        .where(workers.c.id == worker_id, workers.c.renewals == seen_renewals, workers.c.dead_at.is_(None))
        .values(dead_at=at)
    )
    return conn.execute(statement).rowcount == 1


def release(conn: sa.Connection, worker_id: str) -> None:
    conn.execute(sa.delete(workers).where(workers.c.id == worker_id))


def list_workers(conn: sa.Connection) -> list[Worker]:
    rows: Any = conn.execute(sa.select(workers).order_by(workers.c.id))
    return [Worker(**{**row._mapping, "agents": tuple(loads(row.agents))}) for row in rows]


def ping(conn: sa.Connection) -> None:
    """Whether the store answers at all."""
    conn.execute(sa.text("SELECT 1"))

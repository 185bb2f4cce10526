"""What a process knows of itself, for `/health` and the queue's views."""

import asyncio
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waystation.clock import now
from waystation.db.engine import Database
from waystation.errors import StoreUnavailableError
from waystation.live.hub import Hub
from waystation.runs.slots import Slots
from waystation.store import runs as run_store
from waystation.store import workers as worker_store
from waystation.store.ledger import Ledger
from waystation.worker.lease import Lease

STORE_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`ok`: new runs can be taken and stored."""

    ok: bool
    store: bool
    ledger_lag_s: float
    worker: dict[str, Any]
    viewers: dict[str, Any]


class HealthService:
    def __init__(self, *, database: Database, ledger: Ledger, slots: Slots, lease: Lease, hub: Hub) -> None:
        self._database = database
        self._ledger = ledger
        self._slots = slots
        self._lease = lease
        self._hub = hub

    async def check(self) -> Health:
        store = await self._store_answers()
        ledger_works = self._ledger.failure is None and not self._ledger.is_down
        worker = {
            "id": self._lease.worker_id,
            "lease": self._lease.is_held,
            "slots": self._slots.limit,
            "running": self._slots.used,
            "draining": self._slots.closed,
        }
        return Health(
            ok=store and ledger_works and not self._slots.closed,
            store=store,
            ledger_lag_s=round(self._ledger.lag_s, 3),
            worker=worker,
            viewers=self._hub.stats(),
        )

    async def queue_stats(self) -> dict[str, Any]:
        return await self._database.read(_queue_stats)

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_PATIENCE_S):
                await self._database.read(_ping)
        except (StoreUnavailableError, TimeoutError):
            return False
        return True


def _ping(conn: sa.Connection) -> None:
    conn.execute(sa.text("SELECT 1"))


def _queue_stats(conn: sa.Connection) -> dict[str, Any]:
    oldest = run_store.oldest_waiting_at(conn)
    workers = [
        {
            "id": worker.id,
            "host": worker.host,
            "pid": worker.pid,
            "renewed_at": worker.renewed_at,
            "dead": worker.dead_at is not None,
        }
        for worker in worker_store.list_workers(conn)
    ]
    return {
        "counts": run_store.unfinished_counts(conn),
        "oldest_queued_age_seconds": None if oldest is None else round(now() - oldest, 3),
        "workers": workers,
    }

"""What a process knows of itself, for `/health` and the queue's views."""

import asyncio
from dataclasses import dataclass
from typing import Any

from waystation.clock import now
from waystation.db.engine import Database
from waystation.errors import StoreUnavailableError
from waystation.live.base import Live
from waystation.live.hub import Hub
from waystation.runs.slots import Slots
from waystation.store import queue
from waystation.store import workers as worker_store
from waystation.store.ledger import Ledger
from waystation.store.queue import QueueState
from waystation.store.workers import Worker
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
    live: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The queue at a time. `unserved` runs wait for an agent that no living process executes; `slots` are those of this process."""

    at: float
    state: QueueState
    workers: list[Worker]
    unserved: int
    slots: int
    slots_used: int


class HealthService:
    def __init__(self, *, database: Database, ledger: Ledger, slots: Slots, lease: Lease, hub: Hub, live: Live) -> None:
        self._database = database
        self._ledger = ledger
        self._slots = slots
        self._lease = lease
        self._hub = hub
        self._live = live

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
            ok=store and ledger_works and self._lease.is_held and not self._slots.closed,
            store=store,
            ledger_lag_s=round(self._ledger.lag_s, 3),
            worker=worker,
            viewers=self._hub.stats(),
            live={"kind": self._live.kind, "connected": self._live.is_connected},
        )

    async def queue(self) -> Queue:
        """What waits and runs, and the processes that execute."""
        at = now()
        state = await self._database.read(queue.read_state, at - queue.PATIENCE_S)
        workers = await self._database.read(worker_store.list_workers)
        served = {agent for worker in workers if worker.dead_at is None and worker.slots for agent in worker.agents}
        return Queue(
            at=at,
            state=state,
            workers=workers,
            unserved=sum(count for agent, count in state.waiting.items() if agent not in served),
            slots=self._slots.limit,
            slots_used=self._slots.used,
        )

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_PATIENCE_S):
                await self._database.read(worker_store.ping)
        except (StoreUnavailableError, TimeoutError):
            return False
        return True

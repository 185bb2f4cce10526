"""Recovery: finds processes that have died and gives their runs back to everybody. It never executes anything.

1. A process of this machine whose process id has vanished is dead at once.
2. Of any other, ten consecutive reads without a change of its lease, at least half a second apart, make it dead. Reads are
   counted, never time: a host that slept must not bury the living.
3. A death is written, with a compare-and-set on the renewal that was seen; only then are the runs handed back.
"""

import asyncio
import time
from dataclasses import dataclass

from waystation.clock import now
from waystation.config import Settings
from waystation.db.engine import Database
from waystation.errors import StoreUnavailableError
from waystation.live.base import Live
from waystation.logs import get_logger
from waystation.runs.executor import Executor
from waystation.runs.service import RunService
from waystation.store import queue
from waystation.store import runs as run_store
from waystation.store import sessions as session_store
from waystation.store import workers as worker_store
from waystation.store.workers import Worker
from waystation.worker.lease import Lease, boot_id, host_name, process_started
from waystation.worker.worker import Worker as ClaimLoop

log = get_logger(__name__)

LOOK_S = 1.0
UNCHANGED_READS = 10
LEAST_BETWEEN_READS_S = 0.5
KEEP_DEAD_S = 3600.0
FORGET_EVERY_S = 600.0
FORGET_SLICE = 1_000
DAY_S = 86_400.0


@dataclass(slots=True)
class Sighting:
    renewals: int
    unchanged: int
    read_at: float


class Recovery:
    def __init__(
        self,
        *,
        database: Database,
        executor: Executor,
        service: RunService,
        lease: Lease,
        claims: ClaimLoop,
        live: Live,
        settings: Settings,
    ) -> None:
        self._database = database
        self._executor = executor
        self._service = service
        self._lease = lease
        self._claims = claims
        self._live = live
        self._settings = settings
        self._seen: dict[str, Sighting] = {}
        self._orphans: set[tuple[str, int]] = set()
        self._stuck = 0
        self._forgot_at = 0.0

    async def run(self) -> None:
        while True:
            wait_s = LOOK_S
            try:
                wait_s = await self.look()
            except StoreUnavailableError:
                self._seen.clear()  # what was not read can't be counted
            await asyncio.sleep(wait_s)

    async def look(self) -> float:
        """One round. Safe to run in every process at once. Seconds until the next."""
        others = [w for w in await self._database.read(worker_store.list_workers) if w.id != self._lease.worker_id]
        self._live.has_others = any(worker.dead_at is None for worker in others)
        for worker in others:
            if worker.dead_at is not None or await self._has_died(worker):
                await self._hand_back(worker)
        if lost := await self._database.write(run_store.hand_back_ownerless, now()):
            log.warning("runs of an unknown process handed back", runs=len(lost))
            self._wake()
        await self._give_back_orphans()
        patience_s = self._settings.cancel_takeover_s
        unanswered, asked_at = await self._database.read(run_store.unanswered_cancels, now() - patience_s)
        for run in unanswered:
            log.warning("cancel request unanswered; ending the run", run_id=run.id)
            await self._service.end_unanswered(run)
        await self._look_for_stuck_runs()
        await self._forget()
        return LOOK_S if asked_at is None else min(max(asked_at + patience_s - now(), 0.001), LOOK_S)

    async def _has_died(self, worker: Worker) -> bool:
        gone = _is_of_this_machine(worker) and process_started(worker.pid) != worker.process_started
        sighting = self._seen.get(worker.id)
        at = time.monotonic()
        if not gone:
            if sighting is None or sighting.renewals != worker.renewals:
                self._seen[worker.id] = Sighting(worker.renewals, 0, at)
                return False
            if at - sighting.read_at >= LEAST_BETWEEN_READS_S:
                sighting.unchanged += 1
                sighting.read_at = at
            if sighting.unchanged < UNCHANGED_READS:
                return False
        self._seen.pop(worker.id, None)
        died = await self._database.write(worker_store.declare_dead, worker.id, worker.renewals, now())
        if died:
            log.warning("a process has died", worker_id=worker.id, pid=worker.pid, vanished=gone)
        return died

    async def _hand_back(self, worker: Worker) -> None:
        handed_back = await self._database.write(run_store.hand_back_runs_of, worker.id, now())
        if handed_back:
            log.warning("runs handed back", worker_id=worker.id, runs=len(handed_back))
            self._wake()
        elif worker.dead_at is not None and worker.dead_at < now() - KEEP_DEAD_S:
            await self._database.write(worker_store.release, worker.id)

    async def _give_back_orphans(self) -> None:
        """Own runs that are not executed here, seen so twice: an acceptance or a claim whose answer was lost."""
        held = set(await self._database.read(run_store.running_of, self._lease.worker_id))
        orphans = {(run_id, epoch) for run_id, epoch in held if self._executor.running.get(run_id) != epoch}
        for run_id, epoch in orphans & self._orphans:
            if await self._database.write(run_store.hand_back_lost, run_id, epoch, now()):
                log.warning("run without an execution handed back", run_id=run_id)
                self._wake()
        self._orphans = orphans

    def _wake(self) -> None:
        """Have the runs that were handed back claimed, here or, if they are of agents that only others serve, there."""
        self._claims.wake()
        self._live.tell_due()

    async def _look_for_stuck_runs(self) -> None:
        """Say so once when there are runs that none of the rules above will ever move."""
        stuck = await self._database.read(queue.count_stuck, now() - queue.PATIENCE_S)
        if stuck and not self._stuck:
            log.error("runs are stuck: no rule will move them", runs=stuck)
        self._stuck = stuck

    async def _forget(self) -> None:
        if time.monotonic() - self._forgot_at < FORGET_EVERY_S and self._forgot_at:
            return
        before = now() - self._settings.idempotency_days * DAY_S
        forgotten = await self._database.write(session_store.forget_old_keys, before, FORGET_SLICE)
        if forgotten < FORGET_SLICE:
            self._forgot_at = time.monotonic()


def _is_of_this_machine(worker: Worker) -> bool:
    return worker.host == host_name() and worker.boot_id == boot_id()

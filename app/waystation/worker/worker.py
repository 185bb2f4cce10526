"""The claim loop: takes due runs while there are free slots.

Wake-ups only shorten its wait; under them stands a poll. A claim follows every enqueue, and every end of a run that may have made
room for a waiting one, after the commit: so no run waits longer than the poll when a wake-up is lost.

A claim holds slots while it is on its way, and a run that could start at once finds them taken and has to wait in its turn. So no
more are taken than runs are known to wait: those it was woken for, or else those that the store counts.

While others wait, one user has at most half of the slots. A claim passes over users that have them, and takes no more at once than leaves
everybody else within; only if it finds nothing so, it takes what there is. What runs is never stopped for it.

What becomes due here and finds no slot is offered to other processes. What they tell is only looked for: to pass it on would send the
same news round for ever.
"""

import asyncio

from waystation import tasks
from waystation.agents.registry import AgentRegistry
from waystation.clock import now
from waystation.db.engine import Database
from waystation.domain.run import Run
from waystation.errors import SessionTakenError, StoreUnavailableError
from waystation.live.base import Live
from waystation.runs.executor import Executor
from waystation.runs.slots import Slots
from waystation.store import runs as run_store
from waystation.worker.lease import Lease

MOST_AT_ONCE = 8
MOST_REPEATS = 5


class Worker:
    def __init__(
        self,
        *,
        database: Database,
        executor: Executor,
        registry: AgentRegistry,
        slots: Slots,
        lease: Lease,
        live: Live,
        poll_s: float,
    ) -> None:
        self._database = database
        self._executor = executor
        self._registry = registry
        self._slots = slots
        self._lease = lease
        self._live = live
        self._poll_s = poll_s
        self._wake = asyncio.Event()
        self._woken = 0

    def wake(self) -> None:
        """Another run may be due."""
        if not self._slots.limit:
            self._live.tell_due()  # this process executes nothing
        self._woken += 1
        self._wake.set()

    def look(self) -> None:
        """Another process has told that a run may be due."""
        self._wake.set()

    def run_ended(self, run: Run, has_waiting_turn: bool) -> None:
        """A slot is free again, and maybe a session; or, in a drain, the run itself."""
        self._slots.give_back()
        if has_waiting_turn or self._slots.some_wait or run.available_at > now() or self._slots.closed:
            self.wake()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            wait_s = self._poll_s
            try:
                if self._lease.is_held and self._registry.ids and await self._claim():
                    continue
                due_at = await self._database.read(run_store.next_due_at, now())
                if due_at is not None:
                    wait_s = min(wait_s, max(due_at - now(), 0.001))
            except StoreUnavailableError:
                pass  # the ledger tells of it; the next turn asks again
            await tasks.wait(self._wake, wait_s)

    async def _claim(self) -> bool:
        """Claim as much as fits. Whether to ask again at once: there may be more."""
        waiting, self._woken = self._woken, 0
        if waiting > self._slots.free:
            self._live.tell_due()
        if not waiting:
            waiting = await self._database.read(run_store.count_due, self._registry.ids, MOST_AT_ONCE, now())
        count = min(self._slots.free, waiting, MOST_AT_ONCE)
        self._slots.some_wait = waiting > count
        if count == 0 or not self._slots.take(count):
            return False
        held, share = self._executor.held_by_users(), self._slots.share
        over = [user_id for user_id, runs in held.items() if runs >= share]
        # No user can come over the share by this claim, whoever's runs it finds.
        fair = min([count, share, *(share - runs for runs in held.values() if runs < share)])
        claimed: list[Run] = []
        try:
            claimed = await self._claim_once(fair, over)
            if not claimed and over:
                claimed = await self._claim_once(count, [])  # nobody else waits
        finally:
            self._slots.give_back(count - len(claimed))
        for run in claimed:
            self._executor.start_claimed(run)
        return len(claimed) >= fair

    async def _claim_once(self, count: int, passed_over: list[str]) -> list[Run]:
        for _ in range(MOST_REPEATS):
            try:
                return await self._database.hot(run_store.claim_now, self._lease.worker_id, self._registry.ids, count, passed_over)
            except SessionTakenError:
                continue
        return []

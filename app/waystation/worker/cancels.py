"""Finds cancel requests for runs of this process after news that did not say which. The lease brings them every second anyway."""

import asyncio

from waystation.db.engine import Database
from waystation.errors import StoreUnavailableError
from waystation.runs.executor import Executor
from waystation.store.runs import cancel_requests_of
from waystation.worker.lease import Lease


class CancelRequests:
    def __init__(self, database: Database, executor: Executor, lease: Lease) -> None:
        self._database = database
        self._executor = executor
        self._lease = lease
        self._wake = asyncio.Event()

    def look(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._executor.running:
                continue
            try:
                self._executor.cancel(await self._database.read(cancel_requests_of, self._lease.worker_id))
            except StoreUnavailableError:
                continue

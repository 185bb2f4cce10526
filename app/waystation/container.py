"""The one place that builds everything, starts it in order and closes it in reverse.

Long-lived objects are made here and handed over; nothing is global. Loops run supervised: an error that nobody expected is logged
and the loop begins anew, so one bad turn of it never stops a process.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from waystation import tasks
from waystation.agents.base import BaseAgent
from waystation.agents.registry import AgentRegistry
from waystation.clock import now
from waystation.config import Settings
from waystation.db import schema
from waystation.db.changes import FileChanges
from waystation.db.engine import PostgresDatabase, open_database
from waystation.db.notices import Notices
from waystation.domain.run import Run
from waystation.live.base import Live, News
from waystation.live.hub import Hub
from waystation.live.local import LocalLive
from waystation.live.redis import RedisLink
from waystation.live.remote import RemoteLive
from waystation.live.tail import Tail
from waystation.logs import get_logger
from waystation.runs.continuation import ContinuationService
from waystation.runs.deliveries import DeliveryService
from waystation.runs.executor import Executor
from waystation.runs.idle import IdleEnds
from waystation.runs.queue import QueueService
from waystation.runs.service import RunService
from waystation.runs.slots import Slots
from waystation.runs.watch import Watch
from waystation.sessions.approvals import ApprovalService
from waystation.sessions.service import SessionService
from waystation.store.ledger import Ledger
from waystation.worker.cancels import CancelRequests
from waystation.worker.health import HealthService
from waystation.worker.lease import Lease
from waystation.worker.recovery import Recovery
from waystation.worker.retention import Retention
from waystation.worker.webhooks import WebhookDeliveries
from waystation.worker.worker import Worker

log = get_logger(__name__)

RESTART_S = 1.0
HAND_BACK_S = 2.0


class Container:
    """A process of Waystation. `start` and `close` are called once each, in the event loop that serves."""

    def __init__(self, settings: Settings, agents: Iterable[BaseAgent]) -> None:
        self.settings = settings
        self.started_at = now()
        self.registry = AgentRegistry(agents)
        self.database = open_database(
            settings.database_url, direct_url=settings.database_direct_url, synchronous=settings.sqlite_synchronous
        )
        self.live = self._open_live()
        self.hub = Hub(self.live)
        self.ledger = Ledger(self.database)
        self.slots = Slots(settings.worker_concurrency if settings.worker else 0)
        self.tail = Tail(self.database, self.hub, settings.poll_s)
        self.lease = Lease(
            self.database, slots=self.slots.limit, agents=self.registry.ids, on_cancel=self._cancel_runs, on_dead=self._drop_runs
        )
        self.idle = IdleEnds(self.database, self.hub, self._agent_name, self._idle_ended)
        self.executor = Executor(
            database=self.database, ledger=self.ledger, hub=self.hub, registry=self.registry, settings=settings, idle=self.idle,
            on_end=self._run_ended,
        )  # fmt: skip
        self.worker = Worker(
            database=self.database, executor=self.executor, registry=self.registry, slots=self.slots, lease=self.lease,
            live=self.live, poll_s=settings.poll_s,
        )  # fmt: skip
        self.cancels = CancelRequests(self.database, self.executor, self.lease)
        self.watch = Watch(self.database, self.hub)
        self.runs = RunService(
            database=self.database, ledger=self.ledger, registry=self.registry, executor=self.executor, watch=self.watch,
            idle=self.idle, slots=self.slots, live=self.live, worker_id=self._worker_id, wake=self.worker.wake,
        )  # fmt: skip
        self.continuations = ContinuationService(
            database=self.database, registry=self.registry, runs=self.runs, executor=self.executor, slots=self.slots,
            worker_id=self._worker_id, wake=self.worker.wake,
        )  # fmt: skip
        self.webhooks = WebhookDeliveries(
            database=self.database, registry=self.registry, poll_s=settings.poll_s, allow_private=settings.webhook_allow_private,
            secret=settings.webhook_secret.get_secret_value() if settings.webhook_secret else None,
        )  # fmt: skip
        self.deliveries = DeliveryService(database=self.database, runs=self.runs, wake=self.webhooks.wake)
        self.queue = QueueService(database=self.database, registry=self.registry, runs=self.runs)
        self.sessions = SessionService(database=self.database, registry=self.registry, runs=self.runs)
        self.approvals = ApprovalService(self.database)
        self.recovery = Recovery(
            database=self.database, executor=self.executor, service=self.runs, lease=self.lease, claims=self.worker,
            live=self.live, settings=settings,
        )  # fmt: skip
        self.health = HealthService(
            database=self.database, ledger=self.ledger, slots=self.slots, lease=self.lease, hub=self.hub, live=self.live
        )  # fmt: skip
        self.retention = Retention(self.database, settings)
        self.draining = asyncio.Event()
        """Set when the process begins to shut down: streams are closed with a hint."""
        self._loops: list[asyncio.Task[None]] = []
        self._drain: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bring up tables, agents, lease and loops."""
        await self.database.check()
        if self.settings.auto_migrate:
            if await schema.upgrade(self.database):
                log.info("tables brought up to date", revision=schema.HEAD)
        else:
            await schema.check(self.database)
        for agent in self.registry:
            await agent.start()
        self.ledger.start()
        await self.lease.start()
        loops = {
            "tail": self.tail.run, "recovery": self.recovery.run, "cancels": self.cancels.run, "retention": self.retention.run,
            "live": self.live.run, "webhooks": self.webhooks.run,
        }  # fmt: skip
        if self.settings.worker:
            loops["worker"] = self.worker.run
        for name, loop in loops.items():
            self._loops.append(asyncio.create_task(_supervised(name, loop), name=name))
        # What was imported by now lives as long as the process: a full collection need not walk it (it costs 30 ms under load).
        gc.collect()
        gc.freeze()
        log.info(
            "started", agents=len(self.registry), database=self.database.url.get_backend_name(), worker_id=self.lease.worker_id,
            slots=self.slots.limit,
        )  # fmt: skip

    def begin_drain(self) -> None:
        """Take no more runs, close streams, let running runs go on for the grace time, then hand them back. Idempotent."""
        if self._drain is None:
            log.info("draining", running=len(self.executor.running), grace_s=self.settings.drain_s)
            self.slots.closed = True
            self.draining.set()
            self._drain = asyncio.create_task(self._drain_runs(), name="drain")

    async def close(self) -> None:
        """Drain and give everything back. Safe after a start that failed half way."""
        self.begin_drain()
        if self._drain:
            await self._drain
        await self.webhooks.close()
        await tasks.end(self._loops)
        await self.ledger.close()
        await self.lease.close()
        self.live.tell_due()
        await self.live.close()
        for agent in self.registry:
            await agent.close()
        await self.database.close()
        log.info("stopped")

    async def _drain_runs(self) -> None:
        """A slot is held by every run that is executed and by every acceptance that may still start one."""
        try:
            await self._until_idle(self.settings.drain_s)
            self.executor.hand_back_all()
            await self._until_idle(3 * self.settings.cancel_grace_s + HAND_BACK_S)
        finally:
            self.hub.close()

    async def _until_idle(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while self.slots.used and loop.time() < end:
            await asyncio.sleep(0.02)

    def _open_live(self) -> Live:
        if self.settings.redis_url:
            return RemoteLive("redis", RedisLink(self.settings.redis_url), self._hear)
        if isinstance(self.database, PostgresDatabase):
            return RemoteLive("postgresql", Notices(self.database.direct_url), self._hear)
        path = self.database.url.database
        return LocalLive(FileChanges(path) if path else None, self._hear)

    def _hear(self, news: News) -> None:
        self.tail.hear(news)
        if news.is_due or news.is_everything:
            self.worker.look()
        if news.is_everything:
            self.cancels.look()
        self.executor.cancel(news.cancels)

    def _idle_ended(self) -> None:
        self.worker.wake()
        self.webhooks.wake()

    def _worker_id(self) -> str | None:
        return self.lease.worker_id if self.lease.is_held else None

    def _agent_name(self, agent_id: str) -> str:
        agent = self.registry.find(agent_id)
        return agent.name if agent else agent_id

    def _run_ended(self, run: Run, has_waiting_turn: bool) -> None:
        self.worker.run_ended(run, has_waiting_turn)
        if run.webhooks:
            self.webhooks.wake()

    def _cancel_runs(self, run_ids: list[str]) -> None:
        self.executor.cancel(run_ids)

    def _drop_runs(self) -> None:
        self.executor.drop_all()


async def _supervised(name: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await loop()
        except Exception:
            log.exception("loop failed; it begins anew", loop=name)
            await asyncio.sleep(RESTART_S)

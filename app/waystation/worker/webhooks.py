"""The delivery of webhooks: claims what is due and calls the endpoints, in every process that has their secrets.

1. What is sent was stored in the commit of the end or pause. So it is sent at least once, and by whoever comes to it first.
2. A claim is a lease. A process that dies between the call and its record leaves a delivery that is due again when the lease is over.
3. Few calls go to one target at a time, and a target that has them is not claimed for: a slow one holds up no other.
"""

import asyncio
from collections import Counter

from waystation import tasks
from waystation.agents.registry import AgentRegistry
from waystation.clock import now
from waystation.db.engine import Database
from waystation.domain.webhook import (
    MOST_TRIES,
    Delivery,
    DeliveryStatus,
    delay_after,
    is_literally_private,
    key_of,
)
from waystation.errors import ConfigError, StoreUnavailableError
from waystation.logs import get_logger
from waystation.store import webhooks
from waystation.store.webhooks import Reach
from waystation.worker.calls import Answer, Caller

log = get_logger(__name__)

MOST_AT_ONCE = 32
MOST_OF_TARGET = 4
POLLS = 10
"""How many times rarer than other polls the one for deliveries is: only those of other processes come by it."""
CLOSE_S = 5.0

UNKNOWN_ENDPOINT = Answer(error="endpoint_unknown")


class WebhookDeliveries:
    """`secret` signs for endpoints of runs. Raises ConfigError for one that can't, and for endpoints of agents that are never called."""

    def __init__(self, *, database: Database, registry: AgentRegistry, secret: str | None, allow_private: bool, poll_s: float) -> None:
        self._database = database
        self._registry = registry
        self._run_key = key_of(secret) if secret is not None else None
        self._caller = Caller(allow_private=allow_private)
        self._poll_s = poll_s * POLLS
        self._wake = asyncio.Event()
        self._calls: dict[asyncio.Task[None], str] = {}
        self._closing = asyncio.Event()
        for agent in registry:
            if refused := [w.id for w in agent.webhooks if not allow_private and is_literally_private(w.url)]:
                raise ConfigError(
                    f"Webhook {refused[0]!r} of agent {agent.id!r} is at a private address: see WAYSTATION_WEBHOOK_ALLOW_PRIVATE."
                )

    def wake(self) -> None:
        """A delivery may be due."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            wait_s = self._poll_s
            try:
                wait_s = await self._look()
            except StoreUnavailableError:
                pass  # the ledger tells of it; the next turn asks again
            await tasks.wait(self._wake, wait_s)

    async def close(self) -> None:
        """Begin no more calls and let those under way end. One that does not is made again when its lease is over, by another process."""
        self._closing.set()
        self._wake.set()
        if self._calls:
            await asyncio.wait(self._calls, timeout=CLOSE_S)
        await tasks.end(self._calls)
        await self._caller.close()

    async def _look(self) -> float:
        """Begin the calls that are due and fit. How long to wait then, unless woken: a call that ends wakes."""
        free = MOST_AT_ONCE - len(self._calls)
        if not free or self._closing.is_set():
            return self._poll_s
        under_way = Counter(self._calls.values())
        busy = [target for target, count in under_way.items() if count >= MOST_OF_TARGET]
        reach = Reach(agents=self._registry.ids, signs_runs=self._run_key is not None, busy=busy)
        due_at = await self._database.read(webhooks.next_due_at, reach)
        if due_at is None:
            return self._poll_s
        if due_at > now():
            return min(due_at - now(), self._poll_s)
        room = MOST_OF_TARGET - max((count for count in under_way.values() if count < MOST_OF_TARGET), default=0)
        claimed = await self._database.write(webhooks.claim, reach, free, room, now())
        if self._closing.is_set():
            return self._poll_s  # what was claimed is due again when its lease is over
        for delivery in claimed:
            task = asyncio.create_task(self._deliver(delivery), name=f"webhook {delivery.id}")
            self._calls[task] = delivery.target
            task.add_done_callback(self._called)
        return 0.0 if claimed else self._poll_s

    def _called(self, task: "asyncio.Task[None]") -> None:
        del self._calls[task]
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("delivery failed unexpectedly; it is made again", error=type(error).__name__)

    async def _deliver(self, delivery: Delivery) -> None:
        answer = Answer(error="gave_up")
        if delivery.tries <= MOST_TRIES:  # more: the process of the last attempt died in it
            found = self._place_of(delivery)
            answer = await self._caller.call(*found, delivery.id, delivery.payload.encode()) if found else UNKNOWN_ENDPOINT
        status, next_attempt_at = DeliveryStatus.DELIVERED, None
        if answer.error is not None:
            delay = None if answer.is_gone else delay_after(delivery.tries, answer.retry_after_s)
            status = DeliveryStatus.FAILED if delay is None else DeliveryStatus.PENDING
            next_attempt_at = None if delay is None else now() + delay
        try:
            await self._database.write(
                webhooks.record, delivery, status, next_attempt_at=next_attempt_at, status_code=answer.status_code,
                error=answer.error, at=now(),
            )  # fmt: skip
        except StoreUnavailableError:
            log.warning("delivery not recorded; it is made again", delivery_id=delivery.id, run_id=delivery.run_id)
            return
        if answer.error is not None:
            log.warning(
                "webhook not taken", delivery_id=delivery.id, run_id=delivery.run_id, error=answer.error, attempt=delivery.tries,
                status=status.value,
            )  # fmt: skip

    def _place_of(self, delivery: Delivery) -> tuple[str, bytes] | None:
        """The URL and key of a delivery. None: the agent has no such endpoint, in this version of it."""
        if delivery.source == "run":
            return (delivery.url, self._run_key) if delivery.url and self._run_key else None
        agent = self._registry.find(delivery.agent_id)
        found = next((w for w in agent.webhooks if w.id == delivery.endpoint), None) if agent else None
        return (found.url, key_of(found.secret)) if found else None

"""The deliveries of a run's webhooks, as clients ask for them: list, read, replay."""

from collections.abc import Callable

from waystation.clock import now
from waystation.db.engine import Database
from waystation.domain.access import Principal
from waystation.domain.page import Page, PageRequest
from waystation.domain.webhook import Delivery
from waystation.errors import DeliveryNotFoundError
from waystation.runs.service import RunService
from waystation.store import webhooks


class DeliveryService:
    """`wake` has the deliverer of this process look. Each verb raises RunNotFoundError and AgentNotFoundError as reading the run does."""

    def __init__(self, *, database: Database, runs: RunService, wake: Callable[[], None]) -> None:
        self._database = database
        self._runs = runs
        self._wake = wake

    async def list_of_run(self, agent_id: str, run_id: str, principal: Principal, request: PageRequest) -> Page[Delivery]:
        """Oldest first."""
        await self._runs.find_ticket(agent_id, run_id, principal)
        return await self._database.read(webhooks.list_of_run, run_id, request)

    async def get(self, agent_id: str, run_id: str, delivery_id: str, principal: Principal) -> Delivery:
        """Raises DeliveryNotFoundError."""
        await self._runs.find_ticket(agent_id, run_id, principal)
        return _known(await self._database.read(webhooks.find, run_id, delivery_id), delivery_id)

    async def replay(self, agent_id: str, run_id: str, delivery_id: str, principal: Principal) -> Delivery:
        """Have it sent once more under its id, whatever became of it. Raises DeliveryNotFoundError."""
        await self._runs.find_ticket(agent_id, run_id, principal)
        delivery = _known(await self._database.write(webhooks.replay, run_id, delivery_id, now()), delivery_id)
        self._wake()
        return delivery


def _known(delivery: Delivery | None, delivery_id: str) -> Delivery:
    if delivery is None:
        raise DeliveryNotFoundError(delivery_id)
    return delivery

"""`/agents/{agent_id}/runs/{run_id}/webhooks`: what was told of a run, to whom, and telling it again."""

from fastapi import APIRouter, Response

from waystation.api.deps import ContainerDep, PageDep, PrincipalDep
from waystation.api.schemas.shared import errors, json_response, page_meta
from waystation.api.schemas.webhooks import DeliveriesBody, DeliveryBody, delivery_body
from waystation.api.streams import known_run
from waystation.domain.text import is_storable
from waystation.errors import DeliveryNotFoundError

router = APIRouter(tags=["webhooks"])

PATH = "/agents/{agent_id}/runs/{run_id}/webhooks"


def known_delivery(delivery_id: str) -> str:
    if not is_storable(delivery_id):
        raise DeliveryNotFoundError(delivery_id)
    return delivery_id


@router.get(PATH, operation_id="list_webhook_deliveries", response_model=DeliveriesBody, responses=errors(404, 422))
async def list_deliveries(agent_id: str, run_id: str, container: ContainerDep, principal: PrincipalDep, page: PageDep) -> Response:
    """The deliveries of a run, oldest first."""
    found = await container.deliveries.list_of_run(agent_id, known_run(run_id), principal, page)
    return json_response({"data": [delivery_body(item) for item in found.items], "meta": page_meta(found)})


@router.get(PATH + "/{delivery_id}", operation_id="get_webhook_delivery", response_model=DeliveryBody, responses=errors(404))
async def get_delivery(agent_id: str, run_id: str, delivery_id: str, container: ContainerDep, principal: PrincipalDep) -> Response:
    """One delivery: how often it was tried, what came of the last attempt, and when the next one is due."""
    found = await container.deliveries.get(agent_id, known_run(run_id), known_delivery(delivery_id), principal)
    return json_response(delivery_body(found))


@router.post(
    PATH + "/{delivery_id}/replay",
    operation_id="replay_webhook_delivery",
    status_code=202,
    response_model=DeliveryBody,
    responses=errors(404, 503),
)
async def replay_delivery(agent_id: str, run_id: str, delivery_id: str, container: ContainerDep, principal: PrincipalDep) -> Response:
    """Send a delivery once more under the same id, whatever became of it, and retry it as if it were new."""
    found = await container.deliveries.replay(agent_id, known_run(run_id), known_delivery(delivery_id), principal)
    return json_response(delivery_body(found), status_code=202)

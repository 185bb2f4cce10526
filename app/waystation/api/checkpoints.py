"""`/agents/{agent_id}/runs/{run_id}/checkpoints`: where a run may be continued from."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from waystation.api.deps import ContainerDep, PrincipalDep
from waystation.api.schemas.runs import checkpoint_body, snapshot_body
from waystation.api.schemas.shared import errors, json_response
from waystation.api.streams import known_run
from waystation.domain.checkpoint import checkpoints
from waystation.domain.message import safe_cut
from waystation.errors import InvalidCheckpointError

router = APIRouter(tags=["checkpoints"])


@router.get(
    "/agents/{agent_id}/runs/{run_id}/checkpoints",
    operation_id="list_checkpoints",
    response_model=dict[str, Any],
    responses=errors(404),
)
async def list_checkpoints(
    agent_id: str, run_id: str, container: ContainerDep, principal: PrincipalDep, session_id: Annotated[str | None, Query()] = None
) -> Response:
    """The message boundaries of a run that the model was, or will be, asked at."""
    detail = await container.runs.get(agent_id, known_run(run_id), principal, session_id=session_id or None)
    points = [checkpoint_body(detail.run, number, point) for number, point in enumerate(checkpoints(detail.messages), 1)]
    return json_response({"run_id": detail.run.id, "session_id": detail.run.session_id, "checkpoints": points})


@router.get(
    "/agents/{agent_id}/runs/{run_id}/checkpoints/{message_index}",
    operation_id="get_checkpoint",
    response_model=dict[str, Any],
    responses=errors(400, 404, 422),
)
async def get_checkpoint(
    agent_id: str,
    run_id: str,
    message_index: int,
    container: ContainerDep,
    principal: PrincipalDep,
    session_id: Annotated[str | None, Query()] = None,
) -> Response:
    """The run as it was after some of its messages; never between a tool call and its result."""
    detail = await container.runs.get(agent_id, known_run(run_id), principal, session_id=session_id or None)
    if not 0 <= message_index <= len(detail.messages):
        raise InvalidCheckpointError(f"The run has {len(detail.messages)} messages; there is none at index {message_index}.")
    messages = detail.messages[: safe_cut(detail.messages, message_index)]
    return json_response(snapshot_body(detail, container.registry.find(agent_id), message_index, messages))

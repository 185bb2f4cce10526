"""`/approvals`: tool calls that wait for an admin."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from waystation.api.bodies import read_model
from waystation.api.deps import ContainerDep, PageDep
from waystation.api.schemas.shared import errors, json_response, page_meta
from waystation.api.sessions import json_body
from waystation.domain.requirement import Requirement
from waystation.domain.text import clean, is_storable
from waystation.errors import ApprovalNotFoundError
from waystation.sessions.approvals import Approval

router = APIRouter(tags=["approvals"])

FILTERS = ("status", "approval_type", "pause_type", "agent_id", "user_id", "run_id")


class ResolveApproval(BaseModel):
    model_config = ConfigDict(extra="ignore")

    status: Literal["approved", "rejected"]
    resolved_by: str | None = Field(default=None, max_length=255)
    resolution_data: dict[str, Any] | None = None


class ApprovalBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    run_id: str
    session_id: str
    status: str
    tool_name: str


def approval_body(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "run_id": approval.run_id,
        "session_id": approval.session_id,
        "status": approval.status,
        "source_type": "agent",
        "approval_type": approval.approval_type,
        "pause_type": approval.pause_type,
        "tool_name": approval.tool_name,
        "tool_args": approval.tool_args,
        "expires_at": None,
        "agent_id": approval.agent_id,
        "team_id": None,
        "workflow_id": None,
        "user_id": approval.user_id,
        "schedule_id": None,
        "schedule_run_id": None,
        "source_name": approval.agent_name,
        "requirements": [Requirement.model_validate(approval.requirement).wire()],
        "context": {"tool_names": [approval.tool_name], "source_name": approval.agent_name},
        "resolution_data": approval.resolution_data,
        "resolved_by": approval.resolved_by,
        "resolved_at": int(approval.resolved_at) if approval.resolved_at else None,
        "created_at": int(approval.created_at),
        "updated_at": int(approval.updated_at),
        "run_status": approval.run_status,
    }


def known_approval(approval_id: str) -> str:
    if not is_storable(approval_id) or len(approval_id) > 255:
        raise ApprovalNotFoundError(approval_id[:255])
    return approval_id


@router.get("/approvals", operation_id="list_approvals", response_model=dict[str, Any], responses=errors(422))
async def list_approvals(
    container: ContainerDep,
    page: PageDep,
    status: Annotated[Literal["pending", "approved", "rejected", "expired", "cancelled"] | None, Query()] = None,
    approval_type: Annotated[str | None, Query()] = None,
    pause_type: Annotated[str | None, Query()] = None,
    agent_id: Annotated[str | None, Query()] = None,
    user_id: Annotated[str | None, Query()] = None,
    run_id: Annotated[str | None, Query()] = None,
) -> Response:
    """The approvals, newest first."""
    given = (status, approval_type, pause_type, agent_id, user_id, run_id)
    filters = {name: clean(value) if value else None for name, value in zip(FILTERS, given, strict=True)}
    found = await container.approvals.list_approvals(filters, page)
    return json_response({"data": [approval_body(approval) for approval in found.items], "meta": page_meta(found)})


@router.get("/approvals/count", operation_id="count_approvals", response_model=dict[str, int])
async def count_approvals(container: ContainerDep, user_id: Annotated[str | None, Query()] = None) -> Response:
    """How many approvals are pending."""
    return json_response({"count": await container.approvals.count({"status": "pending", "user_id": clean(user_id) if user_id else None})})


@router.get("/approvals/{approval_id}/status", operation_id="get_approval_status", response_model=dict[str, Any], responses=errors(404))
async def get_approval_status(approval_id: str, container: ContainerDep) -> Response:
    """Whether an approval was decided, and by whom."""
    approval = await container.approvals.get(known_approval(approval_id))
    resolved_at = int(approval.resolved_at) if approval.resolved_at else None
    return json_response({
        "approval_id": approval.id, "status": approval.status, "run_id": approval.run_id, "resolved_at": resolved_at,
        "resolved_by": approval.resolved_by,
    })  # fmt: skip


@router.get("/approvals/{approval_id}", operation_id="get_approval", response_model=ApprovalBody, responses=errors(404))
async def get_approval(approval_id: str, container: ContainerDep) -> Response:
    """One approval."""
    return json_response(approval_body(await container.approvals.get(known_approval(approval_id))))


@router.post(
    "/approvals/{approval_id}/resolve",
    operation_id="resolve_approval",
    response_model=ApprovalBody,
    responses=errors(404, 409, 422),
    openapi_extra=json_body(ResolveApproval),
)
async def resolve_approval(approval_id: str, request: Request, container: ContainerDep) -> Response:
    """Decide, once. The run goes on when it is continued."""
    body = await read_model(request, container.settings, ResolveApproval)
    approval = await container.approvals.resolve(
        known_approval(approval_id), status=body.status, resolved_by=body.resolved_by, data=body.resolution_data
    )
    return json_response(approval_body(approval))


@router.delete("/approvals/{approval_id}", operation_id="delete_approval", status_code=204, responses=errors(404))
async def delete_approval(approval_id: str, container: ContainerDep) -> Response:
    """Forget an approval. A run that waits for it can then only be cancelled."""
    await container.approvals.delete(known_approval(approval_id))
    return Response(status_code=204)

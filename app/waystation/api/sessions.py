"""`/sessions`, and forking and compacting them."""

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from waystation.api.bodies import read_model
from waystation.api.deps import MOST_PAGES, ContainerDep, PageDep, PrincipalDep, UserDep
from waystation.api.schemas.runs import RunBody, run_schema
from waystation.api.schemas.sessions import (
    CreateSession,
    DeleteSessions,
    ForkBody,
    PatchSession,
    RenameSession,
    SessionBody,
    session_detail,
    session_item,
)
from waystation.api.schemas.shared import errors, json_response, page_meta, without_none
from waystation.api.streams import known_run
from waystation.container import Container
from waystation.domain.page import PageRequest
from waystation.domain.session import Session, SessionFilter, SessionPatch
from waystation.domain.text import clean, is_identifier
from waystation.errors import SessionNotFoundError

router = APIRouter(tags=["sessions"])

SessionType = Annotated[Literal["agent", "team", "workflow"] | None, Query(alias="type")]
FIELDS = {"session_name": "name", "session_state": "state", "metadata": "metadata", "summary": "summary"}


def json_body(model: type[Any]) -> dict[str, Any]:
    """The JSON body of a route, for OpenAPI."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


def known_session(session_id: str) -> str:
    if not is_identifier(session_id):
        raise SessionNotFoundError(session_id[:255])
    return session_id


async def _detail(container: Container, session: Session) -> Response:
    agent = container.registry.find(session.agent_id or "")
    return json_response(session_detail(session, agent, await container.sessions.chat_history(session.id)))


@router.get("/sessions", operation_id="list_sessions", response_model=dict[str, Any], responses=errors(422))
async def list_sessions(
    container: ContainerDep,
    principal: PrincipalDep,
    user_id: UserDep,
    page: PageDep,
    type: SessionType = None,
    component_id: Annotated[str | None, Query()] = None,
    session_name: Annotated[str | None, Query()] = None,
    search: Annotated[str | None, Query()] = None,
    sort_by: Annotated[Literal["created_at", "updated_at", "session_name"], Query()] = "created_at",
    sort_order: Annotated[Literal["asc", "desc"], Query()] = "desc",
) -> Response:
    """The sessions, newest first unless asked otherwise."""
    began = time.perf_counter()
    wanted = SessionFilter(
        user_id=principal.user_for(user_id),
        agent_id=clean(component_id) if component_id else None,
        name=clean(session_name) if session_name else None,
        search=clean(search) if search else None,
        sort_by=sort_by,
        descending=sort_order == "desc",
    )
    if type in ("team", "workflow"):
        wanted = SessionFilter(agent_id="")
    found = await container.sessions.list_sessions(wanted, page)
    data = [without_none(session_item(session, container.registry.find(session.agent_id or ""))) for session in found.items]
    meta = page_meta(found) | {"search_time_ms": round((time.perf_counter() - began) * 1000, 2)}
    return json_response({"data": data, "meta": meta})


@router.post(
    "/sessions",
    operation_id="create_session",
    status_code=201,
    response_model=SessionBody,
    responses=errors(404, 409, 422),
    openapi_extra=json_body(CreateSession),
)
async def create_session(request: Request, container: ContainerDep, principal: PrincipalDep, type: SessionType = None) -> Response:
    """Make a session before its first run."""
    body = await read_model(request, container.settings, CreateSession)
    session = await container.sessions.create(
        principal, session_id=body.session_id, agent_id=body.agent_id or None, user_id=body.user_id, name=body.session_name,
        state=body.session_state, metadata=body.metadata,
    )  # fmt: skip
    agent = container.registry.find(session.agent_id or "")
    return json_response(session_detail(session, agent, []), status_code=201)


@router.delete(
    "/sessions",
    operation_id="delete_sessions",
    status_code=204,
    responses=errors(409, 422),
    openapi_extra=json_body(DeleteSessions),
)
async def delete_sessions(
    request: Request,
    container: ContainerDep,
    principal: PrincipalDep,
    user_id: UserDep,
    force: Annotated[bool, Query()] = False,
) -> Response:
    """Delete sessions; ids that do not exist are no error."""
    body = await read_model(request, container.settings, DeleteSessions)
    for session_id in body.session_ids:
        if is_identifier(session_id):
            await container.sessions.delete(session_id, principal, user_id=user_id, force=force)
    return Response(status_code=204)


@router.get("/sessions/{session_id}", operation_id="get_session", response_model=SessionBody, responses=errors(404))
async def get_session(
    session_id: str, container: ContainerDep, principal: PrincipalDep, user_id: UserDep, type: SessionType = None
) -> Response:
    """A session with its chat history."""
    session = await container.sessions.get(known_session(session_id), principal, user_id)
    return await _detail(container, session)


@router.patch(
    "/sessions/{session_id}",
    operation_id="patch_session",
    response_model=SessionBody,
    responses=errors(404, 422),
    openapi_extra=json_body(PatchSession),
)
async def patch_session(
    session_id: str, request: Request, container: ContainerDep, principal: PrincipalDep, user_id: UserDep, type: SessionType = None
) -> Response:
    """Change what the body names; everything else stays, also while a run goes on."""
    body = await read_model(request, container.settings, PatchSession)
    change = SessionPatch(
        given=frozenset(FIELDS[name] for name in body.model_fields_set),
        name=body.session_name,
        state=body.session_state,
        metadata=body.metadata,
        summary=body.summary,
    )
    return await _detail(container, await container.sessions.patch(known_session(session_id), change, principal, user_id))


@router.post(
    "/sessions/{session_id}/rename",
    operation_id="rename_session",
    response_model=SessionBody,
    responses=errors(404, 422),
    openapi_extra=json_body(RenameSession),
)
async def rename_session(
    session_id: str, request: Request, container: ContainerDep, principal: PrincipalDep, user_id: UserDep, type: SessionType = None
) -> Response:
    """Name a session."""
    body = await read_model(request, container.settings, RenameSession)
    change = SessionPatch(given=frozenset({"name"}), name=body.session_name)
    return await _detail(container, await container.sessions.patch(known_session(session_id), change, principal, user_id))


@router.delete("/sessions/{session_id}", operation_id="delete_session", status_code=204, responses=errors(409))
async def delete_session(
    session_id: str,
    container: ContainerDep,
    principal: PrincipalDep,
    user_id: UserDep,
    force: Annotated[bool, Query(description="Cancel the turn in flight first.")] = False,
) -> Response:
    """Delete a session with everything of it; an id that does not exist is no error."""
    if is_identifier(session_id):
        await container.sessions.delete(session_id, principal, user_id=user_id, force=force)
    return Response(status_code=204)


@router.get("/sessions/{session_id}/runs", operation_id="list_session_runs", response_model=list[RunBody], responses=errors(404, 422))
async def list_session_runs(
    session_id: str,
    container: ContainerDep,
    principal: PrincipalDep,
    user_id: UserDep,
    type: SessionType = None,
    page: Annotated[int, Query(ge=0, le=MOST_PAGES)] = 1,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
    created_after: Annotated[float | None, Query()] = None,
    created_before: Annotated[float | None, Query()] = None,
) -> Response:
    """The runs of a session in the order of their acceptance."""
    found = await container.sessions.list_runs(
        known_session(session_id), principal, PageRequest(page=max(page, 1), limit=limit), user_id=user_id,
        created_after=created_after, created_before=created_before,
    )  # fmt: skip
    registry = container.registry
    return json_response([without_none(run_schema(detail, registry.find(detail.run.agent_id))) for detail in found.items])


@router.get("/sessions/{session_id}/runs/{run_id}", operation_id="get_session_run", response_model=RunBody, responses=errors(404))
async def get_session_run(
    session_id: str, run_id: str, container: ContainerDep, principal: PrincipalDep, user_id: UserDep, type: SessionType = None
) -> Response:
    """One run of a session."""
    detail = await container.sessions.get_run(known_session(session_id), known_run(run_id), principal, user_id)
    return json_response(run_schema(detail, container.registry.find(detail.run.agent_id)))


@router.post(
    "/agents/{agent_id}/sessions/{session_id}/fork",
    operation_id="fork_session",
    response_model=ForkBody,
    responses=errors(404, 501),
)
async def fork_session(agent_id: str, session_id: str, container: ContainerDep, principal: PrincipalDep, user_id: UserDep) -> Response:
    """A new session with the same history."""
    copy = await container.sessions.fork(agent_id, known_session(session_id), principal, user_id)
    return json_response({"session_id": copy.id, "forked_from_session_id": copy.forked_from_session_id})


@router.post(
    "/agents/{agent_id}/sessions/{session_id}/compact",
    operation_id="compact_session",
    response_model=dict[str, Any],
    responses=errors(404, 501),
)
async def compact_session(agent_id: str, session_id: str, container: ContainerDep, principal: PrincipalDep, user_id: UserDep) -> Response:
    """Compact a session: 501 for every agent of this version."""
    await container.sessions.compact(agent_id, known_session(session_id), principal, user_id)
    return Response(status_code=204)

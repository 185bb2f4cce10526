"""`/agents/{agent_id}/runs`: submit, list, read."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from waystation.api.bodies import invalid, read_fields, validated
from waystation.api.deps import MOST_PAGES, ContainerDep, PrincipalDep, UserDep, container_of, pings_of, principal_of
from waystation.api.forms import RunForm, read_attachments, run_request
from waystation.api.routing import DirectRoute
from waystation.api.schemas.runs import AcceptedBody, RunBody, run_body, run_schema
from waystation.api.schemas.shared import errors, json_response
from waystation.api.sse import EventFilter
from waystation.api.streams import RunAnswers, known_run, run_headers
from waystation.domain.lifecycle import RunStatus
from waystation.domain.media import Attachment
from waystation.domain.page import PageRequest
from waystation.domain.text import is_storable

direct = APIRouter(tags=["runs"], route_class=DirectRoute)
router = APIRouter(tags=["runs"])

KEY = re.compile(r"[\x21-\x7e]{1,512}\Z")
STREAM: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}


def form_body(model: type[Any], *, files: bool = False) -> dict[str, Any]:
    """The request body of a route that takes a form or JSON, for OpenAPI."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    schema["properties"] = {name: _inlined(part, definitions) for name, part in schema["properties"].items()}
    form = {**schema, "properties": dict(schema["properties"])}
    if files:
        form["properties"]["files"] = {"type": "array", "items": {"type": "string", "format": "binary"}}
    kinds = {"multipart/form-data": form, "application/x-www-form-urlencoded": schema, "application/json": schema}
    return {"requestBody": {"required": True, "content": {kind: {"schema": part} for kind, part in kinds.items()}}}


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, dict):
        if "$ref" in part:
            return definitions[part["$ref"].rsplit("/", 1)[-1]]
        return {key: _inlined(value, definitions) for key, value in part.items()}
    if isinstance(part, list):
        return [_inlined(item, definitions) for item in part]
    return part


class Submission:
    """A parsed submission: its fields, its files and its Idempotency-Key."""

    __slots__ = ("attachments", "form", "key")

    def __init__(self, form: RunForm, attachments: tuple[Attachment, ...], key: str | None) -> None:
        self.form = form
        self.attachments = attachments
        self.key = key


async def read_submission(request: Request) -> Submission:
    settings = container_of(request).settings
    fields, uploads = await read_fields(request, settings)
    form = validated(RunForm, fields, settings)
    key = request.headers.get("idempotency-key")
    if key is not None and not KEY.match(key):
        raise invalid("Idempotency-Key", "use 1 to 512 visible ASCII characters")
    return Submission(form, await read_attachments(uploads, form.files_metadata) if uploads else (), key)


@direct.post(
    "/agents/{agent_id}/runs",
    operation_id="create_run",
    response_model=RunBody,
    responses={
        200: {"description": "The finished run, or with stream=true its events.", "content": STREAM},
        202: {"model": AcceptedBody, "description": "Accepted: it will be executed whatever becomes of this connection."},
        **errors(400, 404, 409, 413, 415, 422, 429, 501, 503),
    },
    openapi_extra=form_body(RunForm, files=True),
)
async def create_run(agent_id: str, request: Request) -> Response:
    """Submit a run."""
    container, principal = container_of(request), principal_of(request)
    submission = await read_submission(request)
    form = submission.form
    asked = run_request(agent_id, form, submission.attachments, submission.key, container.settings)
    ticket = await container.runs.submit(asked, principal)
    if form.background and not form.stream:
        body = {"run_id": ticket.run_id, "session_id": ticket.session_id, "status": RunStatus.PENDING.value}
        return json_response(body, status_code=202, headers=run_headers(ticket, request))
    answers = RunAnswers(container, pings_of(request), request, principal)
    on_disconnect = asked.on_disconnect.CONTINUE if form.background or ticket.found else asked.on_disconnect
    if form.stream:
        wanted = EventFilter() if form.stream_events else EventFilter.content_only()
        return answers.stream(ticket, wanted, on_disconnect)
    return await answers.wait(ticket, on_disconnect)


@router.get("/agents/{agent_id}/runs", operation_id="list_runs", response_model=list[RunBody], responses=errors(404, 422))
async def list_runs(
    agent_id: str,
    container: ContainerDep,
    principal: PrincipalDep,
    user_id: UserDep,
    page: Annotated[int, Query(ge=0, le=MOST_PAGES)] = 1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    session_id: Annotated[str | None, Query()] = None,
    status: Annotated[RunStatus | None, Query()] = None,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "asc",
) -> Response:
    """The runs of an agent in the order of their acceptance."""
    if session_id is not None and not is_storable(session_id):
        return json_response([])
    found = await container.runs.list_of_agent(
        agent_id, principal, PageRequest(page=max(page, 1), limit=limit), session_id=session_id or None, user_id=user_id,
        status=status, descending=order == "desc",
    )  # fmt: skip
    agent = container.registry.find(agent_id)
    return json_response([run_schema(detail, agent) for detail in found.items])


@router.get("/agents/{agent_id}/runs/{run_id}", operation_id="get_run", response_model=RunBody, responses=errors(404))
async def get_run(
    agent_id: str,
    run_id: str,
    container: ContainerDep,
    principal: PrincipalDep,
    session_id: Annotated[str | None, Query()] = None,
) -> Response:
    """A run, at any time of its life."""
    detail = await container.runs.get(agent_id, known_run(run_id), principal, session_id=session_id or None)
    return json_response(run_body(detail, container.registry.find(agent_id)))

"""`/agents/{agent_id}/runs/{run_id}/…`: watch, resume, cancel, continue."""

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from waystation.api.bodies import read_fields, validated
from waystation.api.deps import ContainerDep, PingsDep, PrincipalDep
from waystation.api.forms import ContinueForm, ResumeForm, continue_request
from waystation.api.runs import STREAM, form_body
from waystation.api.schemas.runs import AcceptedBody, CancelBody, EventsBody, RunBody
from waystation.api.schemas.shared import errors, json_response
from waystation.api.sse import EventFilter
from waystation.api.streams import MOST_INDEX, RunAnswers, known_run, run_headers
from waystation.container import Container
from waystation.domain.event import Gap
from waystation.domain.lifecycle import RunStatus
from waystation.errors import RunNotFoundError
from waystation.runs.request import Ticket

router = APIRouter(tags=["runs"])


POLL_BYTES = 1024 * 1024
"""About how much a long poll answers at once; its `next` says where to go on."""


def cursor_of(request: Request, explicit: int | None) -> int:
    """The last index that a client has: what it says explicitly wins over Last-Event-ID; a malformed header is ignored."""
    if explicit is not None:
        return max(-1, min(explicit, MOST_INDEX))
    header = request.headers.get("last-event-id", "").strip()
    return min(int(header), MOST_INDEX) if header.isascii() and header.isdigit() and len(header) < 20 else -1


def check_session(ticket: Ticket, session_id: str | None) -> None:
    """A session that the caller names must be the run's own."""
    if session_id not in (None, ticket.session_id):
        raise RunNotFoundError(ticket.run_id)


@router.get(
    "/agents/{agent_id}/runs/{run_id}/events",
    operation_id="watch_run",
    response_model=EventsBody,
    responses={
        200: {"description": "The events as a stream; as JSON with `Accept: application/json` or `wait`.", "content": STREAM},
        204: {"description": "The run has ended and the client has seen all of it."},
        **errors(404, 422),
    },
)
async def watch_run(
    agent_id: str,
    run_id: str,
    request: Request,
    container: ContainerDep,
    pings: PingsDep,
    principal: PrincipalDep,
    after: Annotated[int | None, Query(ge=-1)] = None,
    wait: Annotated[float | None, Query(ge=0, le=60)] = None,
    events: Annotated[str | None, Query(description="Names, or beginnings followed by *, separated by commas.")] = None,
) -> Response:
    """The event log of a run from an index on, for EventSource or as a long poll."""
    ticket = await container.runs.find_ticket(agent_id, known_run(run_id), principal)
    cursor, wanted = cursor_of(request, after), EventFilter(events)
    if wait is not None or _wants_json(request):
        return json_response(await poll(container, ticket.run_id, cursor, wait or 0.0, wanted))
    state = await container.watch.state(ticket.run_id)
    if state.status is not RunStatus.PAUSED and state.is_over_at(cursor):
        return Response(status_code=204, headers=run_headers(ticket, request))
    return RunAnswers(container, pings, request, principal).events(ticket, cursor, wanted)


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


async def poll(container: Container, run_id: str, after: int, wait_s: float, wanted: EventFilter) -> dict[str, Any]:
    """The wanted events behind an index; if there are none yet, the next ones within a time.

    The status is that at the event `next`: a run that has ended meanwhile is told as RUNNING until its last event was, so that a client
    that stops at an end has all."""
    found: list[Any] = []
    cursor, size = after, 0
    segments = container.watch.segments(run_id, after, waits_when_paused=True)
    try:
        async with asyncio.timeout(wait_s or None):
            state = await container.watch.state(run_id)
            while size < POLL_BYTES and (not found or cursor < state.next_index - 1):
                if wait_s == 0 and cursor >= state.next_index - 1:
                    break
                item = await anext(segments)
                cursor = item.last_index
                size += 0 if isinstance(item, Gap) else len(item.lines)
                if not isinstance(item, Gap):
                    found += [json.loads(line) for _, name, line in item.each() if wanted.takes(name)]
    except (TimeoutError, StopAsyncIteration):
        pass
    finally:
        await segments.aclose()
    state = await container.watch.state(run_id)
    status = state.status if cursor >= state.next_index - 1 else RunStatus.RUNNING
    return {"events": found, "status": status.value, "next": cursor}


async def read_resume(request: Request, container: ContainerDep) -> ResumeForm:
    fields, _ = await read_fields(request, container.settings)
    return validated(ResumeForm, fields, container.settings)


@router.post(
    "/agents/{agent_id}/runs/{run_id}/resume",
    operation_id="resume_run",
    response_class=Response,
    responses={200: {"description": "The events behind an index.", "content": STREAM}, **errors(404, 422)},
    openapi_extra=form_body(ResumeForm),
)
async def resume_run(
    agent_id: str,
    run_id: str,
    request: Request,
    form: Annotated[ResumeForm, Depends(read_resume)],
    container: ContainerDep,
    pings: PingsDep,
    principal: PrincipalDep,
) -> Response:
    """The event log of a run from an index on, with the notices of AgentOS."""
    ticket = await container.runs.find_ticket(agent_id, known_run(run_id), principal)
    check_session(ticket, form.session_id)
    state = await container.watch.state(ticket.run_id)
    return RunAnswers(container, pings, request, principal).resume(ticket, state, cursor_of(request, form.last_event_index))


@router.post(
    "/agents/{agent_id}/runs/{run_id}/cancel",
    operation_id="cancel_run",
    response_model=CancelBody,
    responses=errors(404, 422, 503),
)
async def cancel_run(
    agent_id: str,
    run_id: str,
    container: ContainerDep,
    principal: PrincipalDep,
    wait: Annotated[float, Query(ge=0, le=30)] = 0.0,
) -> Response:
    """Stop a run. The status in the answer is the state now."""
    run, stopping = await container.runs.cancel(agent_id, known_run(run_id), principal, wait)
    body: dict[str, Any] = {"run_id": run.id, "session_id": run.session_id, "status": run.shown_status.value}
    return json_response(body | ({"cancel_requested": True} if stopping else {}))


async def read_continue(request: Request, container: ContainerDep) -> ContinueForm:
    fields, _ = await read_fields(request, container.settings)
    return validated(ContinueForm, fields, container.settings)


@router.post(
    "/agents/{agent_id}/runs/{run_id}/continue",
    operation_id="continue_run",
    response_model=RunBody,
    responses={
        200: {"description": "The run afterwards, or with stream=true its events.", "content": STREAM},
        202: {"model": AcceptedBody},
        **errors(400, 404, 409, 422, 501, 503),
    },
    openapi_extra=form_body(ContinueForm),
)
async def continue_run(
    agent_id: str,
    run_id: str,
    request: Request,
    form: Annotated[ContinueForm, Depends(read_continue)],
    container: ContainerDep,
    pings: PingsDep,
    principal: PrincipalDep,
) -> Response:
    """Go on with a paused run, or with a finished one as a sibling."""
    asked = continue_request(agent_id, known_run(run_id), form)
    check_session(await container.runs.find_ticket(agent_id, run_id, principal), form.session_id)
    ticket = await container.continuations.go_on(asked, principal)
    if form.background and not form.stream:
        body = {"run_id": ticket.run_id, "session_id": ticket.session_id, "status": RunStatus.PENDING.value}
        return json_response(body, status_code=202, headers=run_headers(ticket, request))
    answers = RunAnswers(container, pings, request, principal)
    if form.stream:
        return answers.stream(ticket, EventFilter() if form.stream_events else EventFilter.content_only())
    return await answers.wait(ticket)

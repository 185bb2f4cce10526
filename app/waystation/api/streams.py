"""How the answers of runs are made: a stream of the log, a wait for its end, a resume with its notices."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response

from waystation.api.schemas.runs import run_body
from waystation.api.schemas.shared import json_response
from waystation.api.sse import EventFilter, EventStream, Pings, frames, notice
from waystation.container import Container
from waystation.domain.access import Principal
from waystation.domain.event import Gap, Segment
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import OnDisconnect, RunDetail
from waystation.errors import RunNotFoundError, UnavailableError
from waystation.runs.request import Ticket
from waystation.runs.watch import State

MOST_INDEX = 2**62


def run_headers(ticket: Ticket, request: Request) -> dict[str, str]:
    """Where the run is: a client whose stream is cut before the first event can still resume and cancel. Ids with characters
    beyond ASCII are percent-encoded in X-Session-Id."""
    return {
        "Location": f"{request.scope.get('root_path', '')}/agents/{_header_text(ticket.agent_id)}/runs/{ticket.run_id}",
        "X-Run-Id": ticket.run_id,
        "X-Session-Id": _header_text(ticket.session_id),
    }


def _header_text(text: str) -> str:

    return quote(text, safe=":@~+=,._-")


class RunAnswers:
    """Makes the answers to one request about a run."""

    def __init__(self, container: Container, pings: Pings, request: Request, principal: Principal) -> None:
        self._container = container
        self._pings = pings
        self._request = request
        self._principal = principal

    # ---- a stream ----------------------------------------------------------------------------------------------------------
    def stream(self, ticket: Ticket, wanted: EventFilter, on_disconnect: OnDisconnect = OnDisconnect.CONTINUE) -> Response:
        """The log of the run from `ticket.after` on."""
        return self._stream(ticket, self._frames(ticket.run_id, ticket.after, wanted), on_disconnect)

    def events(self, ticket: Ticket, after: int, wanted: EventFilter) -> Response:
        """The same for EventSource: a pause that was seen before is waited out."""
        return self._stream(ticket, self._frames(ticket.run_id, after, wanted, waits=True), OnDisconnect.CONTINUE)

    def resume(self, ticket: Ticket, state: State, after: int) -> Response:
        """The log with the notices of AgentOS around it."""
        return self._stream(ticket, self._resumed(ticket.run_id, state, after), OnDisconnect.CONTINUE)

    def _stream(self, ticket: Ticket, chunks: AsyncGenerator[bytes], on_disconnect: OnDisconnect) -> Response:
        async def leave() -> None:
            await self._container.runs.cancel(ticket.agent_id, ticket.run_id, self._principal, 0)

        on_leave = leave if on_disconnect is OnDisconnect.CANCEL else None
        return EventStream(chunks, self._pings, headers=run_headers(ticket, self._request), on_leave=on_leave)

    async def _frames(self, run_id: str, after: int, wanted: EventFilter, *, waits: bool = False) -> AsyncGenerator[bytes]:
        async with aclosing(self._container.watch.segments(run_id, after, waits_when_paused=waits)) as items:
            async for item in items:
                yield _gap(item) if isinstance(item, Gap) else frames(item, wanted)

    async def _resumed(self, run_id: str, state: State, after: int) -> AsyncGenerator[bytes]:
        end = state.next_index - 1
        missed = max(end - after, 0)
        if state.status not in (RunStatus.PENDING, RunStatus.RUNNING):
            yield notice(
                "replay", run_id=run_id, status=state.status.value, total_events=missed, total_buffered=state.next_index,
                last_event_index_requested=after, message=f"The run is {state.status.value}; {missed} events follow.",
            )  # fmt: skip
        elif missed:
            yield notice(
                "catch_up", run_id=run_id, status=state.status.value.lower(), missed_events=missed,
                current_event_count=state.next_index, message=f"{missed} missed events follow, then live ones.",
            )  # fmt: skip
        else:
            yield _subscribed(run_id, state)
        everything = EventFilter()
        behind = bool(missed) and state.status in (RunStatus.PENDING, RunStatus.RUNNING)
        async with aclosing(self._container.watch.segments(run_id, after)) as items:
            async for item in items:
                if isinstance(item, Gap):
                    yield _gap(item)
                    continue
                if behind and item.last_index >= end:
                    behind = False
                    upto, rest = _split(item, end)
                    yield frames(upto, everything) + _subscribed(run_id, state)
                    if rest is not None:
                        yield frames(rest, everything)
                    continue
                yield frames(item, everything)

    # ---- one JSON object -----------------------------------------------------------------------------------------------------
    async def wait(self, ticket: Ticket, on_disconnect: OnDisconnect = OnDisconnect.CONTINUE) -> Response:
        """The run, once its leg has ended. 503 with the run's headers if the server shuts down before."""
        detail = await self._settled(ticket, on_disconnect)
        agent = self._container.registry.find(ticket.agent_id)
        return json_response(run_body(detail, agent), headers=run_headers(ticket, self._request))

    async def _settled(self, ticket: Ticket, on_disconnect: OnDisconnect) -> RunDetail:
        """The run when its leg has ended. A client that leaves before may have its run cancelled."""
        try:
            if on_disconnect is OnDisconnect.CONTINUE:
                return await self._container.watch.settled(ticket.run_id)
            return await self._settled_or_left(ticket)
        except UnavailableError as refusal:
            refusal.headers |= run_headers(ticket, self._request)
            raise

    async def _settled_or_left(self, ticket: Ticket) -> RunDetail:
        container = self._container
        ended = asyncio.ensure_future(container.watch.settled(ticket.run_id))
        left = asyncio.ensure_future(self._left())
        waits: set[asyncio.Future[Any]] = {ended, left}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await container.runs.cancel(ticket.agent_id, ticket.run_id, self._principal, 0)
            return await ended
        finally:
            for wait in waits:
                wait.cancel()

    async def _left(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


def _split(segment: Segment, end: int) -> tuple[Segment, Segment | None]:
    """A segment as the part up to an index and the part behind it."""
    if segment.last_index <= end:
        return segment, None
    lines = segment.lines.split(b"\n")
    count = end + 1 - segment.first_index
    return (
        Segment(segment.first_index, end, b"\n".join(lines[:count]), False),
        Segment(end + 1, segment.last_index, b"\n".join(lines[count:]), segment.ends_leg),
    )


def _subscribed(run_id: str, state: State) -> bytes:
    return notice(
        "subscribed", run_id=run_id, status=state.status.value.lower(), current_event_count=state.next_index,
        message="Live events follow.",
    )  # fmt: skip


def _gap(gap: Gap) -> bytes:
    return notice("gap", **{"from": gap.first_index, "to": gap.last_index, "message": "These events are not kept any more."})


def known_run(run_id: str) -> str:
    """A run id from a path, as far as it may be asked of the store."""
    if len(run_id) > 64 or not run_id.isascii() or not run_id.isprintable():
        raise RunNotFoundError(run_id[:64])
    return run_id

"""How a leg ends: the last event, the new state of the run, and what commits with them. Pure: no I/O, no waiting.

The terminal event, the status, the output and the session's sums are made here from the same values, so they can't disagree.
"""

from dataclasses import dataclass, replace
from typing import Any

from waystation.agents.base import BaseAgent, Capability
from waystation.agents.turn import StopReason, Turn, TurnResult
from waystation.clock import new_id
from waystation.domain.event import CustomEvent, Event, RunCancelled, RunCompleted, RunError, RunPaused
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import Message
from waystation.domain.metrics import COUNTS, Metrics
from waystation.domain.run import Run, RunFailure, RunOutput
from waystation.domain.session import MAX_SHOWN_NAME_CHARS
from waystation.domain.text import clean, clean_json
from waystation.errors import AgentError
from waystation.runs.fold import Fold
from waystation.runs.notice import deliveries_of
from waystation.store.operations import Finish, StateChanges
from waystation.store.rows import dumps

LOST_MESSAGE = "The process that executed the run was lost, and the agent can't go on from where it stopped."
TIMEOUT_MESSAGE = "The run did not end within its time limit."
STORE_MESSAGE = "What the run produced could not be stored."
CANCEL_REASON = "The run was cancelled."


@dataclass(frozen=True, slots=True, kw_only=True)
class LegEnd:
    """`event` is None where a leg ends without one (a retry tells itself by a warning before). `run` is the run afterwards."""

    event: Event | None
    finish: Finish
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """What is known of a leg when it ends. `duration_s` is of this leg; `turn` is None if it ended before the agent was asked."""

    run: Run
    agent: BaseAgent
    fold: Fold
    at: float
    duration_s: float
    next_index: int
    first_content_s: float | None = None
    turn: Turn | None = None


def completed(leg: Leg, result: TurnResult) -> LegEnd:
    fold, metrics = leg.fold, _metrics(leg, result.metrics)
    content = fold.text if result.content is None else clean_json(result.content)
    state = None if result.session_state is None else clean_json(result.session_state)
    output = RunOutput(
        content=content,
        content_type=result.content_type,
        reasoning_content=fold.reasoning,
        tools=list(fold.tools.values()),
        session_state=state,
    )
    event = RunCompleted(
        content=content,
        content_type=result.content_type,
        reasoning_content=fold.reasoning,
        metrics=metrics.wire(),
        session_state=state,
        metadata=clean_json(result.metadata) or None,
    )
    return _end(leg, RunStatus.COMPLETED, event, output, metrics, state=state, more=result.metadata)


def paused(leg: Leg, result: TurnResult) -> LegEnd:
    metrics = _metrics(leg, result.metrics)
    content = result.content if isinstance(result.content, str) else "The run waits for an answer."
    waiting = {r.tool_execution.tool_call_id: r.tool_execution for r in result.requirements}
    tools = list((leg.fold.tools | waiting).values())
    output = RunOutput(
        content=content, tools=tools, requirements=result.requirements, session_state=result.session_state
    )  # fmt: skip
    event = RunPaused(
        content=content,
        tools=[tool.model_dump(mode="json") for tool in waiting.values()],
        requirements=[requirement.wire() for requirement in result.requirements],
    )
    end = _end(leg, RunStatus.PAUSED, event, output, metrics, state=result.session_state)
    end.finish.approvals = tuple(r for r in result.requirements if r.needs_approval)
    end.finish.agent_name = leg.agent.name
    return end


def failed(leg: Leg, failure: RunFailure) -> LegEnd:
    metrics = _metrics(leg, None)
    output = RunOutput(content=failure.message, tools=list(leg.fold.tools.values()))
    event = RunError(
        content=failure.message,
        error_type=failure.type,
        error_id=failure.type,
        additional_data={"retryable": failure.retryable, "attempts": leg.run.attempt},
    )
    return _end(leg, RunStatus.ERROR, event, output, metrics, error=failure)


def cancelled(leg: Leg) -> LegEnd:
    stage = "EXECUTING" if leg.turn is not None else "PENDING"
    output = RunOutput(
        content=leg.fold.text or None,
        reasoning_content=leg.fold.reasoning,
        tools=list(leg.fold.tools.values()),
        cancellation_stage="PAUSED" if leg.run.status is RunStatus.PAUSED else stage,
    )
    event = RunCancelled(reason=CANCEL_REASON, content=leg.fold.text or None)
    return _end(leg, RunStatus.CANCELLED, event, output, _metrics(leg, None))


def retried(leg: Leg, failure: RunFailure) -> tuple[CustomEvent, LegEnd]:
    """The warning to emit first, and the end of the failed attempt: the run waits for its next one and keeps its session."""
    delay = leg.agent.retry.delay_after(leg.run.attempt)
    warning = {
        "type": "retry",
        "attempt": leg.run.attempt,
        "attempts": leg.run.max_attempts,
        "delay": delay,
        "error": failure.message,
        "message": f"Attempt {leg.run.attempt} of {leg.run.max_attempts} failed and is made again; what it wrote is void.",
        "discard_from": _void_from(leg),
    }
    leg.fold.warnings.append(warning)
    end = _end(leg, RunStatus.PENDING, None, None, _metrics(leg, None))
    leg.fold.warnings.pop()  # the event will add it
    end.finish.attempt = leg.run.attempt + 1
    end.finish.available_at = leg.at + delay
    return CustomEvent(warning=warning), replace(end, run=replace(end.run, attempt=leg.run.attempt + 1))


def _void_from(leg: Leg) -> int:
    """From which event on the text of a failed attempt is void. An agent that goes on from its messages asks again only what has not
    come back; any other begins anew."""
    if Capability.RESUME_TURN not in leg.agent.capabilities:
        return leg.fold.content_from
    return leg.next_index if leg.fold.open_request_at is None else leg.fold.open_request_at


def takeover_warning(run: Run, discard_from: int) -> CustomEvent:
    return CustomEvent(
        warning={
            "type": "takeover",
            "attempt": run.attempt,
            "attempts": run.max_attempts,
            "message": "The run goes on in another process; content from discard_from on comes again.",
            "discard_from": discard_from,
        }
    )


def failure_of(error: BaseException) -> RunFailure:
    """A failure as it is told to clients: what an agent says in words; nothing of the inside of anything else."""
    if isinstance(error, AgentError):
        return RunFailure(type=error.error_type, message=clean(error.message), retryable=error.retryable)
    return RunFailure(type="internal_error", message="The agent failed unexpectedly; the server's log has the details.")


STOPS = {
    StopReason.TIMEOUT: RunFailure(type="timeout", message=TIMEOUT_MESSAGE),
    StopReason.STORE: RunFailure(type="store_unavailable", message=STORE_MESSAGE),
}


def last_messages(leg: Leg, status: RunStatus, content: Any) -> list[Message]:
    """What is still to be recorded when a run ends: the whole exchange of an agent that records no messages itself; the piece of an
    answer that a stopped or failed request has left."""
    run, at, fold = leg.run, int(leg.at), leg.fold
    if fold.messages:
        cut_off = fold.open_text if status is not RunStatus.COMPLETED else ""
        return [Message(id=new_id(), role="assistant", content=cut_off, created_at=at)] if cut_off else []
    asked = Message(id=new_id(), role="user", content=run.input.message, created_at=int(run.created_at))
    if not content:
        return [asked]
    text = content if isinstance(content, str) else dumps(content)
    return [asked, Message(id=new_id(), role="assistant", content=text, created_at=at)]


def _end(
    leg: Leg,
    status: RunStatus,
    event: Event | None,
    output: RunOutput | None,
    metrics: Metrics,
    *,
    error: RunFailure | None = None,
    state: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> LegEnd:
    run = leg.run
    metadata = run.metadata | clean_json(more or {})
    if leg.fold.warnings:
        metadata = metadata | {"warnings": list(leg.fold.warnings)}
    holds = status is RunStatus.PENDING or (status is RunStatus.PAUSED and Capability.PAUSE_FREES_SESSION not in leg.agent.capabilities)
    known_state = leg.turn.session.state if leg.turn else None
    final = status in (RunStatus.COMPLETED, RunStatus.ERROR, RunStatus.CANCELLED)
    finish = Finish(
        status=status.value,
        at=leg.at,
        holds_session=holds,
        output=output.model_dump_json(exclude_none=True, exclude_defaults=True) if output else None,
        error=error.model_dump_json() if error else None,
        metrics=metrics.model_dump_json(exclude_defaults=True),
        metadata=dumps(metadata) if metadata != run.metadata else None,
        attempt=run.attempt,
        usage=_delta(run.metrics, metrics),
        first_message=run.input.message[:MAX_SHOWN_NAME_CHARS],
        session_state=_changes(known_state or {}, state) if state is not None else None,
        external_session_id=leg.fold.external_session_id,
    )
    after = replace(
        run,
        status=status,
        output=output,
        error=error,
        metrics=metrics,
        metadata=metadata,
        holds_session=holds,
        worker_id=None,
        finished_at=leg.at if final else None,
    )
    if run.webhooks:
        finish.deliveries = deliveries_of(after, leg.at)
    return LegEnd(event=event, finish=finish, run=after)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> StateChanges | None:
    """What a leg has changed in the state of the session; only that is written, so that a change made meanwhile stays."""
    changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
    removed = [key for key in before if key not in after]
    return StateChanges(changed, removed) if changed or removed else None


def _metrics(leg: Leg, given: Metrics | None) -> Metrics:
    """The metrics of the run so far: tokens as told, the time of this leg added to that of the legs before."""
    told = given or leg.fold.metrics
    before = leg.run.metrics
    first = before.time_to_first_token if before.time_to_first_token is not None else leg.first_content_s
    return Metrics(models=told.models, time_to_first_token=first, duration=(before.duration or 0.0) + leg.duration_s)


def _delta(before: Metrics, after: Metrics) -> dict[str, float]:
    """What this leg adds to the sums of the session."""
    was, now_is = before.totals(), after.totals()
    added: dict[str, float] = {name: getattr(now_is, name) - getattr(was, name) for name in COUNTS}
    if now_is.cost is not None:
        added["cost"] = now_is.cost - (was.cost or 0.0)
    return added

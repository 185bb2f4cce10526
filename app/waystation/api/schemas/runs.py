"""A run as clients read it: the RunOutput of a run's own routes, and the RunSchema of lists and sessions."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from waystation.agents.base import BaseAgent
from waystation.api.schemas.shared import without_none
from waystation.clock import iso
from waystation.domain.checkpoint import PREVIEW_CHARS, Checkpoint
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import Message
from waystation.domain.run import Run, RunDetail


class RunBody(BaseModel):
    """A run. Fields that are empty are left out."""

    model_config = ConfigDict(extra="allow")

    run_id: str
    agent_id: str
    session_id: str
    status: RunStatus
    created_at: int
    agent_name: str | None = None
    user_id: str | None = None
    content: Any = None
    content_type: str = "str"
    model: str | None = None
    model_provider: str | None = None
    metrics: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    requirements: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    session_state: dict[str, Any] | None = None
    input: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    queue_position: int | None = None


class AcceptedBody(BaseModel):
    run_id: str
    session_id: str
    status: RunStatus


class CancelBody(BaseModel):
    run_id: str
    session_id: str
    status: RunStatus
    cancel_requested: bool | None = None


class EventsBody(BaseModel):
    """A long poll: the events behind `after`, the run's status, and the `after` of the next call."""

    events: list[dict[str, Any]]
    status: RunStatus
    next: int


def run_body(detail: RunDetail, agent: BaseAgent | None) -> dict[str, Any]:
    run, output = detail.run, detail.run.output
    body: dict[str, Any] = {
        "run_id": run.id,
        "agent_id": run.agent_id,
        "agent_name": agent.name if agent else run.agent_id,
        "session_id": run.session_id,
        "user_id": run.user_id,
        "content": output.content if output else None,
        "content_type": output.content_type if output else "str",
        "reasoning_content": output.reasoning_content if output else None,
        "model": run.model,
        "model_provider": run.model_provider,
        "session_state": output.session_state if output else None,
        "created_at": int(run.created_at),
        "status": run.shown_status.value,
        "queue_position": detail.queue_position,
        "metrics": run.metrics.wire() or None,
        "messages": detail.messages or None,
        "tools": _tools(run) or None,
        "requirements": _open_requirements(run) or None,
        "metadata": metadata_of(run, agent) or None,
        "input": run.input.wire(),
        "error": run.error.model_dump() if run.error else None,
        "cancellation_stage": output.cancellation_stage if output else None,
        "forked_from_run_id": run.forked_from_run_id,
        "forked_from_message_index": run.forked_from_message_index,
        "replaced_by_run_id": run.replaced_by_run_id,
        "cancel_requested": True if run.cancel_requested and not run.is_final else None,
    }
    return without_none(body)


def metadata_of(run: Run, agent: BaseAgent | None) -> dict[str, Any]:
    """The metadata of the request, with what the platform knows beside it."""
    metadata = dict(run.metadata)
    if run.finished_at is not None:
        metadata["attempts"] = run.attempt
    if run.error is not None:
        metadata |= {"retryable": run.error.retryable, "error_type": run.error.type}
    if agent is not None and agent.sdk is not None:
        metadata["sdk"] = agent.sdk
    if agent is not None and agent.metadata.get("demo"):
        metadata["demo"] = True
    return metadata


def run_schema(detail: RunDetail, agent: BaseAgent | None) -> dict[str, Any]:
    """A run as lists and sessions show it: the field names of AgentOS, None where there is nothing."""
    run, output = detail.run, detail.run.output
    place = {} if detail.queue_position is None else {"queue_position": detail.queue_position}
    return place | {
        "run_id": run.id,
        "parent_run_id": "",
        "agent_id": run.agent_id,
        "user_id": run.user_id,
        "session_id": run.session_id,
        "status": run.shown_status.value,
        "cancellation_stage": output.cancellation_stage if output else None,
        "run_input": run.input.message,
        "content": output.content if output else None,
        "run_response_format": "text" if output is None or output.content_type == "str" else "json",
        "reasoning_content": (output.reasoning_content if output else None) or "",
        "reasoning_steps": [],
        "metrics": run.metrics.wire(),
        "metadata": metadata_of(run, agent) or None,
        "messages": detail.messages,
        "tools": _tools(run) or None,
        "events": None,
        "created_at": iso(run.created_at),
        "references": [],
        "citations": None,
        "reasoning_messages": [],
        "session_state": output.session_state if output else None,
        "images": [],
        "videos": [],
        "audio": [],
        "files": [],
        "response_audio": None,
        "input_media": {
            "images": run.input.images,
            "videos": run.input.videos,
            "audios": run.input.audio,
            "files": run.input.files,
        },
        "followups": None,
        "model": run.model,
        "model_provider": run.model_provider,
        "forked_from_run_id": run.forked_from_run_id,
        "forked_from_message_index": run.forked_from_message_index,
        "forked_from_session_id": None,
        "regenerated_from": None,
        "last_checkpoint_at_message_index": len(detail.messages) or None,
    }


def checkpoint_body(run: Run, number: int, point: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": str(number),
        "run_id": run.id,
        "session_id": run.session_id,
        "message_index": point.message_index,
        "continue_from": point.message_index,
        "status": run.shown_status.value,
        "reason": point.reason,
        "created_at": point.message.created_at,
        "message_id": point.message.id,
        "message_role": point.message.role,
        "message_preview": (point.message.content or "")[:PREVIEW_CHARS],
        "is_latest": point.is_latest,
    }


def snapshot_body(detail: RunDetail, agent: BaseAgent | None, index: int, messages: list[Message]) -> dict[str, Any]:
    """The run as it was after some of its messages."""
    run = detail.run
    last = messages[-1] if messages else None
    snapshot = run_body(RunDetail(run=run, messages=messages), agent) | {"last_checkpoint_at_message_index": len(messages)}
    checkpoint = {
        "checkpoint_id": None,
        "run_id": run.id,
        "session_id": run.session_id,
        "message_index": index,
        "continue_from": index,
        "status": run.shown_status.value,
        "reason": "snapshot",
        "created_at": last.created_at if last else int(run.created_at),
        "message_id": last.id if last else None,
        "message_role": last.role if last else None,
        "message_preview": (last.content or "")[:PREVIEW_CHARS] if last else "",
        "is_latest": index == len(detail.messages),
    }
    return {"checkpoint": checkpoint, "snapshot": snapshot}


def _tools(run: Run) -> list[dict[str, Any]]:
    return [tool.model_dump(mode="json") for tool in run.output.tools] if run.output else []


def _open_requirements(run: Run) -> list[dict[str, Any]]:
    return [requirement.wire() for requirement in run.requirements] if run.status is RunStatus.PAUSED else []

"""The queue as clients read it: a job is a run in the field names of AgentOS."""

from typing import Any

from pydantic import BaseModel

from waystation.api.schemas.shared import PageMeta
from waystation.domain.lifecycle import RunStatus
from waystation.runs.queue import Job
from waystation.worker.health import Queue

JOB_STATUSES = {
    "queued": RunStatus.PENDING, "running": RunStatus.RUNNING, "completed": RunStatus.COMPLETED, "failed": RunStatus.ERROR,
    "cancelled": RunStatus.CANCELLED, "paused": RunStatus.PAUSED,
}  # fmt: skip
_NAMES = {status: name for name, status in JOB_STATUSES.items()}


class JobBody(BaseModel):
    """`attempt` is 0 until the run has been started; `locked_by` is the process that executes it, `locked_at` when it first started."""

    id: str
    component_type: str
    component_id: str
    session_id: str
    job_type: str
    user_id: str | None
    payload: dict[str, Any]
    status: str
    attempt: int
    max_attempts: int
    idempotency_key: str | None
    available_at: int
    locked_by: str | None
    locked_at: int | None
    error: str | None
    created_at: int
    updated_at: int
    completed_at: int | None


class JobsBody(BaseModel):
    data: list[JobBody]
    meta: PageMeta


def job_body(job: Job) -> dict[str, Any]:
    run = job.run
    return {
        "id": run.id,
        "component_type": "agent",
        "component_id": run.agent_id,
        "session_id": run.session_id,
        "job_type": "run",
        "user_id": run.user_id,
        "payload": {
            "input": run.input.message,
            "kwargs": run.input.model_dump(mode="json", exclude={"message"}, exclude_defaults=True),
        },
        "status": _NAMES[run.status],
        "attempt": run.attempt if run.started_at else 0,
        "max_attempts": run.max_attempts,
        "idempotency_key": job.idempotency_key,
        "available_at": int(run.available_at),
        "locked_by": run.worker_id,
        "locked_at": int(run.started_at) if run.worker_id and run.started_at else None,
        "error": run.error.message if run.error else None,
        "created_at": int(run.created_at),
        "updated_at": int(run.finished_at or run.started_at or run.created_at),
        "completed_at": int(run.finished_at) if run.finished_at else None,
    }


def stats_body(queue: Queue) -> dict[str, Any]:
    state, at = queue.state, queue.at
    return {
        "counts": {_NAMES[status]: count for status, count in state.counts.items()},
        "oldest_queued_age_seconds": None if state.oldest_at is None else round(at - state.oldest_at, 3),
        "queued_by_agent": state.waiting,
        "unserved": queue.unserved,
        "stuck": state.stuck,
        "slots": {"limit": queue.slots, "used": queue.slots_used},
        "workers": [
            {
                "id": worker.id,
                "host": worker.host,
                "pid": worker.pid,
                "slots": worker.slots,
                "agents": worker.agents,
                "dead": worker.dead_at is not None,
                "renewed_at": worker.renewed_at,
                "renewal_age_seconds": round(at - worker.renewed_at, 3),
            }
            for worker in queue.workers
        ],
    }

"""What webhooks are told of a run that has ended or paused. Pure: it commits with the end, whoever writes that."""

from waystation.clock import iso, new_id
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run
from waystation.domain.webhook import NewDelivery
from waystation.store.rows import dumps

EVENT_OF = {
    RunStatus.COMPLETED: "run.completed", RunStatus.ERROR: "run.error", RunStatus.CANCELLED: "run.cancelled",
    RunStatus.PAUSED: "run.paused",
}  # fmt: skip
MOST_ERROR_CHARS = 1_000
VERSION = 1
"""Of the body: raised when a field changes its meaning, not when one is added."""


def deliveries_of(run: Run, at: float) -> tuple[NewDelivery, ...]:
    """One delivery for each endpoint of the run that wants to hear of its new status. `run` is as it is afterwards."""
    event = EVENT_OF.get(run.status)
    wanted = [endpoint for endpoint in run.webhooks if event in endpoint.events]
    if event is None or not wanted:
        return ()
    data = {name: value for name, value in _data(run).items() if value is not None}
    payload = dumps({"type": event, "timestamp": iso(at), "version": VERSION, "data": data})
    return tuple(NewDelivery(id=new_id(), endpoint=endpoint, event=event, payload=payload) for endpoint in wanted)


def _data(run: Run) -> dict[str, object]:
    error = run.error if run.status is RunStatus.ERROR else None
    return {
        "run_id": run.id,
        "session_id": run.session_id,
        "agent_id": run.agent_id,
        "user_id": run.user_id,
        "status": run.status.value,
        "created_at": iso(run.created_at),
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at) if run.is_final else None,
        "error": error and {"type": error.type, "message": error.message[:MOST_ERROR_CHARS], "retryable": error.retryable},
        "requirements": len(run.requirements) if run.status is RunStatus.PAUSED else None,
        "url": f"/agents/{run.agent_id}/runs/{run.id}",
    }

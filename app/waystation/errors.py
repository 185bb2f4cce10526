"""Every refusal and failure that a caller may see, as one tree.

An `AppError` is expected: it has a status code, a stable word (`error_type`), a sentence for the caller and data fields
that go into the body of the answer. Anything else that escapes is a bug and becomes a 500 without its text.
`AgentError` is what an agent raises to end its turn; the executor turns it into the run's error, never into a status code.
"""

from typing import Any, ClassVar


class AppError(Exception):
    """An expected refusal. `data` is added to the body of the answer; `headers` to its headers."""

    status_code: ClassVar[int] = 500
    error_type: ClassVar[str] = "internal_error"

    def __init__(self, detail: str, *, headers: dict[str, str] | None = None, **data: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = headers or {}
        self.data = data


class NotFoundError(AppError):
    status_code = 404
    error_type = "not_found"


class AgentNotFoundError(NotFoundError):
    error_type = "agent_not_found"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"There is no agent {agent_id!r}.")


class RunNotFoundError(NotFoundError):
    error_type = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is no run {run_id!r}.")


class SessionNotFoundError(NotFoundError):
    error_type = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"There is no session {session_id!r}.")


class ApprovalNotFoundError(NotFoundError):
    error_type = "approval_not_found"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"There is no approval {approval_id!r}.")


class DeliveryNotFoundError(NotFoundError):
    error_type = "delivery_not_found"

    def __init__(self, delivery_id: str) -> None:
        super().__init__(f"There is no delivery {delivery_id!r} of this run.")


class WebhooksOffError(AppError):
    """A run brings webhooks, and this server has nothing to sign them with."""

    status_code = 400
    error_type = "webhooks_off"

    def __init__(self) -> None:
        super().__init__("This server takes no webhooks with a run: it has no WAYSTATION_WEBHOOK_SECRET to sign them with.")


class InvalidInputError(AppError):
    """Malformed input. The answer keeps FastAPI's list form, so `field` is named as FastAPI would."""

    status_code = 422
    error_type = "invalid_input"

    def __init__(self, field: str, message: str, *, where: str = "body") -> None:
        super().__init__(f"{field}: {message}")
        self.problems = [{"type": "value_error", "loc": [where, field], "msg": message}]


class UnsupportedMediaError(AppError):
    status_code = 400
    error_type = "unsupported_media"


class InvalidCheckpointError(AppError):
    status_code = 400
    error_type = "invalid_checkpoint"


class ConflictError(AppError):
    status_code = 409
    error_type = "conflict"


class SessionBusyError(ConflictError):
    """The session has a turn in flight. OpenAI's SDKs repeat a POST on 409 unless `x-should-retry` says no."""

    error_type = "session_busy"

    def __init__(self, *, run_id: str | None, session_id: str) -> None:
        super().__init__(
            f"Session {session_id!r} has a turn in flight. A session takes one turn at a time: wait for the turn to end or "
            "cancel it, or send on_busy=enqueue to wait in line.",
            headers={"Retry-After": "1", "x-should-retry": "false"},
            run_id=run_id,
            session_id=session_id,
        )
        self.run_id = run_id
        self.session_id = session_id


class SessionOfOtherAgentError(ConflictError):
    error_type = "session_of_other_agent"

    def __init__(self, session_id: str, agent_id: str) -> None:
        super().__init__(f"Session {session_id!r} belongs to another agent than {agent_id!r}.", session_id=session_id)


class SessionExistsError(ConflictError):
    error_type = "session_exists"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id!r} exists already.", session_id=session_id)


class IdempotencyConflictError(ConflictError):
    error_type = "idempotency_conflict"

    def __init__(self, run_id: str) -> None:
        super().__init__("This Idempotency-Key was used for another request.", run_id=run_id)


class RunDeletedError(ConflictError):
    error_type = "run_deleted"

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key belongs to a run that was deleted.")


class RunInFlightError(ConflictError):
    error_type = "run_in_flight"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Run {run_id!r} has not ended yet; it can be continued when it has.", run_id=run_id)


class RunNotContinuableError(ConflictError):
    error_type = "run_not_continuable"

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(f"Run {run_id!r} is {status} and can't be continued.", run_id=run_id)


class RunNotRequeuableError(ConflictError):
    error_type = "run_not_requeuable"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"Run {run_id!r} can't be queued again: {reason}.", run_id=run_id)


class RequirementsOpenError(ConflictError):
    error_type = "requirements_open"

    def __init__(self, run_id: str, requirements: list[dict[str, Any]]) -> None:
        names = ", ".join(repr(r["tool_name"]) for r in requirements)
        super().__init__(f"Run {run_id!r} still waits for an answer to: {names}.", run_id=run_id, requirements=requirements)


class UnknownRequirementError(ConflictError):
    error_type = "unknown_requirement"

    def __init__(self, run_id: str, tool_call_id: object) -> None:
        super().__init__(f"Run {run_id!r} has no open requirement for tool call {tool_call_id!r}.", run_id=run_id)


class ApprovalResolvedError(ConflictError):
    error_type = "approval_resolved"

    def __init__(self, approval_id: str, status: str) -> None:
        super().__init__(f"Approval {approval_id!r} is already {status}.")


class PayloadTooLargeError(AppError):
    status_code = 413
    error_type = "payload_too_large"


class UnsupportedContentTypeError(AppError):
    status_code = 415
    error_type = "unsupported_content_type"


class QueueFullError(AppError):
    status_code = 429
    error_type = "queue_full"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"Retry-After": "5"})


class NotSupportedError(AppError):
    status_code = 501
    error_type = "not_supported"


class UnavailableError(AppError):
    """The server is shutting down, or what it needs can't be reached."""

    status_code = 503
    error_type = "unavailable"

    def __init__(self, detail: str = "The server can't take this request now; try again soon.") -> None:
        super().__init__(detail, headers={"Retry-After": "1"})


class StoreUnavailableError(UnavailableError):
    """The database can't be reached or refuses writes. What runs goes on; its events are stored when it is back."""

    def __init__(self) -> None:
        super().__init__("The store can't be reached; try again soon.")


class StoreConflictError(StoreUnavailableError):
    """Another transaction was in the way (a lock, a deadlock), also the second time."""


class SessionTakenError(Exception):
    """A claim met a session that a foreground run has won meanwhile. Claim again."""


class ConfigError(Exception):
    """The server or an agent is set up in a way that can't work. Told at start-up, in words for the operator."""


class AgentError(Exception):
    """Ends a turn. `error_type` is a stable word for the run's record; `retryable` allows another attempt."""

    def __init__(self, message: str, *, error_type: str = "agent_error", retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.error_type = error_type
        self.retryable = retryable


class RunCancelledError(Exception):
    """Raised inside a turn at a place where it may stop, once its run is to be cancelled."""


class RunLostError(Exception):
    """Another process owns the run now. The turn must end at once; nothing that it writes is kept."""

"""What is asked of the service, after it was parsed."""

from dataclasses import dataclass, field
from typing import Any

from waystation.domain.checkpoint import ContinueFrom
from waystation.domain.media import Attachment
from waystation.domain.run import OnBusy, OnDisconnect, RunInput
from waystation.domain.webhook import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run to be accepted. `request_hash` is over all that makes two requests the same (see `Idempotency-Key`)."""

    agent_id: str
    input: RunInput
    session_id: str | None = None
    user_id: str | None = None
    background: bool = False
    on_busy: OnBusy | None = None
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    metadata: dict[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    max_attempts: int | None = None
    timeout_s: float = 3600.0
    available_at: float | None = None
    webhooks: tuple[Endpoint, ...] = ()
    idempotency_key: str | None = None
    request_hash: str | None = None

    @property
    def busy_rule(self) -> OnBusy:
        return self.on_busy or (OnBusy.ENQUEUE if self.background else OnBusy.REJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueRequest:
    """A run to go on with: a paused one with answers, or a finished one from one of its messages."""

    agent_id: str
    run_id: str
    user_id: str | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    input: str | None = None
    continue_from: ContinueFrom = "end"
    fork: bool = False
    regenerate: bool = False
    replace_original: bool | None = None
    additional_instructions: str | None = None
    background: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A run that was accepted, or found by its Idempotency-Key. `after` is where its viewers begin."""

    run_id: str
    session_id: str
    agent_id: str
    after: int = -1
    found: bool = False

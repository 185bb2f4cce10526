"""A run: the record of one request to an agent, and what its output holds."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from waystation.domain.lifecycle import FINAL, RunStatus
from waystation.domain.message import Message
from waystation.domain.metrics import Metrics
from waystation.domain.requirement import Requirement, ToolExecution
from waystation.domain.webhook import Endpoint


class OnBusy(StrEnum):
    """What a submission does when its session has a turn in flight."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


class OnDisconnect(StrEnum):
    """What a foreground run does when its client goes away."""

    CONTINUE = "continue"
    CANCEL = "cancel"


class RunInput(BaseModel):
    """What was asked for, as stored. Media are objects with a url, base64 content or the id of an attachment."""

    model_config = ConfigDict(frozen=True)

    message: str
    images: list[dict[str, Any]] = Field(default_factory=list)
    audio: list[dict[str, Any]] = Field(default_factory=list)
    videos: list[dict[str, Any]] = Field(default_factory=list)
    files: list[dict[str, Any]] = Field(default_factory=list)
    session_state: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    use_json_schema: bool = False
    add_history_to_context: bool | None = None

    def wire(self) -> dict[str, Any]:
        media = {"images": self.images, "audios": self.audio, "videos": self.videos, "files": self.files}
        return {"input_content": self.message, **{name: items for name, items in media.items() if items}}


class RunFailure(BaseModel):
    """Why a run ended in ERROR. `message` is a sentence for the caller."""

    model_config = ConfigDict(frozen=True)

    type: str
    message: str
    retryable: bool = False


class RunOutput(BaseModel):
    """What a run has produced. `content` is text, or an object where an output schema was given; a failed run's content is
    the sentence of its error."""

    model_config = ConfigDict(frozen=True)

    content: Any = None
    content_type: str = "str"
    reasoning_content: str | None = None
    tools: list[ToolExecution] = Field(default_factory=list)
    requirements: list[Requirement] = Field(default_factory=list)
    session_state: dict[str, Any] | None = None
    cancellation_stage: str | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """One row of `runs`. Times are in seconds since the epoch; `next_index` is the index of the run's next event.

    Not frozen, because that doubles the time to make one and there are several for each run; only the executor that starts an
    accepted run changes one.
    """

    id: str
    agent_id: str
    session_id: str
    user_id: str | None
    status: RunStatus
    input: RunInput
    created_at: float
    kind: str = "turn"
    seq: int = 0
    epoch: int = 0
    next_index: int = 0
    worker_id: str | None = None
    holds_session: bool = False
    attempt: int = 1
    max_attempts: int = 1
    takeovers: int = 0
    available_at: float = 0.0
    timeout_s: float = 3600.0
    deadline_at: float | None = None
    cancel_requested: bool = False
    background: bool = False
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    request_hash: str | None = None
    output: RunOutput | None = None
    error: RunFailure | None = None
    metrics: Metrics = field(default_factory=Metrics)
    metadata: dict[str, Any] = field(default_factory=dict)
    webhooks: tuple[Endpoint, ...] = ()
    model: str | None = None
    model_provider: str | None = None
    forked_from_run_id: str | None = None
    forked_from_message_index: int | None = None
    replaced_by_run_id: str | None = None
    dropped_from_history: bool = False
    started_at: float | None = None
    finished_at: float | None = None

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def shown_status(self) -> RunStatus:
        """The status that clients see."""
        replaced = self.status is RunStatus.COMPLETED and self.replaced_by_run_id is not None
        return RunStatus.REGENERATED if replaced else self.status

    @property
    def requirements(self) -> list[Requirement]:
        return self.output.requirements if self.output is not None else []


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """A run with its messages, in order. `queue_position` of a waiting one: 1 is the next of its session."""

    run: Run
    messages: list[Message]
    queue_position: int | None = None

"""What the ledger commits, and what it answers."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from waystation.domain.media import Attachment
from waystation.domain.message import Message
from waystation.domain.requirement import Requirement
from waystation.domain.run import Run
from waystation.domain.session import Session
from waystation.domain.webhook import NewDelivery


@dataclass(slots=True)
class EventLines:
    """Encoded events of a run, one a line; `count` of them."""

    count: int
    lines: bytes


@dataclass(slots=True)
class MessageLines:
    """Encoded messages of a run, one a line, from `first_index` on."""

    first_index: int
    count: int
    payload: str


@dataclass(slots=True, kw_only=True)
class Accept:
    """A new run. With `worker_id` it starts at once if its session is free; `may_wait` lets a busy session queue it.

    With `goes_first` it waits before all others: the turn in flight, and what goes first itself and waits, are asked to stop. With
    `drops` their end also drops them from the history.

    `first` are the events of a run that starts at once; `messages` those that a sibling takes over; `history_runs` how many
    runs of the session the answer brings along for it.
    """

    run: Run
    worker_id: str | None = None
    may_wait: bool = False
    goes_first: bool = False
    drops: bool = False
    idempotency_scope: str = ""
    idempotency_key: str | None = None
    first: EventLines | None = None
    messages: MessageLines | None = None
    attachments: tuple[Attachment, ...] = ()
    history_runs: int = 0
    replaces_run_id: str | None = None


class Verdict(StrEnum):
    STARTED = "started"
    WAITS = "waits"
    EXISTS = "exists"
    DELETED = "deleted"
    BUSY = "busy"
    FULL = "full"
    OTHER_AGENT = "other_agent"
    OTHER_USER = "other_user"


@dataclass(slots=True, frozen=True)
class PastRun:
    """A finished run of the session with its messages, for the history of the next."""

    id: str
    forked_from_run_id: str | None
    messages: list[Message]


@dataclass(slots=True)
class Accepted:
    """What became of an Accept. `run_id` is of the new run, of the run that used the key, or of the turn in flight.

    `user_id` is the owner the run got; `session` and `history` are filled for a run that started in a session that was there.
    `was_stored`: an earlier try, whose answer was lost, has stored the run and what comes along. `asked` are
    the runs that were asked to stop for this one.
    """

    verdict: Verdict
    run_id: str | None
    session_id: str
    user_id: str | None = None
    request_hash: str | None = None
    session: Session | None = None
    history: list[PastRun] = field(default_factory=list)
    was_stored: bool = False
    asked: list[str] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class StateChanges:
    """Keys of a session's state to set, and to remove."""

    changed: dict[str, Any]
    removed: list[str]


@dataclass(slots=True, kw_only=True)
class Finish:
    """How a leg ends: the new status and everything that commits with it. JSON fields are text; None leaves them alone."""

    status: str
    at: float
    holds_session: bool
    output: str | None = None
    error: str | None = None
    metrics: str | None = None
    metadata: str | None = None
    model: str | None = None
    model_provider: str | None = None
    attempt: int | None = None
    available_at: float | None = None
    usage: dict[str, float] | None = None
    first_message: str | None = None
    session_state: StateChanges | None = None
    external_session_id: str | None = None
    approvals: tuple[Requirement, ...] = ()
    agent_name: str = ""
    deliveries: tuple[NewDelivery, ...] = ()


@dataclass(slots=True, kw_only=True)
class Step:
    """Consecutive events and messages of an execution, and its end if they are the last."""

    run_id: str
    session_id: str
    agent_id: str
    user_id: str | None
    epoch: int
    first_index: int
    events: EventLines
    messages: MessageLines | None = None
    finish: Finish | None = None


@dataclass(slots=True, frozen=True)
class Stepped:
    """`owned`: whether the step was stored; if not, another epoch owns the run. `cancel_requested`: as the store has it.
    `has_waiting_turn`: whether a run of the session waits for its turn."""

    owned: bool
    cancel_requested: bool = False
    has_waiting_turn: bool = False


Operation = Accept | Step
Answer = Accepted | Stepped

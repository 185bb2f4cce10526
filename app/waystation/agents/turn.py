"""What an agent is given to execute, and what it returns.

An agent emits events and messages as they happen; everything that is not an event comes back in the TurnResult. The text of the
answer is what the RunContent events say, so a result need not repeat it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from waystation.domain.event import Event
from waystation.domain.media import Attachment
from waystation.domain.message import Message
from waystation.domain.metrics import Metrics, ModelUsage
from waystation.domain.requirement import Requirement, ToolExecution
from waystation.domain.run import Run
from waystation.domain.session import Session
from waystation.errors import RunCancelledError, RunLostError


class StopReason(StrEnum):
    """Why a turn must stop."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    DRAINING = "draining"
    LOST = "lost"
    STORE = "store_unavailable"


Interrupt = Callable[[], Awaitable[None]]


class CancelToken:
    """Tells a turn that it must stop. The first reason stands.

    An adapter whose work goes on elsewhere binds an interrupt; it is awaited once, in a task of the executor's, when the turn is
    to stop. The executor then waits a grace time for the turn to end by itself before it cancels the turn's task.
    """

    __slots__ = ("_event", "_interrupt", "_notify", "reason")

    def __init__(self, notify: Callable[[], None] | None = None) -> None:
        self.reason: StopReason | None = None
        self._notify = notify
        self._interrupt: Interrupt | None = None
        self._event: asyncio.Event | None = None

    @property
    def requested(self) -> bool:
        return self.reason is not None

    def request(self, reason: StopReason) -> None:
        """Ask the turn to stop. Later reasons are ignored, but for LOST: a lost run must leave no trace."""
        if self.reason is not None:
            if reason is StopReason.LOST:
                self.reason = reason
            return
        self.reason = reason
        if self._event:
            self._event.set()
        if self._notify:
            self._notify()

    def bind(self, interrupt: Interrupt) -> None:
        """Set what stops the work elsewhere. Binding again replaces it."""
        self._interrupt = interrupt

    async def interrupt(self) -> None:
        if self._interrupt:
            await self._interrupt()

    async def wait(self) -> None:
        """Until the turn is to stop."""
        if self._event is None:
            self._event = asyncio.Event()
            if self.requested:
                self._event.set()
        await self._event.wait()

    def check(self) -> None:
        """Raise if the turn is to stop: RunLostError or RunCancelledError. For places where nothing is half done."""
        if self.reason is StopReason.LOST:
            raise RunLostError
        if self.reason is not None:
            raise RunCancelledError


class Emitter(Protocol):
    """Where a turn's events and messages go. Calling it is cheap and never blocks."""

    def __call__(self, event: Event) -> int:
        """Number and record an event; its index in the run's log. Never give one of the events that start or end a leg
        (RunStarted, RunContinued, RunCompleted, RunError, RunCancelled, RunPaused): those are the executor's."""
        ...

    def message(self, *messages: Message) -> None:
        """Record messages of the run, in order. They commit together with the events emitted around them without an await
        between."""
        ...

    def usage(self, usage: ModelUsage) -> None:
        """Add the tokens of a model request. Not for requests told by a ModelRequestCompleted event: those are counted."""
        ...

    def external_session(self, session_id: str) -> None:
        """Tell the SDK's conversation id as soon as it is known: then it is kept however the turn ends."""
        ...

    async def room(self) -> None:
        """To be awaited after each event by a producer in this process: gives other runs a turn and waits while too much is
        waiting to be stored. Raises RunCancelledError or RunLostError if the turn is to stop."""
        ...

    async def stored(self) -> None:
        """Until all that was emitted so far is committed. Raises RunCancelledError if a cancel was requested by then, RunLostError
        if another process owns the run: no tool may start then."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One start of an agent on a run.

    `history` are the messages of earlier runs of the session (as many runs as the agent's `history_runs`), oldest first.
    `messages` are the run's own so far: empty at the first start; what a sibling took over; what was stored before a pause, a
    crash or a hand-back. `requirements` are the answered ones of a run that goes on after a pause. `tools` are the calls that the
    log has seen start or complete, `started_calls` the ids of those that have not completed: their effect is unknown.
    """

    run: Run
    session: Session
    cancel: CancelToken
    history: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    tools: list[ToolExecution] = field(default_factory=list)
    started_calls: frozenset[str] = frozenset()
    resumed: bool = False
    """Whether the turn goes on after its process was lost or drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """How a turn ended well. With `requirements` the run pauses and `content` says for what.

    `content` None: the text of the events. `metrics` None: what events and `emit.usage` said. `session_state` None: unchanged.
    """

    content: Any = None
    content_type: str = "str"
    requirements: list[Requirement] = field(default_factory=list)
    metrics: Metrics | None = None
    session_state: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

"""A turn's emitter in memory, and turns to drive an agent with, without a server."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from waystation.agents.base import BaseAgent
from waystation.agents.turn import CancelToken, Turn, TurnResult
from waystation.clock import new_id
from waystation.domain.event import Event, RunContent, ToolCallCompleted, ToolCallStarted
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import FunctionCall, Message, ToolCall
from waystation.domain.metrics import ModelUsage
from waystation.domain.requirement import ToolExecution
from waystation.domain.run import Run, RunInput
from waystation.domain.session import Session


@dataclass
class MemoryEmitter:
    """Keeps what was emitted. `log` has events and messages in the order in which they came, and a "stored" for each commit that
    was waited for. `on_stored` is called there: it may raise as the real one does."""

    cancel: CancelToken
    log: list[Event | Message | str] = field(default_factory=list)
    usages: list[ModelUsage] = field(default_factory=list)
    on_stored: Callable[[], None] | None = None
    on_room: Callable[[], None] | None = None

    def __call__(self, event: Event) -> int:
        self.log.append(event)
        return len(self.events) - 1

    def message(self, *messages: Message) -> None:
        self.log.extend(messages)

    def usage(self, usage: ModelUsage) -> None:
        self.usages.append(usage)

    def external_session(self, session_id: str) -> None:
        self.external_session_id = session_id

    async def room(self) -> None:
        if self.on_room:
            self.on_room()
        self.cancel.check()

    async def stored(self) -> None:
        self.log.append("stored")
        if self.on_stored:
            self.on_stored()
        self.cancel.check()

    @property
    def events(self) -> list[Event]:
        return [item for item in self.log if isinstance(item, Event)]

    @property
    def messages(self) -> list[Message]:
        return [item for item in self.log if isinstance(item, Message)]

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.content for event in self.events if isinstance(event, RunContent))

    @property
    def completed(self) -> list[ToolExecution]:
        """The calls that have ended, in order."""
        return [ToolExecution.model_validate(e.tool) for e in self.events if isinstance(e, ToolCallCompleted)]

    @property
    def started(self) -> list[str]:
        """The ids of the calls that were started, in order."""
        return [e.tool["tool_call_id"] for e in self.events if isinstance(e, ToolCallStarted)]


def make_turn(message: str = "hi", *, session_state: dict[str, Any] | None = None, attempt: int = 1, **changes: Any) -> Turn:
    """A turn of a new run. What the input takes goes to the input, everything else to the turn."""
    given = {name: changes.pop(name) for name in list(changes) if name in RunInput.model_fields}
    run = Run(
        id=new_id(), agent_id="a", session_id="s", user_id=None, status=RunStatus.RUNNING, created_at=0.0, attempt=attempt,
        input=RunInput(message=message, **given),
    )  # fmt: skip
    session = Session(id="s", agent_id="a", user_id=None, created_at=0.0, updated_at=0.0, state=session_state or {})
    return Turn(run=run, session=session, cancel=CancelToken(), **changes)


async def drive(agent: BaseAgent, turn: Turn) -> tuple[TurnResult, MemoryEmitter]:
    emit = MemoryEmitter(turn.cancel)
    return await agent.run_turn(turn, emit), emit


def gone_on(turn: Turn, emit: MemoryEmitter, **changes: Any) -> Turn:
    """The turn as it goes on later, from what was stored."""
    return replace(turn, cancel=CancelToken(), messages=[*turn.messages, *emit.messages], **changes)


def user(text: str, **fields: Any) -> Message:
    return Message(id=new_id(), role="user", content=text, **fields)


def asking(*calls: tuple[str, str, str], **fields: Any) -> Message:
    """An answer of the model with calls: id, name, arguments."""
    made = tuple(ToolCall(id=id, function=FunctionCall(name=name, arguments=arguments)) for id, name, arguments in calls)
    return Message(id=new_id(), role="assistant", tool_calls=made, **fields)


def is_valid(messages: Iterable[Message]) -> bool:
    """Whether each tool call is followed by its results, one each, and each result belongs to a call."""
    waiting: set[str | None] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
        else:
            if waiting:
                return False
            waiting = {call.id for call in message.tool_calls or ()}
    return not waiting

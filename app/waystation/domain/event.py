"""The events of a run: one vocabulary for adapters, the log and clients.

An event holds only its own fields. Its place in the log and the ids of its run are the envelope, which the recorder puts
around it: one line of JSON that is stored, sent to viewers and carried between processes as it is. In that line `event` is
the first key and `event_index` the second, so that a line can be framed and filtered without parsing it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticSerializationError, to_json

from waystation.domain.text import clean_json

ENVELOPE = frozenset({"event", "event_index", "created_at", "agent_id", "agent_name", "run_id", "session_id", "nested_depth"})
"""The fields around every event."""


class Event(BaseModel):
    """Base of all events. `ends_leg` marks the four that end a leg of a run; after one of them comes nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    name: ClassVar[str]
    ends_leg: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__


class RunStarted(Event):
    model: str = ""
    model_provider: str = ""


class RunContinued(Event):
    """The first event of a leg that goes on after a pause."""


class RunContent(Event):
    """A piece of the answer, or of the reasoning before it."""

    content: str = ""
    content_type: str = "str"
    reasoning_content: str | None = None


class RunContentCompleted(Event):
    """The text of the answer is complete; the run's end may still take a moment."""


class RunCompleted(Event):
    ends_leg = True

    content: Any = None
    content_type: str = "str"
    reasoning_content: str | None = None
    metrics: dict[str, Any] | None = None
    session_state: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class RunError(Event):
    ends_leg = True

    content: str
    error_type: str
    error_id: str
    additional_data: dict[str, Any] | None = None


class RunCancelled(Event):
    ends_leg = True

    reason: str
    content: str | None = None


class RunPaused(Event):
    """The run waits for its requirements. `tools` and `requirements` are in their wire form."""

    ends_leg = True

    content: str
    tools: list[dict[str, Any]]
    requirements: list[dict[str, Any]]


class ModelRequestStarted(Event):
    model: str = ""
    model_provider: str = ""


class ModelRequestCompleted(Event):
    model: str = ""
    model_provider: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    time_to_first_token: float | None = None


class ToolCallStarted(Event):
    """A tool starts only after the commit that stores this event."""

    tool: dict[str, Any]


class ToolCallCompleted(Event):
    """The call has ended, well or with `tool.tool_call_error`. It is never executed again."""

    content: str | None = None
    tool: dict[str, Any]


class ReasoningStarted(Event):
    pass


class ReasoningContentDelta(Event):
    reasoning_content: str


class ReasoningCompleted(Event):
    content: str | None = None


class CustomEvent(Event):
    """Free-form. `warning` is Waystation's own: a retry, a takeover, a fallback; content from `discard_from` on is void."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="null")

    warning: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _keeps_off_the_envelope(self) -> Self:
        if taken := ENVELOPE & set(self.model_extra or ()):
            raise ValueError(f"a CustomEvent can't have the fields {sorted(taken)}: they are of its envelope")
        return self


EVENTS: dict[str, type[Event]] = {cls.name: cls for cls in Event.__subclasses__()}
LEG_ENDS = frozenset(name for name, cls in EVENTS.items() if cls.ends_leg)


class Envelope:
    """What is the same around all events of one run, encoded once."""

    __slots__ = ("_tail",)

    def __init__(self, *, run_id: str, session_id: str, agent_id: str, agent_name: str) -> None:
        ids = {"agent_id": agent_id, "agent_name": agent_name, "run_id": run_id, "session_id": session_id, "nested_depth": 0}
        self._tail = _line_safe(to_json(ids)[1:-1])

    def line(self, event: Event, index: int, at: float) -> bytes:
        """The event as one line of JSON. Text that can't be stored is replaced, see `domain.text`."""
        own = _encoded(event)
        separator = b"," if len(own) > 2 else b""
        return b'{"event":"%b","event_index":%d,"created_at":%d,%b%b%b' % (
            event.name.encode(), index, int(at), self._tail, separator, own[1:],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive events of one run as they were committed together. `lines` has one event a line, without a newline at the
    end; `ends_leg` says whether the last of them ends a leg."""

    first_index: int
    last_index: int
    lines: bytes
    ends_leg: bool

    @classmethod
    def stored(cls, first_index: int, last_index: int, payload: str) -> "Segment":
        lines = payload.encode()
        return cls(first_index, last_index, lines, name_of(lines[lines.rfind(b"\n") + 1 :]) in LEG_ENDS)

    def after(self, index: int) -> "Segment":
        """The part of it behind `index`; there must be one."""
        if self.first_index > index:
            return self
        lines = self.lines.split(b"\n", index + 1 - self.first_index)[-1]
        return Segment(index + 1, self.last_index, lines, self.ends_leg)

    def each(self) -> Iterator[tuple[int, str, bytes]]:
        """Index, name and line of each event."""
        for index, line in enumerate(self.lines.split(b"\n"), self.first_index):
            yield index, name_of(line), line


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that are not kept any more, first and last included."""

    first_index: int
    last_index: int


def name_of(line: bytes) -> str:
    return line[10 : line.index(b'"', 10)].decode()


def decode(line: bytes) -> tuple[int, Event | None]:
    """Index and event of a line; None for a name of a newer version."""
    body = json.loads(line)
    cls = EVENTS.get(body["event"])
    own = {key: value for key, value in body.items() if key not in ENVELOPE}
    return body["event_index"], cls.model_validate(own) if cls else None


def _encoded(event: Event) -> bytes:
    try:
        own = event.__pydantic_serializer__.to_json(event, exclude_none=True)
    except PydanticSerializationError:
        own = _cleaned(event)
    else:
        if b"\\u0000" in own:
            own = _cleaned(event)
    return _line_safe(own)


def _cleaned(event: Event) -> bytes:
    values = {key: clean_json(value) for key, value in event.model_dump(mode="python", exclude_none=True).items()}
    copy = type(event).model_construct(**values)
    return copy.__pydantic_serializer__.to_json(copy, exclude_none=True, fallback=str)


def _line_safe(line: bytes) -> bytes:
    """Escapes the three characters that JSON allows in text but some readers take for an end of line."""
    if b"\xe2\x80" in line:
        line = line.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return line.replace(b"\xc2\x85", b"\\u0085") if b"\xc2\x85" in line else line

"""What the events of a run add up to: the text of the answer, the tool calls, the warnings, the tokens.

The same fold serves a run while it is recorded and a log that is read again, so a run that goes on elsewhere knows what this one
knew.
"""

from typing import Any

from waystation.domain.event import (
    CustomEvent,
    Event,
    ModelRequestCompleted,
    ModelRequestStarted,
    RunContent,
    RunContinued,
    RunPaused,
    ToolCallCompleted,
    ToolCallStarted,
    decode,
)
from waystation.domain.message import Message
from waystation.domain.metrics import Metrics, ModelUsage
from waystation.domain.requirement import ToolExecution
from waystation.domain.text import clean, clean_json


class Fold:
    """`metrics` starts as what the run's row already holds."""

    def __init__(self, metrics: Metrics) -> None:
        self.messages: list[Message] = []
        self.tools: dict[str, ToolExecution] = {}
        self.started_calls: set[str] = set()
        self.completed_calls: set[str] = set()
        self.external_session_id: str | None = None
        self.warnings: list[dict[str, Any]] = []
        self.metrics = metrics
        self.last_event: type[Event] | None = None
        self.waits_for_attempt = False
        """Whether the last event says that the attempt has failed and is to be made again."""
        self.content_from = 1
        """Index of the first event whose content counts: the start of the attempt that is going on."""
        self.open_request_at: int | None = None
        """Index at which a model request began that has not come back."""
        self._stored_metrics = metrics
        self._text: list[tuple[int, str]] = []
        self._reasoning: list[tuple[int, str]] = []

    @property
    def text(self) -> str:
        return clean("".join([text for _, text in self._text]))

    @property
    def open_text(self) -> str:
        """The text of a model request that has not come back: no message holds it yet."""
        start = self.open_request_at
        return "" if start is None else clean("".join([text for index, text in self._text if index > start]))

    @property
    def reasoning(self) -> str | None:
        return clean("".join([text for _, text in self._reasoning])) or None

    def restore(self, line: bytes) -> None:
        """Take in a stored event. Tokens told before the row's metrics were last written are in them already."""
        index, event = decode(line)
        if event is None:
            return
        self.add(event, index)
        if isinstance(event, RunPaused) or _is_retry(event):
            self.metrics = self._stored_metrics

    def add(self, event: Event, index: int) -> None:
        self.last_event = type(event)
        self.waits_for_attempt = False
        match event:
            case RunContent():
                if event.content:
                    self._text.append((index, event.content))
                if event.reasoning_content:
                    self._reasoning.append((index, event.reasoning_content))
            case ModelRequestStarted():
                self.open_request_at = index
            case ModelRequestCompleted():
                self.open_request_at = None
                self.metrics = self.metrics.with_usage(_usage(event))
            case ToolCallStarted():
                self._add_tool(event.tool)
                self.started_calls.add(event.tool["tool_call_id"])
            case ToolCallCompleted():
                self._add_tool(event.tool)
                self.started_calls.discard(event.tool["tool_call_id"])
                self.completed_calls.add(event.tool["tool_call_id"])
            case RunPaused():
                for tool in event.tools:
                    self._add_tool(tool)
            case RunContinued():
                pass
            case CustomEvent(warning=dict() as warning):
                self.warnings.append(warning)
                self._discard(warning.get("discard_from"))
                self.waits_for_attempt = _is_retry(event)
                if warning.get("discard_from") == self.content_from:
                    self.content_from = index + 1
            case _:
                pass

    def _add_tool(self, tool: dict[str, Any]) -> None:
        self.tools[tool["tool_call_id"]] = ToolExecution.model_validate(clean_json(tool))

    def _discard(self, start: Any) -> None:
        if isinstance(start, int):
            self._text = [item for item in self._text if item[0] < start]
            self._reasoning = [item for item in self._reasoning if item[0] < start]
            self.open_request_at = None


def _is_retry(event: Event) -> bool:
    return isinstance(event, CustomEvent) and event.warning is not None and event.warning.get("type") == "retry"


def _usage(event: ModelRequestCompleted) -> ModelUsage:
    return ModelUsage(
        id=event.model, provider=event.model_provider, input_tokens=event.input_tokens, output_tokens=event.output_tokens,
        total_tokens=event.total_tokens, reasoning_tokens=event.reasoning_tokens, cache_read_tokens=event.cache_read_tokens,
        cache_write_tokens=event.cache_write_tokens,
    )  # fmt: skip

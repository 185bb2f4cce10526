"""Messages of the SDK (claude-agent-sdk 0.2.189) as our events, and its totals as our usage. No I/O.

With partial messages the SDK tells each block twice: piece by piece as the API streams it, then whole. The pieces become events;
of the whole only what no piece has brought. A stream that breaks off is begun again by the binary with a new message: pieces
that no whole block has confirmed by then are voided by a warning with `discard_from`. Subagents have no pieces, and what they
say is not part of the answer: only their tool calls are told, with the call that began them as parent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from claude_agent_sdk import (
    AssistantMessage,
    Message,
    ResultMessage,
    ServerToolResultBlock,
    ServerToolUseBlock,
    StreamEvent,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)

from waystation import clock
from waystation.agents.claude.home import CostState
from waystation.domain.event import CustomEvent, Event, RunContent, ToolCallCompleted, ToolCallStarted
from waystation.domain.metrics import ModelUsage
from waystation.domain.requirement import ToolExecution

PROVIDER = "Anthropic"

_Kind = Literal["text", "thinking"]
_COUNTS = ("inputTokens", "outputTokens", "thinkingTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "costUSD")


@dataclass(slots=True)
class _Streamed:
    """A block of which pieces were told and the whole not yet. `first_index` is the event of its first piece."""

    kind: _Kind
    text: str
    first_index: int


class Translator:
    """Turns the messages of one turn into events, in their order. `emit` returns an event's index in the log."""

    def __init__(self, emit: Callable[[Event], int]) -> None:
        self._emit = emit
        self._message_id: str | None = None
        self._streamed: list[_Streamed] = []
        self._starts_block = True
        self._calls: dict[str, ToolExecution] = {}

    def take(self, message: Message) -> None:
        match message:
            case StreamEvent(parent_tool_use_id=None):
                self._piece(message.event)
            case AssistantMessage():
                self._assistant(message)
            case UserMessage(content=list()):
                self._user(message)
            case SystemMessage(subtype="api_retry"):
                self._emit(CustomEvent(warning=_retry_warning(message.data)))
            case _:
                pass

    def _piece(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"type": "message_start", "message": {"id": str(message_id)}}:
                self._begin(message_id)
            case {"type": "content_block_start"}:
                self._starts_block = True
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}} if text:
                self._add("text", text)
            case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": str(text)}} if text:
                self._add("thinking", text)
            case _:
                pass

    def _begin(self, message_id: str | None) -> None:
        """The pieces that follow are of this message."""
        if message_id == self._message_id:
            return
        if self._streamed:
            first = min(block.first_index for block in self._streamed)
            text = "The model's stream broke off and was begun again."
            self._emit(CustomEvent(warning={"type": "stream_restarted", "message": text, "discard_from": first}))
            self._streamed.clear()
        self._message_id = message_id

    def _add(self, kind: _Kind, text: str) -> None:
        index = self._emit(_content(kind, text))
        if self._starts_block or not self._streamed:
            self._streamed.append(_Streamed(kind, text, index))
            self._starts_block = False
        else:
            self._streamed[-1].text += text

    def _assistant(self, message: AssistantMessage) -> None:
        if message.error is not None:
            return  # Its text is the API's error, which the result tells as well.
        of_subagent = message.parent_tool_use_id is not None
        for block in message.content:
            match block:
                case ToolUseBlock() | ServerToolUseBlock():
                    self._call(block, message.parent_tool_use_id)
                case ToolResultBlock() | ServerToolResultBlock():
                    self._result(block, message.parent_tool_use_id)
                case TextBlock(text=text) if not of_subagent:
                    self._whole("text", text, message.message_id)
                case ThinkingBlock(thinking=text) if not of_subagent:
                    self._whole("thinking", text, message.message_id)
                case _:
                    pass

    def _whole(self, kind: _Kind, text: str, message_id: str | None) -> None:
        self._begin(message_id)
        told = next((block for block in self._streamed if block.kind == kind), None)
        rest = text
        if told is not None:
            self._streamed.remove(told)
            rest = text.removeprefix(told.text) if text.startswith(told.text) else ""
        if rest:
            self._emit(_content(kind, rest))

    def _user(self, message: UserMessage) -> None:
        for block in message.content:
            if isinstance(block, ToolResultBlock | ServerToolResultBlock):
                self._result(block, message.parent_tool_use_id)

    def _call(self, block: ToolUseBlock | ServerToolUseBlock, parent: str | None) -> None:
        if block.id in self._calls:
            return
        call = ToolExecution(
            tool_call_id=block.id,
            tool_name=block.name,
            tool_args=block.input,
            created_at=int(clock.now()),
            parent_tool_call_id=parent,
        )
        self._calls[block.id] = call
        self._emit(ToolCallStarted(tool=call.model_dump(mode="json")))

    def _result(self, block: ToolResultBlock | ServerToolResultBlock, parent: str | None) -> None:
        call = self._calls.get(block.tool_use_id)
        if call is None:
            # A call of an earlier turn that the binary completes as it resumes.
            call = ToolExecution(tool_call_id=block.tool_use_id, tool_name="", parent_tool_call_id=parent)
        elif call.tool_call_error is not None:
            return
        failed = isinstance(block, ToolResultBlock) and block.is_error is True
        done = call.model_copy(update={"result": result_text(block.content), "tool_call_error": failed})
        self._calls[block.tool_use_id] = done
        self._emit(ToolCallCompleted(tool=done.model_dump(mode="json")))


def result_text(content: str | list[dict[str, Any]] | Mapping[str, Any] | None) -> str:
    """A tool's result as text. What is no text is named in brackets."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(str(part.get("text", "")) if part.get("type") == "text" else _named(part) for part in content)
        case _:
            return _named(content)


def usage_of(result: ResultMessage, before: CostState, *, model: str) -> list[ModelUsage]:
    """What the turn took of each model, subagents included. `model` is the name to use where the result names none.

    The result's totals are of the whole conversation as far as the binary knows it: `before` is where it counted on from. It may
    have begun at zero all the same, then the totals are less than that. Input tokens do not include those of the cache.
    """
    total = result.total_cost_usd or 0.0
    base = before if total >= before.cost else CostState()
    if not result.model_usage:
        return [_of_usage(result.usage or {}, total - base.cost, model)]
    deltas = {name: _delta(dict(now), base.models.get(name, {})) for name, now in result.model_usage.items()}
    return [_of_totals(name, delta) for name, delta in deltas.items() if any(delta.values())]


def _delta(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float]:
    return {name: max(0, (now.get(name) or 0) - (before.get(name) or 0)) for name in _COUNTS}


def _of_totals(name: str, counts: Mapping[str, float]) -> ModelUsage:
    given, answered = int(counts["inputTokens"]), int(counts["outputTokens"])
    return ModelUsage(
        id=name,
        provider=PROVIDER,
        input_tokens=given,
        output_tokens=answered,
        total_tokens=given + answered,
        reasoning_tokens=int(counts["thinkingTokens"]),
        cache_read_tokens=int(counts["cacheReadInputTokens"]),
        cache_write_tokens=int(counts["cacheCreationInputTokens"]),
        cost=round(counts["costUSD"], 10),
    )


def _of_usage(usage: Mapping[str, Any], cost: float, model: str) -> ModelUsage:
    given, answered = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    return ModelUsage(
        id=model,
        provider=PROVIDER,
        input_tokens=given,
        output_tokens=answered,
        total_tokens=given + answered,
        reasoning_tokens=(usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0,
        cache_read_tokens=usage.get("cache_read_input_tokens") or 0,
        cache_write_tokens=usage.get("cache_creation_input_tokens") or 0,
        cost=round(cost, 10),
    )


def _content(kind: _Kind, text: str) -> RunContent:
    return RunContent(content=text) if kind == "text" else RunContent(reasoning_content=text)


def _named(part: Mapping[str, Any]) -> str:
    return f"[{part.get('type', 'content')}]"


def _retry_warning(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "api_retry",
        "message": "A request to the model failed and is sent again.",
        "attempt": data.get("attempt"),
        "max_retries": data.get("max_retries"),
        "delay_ms": data.get("retry_delay_ms"),
        "status": data.get("error_status"),
    }

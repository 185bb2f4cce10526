"""Messages of a conversation, as they are stored and as clients read them."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["system", "user", "assistant", "tool"]

INTERRUPTED = "The tool call was interrupted; whether it had an effect is not known."


class FunctionCall(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    arguments: str = "{}"
    """The arguments as the model wrote them: JSON text, not checked."""


class ToolCall(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """One message. `from_history` marks one that a sibling run took over from its source."""

    model_config = ConfigDict(frozen=True)

    id: str
    role: Role
    content: str | None = None
    from_history: bool = False
    stop_after_tool_call: bool = False
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    tool_args: dict[str, Any] | None = None
    tool_call_error: bool | None = None
    metrics: dict[str, Any] | None = None
    provider_data: dict[str, Any] | None = None
    created_at: int = 0

    def encode(self) -> str:
        """One-line JSON without the fields that are None."""
        return self.model_dump_json(exclude_none=True)


def repaired(messages: list[Message], results: Mapping[str, str] | None = None) -> list[Message]:
    """The messages with each tool call followed by its results, as every provider demands.

    A missing result is taken from `results` (by call), else completed as interrupted; a result without a call is dropped. The order
    is kept.
    """
    result: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        if message.role == "tool":
            continue
        result.append(message)
        if not message.tool_calls:
            continue
        answers: dict[str | None, Message] = {}
        while place < len(messages) and messages[place].role == "tool":
            answers.setdefault(messages[place].tool_call_id, messages[place])
            place += 1
        result.extend(answers.get(call.id) or _completed(message, call, (results or {}).get(call.id)) for call in message.tool_calls)
    return result


def safe_cut(messages: list[Message], count: int) -> int:
    """The largest number of messages, at most `count`, that parts no tool call from its results."""
    while 0 < count < len(messages) and messages[count].role == "tool":
        count -= 1
    if 0 < count < len(messages) and messages[count - 1].tool_calls:
        count -= 1
    return count


def _completed(message: Message, call: ToolCall, result: str | None) -> Message:
    return Message(
        id=f"{message.id}-{call.id}",
        role="tool",
        content=INTERRUPTED if result is None else result,
        tool_call_id=call.id,
        tool_name=call.function.name,
        tool_call_error=result is None,
        created_at=message.created_at,
    )

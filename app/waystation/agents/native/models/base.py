"""What a native agent needs of a model: one request, answered as a stream of deltas.

A model keeps nothing between requests and is shared by all runs. It raises AgentError with `error_type` "model_provider_error" for
a failure of its provider, retryable where asking again may help.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from waystation.domain.message import Message, ToolCall
from waystation.errors import AgentError


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallsDelta:
    """Complete calls, in the order the model made them. Several of these in one answer add up."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageDelta:
    """The tokens of the request; of several, the last counts. `total_tokens` 0 stands for input and output together."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


ModelDelta = TextDelta | ReasoningDelta | ToolCallsDelta | UsageDelta


class Model(ABC):
    """A model. `id` and `provider` are recorded on each run; `name` is for show; `is_demo` marks one that only plays a model."""

    def __init__(self, *, id: str, provider: str, name: str | None = None, is_demo: bool = False) -> None:
        self.id = id
        self.provider = provider
        self.name = name or id
        self.is_demo = is_demo

    @abstractmethod
    def request(
        self, messages: list[Message], tools: list[dict[str, Any]], *, output_schema: dict[str, Any] | None
    ) -> AsyncGenerator[ModelDelta, None]:
        """Answer the conversation. `tools` are the descriptions of those that may be called: name, description, parameters.

        `output_schema` is the JSON Schema of the object that the answer must be. The generator is closed early when the turn is
        to stop.
        """


def provider_failure(message: str, *, retryable: bool = True) -> AgentError:
    """What a model raises when its provider fails."""
    return AgentError(message, error_type="model_provider_error", retryable=retryable)

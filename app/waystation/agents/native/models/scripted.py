"""A model that follows a script: for tests, examples and load scripts. Deterministic but for the ids of calls that give none."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from waystation.agents.native.models.base import Model, ModelDelta, ReasoningDelta, TextDelta, ToolCallsDelta, UsageDelta
from waystation.domain.message import FunctionCall, Message, ToolCall


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    ms: float


@dataclass(frozen=True, slots=True)
class Think:
    """A piece of reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. Arguments given as text are handed on as they are, valid or not. All calls of an answer come at its end."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


Step = str | Think | Pause | Call | Exception
"""A text is a chunk of the answer; an exception is raised."""

Script = Callable[[list[Message]], Iterable[Step]]
"""Given the conversation, the steps of the next answer."""

NO_USAGE = UsageDelta()


class ScriptedModel(Model):
    """Answers each request by the steps that `script` gives for it. `usage` is told for each request that does not fail."""

    def __init__(self, script: Script, *, id: str = "scripted", provider: str = "Scripted", usage: UsageDelta = NO_USAGE) -> None:
        super().__init__(id=id, provider=provider)
        self._script = script
        self._usage = usage

    async def request(
        self, messages: list[Message], tools: list[dict[str, Any]], *, output_schema: dict[str, Any] | None
    ) -> AsyncGenerator[ModelDelta, None]:
        calls: list[ToolCall] = []
        for step in self._script(messages):
            match step:
                case str():
                    yield TextDelta(step)
                case Think():
                    yield ReasoningDelta(step.text)
                case Pause():
                    await asyncio.sleep(step.ms / 1000)
                case Call():
                    calls.append(_tool_call(step))
                case Exception():
                    raise step
        if calls:
            yield ToolCallsDelta(tuple(calls))
        yield self._usage


def last_user_text(messages: list[Message]) -> str:
    """What the user said last; empty if nothing."""
    return next((m.content or "" for m in reversed(messages) if m.role == "user"), "")


def _tool_call(call: Call) -> ToolCall:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments), ensure_ascii=False)
    return ToolCall(id=call.id or f"call_{os.urandom(6).hex()}", function=FunctionCall(name=call.name, arguments=arguments))

"""The native agent, as users construct it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from waystation.agents.base import BaseAgent, Capability
from waystation.agents.native.context import system_text
from waystation.agents.native.loop import TurnLoop
from waystation.agents.native.models.base import Model
from waystation.agents.native.models.named import get_model
from waystation.agents.native.setup import Setup
from waystation.agents.native.tools import as_tool
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.domain.event import ModelRequestStarted
from waystation.domain.media import MediaKind
from waystation.domain.webhook import Webhook
from waystation.errors import ConfigError


class Agent(BaseAgent):
    """An agent of our own: a model, instructions and tools. Immutable; any number of runs share it.

    Args:
        id: default: made of the name ("My Agent" → `my-agent`).
        name: for show; default: the id.
        model: a Model, or a text that names one: `demo:offline` is a scripted model that needs no key.
        tools: plain functions, or functions with `@tool`. Names must be different.
        instructions: the system prompt, behind the description.
        description: who the agent is; the first line of the system prompt, and shown to clients.
        add_history_to_context: whether the model sees earlier runs of the session. A request may say otherwise for itself.
        num_history_runs: how many earlier runs that are.
        tool_call_limit: how many tool calls a run may make; calls beyond it are answered with an error, and the run goes on.
        metadata: free-form, shown to clients.
        webhooks: who is told of the ends and pauses of its runs.

    Raises ConfigError for settings that can't work.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset({
        Capability.CONTINUE, Capability.RESUME_TURN, Capability.PAUSE, Capability.PAUSE_FREES_SESSION, Capability.OUTPUT_SCHEMA,
        Capability.ROLLBACK, Capability.FORK_SESSION,
    })  # fmt: skip
    media: ClassVar[frozenset[MediaKind]] = frozenset(MediaKind)

    def __init__(
        self,
        *,
        id: str | None = None,
        name: str | None = None,
        model: Model | str,
        tools: Sequence[Callable[..., Any]] = (),
        instructions: str | None = None,
        description: str | None = None,
        add_history_to_context: bool = False,
        num_history_runs: int = 3,
        tool_call_limit: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        webhooks: Sequence[Webhook] = (),
    ) -> None:
        if num_history_runs < 1:
            raise ConfigError(f"num_history_runs must be at least 1, not {num_history_runs!r}.")
        if tool_call_limit is not None and tool_call_limit < 0:
            raise ConfigError(f"tool_call_limit must not be negative, not {tool_call_limit!r}.")
        used = get_model(model) if isinstance(model, str) else model
        super().__init__(
            id=id or slug_of(name),
            name=name,
            description=description,
            metadata=dict(metadata or {}) | {"demo": True} if used.is_demo else metadata,
            history_runs=num_history_runs if add_history_to_context else 0,
            webhooks=webhooks,
        )
        made = [as_tool(function) for function in tools]
        by_name = {tool.name: tool for tool in made}
        if len(by_name) < len(made):
            names = [tool.name for tool in made]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"Agent {self.id!r} has two tools with the name {twice!r}; names must be different.")
        self._setup = Setup(
            model=used,
            tools=by_name,
            offered=[_offered(tool.described()) for tool in made],
            system=system_text(description, instructions),
            tool_call_limit=tool_call_limit,
            request_started=ModelRequestStarted(model=used.id, model_provider=used.provider),
        )

    @property
    def model(self) -> str:
        return self._setup.model.id

    @property
    def model_provider(self) -> str:
        return self._setup.model.provider

    def tools(self) -> list[dict[str, Any]]:
        return [tool.described() for tool in self._setup.tools.values()]

    async def run_turn(self, turn: Turn, emit: Emitter) -> TurnResult:
        return await TurnLoop(self._setup, turn, emit).run()


def slug_of(name: str | None) -> str:
    """An id made of a name. Raises ConfigError if there is nothing to make it of."""
    slug = re.sub(r"[^a-z0-9.-]+", "-", (name or "").lower()).strip("-")
    if not slug:
        raise ConfigError("Give the agent an id, or a name with a letter or digit to make one of.")
    return slug


def _offered(description: dict[str, Any]) -> dict[str, Any]:
    return {key: description[key] for key in ("name", "description", "parameters")}

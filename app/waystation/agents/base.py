"""What an agent is: the one method that executes, and what it can do besides."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar

from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.domain.media import MediaKind
from waystation.domain.retry import RetryPolicy
from waystation.domain.text import is_identifier
from waystation.domain.webhook import Webhook
from waystation.errors import ConfigError


class Capability(StrEnum):
    """What an agent can do besides a plain turn. A request for what it can't is refused before the run."""

    CONTINUE = "continue"
    """Start from the messages of another run (`Turn.messages`)."""
    RESUME_TURN = "resume_turn"
    """Go on after a crash without doing again what is done."""
    PAUSE = "pause"
    """Pause for requirements and go on with the answered ones."""
    PAUSE_FREES_SESSION = "pause_frees_session"
    """While a run is paused its session takes other turns."""
    OUTPUT_SCHEMA = "output_schema"
    """Answer by a JSON Schema given with the run."""
    ROLLBACK = "rollback"
    """Go on as if the last turn had not been: nothing of it is kept but the messages that the history leaves out."""
    FORK_SESSION = "fork_session"
    """A copy of a session's runs and messages is all it needs to go on from."""


class BaseAgent(ABC):
    """A configured executor of turns. Immutable after construction: many runs share it at the same time.

    `sdk` names the SDK of an external agent and is None for a native one. `media` are the kinds of files it takes.
    `history_runs` is how many earlier runs of the session it wants as messages. `webhooks` are told of the ends and pauses of its runs.
    """

    sdk: ClassVar[str | None] = None
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    media: ClassVar[frozenset[MediaKind]] = frozenset()

    def __init__(
        self,
        *,
        id: str,
        name: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
        history_runs: int = 0,
        webhooks: Sequence[Webhook] = (),
    ) -> None:
        if not is_identifier(id):
            raise ConfigError(f"Agent id {id!r}: use 1 to 255 letters, digits or . _ - : @ ~ + = ,")
        self.id = id
        self.name = name or id
        self.description = description
        self.metadata = dict(metadata or {})
        self.retry = retry or RetryPolicy()
        self.history_runs = history_runs
        self.webhooks = tuple(webhooks)
        if len({webhook.id for webhook in self.webhooks}) < len(self.webhooks):
            raise ConfigError(f"Agent {id!r} has two webhooks with the same id; ids must be different.")

    @property
    @abstractmethod
    def model(self) -> str:
        """The model's name, as recorded on each run."""

    @property
    @abstractmethod
    def model_provider(self) -> str: ...

    @abstractmethod
    async def run_turn(self, turn: Turn, emit: Emitter) -> TurnResult:
        """Execute a turn. Raises AgentError for a failure that it can name; any other exception is a failure too.

        When `turn.cancel` is requested it must end soon, in any way; what it returns then is not looked at.
        """

    def tools(self) -> list[dict[str, Any]]:
        """The tools it offers its model, for `/agents`: name, description, parameters (JSON Schema)."""
        return []

    async def start(self) -> None:
        """Called once before the first turn, in the server's event loop."""

    async def close(self) -> None:
        """Called once at shutdown, after the last turn has ended."""


class ExternalAgent(BaseAgent):
    """The public base for adapters of an SDK that keeps its own conversation.

    Implement `run_turn`, `model` and `model_provider`, and set `sdk`. The run's messages (what was asked, what was answered) are
    recorded for it unless it records its own with `emit.message`.
    """

    sdk: ClassVar[str | None] = "external"

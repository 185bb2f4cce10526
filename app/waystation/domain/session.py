"""A session: our conversation. It belongs to the agent of its first run."""

from dataclasses import dataclass, field
from typing import Any

MAX_SHOWN_NAME_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One row of `sessions`. The token counts are the sums over its runs; `first_message` names it until it has a name."""

    id: str
    agent_id: str | None
    user_id: str | None
    created_at: float
    updated_at: float
    name: str | None = None
    first_message: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    external_session_id: str | None = None
    sdk_generation: int = 0
    last_run_id: str | None = None
    forked_from_session_id: str | None = None
    runs: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None

    @property
    def shown_name(self) -> str:
        return self.name if self.name is not None else (self.first_message or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Which sessions a list shows. None does not filter."""

    user_id: str | None = None
    agent_id: str | None = None
    name: str | None = None
    search: str | None = None
    sort_by: str = "created_at"
    descending: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPatch:
    """What a change of a session names; a field that is not in `given` stays as it is."""

    given: frozenset[str]
    name: str | None = None
    state: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None

"""Sessions as clients read and write them."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from waystation.agents.base import BaseAgent
from waystation.clock import iso
from waystation.domain.message import Message
from waystation.domain.metrics import COUNTS
from waystation.domain.session import Session
from waystation.domain.text import REPLACEMENT, is_identifier

MAX_NAME_CHARS = 10_000


def _identifier(value: str | None) -> str | None:
    # U+FFFD stands where a character could not be stored: two ids would become one.
    if value is not None and (REPLACEMENT in value or not is_identifier(value)):
        raise ValueError("use 1 to 255 letters, digits or . _ - : @ ~ + = , or printable non-ASCII characters")
    return value


def _none_if_empty(value: Any) -> Any:
    return None if value == "" else value


Identifier = Annotated[str | None, BeforeValidator(_none_if_empty), AfterValidator(_identifier)]


class CreateSession(BaseModel):
    model_config = ConfigDict(extra="ignore")

    session_id: Identifier = None
    session_name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    session_state: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    user_id: Identifier = None
    agent_id: str | None = None


class PatchSession(BaseModel):
    model_config = ConfigDict(extra="ignore")

    session_name: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    session_state: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None


class RenameSession(BaseModel):
    model_config = ConfigDict(extra="ignore")

    session_name: str = Field(max_length=MAX_NAME_CHARS)


class DeleteSessions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    session_ids: list[str] = Field(max_length=10_000)
    session_types: list[str] = Field(default_factory=list)


class SessionBody(BaseModel):
    """A session. Dates are ISO 8601 in UTC."""

    model_config = ConfigDict(extra="allow")

    session_id: str
    session_name: str
    session_state: dict[str, Any] | None = None
    agent_id: str | None = None
    user_id: str | None = None
    metadata: dict[str, Any] | None = None
    created_at: str
    updated_at: str


class ForkBody(BaseModel):
    session_id: str
    forked_from_session_id: str


def session_item(session: Session, agent: BaseAgent | None) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "session_name": session.shown_name,
        "session_state": session.state,
        "created_at": iso(session.created_at),
        "updated_at": iso(session.updated_at),
        "session_type": "agent",
        "user_id": session.user_id,
        "agent_id": session.agent_id,
        "team_id": None,
        "workflow_id": None,
        "session_summary": session.summary,
        "metrics": metrics_of(session),
        "total_tokens": session.total_tokens,
        "metadata": metadata_of(session, agent),
    }


def session_detail(session: Session, agent: BaseAgent | None, history: list[Message]) -> dict[str, Any]:
    return {
        "user_id": session.user_id,
        "agent_session_id": session.id,
        "session_id": session.id,
        "session_name": session.shown_name,
        "session_summary": session.summary,
        "session_state": session.state,
        "agent_id": session.agent_id,
        "total_tokens": session.total_tokens,
        "agent_data": _agent_data(session, agent),
        "metrics": metrics_of(session),
        "metadata": metadata_of(session, agent),
        "chat_history": history,
        "created_at": iso(session.created_at),
        "updated_at": iso(session.updated_at),
        "forked_from_session_id": session.forked_from_session_id,
    }


def metadata_of(session: Session, agent: BaseAgent | None) -> dict[str, Any] | None:
    """The session's metadata; sessions of external agents carry the name of their SDK."""
    sdk = {"sdk": agent.sdk} if agent is not None and agent.sdk is not None else {}
    return (session.metadata | sdk) or None


def metrics_of(session: Session) -> dict[str, Any]:
    counts: dict[str, Any] = {name: value for name in COUNTS if (value := getattr(session, name))}
    return counts | ({"cost": session.cost} if session.cost is not None else {})


def _agent_data(session: Session, agent: BaseAgent | None) -> dict[str, Any]:
    if agent is None:
        return {"agent_id": session.agent_id}
    data: dict[str, Any] = {"agent_id": agent.id, "name": agent.name, "agent_name": agent.name}
    data["model"] = {"id": agent.model, "provider": agent.model_provider, "name": agent.model}
    return data | ({"sdk": agent.sdk} if agent.sdk is not None else {})

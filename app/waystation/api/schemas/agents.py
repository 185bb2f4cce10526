"""Agents as clients read them."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from waystation.agents.base import BaseAgent
from waystation.api.schemas.shared import without_none


class AgentBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    name: str
    db_id: str
    description: str | None = None
    model: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


def agent_body(agent: BaseAgent, db_id: str) -> dict[str, Any]:
    tools = agent.tools()
    metadata = agent.metadata | ({"sdk": agent.sdk} if agent.sdk is not None else {})
    return without_none({
        "id": agent.id,
        "name": agent.name,
        "db_id": db_id,
        "description": agent.description,
        "is_factory": False,
        "is_component": False,
        "model": {"name": agent.model, "model": agent.model, "provider": agent.model_provider},
        "tools": {"tools": tools} if tools else None,
        "sessions": {"session_table": "sessions"},
        "capabilities": sorted(capability.value for capability in agent.capabilities),
        "media": sorted(kind.value for kind in agent.media),
        "metadata": metadata or None,
    })  # fmt: skip

"""`/agents`: which agents are served."""

from typing import Any

from fastapi import APIRouter, Response

from waystation.api.deps import ContainerDep
from waystation.api.schemas.agents import AgentBody, agent_body
from waystation.api.schemas.shared import errors, json_response

router = APIRouter(tags=["agents"])


@router.get("/agents", operation_id="list_agents", response_model=list[AgentBody])
async def list_agents(container: ContainerDep) -> Response:
    """The agents of this server."""
    bodies: list[dict[str, Any]] = [agent_body(agent, container.settings.os_id) for agent in container.registry]
    return json_response(bodies)


@router.get("/agents/{agent_id}", operation_id="get_agent", response_model=AgentBody, responses=errors(404))
async def get_agent(agent_id: str, container: ContainerDep) -> Response:
    """One agent."""
    return json_response(agent_body(container.registry.get(agent_id), container.settings.os_id))

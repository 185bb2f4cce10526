"""The agents that this process serves, by id."""

from collections.abc import Iterable, Iterator

from waystation.agents.base import BaseAgent
from waystation.errors import AgentNotFoundError, ConfigError


class AgentRegistry:
    def __init__(self, agents: Iterable[BaseAgent]) -> None:
        self._agents: dict[str, BaseAgent] = {}
        for agent in agents:
            if agent.id in self._agents:
                raise ConfigError(f"Two agents have the id {agent.id!r}; ids must be different.")
            self._agents[agent.id] = agent

    def get(self, agent_id: str) -> BaseAgent:
        """Raises AgentNotFoundError."""
        agent = self._agents.get(agent_id)
        if agent is None:
            raise AgentNotFoundError(agent_id)
        return agent

    def find(self, agent_id: str) -> BaseAgent | None:
        return self._agents.get(agent_id)

    @property
    def ids(self) -> list[str]:
        return list(self._agents)

    def __iter__(self) -> Iterator[BaseAgent]:
        return iter(self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

"""What users put their agents into: `Waystation(agents=[…]).app` is a FastAPI application."""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI

from waystation.agents.base import BaseAgent
from waystation.api.app import build_app
from waystation.config import Settings
from waystation.container import Container


class Waystation:
    """A server of agents. Settings come from the environment (`WAYSTATION_*`) unless given here.

    `app` can be run by uvicorn or mounted into another FastAPI application (whose lifespan must then run this one's).
    """

    def __init__(self, agents: Iterable[BaseAgent], *, settings: Settings | None = None, **overrides: Any) -> None:
        self.agents = list(agents)
        self.settings = (settings or Settings()).model_copy(update=overrides) if settings else Settings(**overrides)
        self.app: FastAPI = build_app(
            lambda: Container(self.settings, self.agents),
            self.settings.cors_origins,
            self.settings.max_body_bytes,
            self.settings.ping_s,
        )

    def serve(self, *, host: str | None = None, port: int | None = None) -> None:
        """Run the server until it is told to stop. Blocks."""
        from waystation.serving import run_server

        run_server(self.app, self.settings, host=host, port=port)

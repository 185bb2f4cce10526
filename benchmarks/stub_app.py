"""The scripted agents of the contract behind HTTP: `uvicorn --factory benchmarks.stub_app:create_app`.

The database is WAYSTATION_DATABASE_URL, as for any server.
"""

from fastapi import FastAPI

from benchmarks.stub_agents import stub_agents
from waystation.main import Waystation


def create_app() -> FastAPI:
    return Waystation(agents=stub_agents()).app

"""What the server says of itself: `/`, `/health`, `/info`, `/config`; and what it does not offer yet."""

from typing import Any

from fastapi import APIRouter, Request, Response

from waystation.api.deps import ContainerDep
from waystation.api.schemas.shared import errors, json_response
from waystation.clock import iso
from waystation.errors import UnavailableError

router = APIRouter(tags=["server"])

ABSENT = ("memories", "memory_topics", "user_memory_stats", "optimize-memories", "schedules", "traces", "knowledge", "eval-runs")
"""Parts of AgentOS that this version does not have: 503 in the normal error body, as AgentOS does for what is switched off."""
ABSENT_METHODS = ["GET", "POST", "PATCH", "DELETE"]


class FeatureDisabledError(UnavailableError):
    error_type = "feature_disabled"


@router.get("/", operation_id="root", response_model=dict[str, Any])
async def root(container: ContainerDep) -> Response:
    """The name of the service and where to look."""
    return json_response({"name": container.settings.os_name, "health": "/health", "info": "/info", "docs": "/docs"})


@router.get("/health", operation_id="health", response_model=dict[str, Any], responses=errors(503))
async def health(container: ContainerDep) -> Response:
    """Whether new runs can be taken: 200, or 503 with what is wrong."""
    found = await container.health.check()
    body = {
        "status": "ok" if found.ok else "unavailable",
        "instantiated_at": iso(container.started_at),
        "store": found.store,
        "ledger_lag_s": found.ledger_lag_s,
        "worker": found.worker,
        "viewers": found.viewers,
        "live": found.live,
    }
    return json_response(body, status_code=200 if found.ok else 503)


@router.get("/info", operation_id="info", response_model=dict[str, Any])
async def info(request: Request, container: ContainerDep) -> Response:
    """What this server is."""
    return json_response({
        "os_id": container.settings.os_id,
        "name": container.settings.os_name,
        "os_version": request.app.version,
        "agent_count": len(container.registry),
        "team_count": 0,
        "workflow_count": 0,
        "mcp": {"enabled": False},
        "auth_mode": "none",
        "user_isolation": False,
    })  # fmt: skip


@router.get("/config", operation_id="config", response_model=dict[str, Any])
async def config(container: ContainerDep) -> Response:
    """The parts of this server, in the shape of AgentOS."""
    db_id = container.settings.os_id
    stores = {"dbs": [{"db_id": db_id, "domain_config": {"display_name": db_id}, "tables": []}]}
    agents = [
        {
            "id": agent.id, "name": agent.name, "description": agent.description, "db_id": db_id,
            "model": {"id": agent.model, "provider": agent.model_provider}, "metadata": agent.metadata or None,
        }
        for agent in container.registry
    ]  # fmt: skip
    models = {(agent.model, agent.model_provider) for agent in container.registry}
    return json_response({
        "os_id": container.settings.os_id,
        "name": container.settings.os_name,
        "description": None,
        "available_models": [{"id": model, "provider": provider} for model, provider in sorted(models)],
        "os_database": db_id,
        "databases": [db_id],
        "session": stores,
        "agents": agents,
        "teams": [],
        "workflows": [],
        "interfaces": [],
    })  # fmt: skip


@router.get("/teams", operation_id="list_teams", response_model=list[dict[str, Any]])
async def list_teams() -> Response:
    """Always empty: clients of AgentOS ask for it."""
    return json_response([])


@router.get("/workflows", operation_id="list_workflows", response_model=list[dict[str, Any]])
async def list_workflows() -> Response:
    """Always empty: clients of AgentOS ask for it."""
    return json_response([])


async def absent(request: Request) -> Response:
    part = request.url.path.strip("/").split("/", 1)[0]
    raise FeatureDisabledError(f"{part!r} is not part of this version of Waystation.")


METRICS_ROUTES = (
    ("/metrics", "GET", "get_metrics"), ("/metrics/refresh", "POST", "refresh_metrics"),
    ("/metrics/refresh/status", "GET", "get_metrics_refresh"),
)  # fmt: skip
for _path, _method, _operation in METRICS_ROUTES:
    router.add_api_route(
        _path, absent, methods=[_method], operation_id=_operation, response_model=dict[str, Any], responses=errors(503),
        summary="Daily metrics: not part of this version",
    )  # fmt: skip
for _name in ABSENT:
    for _path in (f"/{_name}", f"/{_name}/{{rest:path}}"):
        router.add_api_route(_path, absent, methods=ABSENT_METHODS, include_in_schema=False)

"""What handlers are given: the container, who asks, pages."""

from typing import Annotated

from fastapi import Depends, Query, Request

from waystation.api.sse import Pings
from waystation.container import Container
from waystation.domain.access import Principal
from waystation.domain.page import PageRequest
from waystation.domain.text import is_identifier
from waystation.errors import InvalidInputError

MOST_PAGES = 1_000_000_000
"""Beyond it the place of a page would not fit into the database's integers."""


def container_of(request: Request) -> Container:
    container: Container = request.app.state.container
    return container


def pings_of(request: Request) -> Pings:
    pings: Pings = request.app.state.pings
    return pings


def principal_of(request: Request) -> Principal:
    """Nobody is authenticated yet: nothing is confined, and a user_id is a label."""
    return Principal(request_id=request.scope.get("state", {}).get("request_id"))


# Dependencies are async: FastAPI would run plain functions in a thread each.
async def get_container(request: Request) -> Container:
    return container_of(request)


async def get_pings(request: Request) -> Pings:
    return pings_of(request)


async def get_principal(request: Request) -> Principal:
    return principal_of(request)


async def get_page(page: Annotated[int, Query(ge=0, le=MOST_PAGES)] = 1, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> PageRequest:
    return PageRequest(page=max(page, 1), limit=limit)


async def get_user(user_id: Annotated[str | None, Query()] = None) -> str | None:
    """A user_id in the query; empty counts as none."""
    if not user_id:
        return None
    if not is_identifier(user_id):
        raise InvalidInputError("user_id", "is not a user id", where="query")
    return user_id


ContainerDep = Annotated[Container, Depends(get_container)]
PingsDep = Annotated[Pings, Depends(get_pings)]
PrincipalDep = Annotated[Principal, Depends(get_principal)]
PageDep = Annotated[PageRequest, Depends(get_page)]
UserDep = Annotated[str | None, Depends(get_user)]

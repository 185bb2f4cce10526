"""A route without anything between the router and its function."""

from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


class DirectRoute(APIRoute):
    """A FastAPI route in the documents and in the errors it answers, whose async function is called with the request and the texts of
    its path, and gives the response itself.

    FastAPI's solving of dependencies, its exit stacks and its second round of exception handlers cost as much as the bare route does
    that they serve. A function of this route has no dependencies and takes no parameters but those of its path, as text.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.endpoint(request=Request(scope, receive, send), **scope["path_params"])
        await response(scope, receive, send)

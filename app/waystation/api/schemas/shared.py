"""Shapes that several routes share."""

from typing import Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from waystation.domain.page import Page


class ErrorBody(BaseModel):
    """Every error: a sentence, a stable word twice, the id of the request, and data of that error."""

    model_config = ConfigDict(extra="allow")

    detail: Any
    error_type: str
    error_id: str
    request_id: str | None = None


class PageMeta(BaseModel):
    page: int
    limit: int
    total_pages: int
    total_count: int
    search_time_ms: float = 0.0


def page_meta(page: Page[Any]) -> dict[str, Any]:
    return {
        "page": page.request.page,
        "limit": page.request.limit,
        "total_pages": page.pages,
        "total_count": page.total,
        "search_time_ms": 0.0,
    }


def json_response(body: Any, *, status_code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The body as JSON; models in it without their None fields."""
    return Response(to_json(body, exclude_none=True), status_code=status_code, media_type="application/json", headers=headers)


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The error answers that a route declares."""
    return {code: {"model": ErrorBody} for code in codes}


def without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}

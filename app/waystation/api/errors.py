"""Errors as answers: one body for all, with a stable word, the request's id and nothing of the inside."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from waystation.errors import AppError, InvalidInputError, SessionBusyError
from waystation.logs import get_logger

log = get_logger(__name__)

WORDS = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "payload_too_large", 415: "unsupported_content_type"}


def install(app: FastAPI) -> None:
    app.add_exception_handler(SessionBusyError, _busy)
    app.add_exception_handler(AppError, _app_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unexpected)


def _request_id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def error_response(
    request: Request,
    status_code: int,
    word: str,
    detail: Any,
    data: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = {
        "detail": detail,
        "error_type": word,
        "error_id": word,
        "request_id": _request_id(request),
        **(data or {}),
    }
    return Response(to_json(body), status_code=status_code, media_type="application/json", headers=headers)


async def _busy(request: Request, error: Exception) -> Response:
    assert isinstance(error, SessionBusyError)
    log.warning("session busy", session_id=error.session_id, run_id=error.run_id, request_id=_request_id(request))
    return error_response(request, error.status_code, error.error_type, error.detail, error.data, error.headers)


async def _app_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AppError)
    if error.status_code >= 500:
        log.warning(
            "request refused", path=request.url.path, status=error.status_code, error_type=error.error_type,
            request_id=_request_id(request),
        )  # fmt: skip
    detail: Any = error.problems if isinstance(error, InvalidInputError) else error.detail
    return error_response(request, error.status_code, error.error_type, detail, error.data, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [{"type": p["type"], "loc": list(p["loc"]), "msg": p["msg"]} for p in error.errors()]
    return error_response(request, 422, InvalidInputError.error_type, problems)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    word = WORDS.get(error.status_code, "http_error")
    headers = dict(error.headers or {})
    return error_response(request, error.status_code, word, str(error.detail), None, headers)


async def _left(request: Request, error: Exception) -> Response:
    """The client went away before its request was complete: nobody reads the answer."""
    return Response(status_code=400)


async def _unexpected(request: Request, error: Exception) -> Response:
    # Answered outside of all middleware, so the id is put into the headers here.
    headers = {"X-Request-ID": _request_id(request)}
    log.error("request failed", path=request.url.path, error=type(error).__name__, request_id=headers["X-Request-ID"])
    detail = "The server failed unexpectedly; its log has the details."
    return error_response(request, 500, "internal_error", detail, headers=headers)

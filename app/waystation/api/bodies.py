"""Request bodies: multipart, urlencoded and JSON read alike, parsed once, validated once.

Limits are the same for all three; JSON is strict (no NaN, no infinities, a bound on its depth); NUL and lone surrogates in text
become U+FFFD. FastAPI's own form parameters would cost twice the time of a whole run's route.
"""

import json
import math
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from waystation.config import Settings
from waystation.domain.text import clean_json, depth_of
from waystation.errors import InvalidInputError, PayloadTooLargeError, UnsupportedContentTypeError

M = TypeVar("M", bound=BaseModel)

MAX_FILES = 100
MAX_BOUNDARY_BYTES = 256
MAX_INTEGER_DIGITS = 1_000


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a number")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer has more than {MAX_INTEGER_DIGITS} digits")
    return int(text)


def strict_json(text: str | bytes, max_depth: int, *, around: int = 0) -> Any:
    """The value of a JSON text, cleaned for storage. Raises ValueError with a sentence for the caller. `around`: levels that do not
    count, since a form has none in their place: so a field may be nested equally deep in each kind of body."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"nested deeper than {max_depth} levels") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as exc:
        raise ValueError(f"not valid JSON: {exc.msg}") from None
    if depth_of(value) > max_depth + around:
        raise ValueError(f"nested deeper than {max_depth} levels")
    return clean_json(value)


def invalid(field: str, message: str, *, kind: str = "value_error") -> RequestValidationError:
    return RequestValidationError([{"type": kind, "loc": ("body", field), "msg": message}])


def validated(model: type[M], fields: Mapping[str, Any], settings: Settings) -> M:
    """The model made of the fields. RequestValidationError in FastAPI's list form otherwise."""
    try:
        return model.model_validate(fields, context={"max_json_depth": settings.max_json_depth})
    except ValidationError as exc:
        problems = exc.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**p, "loc": ("body", *p["loc"])} for p in problems]) from exc


async def read_fields(request: Request, settings: Settings) -> tuple[dict[str, Any], list[UploadFile]]:
    """The fields of a body and its uploads. A field that is given twice counts once, with its last value."""
    kind = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if kind == "application/x-www-form-urlencoded" or (not kind and request.headers.get("content-length") in (None, "0")):
        return _urlencoded(await request.body(), settings), []
    if kind == "multipart/form-data":
        return await _multipart(request, settings)
    if kind == "application/json":
        value = await read_json(request, settings)
        if not isinstance(value, dict):
            raise invalid("body", "expected a JSON object", kind="model_type")
        return value, []
    raise UnsupportedContentTypeError("Send a form (multipart or urlencoded) or a JSON object.")


async def read_json(request: Request, settings: Settings) -> Any:
    """The JSON value of a body."""
    try:
        return strict_json(await request.body(), settings.max_json_depth, around=1)
    except ValueError as exc:
        raise invalid("body", str(exc), kind="json_invalid") from exc


async def read_model(request: Request, settings: Settings, model: type[M]) -> M:
    """A JSON body as a model."""
    value = await read_json(request, settings)
    if not isinstance(value, dict):
        raise invalid("body", "expected a JSON object", kind="model_type")
    return validated(model, value, settings)


def _urlencoded(body: bytes, settings: Settings) -> dict[str, Any]:
    try:
        # curl's -d sends UTF-8 as it is, without percent signs.
        text = body.decode("utf-8", "replace")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=settings.max_form_fields)
    except ValueError as exc:
        raise invalid("body", f"more than {settings.max_form_fields} fields") from exc
    return dict(pairs)


async def _multipart(request: Request, settings: Settings) -> tuple[dict[str, Any], list[UploadFile]]:
    tail = b""

    async def with_tail() -> AsyncGenerator[bytes]:
        nonlocal tail
        async for chunk in request.stream():
            tail = (tail + chunk)[-MAX_BOUNDARY_BYTES:]
            yield chunk

    # The limit on a part stands above the one on the message, so that the message's own refusal names it.
    parser = MultiPartParser(
        request.headers, with_tail(), max_files=MAX_FILES, max_fields=settings.max_form_fields,
        max_part_size=settings.max_body_bytes,
    )  # fmt: skip
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as exc:
        if isinstance(exc, MultiPartException) and "maximum size" in exc.message:
            raise PayloadTooLargeError(f"A field is larger than {settings.max_body_bytes} bytes.") from exc
        message = exc.message if isinstance(exc, MultiPartException) else "the boundary is missing"
        raise invalid("body", message) from exc
    _, options = parse_options_header(request.headers["content-type"])
    if not tail.rstrip().endswith(b"--%b--" % options.get(b"boundary", b"")):
        # The parser drops a part without an end: its file or field would be missing in the run.
        raise invalid("body", "the multipart body breaks off")
    fields: dict[str, Any] = {}
    uploads: list[UploadFile] = []
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            fields[name] = value
        elif name == "files":
            uploads.append(value)
        else:
            raise InvalidInputError(name, "is not a field for files; use `files`")
    return fields, uploads

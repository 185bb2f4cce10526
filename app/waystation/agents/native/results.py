"""The text a model is given for the result of a tool.

Text is handed on as it is and None is the empty text. Everything else has the form it would have in JSON: models, dataclasses
and dicts as objects; lists, tuples and sets as arrays; bytes as base64; dates and times in ISO 8601; Decimal, UUID, Path and what
JSON has no word for as their text; NaN and the infinities as null. A result that is a single text in JSON is not quoted.
"""

import json
from typing import Any

from pydantic_core import to_jsonable_python

from waystation.domain.text import clean, clean_json, depth_of

MOST_DEPTH = 100


class ToolError(Exception):
    """A call failed in a way that the model is told in these words."""


def text_of(value: Any) -> str:
    """The text of a result. Raises ToolError for one that contains itself or is nested deeper than 100; ValueError or TypeError
    for one that has no such form."""
    if type(value) is str:
        return clean(value)
    if value is None:
        return ""
    try:
        plain = to_jsonable_python(value, bytes_mode="base64", timedelta_mode="iso8601", fallback=str)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, RecursionError) or "Circular" in str(exc) or "depth" in str(exc):
            raise ToolError(f"The result contains itself or is nested deeper than {MOST_DEPTH} levels.") from exc
        raise
    if depth_of(plain) > MOST_DEPTH:
        raise ToolError(f"The result is nested deeper than {MOST_DEPTH} levels.")
    if isinstance(plain, str):
        return clean(plain)
    return json.dumps(clean_json(plain), ensure_ascii=False)

"""Structured output: which schemas are taken, and how an answer is read by one."""

import json
from typing import Any

from waystation.domain.text import clean_json


def problem_with(schema: Any) -> str | None:
    """Why this is not a schema that an agent can be asked to fill, or None. The root must be an object."""
    if not isinstance(schema, dict):
        return "expected a JSON Schema object"
    if schema.get("type") != "object":
        return 'the root must declare "type": "object"'
    if not isinstance(schema.get("properties", {}), dict):
        return '"properties" must be an object'
    return None


def title_of(schema: dict[str, Any]) -> str:
    title = schema.get("title")
    return title if isinstance(title, str) and title else "dict"


def parsed(text: str) -> dict[str, Any] | None:
    """The object that an answer consists of, or None if it is not one. A fence of three backticks around it is ignored."""
    body = text.strip()
    if body.startswith("```"):
        body = body.split("\n", 1)[-1].rsplit("```", 1)[0]
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return clean_json(value) if isinstance(value, dict) else None

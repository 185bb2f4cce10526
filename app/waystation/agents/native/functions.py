"""What a Python function says about itself: its description, its parameters as JSON Schema, and how arguments are checked.

Type hints give the schema and the checks (pydantic, lax: "5" is taken for an int), a Google-style `Args:` section the
descriptions. Defaults stay the function's own: an argument that is not given is not passed.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Required, get_type_hints

from pydantic import ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError, with_config
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from waystation.agents.native.results import MOST_DEPTH, ToolError
from waystation.domain.text import clean_json, depth_of
from waystation.errors import ConfigError

# Type checkers want literals in these two; here both are made of a signature.
_typed_dict: Any = TypedDict
_annotated: Any = Annotated

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Note|Notes):\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    hint: Any
    required: bool
    default: Any
    description: str | None

    @property
    def type_name(self) -> str:
        return self.hint.__name__ if isinstance(self.hint, type) else str(self.hint).removeprefix("typing.")


class Arguments:
    """The check of a call's arguments, and the JSON Schema that announces it."""

    __slots__ = ("_adapter", "schema")

    def __init__(self, name: str, parameters: Iterable[Parameter]) -> None:
        fields = {p.name: _field(p) for p in parameters}
        kind = _typed_dict(f"{name}_arguments", fields)
        try:
            self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(with_config(ConfigDict(extra="forbid"))(kind))
            self.schema = _plain(self._adapter.json_schema())
        except (PydanticSchemaGenerationError, PydanticUserError) as exc:
            raise ConfigError(f"Tool {name!r}: a parameter's type hint can't be described to a model: {exc}") from exc

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as the function wants them. Raises ToolError, in words for the model."""
        try:
            return self._adapter.validate_python(dict(values))
        except ValidationError as exc:
            problems = (f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in exc.errors(include_url=False))
            raise ToolError("The arguments don't fit the tool: " + "; ".join(problems)) from exc


def read_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call, from the text the model wrote. Raises ToolError if it is not one JSON object."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ToolError(f"The arguments are not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ToolError("The arguments are not a JSON object.")
    if depth_of(value) > MOST_DEPTH:
        raise ToolError(f"The arguments are nested deeper than {MOST_DEPTH} levels.")
    cleaned: dict[str, Any] = clean_json(value)
    return cleaned


def parameters_of(function: Callable[..., Any], name: str) -> list[Parameter]:
    """Raises ConfigError for a function that can't be called by names alone or whose hints can't be resolved."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = get_type_hints(inspect.unwrap(target), include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as exc:
        raise ConfigError(f"Tool {name!r}: its signature can't be read: {exc}") from exc
    described = described_arguments(inspect.getdoc(function) or "")
    result = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"Tool {name!r}: parameter {parameter.name!r} can't be given by name; use named parameters only.")
        required = parameter.default is parameter.empty
        result.append(
            Parameter(
                name=parameter.name,
                hint=hints.get(parameter.name, Any),
                required=required,
                default=None if required else parameter.default,
                description=described.get(parameter.name),
            )
        )
    return result


def summary_of(doc: str) -> str:
    """A docstring up to its first section."""
    lines: list[str] = []
    for line in doc.splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def described_arguments(doc: str) -> dict[str, str]:
    """The descriptions in the `Args:` section of a Google-style docstring, by parameter."""
    found: dict[str, list[str]] = {}
    inside, indent, current = False, 0, ""
    for line in doc.splitlines():
        if header := _SECTION.match(line):
            inside, indent = header[1] in ("Args", "Arguments", "Parameters"), 0
            continue
        if not inside or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        if depth == 0:
            inside = False
        elif depth == indent and (entry := _ENTRY.match(line.strip())):
            current = entry[1]
            found[current] = [entry[2]]
        elif current:
            found[current].append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _field(parameter: Parameter) -> Any:
    extra: dict[str, Any] = {}
    if not parameter.required and parameter.default is not None:
        try:
            extra["default"] = to_jsonable_python(parameter.default)
        except ValueError:
            extra = {}
    info = Field(description=parameter.description, json_schema_extra=extra or None)
    hint: Any = _annotated[parameter.hint, info]
    return Required[hint] if parameter.required else NotRequired[hint]


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the titles that pydantic adds: they tell a model nothing."""
    schema.pop("title", None)
    for part in schema.get("properties", {}).values():
        part.pop("title", None)
    schema.setdefault("properties", {})
    return schema

"""Tools: what is made of a function, how arguments are checked, and the texts of results."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel

from waystation.agents.native.functions import read_arguments
from waystation.agents.native.results import ToolError, text_of
from waystation.agents.native.tools import as_tool, tool
from waystation.errors import ConfigError


def weather(city: str, days: int = 3, unit: Literal["c", "f"] | None = None) -> str:
    """The weather.

    Tells what it is like.

    Args:
        city (str): the city,
            wherever it is
        days: how many days

    Returns:
        a text
    """
    return f"{city} {days} {unit}"


def test_the_schema_comes_from_hints_and_docstring() -> None:
    made = as_tool(weather)
    assert made.description == "The weather.\n\nTells what it is like."
    schema = made.offered.schema
    assert schema["required"] == ["city"]
    assert schema["properties"]["city"] == {"type": "string", "description": "the city, wherever it is"}
    assert schema["properties"]["days"] == {"type": "integer", "description": "how many days", "default": 3}
    assert schema["additionalProperties"] is False


def test_parameters_may_have_any_name() -> None:
    @tool
    def odd(schema: int, model_config: str, _private: bool = False) -> str:
        return f"{schema} {model_config} {_private}"

    assert odd.arguments.checked({"schema": "1", "model_config": "m", "_private": True}) == {
        "schema": 1, "model_config": "m", "_private": True,
    }  # fmt: skip


def test_a_decorated_function_can_still_be_called() -> None:
    @tool(name="plus", description="Adds.")
    def add(a: int, b: int) -> int:
        return a + b

    assert (add.name, add.description, add(1, 2)) == ("plus", "Adds.", 3)


def test_approval_implies_confirmation() -> None:
    assert tool(approval=True)(weather).requires_confirmation


def test_fields_of_the_user_are_not_offered_to_the_model() -> None:
    made = tool(user_input_fields=["days"])(weather)
    assert made.requires_user_input
    assert "days" not in made.offered.schema["properties"]
    assert "days" in made.arguments.schema["properties"]


def generator() -> Iterator[int]:
    yield 1


def positional(a: int, /) -> None: ...


def many(*args: int) -> None: ...


def unresolved(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("function", [generator, positional, many, unresolved, lambda: 1])
def test_functions_that_cannot_be_tools_are_refused(function: Any) -> None:
    with pytest.raises(ConfigError):
        as_tool(function)


@pytest.mark.parametrize(
    "settings",
    [
        {"requires_confirmation": True, "external_execution": True},
        {"approval": True, "requires_user_input": True},
        {"user_input_fields": ["nope"]},
        {"effect": "perhaps"},
        {"timeout_s": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        tool(**settings)(weather)


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', "nope", '{"a": ' + "[" * 101 + "]" * 101 + "}", "[" * 100_000])
def test_bad_json_is_a_tool_error(text: str) -> None:
    with pytest.raises(ToolError):
        read_arguments(text)


def test_no_text_is_no_arguments() -> None:
    assert read_arguments("") == {}


@pytest.mark.parametrize("values", [{}, {"city": 1}, {"city": "x", "more": 1}, {"city": "x", "unit": "k"}])
def test_bad_arguments_are_a_tool_error(values: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="don't fit"):
        as_tool(weather).arguments.checked(values)


class Color(StrEnum):
    RED = "red"


class Model(BaseModel):
    at: datetime
    price: Decimal


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("a\x00b\ud800", "a\ufffdb\ufffd"),
        (None, ""),
        (True, "true"),
        (1.5, "1.5"),
        (float("nan"), "null"),
        ({"a": float("inf"), "ü": "上海"}, '{"a": null, "ü": "上海"}'),
        (Model(at=datetime(2026, 1, 2, tzinfo=UTC), price=Decimal("1.10")), '{"at": "2026-01-02T00:00:00Z", "price": "1.10"}'),
        (Point(1, 2.0), '{"x": 1, "y": 2.0}'),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\xff\x00", "_wA="),
        ({1}, "[1]"),
        (Path("/a/b"), "/a/b"),
        (Color.RED, "red"),
        ([1, (2, None)], "[1, [2, null]]"),
        ({1: 2}, '{"1": 2}'),
        (object, "<class 'object'>"),
    ],
)
def test_results_have_their_json_form(value: Any, text: str) -> None:
    assert text_of(value) == text


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_a_result_that_contains_itself_or_is_too_deep_is_a_tool_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, nested(101), nested(5000)):
        with pytest.raises(ToolError):
            text_of(value)
    assert json.loads(text_of(nested(100)))


async def test_sync_functions_run_in_a_thread() -> None:
    made = tool(name="nap")(lambda: time.sleep(0.2))
    ticks = 0
    call = asyncio.create_task(made.call({}))
    while not call.done():
        await asyncio.sleep(0.02)
        ticks += 1
    assert ticks > 3


async def test_a_sync_function_may_return_an_awaitable() -> None:
    async def later() -> int:
        return 7

    assert await tool(name="later")(lambda: later()).call({}) == "7"


async def test_a_call_that_takes_too_long_fails() -> None:
    @tool(timeout_s=0.05)
    async def slow() -> None:
        await asyncio.sleep(5)

    with pytest.raises(ToolError, match=r"0\.05 s"):
        await slow.call({})


async def test_a_tool_can_neither_end_the_process_nor_hang_the_run() -> None:
    def leave() -> None:
        raise SystemExit(1)

    def stop() -> None:
        raise StopIteration

    async def leave_async() -> None:
        raise SystemExit(1)

    for function in (leave, stop, leave_async):
        with pytest.raises(ToolError):
            await as_tool(function).call({})

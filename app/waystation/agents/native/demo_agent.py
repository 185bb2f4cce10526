"""The agent that a server without any configuration serves: three small tools on the offline demo model."""

import ast
import operator
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from waystation.agents.native.agent import Agent
from waystation.agents.native.models.base import Model
from waystation.agents.native.results import ToolError
from waystation.agents.native.tools import tool

Number = int | float

MOST_EXPRESSION_CHARS = 200
MOST_BITS = 4096

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def demo_agent(model: Model | str = "demo:offline") -> Agent:
    """A new demo agent."""
    return Agent(
        id="demo",
        name="Demo",
        model=model,
        description="A scripted offline demo with a calculator, a clock and dice.",
        tools=[calculator, clock, dice],
        add_history_to_context=True,
    )


@tool(effect="safe")
def calculator(expression: str) -> str:
    """Calculate an arithmetic expression.

    Args:
        expression: numbers with + - * / // % ** and parentheses, for example 12*7
    """
    if len(expression) > MOST_EXPRESSION_CHARS:
        raise ToolError(f"The expression is longer than {MOST_EXPRESSION_CHARS} characters.")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = _value(tree.body)
    except SyntaxError as exc:
        raise ToolError(f"{expression!r} is not an arithmetic expression.") from exc
    except ZeroDivisionError as exc:
        raise ToolError("Division by zero.") from exc
    except (OverflowError, RecursionError) as exc:
        raise ToolError("The result is too large.") from exc
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


@tool(effect="safe")
def clock(zone: str = "UTC") -> str:
    """Tell the current time and date.

    Args:
        zone: a time zone of the IANA list, for example Europe/Paris
    """
    try:
        here = UTC if zone.upper() == "UTC" else ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ToolError(f"There is no time zone {zone!r}.") from exc
    return datetime.now(here).strftime("%Y-%m-%d %H:%M:%S %Z")


@tool
def dice(count: Annotated[int, Field(ge=1, le=100)] = 1, sides: Annotated[int, Field(ge=2, le=1000)] = 6) -> list[int]:
    """Roll dice.

    Args:
        count: how many dice are rolled
        sides: how many sides each die has
    """
    return [secrets.randbelow(sides) + 1 for _ in range(count)]


def _value(node: ast.expr) -> Number:
    """The value of an expression of numbers. Raises ToolError for anything else."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case _:
            raise ToolError("Only numbers, + - * / // % ** and parentheses can be calculated.")


def _power(base: Number, exponent: Number) -> Number:
    """Refuses what would be too large before it is calculated."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent * max(base.bit_length(), 1) > MOST_BITS:
            raise ToolError("The result is too large.")
        return _bounded(base**exponent)
    value = base**exponent
    if isinstance(value, complex):
        raise ToolError("The result is not a real number.")
    return _bounded(value)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ToolError("The result is too large.")
    return value

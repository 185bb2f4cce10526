"""The offline demo model and the agent that uses it."""

import json
from typing import Any

import pytest

from support.emitter import MemoryEmitter, drive, make_turn, user
from waystation.agents.native.agent import Agent
from waystation.agents.native.demo_agent import calculator, clock, demo_agent, dice
from waystation.agents.native.models.demo import NOTICE, DemoModel
from waystation.agents.native.models.prompt import Prompt
from waystation.agents.native.results import ToolError
from waystation.agents.native.tools import tool
from waystation.domain.message import Message


def quick() -> DemoModel:
    return DemoModel(delay_s=0)


async def asked(prompt: str, **changes: Any) -> MemoryEmitter:
    _, emit = await drive(demo_agent(quick()), make_turn(prompt, **changes))
    return emit


def calls(emit: MemoryEmitter) -> list[tuple[str, dict[str, Any]]]:
    return [(done.tool_name, done.tool_args) for done in emit.completed]


async def test_arithmetic_goes_to_the_calculator() -> None:
    emit = await asked("what is 12*7?")
    assert calls(emit) == [("calculator", {"expression": "12*7"})]
    assert "84" in emit.text
    assert emit.names.count("RunContent") > 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("What is 3 times 4?", [("calculator", {"expression": "3*4"})]),
        ("Please calculate (1 + 2) * 3 - 4", [("calculator", {"expression": "(1 + 2) * 3 - 4"})]),
        ("roll 3 dice with 20 sides", [("dice", {"sides": 20, "count": 3})]),
        ("Roll the dice", [("dice", {})]),
        ("roll 2 dice", [("dice", {"count": 2})]),
        ("What time is it in Europe/Paris?", [("clock", {"zone": "Europe/Paris"})]),
        ("what is the current time", [("clock", {})]),
        ("hello", []),
        ("what happened on 2026-11-30?", []),
    ],
)
async def test_tools_are_chosen_by_the_prompt(prompt: str, expected: list[tuple[str, dict[str, Any]]]) -> None:
    assert calls(await asked(prompt)) == expected


async def test_two_tools_are_called_in_one_answer() -> None:
    emit = await asked("What time is it, and what is 2+2?")
    assert sorted(name for name, _ in calls(emit)) == ["calculator", "clock"]
    assert emit.names.count("ModelRequestStarted") == 2


async def test_it_says_what_it_is() -> None:
    assert NOTICE in (await asked("Write me a poem about the sea")).text


async def test_the_same_prompt_has_the_same_answer() -> None:
    assert (await asked("tell me more")).text == (await asked("tell me more")).text


async def test_it_knows_the_history() -> None:
    emit = await asked("what did I say before?", history=[user("my cat is Mia"), Message(id="a", role="assistant", content="ok")])
    assert "my cat is Mia" in emit.text


async def test_an_error_of_a_tool_is_told() -> None:
    assert "Division by zero" in (await asked("what is 1/0?")).text


async def test_arguments_are_found_by_the_schema() -> None:
    @tool
    def send_mail(to: str, subject: str, copies: int = 1, urgent: bool = False) -> str:
        """Send a mail to somebody."""
        return f"sent {subject} to {to} {copies} {urgent}"

    agent = Agent(id="m", model=quick(), tools=[send_mail])
    _, emit = await drive(agent, make_turn('Send an urgent mail to bob@example.org with the subject "Lunch?" in 2 copies'))
    assert calls(emit) == [("send_mail", {"to": "bob@example.org", "subject": "Lunch?", "copies": 2, "urgent": True})]


async def test_names_fill_required_texts() -> None:
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"21C in {city}"

    _, emit = await drive(Agent(id="w", model=quick(), tools=[get_weather]), make_turn("How is the weather in New York?"))
    assert calls(emit) == [("get_weather", {"city": "New York"})]
    assert "21C in New York" in emit.text


async def test_a_schema_is_filled_with_valid_values() -> None:
    schema = {
        "type": "object",
        "title": "Person",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "role": {"enum": ["admin", "user"]}},
    }
    result, _ = await drive(demo_agent(quick()), make_turn("The user is Ann, age 42", output_schema=schema))
    assert (result.content_type, result.content["age"], result.content["role"]) == ("Person", 42, "user")


def test_agents_with_the_demo_model_are_marked() -> None:
    agent = Agent(id="x", model="demo:offline", metadata={"team": "t"})
    assert agent.metadata == {"team": "t", "demo": True}
    assert (agent.model, agent.model_provider) == ("demo:offline", "Demo")
    assert demo_agent().history_runs == 3


@pytest.mark.parametrize(
    ("expression", "value"),
    [("12*7", "84"), ("7/2", "3.5"), ("6/2", "3"), ("2**10", "1024"), ("-(3-5)", "2"), ("10 % 3 + 9 // 2", "5"), ("2**-1", "0.5")],
)
def test_the_calculator_calculates(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "__import__('os')",
        "a",
        "1 if 1 else 2",
        "True",
        "'a'*9",
        "9**9**9**9",
        "10**5000",
        "1/0",
        "(" * 150,
        "1e308*10**999",
        "(-8)**0.5",
    ],
)
def test_the_calculator_refuses_everything_else(expression: str) -> None:
    with pytest.raises(ToolError):
        calculator(expression)


def test_the_clock_knows_time_zones() -> None:
    assert clock("UTC").endswith("UTC")
    assert clock("Asia/Tokyo").endswith("JST")
    for zone in ("Nowhere/Land", "../etc/passwd", ""):
        with pytest.raises(ToolError):
            clock(zone)


def test_dice_stay_in_their_range() -> None:
    assert all(1 <= eye <= 4 for eye in dice(sides=4, count=100))
    with pytest.raises(ToolError):
        dice.arguments.checked({"sides": 1})


def test_a_prompt_gives_each_value_once() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
    assert Prompt("add 3 and 4").filled(schema) == {"a": 3, "b": 4}
    assert Prompt("add 3").filled(schema) is None
    assert json.dumps(Prompt("nothing").example(schema)) == '{"a": 0, "b": 0}'

"""Two small agents: one of Waystation's own kind with two tools, and one that brings its own way to answer.

    waystation serve examples/my_agents.py
    curl -N -F message='add 2.5 and 4' http://127.0.0.1:7777/agents/helper/runs
    curl -N -F message='3' http://127.0.0.1:7777/agents/counter/runs

Neither needs a key: `helper` runs on the scripted demo model, `counter` on nothing at all.
"""

import asyncio
from typing import Annotated, Literal

from pydantic import Field

from waystation import Agent, AgentError, Emitter, ExternalAgent, Turn, TurnResult, tool
from waystation.domain.event import RunContent

MOST = 600


@tool(effect="safe")
def add(first: float, second: float) -> float:
    """Add two numbers.

    Args:
        first: one of them
        second: the other
    """
    return first + second


@tool(requires_confirmation=True)
def set_light(room: Literal["kitchen", "hall"], brightness: Annotated[int, Field(ge=0, le=100)] = 100) -> str:
    """Switch a light in a room.

    Args:
        room: where the light is
        brightness: in percent
    """
    return f"The light in the {room} is at {brightness} %."


class Counter(ExternalAgent):
    """Counts to the number in the message, one a second. Stops within a moment when its run is cancelled."""

    sdk = "counter"

    @property
    def model(self) -> str:
        return "one-a-second"

    @property
    def model_provider(self) -> str:
        return "Example"

    async def run_turn(self, turn: Turn, emit: Emitter) -> TurnResult:
        text = turn.run.input.message.strip()
        if not text.isdecimal() or len(text) > 3 or not 1 <= int(text) <= MOST:
            raise AgentError(f"Send a number from 1 to {MOST}.", error_type="not_a_number")
        for number in range(1, int(text) + 1):
            emit(RunContent(content=f"{number} "))
            await emit.room()
            if number < int(text):
                await _sleep_unless_stopped(turn, 1.0)
        return TurnResult()


async def _sleep_unless_stopped(turn: Turn, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await turn.cancel.wait()
    except TimeoutError:
        return
    turn.cancel.check()


agents = [
    Agent(id="helper", name="Helper", model="demo:offline", tools=[add, set_light], add_history_to_context=True),
    Counter(id="counter", name="Counter", description="Counts to the number that you send, one a second."),
]

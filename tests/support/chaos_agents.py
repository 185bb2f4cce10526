"""The scripted agents, and `effect`: "note X" calls a tool that writes X into a file, so that effects can be counted from outside."""

import os
from collections.abc import Iterable

from benchmarks.stub_agents import SHORT_ANSWER, stub_agents

from waystation.agents.native.agent import Agent
from waystation.agents.native.models.scripted import Call, Pause, ScriptedModel, Step, last_user_text
from waystation.agents.native.tools import tool
from waystation.domain.message import Message

EFFECTS = "CHAOS_EFFECTS"


@tool
def note(word: str) -> str:
    """Write a word down.

    Args:
        word: what to write
    """
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{word}\n".encode())
    finally:
        os.close(file)
    return f"noted {word}"


def script(messages: list[Message]) -> Iterable[Step]:
    if messages[-1].role == "tool":
        return [Pause(20), *SHORT_ANSWER]
    return [Pause(20), Call("note", {"word": last_user_text(messages).split()[1]})]


agents = [*stub_agents(), Agent(id="effect", model=ScriptedModel(script), tools=[note])]

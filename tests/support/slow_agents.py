"""An agent whose tools take long: "<tool> SECONDS WORD" calls one, which sleeps and then writes the word into a file."""

import asyncio
import os
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.stub_agents import stub_agents

from waystation.agents.native.agent import Agent
from waystation.agents.native.models.scripted import Call, ScriptedModel, Step, last_user_text
from waystation.domain.message import Message

EFFECTS = "SLOW_EFFECTS"


def _write(word: str) -> str:
    with Path(os.environ[EFFECTS]).open("a") as file:
        file.write(f"{word}\n")
    return f"wrote {word}"


def in_a_thread(seconds: float, word: str) -> str:
    """Blocks the thread that it is given."""
    time.sleep(seconds)
    return _write(word)


async def in_the_loop(seconds: float, word: str) -> str:
    """Waits in the event loop."""
    await asyncio.sleep(seconds)
    return _write(word)


def script(messages: list[Message]) -> Iterable[Step]:
    if messages[-1].role == "tool":
        return ["done"]
    name, seconds, word = last_user_text(messages).split()
    return [Call(name, {"seconds": float(seconds), "word": word})]


agents = [*stub_agents(), Agent(id="slow", model=ScriptedModel(script), tools=[in_a_thread, in_the_loop])]

"""Small external agents: a turn is one function of the test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from waystation.agents.base import Capability, ExternalAgent
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.domain.event import RunContent
from waystation.domain.retry import RetryPolicy

TurnFunction = Callable[[Turn, Emitter], Awaitable[TurnResult | None]]


class SmallAgent(ExternalAgent):
    """What it returns as None is a TurnResult without anything."""

    sdk: ClassVar[str | None] = "small-sdk"

    def __init__(self, turn: TurnFunction, *, id: str = "small", retry: RetryPolicy | None = None) -> None:
        super().__init__(id=id, retry=retry)
        self._turn = turn

    @property
    def model(self) -> str:
        return "small-1"

    @property
    def model_provider(self) -> str:
        return "Small"

    async def run_turn(self, turn: Turn, emit: Emitter) -> TurnResult:
        return await self._turn(turn, emit) or TurnResult()


class ResumingAgent(SmallAgent):
    """The same, and it can go on after a crash."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.RESUME_TURN})


class Gate:
    """Where a turn stops until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.passed = 0

    async def wait(self) -> None:
        self.reached.set()
        await self.opened.wait()
        self.passed += 1

    async def turn(self, turn: Turn, emit: Emitter) -> None:
        """One piece, the wait, and another piece."""
        emit(RunContent(content="before "))
        await emit.room()
        await self.wait()
        emit(RunContent(content="after"))


def gated(id: str = "gated") -> tuple[SmallAgent, Gate]:
    gate = Gate()
    return SmallAgent(gate.turn, id=id), gate

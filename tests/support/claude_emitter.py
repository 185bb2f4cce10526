"""An Emitter that keeps what an agent tells, and lets a test wait for it."""

import asyncio
from collections.abc import Callable

from waystation.domain.event import CustomEvent, Event, RunContent, ToolCallCompleted, ToolCallStarted
from waystation.domain.message import Message
from waystation.domain.metrics import Metrics, ModelUsage


class MemoryEmitter:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.messages: list[Message] = []
        self.metrics = Metrics()
        self.external_session_id: str | None = None
        self._told = asyncio.Event()

    def __call__(self, event: Event) -> int:
        self.events.append(event)
        self._told.set()
        return len(self.events) - 1

    def message(self, *messages: Message) -> None:
        self.messages.extend(messages)

    def usage(self, usage: ModelUsage) -> None:
        self.metrics = self.metrics.with_usage(usage)

    def external_session(self, session_id: str) -> None:
        self.external_session_id = session_id

    async def room(self) -> None:
        await asyncio.sleep(0)

    async def stored(self) -> None:
        await asyncio.sleep(0)

    async def until(self, fact: Callable[["MemoryEmitter"], bool], timeout_s: float = 30) -> None:
        async with asyncio.timeout(timeout_s):
            while not fact(self):
                self._told.clear()
                await self._told.wait()

    @property
    def contents(self) -> list[RunContent]:
        return [event for event in self.events if isinstance(event, RunContent)]

    @property
    def text(self) -> str:
        """The answer, without what a warning has voided."""
        kept: list[Event] = []
        for index, event in enumerate(self.events):
            first = (event.warning or {}).get("discard_from") if isinstance(event, CustomEvent) else None
            if first is not None:
                kept = [old for place, old in enumerate(self.events[:index]) if place < first]
            kept.append(event)
        return "".join(event.content for event in kept if isinstance(event, RunContent))

    @property
    def started(self) -> list[ToolCallStarted]:
        return [event for event in self.events if isinstance(event, ToolCallStarted)]

    @property
    def completed(self) -> list[ToolCallCompleted]:
        return [event for event in self.events if isinstance(event, ToolCallCompleted)]

    @property
    def warnings(self) -> list[dict[str, object]]:
        return [event.warning for event in self.events if isinstance(event, CustomEvent) and event.warning]

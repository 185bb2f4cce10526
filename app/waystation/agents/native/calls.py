"""The tool calls of one answer of the model: what becomes of each, and running those that may run.

1. Every call is decided before any starts: it is settled without running, waits for somebody, or is ready to run.
2. All that are ready are announced (ToolCallStarted) and committed before the first of them starts; then they run in parallel.
3. A call's end is told (ToolCallCompleted) when it comes; the messages with the results are recorded in the order of the calls.
   A crash between the two loses nothing: the log says what the result was.
4. A call that was started and has no end in the log has an unknown effect; its tool's `effect` decides what becomes of it.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waystation.agents.native.functions import read_arguments
from waystation.agents.native.requirements import asked_again, declined_text, requirement_for, with_user_input
from waystation.agents.native.results import ToolError
from waystation.agents.native.setup import Setup
from waystation.agents.native.tools import Tool
from waystation.agents.turn import Emitter, StopReason, Turn
from waystation.clock import new_id, now
from waystation.domain.event import RunContent, ToolCallCompleted, ToolCallStarted
from waystation.domain.message import Message, ToolCall
from waystation.domain.requirement import PauseKind, Requirement, ToolExecution
from waystation.domain.text import clean

UNKNOWN_OUTCOME = "The server was interrupted while this call ran; its outcome is unknown. It was not repeated."
MOST_SHOWN_CHARS = 80
ABANDON_AFTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A call whose result is known without running it."""

    execution: ToolExecution
    is_started: bool = False
    """Whether its start is still to be told."""
    is_completed: bool = False
    """Whether its end was told before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    requirement: Requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    execution: ToolExecution
    tool: Tool
    values: dict[str, Any]


Decision = Settled | Waiting | Ready


class Times:
    """When a call began and ended, and how long it took by a clock that can't be set."""

    __slots__ = ("began_at", "duration_s", "ended_at")

    def __init__(self) -> None:
        self.began_at = self.ended_at = now()
        self.duration_s = 0.0

    def metrics(self) -> dict[str, float]:
        return {"start_time": self.began_at, "end_time": self.ended_at, "duration": self.duration_s}


class Calls:
    """The tool calls of one turn. `messages` are the turn's own, which grow by the results."""

    def __init__(self, setup: Setup, turn: Turn, emit: Emitter, messages: list[Message]) -> None:
        self._setup = setup
        self._turn = turn
        self._emit = emit
        self._messages = messages
        self._requirements = {r.tool_execution.tool_call_id: r for r in turn.requirements}
        self._seen = {tool.tool_call_id: tool for tool in turn.tools}
        self._scope: asyncio.Timeout | None = None
        self._results: list[Message | None] = []
        self._decisions: list[Decision] = []
        self._recorded = 0

    async def run(self, calls: Sequence[ToolCall]) -> list[Requirement]:
        """Do what can be done for the calls. Returns what the others wait for."""
        self._decisions = [self._decide(call) for call in calls]
        self._results = [None] * len(calls)
        self._recorded = 0
        self._turn.cancel.check()
        ready = {place: d for place, d in enumerate(self._decisions) if isinstance(d, Ready)}
        for decision in self._decisions:
            if isinstance(decision, Ready) or (isinstance(decision, Settled) and decision.is_started):
                self._emit(ToolCallStarted(tool=decision.execution.model_dump(mode="json")))
        for place, decision in enumerate(self._decisions):
            if isinstance(decision, Settled):
                self._complete(place, decision.execution, is_told=decision.is_completed, times=None)
        if ready:
            await self._emit.stored()
            await self._run_all(ready)
        self._record_results()
        return [d.requirement for d in self._decisions if isinstance(d, Waiting)]

    def interrupt(self) -> None:
        """Stop the calls that run. A drain lets them end: the turn goes on elsewhere and should know their outcome."""
        if self._scope is not None and self._turn.cancel.reason not in (StopReason.DRAINING, StopReason.STORE):
            self._scope.reschedule(asyncio.get_running_loop().time())

    # ---- deciding --------------------------------------------------------------------------------------------------------
    def _decide(self, call: ToolCall) -> Decision:
        requirement = self._requirements.get(call.id)
        seen = self._seen.get(call.id)
        if call.id in self._turn.started_calls:
            if self._turn.resumed or requirement is None:
                return self._unknown(call, seen)
        elif seen is not None and seen.tool_call_error is not None:
            return Settled(execution=seen, is_completed=True)
        if requirement is not None:
            return Waiting(requirement=requirement) if requirement.is_open else self._answered(requirement)
        return self._new(call)

    def _new(self, call: ToolCall) -> Decision:
        execution = ToolExecution(tool_call_id=call.id, tool_name=call.function.name, created_at=int(now()))
        if self._is_beyond_limit(call.id):
            limit = self._setup.tool_call_limit
            return _refused(execution, f"Not executed: the limit of {limit} tool calls of this run is reached. Answer without it.")
        tool = self._setup.tools.get(call.function.name)
        if tool is None:
            return _refused(execution, f"There is no tool {call.function.name!r}.")
        try:
            execution = execution.model_copy(update={"tool_args": read_arguments(call.function.arguments)})
            values = tool.offered.checked(execution.tool_args)
        except ToolError as error:
            return _refused(execution, str(error))
        if tool.pauses:
            return Waiting(requirement=requirement_for(tool, execution))
        return Ready(execution=execution, tool=tool, values=values)

    def _answered(self, requirement: Requirement) -> Decision:
        execution = requirement.tool_execution
        if requirement.kind is PauseKind.EXTERNAL:
            return Settled(execution=execution.model_copy(update={"tool_call_error": False}))
        if requirement.kind is PauseKind.USER_INPUT:
            return self._ready(with_user_input(execution))
        if execution.confirmed:
            return self._ready(execution)
        return Settled(execution=execution.model_copy(update={"tool_call_error": True, "result": declined_text(requirement)}))

    def _ready(self, execution: ToolExecution) -> Decision:
        """A call whose arguments stand, as one that may run now."""
        tool = self._setup.tools.get(execution.tool_name)
        if tool is None:
            return _refused(execution, f"There is no tool {execution.tool_name!r} any more.")
        try:
            return Ready(execution=execution, tool=tool, values=tool.arguments.checked(execution.tool_args))
        except ToolError as error:
            return _refused(execution, str(error))

    def _unknown(self, call: ToolCall, seen: ToolExecution | None) -> Decision:
        execution = seen or ToolExecution(tool_call_id=call.id, tool_name=call.function.name, created_at=int(now()))
        tool = self._setup.tools.get(execution.tool_name)
        match tool.effect if tool is not None and seen is not None else "never":
            case "safe":
                return self._ready(execution)
            case "ask":
                return Waiting(requirement=asked_again(execution))
            case _:
                return Settled(execution=execution.model_copy(update={"tool_call_error": True, "result": UNKNOWN_OUTCOME}))

    def _is_beyond_limit(self, call_id: str) -> bool:
        limit = self._setup.tool_call_limit
        if limit is None:
            return False
        own = [c.id for m in self._messages if m.tool_calls and not m.from_history for c in m.tool_calls]
        return call_id not in own[:limit]

    # ---- running ---------------------------------------------------------------------------------------------------------
    async def _run_all(self, ready: dict[int, Ready]) -> None:
        times = {place: Times() for place in ready}
        tasks = {place: asyncio.create_task(_timed(d, times[place]), name=f"tool {d.tool.name}") for place, d in ready.items()}
        running = set(tasks.values())
        try:
            async with asyncio.timeout(None) as self._scope:
                while running:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    self._take_results(ready, tasks, times)
        except TimeoutError:
            self._turn.cancel.check()
            raise
        finally:
            self._scope = None
            if running:
                await self._abandon(ready, tasks, times)

    async def _abandon(self, ready: dict[int, Ready], tasks: dict[int, asyncio.Task[str]], times: dict[int, Times]) -> None:
        """Stop what still runs; what has ended by then is recorded. A tool that does not let itself be stopped is left alone."""
        self._take_results(ready, tasks, times)
        for task in tasks.values():
            task.cancel()
        ended, _ = await asyncio.wait(tasks.values(), timeout=ABANDON_AFTER_S)
        for task in ended:
            if not task.cancelled():
                # Asked for only so that asyncio does not report it as never retrieved.
                task.exception()

    def _take_results(self, ready: dict[int, Ready], tasks: dict[int, asyncio.Task[str]], times: dict[int, Times]) -> None:
        for place, task in tasks.items():
            if self._results[place] is None and task.done():
                result, failed = _result_of(task)
                changes = {"result": result, "tool_call_error": failed, "metrics": times[place].metrics()}
                if ready[place].tool.stop_after_tool_call and not failed:
                    changes["stop_after_tool_call"] = True
                execution = ready[place].execution.model_copy(update=changes)
                self._complete(place, execution, is_told=False, times=times[place])

    # ---- recording -------------------------------------------------------------------------------------------------------
    def _complete(self, place: int, execution: ToolExecution, *, is_told: bool, times: Times | None) -> None:
        if not is_told:
            self._emit(ToolCallCompleted(content=_told(execution, times), tool=execution.model_dump(mode="json")))
        self._results[place] = Message(
            id=new_id(),
            role="tool",
            content=execution.result or "",
            stop_after_tool_call=execution.stop_after_tool_call,
            tool_call_id=execution.tool_call_id,
            tool_name=execution.tool_name,
            tool_args=execution.tool_args,
            tool_call_error=bool(execution.tool_call_error),
            metrics={"duration": times.duration_s} if times else None,
            created_at=int(now()),
        )
        self._record_results()

    def _record_results(self) -> None:
        """Record the messages of the calls up to the first that still runs."""
        while self._recorded < len(self._results):
            message = self._results[self._recorded]
            if message is None and not isinstance(self._decisions[self._recorded], Waiting):
                return
            self._recorded += 1
            if message is None:
                continue
            self._emit.message(message)
            self._messages.append(message)
            if message.stop_after_tool_call:
                self._emit(RunContent(content=message.content or ""))


async def _timed(ready: Ready, times: Times) -> str:
    began = time.perf_counter()
    try:
        return await ready.tool.call(ready.values)
    finally:
        times.duration_s = time.perf_counter() - began
        times.ended_at = times.began_at + times.duration_s


def _result_of(task: asyncio.Task[str]) -> tuple[str, bool]:
    """The text of a call that has ended, and whether it has failed."""
    if task.cancelled():
        return "The tool was cancelled.", True
    error = task.exception()
    if error is None:
        return task.result(), False
    return clean(str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"), True


def _refused(execution: ToolExecution, reason: str) -> Settled:
    failed = execution.model_copy(update={"tool_call_error": True, "result": clean(reason)})
    return Settled(execution=failed, is_started=True)


def _told(execution: ToolExecution, times: Times | None) -> str:
    """One line about a call that has ended."""
    shown = ", ".join(f"{name}={_short(value)}" for name, value in execution.tool_args.items())
    end = "failed" if execution.tool_call_error else "done"
    return f"{execution.tool_name}({shown}) {end}" + (f" in {times.duration_s:.4f} s. " if times else ". ")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN_CHARS else text[:MOST_SHOWN_CHARS] + "…"

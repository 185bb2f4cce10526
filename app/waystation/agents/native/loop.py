"""The run loop of native agents.

There is one path for a turn that is fresh, continued, resumed after a pause or taken over after a crash: the messages say where
it stands. If the last answer of the model has calls without results, these come first (`calls`); if the last message is a final
answer of this run, the turn is over; else the model is asked. An answer is recorded with the end of its request in one commit,
so a request whose answer was lost half-way is simply made again.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from waystation.agents.native.calls import Calls
from waystation.agents.native.context import request_messages
from waystation.agents.native.models.base import ReasoningDelta, TextDelta, ToolCallsDelta, UsageDelta, provider_failure
from waystation.agents.native.requirements import pause_text
from waystation.agents.native.setup import Setup
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.clock import new_id, now
from waystation.domain.event import ModelRequestCompleted, RunContent, RunContentCompleted
from waystation.domain.message import FunctionCall, Message, ToolCall
from waystation.domain.output_schema import parsed, title_of
from waystation.domain.requirement import Requirement
from waystation.domain.text import clean
from waystation.errors import AgentError

MOST_REQUESTS = 100
CONTENT_COMPLETED = RunContentCompleted()


class TurnLoop:
    """One turn of a native agent."""

    def __init__(self, setup: Setup, turn: Turn, emit: Emitter) -> None:
        self._setup = setup
        self._turn = turn
        self._emit = emit
        self._messages = list(turn.messages)
        self._calls = Calls(setup, turn, emit, self._messages)
        self._scope: asyncio.Timeout | None = None
        self._has_answered = turn.resumed

    async def run(self) -> TurnResult:
        self._turn.cancel.bind(self._interrupt)
        if not self._messages:
            self._begin()
        requests = 0
        while True:
            if calls := open_calls(self._messages):
                requirements = await self._calls.run(calls)
                if requirements:
                    return self._result(requirements)
            if self._is_over():
                return self._result([])
            if requests == MOST_REQUESTS:
                raise AgentError(f"The turn was ended after {requests} model requests.", error_type="loop_limit")
            self._turn.cancel.check()
            await self._request()
            requests += 1

    async def _interrupt(self) -> None:
        self._calls.interrupt()
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    def _begin(self) -> None:
        at = int(now())
        if self._setup.system is not None:
            self._record(Message(id=new_id(), role="system", content=self._setup.system, created_at=at))
        self._record(Message(id=new_id(), role="user", content=self._turn.run.input.message, created_at=at))

    def _record(self, message: Message) -> None:
        self._emit.message(message)
        self._messages.append(message)

    def _is_over(self) -> bool:
        """Whether nothing is left to ask the model. What a sibling has taken over never ends its turn."""
        last = self._messages[-1]
        if last.role == "tool":
            return any(m.stop_after_tool_call and not m.from_history for m in trailing_results(self._messages))
        return last.role == "assistant" and not last.tool_calls and not last.from_history and self._has_answered

    # ---- a model request -------------------------------------------------------------------------------------------------
    async def _request(self) -> None:
        emit, model = self._emit, self._setup.model
        answer = Answer()
        emit(self._setup.request_started)
        messages = request_messages(self._setup.system, self._turn, self._messages)
        schema = self._turn.run.input.output_schema
        stream = model.request(messages, self._setup.offered, output_schema=schema)
        try:
            async with asyncio.timeout(None) as self._scope:
                async for delta in stream:
                    if isinstance(delta, TextDelta):
                        if not delta.text:
                            continue
                        answer.add_text(delta.text)
                        emit(RunContent(content=delta.text))
                        await emit.room()
                    elif isinstance(delta, ReasoningDelta):
                        answer.reasoning.append(delta.text)
                        emit(RunContent(reasoning_content=delta.text))
                        await emit.room()
                    elif isinstance(delta, ToolCallsDelta):
                        answer.calls.extend(delta.calls)
                    else:
                        answer.usage = delta
        except TimeoutError as exc:
            # Either our own interrupt, or the model's own time-out.
            self._turn.cancel.check()
            raise provider_failure("The model did not answer in time.") from exc
        finally:
            self._scope = None
            await stream.aclose()
        self._record_answer(answer)

    def _record_answer(self, answer: "Answer") -> None:
        counts = answer.counts()
        model = self._setup.model
        self._emit(ModelRequestCompleted(model=model.id, model_provider=model.provider, time_to_first_token=answer.first_text_s, **counts))
        calls = _with_own_ids(answer.calls, self._messages)
        text = clean("".join(answer.text))
        if text and not calls:
            self._emit(CONTENT_COMPLETED)
        message = Message(
            id=new_id(),
            role="assistant",
            content=text if text or not calls else None,
            reasoning_content=clean("".join(answer.reasoning)) if answer.reasoning else None,
            tool_calls=calls or None,
            metrics={name: count for name, count in counts.items() if count} or None,
            created_at=int(now()),
        )
        self._record(message)
        self._has_answered = True

    # ---- the end ---------------------------------------------------------------------------------------------------------
    def _result(self, requirements: list[Requirement]) -> TurnResult:
        # What the request brought is applied once: after a pause a later turn may have changed it.
        run = self._turn.run
        state = self._turn.session.state | ((run.input.session_state or {}) if run.output is None else {})
        if requirements:
            return TurnResult(content=pause_text(requirements), requirements=requirements, session_state=state)
        if self._messages[-1].role == "tool":
            self._emit(CONTENT_COMPLETED)
        schema = self._turn.run.input.output_schema
        if schema is None:
            return TurnResult(session_state=state)
        content = parsed(self._messages[-1].content or "")
        if content is None:
            raise AgentError("The model's answer is not an object of the output schema.", error_type="output_schema_mismatch")
        return TurnResult(content=content, content_type=title_of(schema), session_state=state)


class Answer:
    """What one request has brought so far."""

    __slots__ = ("_began", "calls", "first_text_s", "reasoning", "text", "usage")

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self.usage = NO_USAGE
        self.first_text_s: float | None = None

    def add_text(self, text: str) -> None:
        if self.first_text_s is None:
            self.first_text_s = time.perf_counter() - self._began
        self.text.append(text)

    def counts(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens or usage.input_tokens + usage.output_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        }


NO_USAGE = UsageDelta()


def trailing_results(messages: Sequence[Message]) -> list[Message]:
    """The tool results at the end, newest first."""
    results = []
    for message in reversed(messages):
        if message.role != "tool":
            break
        results.append(message)
    return results


def open_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls of the model's last answer that have no result, if nothing but results came after it."""
    if messages[-1].role == "user":
        return []
    results = trailing_results(messages)
    place = len(messages) - len(results) - 1
    if place < 0 or not (calls := messages[place].tool_calls):
        return []
    have = {message.tool_call_id for message in results}
    return [call for call in calls if call.id not in have]


def _with_own_ids(calls: Sequence[ToolCall], messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls, each under an id that no other call of the run has: some models number the calls of each answer anew."""
    if not calls:
        return ()
    taken = {call.id for message in messages for call in message.tool_calls or ()}
    result = []
    for call in calls:
        call_id = clean(call.id)
        if not call_id or call_id in taken:
            call_id = f"call_{os.urandom(6).hex()}"
        taken.add(call_id)
        function = FunctionCall(name=clean(call.function.name), arguments=clean(call.function.arguments))
        result.append(ToolCall(id=call_id, function=function))
    return tuple(result)

"""Three scripted agents for black-box checks and load scripts: `native`, `plain` and `ext`.

The first word of the last user message chooses the script:
  hi             one short answer in four chunks (any other word too)
  chunks N       N chunks at once
  slow N MS      N chunks, each after MS milliseconds
  tool           one call of get_weather, then the short answer (on `ext`: a call of Bash)
  confirm        one call of delete_file, which needs confirmation
  userinput      one call of send_mail, which asks the user for `to`
  external       one call of run_shell, which the client executes
  approve        one call of wire_money, which needs an admin's approval
  fail           one chunk, then a failure
  json           an object in three chunks
  flaky          on `ext`: fails at the first attempt
`plain` has no tools, so the scripts with a call end there in an error result and the short answer.
"""

import asyncio
from collections.abc import Iterable
from typing import ClassVar

from waystation.agents.base import BaseAgent, Capability, ExternalAgent
from waystation.agents.native.agent import Agent
from waystation.agents.native.models.base import UsageDelta, provider_failure
from waystation.agents.native.models.scripted import Call, Pause, ScriptedModel, Step, last_user_text
from waystation.agents.native.tools import tool
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.clock import now
from waystation.domain.event import RunContent, ToolCallCompleted, ToolCallStarted
from waystation.domain.message import Message
from waystation.domain.metrics import ModelUsage
from waystation.domain.requirement import ToolExecution
from waystation.domain.retry import RetryPolicy
from waystation.errors import AgentError

SHORT_ANSWER = ("Hello ", "from ", "the ", "stub.")
CALLS = {
    "tool": Call("get_weather", {"city": "Paris"}),
    "confirm": Call("delete_file", {"path": "notes.txt"}),
    "userinput": Call("send_mail", {"subject": "hello"}),
    "external": Call("run_shell", {"command": "ls"}),
    "approve": Call("wire_money", {"amount": 5}),
}


def script(messages: list[Message]) -> Iterable[Step]:
    """The steps of the stub model's next answer."""
    words = last_user_text(messages).split() or ["hi"]
    match words[0].lower(), words[1:]:
        case word, _ if word in CALLS and messages[-1].role != "tool":
            return (CALLS[word],)
        case "chunks", [count, *_]:
            return [f"x{i} " for i in range(int(count))]
        case "slow", [count, ms, *_]:
            return _slowly(int(count), float(ms))
        case "fail", _:
            return ("partial ", provider_failure("The stub provider has failed."))
        case "json", _:
            return ('{"city": ', '"Paris", ', '"temp": 21}')
        case _:
            return SHORT_ANSWER


def _slowly(count: int, ms: float) -> Iterable[Step]:
    for i in range(count):
        yield Pause(ms)
        yield f"s{i} "


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: the city
    """
    return f"21C in {city}"


@tool(requires_confirmation=True)
def delete_file(path: str) -> str:
    """Delete a file.

    Args:
        path: the path of the file
    """
    return f"deleted {path}"


@tool(approval=True)
def wire_money(amount: int) -> str:
    """Wire money.

    Args:
        amount: how much
    """
    return f"wired {amount}"


@tool(user_input_fields=["to"])
def send_mail(subject: str, to: str) -> str:
    """Send a mail.

    Args:
        subject: the subject
        to: who gets it
    """
    return f"sent {subject} to {to}"


@tool(external_execution=True)
def run_shell(command: str) -> str:
    """Run a command in the client's shell.

    Args:
        command: the command
    """
    return f"the server ran {command}, which it never does"


class ScriptedExternalAgent(ExternalAgent):
    """An external agent that follows the scripts in process."""

    sdk: ClassVar[str | None] = "stub-sdk"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.ROLLBACK})

    @property
    def model(self) -> str:
        return "stub-ext-1"

    @property
    def model_provider(self) -> str:
        return "StubExt"

    async def run_turn(self, turn: Turn, emit: Emitter) -> TurnResult:
        words = turn.run.input.message.split() or ["hi"]
        chunks, delay_s = ["ext ", "ans ", "wer"], 0.0
        match words[0].lower(), words[1:]:
            case "fail", _:
                _fail(emit)
            case "flaky", _ if turn.run.attempt == 1:
                _fail(emit)
            case "tool", _:
                await _call_bash(emit)
            case "slow", [count, ms, *_]:
                chunks, delay_s = [f"e{i} " for i in range(int(count))], float(ms) / 1000
            case "chunks", [count, *_]:
                chunks = [f"e{i} " for i in range(int(count))]
        await _say(turn, emit, chunks, delay_s)
        emit.usage(ModelUsage(id=self.model, provider=self.model_provider, input_tokens=30, output_tokens=9, total_tokens=39, cost=0.001))
        return TurnResult()


async def _say(turn: Turn, emit: Emitter, chunks: list[str], delay_s: float) -> None:
    """Emit the chunks; the turn's interrupt ends the wait before one at once."""
    stopped = asyncio.Event()

    async def interrupt() -> None:
        stopped.set()

    turn.cancel.bind(interrupt)
    for chunk in chunks:
        if delay_s:
            try:
                async with asyncio.timeout(delay_s):
                    await stopped.wait()
            except TimeoutError:
                pass
        turn.cancel.check()
        emit(RunContent(content=chunk))
        await emit.room()


async def _call_bash(emit: Emitter) -> None:
    call = ToolExecution(tool_call_id="ext_1", tool_name="Bash", tool_args={"command": "ls"}, created_at=int(now()))
    emit(ToolCallStarted(tool=call.model_dump(mode="json")))
    await emit.stored()
    done = call.model_copy(update={"result": "a.txt", "tool_call_error": False})
    emit(ToolCallCompleted(content="a.txt", tool=done.model_dump(mode="json")))


def _fail(emit: Emitter) -> None:
    emit(RunContent(content="partial "))
    raise AgentError("The external agent has failed.", error_type="external_error", retryable=True)


def stub_agents() -> list[BaseAgent]:
    """The three agents, new ones at each call."""
    usage = UsageDelta(input_tokens=11, output_tokens=7, total_tokens=18)
    model = ScriptedModel(script, id="stub-1", provider="Stub", usage=usage)
    tools = [get_weather, delete_file, wire_money, send_mail, run_shell]
    return [
        Agent(id="native", name="Native", model=model, tools=tools, description="scripted native agent"),
        Agent(id="plain", name="Plain", model=model),
        ScriptedExternalAgent(id="ext", name="Ext", description="scripted external agent", retry=RetryPolicy(attempts=2, delay_s=1)),
    ]


agents = stub_agents()

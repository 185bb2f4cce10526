"""What the tests of ClaudeAgent share: a clean environment, agents for a scripted API, turns, and a look at the processes."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from support.anthropic_server import AnthropicServer
from support.claude_emitter import MemoryEmitter
from waystation.agents.claude import ClaudeAgent
from waystation.agents.turn import CancelToken, StopReason, Turn, TurnResult
from waystation.domain.lifecycle import RunStatus
from waystation.domain.run import Run, RunInput
from waystation.domain.session import Session
from waystation.errors import AgentError

KEY = "sk-test-0123456789"
SLEEP = "python3 -c 'import time; time.sleep(300)'"


def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key or setting of this machine's reaches the binary, and its folders are the test's."""
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "CLAUDE", "AWS_", "GOOGLE_", "OTEL_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("IS_SANDBOX", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def agent_for(api: AnthropicServer, env: dict[str, str] | None = None, **options: Any) -> ClaudeAgent:
    known = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": KEY, "CLAUDE_CODE_MAX_RETRIES": "0"}
    options.setdefault("tools", [])
    return ClaudeAgent(id="claude", env=known | (env or {}), **options)


def with_bash(api: AnthropicServer) -> ClaudeAgent:
    return agent_for(api, {"IS_SANDBOX": "1"}, tools=["Bash"], permission_mode="bypassPermissions")


def turn_of(message: str, *, session_id: str = "s1", external_session_id: str | None = None) -> Turn:
    run = Run(
        id="r1", agent_id="claude", session_id=session_id, user_id=None, status=RunStatus.RUNNING,
        input=RunInput(message=message), created_at=0.0,
    )  # fmt: skip
    session = Session(
        id=session_id, agent_id="claude", user_id=None, created_at=0.0, updated_at=0.0, external_session_id=external_session_id
    )
    return Turn(run=run, session=session, cancel=CancelToken())


async def run_turn(agent: ClaudeAgent, turn: Turn, emit: MemoryEmitter) -> TurnResult:
    async with asyncio.timeout(40):
        return await agent.run_turn(turn, emit)


async def failure_of(agent: ClaudeAgent, emit: MemoryEmitter) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await run_turn(agent, turn_of("hi"), emit)
    return caught.value


async def stop(turn: Turn, running: asyncio.Task[TurnResult]) -> float:
    """Stop a turn as the executor does; the seconds until it has ended."""
    begun = time.monotonic()
    turn.cancel.request(StopReason.CANCELLED)
    await turn.cancel.interrupt()
    await asyncio.wait({running}, timeout=10)
    assert running.done()
    return time.monotonic() - begun


def processes(tmp_path: Path) -> list[str]:
    """The living processes whose environment names the test's folder: the binary and all that it has started."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            marked = str(tmp_path / "state").encode() in (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marked and state != "Z":
            found.append(command)
    return found


async def process_with(tmp_path: Path, words: str) -> None:
    """Until the turn has a process with these words in its command line."""
    for _ in range(1000):
        if any(words in line for line in processes(tmp_path)):
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"no process with {words!r}")

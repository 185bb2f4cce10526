"""ClaudeAgent: Claude Code behind the agent protocol. One process of the binary per turn; the session's folders carry it on."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from claude_agent_sdk import PermissionMode, ResultMessage

from waystation.agents.base import ExternalAgent
from waystation.agents.claude.errors import ResumeRefusedError, from_result
from waystation.agents.claude.home import CostState, SessionHome, base_folder, read_cost_state
from waystation.agents.claude.options import PERMISSION_MODES, PRIVATE, ClaudeSettings, build_options, secrets_of
from waystation.agents.claude.process import TurnProcess
from waystation.agents.claude.translate import PROVIDER, Translator, usage_of
from waystation.agents.turn import Emitter, Turn, TurnResult
from waystation.domain.event import CustomEvent
from waystation.domain.retry import RetryPolicy
from waystation.domain.webhook import Webhook
from waystation.errors import AgentError, ConfigError

_MAX_PROMPT_BYTES = 100_000
_CLOSE_S = 15.0

N = TypeVar("N", int, float)


class ClaudeAgent(ExternalAgent):
    """Claude Code as an agent. Needs `pip install 'waystation[claude]'` and, in the server's environment or in `env`, an
    ANTHROPIC_API_KEY.

    `system_prompt` None leaves Claude Code without one. `cwd` is the folder it works in, which must exist; without it each session
    has a private one. `tools` are the built-in tools that the model gets: None for all, empty for none. `allowed_tools` run
    without being asked about; other calls that Claude Code would ask about are refused, because nobody answers yet.
    `disallowed_tools` never run. `permission_mode` is Claude Code's own. `max_turns` and `max_budget_usd` end one turn of ours.
    `env` are variables for the binary and its tools; of the server's own, those that look like secrets are not handed on, other
    than ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL. `cli_path` is another `claude` binary than the one in the package.
    """

    sdk: ClassVar[str | None] = "claude-agent-sdk"

    def __init__(
        self,
        *,
        id: str,
        name: str = "Claude",
        description: str | None = None,
        model: str = "claude-sonnet-4-6",
        system_prompt: str | None = None,
        cwd: str | Path | None = None,
        tools: Sequence[str] | None = None,
        allowed_tools: Sequence[str] = (),
        disallowed_tools: Sequence[str] = (),
        permission_mode: PermissionMode | None = None,
        max_turns: int | None = None,
        max_budget_usd: float | None = None,
        cli_path: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
        webhooks: Sequence[Webhook] = (),
    ) -> None:
        super().__init__(id=id, name=name, description=description, metadata=metadata, retry=retry, webhooks=webhooks)
        self._settings = ClaudeSettings(
            model=_text(model, "model"),
            system_prompt=_system_prompt(system_prompt),
            cwd=Path(cwd).expanduser().absolute() if cwd is not None else None,
            tools=_names(tools, "tools") if tools is not None else None,
            allowed_tools=_names(allowed_tools, "allowed_tools"),
            disallowed_tools=_names(disallowed_tools, "disallowed_tools"),
            permission_mode=_mode(permission_mode),
            max_turns=_positive(max_turns, "max_turns"),
            max_budget_usd=_positive(max_budget_usd, "max_budget_usd"),
            cli_path=Path(cli_path).expanduser().absolute() if cli_path is not None else None,
            env=_env(env or {}),
        )
        self._owners: set[asyncio.Task[ResultMessage]] = set()

    @property
    def model(self) -> str:
        return self._settings.model

    @property
    def model_provider(self) -> str:
        return PROVIDER

    def tools(self) -> list[dict[str, Any]]:
        """The built-in tools that were chosen by name; Claude Code's own list is not known before it runs."""
        shared = {"description": "Built into Claude Code.", "parameters": {"type": "object"}}
        return [{"name": tool} | shared for tool in self._settings.tools or ()]

    async def run_turn(self, turn: Turn, emit: Emitter) -> TurnResult:
        """One prompt, up to its result. A conversation that can't be resumed is begun anew, and a warning says so."""
        home = SessionHome(base_folder(), agent_id=self.id, session_id=turn.session.id, cwd=self._settings.cwd)
        await asyncio.to_thread(home.prepare)
        if not await asyncio.to_thread(home.cwd.is_dir):
            raise AgentError(f"The working folder {str(home.cwd)!r} does not exist.", error_type="cwd_not_found")
        external_id = turn.session.external_session_id
        if external_id is None:
            return await self._run(turn, emit, home, resume=None, before=CostState())
        transcript = await asyncio.to_thread(home.find_transcript, external_id)
        if transcript is None:
            emit(_fallback(external_id, "transcript_missing", "Its transcript is not on this machine."))
            return await self._run(turn, emit, home, resume=None, before=CostState())
        before = await asyncio.to_thread(read_cost_state, transcript)
        try:
            return await self._run(turn, emit, home, resume=external_id, before=before)
        except ResumeRefusedError as exc:
            emit(_fallback(external_id, "resume_refused", exc.message))
        return await self._run(turn, emit, home, resume=None, before=CostState())

    async def close(self) -> None:
        """Wait for processes whose turn did not."""
        if self._owners:
            await asyncio.wait(set(self._owners), timeout=_CLOSE_S)

    async def _run(self, turn: Turn, emit: Emitter, home: SessionHome, *, resume: str | None, before: CostState) -> TurnResult:
        options = build_options(self._settings, home, inherited=os.environ, resume=resume)
        process = TurnProcess(options, secrets=secrets_of(os.environ), owners=self._owners)
        turn.cancel.bind(process.interrupt)
        turn.cancel.check()
        try:
            result = await process.run(turn.run.input.message, Translator(emit).take)
        except AgentError:
            turn.cancel.check()
            raise
        emit.external_session(result.session_id)
        for usage in usage_of(result, before, model=self.model):
            emit.usage(usage)
        if result.is_error:
            turn.cancel.check()
            raise from_result(result)
        return TurnResult()


def _fallback(external_id: str, reason: str, detail: str) -> CustomEvent:
    message = "The conversation can't be resumed; the turn begins a new one, without what was said before."
    warning = {"type": "session_fallback", "reason": reason, "message": message, "detail": detail}
    return CustomEvent(warning=warning | {"external_session_id": external_id})


def _text(value: str, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"ClaudeAgent {name} {value!r}: give a text that is not empty.")
    return value


def _system_prompt(text: str | None) -> str | None:
    """It is an argument of the binary's, and the system bounds each of these (128 KiB on Linux)."""
    if text is not None and len(text.encode()) > _MAX_PROMPT_BYTES:
        raise ConfigError(f"ClaudeAgent system_prompt: at most {_MAX_PROMPT_BYTES} bytes.")
    return text


def _names(values: Sequence[str], name: str) -> tuple[str, ...]:
    if isinstance(values, str) or not all(isinstance(value, str) and value for value in values):
        raise ConfigError(f"ClaudeAgent {name} {values!r}: give a list of names.")
    return tuple(values)


def _mode(mode: PermissionMode | None) -> PermissionMode | None:
    if mode is not None and mode not in PERMISSION_MODES:
        raise ConfigError(f"ClaudeAgent permission_mode {mode!r}: use one of {', '.join(sorted(PERMISSION_MODES))}.")
    return mode


def _positive(value: N | None, name: str) -> N | None:
    if value is not None and (isinstance(value, bool) or not value > 0):
        raise ConfigError(f"ClaudeAgent {name} {value!r}: must be more than 0.")
    return value


def _env(env: Mapping[str, str]) -> dict[str, str]:
    wrong = [name for name, value in env.items() if not isinstance(name, str) or not isinstance(value, str)]
    if wrong:
        raise ConfigError(f"ClaudeAgent env {wrong[0]!r}: names and values are texts.")
    if private := sorted(PRIVATE & env.keys()):
        raise ConfigError(f"ClaudeAgent env {private[0]!r}: each session has its own; it can't be given.")
    return dict(env)

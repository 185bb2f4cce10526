"""The options of one start of the binary, safe for a server that hands on the text of strangers.

What is always so, whatever the operator asks for: prompts arrive as they were written (no `@file` is read, no `/command` is
run), no settings, hooks or memory files of a folder are loaded, no MCP server but those given, one prompt gives one result
(background tasks are off), and a session sees only its own home.

Environment: the SDK lays `env` over the server's own environment and can't remove from it, so what must not go on is set to the
empty text. That is everything of Anthropic's, Claude Code's, the cloud providers', OpenTelemetry's and Waystation's, and every
name that looks like a secret; the agent's own shell commands could read it all. The operator's `env` wins over this.
ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL are handed on: they are how an operator says whom to ask.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from claude_agent_sdk import ClaudeAgentOptions, PermissionMode
from claude_agent_sdk.types import SystemPromptCustom

from waystation.agents.claude.home import SessionHome

PERMISSION_MODES: frozenset[str] = frozenset(get_args(PermissionMode))
PRIVATE = frozenset({"HOME", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_TMPDIR", "TMPDIR"})
"""Variables that are set for each session and can't be given."""

_HANDED_ON = frozenset({"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"})
_SET_BY_SDK = frozenset({"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_AGENT_SDK_VERSION"})
_FOREIGN = re.compile(r"ANTHROPIC_|CLAUDE|AWS_|GOOGLE_|GCLOUD_|CLOUDSDK_|CLOUD_ML_|VERTEX_|AZURE_|OTEL_|WAYSTATION_")
_SECRET = re.compile(r"_KEY\b|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|DATABASE_URL|REDIS_URL|_DSN\b", re.IGNORECASE)
_LINE_BYTES = 64 * 1024 * 1024
_SERVER = {
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "CLAUDE_CODE_MAX_RETRIES": "3",
    "API_TIMEOUT_MS": "120000",
    "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": "60000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeSettings:
    """What the operator has chosen; the fields are the constructor's of ClaudeAgent."""

    model: str
    system_prompt: str | None
    cwd: Path | None
    tools: tuple[str, ...] | None
    allowed_tools: tuple[str, ...]
    disallowed_tools: tuple[str, ...]
    permission_mode: PermissionMode | None
    max_turns: int | None
    max_budget_usd: float | None
    cli_path: Path | None
    env: Mapping[str, str]


def build_options(settings: ClaudeSettings, home: SessionHome, *, inherited: Mapping[str, str], resume: str | None) -> ClaudeAgentOptions:
    """`inherited` is the server's environment; `resume` the id of a conversation whose transcript is in the home."""
    return ClaudeAgentOptions(
        model=settings.model,
        system_prompt=_system_prompt(settings.system_prompt),
        cwd=home.cwd,
        tools=list(settings.tools) if settings.tools is not None else None,
        allowed_tools=list(settings.allowed_tools),
        disallowed_tools=list(settings.disallowed_tools),
        permission_mode=settings.permission_mode,
        max_turns=settings.max_turns,
        max_budget_usd=settings.max_budget_usd,
        cli_path=settings.cli_path,
        env=child_env(settings.env, home, inherited=inherited),
        resume=resume,
        setting_sources=[],
        strict_mcp_config=True,
        verbatim_prompts=True,
        include_partial_messages=True,
        max_buffer_size=_LINE_BYTES,
    )


def child_env(given: Mapping[str, str], home: SessionHome, *, inherited: Mapping[str, str]) -> dict[str, str]:
    """What is laid over the server's environment for the binary and all that it starts."""
    emptied = {name: "" for name in inherited if _is_withheld(name)}
    private = {
        "HOME": str(home.path),
        "CLAUDE_CONFIG_DIR": str(home.config),
        "CLAUDE_CODE_TMPDIR": str(home.tmp),
        "TMPDIR": str(home.tmp),
    }
    return emptied | _SERVER | dict(given) | private


def secrets_of(env: Mapping[str, str]) -> list[str]:
    """The values in an environment that must not be told to anyone."""
    return [value for name, value in env.items() if len(value) >= 6 and _SECRET.search(name)]


def _is_withheld(name: str) -> bool:
    if name in _HANDED_ON or name in _SET_BY_SDK:
        return False
    return _FOREIGN.match(name) is not None or _SECRET.search(name) is not None


def _system_prompt(text: str | None) -> SystemPromptCustom | None:
    """Without `snapshot` False a resumed session would go on with the prompt that it began with."""
    return SystemPromptCustom(type="custom", prompt=text, snapshot=False) if text is not None else None

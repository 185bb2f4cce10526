"""Claude Code as an agent: each turn runs the `claude` binary of `claude-agent-sdk` in its own process.

The only subpackage that imports `claude_agent_sdk`. Importing it without that package raises a ConfigError that says what to
install, so whoever offers `ClaudeAgent` must import it only when it is asked for.
"""

from waystation.errors import ConfigError

try:
    from waystation.agents.claude.agent import ClaudeAgent
except ModuleNotFoundError as exc:
    if exc.name != "claude_agent_sdk":
        raise
    raise ConfigError("ClaudeAgent needs the package claude-agent-sdk: pip install 'waystation[claude]'") from exc

__all__ = ["ClaudeAgent"]

"""Executors of turns: native agents, Claude Code, Codex, and the public base for own adapters."""

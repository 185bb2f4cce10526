"""What the tests of ClaudeAgent share: its environment, a scripted Messages API, and an emitter that keeps what it is told."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.anthropic_server import AnthropicServer
from support.claude_emitter import MemoryEmitter
from support.claude_turns import clean_environment


@pytest.fixture
def clean_claude(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_environment(monkeypatch, tmp_path)


@pytest.fixture
async def api() -> AsyncIterator[AnthropicServer]:
    async with AnthropicServer() as server:
        yield server


@pytest.fixture
def emit() -> MemoryEmitter:
    return MemoryEmitter()

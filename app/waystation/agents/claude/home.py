"""The private folders of a session on this machine, and what the binary has left there.

Each session of an agent has its own home, temporary folder and, unless the agent names one, working folder, under
`$XDG_STATE_HOME/waystation/claude` (`~/.local/state/waystation/claude`). They stay between turns: the next turn of the session
resumes from the transcript in its home. Nothing here removes them.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class CostState:
    """What a session had cost when its binary last ended. The binary counts on from here when it resumes.

    `models` maps a model's name to its counts, named as in the binary's `modelUsage`."""

    cost: float = 0.0
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def base_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "waystation" / "claude"


class SessionHome:
    """The folders of one session of one agent. Names are hashes: an id may hold what a file name can't, and paths stay short."""

    def __init__(self, base: Path, *, agent_id: str, session_id: str, cwd: Path | None) -> None:
        self._root = base / _short(agent_id) / _short(session_id)
        self.path = self._root / "home"
        self.config = self.path / ".claude"
        self.tmp = self._root / "tmp"
        self.cwd = cwd or self._root / "work"
        self._owns_cwd = cwd is None

    def prepare(self) -> None:
        """Make the folders, readable for this user only. A working folder that the agent names is not made."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.path, self.config, self.tmp, *([self.cwd] if self._owns_cwd else ())):
            folder.mkdir(mode=0o700, exist_ok=True)

    def find_transcript(self, external_session_id: str) -> Path | None:
        """The binary's record of a conversation, if it is still on this machine."""
        try:
            name = f"{UUID(external_session_id)}.jsonl"
        except ValueError:
            return None
        return next(self.config.glob(f"projects/*/{name}"), None)


def read_cost_state(transcript: Path) -> CostState:
    """The last cost state in a transcript; zero if there is none."""
    last: dict[str, Any] = {}
    with transcript.open("rb") as lines:
        for line in lines:
            if b'"cost-state"' in line:
                last = _row(line) or last
    return CostState(cost=float(last.get("totalCostUSD") or 0.0), models=last.get("modelUsage") or {})


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.get("type") == "cost-state" else None


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:20]

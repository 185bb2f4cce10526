"""The history checker: reads the tables of a database directly, without the product's code, and says what must not be.

It knows the scripts of the stub agents, so it also knows what each run must have answered.
"""

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from support.e2e_viewer import Viewer

FINAL = {"COMPLETED": "RunCompleted", "ERROR": "RunError", "CANCELLED": "RunCancelled"}
PREFIX = {"native": ("x", "s"), "plain": ("x", "s"), "ext": ("e", "e")}
CLOCK_S = 0.05
"""Times are taken by the process that writes, a moment before the statement that stores them."""
RUNS = (
    "SELECT id, agent_id, session_id, status, epoch, next_index, worker_id, holds_session, attempt, takeovers, idempotency_key, "
    "input, output, error, started_at, finished_at FROM runs ORDER BY seq"
)
EVENTS = "SELECT run_id, first_index, last_index, payload FROM run_events ORDER BY run_id, first_index"
SESSIONS = "SELECT id, runs FROM sessions"


@dataclass
class StoredRun:
    row: dict[str, Any]
    segments: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lines(self) -> list[bytes]:
        return [line.encode() for segment in self.segments for line in segment["payload"].split("\n")]

    @property
    def message(self) -> str:
        return str(json.loads(self.row["input"])["message"])


@dataclass
class History:
    runs: dict[str, StoredRun]
    sessions: dict[str, int]
    integrity: str

    def count(self) -> Counter[str]:
        """Runs by agent and end."""
        return Counter(f"{run.row['agent_id']} {run.row['status']}" for run in self.runs.values())


async def read_history(url: str) -> History:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20) as connection:
            connection.row_factory = sqlite3.Row
            tables = [[dict(row) for row in connection.execute(q)] for q in (RUNS, EVENTS, SESSIONS)]
            integrity = str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    else:
        found = await asyncpg.connect(url)
        try:
            tables = [[dict(row) for row in await found.fetch(q)] for q in (RUNS, EVENTS, SESSIONS)]
        finally:
            await found.close()
        integrity = "ok"
    runs = {row["id"]: StoredRun(row) for row in tables[0]}
    for segment in tables[1]:
        runs.setdefault(segment["run_id"], StoredRun({"id": segment["run_id"], "status": "missing"})).segments.append(segment)
    return History(runs, {row["id"]: row["runs"] for row in tables[2]}, integrity)


def problems(history: History, viewers: Iterable[Viewer]) -> list[str]:
    """Everything that must not be, as sentences."""
    found = [] if history.integrity == "ok" else [f"integrity check: {history.integrity}"]
    for run in history.runs.values():
        found += [f"{run.row['id']} ({run.row.get('agent_id')}): {problem}" for problem in _of_run(run)]
    for viewer in viewers:
        found += [*viewer.problems, *_of_viewer(history, viewer)]
    return found + _of_sessions(history)


def _of_run(run: StoredRun) -> list[str]:
    row, found, at = run.row, [], 0
    for segment in run.segments:
        if segment["first_index"] != at:
            found.append(f"a segment begins at {segment['first_index']}, not {at}")
        at = segment["last_index"] + 1
    if row["status"] not in FINAL:
        return [*found, f"has not ended: {row['status']}"]
    if at != row["next_index"]:
        found.append(f"the log has {at} events, the row says {row['next_index']}")
    events = [json.loads(line) for line in run.lines]
    if [event["event_index"] for event in events] != list(range(at)):
        found.append("the indices of the events are not 0..N-1")
    if any(event["run_id"] != row["id"] for event in events):
        found.append("an event of another run is in the log")
    ends = [event["event"] for event in events if event["event"] in FINAL.values()]
    if ends != [FINAL[row["status"]]] or events[-1]["event"] != ends[0]:
        found.append(f"is {row['status']}, and its ends are {ends}, the last event {events[-1]['event'] if events else None}")
    if row["holds_session"] or row["worker_id"]:
        found.append("has ended and still holds its session, or has an owner")
    if row["status"] == "COMPLETED":
        found += _of_answer(run, events)
    return found


def _of_answer(run: StoredRun, events: list[dict[str, Any]]) -> list[str]:
    content, expected = events[-1].get("content"), answer_to(run.row["agent_id"], run.message)
    found = [] if content == expected else [f"answered {str(content)[:60]!r}, not {str(expected)[:60]!r}"]
    if (streamed := streamed_text(events)) != content:
        found.append(f"streamed {streamed[-60:]!r} ({len(streamed)} characters), and completed with {len(content or '')}")
    if json.loads(run.row["output"] or "{}").get("content") != content:
        found.append("the row's output is not what its last event says")
    finished = Counter(event["tool"]["tool_call_id"] for event in events if event["event"] == "ToolCallCompleted")
    return found + [f"the call {call} finished {count} times" for call, count in finished.items() if count > 1]


def streamed_text(events: list[dict[str, Any]]) -> str:
    """The text of the RunContent events that no later warning has voided."""
    parts: list[tuple[int, str]] = []
    for event in events:
        if event["event"] == "RunContent":
            parts.append((event["event_index"], event.get("content") or ""))
        elif event["event"] == "CustomEvent" and (discard := (event.get("warning") or {}).get("discard_from")) is not None:
            parts = [part for part in parts if part[0] < discard]
    return "".join(text for _, text in parts)


def answer_to(agent: str, message: str) -> str:
    """What the stub agents answer to a message."""
    words = message.split()
    chunk, slow = PREFIX.get(agent, PREFIX["native"])
    match words:
        case ["chunks", count, *_]:
            return "".join(f"{chunk}{i} " for i in range(int(count)))
        case ["slow", count, *_]:
            return "".join(f"{slow}{i} " for i in range(int(count)))
        case _:
            return "ext ans wer" if agent == "ext" else "Hello from the stub."


def _of_viewer(history: History, viewer: Viewer) -> list[str]:
    if not viewer.run_id:
        return []
    run = history.runs.get(viewer.run_id)
    if run is None:
        return [f"{viewer.run_id}: a client knows it, the database does not"]
    stored = run.lines
    different = [i for i, line in viewer.lines.items() if i >= len(stored) or stored[i] != line]
    return [f"{viewer.run_id}: events {different[:5]} are stored otherwise than they were seen"] if different else []


def _of_sessions(history: History) -> list[str]:
    found = []
    by_session: dict[str, list[dict[str, Any]]] = {}
    for run in history.runs.values():
        by_session.setdefault(run.row["session_id"], []).append(run.row)
    for session, rows in by_session.items():
        if history.sessions.get(session) != len(rows):
            found.append(f"session {session} counts {history.sessions.get(session)} runs, and has {len(rows)}")
        begun = sorted((row for row in rows if row["started_at"]), key=lambda row: row["started_at"])
        for earlier, later in itertools.pairwise(begun):
            if (earlier["finished_at"] or 0) > later["started_at"] + CLOCK_S:
                found.append(f"in session {session} {later['id']} began before {earlier['id']} had ended")
    keys = Counter(run.row["idempotency_key"] for run in history.runs.values() if run.row["idempotency_key"])
    return found + [f"key {key} made {count} runs" for key, count in keys.items() if count > 1]


def check_ends(history: History, max_takeovers: int = 3) -> list[str]:
    """Runs whose agent can go on must have completed, unless their process was lost too often."""
    return [
        f"{run.row['id']} ended {run.row['status']} after {run.row['takeovers']} takeovers: {run.row['error']}"
        for run in history.runs.values()
        if run.row["status"] != "COMPLETED" and not (run.row["agent_id"] == "ext" or run.row["takeovers"] > max_takeovers)
    ]

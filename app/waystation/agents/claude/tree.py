"""Finding and ending the processes of one turn. Signals go to single processes, never to a group: the server is in the same one.

A turn's processes are the binary, whatever descends from it, and whatever carries the turn's mark in its environment; the mark
also finds children whose parent has died. This is read from /proc. Where there is none (macOS) only the binary's own pid is
known. A process is named by its pid and its start time, so that a pid that was given out again is never signalled.
"""

import asyncio
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = "WAYSTATION_TURN"
"""The environment variable that marks the processes of a turn."""

_PROC = Path("/proc")
_POLL_S = 0.02
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Process:
    """`started` is in clock ticks since boot; None where the system does not tell."""

    pid: int
    started: int | None


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    started: int


def find_tree(mark: str, root: int | None) -> set[Process]:
    """The living processes of a turn. `root` is the binary's pid if it has not been waited for yet. Reads files: for a thread."""
    if not _PROC.is_dir():
        return {Process(root, None)} if root is not None else set()
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    entry = f"{MARK}={mark}".encode()
    found = {pid for pid in stats if pid == root or entry in _environment(pid)}
    grown = True
    while grown:
        children = {pid for pid, stat in stats.items() if stat.parent in found}
        grown = not children <= found
        found |= children
    found.discard(os.getpid())
    return {Process(pid, stats[pid].started) for pid in found}


async def end_tree(mark: str, known: Iterable[Process] = (), *, grace_s: float = 0.4) -> None:
    """End what is left of a turn: those in `known` and all that carry the mark. SIGTERM first, SIGKILL after the grace."""
    left = set(known) | await asyncio.to_thread(find_tree, mark, None)
    for number in [signal.SIGTERM] + [signal.SIGKILL] * _ROUNDS:
        left = {process for process in left if _is_alive(process)}
        if not left:
            return
        for process in left:
            _send(process, number)
        await _wait_gone(left, grace_s)
        left |= await asyncio.to_thread(find_tree, mark, None)


async def _wait_gone(processes: set[Process], grace_s: float) -> None:
    for _ in range(round(grace_s / _POLL_S)):
        if not any(_is_alive(process) for process in processes):
            return
        await asyncio.sleep(_POLL_S)


def _send(process: Process, number: signal.Signals) -> None:
    if not _is_alive(process):
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _is_alive(process: Process) -> bool:
    if process.started is not None:
        stat = _stat(process.pid)
        return stat is not None and stat.started == process.started
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def _stat(pid: int) -> _Stat | None:
    """None for a process that is gone or only waits to be reaped. Fields: proc(5), /proc/pid/stat."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return _Stat(parent=int(fields[1]), started=int(fields[19]))


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []

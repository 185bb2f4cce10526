"""Faults at random moments under load, and the proof that nothing was lost: `python -m tests.support.chaos --runs 10000`.

Several replicas serve one store. While clients submit, watch, leave and cancel, replicas are killed, told to end, stopped for longer
than their lease, and on PostgreSQL the database itself is restarted or away for a while. Then the history checker reads the tables.
Prints a table and its seed; exits with 1 if anything is not as it must be.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from support.chaos_agents import EFFECTS  # noqa: E402
from support.chaos_checks import of_cancels, of_effects, of_logs, of_order, wrongly_ended  # noqa: E402
from support.chaos_load import ChaosLoad  # noqa: E402
from support.e2e_history import History, problems, read_history  # noqa: E402
from support.e2e_viewer import until  # noqa: E402
from support.server import Server  # noqa: E402
from support.services import PrivatePostgres, private_postgres  # noqa: E402

SILENCE_S = (12.0, 15.0)
"""How long a replica is stopped: its lease is given up after about ten seconds."""
CLIENTS = 24

Fault = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Report:
    """What was done and found. `wrong` are sentences, empty if all is as it must be."""

    seed: int
    faults: Counter[str]
    history: History
    load: ChaosLoad
    wrong: list[str]
    seconds: float
    wrongly_ended: list[str] = field(default_factory=list)

    def table(self) -> str:
        gaps = sorted(gap for viewer in self.load.viewers for gap in viewer.gaps_s)
        ends = Counter(str(run.row["status"]) for run in self.history.runs.values())
        taken_over = sum(bool(run.row["takeovers"]) for run in self.history.runs.values())
        rows = {
            "faults": ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items())),
            "runs": f"{len(self.history.runs)} ({', '.join(f'{count} {name}' for name, count in sorted(ends.items()))})",
            "runs that were taken over": str(taken_over),
            "wrong": str(len(self.wrong)),
            "of agents that can go on, wrongly ended": str(len(self.wrongly_ended)),
            "silence before a takeover p50 / p99, s": f"{_percentile(gaps, 0.5):.1f} / {_percentile(gaps, 0.99):.1f}"
            if gaps
            else "none seen",
            "cuts of streams": str(sum(viewer.cuts for viewer in self.load.viewers)),
            "seconds": f"{self.seconds:.0f}",
            "seed": str(self.seed),
        }
        return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else statistics.nan


class Chaos:
    """`replicas` processes on one store, and what befalls them. One fault at a time; one replica at least is left alone."""

    def __init__(self, url: str, folder: Path, rng: random.Random, replicas: int, postgres: PrivatePostgres | None) -> None:
        os.environ[EFFECTS] = str(folder / "effects")
        agents = "tests/support/chaos_agents.py"
        self.servers = [Server(url, folder, agents=agents, drain_s=1, cancel_grace_s=0.5, poll_s=0.5) for _ in range(replicas)]
        self.faults: Counter[str] = Counter()
        self.is_over = False
        self._rng = rng
        self._postgres = postgres

    async def start(self) -> None:
        for server in self.servers:
            await asyncio.to_thread(server.start)

    async def befall(self, names: tuple[str, ...]) -> None:
        """One fault some time after the other, until `is_over`."""
        faults: dict[str, Fault] = {
            "kill -9": self._kill,
            "SIGTERM": self._terminate,
            "stop beyond the lease": self._stop,
            "database restarted": self._restart_database,
            "database away": self._database_away,
        }
        while not self.is_over:
            await asyncio.sleep(self._rng.uniform(0.2, 2.0))
            name = self._rng.choice(names)
            self.faults[name] += 1
            await faults[name]()

    async def _kill(self) -> None:
        server = self._rng.choice(self.servers)
        server.kill()
        await asyncio.sleep(self._rng.uniform(0, 2))
        await asyncio.to_thread(server.start, 60)

    async def _terminate(self) -> None:
        server = self._rng.choice(self.servers)
        await asyncio.to_thread(server.terminate, 30)
        await asyncio.to_thread(server.start, 60)

    async def _stop(self) -> None:
        server = self._rng.choice(self.servers)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._rng.uniform(*SILENCE_S))
        finally:
            os.kill(server.pid, signal.SIGCONT)

    async def _restart_database(self) -> None:
        assert self._postgres is not None
        await asyncio.to_thread(self._postgres.stop)
        await asyncio.to_thread(self._postgres.start)

    async def _database_away(self) -> None:
        assert self._postgres is not None
        await asyncio.to_thread(self._postgres.stop)
        try:
            await asyncio.sleep(self._rng.uniform(5, 15))
        finally:
            await asyncio.to_thread(self._postgres.start)

    async def is_idle(self) -> bool:
        """Whether no run is left. Asked of every replica, so that each answers again."""
        for server in self.servers:
            async with server.client() as client:
                answer = await client.get("/queue/stats")
                if answer.status_code != 200:
                    return False
                counts = answer.json()["counts"]
                if counts["queued"] or counts["running"]:
                    return False
        return True


async def run_chaos(
    url: str, folder: Path, *, runs: int, seed: int, names: tuple[str, ...], replicas: int = 3, postgres: PrivatePostgres | None = None
) -> Report:
    """Submit `runs` runs while the named faults befall the replicas; then read what was stored."""
    began = time.monotonic()
    chaos = Chaos(url, folder, random.Random(seed), replicas, postgres)
    load = ChaosLoad([server.base for server in chaos.servers], seed, runs, CLIENTS)
    try:
        await chaos.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(chaos.befall(names))
            await load.run()
            chaos.is_over = True  # the fault that is under way comes to its end: every replica is up again
        await until(chaos.is_idle, 60, "all runs have ended")
        logs = [server.log for server in chaos.servers]
    finally:
        for server in chaos.servers:
            server.kill()
    history = await read_history(url)
    report = Report(seed, chaos.faults, history, load, [], time.monotonic() - began)
    report.wrong += [*load.problems, *problems(history, load.viewers), *of_cancels(history, load.cancelled), *of_order(history)]
    effects = folder / "effects"
    report.wrong += [*of_effects(history, effects.read_text().split() if effects.exists() else [], load.notes), *of_logs(logs)]
    report.wrongly_ended = wrongly_ended(history, load.asked)
    return report


PROCESS_FAULTS = ("kill -9", "kill -9", "SIGTERM", "SIGTERM", "stop beyond the lease")
DATABASE_FAULTS = ("database restarted", "database away")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="postgresql")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        how: dict[str, Any] = {"runs": options.runs, "seed": options.seed, "replicas": options.replicas}
        if options.store == "sqlite":
            report = asyncio.run(run_chaos(f"sqlite:///{folder / 'chaos.db'}", folder, names=PROCESS_FAULTS, **how))
        else:
            server = stack.enter_context(private_postgres())
            names = PROCESS_FAULTS + DATABASE_FAULTS
            report = asyncio.run(run_chaos(server.url, folder, names=names, postgres=server, **how))
    print(report.table())
    print("\n".join([*report.wrong[:50], *report.wrongly_ended[:50]]))
    raise SystemExit(1 if report.wrong or report.wrongly_ended else 0)


if __name__ == "__main__":
    main()

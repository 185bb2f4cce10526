"""The servers that are measured: started one at a time, each on a store of its own, and what they cost."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEER_PYTHON = ROOT / ".venvs" / "agentos" / "bin" / "python"
PORT = 7900


@dataclass(frozen=True)
class Contender:
    """A server to measure. `store` gives its environment for a fresh store, `path` the route that takes runs."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    streams: bool = True


def contenders(sqlite: Callable[[str], str], postgres: Callable[[str], str] | None, *, peers: bool) -> list[Contender]:
    """The servers of one comparison. `sqlite` and `postgres` make a fresh store and give its place."""
    uvicorn = [sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(PORT), "--log-level", "warning"]
    ours = [sys.executable, "-m", "waystation.cli.main", "serve", "benchmarks/stub_agents.py", "--port", str(PORT)]
    peer = [str(PEER_PYTHON), "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(PORT), "--log-level", "warning", "agentos_app:app"]
    found = [
        Contender("bare FastAPI", [*uvicorn, "--factory", "benchmarks.bare_app:create_app"], streams=False),
        Contender("Waystation, SQLite", ours, {"WAYSTATION_DATABASE_URL": f"sqlite:///{sqlite('ours')}"}),
    ]
    if peers:
        found.append(Contender("AgentOS, SQLite", peer, {"PEER_DB": sqlite("peer"), "PYTHONPATH": str(ROOT / "benchmarks" / "peers")}))
    if postgres:
        found.append(Contender("Waystation, PostgreSQL", ours, {"WAYSTATION_DATABASE_URL": postgres("ours")}))
        if peers:
            url = postgres("peer").replace("postgresql://", "postgresql+psycopg://")
            found.append(Contender("AgentOS, PostgreSQL", peer, {"PEER_DB": url, "PYTHONPATH": str(ROOT / "benchmarks" / "peers")}))
    return found


class Running:
    """A server process, and the processor time it has used."""

    def __init__(self, contender: Contender) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WAYSTATION_", "OPENAI_", "ANTHROPIC_"))}
        environment = {**kept, "WAYSTATION_LOG_LEVEL": "warning", "PYTHONPATH": str(ROOT), **contender.environment}
        self.process = subprocess.Popen(contender.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError("the server did not answer within 30 s")

    def cpu_s(self) -> float:
        """Processor seconds of all its threads, as the kernel counts them in nanoseconds."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue
        return total / 1e9

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

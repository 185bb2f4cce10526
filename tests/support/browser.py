"""A real browser for the tests: headless Chromium that opens one page, and what the page reports."""

import contextlib
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--no-proxy-server",
)  # fmt: skip


def browser() -> str:
    """The browser of this machine. Where there is none the test is skipped, and says so; not where the project's checks run."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("CI"):
            raise RuntimeError("no Chromium is installed: the browser tests can't run")
        pytest.skip("no Chromium is installed: EventSource in a real browser was not tried")
    return found


class Page:
    """A page of an origin of its own. It reports by `fetch("/report", {method: "POST", body: JSON})`."""

    def __init__(self, html: str) -> None:
        self._reports: queue.Queue[Any] = queue.Queue()
        reports = self._reports

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, html.encode())

            def do_POST(self) -> None:
                reports.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self._answer(204, b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def report(self, within_s: float = 60.0) -> Any:
        """The next thing that the page tells."""
        return self._reports.get(timeout=within_s)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def opened(executable: str, url: str, folder: Path) -> Iterator[None]:
    """The browser, with one page open and a profile of its own."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([executable, *FLAGS, f"--user-data-dir={folder / 'profile'}", url], start_new_session=True, **quiet)  # type: ignore[call-overload]
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it has children
        process.wait(10)

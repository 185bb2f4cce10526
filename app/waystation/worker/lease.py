"""The lease: tells every other process that this one lives.

1. It is renewed every second from a thread of its own with a connection of its own, so that a blocked event loop is not taken for
   a dead process. Cancel requests for this process's runs come back with it.
2. It is renewed only while the loop has answered the thread within LOOP_SILENCE_S. After that the stack of every thread is logged
   and the process exits: its runs go on elsewhere.
3. A process that can't renew starts no new run and keeps what runs. At its next contact it reads its row: dead, and it stops all
   it does; alive, and it goes on. So an outage of the database kills nobody.
"""

import asyncio
import faulthandler
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from waystation.clock import new_id, now
from waystation.db.engine import Database
from waystation.errors import StoreUnavailableError
from waystation.logs import get_logger
from waystation.store import workers
from waystation.store.runs import release_and_hand_back, renew_and_ask
from waystation.store.workers import Worker

log = get_logger(__name__)

RENEW_S = 1.0
LOOP_SILENCE_S = 60.0
EXIT_CODE = 70


class Lease:
    """`on_cancel` is told ids of own runs to stop; `on_dead` that this process was declared dead and must drop all its runs.
    Both are called in the event loop. `slots` and `agents` are what the process tells others that it executes."""

    def __init__(
        self,
        database: Database,
        *,
        slots: int,
        agents: Sequence[str],
        on_cancel: Callable[[list[str]], None],
        on_dead: Callable[[], None],
    ) -> None:
        self._database = database
        self._slots = slots
        self._agents = tuple(agents)
        self._on_cancel = on_cancel
        self._on_dead = on_dead
        self._worker = self._new_worker()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at: float | None = None
        self.is_held = False
        """Whether the last renewal went well. Without it no new run is started."""

    @property
    def worker_id(self) -> str:
        return self._worker.id

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._database.write(workers.register, self._worker)
        self.is_held = True
        self._thread = threading.Thread(target=self._renew_for_ever, name="waystation-lease", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Give the lease up: others need not wait for this process's death."""
        self._stop.set()
        if self._thread:
            await asyncio.to_thread(self._thread.join)
        self.is_held = False
        try:
            await self._database.write(release_and_hand_back, self._worker.id, now())
        except StoreUnavailableError:
            log.error("lease could not be released; others will see this process as dead", worker_id=self._worker.id)

    def _renew_for_ever(self) -> None:
        while not self._stop.wait(RENEW_S):
            if self._loop is None or self._loop.is_closed():
                log.error("the event loop was closed without an end of its work; the lease is given up", worker_id=self._worker.id)
                return
            self._watch_loop()
            try:
                alive, cancels = self._database.sync_write(renew_and_ask, self._worker.id, now())
                if not alive:
                    self._tell(self._died)  # nothing is started until the new lease stands
                    self._worker = self._new_worker()  # the old one's death stands
                    self._database.sync_write(workers.register, self._worker)
            except StoreUnavailableError:
                self._tell(self._cut_off)
            except Exception:
                log.exception("lease not renewed")
                self._tell(self._cut_off)
            else:
                self._tell(self._renewed, cancels)

    def _new_worker(self) -> Worker:
        return replace(this_process(), slots=self._slots, agents=self._agents)

    def _watch_loop(self) -> None:
        """Ask the loop for a sign of life. Its silence counts from the question: this thread may have been kept waiting itself."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._tell(self._answer)
            return
        silence = time.monotonic() - self._asked_at
        # A second look: after a stop of the whole process both wake at once.
        if silence > LOOP_SILENCE_S and not self._stop.wait(RENEW_S) and self._asked_at is not None:
            log.error("the event loop does not answer; the process exits", silent_s=round(silence, 1))
            faulthandler.dump_traceback(file=sys.stderr)
            os._exit(EXIT_CODE)

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # closed meanwhile: nobody is left to hear it
            self._loop.call_soon_threadsafe(function, *args)

    # ---- in the event loop -------------------------------------------------------------------------------------------------
    def _answer(self) -> None:
        self._asked_at = None

    def _cut_off(self) -> None:
        if self.is_held:
            log.error("lease can't be renewed; no new runs until it can", worker_id=self._worker.id)
        self.is_held = False

    def _died(self) -> None:
        log.error("this process was declared dead; its runs go on elsewhere")
        self.is_held = False
        self._on_dead()

    def _renewed(self, cancels: list[str]) -> None:
        self.is_held = True
        if cancels:
            self._on_cancel(cancels)


def this_process() -> Worker:
    at = now()
    return Worker(
        id=new_id(), host=host_name(), boot_id=boot_id(), pid=os.getpid(), process_started=process_started(os.getpid()) or "",
        started_at=at, renewed_at=at,
    )  # fmt: skip


def host_name() -> str:
    """The host, with the namespace of process ids: the same number in two containers is not the same process."""
    try:
        return f"{platform.node()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_started(pid: int) -> str | None:
    """When a process of this machine was started, in the kernel's ticks since boot; None if there is no such process. Without
    /proc the empty text: then a process id that exists counts as the same process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""

"""One of several processes that race on one database: foreground and queued runs, claims, zombies. `python -m support.store_race`.

Prints one line of JSON: what each caller was told, who executed what and when, and every exception that reached a caller.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from support.store_ops import EventLines, accept_of, end_of, lines, register
from waystation.clock import now
from waystation.db.engine import Database, open_database
from waystation.db.tables import runs
from waystation.domain.run import Run
from waystation.errors import SessionTakenError
from waystation.store import runs as run_store
from waystation.store.ledger import Ledger
from waystation.store.operations import Step, Stepped, Verdict

SLOTS = 16
CLIENTS = 8


class Log:
    """A run's log: one step at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._step: Step | None = None
        self._answer: asyncio.Future[Stepped] = asyncio.get_running_loop().create_future()

    async def put(self, step: Step) -> bool:
        self._step, self._answer = step, asyncio.get_running_loop().create_future()
        self._ledger.gather(self)
        return (await self._answer).owned

    def take(self) -> Step | None:
        step, self._step = self._step, None
        return step

    def settle(self, outcome: Stepped | Exception) -> None:
        if isinstance(outcome, Exception):
            self._answer.set_exception(outcome)
        else:
            self._answer.set_result(outcome)


class Racer:
    def __init__(self, database: Database, name: str, count: int, sessions: int, folder: Path) -> None:
        self.database, self.name, self.left, self.sessions, self.folder = database, name, count, sessions, folder
        self.random = random.Random(name)
        self.ledger = Ledger(database)
        self.running: set[str] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.executions: list[dict[str, Any]] = []
        self.accepted: list[tuple[str, str, str | None, str | None]] = []
        self.first: list[dict[str, Any]] = []
        self.errors: list[str] = []

    async def run(self) -> None:
        self.ledger.start()
        await self.database.write(register, self.name)
        claims = asyncio.create_task(self.claim_for_ever())
        await asyncio.gather(*(self.client() for _ in range(CLIENTS)))
        (self.folder / f"{self.name}.done").touch()
        while len(list(self.folder.glob("*.done"))) < 2 or await self.database.read(unfinished) or self.tasks:
            await asyncio.sleep(0.02)
        claims.cancel()
        await asyncio.gather(claims, return_exceptions=True)
        await self.ledger.close()

    async def client(self) -> None:
        while self.left > 0:
            self.left -= 1
            id, may_wait = f"{self.name}{self.left}", self.random.random() < 0.5
            goes_first = may_wait and self.random.random() < 0.15
            key = f"k{self.random.randrange(30)}" if self.random.random() < 0.1 else None
            starts = len(self.running) < SLOTS and not (may_wait and self.random.random() < 0.7)
            accept = accept_of(
                id, f"s{self.random.randrange(self.sessions)}", worker_id=self.name if starts else None, may_wait=may_wait,
                goes_first=goes_first, idempotency_key=key, first=lines(0, "RunStarted") if starts else None, created_at=now(),
                available_at=0.0,
            )  # fmt: skip
            try:
                answer = await self.ledger.accept(accept)
            except Exception as error:  # noqa: BLE001
                self.errors.append(f"accept: {error!r}")
                continue
            self.accepted.append((id, answer.verdict.value, answer.run_id, key))
            if goes_first and answer.verdict in (Verdict.STARTED, Verdict.WAITS):
                self.first.append({"run": id, "session": accept.run.session_id, "answered": time.time(), "asked": answer.asked})
            if answer.verdict is Verdict.STARTED:
                self.launch(id, accept.run.session_id, 1, 1)
            await asyncio.sleep(self.random.random() * 0.003)

    async def claim_for_ever(self) -> None:
        while True:
            try:
                found: list[Run] = await self.database.hot(run_store.claim, self.name, ["a"], SLOTS - len(self.running), now())
            except SessionTakenError:
                continue
            except Exception as error:  # noqa: BLE001
                self.errors.append(f"claim: {error!r}")
                continue
            for run in found:
                self.launch(run.id, run.session_id, run.epoch, run.next_index)
            await asyncio.sleep(0 if found else 0.005)

    def launch(self, *what: Any) -> None:
        self.running.add(what[0])
        task = asyncio.create_task(self.execute(*what))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def execute(self, id: str, session: str, epoch: int, index: int) -> None:
        began, log = time.time(), Log(self.ledger)
        record = {"run": id, "session": session, "epoch": epoch, "began": began, "ended": None, "outcome": "fenced"}
        self.executions.append(record)
        try:
            for _ in range(self.random.randrange(3)):
                names = ["RunContent"] * self.random.randrange(1, 4)
                if not await log.put(step(id, session, epoch, index, names)):
                    return
                index += len(names)
                await asyncio.sleep(self.random.random() * 0.003)
            record["ended"] = time.time()
            if self.random.random() < 0.15:  # declared dead, and ends its run all the same, at the same time or later
                back = asyncio.create_task(self.database.write(run_store.hand_back, id, epoch, now()))
                if self.random.random() < 0.5:
                    await back
                    await asyncio.sleep(self.random.random() * 0.02)
                won = await log.put(step(id, session, epoch, index, ["RunCompleted"], end=True))
                record["outcome"] = "both" if won and await back else "ended" if won else "fenced"
                await back
            elif await log.put(step(id, session, epoch, index, ["RunCompleted"], end=True)):
                record["outcome"] = "ended"
        except Exception as error:  # noqa: BLE001
            self.errors.append(f"step: {error!r}")
        finally:
            self.running.discard(id)


def step(id: str, session: str, epoch: int, index: int, names: list[str], *, end: bool = False) -> Step:
    payload = "\n".join(f'{{"event":"{name}","epoch":{epoch}}}' for name in names).encode()
    return Step(
        run_id=id, session_id=session, agent_id="a", user_id=None, epoch=epoch, first_index=index,
        events=EventLines(len(names), payload), finish=end_of() if end else None,
    )  # fmt: skip


def unfinished(conn: sa.Connection) -> int:
    return conn.execute(sa.select(sa.func.count()).where(runs.c.status.in_(["PENDING", "RUNNING"]))).scalar_one()


async def main(url: str, name: str, count: str, sessions: str, folder: str) -> None:
    database = open_database(url)
    racer = Racer(database, name, int(count), int(sessions), Path(folder))
    async with asyncio.timeout(40):
        await racer.run()
    await database.close()
    print(json.dumps({"executions": racer.executions, "accepted": racer.accepted, "first": racer.first, "errors": racer.errors}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

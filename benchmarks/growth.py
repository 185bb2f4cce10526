"""`make growth`: what a claim, an acceptance and a step cost as the store grows, on both databases.

Each stage fills the tables by copies of real rows, then times the store's own functions, as the ledger and the claim loop call them: one
after the other, in this process, the hop to the writing thread or the round trip to PostgreSQL included. Scratch databases are removed.
Prints a table in Markdown.
"""

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.run import fresh_database
from waystation.clock import new_id, now
from waystation.db import schema
from waystation.db.engine import Database, open_database
from waystation.db.tables import run_events, run_messages, runs, sessions
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import Message
from waystation.domain.run import Run, RunInput
from waystation.store import runs as run_store
from waystation.store.batch import write
from waystation.store.operations import Accept, EventLines, Finish, MessageLines, Step
from waystation.store.rows import payload_from_messages

AGENT = "plain"
TIMES = 200
CLAIMED = 8
"""Runs of one claim: as many as the claim loop takes at most."""
USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
CHUNK = 50_000
COPIES = "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) "


# ---- operations --------------------------------------------------------------------------------------------------------------
def lines(first: int, count: int) -> EventLines:
    line = b'{"event":"RunContent","event_index":%d,"created_at":1700000000,"agent_id":"plain","content":"a few words of an answer"}'
    return EventLines(count, b"\n".join(line % index for index in range(first, first + count)))


def accept(session_id: str | None = None, user_id: str | None = None, *, starts: bool = True) -> Accept:
    at = now()
    run = Run(
        id=new_id(), session_id=session_id or new_id(), agent_id=AGENT, user_id=user_id, status=RunStatus.PENDING,
        input=RunInput(message="what is the weather in Paris?"), created_at=at, available_at=at, background=not starts,
    )  # fmt: skip
    return Accept(run=run, worker_id="growth", first=lines(0, 1)) if starts else Accept(run=run, may_wait=True)


def last_step(run: Run) -> Step:
    said = [Message(id=new_id(), role=role, content="some words") for role in ("user", "assistant")]
    return Step(
        run_id=run.id, session_id=run.session_id, agent_id=AGENT, user_id=None, epoch=1, first_index=1, events=lines(1, 8),
        messages=MessageLines(0, len(said), payload_from_messages(said)),
        finish=Finish(status="COMPLETED", at=now(), holds_session=False, output='{"content":"some words"}', usage=USAGE),
    )  # fmt: skip


# ---- filling -----------------------------------------------------------------------------------------------------------------
async def copy(database: Database, table: sa.Table, source: str, count: int, **values: str) -> None:
    """Rows made of one that is there, `count` times; `values` are expressions with `i`, the number of the copy."""
    key = "id" if "id" in table.c else "run_id"
    names = [column.name for column in table.c if column.name != "seq"]
    chosen = ", ".join(values.get(name, f't."{name}"') for name in names)
    columns = ", ".join([f'"{name}"' for name in names])
    for first in range(1, count + 1, CHUNK):
        numbers = COPIES.format(first=first, last=min(first + CHUNK - 1, count))
        # The common table expression stands before the SELECT: both databases take it there.
        text = sa.text(f"INSERT INTO {table.name} ({columns}) {numbers} SELECT {chosen} FROM n, {table.name} AS t WHERE t.{key} = :source")  # noqa: S608
        await database.write(lambda conn, text=text: conn.execute(text, {"source": source}) and None)


async def finished(database: Database, count: int) -> None:
    """Finished runs with their logs, ten to a session."""
    done = accept()
    await database.hot(write, [done])
    await database.hot(write, [last_step(done.run)])
    run_id = "'f' || i"
    session_id = "'fs' || (i / 10)"
    times = {name: f't."{name}" + i * 0.001' for name in ("created_at", "available_at", "started_at", "finished_at")}
    await copy(database, sessions, done.run.session_id, count // 10 + 1, id="'fs' || (i - 1)")
    await copy(database, runs, done.run.id, count, id=run_id, session_id=session_id, **times)
    await copy(database, run_events, done.run.id, count, run_id=run_id, session_id=session_id)
    await copy(database, run_messages, done.run.id, count, run_id=run_id, session_id=session_id)


async def waiting(database: Database, prefix: str, count: int, in_sessions: int, user_id: str | None = None) -> None:
    """Waiting runs, dealt to the sessions in turn."""
    first = accept(user_id=user_id, starts=False)
    await database.hot(write, [first])
    session_id = f"'{prefix}s' || (i % {in_sessions})"
    await copy(database, sessions, first.run.session_id, in_sessions, id=f"'{prefix}s' || (i - 1)")
    await copy(database, runs, first.run.id, count, id=f"'{prefix}' || i", session_id=session_id)


async def busy(database: Database, count: int) -> None:
    """Runs that are executed, one in each of the sessions `b…`."""
    running = accept()
    await database.hot(write, [running])
    await copy(database, runs, running.run.id, count, id="'br' || i", session_id="'bs' || (i - 1)")


async def analyze(database: Database) -> None:
    await database.write(lambda conn: conn.execute(sa.text("ANALYZE")) and None)


# ---- timing ------------------------------------------------------------------------------------------------------------------
async def timed(work: Callable[[], Awaitable[Any]], after: Callable[[Any], Awaitable[Any]] | None = None) -> tuple[float, float]:
    """Median and 99th percentile of the work, in milliseconds. What comes after it is not counted."""
    took: list[float] = []
    for _ in range(TIMES):
        began = time.perf_counter()
        result = await work()
        took.append((time.perf_counter() - began) * 1000)
        if after is not None:
            await after(result)
    took.sort()
    return statistics.median(took), took[int(len(took) * 0.99)]


class Figures:
    """What is measured at each size, and the rows of the table."""

    def __init__(self, name: str, database: Database) -> None:
        self._name = name
        self._database = database
        self.rows: list[str] = []

    async def accept_and_step(self, stage: str) -> None:
        started: list[Accept] = []

        async def one_accept() -> None:
            started.append(accept())
            await self._database.hot(write, [started[-1]])

        async def one_step() -> None:
            await self._database.hot(write, [last_step(started.pop().run)])

        self._add(stage, "an acceptance", await timed(one_accept))
        self._add(stage, "the last step of a run", await timed(one_step))

    async def claim(self, stage: str, passed_over: tuple[str, ...] = ()) -> None:
        async def one_claim() -> list[Run]:
            return await self._database.hot(run_store.claim_now, "growth", [AGENT], CLAIMED, passed_over)

        async def let_go(claimed: list[Run]) -> None:
            assert claimed, "nothing was there to claim"
            ended = sa.update(runs).where(runs.c.id.in_([run.id for run in claimed]))
            done = ended.values(status="COMPLETED", holds_session=False, finished_at=now())
            await self._database.write(lambda conn: conn.execute(done) and None)

        await one_claim()  # plans are made
        what = f"a claim of {CLAIMED}" + (", passing users over" if passed_over else "")
        self._add(stage, what, await timed(one_claim, let_go))

    def _add(self, stage: str, what: str, took: tuple[float, float]) -> None:
        self.rows.append(f"| {self._name} | {stage} | {what} | {took[0]:.2f} | {took[1]:.2f} |")
        print(self.rows[-1], flush=True)


async def measure(name: str, url: str, finished_runs: int) -> list[str]:
    database = open_database(url)
    try:
        await schema.upgrade(database)
        figures = Figures(name, database)
        await figures.accept_and_step("hardly anything")
        few = (TIMES + 1) * CLAIMED - 1  # and the one that was copied: all are claimed
        await waiting(database, "e", few, few)
        await figures.claim(f"{few + 1:,} waiting")
        await finished(database, finished_runs)
        await analyze(database)
        await figures.accept_and_step(f"{finished_runs:,} finished")
        await waiting(database, "b", 10_000, 100)
        await busy(database, 100)
        await waiting(database, "w", 100_000, 10_000)
        await analyze(database)
        await figures.claim("and 100 busy sessions with 100 waiting each, older than 100,000 waiting in 10,000 sessions")
        for user in ("ann", "bob"):
            await waiting(database, user, 1_000, 1_000, user)
        await figures.claim("and two users with 1,000 waiting each", ("ann", "bob"))
        await figures.accept_and_step("all that")
        return figures.rows
    finally:
        await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=1_000_000, help="finished runs")
    parser.add_argument("--postgres", default="postgresql://postgres@127.0.0.1:5432", help="a server, or 'none'")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stores = {"SQLite": f"sqlite:///{Path(folder) / 'growth.db'}"}
        if options.postgres != "none":
            stores["PostgreSQL"] = asyncio.run(fresh_database(options.postgres, "waystation_growth"))
        rows = [asyncio.run(measure(name, url, options.finished)) for name, url in stores.items()]
    head = f"| store | what is stored | what is done ({TIMES} times) | median ms | p99 ms |\n|---|---|---|---|---|"
    print("\n" + head, *itertools.chain(*rows), sep="\n")


if __name__ == "__main__":
    main()

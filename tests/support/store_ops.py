"""Operations of the store as the tests write them, and looks into the tables. Run ids and session ids are short words."""

from dataclasses import fields, replace
from typing import Any

import sqlalchemy as sa

from waystation.db.engine import Database
from waystation.db.tables import metadata, runs, sessions, workers
from waystation.domain.lifecycle import RunStatus
from waystation.domain.message import Message
from waystation.domain.run import Run, RunInput
from waystation.store import runs as run_store
from waystation.store import workers as worker_store
from waystation.store.batch import write
from waystation.store.operations import Accept, Accepted, EventLines, Finish, MessageLines, Step, Stepped
from waystation.store.rows import payload_from_messages
from waystation.worker.lease import this_process

AT = 1_000.0
LATER = 2_000.0
USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "cost": 0.5}

_ACCEPT_FIELDS = {f.name for f in fields(Accept)} - {"run"}


def make_run(id: str, session: str = "s", **more: Any) -> Run:
    values: dict[str, Any] = {
        "agent_id": "a", "user_id": None, "status": RunStatus.PENDING, "input": RunInput(message=f"ask {id}"), "created_at": AT,
        "available_at": AT,
    }  # fmt: skip
    return Run(id=id, session_id=session, **values | more)


def accept_of(id: str, session: str = "s", **more: Any) -> Accept:
    """An accept; what is not a field of Accept is one of its run."""
    own = {name: more.pop(name) for name in _ACCEPT_FIELDS & more.keys()}
    return Accept(run=make_run(id, session, **more), **own)


def starting(id: str, session: str = "s", **more: Any) -> Accept:
    """A foreground run: it starts at once or is refused."""
    return accept_of(id, session, **{"worker_id": "w", "first": lines(0, "RunStarted")} | more)


def waiting(id: str, session: str = "s", **more: Any) -> Accept:
    """A background run: it waits for a claim."""
    return accept_of(id, session, may_wait=True, **more)


def interrupting(id: str, session: str = "s", **more: Any) -> Accept:
    """A background run that goes first."""
    return waiting(id, session, goes_first=True, **more)


def lines(first: int, *names: str) -> EventLines:
    encoded = [f'{{"event":"{name}","event_index":{index}}}' for index, name in enumerate(names, first)]
    return EventLines(len(names), "\n".join(encoded).encode())


def messages(first: int, *texts: str) -> MessageLines:
    said = [Message(id=f"m{first + n}", role="user", content=text) for n, text in enumerate(texts)]
    return MessageLines(first, len(said), payload_from_messages(said))


def step_of(id: str, session: str = "s", *names: str, epoch: int = 1, first: int = 1, **more: Any) -> Step:
    events = lines(first, *(names or ("RunContent",)))
    return Step(
        run_id=id, session_id=session, agent_id="a", user_id=None, epoch=epoch, first_index=first, events=events, **more
    )  # fmt: skip


def end_of(status: str = "COMPLETED", **more: Any) -> Finish:
    return Finish(**{"status": status, "at": LATER, "holds_session": False, "usage": USAGE} | more)


def ending(id: str, session: str = "s", *, epoch: int = 1, first: int = 1, said: tuple[str, ...] = (), **more: Any) -> Step:
    """A run's last step: its terminal event, what was said, its end."""
    return step_of(
        id, session, "RunCompleted", epoch=epoch, first=first, finish=end_of(**more), messages=messages(0, *said) if said else None
    )


async def commit(database: Database, *batch: Accept | Step) -> list[Accepted | Stepped]:
    return await database.hot(write, list(batch))


def register(conn: sa.Connection, *names: str) -> None:
    """Give these processes a lease, unless they have one or had one."""
    known = set(conn.execute(sa.select(workers.c.id)).scalars())
    for name in sorted({*names} - known):
        worker_store.register(conn, replace(this_process(), id=name))


async def claim(
    database: Database,
    *,
    worker: str = "w",
    agents: tuple[str, ...] = ("a",),
    slots: int = 10,
    at: float = LATER,
    passed_over: tuple[str, ...] = (),
) -> list[Run]:
    """A claim of a process that is registered for it if it was not."""
    await database.write(register, worker)
    return await database.hot(run_store.claim, worker, agents, slots, at, passed_over)


async def claimed_ids(database: Database, **how: Any) -> list[str]:
    return [run.id for run in await claim(database, **how)]


async def find(database: Database, run_id: str) -> Run:
    run = await database.read(run_store.find, run_id)
    assert run is not None, f"there is no run {run_id}"
    return run


async def finished(database: Database, id: str, session: str = "s", *, said: tuple[str, ...] = (), **more: Any) -> None:
    """A run that was accepted and is COMPLETED."""
    await commit(database, starting(id, session, **more))
    await commit(database, ending(id, session, said=said))


async def rows(database: Database, statement: Any) -> list[tuple[Any, ...]]:
    return await database.read(lambda conn: [tuple(row) for row in conn.execute(statement)])


async def execute(database: Database, statement: Any) -> None:
    await database.write(lambda conn: conn.execute(statement) and None)


async def statuses(database: Database) -> dict[str, str]:
    return dict(await rows(database, sa.select(runs.c.id, runs.c.status)))  # type: ignore[arg-type]


async def session_ids(database: Database) -> set[str]:
    return {row[0] for row in await rows(database, sa.select(sessions.c.id))}


async def rows_of_session(database: Database, session_id: str) -> dict[str, int]:
    """How many rows each table has of a session; tables with none are left out."""
    found: dict[str, int] = {}
    for table in metadata.sorted_tables:
        column = table.c.id if table is sessions else table.c.get("session_id")
        if column is not None:
            counted = await rows(database, sa.select(sa.func.count()).select_from(table).where(column == session_id))
            found[table.name] = counted[0][0]
    return {name: count for name, count in found.items() if count}

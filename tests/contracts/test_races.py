"""Several processes on one database, and the interleavings of two connections that once went wrong."""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from support.server import clean_environment
from support.store_ops import LATER, USAGE, ending, interrupting, register, starting, step_of, waiting
from waystation.db.engine import open_database
from waystation.db.postgres import HOT_SETTINGS
from waystation.db.tables import metadata, run_events, runs, sessions
from waystation.errors import SessionTakenError, StoreUnavailableError
from waystation.store import runs as run_store
from waystation.store import sessions as session_store
from waystation.store import workers as worker_store
from waystation.store.batch import write
from waystation.store.operations import Accepted, Stepped, Verdict

TESTS = Path(__file__).parents[1]


# ---- two processes -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What the processes told, and what the tables hold."""

    told: list[dict[str, Any]]
    runs: dict[str, Any]
    logs: dict[str, list[tuple[int, str]]]
    sessions: dict[str, Any]

    @property
    def executions(self) -> list[dict[str, Any]]:
        return [execution for one in self.told for execution in one["executions"]]

    @property
    def accepted(self) -> list[list[Any]]:
        return [answer for one in self.told for answer in one["accepted"]]


def race(url: str, folder: Path, *, count: int, in_sessions: int) -> Outcome:
    words = [sys.executable, "-m", "support.store_race", url]
    environment = clean_environment(PYTHONPATH=f"{TESTS}:{TESTS.parent / 'app'}")
    processes = [
        subprocess.Popen([*words, name, str(count), str(in_sessions), str(folder)], env=environment, stdout=subprocess.PIPE)
        for name in ("A", "B")
    ]
    told = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    return asyncio.run(_outcome(url, told))


async def _outcome(url: str, told: list[dict[str, Any]]) -> Outcome:
    database = open_database(url)

    def look(conn: sa.Connection) -> Outcome:
        logs: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for row in conn.execute(sa.select(run_events).order_by(run_events.c.run_id, run_events.c.first_index)):
            logs[row.run_id] += enumerate(row.payload.split("\n"), row.first_index)
        return Outcome(
            told,
            {row.id: row for row in conn.execute(sa.select(runs))},
            logs,
            {row.id: row for row in conn.execute(sa.select(sessions))},
        )

    try:
        return await database.read(look)
    finally:
        await database.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, made_sqlite_file: Path) -> Outcome:
    """One race on each database: few sessions, so that turns meet."""
    folder = tmp_path_factory.mktemp("race")
    if request.param == "sqlite":
        url = f"sqlite:///{folder / 'race.db'}"
        (folder / "race.db").write_bytes(made_sqlite_file.read_bytes())
    else:
        url = request.getfixturevalue("made_postgres_url")
        asyncio.run(_empty(url))
    return race(url, folder, count=250, in_sessions=12)


async def _empty(url: str) -> None:
    database = open_database(url)
    names = ", ".join(table.name for table in metadata.sorted_tables)
    await database.write(lambda conn: conn.execute(sa.text(f"TRUNCATE {names} RESTART IDENTITY")) and None)
    await database.close()


def test_no_exception_reaches_a_caller_in_a_race(outcome: Outcome) -> None:
    assert [error for one in outcome.told for error in one["errors"]] == []


def test_the_race_was_one(outcome: Outcome) -> None:
    verdicts = Counter(answer[1] for answer in outcome.accepted)
    fenced = sum(execution["outcome"] == "fenced" for execution in outcome.executions)
    assert min(verdicts["started"], verdicts["waits"], verdicts["busy"], fenced) > 5


def test_every_accepted_run_is_there_and_has_ended_and_no_refused_one_is_stored(outcome: Outcome) -> None:
    accepted = {id for id, verdict, _, _ in outcome.accepted if verdict in ("started", "waits")}
    assert {id: row.status for id, row in outcome.runs.items()} == dict.fromkeys(accepted, "COMPLETED")
    assert not any(row.holds_session or row.worker_id for row in outcome.runs.values())


def test_every_log_is_gapless_with_one_terminal_event_at_its_end(outcome: Outcome) -> None:
    for id, row in outcome.runs.items():
        log = outcome.logs[id]
        assert [index for index, _ in log] == list(range(row.next_index)), id
        assert [index for index, line in log if '"RunCompleted"' in line] == [row.next_index - 1], id


def test_no_event_of_an_old_epoch_comes_after_one_of_a_new(outcome: Outcome) -> None:
    for id, log in outcome.logs.items():
        epochs = [json.loads(line).get("epoch", 1) for _, line in log]
        assert epochs == sorted(epochs), id


def test_a_run_is_ended_by_one_execution_and_never_handed_back_and_ended_at_once(outcome: Outcome) -> None:
    ended = Counter(execution["run"] for execution in outcome.executions if execution["outcome"] == "ended")
    assert ended == Counter(dict.fromkeys(outcome.runs, 1))
    assert [execution for execution in outcome.executions if execution["outcome"] == "both"] == []


def test_no_epoch_of_a_run_is_executed_twice(outcome: Outcome) -> None:
    claims = Counter((execution["run"], execution["epoch"]) for execution in outcome.executions)
    assert max(claims.values()) == 1


def test_no_two_turns_of_a_session_overlap(outcome: Outcome) -> None:
    by_session: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for execution in outcome.executions:
        if execution["ended"] is not None:
            by_session[execution["session"]].append((execution["began"], execution["ended"]))
    for session, spans in by_session.items():
        for (_, ended), (began, _) in itertools.pairwise(sorted(spans)):
            assert began >= ended - 0.0005, session


def test_only_what_was_asked_to_stop_comes_before_a_run_that_goes_first(outcome: Outcome) -> None:
    began: dict[str, float] = {}
    for execution in outcome.executions:
        began[execution["run"]] = min(execution["began"], began.get(execution["run"], execution["began"]))
    first = [run for one in outcome.told for run in one["first"]]
    overtaken = {id for run in first for id in run["asked"]}  # nobody stops them here: they run later
    left = [run for run in first if run["run"] not in overtaken]
    assert overtaken and len(left) > 5
    for run in left:
        between = {
            execution["run"]
            for execution in outcome.executions
            if execution["session"] == run["session"] and run["answered"] < execution["began"] < began[run["run"]]
        }
        assert between <= {*run["asked"]}, run


def test_the_sums_of_every_session_are_exact(outcome: Outcome) -> None:
    turns = Counter(row.session_id for row in outcome.runs.values())
    assert {id: (row.runs, row.total_tokens) for id, row in outcome.sessions.items()} == {
        id: (count, count * USAGE["total_tokens"]) for id, count in turns.items()
    }


def test_every_key_has_one_run(outcome: Outcome) -> None:
    by_key: dict[str, set[str]] = defaultdict(set)
    for _, verdict, run_id, key in outcome.accepted:
        if key is not None and verdict != "busy":
            by_key[key].add(run_id)
    assert {key: len(ids) for key, ids in by_key.items()} == dict.fromkeys(by_key, 1)


# ---- two connections ---------------------------------------------------------------------------------------------------------


class Side:
    """One transaction on a connection of its own, committed when the test says so."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def __aenter__(self) -> "Side":
        self._conn = await self._engine.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._conn.close()

    async def do(self, f: Any, *args: Any) -> Any:
        return await self._conn.run_sync(f, *args)

    async def commit(self) -> None:
        await self._conn.commit()


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[AsyncEngine]:
    """As the product's hot engine, but patient: a lock is waited for until the test lets go of it."""
    url = sa.make_url(postgres_url).set(drivername="postgresql+asyncpg")
    found = create_async_engine(url, connect_args={"server_settings": HOT_SETTINGS | {"lock_timeout": "8000"}})
    await alone(found, register, "w")
    yield found
    await found.dispose()


async def alone(engine: AsyncEngine, f: Any, *args: Any) -> Any:
    async with engine.begin() as conn:
        return await conn.run_sync(f, *args)


async def until_blocked(engine: AsyncEngine) -> None:
    """Wait until some transaction waits for a lock of another."""
    waits = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    async with asyncio.timeout(5):
        while not await alone(engine, lambda conn: conn.execute(waits).scalar()):
            await asyncio.sleep(0.005)


def table(statement: Any) -> Any:
    return lambda conn: [tuple(row) for row in conn.execute(statement)]


STATUSES = table(sa.select(runs.c.id, runs.c.status).order_by(runs.c.id))


async def test_a_zombie_blocked_behind_an_uncommitted_hand_back_writes_nothing_and_its_neighbour_does(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r1", "s1"), starting("r2", "s2")])
    async with Side(engine) as recovery:
        assert await recovery.do(run_store.hand_back, "r1", 1, LATER)
        late = asyncio.create_task(alone(engine, write, [ending("r1", "s1", said=("x",)), ending("r2", "s2")]))
        await until_blocked(engine)
        await recovery.commit()
    assert await late == [Stepped(False), Stepped(True)]
    assert await alone(engine, STATUSES) == [("r1", "PENDING"), ("r2", "COMPLETED")]
    assert await alone(engine, table(sa.select(sessions.c.runs).order_by(sessions.c.id))) == [(0,), (1,)]
    assert await alone(engine, table(sa.select(run_events.c.last_index).where(run_events.c.run_id == "r1"))) == [(0,)]


async def test_a_hand_back_blocked_behind_an_uncommitted_end_gives_nothing_back(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r")])
    async with Side(engine) as owner:
        assert await owner.do(write, [ending("r")]) == [Stepped(True)]
        recovery = asyncio.create_task(alone(engine, run_store.hand_back_runs_of, "w", LATER))
        await until_blocked(engine)
        await owner.commit()
    assert await recovery == []
    assert await alone(engine, STATUSES) == [("r", "COMPLETED")]


async def test_a_claim_waits_for_a_death_that_is_being_written_and_takes_nothing(engine: AsyncEngine) -> None:
    await alone(engine, write, [waiting("r1")])
    async with Side(engine) as recovery:
        assert await recovery.do(worker_store.declare_dead, "w", 0, LATER)
        claimer = asyncio.create_task(alone(engine, run_store.claim, "w", ["a"], 5, LATER))
        await until_blocked(engine)
        await recovery.commit()
    assert await claimer == []


async def test_a_death_waits_for_a_claim_that_is_being_written_and_hands_its_runs_back(engine: AsyncEngine) -> None:
    await alone(engine, write, [waiting("r1")])
    async with Side(engine) as claimer:
        assert [run.id for run in await claimer.do(run_store.claim, "w", ["a"], 5, LATER)] == ["r1"]
        death = asyncio.create_task(alone(engine, worker_store.declare_dead, "w", 0, LATER))
        await until_blocked(engine)
        await claimer.commit()
    assert await death
    assert await alone(engine, run_store.hand_back_runs_of, "w", LATER) == ["r1"]


async def test_a_foreground_run_meets_an_uncommitted_claim_and_is_told_busy(engine: AsyncEngine) -> None:
    await alone(engine, write, [waiting("r1")])
    async with Side(engine) as claimer:
        assert [run.id for run in await claimer.do(run_store.claim, "w", ["a"], 5, LATER)] == ["r1"]
        [answer] = await alone(engine, write, [starting("r2")])
        await claimer.commit()
    assert answer == Accepted(Verdict.BUSY, "r1", "s")


async def test_a_claim_that_loses_the_session_to_an_uncommitted_foreground_run_is_told_so_and_gets_the_rest_next(
    engine: AsyncEngine,
) -> None:
    await alone(engine, write, [starting("r0", "s1"), waiting("other", "s9")])
    await alone(engine, write, [ending("r0", "s1")])
    async with Side(engine) as foreground:
        await foreground.do(write, [starting("r1", "s1")])
        await alone(engine, write, [waiting("r2", "s1")])
        claimer = asyncio.create_task(alone(engine, run_store.claim, "w", ["a"], 5, LATER))
        await until_blocked(engine)
        await foreground.commit()
    with pytest.raises(SessionTakenError):
        await claimer
    assert [run.id for run in await alone(engine, run_store.claim, "w", ["a"], 5, LATER)] == ["other"]


async def test_a_run_that_may_wait_queues_when_it_loses_the_session_to_an_uncommitted_foreground_run(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r0")])
    await alone(engine, write, [ending("r0")])
    async with Side(engine) as first:
        await first.do(write, [starting("r1")])
        second = asyncio.create_task(alone(engine, write, [starting("r2", may_wait=True)]))
        await until_blocked(engine)
        await first.commit()
    assert (await second)[0].verdict is Verdict.WAITS
    assert await alone(engine, STATUSES) == [("r0", "COMPLETED"), ("r1", "RUNNING"), ("r2", "PENDING")]


async def test_crossed_batches_answer_busy_without_a_deadlock(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r1", "s1"), starting("r2", "s2")])
    async with Side(engine) as a, Side(engine) as b:
        await a.do(write, [step_of("r1", "s1")])
        await b.do(write, [step_of("r2", "s2")])
        async with asyncio.timeout(0.9):  # PostgreSQL looks for deadlocks after a second
            [mine], [theirs] = await asyncio.gather(a.do(write, [starting("n1", "s2")]), b.do(write, [starting("n2", "s1")]))
        await a.commit()
        await b.commit()
    assert (mine.verdict, mine.run_id, theirs.verdict, theirs.run_id) == (Verdict.BUSY, "r2", Verdict.BUSY, "r1")


async def test_crossed_ends_and_new_turns_do_not_deadlock(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r1", "s1"), starting("r2", "s2")])
    batches = [ending("r1", "s1"), starting("n1", "s2")], [ending("r2", "s2"), starting("n2", "s1")]
    # PostgreSQL would end one side of a deadlock with an error.
    answers = await asyncio.gather(*(alone(engine, write, list(batch)) for batch in batches))
    assert [answer[0] for answer in answers] == [Stepped(True), Stepped(True)]


async def test_a_key_used_from_two_sides_starts_one_run_and_leaves_no_empty_session(engine: AsyncEngine) -> None:
    async with Side(engine) as first:
        await first.do(write, [starting("r1", "s1", idempotency_key="k")])
        second = asyncio.create_task(alone(engine, write, [starting("r2", "s2", idempotency_key="k")]))
        await until_blocked(engine)
        await first.commit()
    assert await second == [Accepted(Verdict.EXISTS, "r1", "s1")]
    assert await alone(engine, table(sa.select(sessions.c.id))) == [("s1",)]


async def test_two_agents_that_make_one_session_together_are_told_apart(engine: AsyncEngine) -> None:
    async with Side(engine) as first:
        await first.do(write, [starting("r1", agent_id="a")])
        second = asyncio.create_task(alone(engine, write, [starting("r2", agent_id="b", may_wait=True)]))
        await until_blocked(engine)
        await first.commit()
    assert (await second)[0].verdict is Verdict.OTHER_AGENT


async def test_a_run_ended_over_the_head_of_its_owner_while_it_writes_ends_once(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r")])
    run = await alone(engine, run_store.find, "r")
    async with Side(engine) as owner:
        await owner.do(write, [ending("r")])
        event = step_of("r").events
        killer = asyncio.create_task(alone(engine, run_store.end_idle, run, run_store.RunStatus.CANCELLED, event, {}, "", LATER))
        await until_blocked(engine)
        await owner.commit()
    assert await killer is False
    assert await alone(engine, table(sa.select(sessions.c.runs))) == [(1,)]


async def test_a_run_whose_session_another_user_is_just_creating_is_not_let_into_it(engine: AsyncEngine) -> None:
    async with Side(engine) as first:
        await first.do(write, [starting("r1", user_id="u1")])
        late = asyncio.create_task(alone(engine, write, [starting("r2", user_id="u2"), starting("r3", "s3")]))
        await until_blocked(engine)
        await first.commit()
    assert [answer.verdict for answer in await late] == [Verdict.OTHER_USER, Verdict.STARTED]
    assert await alone(engine, table(sa.select(runs.c.id, runs.c.user_id).order_by(runs.c.id))) == [("r1", "u1"), ("r3", None)]
    assert await alone(engine, table(sa.select(sessions.c.id, sessions.c.user_id).order_by(sessions.c.id))) == [("s", "u1"), ("s3", None)]


# ---- runs that go first ------------------------------------------------------------------------------------------------------

ASKED = table(sa.select(runs.c.id).where(runs.c.cancel_requested).order_by(runs.c.id))


async def test_a_run_that_goes_first_asks_the_one_that_an_uncommitted_claim_has_taken(engine: AsyncEngine) -> None:
    await alone(engine, write, [waiting("r1")])
    async with Side(engine) as claimer:
        await claimer.do(run_store.claim, "w", ["a"], 5, LATER)
        new = asyncio.create_task(alone(engine, write, [starting("first", may_wait=True, goes_first=True)]))
        await until_blocked(engine)
        await claimer.commit()
    [answer] = await new
    assert (answer.verdict, answer.asked) == (Verdict.WAITS, ["r1"])
    assert await alone(engine, STATUSES) == [("first", "PENDING"), ("r1", "RUNNING")]


async def test_a_claim_beside_an_uncommitted_run_that_goes_first_takes_no_other_of_its_session(engine: AsyncEngine) -> None:
    await alone(engine, write, [waiting("r1")])
    async with Side(engine) as first:
        await first.do(write, [interrupting("first")])
        claimer = asyncio.create_task(alone(engine, run_store.claim, "w", ["a"], 5, LATER))
        await until_blocked(engine)
        await first.commit()
    with pytest.raises(SessionTakenError):
        await claimer
    assert [run.id for run in await alone(engine, run_store.claim, "w", ["a"], 5, LATER)] == ["first"]


async def test_a_run_that_goes_first_meets_the_uncommitted_end_of_the_turn_in_flight_and_takes_its_session(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r0")])
    await alone(engine, write, [waiting("r1")])
    async with Side(engine) as owner:
        await owner.do(write, [ending("r0")])
        new = asyncio.create_task(alone(engine, write, [starting("first", may_wait=True, goes_first=True, drops=True)]))
        await until_blocked(engine)
        await owner.commit()
    [answer] = await new
    assert (answer.verdict, answer.asked) == (Verdict.STARTED, [])
    assert await alone(engine, table(sa.select(runs.c.dropped_from_history).where(runs.c.id == "r0"))) == [(False,)]


async def test_the_turn_in_flight_can_not_end_before_what_goes_first_is_committed_and_then_is_dropped(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r0")])
    await alone(engine, write, [waiting("r1")])
    async with Side(engine) as new:
        [answer] = await new.do(write, [interrupting("first", drops=True)])
        owner = asyncio.create_task(alone(engine, write, [ending("r0")]))
        await until_blocked(engine)
        assert await alone(engine, run_store.claim, "w", ["a"], 5, LATER) == []
        await new.commit()
    assert (answer.verdict, await owner) == (Verdict.WAITS, [Stepped(True, True, True)])
    assert await alone(engine, table(sa.select(runs.c.id).where(runs.c.dropped_from_history))) == [("r0",)]
    assert [run.id for run in await alone(engine, run_store.claim, "w", ["a"], 5, LATER)] == ["first"]


@pytest.mark.parametrize(("before", "asked"), [([starting("r0")], ["first", "r0"]), ([], ["first"])], ids=["busy", "free"])
async def test_of_two_that_go_first_at_once_the_later_asks_the_earlier(engine: AsyncEngine, before: list[Any], asked: list[str]) -> None:
    await alone(engine, write, before)
    async with Side(engine) as earlier:
        await earlier.do(write, [starting("first", may_wait=True, goes_first=True)])
        later = asyncio.create_task(alone(engine, write, [interrupting("later")]))
        await until_blocked(engine)
        await earlier.commit()
    [answer] = await later
    assert (answer.verdict, sorted(answer.asked)) == (Verdict.WAITS, asked)


async def test_one_key_twice_at_once_asks_the_turn_in_flight_and_not_its_own_run(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r0")])
    async with Side(engine) as one:
        await one.do(write, [interrupting("r1", idempotency_key="k")])
        again = asyncio.create_task(alone(engine, write, [interrupting("r2", idempotency_key="k")]))
        await until_blocked(engine)
        await one.commit()
    [answer] = await again
    assert (answer.verdict, answer.run_id, answer.asked) == (Verdict.EXISTS, "r1", [])
    assert await alone(engine, ASKED) == [("r0",)]


async def test_crossed_batches_of_runs_that_go_first_and_steps_do_not_deadlock(engine: AsyncEngine) -> None:
    await alone(engine, write, [starting("r1", "s2"), starting("r2", "s1")])
    async with Side(engine) as owner:
        await owner.do(write, [step_of("r1", "s2")])
        new = asyncio.create_task(alone(engine, write, [interrupting("n1", "s1"), interrupting("n2", "s2")]))
        await until_blocked(engine)
        async with asyncio.timeout(0.9):  # PostgreSQL looks for deadlocks after a second
            assert await owner.do(write, [step_of("r2", "s1")]) == [Stepped(True)]
        await owner.commit()
    assert [answer.asked for answer in await new] == [["r2"], ["r1"]]


# ---- a session that goes away while a turn of it is accepted -----------------------------------------------------------------


def before_statement(conn: sa.Connection, start: str, then: Any) -> None:
    """Run something in another transaction just before the first statement that starts so; it is committed when it goes on."""
    done: list[bool] = []

    @sa.event.listens_for(conn, "before_cursor_execute")
    def _look(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not done and statement.lstrip().startswith(start):
            done.append(True)
            other = threading.Thread(target=lambda: asyncio.run(then()))
            other.start()
            other.join()


async def delete_session(url: str) -> None:
    database = open_database(url)
    await database.write(session_store.delete, "s", LATER)
    await database.close()


async def test_a_session_deleted_while_a_turn_of_it_is_accepted_begins_anew(engine: AsyncEngine, postgres_url: str) -> None:
    await alone(engine, write, [starting("r0")])
    await alone(engine, write, [ending("r0")])

    def accept_late(conn: sa.Connection) -> Any:
        before_statement(conn, 'WITH "new"', lambda: delete_session(postgres_url))
        return write(conn, [starting("r1", idempotency_key="k")])  # which is not ordinary: more than one statement

    [answer] = await alone(engine, accept_late)
    assert (answer.verdict, answer.run_id) == (Verdict.STARTED, "r1")
    assert await alone(engine, table(sa.select(sessions.c.id))) == [("s",)]
    assert await alone(engine, STATUSES) == [("r1", "RUNNING")]


async def test_a_turn_accepted_while_its_session_is_deleted_is_not_left_without_it(engine: AsyncEngine, postgres_url: str) -> None:
    await alone(engine, write, [starting("r0")])
    await alone(engine, write, [ending("r0")])

    async def accept() -> None:
        database = open_database(postgres_url)
        with contextlib.suppress(StoreUnavailableError):  # it waited for the session that is being deleted
            await database.hot(write, [starting("r1")])
        await database.close()

    def delete_late(conn: sa.Connection) -> bool:
        before_statement(conn, "DELETE FROM runs", accept)
        return session_store.delete(conn, "s", LATER)

    await alone(engine, delete_late)
    left = await alone(engine, table(sa.select(run_events.c.run_id).distinct()))
    assert await alone(engine, table(sa.select(runs.c.id))) == left
    assert len(await alone(engine, table(sa.select(sessions.c.id)))) == len(left)

"""Leases and recovery: real objects on SQLite; only the clock, other processes and the way to the store are made up."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from support.store_ops import claimed_ids, commit, execute, find, rows, starting, statuses, waiting
from waystation.agents.native.agent import Agent
from waystation.agents.native.models.scripted import ScriptedModel
from waystation.clock import now
from waystation.config import Settings
from waystation.container import Container
from waystation.db import schema
from waystation.db.engine import Database, open_database
from waystation.db.tables import runs, workers
from waystation.domain.lifecycle import RunStatus
from waystation.errors import StoreUnavailableError
from waystation.store import runs as run_store
from waystation.store import workers as worker_store
from waystation.worker import lease as lease_module
from waystation.worker import recovery as recovery_module
from waystation.worker.lease import Lease, process_started, this_process


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    found = open_database(sqlite_url)
    await schema.upgrade(found)
    yield found
    await found.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


# ---- the lease ---------------------------------------------------------------------------------------------------------------


class Wire:
    """A database whose lease connection can be cut, held up or made to fail; and what went through it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.failure: Exception | None = None
        self.holds_registrations = False
        self.may_register = threading.Event()
        self.sent: list[str] = []

    def sync_write(self, f: Any, *args: Any) -> Any:
        self.sent.append(f.__name__)
        if self.failure is not None:
            raise self.failure
        if f is worker_store.register and self.holds_registrations:
            self.may_register.wait(5)
        return self._database.sync_write(f, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class Told:
    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.deaths = 0

    def cancel(self, run_ids: list[str]) -> None:
        self.cancelled += run_ids

    def die(self) -> None:
        self.deaths += 1


@pytest.fixture
def wire(database: Database) -> Wire:
    return Wire(database)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def lease(wire: Wire, told: Told, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lease]:
    monkeypatch.setattr(lease_module, "RENEW_S", 0.01)
    found = Lease(wire, slots=1, agents=["a"], on_cancel=told.cancel, on_dead=told.die)  # type: ignore[arg-type]
    await found.start()
    try:
        yield found
    finally:
        wire.failure = None
        wire.may_register.set()
        await found.close()


async def lease_rows(database: Database) -> dict[str, int]:
    return {id: renewals for id, renewals in await rows(database, sa.select(workers.c.id, workers.c.renewals))}  # noqa: C416


async def declare_dead(database: Database, worker_id: str) -> None:
    await execute(database, sa.update(workers).where(workers.c.id == worker_id).values(dead_at=now()))


async def test_a_lease_is_renewed_again_and_again(database: Database, lease: Lease, wire: Wire) -> None:
    await until(lambda: wire.sent.count("renew_and_ask") >= 4)
    assert lease.is_held
    assert (await lease_rows(database))[lease.worker_id] >= 3


async def test_a_lease_is_renewed_while_the_event_loop_is_blocked(lease: Lease, wire: Wire) -> None:
    seen = len(wire.sent)
    blocked = threading.Event()
    threading.Thread(target=lambda: (_wait_for(lambda: len(wire.sent) >= seen + 3), blocked.set())).start()
    assert blocked.wait(5)  # the loop does nothing else meanwhile
    assert len(wire.sent) >= seen + 3


def _wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)


async def test_cancel_requests_come_back_with_a_renewal(database: Database, lease: Lease, told: Told) -> None:
    await commit(database, starting("r", worker_id=lease.worker_id))
    await database.write(run_store.request_cancel, "r", now())
    await until(lambda: told.cancelled)
    assert set(told.cancelled) == {"r"}


async def test_an_outage_takes_the_right_to_start_runs_and_nothing_else(database: Database, lease: Lease, wire: Wire, told: Told) -> None:
    name = lease.worker_id
    wire.failure = StoreUnavailableError()
    await until(lambda: not lease.is_held)
    wire.failure = None
    await until(lambda: lease.is_held)
    assert (lease.worker_id, told.deaths) == (name, 0)


async def test_a_process_that_was_declared_dead_drops_its_runs_once_and_comes_back_under_a_new_name(
    database: Database, lease: Lease, told: Told
) -> None:
    name = lease.worker_id
    await declare_dead(database, name)
    await until(lambda: told.deaths and lease.is_held)
    await until(lambda: lease.worker_id != name)
    new = lease.worker_id
    async with asyncio.timeout(5):
        while (await lease_rows(database)).get(new, 0) < 2:
            await asyncio.sleep(0.01)
    assert told.deaths == 1
    assert await rows(database, sa.select(workers.c.dead_at.is_(None)).where(workers.c.id == name)) in ([(False,)], [(0,)])


async def test_a_process_that_was_declared_dead_starts_no_run_before_it_is_back(
    database: Database, lease: Lease, wire: Wire, told: Told
) -> None:
    wire.holds_registrations = True
    await declare_dead(database, lease.worker_id)
    await until(lambda: "register" in wire.sent)
    assert lease.worker_id not in await lease_rows(database)
    await until(lambda: not lease.is_held)
    wire.may_register.set()
    await until(lambda: lease.is_held and told.deaths)


async def test_a_lease_outlives_an_error_that_nobody_expected(lease: Lease, wire: Wire) -> None:
    wire.failure = sa.exc.ProgrammingError("UPDATE workers", {}, Exception("no such table"))
    seen = len(wire.sent)
    await until(lambda: len(wire.sent) > seen)
    wire.failure = None
    seen = len(wire.sent)
    await until(lambda: len(wire.sent) > seen + 2)
    await until(lambda: lease.is_held)


async def test_a_closed_lease_leaves_no_row(database: Database, wire: Wire, told: Told) -> None:
    closing = Lease(wire, slots=1, agents=["a"], on_cancel=told.cancel, on_dead=told.die)  # type: ignore[arg-type]
    await closing.start()
    await closing.close()
    assert (await lease_rows(database), closing.is_held) == ({}, False)


def test_a_lease_whose_loop_was_closed_without_an_end_is_given_up_and_ends_no_process(
    sqlite_url: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_S", 0.01)
    monkeypatch.setattr(lease_module, "LOOP_SILENCE_S", 0.1)
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    database = open_database(sqlite_url)
    wire = Wire(database)
    left = Lease(wire, slots=1, agents=["a"], on_cancel=told.cancel, on_dead=told.die)  # type: ignore[arg-type]
    with asyncio.Runner() as runner:
        runner.run(schema.upgrade(database))
        runner.run(left.start())
        runner.run(until(lambda: "renew_and_ask" in wire.sent))
    assert left._thread is not None
    left._thread.join(5)
    assert (left._thread.is_alive(), exits) == (False, [])
    with asyncio.Runner() as runner:
        runner.run(database.close())


def test_a_process_is_told_from_another_with_its_number() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_started(child.pid)
    assert started is not None and started != ""
    child.communicate(b"\n")
    assert process_started(child.pid) is None
    assert process_started(os.getpid()) == this_process().process_started


# ---- recovery ----------------------------------------------------------------------------------------------------------------


class Clock:
    """The seconds that recovery believes to have passed."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(recovery_module, "time", SimpleNamespace(monotonic=found.monotonic))
    return found


@pytest.fixture
async def container(database: Database, sqlite_url: str) -> AsyncIterator[Container]:
    """A process whose loops stand still: the test does their rounds."""
    agent = Agent(id="a", model=ScriptedModel(lambda messages: ["ok"], id="m", provider="p"))
    found = Container(Settings(database_url=sqlite_url, drain_s=0, cancel_grace_s=0), [agent])
    found.ledger.start()
    await found.lease.start()
    try:
        yield found
    finally:
        await found.close()


async def far_worker(database: Database, name: str = "far") -> None:
    """A process of another machine."""
    await database.write(worker_store.register, replace(this_process(), id=name, host="far away"))


async def looks(container: Container, clock: Clock, count: int, every_s: float = 1.0) -> None:
    for _ in range(count):
        await container.recovery.look()
        clock.at += every_s


async def dead(database: Database) -> list[str]:
    return [row[0] for row in await rows(database, sa.select(workers.c.id).where(workers.c.dead_at.is_not(None)))]


async def test_a_far_process_is_dead_after_ten_unchanged_reads_and_its_runs_are_handed_back(
    database: Database, container: Container, clock: Clock
) -> None:
    await far_worker(database)
    await commit(database, starting("r", worker_id="far"))
    await looks(container, clock, 10)
    assert (await dead(database), await statuses(database)) == ([], {"r": "RUNNING"})
    await looks(container, clock, 1)
    run = await find(database, "r")
    assert await dead(database) == ["far"]
    assert (run.status, run.holds_session, run.epoch, run.takeovers, run.worker_id) == (RunStatus.PENDING, True, 2, 1, None)


async def test_time_alone_buries_nobody(database: Database, container: Container, clock: Clock) -> None:
    await far_worker(database)
    await looks(container, clock, 3, every_s=1_000_000.0)
    assert await dead(database) == []


async def test_reads_that_come_too_quickly_are_not_counted(database: Database, container: Container, clock: Clock) -> None:
    await far_worker(database)
    await looks(container, clock, 40, every_s=0.01)
    assert await dead(database) == []


async def test_a_process_that_renews_is_never_dead(database: Database, container: Container, clock: Clock) -> None:
    await far_worker(database)
    for _ in range(4):
        await looks(container, clock, 9)
        assert await database.write(worker_store.renew, "far", now())
    assert await dead(database) == []


async def test_a_renewal_between_the_last_read_and_the_death_saves_it(database: Database) -> None:
    await far_worker(database)
    [seen] = await database.read(worker_store.list_workers)
    await database.write(worker_store.renew, "far", now())
    assert not await database.write(worker_store.declare_dead, "far", seen.renewals, now())


def pid_of_the_past() -> int:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


async def test_a_process_of_this_machine_that_has_vanished_is_dead_at_once(database: Database, container: Container, clock: Clock) -> None:
    await database.write(worker_store.register, replace(this_process(), id="gone", pid=pid_of_the_past()))
    await commit(database, starting("r", worker_id="gone"))
    await looks(container, clock, 1)
    assert (await dead(database), await statuses(database)) == (["gone"], {"r": "PENDING"})


async def test_a_number_that_another_process_has_now_does_not_save_the_dead(database: Database, container: Container, clock: Clock) -> None:
    await database.write(worker_store.register, replace(this_process(), id="gone", process_started="1"))
    await looks(container, clock, 1)
    assert await dead(database) == ["gone"]


async def test_a_living_process_of_this_machine_is_not_dead_at_once(database: Database, container: Container, clock: Clock) -> None:
    await database.write(worker_store.register, replace(this_process(), id="near"))
    await looks(container, clock, 5)
    assert await dead(database) == []


async def test_a_process_of_another_start_of_this_machine_is_not_judged_by_its_number(
    database: Database, container: Container, clock: Clock
) -> None:
    await database.write(worker_store.register, replace(this_process(), id="before", boot_id="other", process_started="1"))
    await looks(container, clock, 1)
    assert await dead(database) == []


async def test_runs_of_a_process_without_a_lease_are_handed_back_once(database: Database, container: Container, clock: Clock) -> None:
    await commit(database, starting("r1", "s1", worker_id="unknown"), starting("r2", "s2", worker_id="unknown"))
    await looks(container, clock, 2)
    assert await statuses(database) == {"r1": "PENDING", "r2": "PENDING"}
    assert [(await find(database, id)).takeovers for id in ("r1", "r2")] == [1, 1]


async def test_an_own_run_that_is_not_executed_is_handed_back_at_the_second_sighting(
    database: Database, container: Container, clock: Clock
) -> None:
    await commit(database, starting("r", worker_id=container.lease.worker_id))
    await looks(container, clock, 1)
    assert await statuses(database) == {"r": "RUNNING"}
    await looks(container, clock, 1)
    assert await statuses(database) == {"r": "PENDING"}
    assert await claimed_ids(database, at=now()) == ["r"]


async def test_an_orphan_that_was_claimed_anew_between_two_looks_is_left_alone(
    database: Database, container: Container, clock: Clock
) -> None:
    name = container.lease.worker_id
    await commit(database, starting("r", worker_id=name))
    await looks(container, clock, 1)
    await database.write(run_store.hand_back, "r", 1, now())
    assert await claimed_ids(database, worker=name, at=now()) == ["r"]
    await looks(container, clock, 1)
    assert await statuses(database) == {"r": "RUNNING"}


async def test_a_death_is_known_to_the_next_process_and_its_runs_are_handed_back_again_if_some_came_after(
    database: Database, container: Container, clock: Clock
) -> None:
    await far_worker(database)
    await declare_dead(database, "far")
    await commit(database, starting("r", worker_id="far"))
    await looks(container, clock, 1)
    assert await statuses(database) == {"r": "PENDING"}


async def test_the_row_of_a_dead_process_goes_after_an_hour(database: Database, container: Container, clock: Clock) -> None:
    await far_worker(database)
    await execute(database, sa.update(workers).where(workers.c.id == "far").values(dead_at=now() - 3_700))
    await looks(container, clock, 1)
    assert set(await lease_rows(database)) == {container.lease.worker_id}


async def test_a_cancel_request_that_its_owner_leaves_unanswered_ends_the_run(
    database: Database, container: Container, clock: Clock
) -> None:
    await far_worker(database)
    await commit(database, starting("r", worker_id="far"))
    await commit(database, waiting("next"))
    await database.write(run_store.request_cancel, "r", now() - 10)
    await looks(container, clock, 1)
    assert await statuses(database) == {"r": "CANCELLED", "next": "PENDING"}
    assert await claimed_ids(database, at=now()) == ["next"]


async def test_the_next_look_comes_when_the_oldest_cancel_request_has_waited_long_enough(database: Database, container: Container) -> None:
    assert await container.recovery.look() == recovery_module.LOOK_S
    patience_s = container.settings.cancel_takeover_s
    await far_worker(database)
    await commit(database, *(starting(name, name, worker_id="far") for name in ("r1", "r2")))
    for name, ago_s in (("r1", patience_s - 0.3), ("r2", patience_s - 0.6)):
        await database.write(run_store.request_cancel, name, now() - ago_s)
    assert 0 < await container.recovery.look() <= 0.3
    await database.write(run_store.request_cancel, "r1", now() - patience_s)  # a second request changes nothing
    assert 0 < await container.recovery.look() <= 0.3


async def test_after_an_outage_the_count_of_reads_begins_anew(
    database: Database, container: Container, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await far_worker(database)
    await looks(container, clock, 10)
    reader = Outage(container.database)
    monkeypatch.setattr(container.recovery, "_database", reader)
    monkeypatch.setattr(recovery_module, "LOOK_S", 0.001)
    rounds = asyncio.create_task(container.recovery.run())
    await until(lambda: reader.refused)
    reader.refuses = False
    await until(lambda: reader.answered > 20)
    rounds.cancel()
    await asyncio.gather(rounds, return_exceptions=True)
    assert await dead(database) == []


class Outage:
    """The way to the store, cut."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.refuses = True
        self.refused = 0
        self.answered = 0

    async def read(self, f: Any, *args: Any) -> Any:
        if self.refuses:
            self.refused += 1
            raise StoreUnavailableError
        self.answered += 1
        return await self._database.read(f, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


async def test_stuck_runs_are_told_once(database: Database, container: Container, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    await commit(database, starting("r", worker_id="w"))
    await execute(database, sa.update(runs).values(worker_id=None))
    await looks(container, clock, 3)
    assert [record.levelname for record in caplog.records if "stuck" in record.message] == ["ERROR"]

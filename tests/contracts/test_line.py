"""The line of a session: what goes first, whom it asks to stop, and the places of those that wait."""

from typing import Any

import pytest
import sqlalchemy as sa

from support.store_ops import (
    LATER,
    claim,
    claimed_ids,
    commit,
    ending,
    find,
    interrupting,
    lines,
    rows,
    starting,
    statuses,
    step_of,
    waiting,
)
from waystation.db.engine import Database
from waystation.db.tables import runs, sessions
from waystation.domain.lifecycle import RunStatus
from waystation.store import details
from waystation.store import runs as run_store
from waystation.store.accept import read_history
from waystation.store.line import queue_positions
from waystation.store.operations import Accepted, Verdict


async def accepted(database: Database, *batch: Any) -> list[Accepted]:
    found = await commit(database, *batch)
    assert all(isinstance(answer, Accepted) for answer in found)
    return found  # type: ignore[return-value]


async def unanswered(database: Database, before: float) -> list[str]:
    found, _ = await database.read(run_store.unanswered_cancels, before)
    return [run.id for run in found]


async def asked(database: Database) -> set[str]:
    """The runs that were asked to stop."""
    return {id for (id,) in await rows(database, sa.select(runs.c.id).where(runs.c.cancel_requested))}


async def dropped(database: Database) -> set[str]:
    return {id for (id,) in await rows(database, sa.select(runs.c.id).where(runs.c.dropped_from_history))}


# ---- order -------------------------------------------------------------------------------------------------------------------


async def test_a_run_that_goes_first_starts_at_once_in_a_free_session(database: Database) -> None:
    [new] = await accepted(database, interrupting("r1", worker_id="w", first=lines(0, "RunStarted")))
    assert (new.verdict, new.asked) == (Verdict.STARTED, [])
    await commit(database, ending("r1"))
    [again] = await accepted(database, interrupting("r2", worker_id="w", first=lines(0, "RunStarted")))
    assert (again.verdict, again.asked) == (Verdict.STARTED, [])
    assert await statuses(database) == {"r1": "COMPLETED", "r2": "RUNNING"}


async def test_it_goes_before_the_waiting_ones_who_keep_their_order(database: Database) -> None:
    await commit(database, starting("r0"))
    for name in ("r1", "r2"):
        await commit(database, waiting(name))
    [new] = await accepted(database, interrupting("first"))
    assert (new.verdict, new.asked) == (Verdict.WAITS, ["r0"])
    assert await claimed_ids(database) == []
    await commit(database, ending("r0", status="CANCELLED"))
    assert await claimed_ids(database) == ["first"]
    await commit(database, ending("first", first=0))
    assert await claimed_ids(database) == ["r1"]
    await commit(database, ending("r1", first=0))
    assert await claimed_ids(database) == ["r2"]


async def test_it_starts_before_those_that_wait_for_a_session_nobody_holds(database: Database) -> None:
    await commit(database, waiting("r1"))
    [new] = await accepted(database, interrupting("first", worker_id="w", first=lines(0, "RunStarted")))
    assert (new.verdict, new.asked) == (Verdict.STARTED, [])
    assert await claimed_ids(database) == []


async def test_in_the_background_it_takes_the_session_that_nobody_holds(database: Database) -> None:
    await commit(database, waiting("r1"))
    await commit(database, interrupting("first"))
    assert (await find(database, "first")).holds_session
    assert await claimed_ids(database) == ["first"]
    assert await claimed_ids(database) == []


async def test_it_goes_before_a_run_that_was_not_due_yet(database: Database) -> None:
    await commit(database, waiting("later", available_at=LATER + 5))
    await commit(database, interrupting("first"))
    assert await claimed_ids(database, at=LATER) == ["first"]


# ---- whom it asks to stop ----------------------------------------------------------------------------------------------------


async def test_the_turn_in_flight_is_asked_in_the_commit_of_the_acceptance(database: Database) -> None:
    await commit(database, starting("r0", worker_id="w1"))
    await commit(database, interrupting("r1", created_at=LATER))
    assert await database.read(run_store.cancel_requests_of, "w1") == ["r0"]
    assert await unanswered(database, LATER + 1) == ["r0"]


async def test_waiting_runs_of_the_ordinary_kind_are_not_asked_nor_are_those_of_other_sessions(database: Database) -> None:
    await commit(database, starting("r0"), starting("other", "s2"))
    await commit(database, waiting("r1"))
    await commit(database, interrupting("r2"))
    assert await asked(database) == {"r0"}


async def test_the_later_of_two_asks_the_earlier_and_what_it_waits_for(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1"))
    [new] = await accepted(database, interrupting("r2"))
    assert sorted(new.asked) == ["r0", "r1"]
    assert await asked(database) == {"r0", "r1"}


async def test_an_earlier_one_that_nobody_ends_is_claimed_before_the_later_to_be_ended(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1", available_at=LATER + 500))
    await commit(database, interrupting("r2"))
    await commit(database, ending("r0", status="CANCELLED"))
    [run] = await claim(database, at=LATER)
    assert (run.id, run.cancel_requested) == ("r1", True)
    await commit(database, ending("r1", first=0, status="CANCELLED"))
    assert await claimed_ids(database) == ["r2"]


async def test_a_turn_that_waits_for_its_next_attempt_is_asked_and_due_at_once(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, ending("r0", status="PENDING", holds_session=True, available_at=LATER + 500))
    [new] = await accepted(database, interrupting("r1"))
    assert (new.verdict, new.asked) == (Verdict.WAITS, ["r0"])
    [run] = await claim(database, at=LATER)
    assert (run.id, run.cancel_requested) == ("r0", True)


async def test_a_paused_turn_is_asked_if_it_holds_its_session_and_recovery_finds_it(database: Database) -> None:
    await commit(database, starting("r0", "s0"), starting("r1", "s1"))
    await commit(database, ending("r0", "s0", status="PAUSED", holds_session=True), ending("r1", "s1", status="PAUSED"))
    await commit(database, interrupting("r2", "s0"), interrupting("r3", "s1"))
    assert await asked(database) == {"r0"}
    assert await unanswered(database, LATER) == ["r0"]


@pytest.mark.parametrize("intruder", [{"agent_id": "b"}, {"user_id": "u2"}])
async def test_nobody_is_asked_in_a_session_of_another_agent_or_user(database: Database, intruder: dict[str, str]) -> None:
    await commit(database, starting("r0", user_id="u1"))
    [new] = await accepted(database, interrupting("r1", **{"user_id": "u1"} | intruder))
    assert new.verdict in (Verdict.OTHER_AGENT, Verdict.OTHER_USER)
    assert await asked(database) == set()


async def test_nobody_is_asked_where_too_many_wait_already(database: Database) -> None:
    await commit(database, starting("r0"))
    for n in range(100):
        await commit(database, waiting(f"w{n}"))
    [new] = await accepted(database, interrupting("r1"))
    assert new.verdict is Verdict.FULL
    assert await asked(database) == set()


async def test_a_used_key_answers_its_run_and_asks_nobody(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1", idempotency_key="k"))
    await commit(database, ending("r0", status="CANCELLED"))
    await claim(database)
    [again] = await accepted(database, interrupting("r2", idempotency_key="k"))
    assert (again.verdict, again.run_id, again.asked) == (Verdict.EXISTS, "r1", [])
    assert await asked(database) == {"r0"}


async def test_an_acceptance_whose_answer_was_lost_asks_nobody_when_it_is_repeated(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1"))
    await commit(database, ending("r0", status="CANCELLED"))
    await claim(database)
    [again] = await accepted(database, interrupting("r1"))
    assert (again.run_id, again.was_stored, again.asked) == ("r1", True, [])
    assert await asked(database) == {"r0"}


# ---- rollback ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["CANCELLED", "COMPLETED", "ERROR"])
async def test_a_turn_that_is_rolled_back_is_dropped_by_its_end_whatever_that_is(database: Database, status: str) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1", drops=True))
    await commit(database, step_of("r0"))
    assert await dropped(database) == set()
    await commit(database, ending("r0", first=2, status=status, said=("x",)))
    assert await dropped(database) == {"r0"}
    assert await database.read(read_history, {"s": 10}) == {}


async def test_a_turn_that_is_rolled_back_is_not_dropped_while_it_waits(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1", drops=True))
    await commit(database, ending("r0", status="PENDING", holds_session=True, available_at=LATER))
    assert await dropped(database) == set()


async def test_a_turn_that_is_rolled_back_is_dropped_if_it_ends_without_its_owner(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1", drops=True))
    run = await find(database, "r0")
    assert await database.write(run_store.end_idle, run, RunStatus.CANCELLED, lines(1, "RunCancelled"), {}, "", LATER)
    assert await dropped(database) == {"r0"}


async def test_an_interrupted_turn_stays_in_the_history(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1"))
    await commit(database, ending("r0", status="CANCELLED", said=("x",)))
    assert await dropped(database) == set()
    [past] = (await database.read(read_history, {"s": 10}))["s"]
    assert past.id == "r0"


async def test_a_rollback_is_not_undone_by_a_later_interrupt(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1", drops=True))
    await commit(database, interrupting("r2"))
    await commit(database, ending("r0", status="CANCELLED"))
    assert await dropped(database) == {"r0"}


# ---- places ------------------------------------------------------------------------------------------------------------------


async def test_the_places_of_those_that_wait_are_the_order_in_which_they_are_claimed(database: Database) -> None:
    await commit(database, starting("r0"))
    for name in ("r1", "r2"):
        await commit(database, waiting(name))
    await commit(database, interrupting("first"))
    await commit(database, waiting("alone", "s2"))
    names = ["r0", "r1", "r2", "first", "alone"]
    assert await database.read(queue_positions, names) == {"first": 1, "r1": 2, "r2": 3, "alone": 1}


async def test_a_turn_that_waits_and_holds_its_session_is_the_next(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, waiting("r1"))
    await commit(database, ending("r0", status="PENDING", holds_session=True, available_at=LATER))
    assert await database.read(queue_positions, ["r0", "r1"]) == {"r0": 1, "r1": 2}


async def test_one_that_goes_first_and_has_taken_the_session_is_the_next(database: Database) -> None:
    await commit(database, waiting("r1"))
    await commit(database, interrupting("first"))
    assert await database.read(queue_positions, ["first", "r1"]) == {"first": 1, "r1": 2}


async def test_only_a_waiting_run_is_read_with_a_place(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, waiting("r1"))
    read = [await database.read(details.read_detail, id) for id in ("r0", "r1")]
    assert [detail.queue_position for detail in read] == [None, 1]


async def test_the_sums_of_a_session_keep_what_a_dropped_turn_has_cost(database: Database) -> None:
    await commit(database, starting("r0"))
    await commit(database, interrupting("r1", drops=True))
    await commit(database, ending("r0", status="CANCELLED"))
    assert await rows(database, sa.select(sessions.c.total_tokens)) == [(5,)]

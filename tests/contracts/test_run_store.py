"""Claims, hand-backs, cancels, pauses, reads and deletion, on both databases."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from support.store_ops import (
    AT,
    LATER,
    claim,
    claimed_ids,
    commit,
    end_of,
    ending,
    execute,
    find,
    finished,
    lines,
    messages,
    register,
    rows,
    rows_of_session,
    session_ids,
    starting,
    statuses,
    step_of,
    waiting,
)
from waystation.clock import now
from waystation.db.engine import Database
from waystation.db.tables import approvals, deleted_keys, run_events, runs, sessions
from waystation.domain.branch import lineage
from waystation.domain.lifecycle import RunStatus
from waystation.domain.media import Attachment, MediaKind
from waystation.domain.page import PageRequest
from waystation.domain.requirement import Requirement, ToolExecution
from waystation.domain.run import Run
from waystation.errors import SessionBusyError
from waystation.store import events as event_store
from waystation.store import runs as run_store
from waystation.store import sessions as session_store
from waystation.store import workers as worker_store
from waystation.store.operations import Stepped, Verdict

# ---- claim -------------------------------------------------------------------------------------------------------------------


async def test_the_oldest_due_run_is_claimed_first(database: Database) -> None:
    await commit(database, waiting("r1", "s1"))
    await commit(database, waiting("r2", "s0"))
    await commit(database, waiting("r3", "s2"))
    assert await claimed_ids(database, slots=2) == ["r1", "r2"]


async def test_a_claim_sets_all_that_an_execution_needs(database: Database) -> None:
    await commit(database, waiting("r", timeout_s=60.0))
    [run] = await claim(database, worker="w7", at=LATER)
    assert run == await find(database, "r")
    assert (run.status, run.worker_id, run.holds_session, run.epoch) == (RunStatus.RUNNING, "w7", True, 1)
    assert (run.started_at, run.deadline_at) == (LATER, LATER + 60.0)


async def test_a_foreground_run_starts_when_it_is_stored_not_when_it_was_sent(database: Database) -> None:
    before = now()
    await commit(database, starting("r", timeout_s=60.0))
    run = await find(database, "r")
    assert run.started_at is not None and before <= run.started_at <= now()
    assert (run.created_at, run.deadline_at) == (AT, run.started_at + 60.0)


async def test_a_second_claim_gets_nothing(database: Database) -> None:
    await commit(database, waiting("r"))
    assert [await claimed_ids(database), await claimed_ids(database)] == [["r"], []]


async def test_a_claim_takes_no_more_than_its_slots(database: Database) -> None:
    await commit(database, *(waiting(f"r{n}", f"s{n}") for n in range(5)))
    assert len(await claimed_ids(database, slots=3)) == 3
    assert len(await claimed_ids(database, slots=3)) == 2


async def test_a_session_with_a_holder_is_left_out(database: Database) -> None:
    await commit(database, starting("r1", "s1"))
    await commit(database, waiting("r2", "s1"), waiting("r3", "s2"))
    assert await claimed_ids(database) == ["r3"]


async def test_turns_of_one_session_are_claimed_one_at_a_time_in_their_order(database: Database) -> None:
    await commit(database, waiting("r1"))
    await commit(database, waiting("r2"))
    assert await claimed_ids(database) == ["r1"]
    await commit(database, ending("r1", first=0))
    assert await claimed_ids(database) == ["r2"]


async def test_a_run_that_is_not_due_is_left_out_and_told_of(database: Database) -> None:
    await commit(database, waiting("r", available_at=LATER + 5))
    assert await claimed_ids(database, at=LATER) == []
    assert await database.read(run_store.next_due_at, LATER) == LATER + 5
    assert await claimed_ids(database, at=LATER + 5) == ["r"]
    assert await database.read(run_store.next_due_at, LATER + 5) is None


async def test_a_turn_does_not_overtake_an_older_one_that_is_not_due_yet(database: Database) -> None:
    await commit(database, waiting("r1", available_at=LATER + 5))
    await commit(database, waiting("r2"))
    assert await claimed_ids(database, at=LATER) == []


async def test_users_that_are_passed_over_wait_and_nobody_is_no_user(database: Database) -> None:
    await commit(database, *(waiting(user or "nobody", f"of {user}", user_id=user) for user in ("ann", "bob", None, "cid")))
    assert await claimed_ids(database, passed_over=("ann", "bob")) == ["nobody", "cid"]
    assert await claimed_ids(database) == ["ann", "bob"]


async def test_a_process_that_was_declared_dead_or_whose_row_is_gone_claims_nothing(database: Database) -> None:
    await database.write(register, "alive", "dead", "gone")
    assert await database.write(worker_store.declare_dead, "dead", 0, LATER)
    await database.write(worker_store.release, "gone")
    await commit(database, waiting("r1", "s1"), waiting("r2", "s2", user_id="ann"))
    for name in ("dead", "gone"):
        for passed_over in ([], ["bob"]):
            assert await database.hot(run_store.claim, name, ["a"], 10, LATER, passed_over) == []
    assert await claimed_ids(database, worker="alive") == ["r1", "r2"]


async def test_runs_of_agents_that_a_process_does_not_have_are_left_out(database: Database) -> None:
    await commit(database, waiting("r1", "s1", agent_id="a"), waiting("r2", "s2", agent_id="b"))
    assert await claimed_ids(database, agents=("b", "c")) == ["r2"]


async def test_a_run_handed_back_goes_first_whoever_is_older(database: Database) -> None:
    await commit(database, waiting("older"))
    await commit(database, waiting("newer"))
    await execute(database, sa.update(runs).where(runs.c.id == "newer").values(holds_session=True))
    assert await claimed_ids(database) == ["newer"]
    assert await claimed_ids(database) == []


async def test_a_run_to_be_tried_again_is_claimed_before_the_turn_that_waits_behind_it(database: Database) -> None:
    await commit(database, starting("r1", max_attempts=2))
    await commit(database, waiting("r2"))
    await commit(database, step_of("r1", finish=end_of("PENDING", holds_session=True, usage=None, attempt=2, available_at=LATER)))
    assert await claimed_ids(database) == ["r1"]


async def test_every_claim_and_every_hand_back_raises_the_epoch(database: Database) -> None:
    await commit(database, waiting("r"))
    first = await claim(database)
    assert await database.write(run_store.hand_back, "r", 1, LATER)
    second = await claim(database)
    assert (first[0].epoch, second[0].epoch) == (1, 3)


async def test_the_next_claim_keeps_the_first_start_and_the_deadline(database: Database) -> None:
    await commit(database, waiting("r", timeout_s=60.0))
    await claim(database, at=LATER)
    await database.write(run_store.hand_back, "r", 1, LATER)
    [again] = await claim(database, at=LATER + 30)
    assert (again.started_at, again.deadline_at) == (LATER, LATER + 60.0)


# ---- hand back ---------------------------------------------------------------------------------------------------------------


async def test_a_run_handed_back_waits_again_and_keeps_its_session(database: Database) -> None:
    await commit(database, starting("r1"))
    assert await database.write(run_store.hand_back, "r1", 1, LATER)
    run = await find(database, "r1")
    assert (run.status, run.holds_session, run.worker_id, run.epoch, run.takeovers) == (RunStatus.PENDING, True, None, 2, 0)
    assert (await commit(database, starting("r2")))[0].verdict is Verdict.BUSY


@pytest.mark.parametrize("epoch", [0, 2])
async def test_only_the_epoch_that_was_seen_is_handed_back(database: Database, epoch: int) -> None:
    await commit(database, starting("r"))
    assert not await database.write(run_store.hand_back, "r", epoch, LATER)
    assert await statuses(database) == {"r": "RUNNING"}


@pytest.mark.parametrize("status", ["COMPLETED", "ERROR", "CANCELLED", "PAUSED"])
async def test_a_leg_that_has_ended_is_not_handed_back(database: Database, status: str) -> None:
    await commit(database, starting("r"))
    await commit(database, ending("r", status=status))
    assert not await database.write(run_store.hand_back, "r", 1, LATER)
    assert await database.write(run_store.hand_back_runs_of, "w", LATER) == []
    assert await statuses(database) == {"r": status}


async def test_the_old_owner_can_not_end_a_run_that_was_handed_back(database: Database) -> None:
    await commit(database, starting("r"))
    await database.write(run_store.hand_back, "r", 1, LATER)
    assert await commit(database, ending("r")) == [Stepped(False)]
    assert await statuses(database) == {"r": "PENDING"}


async def test_the_runs_of_a_lost_worker_are_handed_back_as_takeovers_and_those_of_others_are_not(database: Database) -> None:
    await commit(database, starting("r1", "s1"), starting("r2", "s2"), starting("r3", "s3", worker_id="other"))
    assert sorted(await database.write(run_store.hand_back_runs_of, "w", LATER)) == ["r1", "r2"]
    assert await database.write(run_store.hand_back_runs_of, "w", LATER) == []
    run = await find(database, "r1")
    assert (run.status, run.holds_session, run.epoch, run.takeovers, run.available_at) == (RunStatus.PENDING, True, 2, 1, LATER)
    assert (await find(database, "r3")).status is RunStatus.RUNNING


# ---- cancel ------------------------------------------------------------------------------------------------------------------


async def test_a_cancel_request_is_told_to_the_owner_alone(database: Database) -> None:
    await commit(database, starting("r1", "s1"), starting("r2", "s2", worker_id="other"))
    assert await database.write(run_store.request_cancel, "r1", LATER)
    assert await database.read(run_store.cancel_requests_of, "w") == ["r1"]
    assert await database.read(run_store.cancel_requests_of, "other") == []


async def test_only_a_running_run_takes_a_cancel_request(database: Database) -> None:
    await commit(database, waiting("r1", "s1"))
    await finished(database, "r2", "s2")
    asked = [await database.write(run_store.request_cancel, id, LATER) for id in ("r1", "r2", "nobody")]
    assert asked == [False, False, False]


async def test_a_request_is_unanswered_from_its_first_time_on(database: Database) -> None:
    await commit(database, starting("r"))
    await database.write(run_store.request_cancel, "r", LATER)
    await database.write(run_store.request_cancel, "r", LATER + 9)
    assert await database.read(run_store.unanswered_cancels, LATER) == ([], LATER)
    runs_to_end, next_asked_at = await database.read(run_store.unanswered_cancels, LATER + 1)
    assert ([run.id for run in runs_to_end], next_asked_at) == (["r"], None)


async def test_an_answered_request_is_not_unanswered(database: Database) -> None:
    await commit(database, starting("r"))
    await database.write(run_store.request_cancel, "r", LATER)
    await commit(database, ending("r", status="CANCELLED"))
    assert await database.read(run_store.unanswered_cancels, LATER + 99) == ([], None)


# ---- ending runs that nobody executes ----------------------------------------------------------------------------------------


async def end_idle(database: Database, run: Run, status: RunStatus = RunStatus.CANCELLED) -> bool:
    event = lines(run.next_index, "RunCancelled")
    return await database.write(run_store.end_idle, run, status, event, {"output": '{"content":"x"}'}, "hi", LATER)


async def test_a_waiting_run_is_ended_with_its_last_event_in_one_commit(database: Database) -> None:
    await commit(database, waiting("r"))
    assert await end_idle(database, await find(database, "r"))
    run = await find(database, "r")
    assert (run.status, run.epoch, run.next_index, run.finished_at, run.output and run.output.content) == (
        RunStatus.CANCELLED, 1, 1, LATER, "x",
    )  # fmt: skip
    assert await rows(database, sa.select(run_events.c.first_index, run_events.c.last_index)) == [(0, 0)]
    assert await rows(database, sa.select(sessions.c.runs, sessions.c.last_run_id)) == [(1, "r")]


async def test_a_paused_run_is_ended_and_what_it_asked_for_is_cancelled(database: Database) -> None:
    await pause(database, "r", holds_session=True)
    assert await end_idle(database, await find(database, "r"), RunStatus.ERROR)
    assert (await find(database, "r")).holds_session is False
    assert await rows(database, sa.select(approvals.c.status)) == [("cancelled",)]


async def test_a_run_is_ended_over_the_head_of_an_owner_who_can_then_write_nothing(database: Database) -> None:
    await commit(database, starting("r"))
    assert await end_idle(database, await find(database, "r"))
    assert await commit(database, step_of("r", first=2), step_of("r", epoch=1, first=1)) == [Stepped(False), Stepped(False)]
    assert await statuses(database) == {"r": "CANCELLED"}


async def test_what_has_changed_since_it_was_read_is_not_ended(database: Database) -> None:
    await commit(database, waiting("r1", "s1"), starting("r2", "s2"), starting("r3", "s3"))
    read = [await find(database, id) for id in ("r1", "r2", "r3")]
    await claim(database)
    await commit(database, step_of("r2", "s2"), ending("r3", "s3"))
    assert [await end_idle(database, run) for run in read] == [False, False, False]
    assert await statuses(database) == {"r1": "RUNNING", "r2": "RUNNING", "r3": "COMPLETED"}


async def test_a_final_run_is_never_ended_again(database: Database) -> None:
    await finished(database, "r")
    assert not await end_idle(database, await find(database, "r"))


# ---- going on after a pause --------------------------------------------------------------------------------------------------


async def pause(database: Database, id: str, session: str = "s", *, holds_session: bool) -> Run:
    tool = ToolExecution(tool_call_id="c", tool_name="t", requires_confirmation=True, approval_type="required")
    asked = Requirement(id=f"q-{id}", created_at=AT, tool_execution=tool)
    await commit(database, starting(id, session, timeout_s=60.0))
    end = end_of("PAUSED", holds_session=holds_session, approvals=(asked,))
    await commit(database, step_of(id, session, "RunPaused", finish=end))
    return await find(database, id)


async def test_a_paused_run_goes_on_at_once_where_it_is_asked_to(database: Database) -> None:
    paused = await pause(database, "r", holds_session=False)
    run = await database.write(run_store.reopen, paused, '{"content":"x"}', "w2", LATER)
    assert run is not None and run == await find(database, "r")
    assert (run.status, run.worker_id, run.holds_session, run.epoch, run.deadline_at) == (
        RunStatus.RUNNING, "w2", True, 2, LATER + 60.0,
    )  # fmt: skip


async def test_a_paused_run_waits_for_anybody_where_this_process_has_no_room(database: Database) -> None:
    paused = await pause(database, "r", holds_session=False)
    run = await database.write(run_store.reopen, paused, "{}", None, LATER)
    assert run is not None and (run.status, run.holds_session, run.worker_id) == (RunStatus.PENDING, False, None)
    assert await claimed_ids(database) == ["r"]


async def test_a_paused_run_goes_on_only_once(database: Database) -> None:
    paused = await pause(database, "r", holds_session=True)
    assert await database.write(run_store.reopen, paused, "{}", "w", LATER) is not None
    assert await database.write(run_store.reopen, paused, "{}", "w", LATER) is None


async def test_a_paused_run_that_gave_its_session_up_waits_for_the_turn_that_has_it(database: Database) -> None:
    paused = await pause(database, "r1", holds_session=False)
    await commit(database, starting("r2"))
    with pytest.raises(SessionBusyError) as refused:
        await database.write(run_store.reopen, paused, "{}", "w", LATER)
    assert refused.value.run_id == "r2"
    assert await statuses(database) == {"r1": "PAUSED", "r2": "RUNNING"}


async def test_a_paused_run_that_holds_its_session_keeps_others_out(database: Database) -> None:
    await pause(database, "r1", holds_session=True)
    [refused] = await commit(database, starting("r2"))
    assert (refused.verdict, refused.run_id) == (Verdict.BUSY, "r1")


async def test_the_turn_in_flight_is_the_holder_else_the_oldest_that_waits(database: Database) -> None:
    await commit(database, waiting("r1"))
    await commit(database, waiting("r2"))
    assert await database.read(run_store.find_in_flight, "s") == "r1"
    await execute(database, sa.update(runs).where(runs.c.id == "r2").values(holds_session=True))
    assert await database.read(run_store.find_in_flight, "s") == "r2"
    assert await database.read(lambda conn: run_store.find_in_flight(conn, "s", besides="r2")) == "r1"
    assert await database.read(run_store.find_in_flight, "elsewhere") is None


# ---- lists -------------------------------------------------------------------------------------------------------------------


async def listed(database: Database, *, page: int = 1, limit: int = 20, **filters: object) -> tuple[list[str], int]:
    request = PageRequest(page=page, limit=limit)
    found = await database.read(lambda conn: run_store.list_runs(conn, request=request, **filters))  # type: ignore[arg-type]
    return [run.id for run in found.items], found.total


async def test_runs_are_listed_in_pages_in_the_order_of_their_acceptance(database: Database) -> None:
    for n in range(5):
        await commit(database, waiting(f"r{n}", f"s{n}"))
    assert await listed(database, limit=2) == (["r0", "r1"], 5)
    assert await listed(database, limit=2, page=3) == (["r4"], 5)
    assert await listed(database, limit=2, page=4) == ([], 5)
    assert await listed(database, limit=2, descending=True) == (["r4", "r3"], 5)


async def test_runs_are_listed_by_what_they_are(database: Database) -> None:
    await finished(database, "r1", "s1", user_id="u1", created_at=10.0, available_at=10.0)
    await commit(database, starting("r2", "s2", user_id="u2", agent_id="b", created_at=20.0, available_at=20.0))
    await finished(database, "r3", "s1", replaces_run_id="r1", created_at=30.0, available_at=30.0)
    assert await listed(database, agent_id="b") == (["r2"], 1)
    assert await listed(database, session_id="s1") == (["r1", "r3"], 2)
    assert await listed(database, user_id="u1") == (["r1", "r3"], 2)
    assert await listed(database, status=RunStatus.RUNNING) == (["r2"], 1)
    assert await listed(database, status=RunStatus.REGENERATED) == (["r1"], 1)
    assert await listed(database, created_after=20.0) == (["r2", "r3"], 2)
    assert await listed(database, created_before=20.0) == (["r1", "r2"], 2)
    assert await listed(database, session_id="s1", status=RunStatus.RUNNING) == ([], 0)


async def test_a_run_that_was_replaced_is_not_listed_as_completed(database: Database) -> None:
    await finished(database, "r1")
    await finished(database, "r2", replaces_run_id="r1")
    assert await listed(database, status=RunStatus.COMPLETED) == (["r2"], 1)


async def test_dropped_turns_are_not_listed(database: Database) -> None:
    await finished(database, "r1")
    await execute(database, sa.update(runs).values(dropped_from_history=True))
    assert await listed(database) == ([], 0)


async def test_a_log_is_read_behind_an_index_in_whole_or_in_part(database: Database) -> None:
    await commit(database, starting("r"))
    await commit(database, step_of("r", "s", "RunContent", "RunContent", "RunContent"))
    found = await database.read(event_store.read, "r", 1)
    assert [(segment.first_index, segment.last_index) for segment in found] == [(2, 3)]
    assert [index for segment in found for index, _, _ in segment.each()] == [2, 3]
    assert await database.read(event_store.read, "r", 3) == []


async def test_a_long_log_is_read_in_pages_without_a_gap(database: Database) -> None:
    row = {"run_id": "r", "session_id": "s", "payload": '{"event":"RunContent","event_index":0}'}
    many = [row | {"first_index": n, "last_index": n} for n in range(event_store.PAGE_SEGMENTS + 50)]
    await database.write(lambda conn: conn.execute(sa.insert(run_events), many) and None)
    assert len(await database.read(event_store.read, "r", -1)) == event_store.PAGE_SEGMENTS
    assert [segment.first_index for segment in await database.read(event_store.read_all, "r")] == [row["first_index"] for row in many]


# ---- sessions ----------------------------------------------------------------------------------------------------------------


async def fill(database: Database, session: str) -> None:
    """A session with rows in every table that can have some."""
    file = Attachment(id=f"f-{session}", name="f", mime_type="text/plain", kind=MediaKind.FILE, content=b"x")
    await finished(database, f"{session}-r1", session, said=("hi",), attachments=(file,), idempotency_key=f"k-{session}")
    await pause(database, f"{session}-r2", session, holds_session=False)


async def test_deleting_a_session_leaves_nothing_of_it_in_any_table(database: Database) -> None:
    await fill(database, "s1")
    await fill(database, "s2")
    before = await rows_of_session(database, "s2")
    assert before == {"approvals": 1, "attachments": 1, "run_events": 4, "run_messages": 1, "runs": 2, "sessions": 1}
    assert await database.write(session_store.delete, "s1", LATER)
    assert await rows_of_session(database, "s1") == {}
    assert await rows_of_session(database, "s2") == before


async def test_the_key_of_a_deleted_session_leaves_a_mark(database: Database) -> None:
    await fill(database, "s")
    await database.write(session_store.delete, "s", LATER)
    assert await rows(database, sa.select(deleted_keys)) == [("", "a", "k-s", AT)]


@pytest.mark.parametrize("run", [starting("r"), waiting("r")], ids=["running", "waiting"])
async def test_a_session_with_a_turn_in_flight_is_not_deleted(database: Database, run: object) -> None:
    await commit(database, run)  # type: ignore[arg-type]
    assert not await database.write(session_store.delete, "s", LATER)
    assert await session_ids(database) == {"s"}


async def test_a_session_of_more_runs_than_fit_into_one_statement_is_deleted_whole(database: Database) -> None:
    for start in range(0, 600, 100):
        batch = [starting(f"r{n}", f"x{n}") for n in range(start, start + 100)]
        await commit(database, *batch)
        await commit(database, *(ending(f"r{n}", f"x{n}", said=("m",)) for n in range(start, start + 100)))
    await execute(database, sa.update(runs).values(session_id="s"))
    await execute(database, sa.insert(sessions).values(id="s", created_at=1.0, updated_at=1.0))
    assert await database.write(session_store.delete, "s", LATER)
    assert await rows(database, sa.select(sa.func.count()).select_from(run_events)) == [(0,)]


async def test_old_keys_are_forgotten_in_slices_and_their_runs_stay(database: Database) -> None:
    for n in range(3):
        await finished(database, f"r{n}", f"s{n}", idempotency_key=f"k{n}", created_at=float(n), available_at=0.0)
    await execute(database, sa.insert(deleted_keys).values(idempotency_scope="", agent_id="a", idempotency_key="x", created_at=1.0))
    assert [await database.write(session_store.forget_old_keys, 2.0, 1) for _ in range(3)] == [1, 1, 0]
    assert await rows(database, sa.select(deleted_keys)) == []
    again = await commit(database, starting("n0", "t0", idempotency_key="k0"), starting("n2", "t2", idempotency_key="k2"))
    assert [answer.verdict for answer in again] == [Verdict.STARTED, Verdict.EXISTS]


async def fork(database: Database, session: str) -> str:
    source = await database.read(session_store.find, session)
    assert source is not None
    copy = await database.write(session_store.fork, replace(source, state={"n": 1}), LATER)
    return copy.id


async def history(database: Database, session: str) -> list[str | None]:
    """What the next turn of a session is told of the earlier ones."""
    [answer] = await commit(database, starting(f"next-{session}", session, history_runs=20))
    return [message.content for past in lineage(answer.history[::-1]) for message in past.messages]


async def test_a_fork_has_the_finished_runs_the_messages_and_the_sums_of_its_source(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await finished(database, "r2", said=("two",))
    await commit(database, waiting("r3"))
    before = await rows_of_session(database, "s")
    copy = await fork(database, "s")
    forked = await database.read(session_store.find, copy)
    assert forked is not None and (forked.forked_from_session_id, forked.runs, forked.total_tokens) == ("s", 2, 10)
    assert await history(database, copy) == ["one", "two"]
    assert await rows_of_session(database, "s") == before


async def test_a_fork_does_not_take_the_keys_of_its_source(database: Database) -> None:
    await finished(database, "r1", idempotency_key="k")
    copy = await fork(database, "s")
    keys = await rows(database, sa.select(runs.c.idempotency_key).where(runs.c.session_id == copy))
    assert keys == [(None,)]


async def test_a_fork_remembers_what_its_source_remembers_after_a_turn_was_regenerated(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await finished(database, "r2", said=("question", "bad answer"))
    await finished(database, "r3", said=("question", "good answer"), forked_from_run_id="r2", replaces_run_id="r2")
    copy = await fork(database, "s")
    assert await history(database, copy) == await history(database, "s") == ["one", "question", "good answer"]


async def test_a_fork_remembers_the_branch_of_its_source(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await finished(database, "r2", said=("two",))
    await finished(database, "r3", said=("one", "other way"), forked_from_run_id="r1")
    copy = await fork(database, "s")
    assert await history(database, copy) == ["one", "other way"]


async def test_messages_of_several_runs_come_each_in_order(database: Database) -> None:
    await commit(database, starting("r1", "s1", messages=messages(0, "a")), starting("r2", "s2", messages=messages(0, "x")))
    await commit(database, step_of("r1", "s1", messages=messages(1, "b", "c")))
    found = await database.read(event_store.messages_of, ["r1", "r2", "r3"])
    assert {id: [m.content for m in said] for id, said in found.items()} == {"r1": ["a", "b", "c"], "r2": ["x"]}

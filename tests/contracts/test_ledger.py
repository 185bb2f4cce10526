"""The ledger and its statements, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa

from support.store_ops import (
    LATER,
    USAGE,
    accept_of,
    claim,
    commit,
    end_of,
    ending,
    execute,
    find,
    finished,
    messages,
    rows,
    session_ids,
    starting,
    statuses,
    step_of,
    waiting,
)
from waystation.db.engine import Database
from waystation.db.tables import approvals, attachments, deleted_keys, run_events, run_messages, runs, sessions
from waystation.domain.branch import lineage
from waystation.domain.lifecycle import RunStatus
from waystation.domain.media import Attachment, MediaKind
from waystation.domain.requirement import Requirement, ToolExecution
from waystation.domain.session import Session
from waystation.errors import StoreUnavailableError
from waystation.store import events as event_store
from waystation.store import runs as run_store
from waystation.store import sessions as session_store
from waystation.store.details import read_turn
from waystation.store.ledger import Ledger
from waystation.store.operations import Accepted, PastRun, StateChanges, Step, Stepped, Verdict


def verdicts(answers: list[Any]) -> list[Verdict]:
    return [answer.verdict for answer in answers]


# ---- accept ------------------------------------------------------------------------------------------------------------------


async def test_a_foreground_run_starts_in_a_new_session(database: Database) -> None:
    [answer] = await commit(database, starting("r", "s", user_id="u"))
    run = await find(database, "r")
    assert answer == Accepted(Verdict.STARTED, "r", "s", "u")
    assert (run.status, run.epoch, run.next_index, run.worker_id, run.holds_session) == (RunStatus.RUNNING, 1, 1, "w", True)
    assert await rows(database, sa.select(run_events.c.first_index, run_events.c.last_index)) == [(0, 0)]
    assert await session_ids(database) == {"s"}


async def test_a_background_run_waits_without_events(database: Database) -> None:
    [answer] = await commit(database, waiting("r"))
    run = await find(database, "r")
    assert verdicts([answer]) == [Verdict.WAITS]
    assert (run.status, run.epoch, run.next_index, run.worker_id, run.holds_session) == (RunStatus.PENDING, 0, 0, None, False)
    assert await rows(database, sa.select(run_events)) == []


async def test_a_busy_session_refuses_and_names_the_turn_in_flight(database: Database) -> None:
    await commit(database, starting("r1"))
    [answer] = await commit(database, starting("r2"))
    assert answer == Accepted(Verdict.BUSY, "r1", "s")
    assert await statuses(database) == {"r1": "RUNNING"}


async def test_a_waiting_turn_makes_its_session_busy(database: Database) -> None:
    await commit(database, waiting("r1"))
    [answer] = await commit(database, starting("r2"))
    assert answer == Accepted(Verdict.BUSY, "r1", "s")


async def test_a_run_that_may_wait_queues_behind_a_busy_session(database: Database) -> None:
    await commit(database, starting("r1"))
    [answer] = await commit(database, starting("r2", may_wait=True))
    assert verdicts([answer]) == [Verdict.WAITS]
    assert await statuses(database) == {"r1": "RUNNING", "r2": "PENDING"}


async def test_an_acceptance_whose_answer_was_lost_is_told_as_stored_when_it_is_repeated(database: Database) -> None:
    await commit(database, starting("r1"), waiting("r2", "other"))
    first, second = await commit(database, starting("r1"), waiting("r2", "other"))
    assert (first.verdict, first.was_stored) == (Verdict.STARTED, True)
    assert (second.verdict, second.was_stored) == (Verdict.WAITS, True)
    assert await rows(database, sa.select(run_events.c.run_id, run_events.c.first_index)) == [("r1", 0)]


async def test_a_run_that_is_not_due_yet_waits_even_with_a_free_slot(database: Database) -> None:
    [answer] = await commit(database, starting("r", may_wait=True, available_at=LATER))
    assert verdicts([answer]) == [Verdict.WAITS]


async def test_a_used_key_gives_the_run_that_used_it(database: Database) -> None:
    await commit(database, starting("r1", "s1", idempotency_key="k", request_hash="h"))
    [answer] = await commit(database, starting("r2", "s2", idempotency_key="k", request_hash="other"))
    assert answer == Accepted(Verdict.EXISTS, "r1", "s1", request_hash="h")
    assert await session_ids(database) == {"s1"}


async def test_a_used_key_wins_over_a_busy_session(database: Database) -> None:
    await commit(database, starting("r1", idempotency_key="k"))
    [answer] = await commit(database, starting("r2", idempotency_key="k"))
    assert verdicts([answer]) == [Verdict.EXISTS]


async def test_one_key_twice_in_one_batch_starts_one_run(database: Database) -> None:
    answers = await commit(database, starting("r1", "s1", idempotency_key="k"), starting("r2", "s2", idempotency_key="k"))
    assert sorted(verdicts(answers)) == [Verdict.EXISTS, Verdict.STARTED]
    assert {answer.run_id for answer in answers} == set(await statuses(database))


@pytest.mark.parametrize("other", [{"idempotency_scope": "u2"}, {"agent_id": "b"}])
async def test_keys_of_another_scope_or_agent_do_not_meet(database: Database, other: dict[str, str]) -> None:
    first = {"idempotency_scope": "u1", "agent_id": "a", "idempotency_key": "k"}
    answers = await commit(database, starting("r1", "s1", **first), starting("r2", "s2", **first | other))
    assert verdicts(answers) == [Verdict.STARTED, Verdict.STARTED]


async def test_a_key_of_a_deleted_session_starts_nothing(database: Database) -> None:
    await finished(database, "r1", "s1", idempotency_key="k")
    await database.write(session_store.delete, "s1", LATER)
    [answer] = await commit(database, starting("r2", "s2", idempotency_key="k"))
    assert answer == Accepted(Verdict.DELETED, None, "s2")
    assert await statuses(database) == {}
    assert await session_ids(database) == set()


async def test_a_session_of_another_agent_is_refused(database: Database) -> None:
    await finished(database, "r1", agent_id="a")
    [answer] = await commit(database, starting("r2", agent_id="b"))
    assert answer == Accepted(Verdict.OTHER_AGENT, None, "s")


async def test_a_session_of_another_user_is_refused_without_a_word_about_its_turn(database: Database) -> None:
    await commit(database, starting("r1", user_id="u1"))
    [answer] = await commit(database, starting("r2", user_id="u2", may_wait=True))
    assert answer == Accepted(Verdict.OTHER_USER, None, "s")
    assert await statuses(database) == {"r1": "RUNNING"}


async def test_a_run_without_a_user_gets_the_owner_of_its_session(database: Database) -> None:
    await finished(database, "r1", user_id="u1")
    [answer] = await commit(database, starting("r2", user_id=None))
    assert (answer.verdict, answer.user_id) == (Verdict.STARTED, "u1")
    assert (await find(database, "r2")).user_id == "u1"


async def test_the_first_run_adopts_a_session_without_an_agent(database: Database) -> None:
    await database.write(session_store.create, Session(id="s", agent_id=None, user_id=None, created_at=1.0, updated_at=1.0))
    [answer] = await commit(database, starting("r", agent_id="b"))
    assert verdicts([answer]) == [Verdict.STARTED]
    assert await rows(database, sa.select(sessions.c.id, sessions.c.agent_id)) == [("s", "b")]


async def test_a_session_id_can_be_used_again_after_it_was_deleted(database: Database) -> None:
    await finished(database, "r1", said=("old",))
    await database.write(session_store.delete, "s", LATER)
    [answer] = await commit(database, starting("r2", history_runs=5))
    assert (answer.verdict, answer.history) == (Verdict.STARTED, [])


async def test_an_acceptance_brings_session_and_history_of_the_last_runs_along(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await finished(database, "r2", said=("two", "three"))
    await commit(database, starting("r3"), ending("r3", first=1, said=("failed",), status="ERROR"))
    await finished(database, "r4", said=("four",))
    [answer] = await commit(database, starting("r5", history_runs=3))
    assert [(past.id, [m.content for m in past.messages]) for past in answer.history] == [
        ("r1", ["one"]),
        ("r2", ["two", "three"]),
        ("r4", ["four"]),
    ]
    assert answer.session is not None and answer.session.runs == 4


async def test_history_is_read_for_each_session_of_a_batch_by_its_own_count(database: Database) -> None:
    await finished(database, "r1", "s1", said=("one",))
    await finished(database, "r2", "s1", said=("two",))
    await finished(database, "r3", "s2", said=("three",))
    first, second = await commit(database, starting("r4", "s1", history_runs=1), starting("r5", "s2", history_runs=5))
    assert [past.id for past in first.history] == ["r2"]
    assert [past.id for past in second.history] == ["r3"]


def told(past: list[PastRun]) -> list[tuple[str, str | None, int]]:
    return [(run.id, run.forked_from_run_id, len(run.messages)) for run in past]


async def test_history_names_the_source_of_a_sibling_and_has_no_messages_of_what_was_replaced(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await finished(database, "r2", said=("two",))
    await finished(database, "r3", said=("one", "again"), forked_from_run_id="r1")
    await finished(database, "r4", said=("two", "anew"), forked_from_run_id="r2", replaces_run_id="r2")
    [answer] = await commit(database, starting("r5", history_runs=9))
    assert told(answer.history) == [("r1", None, 1), ("r2", None, 0), ("r3", "r1", 2), ("r4", "r2", 2)]


async def test_what_came_before_a_regenerated_turn_is_remembered_and_what_came_after_it_is_not(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await finished(database, "r2", said=("two",))
    await finished(database, "r3", said=("three",))
    await finished(database, "r4", said=("two", "anew"), forked_from_run_id="r2", replaces_run_id="r2")
    [answer] = await commit(database, starting("r5", history_runs=9))
    branch = lineage(answer.history[::-1])
    assert [message.content for run in branch for message in run.messages] == ["one", "two", "anew"]


async def test_what_came_before_a_failed_turn_that_was_continued_is_remembered(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await commit(database, starting("r2"))
    await commit(database, ending("r2", said=("two",), status="ERROR"))
    await finished(database, "r3", said=("two", "anew"), forked_from_run_id="r2")
    [answer] = await commit(database, starting("r4", history_runs=9))
    branch = lineage(answer.history[::-1])
    assert [message.content for run in branch for message in run.messages] == ["one", "two", "anew"]


async def test_a_sibling_is_told_the_place_of_a_source_that_is_not_remembered_itself(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await finished(database, "r2", said=("two",))
    await finished(database, "r3", said=("three",))
    await commit(database, starting("r4", forked_from_run_id="r2", replaces_run_id="r2", messages=messages(0, "two")))
    turn = await database.read(read_turn, await find(database, "r4"), 9)
    assert told(turn.history) == [("r1", None, 1), ("r2", None, 0), ("r3", None, 1)]


async def test_a_sibling_stores_the_messages_it_takes_over_and_marks_its_source(database: Database) -> None:
    await finished(database, "r1", said=("one",))
    await commit(database, starting("r2", forked_from_run_id="r1", replaces_run_id="r1", messages=messages(0, "one", "more")))
    stored = await database.read(event_store.messages_of, ["r2"])
    assert [message.content for message in stored["r2"]] == ["one", "more"]
    assert (await find(database, "r1")).shown_status is RunStatus.REGENERATED


async def test_a_refused_sibling_leaves_its_source_alone(database: Database) -> None:
    await finished(database, "r1")
    await commit(database, starting("r2"))
    await commit(database, starting("r3", forked_from_run_id="r1", replaces_run_id="r1", messages=messages(0, "one")))
    assert (await find(database, "r1")).shown_status is RunStatus.COMPLETED
    assert await rows(database, sa.select(run_messages)) == []


async def test_attachments_are_stored_with_the_run(database: Database) -> None:
    file = Attachment(id="f", name="a.txt", mime_type="text/plain", kind=MediaKind.FILE, content=b"\x00\xff", metadata={"n": 1})
    await commit(database, starting("r", attachments=(file,)))
    assert await database.read(event_store.attachments_of, "r") == [file]


async def test_attachments_of_a_refused_run_are_not_stored(database: Database) -> None:
    file = Attachment(id="f", name="a.txt", mime_type="text/plain", kind=MediaKind.FILE, content=b"x")
    await commit(database, starting("r1"))
    await commit(database, starting("r2", attachments=(file,)))
    assert await rows(database, sa.select(attachments.c.id)) == []


# ---- steps -------------------------------------------------------------------------------------------------------------------


async def test_a_step_stores_events_and_messages_behind_its_fence(database: Database) -> None:
    await commit(database, starting("r"))
    [answer] = await commit(database, step_of("r", "s", "RunContent", "RunContent", messages=messages(0, "hi")))
    assert answer == Stepped(True)
    assert await rows(database, sa.select(run_events.c.first_index, run_events.c.last_index).order_by("first_index")) == [(0, 0), (1, 2)]
    assert await rows(database, sa.select(run_messages.c.first_index, run_messages.c.last_index)) == [(0, 0)]
    assert (await find(database, "r")).next_index == 3


STALE = {
    "an old epoch": step_of("r", epoch=0, first=1, messages=messages(0, "x"), finish=end_of()),
    "an epoch to come": step_of("r", epoch=2, first=1, messages=messages(0, "x"), finish=end_of()),
    "an index ahead": step_of("r", epoch=1, first=2, messages=messages(0, "x"), finish=end_of()),
    "an unknown run": step_of("nobody", epoch=1, first=1, messages=messages(0, "x"), finish=end_of()),
}


@pytest.mark.parametrize("step", STALE.values(), ids=STALE.keys())
async def test_a_step_that_its_fence_refuses_writes_nothing_in_any_table(database: Database, step: Step) -> None:
    await commit(database, starting("r"))
    [answer] = await commit(database, step)
    assert answer == Stepped(False)
    assert await statuses(database) == {"r": "RUNNING"}
    assert await rows(database, sa.select(run_events.c.first_index)) == [(0,)]
    assert await rows(database, sa.select(run_messages)) == []
    assert await rows(database, sa.select(sessions.c.runs, sessions.c.total_tokens)) == [(0, 0)]


async def test_nothing_is_written_after_the_end_of_a_run(database: Database) -> None:
    await finished(database, "r")
    [answer] = await commit(database, step_of("r", first=2, finish=end_of("ERROR")))
    assert answer == Stepped(False)
    assert await statuses(database) == {"r": "COMPLETED"}
    assert await rows(database, sa.select(sessions.c.runs)) == [(1,)]


async def test_a_zombie_and_its_successor_in_one_batch_are_told_apart(database: Database) -> None:
    await commit(database, starting("r"))
    await database.write(run_store.hand_back, "r", 1, LATER)
    [successor] = await claim(database, worker="w2")
    zombie, heir = ending("r", epoch=1, first=1), step_of("r", epoch=successor.epoch, first=1)
    assert await commit(database, zombie, heir) == [Stepped(False), Stepped(True)]
    assert (successor.epoch, await statuses(database)) == (3, {"r": "RUNNING"})
    assert await rows(database, sa.select(sessions.c.runs)) == [(0,)]


async def test_a_repeated_step_whose_answer_was_lost_is_told_as_stored_and_not_stored_twice(database: Database) -> None:
    await commit(database, starting("r"))
    step = step_of("r", messages=messages(0, "hi"))
    assert [await commit(database, step), await commit(database, step)] == [[Stepped(True)], [Stepped(True)]]
    assert await rows(database, sa.select(sa.func.count()).select_from(run_events)) == [(2,)]
    assert await rows(database, sa.select(sa.func.count()).select_from(run_messages)) == [(1,)]


async def test_a_repeated_end_whose_answer_was_lost_counts_once(database: Database) -> None:
    await commit(database, starting("r"))
    assert [await commit(database, ending("r")), await commit(database, ending("r"))] == [[Stepped(True)], [Stepped(True)]]
    assert await rows(database, sa.select(sessions.c.runs, sessions.c.total_tokens)) == [(1, 5)]


async def test_a_step_brings_back_a_cancel_request(database: Database) -> None:
    await commit(database, starting("r"))
    await database.write(run_store.request_cancel, "r", LATER)
    assert await commit(database, step_of("r")) == [Stepped(True, cancel_requested=True)]


async def test_an_end_tells_that_a_turn_of_the_session_waits(database: Database) -> None:
    await commit(database, starting("r1"))
    await commit(database, waiting("r2"))
    assert await commit(database, ending("r1")) == [Stepped(True, has_waiting_turn=True)]


async def test_an_end_frees_the_session_and_stores_all_that_it_names(database: Database) -> None:
    await commit(database, starting("r"))
    await execute(database, sa.update(sessions).values(state='{"stays":2,"gone":3}'))
    await commit(
        database,
        ending(
            "r", output='{"content":"x"}', metrics='{"duration":1.5}', metadata='{"a":1}', model="m", model_provider="p",
            session_state=StateChanges({"n": 1}, ["gone"]), external_session_id="e", first_message="hello",
        ),
    )  # fmt: skip
    run = await find(database, "r")
    assert (run.status, run.holds_session, run.worker_id, run.finished_at) == (RunStatus.COMPLETED, False, None, LATER)
    assert (run.output and run.output.content, run.metrics.duration, run.metadata, run.model, run.model_provider) == (
        "x", 1.5, {"a": 1}, "m", "p",
    )  # fmt: skip
    stored = await database.read(session_store.find, "s")
    assert stored is not None
    assert (stored.state, stored.external_session_id, stored.last_run_id, stored.updated_at) == (
        {"stays": 2, "n": 1}, "e", "r", LATER,
    )  # fmt: skip
    assert stored.first_message == "ask r"


async def test_session_sums_are_exact_over_ends_retries_and_pauses(database: Database) -> None:
    await finished(database, "r1")
    await finished(database, "r2")
    await commit(database, starting("r3"), starting("r4", "other"))
    await commit(database, step_of("r3", "s", "RunPaused", finish=end_of("PAUSED")), ending("r4", "other", status="ERROR", usage={}))
    sums = sa.select(sessions.c.id, sessions.c.runs, sessions.c.input_tokens, sessions.c.total_tokens, sessions.c.cost)
    assert await rows(database, sums.order_by(sessions.c.id)) == [("other", 1, 0, 0, None), ("s", 2, 9, 15, 1.5)]


async def test_a_run_that_will_be_tried_again_keeps_its_session_and_its_place_in_the_log(database: Database) -> None:
    await commit(database, starting("r", max_attempts=2))
    again = end_of("PENDING", holds_session=True, usage=None, attempt=2, available_at=LATER + 10)
    await commit(database, step_of("r", "s", "CustomEvent", finish=again))
    run = await find(database, "r")
    assert (run.status, run.holds_session, run.attempt, run.available_at, run.finished_at) == (
        RunStatus.PENDING, True, 2, LATER + 10, None,
    )  # fmt: skip


def asked(call: str) -> Requirement:
    tool = ToolExecution(tool_call_id=call, tool_name="t", tool_args={"x": 1}, requires_confirmation=True, approval_type="required")
    return Requirement(id=f"q-{call}", created_at=LATER, tool_execution=tool)


async def test_a_pause_stores_its_approvals_in_the_same_commit(database: Database) -> None:
    await commit(database, starting("r"))
    await commit(database, step_of("r", "s", "RunPaused", finish=end_of("PAUSED", approvals=(asked("c1"), asked("c2")), agent_name="A")))
    found = await rows(
        database, sa.select(approvals.c.id, approvals.c.run_id, approvals.c.status, approvals.c.agent_name).order_by(approvals.c.id)
    )
    assert found == [("q-c1", "r", "pending", "A"), ("q-c2", "r", "pending", "A")]


async def test_a_refused_pause_stores_no_approvals(database: Database) -> None:
    await commit(database, starting("r"))
    await commit(database, step_of("r", "s", "RunPaused", epoch=9, finish=end_of("PAUSED", approvals=(asked("c1"),))))
    assert await rows(database, sa.select(approvals.c.id)) == []


# ---- the ledger --------------------------------------------------------------------------------------------------------------


class Switch:
    """A database whose connection can be cut: the transport fails, not the product."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_cut = False
        self.loses_answers = 0
        self.refusals = 0

    async def hot(self, f: Any, *args: Any) -> Any:
        if self.is_cut:
            self.refusals += 1
            raise StoreUnavailableError
        answer = await self._database.hot(f, *args)
        if self.loses_answers:
            self.loses_answers -= 1
            raise StoreUnavailableError
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class Steps:
    """A run's log as the ledger sees it: gives the steps one after the other, keeps what it hears."""

    def __init__(self, ledger: Ledger, *steps: Step) -> None:
        self._ledger = ledger
        self._left = list(steps)
        self.heard: asyncio.Queue[Stepped | Exception] = asyncio.Queue()
        ledger.gather(self)

    def take(self) -> Step | None:
        return self._left.pop(0) if self._left else None

    def settle(self, outcome: Stepped | Exception) -> None:
        self.heard.put_nowait(outcome)
        if self._left:
            self._ledger.gather(self)


@pytest.fixture
def switch(database: Database) -> Switch:
    return Switch(database)


@pytest.fixture
async def ledger(switch: Switch) -> AsyncIterator[Ledger]:
    found = Ledger(switch)
    found.start()
    try:
        yield found
    finally:
        await found.close()


async def test_a_batch_takes_one_accept_of_a_session_and_the_next_sees_its_result(ledger: Ledger) -> None:
    answers = await asyncio.gather(*(ledger.accept(starting(f"r{n}")) for n in range(4)))
    assert verdicts(answers) == [Verdict.STARTED, Verdict.BUSY, Verdict.BUSY, Verdict.BUSY]
    assert {answer.run_id for answer in answers} == {"r0"}


async def test_accepts_of_a_session_keep_their_order(database: Database, ledger: Ledger) -> None:
    await asyncio.gather(*(ledger.accept(waiting(f"r{n}")) for n in range(6)))
    assert await rows(database, sa.select(runs.c.id).order_by(runs.c.seq)) == [(f"r{n}",) for n in range(6)]


async def test_fifty_first_runs_with_one_new_session_id_start_one(database: Database, ledger: Ledger) -> None:
    answers = await asyncio.gather(*(ledger.accept(starting(f"r{n}")) for n in range(50)))
    assert sorted(verdicts(answers)) == [Verdict.BUSY] * 49 + [Verdict.STARTED]
    assert await statuses(database) == {"r0": "RUNNING"}


# A value that no database takes, and one that only a count can hold: on SQLite neither is an error of SQL.
POISONED_USER = "\ud800"
POISONED_USAGE = USAGE | {"input_tokens": 2**70}


async def test_each_of_a_mixed_batch_gets_its_own_answer_and_the_good_ones_commit(database: Database, ledger: Ledger) -> None:
    await commit(database, starting("r1", "s1"), starting("r2", "s2"), starting("r3", "s3", idempotency_key="k"))
    stale, huge, good = (
        Steps(ledger, step_of("r2", "s2", epoch=9)),
        Steps(ledger, ending("r3", "s3", usage=POISONED_USAGE)),
        Steps(ledger, step_of("r1", "s1")),
    )
    busy, used, poisoned, fine = await asyncio.gather(
        ledger.accept(starting("b", "s1")),
        ledger.accept(starting("u", "s4", idempotency_key="k")),
        ledger.accept(starting("p", "s5", user_id=POISONED_USER)),
        ledger.accept(starting("f", "s6")),
        return_exceptions=True,
    )
    assert busy == Accepted(Verdict.BUSY, "r1", "s1")
    assert used == Accepted(Verdict.EXISTS, "r3", "s3")
    assert isinstance(poisoned, Exception) and not isinstance(poisoned, StoreUnavailableError)
    assert fine == Accepted(Verdict.STARTED, "f", "s6")
    assert await stale.heard.get() == Stepped(False)
    assert isinstance(await huge.heard.get(), Exception)
    assert await good.heard.get() == Stepped(True)
    assert await statuses(database) == {"r1": "RUNNING", "r2": "RUNNING", "r3": "RUNNING", "f": "RUNNING"}


async def test_the_ledger_goes_on_after_a_poisoned_value(ledger: Ledger) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  # which error it is differs by database
        await ledger.accept(starting("p", user_id=POISONED_USER))
    answer = await ledger.accept(starting("r"))
    assert (answer.verdict, ledger.failure) == (Verdict.STARTED, None)


async def test_a_nul_in_a_user_id_fails_alone_on_postgresql(ledger: Ledger, database: Database) -> None:
    accepts = [ledger.accept(starting(f"r{n}", f"s{n}", user_id=user)) for n, user in enumerate(["u", "v", "\x00", "w", "x"])]
    answers = await asyncio.gather(*accepts, return_exceptions=True)
    refused = [n for n, answer in enumerate(answers) if isinstance(answer, Exception)]
    assert refused == {"postgresql": [2], "sqlite": []}[database.url.get_backend_name()]


async def test_during_an_outage_accepts_fail_and_steps_are_kept_until_the_store_is_back(
    database: Database, switch: Switch, ledger: Ledger
) -> None:
    await ledger.accept(starting("r"))
    switch.is_cut = True
    steps = Steps(ledger, step_of("r", first=1), ending("r", first=2))
    with pytest.raises(StoreUnavailableError):
        await ledger.accept(starting("r2", "s2"))
    assert (ledger.is_down, steps.heard.empty(), await statuses(database)) == (True, True, {"r": "RUNNING"})
    switch.is_cut = False
    assert [await steps.heard.get(), await steps.heard.get()] == [Stepped(True), Stepped(True)]
    assert (ledger.is_down, await statuses(database)) == (False, {"r": "COMPLETED"})


async def test_an_outage_that_outlasts_several_tries_loses_no_step_and_keeps_their_order(
    database: Database, switch: Switch, ledger: Ledger
) -> None:
    await ledger.accept(starting("r"))
    switch.is_cut = True
    steps = Steps(ledger, step_of("r", first=1), step_of("r", first=2), ending("r", first=3))
    while switch.refusals < 6:
        await asyncio.sleep(0.01)
    switch.is_cut = False
    assert [await steps.heard.get() for _ in range(3)] == [Stepped(True)] * 3
    assert [segment.first_index for segment in await database.read(event_store.read_all, "r")] == [0, 1, 2, 3]


async def test_a_commit_whose_answer_was_lost_is_repeated_without_a_trace(database: Database, switch: Switch, ledger: Ledger) -> None:
    await ledger.accept(starting("r"))
    switch.loses_answers = 1
    steps = Steps(ledger, ending("r"))
    assert await steps.heard.get() == Stepped(True)
    assert await rows(database, sa.select(sessions.c.runs)) == [(1,)]


async def test_closing_commits_what_is_pending(database: Database, switch: Switch) -> None:
    await commit(database, starting("r1", "s1"))
    closing = Ledger(switch)
    answer, steps = closing.accept(starting("r2", "s2")), Steps(closing, step_of("r1", "s1", first=1), ending("r1", "s1", first=2))
    closing.start()
    await closing.close()
    assert (await answer).verdict is Verdict.STARTED
    assert steps.heard.qsize() == 2
    assert await statuses(database) == {"r1": "COMPLETED", "r2": "RUNNING"}


async def test_closing_during_an_outage_ends(switch: Switch, database: Database) -> None:
    await commit(database, starting("r"))
    switch.is_cut = True
    closing = Ledger(switch)
    Steps(closing, ending("r"))
    closing.start()
    async with asyncio.timeout(2):
        await closing.close()
    assert await statuses(database) == {"r": "RUNNING"}


async def test_a_waiter_that_went_away_does_not_disturb_the_others(ledger: Ledger) -> None:
    gone, stays = ledger.accept(starting("r1", "s1")), ledger.accept(starting("r2", "s2"))
    gone.cancel()
    assert (await stays).verdict is Verdict.STARTED


async def test_a_deleted_key_mark_does_not_touch_other_agents(database: Database) -> None:
    await execute(database, sa.insert(deleted_keys).values(idempotency_scope="", agent_id="a", idempotency_key="k", created_at=1.0))
    answers = await commit(
        database, starting("r1", "s1", agent_id="a", idempotency_key="k"), starting("r2", "s2", agent_id="b", idempotency_key="k")
    )
    assert verdicts(answers) == [Verdict.DELETED, Verdict.STARTED]


async def test_accept_of_a_run_without_events_of_its_own_starts_at_index_zero(database: Database) -> None:
    [answer] = await commit(database, accept_of("r", worker_id="w"))
    assert (answer.verdict, (await find(database, "r")).next_index) == (Verdict.STARTED, 0)

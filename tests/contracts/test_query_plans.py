"""No hot statement walks a table: the plans of what the store really sends, on both databases, with enough rows to matter."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from support.store_ops import LATER, ending, interrupting, lines, messages, starting, step_of, waiting
from waystation.db.engine import Database
from waystation.db.postgres import HOT_SETTINGS
from waystation.db.tables import attachments, run_events, run_messages, runs, sessions, webhook_deliveries, workers
from waystation.domain.lifecycle import RunStatus
from waystation.domain.page import PageRequest
from waystation.store import accept, approvals, details, events, line, queue, retention, webhooks
from waystation.store import runs as run_store
from waystation.store import sessions as session_store
from waystation.store.batch import write

SESSIONS, TURNS = 200, 30
TABLES = {"sessions", "runs", "run_events", "run_messages", "attachments", "approvals", "webhook_deliveries"}
# A walk of one of these costs what is unfinished, not what was ever stored.
OF_UNFINISHED = ("ix_runs_due", "ix_runs_running", "uq_runs_holder", "ix_runs_unfinished", "ix_runs_set_aside", "ix_webhook_deliveries_due")

Function = Callable[[sa.Connection], Any]


# ---- what is asked -----------------------------------------------------------------------------------------------------------

BATCH = [
    starting("n1", "new"),
    starting("n2", "s1", idempotency_key="kn", history_runs=10),
    starting("n3", "s2", idempotency_key="k3"),
    starting("n4", "s100"),
    waiting("n5", "s101"),
    step_of("r-s100-run", "s100", epoch=1, first=1),
    ending("r-s101-run", "s101"),
    step_of("r-s103-run", "s103", messages=messages(1, "x")),
    step_of("r-s102-run", "s102", epoch=7, first=1),
]

GOING_FIRST = [
    interrupting("n8", "s107", drops=True),
    interrupting("n9", "s152", worker_id="w1"),
    starting("n10", "s4", may_wait=True, goes_first=True, idempotency_key="k3"),
]

ORDINARY = [
    starting("n6", "new2"),
    starting("n7", "s3", history_runs=10),
    step_of("r-s104-run", "s104", messages=messages(1, "x")),
    ending("r-s105-run", "s105"),
    step_of("r-s106-run", "s106", epoch=7, first=1),
]


REACH = webhooks.Reach(agents=["a", "b"], signs_runs=True, busy=["t1"])


def end_idle(conn: sa.Connection) -> None:
    run = run_store.find(conn, "r-s151-wait")
    assert run is not None
    run_store.end_idle(conn, run, RunStatus.CANCELLED, lines(run.next_index, "RunCancelled"), {"output": "{}"}, "", LATER)


def read_turn(conn: sa.Connection) -> None:
    run = run_store.find(conn, "r-s100-run")
    assert run is not None
    details.read_turn(conn, run, 10)


HOT: dict[str, Function] = {
    "a batch of the ledger": lambda conn: write(conn, list(BATCH)),
    "an ordinary batch of the ledger": lambda conn: write(conn, list(ORDINARY)),
    # On SQLite one item alone has a form of its own.
    "a lone acceptance in a new session": lambda conn: write(conn, [starting("n11", "new3")]),
    "a lone acceptance": lambda conn: write(conn, [starting("n12", "s6", history_runs=10, idempotency_key="k12")]),
    "a lone acceptance that waits": lambda conn: write(conn, [waiting("n13", "s101")]),
    "a lone acceptance that goes first": lambda conn: write(conn, [interrupting("n14", "s108")]),
    "a lone step": lambda conn: write(conn, [step_of("r-s104-run", "s104", messages=messages(1, "x"))]),
    "a lone last step": lambda conn: write(conn, [ending("r-s105-run", "s105")]),
    "a lone step that is refused": lambda conn: write(conn, [step_of("r-s106-run", "s106", epoch=7, first=1)]),
    "acceptances that go first": lambda conn: write(conn, list(GOING_FIRST)),
    "a claim": lambda conn: run_store.claim(conn, "w1", ["a", "b"], 8, LATER),
    "a claim that passes users over": lambda conn: run_store.claim(conn, "w1", ["a", "b"], 8, LATER, ["u1", "u2"]),
    "the keys that were used": lambda conn: accept.FIND_KEYS.each(
        conn, [{"id": "n", "idempotency_scope": "", "agent_id": "a", "idempotency_key": "k3"}]
    ),
    "history": lambda conn: accept.read_history(conn, {"s1": 10, "s2": 5}, "r-s1-0"),
}
OTHERS: dict[str, Function] = {
    "a page of a log": lambda conn: events.read(conn, "r-s1-3", 0),
    "messages": lambda conn: events.messages_of(conn, ["r-s1-3", "r-s2-4"]),
    "files": lambda conn: events.attachments_of(conn, "r-s1-3"),
    "a run": lambda conn: run_store.find(conn, "r-s1-3"),
    "the state of a run": lambda conn: run_store.find_state(conn, "r-s1-3"),
    "a turn": read_turn,
    "handing back a run": lambda conn: run_store.hand_back(conn, "r-s100-run", 1, LATER),
    "handing back the runs of a lost worker": lambda conn: run_store.hand_back_runs_of(conn, "w1", LATER),
    "handing back ownerless runs": lambda conn: run_store.hand_back_ownerless(conn, LATER),
    "the runs of a worker": lambda conn: run_store.running_of(conn, "w1"),
    "the renewal of a lease": lambda conn: run_store.renew_and_ask(conn, "w1", LATER),
    "a cancel request": lambda conn: run_store.request_cancel(conn, "r-s100-run", LATER),
    "unanswered cancel requests": lambda conn: run_store.unanswered_cancels(conn, LATER),
    "the end of an idle run": end_idle,
    "what is due": lambda conn: run_store.count_due(conn, ["a", "b"], 8, LATER),
    "when the next run is due": lambda conn: run_store.next_due_at(conn, 0.0),
    "the turn in flight": lambda conn: run_store.find_in_flight(conn, "s100"),
    "the places of waiting runs": lambda conn: line.queue_positions(conn, ["r-s121-wait", "r-s152-wait"]),
    "the queue": lambda conn: queue.read_state(conn, LATER),
    "a page of what has not completed": lambda conn: queue.list_jobs(
        conn,
        [status for status in queue.HAS_STATUS if status is not RunStatus.COMPLETED],
        PageRequest(page=2),
        user_id=None,
        descending=True,
    ),
    "removing logs": lambda conn: retention.remove_logs(conn, LATER, (3.0, 10), 50),
    "removing runs": lambda conn: retention.remove_runs(conn, LATER, (3.0, 10), 50),
    "a job": lambda conn: queue.find_job(conn, "r-s1-3"),
    "a session": lambda conn: session_store.find(conn, "s1"),
    "the unfinished runs of a session": lambda conn: session_store.unfinished_runs(conn, "s100"),
    "the approvals of a run": lambda conn: approvals.of_run(conn, "r-s1-3"),
    "deleting a session": lambda conn: session_store.delete(conn, "s5", LATER),
    "when the next delivery is due": lambda conn: webhooks.next_due_at(conn, REACH),
    "a claim of deliveries": lambda conn: webhooks.claim(conn, REACH, 8, 4, LATER),
    "the deliveries of a run": lambda conn: webhooks.list_of_run(conn, "r-s1-3", PageRequest()),
    "a replay": lambda conn: webhooks.replay(conn, "r-s1-3", "d-r-s1-3", LATER),
    "forgetting keys": lambda conn: session_store.forget_old_keys(conn, 2.0, 10),
}


# ---- how it is answered ------------------------------------------------------------------------------------------------------


def fill(conn: sa.Connection) -> None:
    """Many finished runs; a tenth of the sessions with a running and a waiting one."""
    names = [f"s{n}" for n in range(SESSIONS)]
    conn.execute(sa.insert(sessions), [{"id": name, "agent_id": "a", "created_at": 1.0, "updated_at": 1.0} for name in names])
    common = {
        "agent_id": "a", "kind": "turn", "available_at": 1.0, "timeout_s": 60.0, "on_disconnect": "continue", "idempotency_scope": "",
        "idempotency_key": None, "input": '{"message":"x"}', "created_at": 1.0, "epoch": 1, "next_index": 2, "worker_id": None,
        "holds_session": False, "status": "COMPLETED", "cancel_requested": False, "finished_at": None,
    }  # fmt: skip
    done = [common | {"finished_at": 4.0} | {"id": f"r-{name}-{n}", "session_id": name} for n in range(TURNS) for name in names]
    for n, row in enumerate(done[::10]):
        row["idempotency_key"] = f"k{n}"
    runs_now = common | {"status": "RUNNING", "holds_session": True, "next_index": 1}
    running = [runs_now | {"id": f"r-{name}-run", "session_id": name, "worker_id": f"w{n % 4}"} for n, name in enumerate(names[100:130])]
    waits_now = common | {"status": "PENDING", "epoch": 0, "next_index": 0}
    waits = [waits_now | {"id": f"r-{name}-wait", "session_id": name} for name in names[120:160]]
    conn.execute(sa.insert(runs), [*done, *running, *waits])
    parts = [{"run_id": r["id"], "session_id": r["session_id"], "first_index": 0, "last_index": 0, "payload": "{}"} for r in done + running]
    conn.execute(sa.insert(run_events), [part | {"payload": '{"event":"RunStarted"}'} for part in parts])
    conn.execute(sa.insert(run_messages), [part | {"payload": '{"id":"m","role":"user"}'} for part in parts])
    files = [{"id": f"f{n}", "run_id": part["run_id"], "session_id": part["session_id"], "content": b"x"} for n, part in enumerate(parts)]
    conn.execute(sa.insert(attachments), [f | {"name": "f", "mime_type": "text/plain", "kind": "file", "created_at": 1.0} for f in files])
    told = [
        {"id": f"d-{r['id']}", "run_id": r["id"], "session_id": r["session_id"], "agent_id": "a", "source": "agent", "endpoint": "e",
         "target": f"t{n % 9}", "event": "run.completed", "payload": "{}", "status": "delivered" if n % 50 else "pending",
         "next_attempt_at": None if n % 50 else 5.0, "created_at": 4.0}
        for n, r in enumerate(done)
    ]  # fmt: skip
    conn.execute(sa.insert(webhook_deliveries), told)
    conn.execute(
        sa.insert(workers),
        [
            {"id": f"w{n}", "host": "h", "boot_id": "b", "pid": n, "process_started": "1", "started_at": 1.0, "renewed_at": 1.0}
            for n in range(4)
        ],
    )


def plans(conn: sa.Connection, f: Function) -> list[tuple[str, list[str]]]:
    """The statements that a storage function sends, each with what its plan does; nothing of it stays."""
    sent: list[tuple[str, Any]] = []

    def look(_conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        sent.append((statement, parameters[0] if many else parameters))

    sa.event.listen(conn, "before_cursor_execute", look)
    with conn.begin_nested():
        f(conn)
    sa.event.remove(conn, "before_cursor_execute", look)
    statements = [(s, p) for s, p in sent if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", s)]
    explain = _explained_by_sqlite if conn.dialect.name == "sqlite" else _explained_by_postgresql
    return [(statement, explain(conn, statement, parameters)) for statement, parameters in statements]


def _explained_by_sqlite(conn: sa.Connection, statement: str, parameters: Any) -> list[str]:
    return [row[3] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]


def _explained_by_postgresql(conn: sa.Connection, statement: str, parameters: Any) -> list[str]:
    found = conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar()
    nodes, left = [], [item["Plan"] for item in (json.loads(found) if isinstance(found, str) else found)]
    while left:
        node = left.pop()
        left += node.get("Plans", [])
        if node["Node Type"] == "Sort":
            nodes.append("SORT")
        table = node.get("Relation Name", "")
        walks = node["Node Type"] == "Seq Scan" or ("Index" in node["Node Type"] and "Index Cond" not in node)
        place = f"{table} USING INDEX {node.get('Index Name', '')}" if "Index Name" in node else table
        nodes.append(f"{'SCAN' if walks and node['Node Type'] != 'ModifyTable' else 'SEARCH'} {place}")
    return nodes


def walks(steps: list[str]) -> list[str]:
    """The steps that read a whole table, or a whole index that grows with what was ever stored."""
    names = TABLES | {"other"}
    found = [step for step in steps if (match := re.match(r"SCAN (?:TABLE )?(\w+)", step)) and match[1] in names]
    return [step for step in found if not any(f"INDEX {index}" in step for index in OF_UNFINISHED)]


async def plans_of(database: Database, functions: dict[str, Function], settings: dict[str, str]) -> dict[str, list[str]]:
    """What walks a table, by what was asked. The rows are made and dropped with the transaction."""

    def look(conn: sa.Connection) -> dict[str, list[str]]:
        fill(conn)
        conn.exec_driver_sql("ANALYZE")
        found = {}
        for name, f in functions.items():
            savepoint = conn.begin_nested()
            looked = plans(conn, f)
            savepoint.rollback()
            assert looked, f"{name} sends no statement"
            found[name] = [f"{step}: {statement}" for statement, steps in looked for step in walks(steps)]
        return {name: found[name] for name in found if found[name]}

    if database.url.get_backend_name() == "sqlite":
        return await _undone(database, look)
    engine = create_async_engine(database.url, connect_args={"server_settings": settings})
    try:
        async with engine.connect() as conn:
            return await conn.run_sync(look)
    finally:
        await engine.dispose()


class _Undo(Exception):
    pass


async def _undone(database: Database, f: Callable[[sa.Connection], Any]) -> Any:
    answers: list[Any] = []

    def run(conn: sa.Connection) -> None:
        answers.append(f(conn))
        raise _Undo

    with pytest.raises(_Undo):
        await database.write(run)
    return answers[0]


async def test_what_the_ledger_and_the_claim_send_walks_no_table(database: Database) -> None:
    assert await plans_of(database, HOT, HOT_SETTINGS) == {}


async def test_what_else_is_asked_all_the_time_walks_no_table(database: Database) -> None:
    # So few rows that PostgreSQL may rightly read a small table whole; whether it could do without is what is asked.
    assert await plans_of(database, OTHERS, {"enable_seqscan": "off"}) == {}


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_claim_goes_by_what_waits_in_its_order_and_by_what_holds_whatever_the_planner_knows(
    database: Database, *, analyzed: bool
) -> None:
    def look(conn: sa.Connection) -> list[str]:
        fill(conn)
        if analyzed:
            conn.exec_driver_sql("ANALYZE")
        claims: list[Function] = [HOT["a claim"], HOT["a claim that passes users over"]]
        return [step for f in claims for statement, steps in plans(conn, f) if "UPDATE" in statement for step in steps]

    if database.url.get_backend_name() == "sqlite":
        steps = await _undone(database, look)
        sorts = "TEMP B-TREE"
    else:
        engine = create_async_engine(database.url, connect_args={"server_settings": HOT_SETTINGS})
        async with engine.connect() as conn:
            steps = await conn.run_sync(look)
        await engine.dispose()
        sorts = "SORT"
    walked = {step.split(" INDEX ")[-1] for step in steps if step.startswith("SCAN") and ("runs" in step or "other" in step)}
    assert walked <= {"ix_runs_due", "uq_runs_holder"}, steps
    assert [step for step in steps if sorts in step] == []


async def test_asking_for_a_busy_session_does_not_walk_the_runs_of_the_session(database: Database) -> None:
    def look(conn: sa.Connection) -> list[str]:
        fill(conn)
        conn.exec_driver_sql("ANALYZE")
        [steps] = [steps for statement, steps in plans(conn, HOT["a batch of the ledger"]) if "INSERT INTO runs" in statement][:1]
        return [step for step in steps if "ix_runs_session" in step]

    if database.url.get_backend_name() == "sqlite":
        assert await _undone(database, look) == []
        return
    engine = create_async_engine(database.url, connect_args={"server_settings": HOT_SETTINGS})
    async with engine.connect() as conn:
        assert await conn.run_sync(look) == []
    await engine.dispose()

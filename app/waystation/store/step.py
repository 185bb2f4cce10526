"""Steps of executions: events, messages and ends of a whole batch, each behind its fence.

1. The fence reserves the step's indices in the run's row, under its epoch. It locks the row, so it queues behind a claim.
2. What the fence does not return writes nothing in any table: another epoch owns the run. Id AND epoch are compared, since a
   step of a stale owner and one of its successor may be in one batch.
3. A step found exactly at `first + count` under its own epoch was stored by an earlier try whose answer was lost.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from waystation.db.dialect import ignore_conflicts, json_rows
from waystation.db.prepared import Prepared
from waystation.db.tables import PENDING, RUNNING, Bool, Float, Int, Text, approvals, run_events, runs, sessions
from waystation.domain.metrics import COUNTS
from waystation.domain.requirement import Requirement
from waystation.store.accept import STORE_MESSAGES, message_row
from waystation.store.line import UNFINISHED, other
from waystation.store.operations import EventLines, Finish, StateChanges, Step, Stepped
from waystation.store.rows import dumps, loads
from waystation.store.webhooks import STORE as STORE_DELIVERIES
from waystation.store.webhooks import delivery_row

_FINISH: dict[str, Any] = {
    "output": Text, "error": Text, "metrics": Text, "metadata": Text, "model": Text, "model_provider": Text, "attempt": Int,
    "available_at": Float,
}  # fmt: skip
v = json_rows(id=Text, epoch=Int, first=Int, count=Int, status=Text, holds_session=Bool, at=Float, **_FINISH)
_waiting_turn = (
    sa.select(other.c.seq)
    .where(other.c.session_id == runs.c.session_id, UNFINISHED, other.c.status == PENDING)
    .limit(1)
    .correlate(runs)
    .scalar_subquery()
)
FENCE = Prepared(
    sa.update(runs)
    .where(runs.c.id == v.id, runs.c.epoch == v.epoch, runs.c.next_index == v.first, runs.c.status == RUNNING)
    .values(
        next_index=runs.c.next_index + v["count"],
        status=sa.func.coalesce(v.status, runs.c.status),
        holds_session=sa.and_(runs.c.holds_session, sa.func.coalesce(v.holds_session, sa.true())),
        worker_id=sa.case((v.status.is_(None), runs.c.worker_id)),
        finished_at=sa.func.coalesce(v["at"], runs.c.finished_at),
        dropped_from_history=sa.and_(runs.c.drop_requested, v["at"].is_not(None)),
        **{name: sa.func.coalesce(v[name], runs.c[name]) for name in _FINISH},
    )
    .returning(runs.c.id, runs.c.epoch, runs.c.cancel_requested, _waiting_turn.is_not(None).label("waiting"))
)
STORED = Prepared(
    sa.select(runs.c.id, runs.c.epoch, runs.c.cancel_requested, _waiting_turn.is_not(None).label("waiting"))
    .join_from(v.id.table, runs, runs.c.id == v.id)
    .where(runs.c.epoch == v.epoch, runs.c.next_index == v.first + v["count"])
)

STORE_EVENTS = Prepared(sa.insert(run_events))
_asked = ignore_conflicts(approvals)
# A call that asks again (its effect was lost in a crash) needs a new decision.
STORE_APPROVALS = _asked.on_conflict_do_update(
    index_elements=[approvals.c.run_id, approvals.c.tool_call_id],
    set_={
        "status": "pending", "requirement": _asked.excluded.requirement, "resolved_by": None, "resolved_at": None,
        "resolution_data": None, "updated_at": _asked.excluded.updated_at,
    },
)  # fmt: skip
_ADDED: dict[str, Any] = {f"add_{name}": Int for name in COUNTS}
SESSION_END: dict[str, Any] = {
    "session": Text, "run_count": Int, "cost": Float, "first_message": Text, "external": Text, "last_run": Text, "at": Float, **_ADDED,
}  # fmt: skip


def ending_in_session(end: Mapping[str, Any]) -> Any:
    """What the end of a leg adds to its session. `end` has an expression for each name of SESSION_END."""
    return (
        sa.update(sessions)
        .where(sessions.c.id == end["session"])
        .values(
            runs=sessions.c.runs + end["run_count"],
            cost=sa.case((end["cost"].is_(None), sessions.c.cost), else_=sa.func.coalesce(sessions.c.cost, 0.0) + end["cost"]),
            first_message=sa.func.coalesce(sessions.c.first_message, end["first_message"]),
            external_session_id=sa.func.coalesce(end["external"], sessions.c.external_session_id),
            last_run_id=end["last_run"],
            updated_at=end["at"],
            **{name: sessions.c[name] + end[f"add_{name}"] for name in COUNTS},
        )
    )


END_IN_SESSION = Prepared(ending_in_session({name: sa.bindparam(name, type_=type_) for name, type_ in SESSION_END.items()}))

READ_STATE = sa.select(sessions.c.state).where(sessions.c.id == sa.bindparam("session"))
WRITE_STATE = sa.update(sessions).where(sessions.c.id == sa.bindparam("session")).values(state=sa.bindparam("state", type_=Text))


def step(conn: sa.Connection, steps: list[Step]) -> dict[tuple[str, int], Stepped]:
    """Store what of the steps passes the fence: answers by run id and epoch."""
    steps = sorted(steps, key=lambda s: s.run_id)
    passed, answers = _fence(conn, steps)
    if segments := [segment_of(s.run_id, s.session_id, s.first_index, s.events) for s in passed if s.events.count]:
        STORE_EVENTS.many(conn, segments)
    if messages := [message_row(s.run_id, s.session_id, s.messages) for s in passed if s.messages]:
        STORE_MESSAGES.many(conn, messages)
    if ended := sorted((s for s in passed if s.finish and s.finish.usage is not None), key=lambda s: s.session_id):
        END_IN_SESSION.many(conn, [session_end(s, s.finish) for s in ended if s.finish])
    for session_id, changes in [(s.session_id, s.finish.session_state) for s in ended if s.finish and s.finish.session_state]:
        change_state(conn, session_id, changes)
    if asked := [_approval(s, s.finish, r) for s in passed if s.finish for r in s.finish.approvals]:
        conn.execute(STORE_APPROVALS, asked)
    if told := [delivery_row(s.run_id, s.session_id, s.agent_id, d, s.finish.at) for s in passed if s.finish for d in s.finish.deliveries]:
        conn.execute(STORE_DELIVERIES, told)
    return answers


def change_state(conn: sa.Connection, session_id: str, changes: StateChanges) -> None:
    """Change the named keys of a session's state. The caller's transaction holds the row already."""
    state = loads(conn.execute(READ_STATE, {"session": session_id}).scalar()) or {}
    state = {key: value for key, value in state.items() if key not in changes.removed} | changes.changed
    conn.execute(WRITE_STATE, {"session": session_id, "state": dumps(state)})


def _fence(conn: sa.Connection, steps: list[Step]) -> tuple[list[Step], dict[tuple[str, int], Stepped]]:
    """The steps that may write, and an answer for each."""
    items = [fence_item(s) for s in steps]
    rows = {(row.id, row.epoch): row for row in FENCE.each(conn, items)}
    passed = [s for s in steps if (s.run_id, s.epoch) in rows]
    lost = [item for item in items if (item["id"], item["epoch"]) not in rows]
    rows |= {(row.id, row.epoch): row for row in STORED.each(conn, lost)}
    answers = {(s.run_id, s.epoch): Stepped(False) for s in steps}
    answers |= {key: stepped_of(row) for key, row in rows.items()}
    return passed, answers


def stepped_of(row: Any) -> Stepped:
    return Stepped(True, bool(row.cancel_requested), bool(row.waiting))


def fence_item(step: Step) -> dict[str, Any]:
    item: dict[str, Any] = {"id": step.run_id, "epoch": step.epoch, "first": step.first_index, "count": step.events.count}
    if finish := step.finish:
        item |= {"status": finish.status, "holds_session": finish.holds_session}
        item |= {name: getattr(finish, name) for name in _FINISH}
        if finish.status in ("COMPLETED", "ERROR", "CANCELLED"):
            item["at"] = finish.at
    return item


def segment_of(run_id: str, session_id: str, first_index: int, events: EventLines) -> dict[str, Any]:
    last_index = first_index + events.count - 1
    return {
        "run_id": run_id, "session_id": session_id, "first_index": first_index, "last_index": last_index,
        "payload": events.lines.decode(),
    }  # fmt: skip


def session_end(step: Step, finish: Finish) -> dict[str, Any]:
    usage = finish.usage or {}
    return {
        "session": step.session_id,
        "run_count": int(finish.status in ("COMPLETED", "ERROR", "CANCELLED")),
        "cost": usage.get("cost"),
        "first_message": finish.first_message,
        "external": finish.external_session_id,
        "last_run": step.run_id,
        "at": finish.at,
        **{f"add_{name}": int(usage.get(name, 0)) for name in COUNTS},
    }


def _approval(step: Step, finish: Finish, requirement: Requirement) -> dict[str, Any]:
    tool = requirement.tool_execution
    return {
        "id": requirement.id,
        "run_id": step.run_id,
        "session_id": step.session_id,
        "agent_id": step.agent_id,
        "agent_name": finish.agent_name,
        "user_id": step.user_id,
        "status": "pending",
        "approval_type": tool.approval_type,
        "pause_type": requirement.kind.value,
        "tool_call_id": tool.tool_call_id,
        "tool_name": tool.tool_name,
        "tool_args": dumps(tool.tool_args),
        "requirement": requirement.model_dump_json(),
        "created_at": requirement.created_at,
        "updated_at": requirement.created_at,
    }

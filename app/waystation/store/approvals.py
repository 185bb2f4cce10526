"""Approvals: tool calls that an admin must decide."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waystation.db.tables import approvals, runs
from waystation.domain.page import Page, PageRequest
from waystation.store.rows import dumps, loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A decision asked of an admin. `status`: pending, approved, rejected, cancelled. `requirement` is in its stored form."""

    id: str
    run_id: str
    session_id: str
    agent_id: str
    agent_name: str | None
    user_id: str | None
    status: str
    approval_type: str
    pause_type: str
    tool_call_id: str
    tool_name: str
    tool_args: dict[str, Any]
    requirement: dict[str, Any]
    resolved_by: str | None
    resolution_data: dict[str, Any] | None
    resolved_at: float | None
    created_at: float
    updated_at: float
    run_status: str | None


_SELECT: sa.Select[Any] = sa.select(*approvals.c, runs.c.status.label("run_status")).join_from(
    approvals, runs, runs.c.id == approvals.c.run_id, isouter=True
)


def _from_row(row: sa.Row[Any]) -> Approval:
    values = dict(row._mapping)
    values |= {name: loads(values[name]) for name in ("tool_args", "requirement", "resolution_data")}
    return Approval(**values)


def find(conn: sa.Connection, approval_id: str) -> Approval | None:
    row = conn.execute(_SELECT.where(approvals.c.id == approval_id)).first()
    return _from_row(row) if row else None


def of_run(conn: sa.Connection, run_id: str) -> list[Approval]:
    return [_from_row(row) for row in conn.execute(_SELECT.where(approvals.c.run_id == run_id))]


def list_approvals(conn: sa.Connection, filters: dict[str, str | None], request: PageRequest) -> Page[Approval]:
    """One page, newest first. `filters` maps column names to the value wanted; None does not filter."""
    conditions = [approvals.c[name] == value for name, value in filters.items() if value is not None]
    rows = conn.execute(
        _SELECT.where(*conditions)
        .order_by(approvals.c.created_at.desc(), approvals.c.id.desc())
        .limit(request.limit)
        .offset(request.offset)
    ).all()
    return Page(items=[_from_row(row) for row in rows], total=count(conn, filters), request=request)


def count(conn: sa.Connection, filters: dict[str, str | None]) -> int:
    conditions = [approvals.c[name] == value for name, value in filters.items() if value is not None]
    return conn.execute(sa.select(sa.func.count()).select_from(approvals).where(*conditions)).scalar_one()


def resolve(conn: sa.Connection, approval_id: str, *, status: str, resolved_by: str | None, data: dict[str, Any] | None, at: float) -> bool:
    """Decide a pending approval. False: it is not pending (any more)."""
    statement = (
        sa.update(approvals)
        .where(approvals.c.id == approval_id, approvals.c.status == "pending")
        .values(
            status=status, resolved_by=resolved_by, resolution_data=dumps(data) if data is not None else None,
            resolved_at=at, updated_at=at,
        )
    )  # fmt: skip
    return conn.execute(statement).rowcount == 1


def delete(conn: sa.Connection, approval_id: str) -> bool:
    return conn.execute(sa.delete(approvals).where(approvals.c.id == approval_id)).rowcount == 1

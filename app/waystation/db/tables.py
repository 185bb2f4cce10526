"""The tables, and why each index is there. Migrations are made from this metadata.

JSON is stored as TEXT: nothing is asked of it in SQL, and NUL inside it does no harm. Times are seconds since the epoch.
Every table carries `session_id` where it can, so that it may be distributed by it. An index predicate is met by a statement
only if the statement has it word for word, as literals (see `HOLDS`, `UNFINISHED` and the status literals below).
"""

import sqlalchemy as sa

Text, Int, Bool = sa.Text(), sa.BigInteger(), sa.Boolean()
Float: sa.types.TypeEngine[float] = sa.Double()

PENDING: sa.ColumnElement[str] = sa.literal_column("'PENDING'")
RUNNING: sa.ColumnElement[str] = sa.literal_column("'RUNNING'")
PAUSED: sa.ColumnElement[str] = sa.literal_column("'PAUSED'")
COMPLETED: sa.ColumnElement[str] = sa.literal_column("'COMPLETED'")
CANCELLED: sa.ColumnElement[str] = sa.literal_column("'CANCELLED'")
ERROR: sa.ColumnElement[str] = sa.literal_column("'ERROR'")

metadata = sa.MetaData()


def _text(name: str, *, null: bool = True) -> sa.Column[str]:
    return sa.Column(name, Text, nullable=null)


def _int(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, Int, nullable=False, server_default=str(default))


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, Bool, nullable=False, server_default=sa.false())


def _at(name: str, *, null: bool = True) -> sa.Column[float]:
    return sa.Column(name, Float, nullable=null)


sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", Text, primary_key=True),
    _text("agent_id"),
    _text("user_id"),
    _text("name"),
    _text("first_message"),
    _text("state"),
    _text("metadata"),
    _text("summary"),
    _text("external_session_id"),
    _int("sdk_generation"),
    _text("last_run_id"),
    _text("forked_from_session_id"),
    _int("runs"),
    _int("input_tokens"),
    _int("output_tokens"),
    _int("total_tokens"),
    _int("reasoning_tokens"),
    _int("cache_read_tokens"),
    _int("cache_write_tokens"),
    sa.Column("cost", Float),
    _at("created_at", null=False),
    _at("updated_at", null=False),
)
sa.Index("ix_sessions_created", sessions.c.created_at, sessions.c.id)  # the list, newest first
_OWNED = sa.text("user_id IS NOT NULL")
sa.Index(
    "ix_sessions_user", sessions.c.user_id, sessions.c.created_at, sqlite_where=_OWNED, postgresql_where=_OWNED
)  # the list of one user

runs = sa.Table(
    "runs",
    metadata,
    # The order of acceptance. AUTOINCREMENT: a deleted run's number is not given again.
    sa.Column("seq", Int.with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("id", Text, nullable=False, unique=True),
    _text("agent_id", null=False),
    _text("session_id", null=False),
    _text("user_id"),
    _text("kind", null=False),
    _text("status", null=False),
    _int("epoch"),
    _int("next_index"),
    _text("worker_id"),
    _flag("holds_session"),
    _int("attempt", 1),
    _int("max_attempts", 1),
    _int("takeovers"),
    _at("available_at", null=False),
    _at("deadline_at"),
    sa.Column("timeout_s", Float, nullable=False),
    _flag("cancel_requested"),
    _at("cancel_requested_at"),
    _flag("background"),
    _text("on_disconnect", null=False),
    _text("idempotency_scope", null=False),
    _text("idempotency_key"),
    _text("request_hash"),
    _text("input", null=False),
    _text("output"),
    _text("error"),
    _text("metrics"),
    _text("metadata"),
    _text("webhooks"),  # whom its ends and pauses are told; null: nobody
    _text("model"),
    _text("model_provider"),
    _text("forked_from_run_id"),
    sa.Column("forked_from_message_index", Int),
    _text("replaced_by_run_id"),
    _flag("dropped_from_history"),
    _flag("drop_requested"),  # its end, in whatever way, drops it from the history
    _flag("goes_first"),  # submitted with interrupt or rollback: before what waits in line, and cancelled by the next of its kind
    _at("created_at", null=False),
    _at("started_at"),
    _at("finished_at"),
    sqlite_autoincrement=True,
)


def _run_index(name: str, *columns: str, where: str | None = None, unique: bool = False) -> None:
    condition = sa.text(where) if where else None
    sa.Index(name, *(runs.c[c] for c in columns), unique=unique, sqlite_where=condition, postgresql_where=condition)


_run_index("ix_runs_session", "session_id", "seq")  # the runs of a session in order: history, lists
_run_index("ix_runs_user", "user_id", "seq", where="user_id IS NOT NULL")  # the runs of a user
_run_index("ix_runs_agent", "agent_id", "seq")  # the runs of an agent
_run_index("ix_runs_due", "seq", where="status = 'PENDING'")  # the claim
_run_index("ix_runs_waiting_user", "user_id", where="status = 'PENDING'")  # the bound on waiting runs of a user
# What has stopped without completing, for the queue's views. They name this condition word for word.
_run_index("ix_runs_set_aside", "status", "seq", where="status IN ('PAUSED', 'CANCELLED', 'ERROR')")
_run_index("ix_runs_running", "worker_id", where="status = 'RUNNING'")  # recovery: the runs of a dead worker
# One turn per session. holds_session is always true in it: it is there so that SQLite lists the holders from the index alone.
_run_index("uq_runs_holder", "session_id", "holds_session", where="holds_session", unique=True)
_run_index("uq_runs_key", "idempotency_scope", "agent_id", "idempotency_key", where="idempotency_key IS NOT NULL", unique=True)
# Covers all that is asked of unfinished runs; else SQLite may take ix_runs_session and walk the whole session.
_run_index("ix_runs_unfinished", "session_id", "seq", "holds_session", "status", "goes_first", where="holds_session OR status = 'PENDING'")
_run_index("ix_runs_key_age", "created_at", where="idempotency_key IS NOT NULL")  # forgetting keys by age
_run_index("ix_runs_finished", "finished_at", "seq", where="finished_at IS NOT NULL")  # retention: what ended before a time
_run_index("ix_runs_source", "forked_from_run_id", where="forked_from_run_id IS NOT NULL")  # retention: what goes on from a run

run_events = sa.Table(
    "run_events",
    metadata,
    sa.Column("run_id", Text, primary_key=True),
    sa.Column("first_index", Int, primary_key=True),
    sa.Column("last_index", Int, nullable=False),
    _text("session_id", null=False),
    _text("payload", null=False),
    sqlite_with_rowid=False,
)

run_messages = sa.Table(
    "run_messages",
    metadata,
    sa.Column("run_id", Text, primary_key=True),
    sa.Column("first_index", Int, primary_key=True),
    sa.Column("last_index", Int, nullable=False),
    _text("session_id", null=False),
    _text("payload", null=False),
    sqlite_with_rowid=False,
)

attachments = sa.Table(
    "attachments",
    metadata,
    sa.Column("id", Text, primary_key=True),
    _text("run_id", null=False),
    _text("session_id", null=False),
    _text("name", null=False),
    _text("mime_type", null=False),
    _text("kind", null=False),
    _text("metadata"),
    sa.Column("content", sa.LargeBinary, nullable=False),
    _at("created_at", null=False),
)
sa.Index("ix_attachments_run", attachments.c.run_id)  # the files of a run
sa.Index("ix_attachments_session", attachments.c.session_id)  # deleting a session

approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", Text, primary_key=True),
    _text("run_id", null=False),
    _text("session_id", null=False),
    _text("agent_id", null=False),
    _text("agent_name"),
    _text("user_id"),
    _text("status", null=False),
    _text("approval_type", null=False),
    _text("pause_type", null=False),
    _text("tool_call_id", null=False),
    _text("tool_name", null=False),
    _text("tool_args", null=False),
    _text("requirement", null=False),
    _text("resolved_by"),
    _text("resolution_data"),
    _at("resolved_at"),
    _at("created_at", null=False),
    _at("updated_at", null=False),
)
sa.Index("uq_approvals_call", approvals.c.run_id, approvals.c.tool_call_id, unique=True)  # a call asks once; by run
sa.Index("ix_approvals_status", approvals.c.status, approvals.c.created_at)  # the list of what is pending
sa.Index("ix_approvals_session", approvals.c.session_id)  # deleting a session

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", Text, primary_key=True),
    _text("run_id", null=False),
    _text("session_id", null=False),
    _text("agent_id", null=False),
    _text("source", null=False),
    _text("endpoint", null=False),
    _text("url"),  # of a run's own webhook; an agent's is in code
    _text("target", null=False),
    _text("event", null=False),
    _text("payload", null=False),
    _text("status", null=False),
    _int("epoch"),
    _int("attempts"),
    _int("tries"),
    _at("next_attempt_at"),
    _at("last_attempt_at"),
    sa.Column("last_status_code", Int),
    _text("last_error"),
    _at("delivered_at"),
    _at("created_at", null=False),
)
sa.Index("ix_webhook_deliveries_run", webhook_deliveries.c.run_id, webhook_deliveries.c.created_at)  # those of a run; deleting it
_due = sa.text("status = 'pending'")
sa.Index("ix_webhook_deliveries_due", webhook_deliveries.c.next_attempt_at, sqlite_where=_due, postgresql_where=_due)  # what is to send

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("id", Text, primary_key=True),
    _text("host", null=False),
    _text("boot_id", null=False),
    sa.Column("pid", Int, nullable=False),
    _text("process_started", null=False),
    _int("slots"),
    sa.Column("agents", Text, nullable=False, server_default="[]"),
    _int("renewals"),
    _at("started_at", null=False),
    _at("renewed_at", null=False),
    _at("dead_at"),
)

# What is left of an Idempotency-Key whose run was deleted: it must not start a second one.
deleted_keys = sa.Table(
    "deleted_keys",
    metadata,
    sa.Column("idempotency_scope", Text, primary_key=True),
    sa.Column("agent_id", Text, primary_key=True),
    sa.Column("idempotency_key", Text, primary_key=True),
    _at("created_at", null=False),
)
sa.Index("ix_deleted_keys_age", deleted_keys.c.created_at)  # forgetting keys by age

BY_SESSION = (run_events, run_messages, attachments, approvals, webhook_deliveries)
"""Tables whose rows go when their run or its session is deleted, besides `runs` and `sessions` themselves."""

"""First tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("agent_name", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("approval_type", sa.Text(), nullable=False),
        sa.Column("pause_type", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("tool_args", sa.Text(), nullable=False),
        sa.Column("requirement", sa.Text(), nullable=False),
        sa.Column("resolved_by", sa.Text(), nullable=True),
        sa.Column("resolution_data", sa.Text(), nullable=True),
        sa.Column("resolved_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("approvals", schema=None) as batch_op:
        batch_op.create_index("ix_approvals_session", ["session_id"], unique=False)
        batch_op.create_index("ix_approvals_status", ["status", "created_at"], unique=False)
        batch_op.create_index("uq_approvals_call", ["run_id", "tool_call_id"], unique=True)

    op.create_table(
        "attachments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("attachments", schema=None) as batch_op:
        batch_op.create_index("ix_attachments_run", ["run_id"], unique=False)
        batch_op.create_index("ix_attachments_session", ["session_id"], unique=False)

    op.create_table(
        "deleted_keys",
        sa.Column("idempotency_scope", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("idempotency_scope", "agent_id", "idempotency_key"),
    )
    op.create_table(
        "run_events",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("first_index", sa.BigInteger(), nullable=False),
        sa.Column("last_index", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "first_index"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_messages",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("first_index", sa.BigInteger(), nullable=False),
        sa.Column("last_index", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "first_index"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "runs",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("next_index", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("holds_session", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("max_attempts", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("takeovers", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("available_at", sa.Double(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("timeout_s", sa.Double(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("cancel_requested_at", sa.Double(), nullable=True),
        sa.Column("background", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("on_disconnect", sa.Text(), nullable=False),
        sa.Column("idempotency_scope", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.Text(), nullable=True),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("model_provider", sa.Text(), nullable=True),
        sa.Column("forked_from_run_id", sa.Text(), nullable=True),
        sa.Column("forked_from_message_index", sa.BigInteger(), nullable=True),
        sa.Column("replaced_by_run_id", sa.Text(), nullable=True),
        sa.Column("dropped_from_history", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index("ix_runs_agent", ["agent_id", "seq"], unique=False)
        batch_op.create_index(
            "ix_runs_due",
            ["seq"],
            unique=False,
            sqlite_where=sa.text("status = 'PENDING'"),
            postgresql_where=sa.text("status = 'PENDING'"),
        )
        batch_op.create_index(
            "ix_runs_key_age",
            ["created_at"],
            unique=False,
            sqlite_where=sa.text("idempotency_key IS NOT NULL"),
            postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_runs_running",
            ["worker_id"],
            unique=False,
            sqlite_where=sa.text("status = 'RUNNING'"),
            postgresql_where=sa.text("status = 'RUNNING'"),
        )
        batch_op.create_index("ix_runs_session", ["session_id", "seq"], unique=False)
        batch_op.create_index(
            "ix_runs_unfinished",
            ["session_id", "seq", "holds_session", "status"],
            unique=False,
            sqlite_where=sa.text("holds_session OR status = 'PENDING'"),
            postgresql_where=sa.text("holds_session OR status = 'PENDING'"),
        )
        batch_op.create_index("ix_runs_user", ["user_id", "seq"], unique=False)
        batch_op.create_index(
            "ix_runs_waiting_user",
            ["user_id"],
            unique=False,
            sqlite_where=sa.text("status = 'PENDING'"),
            postgresql_where=sa.text("status = 'PENDING'"),
        )
        batch_op.create_index(
            "uq_runs_holder",
            ["session_id"],
            unique=True,
            sqlite_where=sa.text("holds_session"),
            postgresql_where=sa.text("holds_session"),
        )
        batch_op.create_index(
            "uq_runs_key",
            ["idempotency_scope", "agent_id", "idempotency_key"],
            unique=True,
            sqlite_where=sa.text("idempotency_key IS NOT NULL"),
            postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        )

    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("first_message", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("external_session_id", sa.Text(), nullable=True),
        sa.Column("sdk_generation", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_run_id", sa.Text(), nullable=True),
        sa.Column("forked_from_session_id", sa.Text(), nullable=True),
        sa.Column("runs", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("total_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index("ix_sessions_created", ["created_at", "id"], unique=False)
        batch_op.create_index("ix_sessions_user", ["user_id", "created_at"], unique=False)

    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("process_started", sa.Text(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("dead_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )

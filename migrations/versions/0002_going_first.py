"""Runs that go first, and turns to be dropped from the history when they end"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UNFINISHED = sa.text("holds_session OR status = 'PENDING'")


def upgrade() -> None:
    for name in ("goes_first", "drop_requested"):
        op.add_column("runs", sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False))
    op.drop_index("ix_runs_unfinished", "runs")
    op.create_index(
        "ix_runs_unfinished",
        "runs",
        ["session_id", "seq", "holds_session", "status", "goes_first"],
        sqlite_where=UNFINISHED,
        postgresql_where=UNFINISHED,
    )

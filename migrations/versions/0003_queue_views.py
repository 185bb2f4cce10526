"""What the queue's views ask for"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SET_ASIDE = sa.text("status IN ('PAUSED', 'CANCELLED', 'ERROR')")


def upgrade() -> None:
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("slots", sa.BigInteger(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("agents", sa.Text(), server_default="[]", nullable=False))
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index("ix_runs_set_aside", ["status", "seq"], unique=False, sqlite_where=SET_ASIDE, postgresql_where=SET_ASIDE)

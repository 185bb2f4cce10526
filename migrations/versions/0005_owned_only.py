"""Indexes of users leave out what belongs to nobody"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

OWNED = sa.text("user_id IS NOT NULL")


def upgrade() -> None:
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.drop_index("ix_sessions_user")
        batch_op.create_index("ix_sessions_user", ["user_id", "created_at"], unique=False, sqlite_where=OWNED, postgresql_where=OWNED)
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_user")
        batch_op.create_index("ix_runs_user", ["user_id", "seq"], unique=False, sqlite_where=OWNED, postgresql_where=OWNED)

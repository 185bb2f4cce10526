"""What retention asks for"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

FINISHED = sa.text("finished_at IS NOT NULL")
SIBLINGS = sa.text("forked_from_run_id IS NOT NULL")


def upgrade() -> None:
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index("ix_runs_finished", ["finished_at", "seq"], unique=False, sqlite_where=FINISHED, postgresql_where=FINISHED)
        batch_op.create_index("ix_runs_source", ["forked_from_run_id"], unique=False, sqlite_where=SIBLINGS, postgresql_where=SIBLINGS)
    with op.batch_alter_table("deleted_keys", schema=None) as batch_op:
        batch_op.create_index("ix_deleted_keys_age", ["created_at"], unique=False)

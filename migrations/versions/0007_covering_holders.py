"""The index of holders covers what is asked of it"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

HOLDS = sa.text("holds_session")


def upgrade() -> None:
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index("uq_runs_holder")
        batch_op.create_index("uq_runs_holder", ["session_id", "holds_session"], unique=True, sqlite_where=HOLDS, postgresql_where=HOLDS)

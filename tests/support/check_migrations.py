"""Whether the migrations make exactly the tables of `waystation.db.tables`: `python -m tests.support.check_migrations`."""

import asyncio
import tempfile
from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from waystation.db import schema
from waystation.db.engine import open_database
from waystation.db.tables import metadata


def differences(conn: sa.Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(conn), metadata))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(f"sqlite:///{Path(folder) / 'check.db'}")
        try:
            await schema.upgrade(database)
            found = await database.read(differences)
        finally:
            await database.close()
    if found:
        raise SystemExit(f"the migrations and the tables differ: {found}")
    print("the migrations make the tables of this version")


if __name__ == "__main__":
    asyncio.run(main())

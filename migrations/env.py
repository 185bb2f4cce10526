"""Alembic's entry: on the connection that the server hands over, or on WAYSTATION_DATABASE_URL for the command line."""

import asyncio

import sqlalchemy as sa
from alembic import context

from waystation.config import Settings
from waystation.db.engine import open_database
from waystation.db.tables import metadata


def migrate(connection: sa.Connection) -> None:
    batch = connection.dialect.name == "sqlite"
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=batch, transactional_ddl=False)
    context.run_migrations()


async def migrate_from_settings() -> None:
    settings = Settings()
    database = open_database(settings.database_url, synchronous=settings.sqlite_synchronous)
    try:
        await database.write(migrate)
    finally:
        await database.close()


if context.is_offline_mode():
    raise SystemExit("Migrations need a connection; offline mode is not supported.")
if (handed_over := context.config.attributes.get("connection")) is not None:
    migrate(handed_over)
else:
    asyncio.run(migrate_from_settings())

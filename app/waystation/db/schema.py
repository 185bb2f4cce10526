"""Bringing the tables up to date. Forwards only; one process at a time, whatever the number that start together."""

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from waystation.db.dialect import lock_schema
from waystation.db.engine import Database
from waystation.errors import ConfigError

HEAD = "0007"
"""The revision that this version needs; a test holds it against the migrations."""


async def upgrade(database: Database) -> bool:
    """Make the tables what this version needs. Returns whether anything was to do."""
    if await database.read(current_revision) == HEAD:
        return False
    return await database.alter(_upgrade)


async def check(database: Database) -> None:
    """Raise ConfigError if the tables are not what this version needs."""
    revision = await database.read(current_revision)
    if revision != HEAD:
        raise ConfigError(f"The database is at revision {revision}, this version needs {HEAD}: run `waystation migrate`.")


def current_revision(conn: sa.Connection) -> str | None:
    if not sa.inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def migrations_folder() -> Path:
    """Inside the package when installed, beside `app/` in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parents[1] / "migrations"


def alembic_config() -> Any:
    from alembic.config import Config  # slow to import, and needed only when there is something to do

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    return config


def _upgrade(conn: sa.Connection) -> bool:
    from alembic import command

    lock_schema(conn)
    if current_revision(conn) == HEAD:
        return False
    config = alembic_config()
    config.attributes["connection"] = conn
    command.upgrade(config, "head")
    return True

"""A pooler that lends a server connection for one transaction, such as pgbouncer in transaction mode, in front of PostgreSQL.

The next transaction may be on another connection of the server, so nothing may outlive one: no named statement, no setting, no LISTEN.
What needs a session of its own goes to PostgreSQL itself, by a second URL.
"""

from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from waystation.db.dialect import state_of
from waystation.errors import ConfigError

# Statements without a name, parsed anew with each execution.
POOLED = {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": lambda: ""}

LOST_STATEMENT_STATES = frozenset({"26000", "42P05"})  # a statement's name is unknown, or taken by somebody else
WHERE = sa.text("SELECT current_database(), pg_postmaster_start_time()::text")
SETTING = sa.text("SELECT current_setting('enable_seqscan')")


async def check_session(engine: AsyncEngine, name: str) -> None:
    """Raise ConfigError if the connections of an engine that switches `enable_seqscan` off are not sessions of PostgreSQL itself. `name`
    is the setting that holds their URL."""
    told = ConfigError(f"{name} leads to a pooler: WAYSTATION_DATABASE_DIRECT_URL must lead to PostgreSQL itself.")
    try:
        async with engine.connect() as conn:
            kept = (await conn.execute(SETTING)).scalar()
    except (sa.exc.SQLAlchemyError, asyncpg.PostgresError) as exc:
        # pgbouncer refuses settings that it does not know.
        if "unsupported startup parameter" in str(exc) or state_of(exc) in LOST_STATEMENT_STATES:
            raise told from exc
        raise
    if kept != "off":
        raise told


async def check_same(pooled: AsyncEngine, direct: AsyncEngine) -> None:
    """Raise ConfigError if two URLs lead to different databases."""
    found: list[Any] = []
    for engine in (pooled, direct):
        async with engine.connect() as conn:
            found.append((await conn.execute(WHERE)).one())
    if found[0] != found[1]:
        raise ConfigError("WAYSTATION_DATABASE_URL and WAYSTATION_DATABASE_DIRECT_URL lead to different databases.")

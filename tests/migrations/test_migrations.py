"""The migrations make what the metadata says, once, whoever else does the same at the same time."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from support.server import clean_environment
from waystation.db import schema
from waystation.db.engine import Database, open_database
from waystation.db.tables import metadata
from waystation.errors import ConfigError

APP = Path(__file__).parents[2] / "app"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture
async def empty_database(empty_url: str) -> AsyncIterator[Database]:
    database = open_database(empty_url)
    yield database
    await database.close()


def differences(conn: sa.Connection) -> list[Any]:
    context = MigrationContext.configure(conn, opts={"compare_type": True, "compare_server_default": False})
    return list(compare_metadata(context, metadata))


INDEXES = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'runs' AND sql IS NOT NULL",
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'runs' AND indexname LIKE '__\\_runs\\_%'",
}


def indexes(conn: sa.Connection) -> dict[str, tuple[bool, bool]]:
    """Whether each index of the runs is unique, and whether it has a condition."""
    found = conn.exec_driver_sql(INDEXES[conn.dialect.name])
    return {name: ("UNIQUE" in sql, " WHERE " in sql.replace("\n", " ")) for name, sql in found if not name.startswith("runs_")}


async def test_a_fresh_database_is_what_the_metadata_says(empty_database: Database) -> None:
    assert await schema.upgrade(empty_database) is True
    assert await empty_database.read(differences) == []


async def test_a_missing_index_is_noticed(empty_database: Database) -> None:
    await schema.upgrade(empty_database)
    await empty_database.write(lambda conn: conn.execute(sa.text("DROP INDEX ix_runs_session")) and None)
    assert [difference[0] for difference in await empty_database.read(differences)] == ["add_index"]


async def test_the_indexes_of_the_runs_have_the_conditions_of_the_metadata(empty_database: Database) -> None:
    await schema.upgrade(empty_database)
    dialect = empty_database.url.get_backend_name()
    assert await empty_database.read(indexes) == {
        index.name: (bool(index.unique), index.dialect_options[dialect]["where"] is not None) for index in metadata.tables["runs"].indexes
    }


async def test_an_upgrade_done_twice_does_nothing_the_second_time(empty_database: Database) -> None:
    assert [await schema.upgrade(empty_database), await schema.upgrade(empty_database)] == [True, False]
    assert await empty_database.read(schema.current_revision) == schema.HEAD


def test_the_revision_that_this_version_needs_is_the_head_of_the_migrations() -> None:
    assert ScriptDirectory.from_config(schema.alembic_config()).get_heads() == [schema.HEAD]


async def test_a_check_refuses_an_empty_database_and_says_what_to_do(empty_database: Database) -> None:
    with pytest.raises(ConfigError, match="waystation migrate"):
        await schema.check(empty_database)


async def test_a_check_refuses_an_old_database_and_takes_a_new_one(empty_database: Database) -> None:
    await schema.upgrade(empty_database)
    await schema.check(empty_database)
    await empty_database.write(lambda conn: conn.execute(sa.text("UPDATE alembic_version SET version_num = '0000'")) and None)
    with pytest.raises(ConfigError, match="revision 0000"):
        await schema.check(empty_database)


UPGRADE = """
import asyncio, sys
from waystation.db import schema
from waystation.db.engine import open_database

async def main():
    database = open_database(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    print(await schema.upgrade(database))
    await database.close()

asyncio.run(main())
"""


def upgrade_at_once(url: str, count: int) -> list[tuple[str, str]]:
    """What each of so many processes tells, which begin when all of them are ready."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", UPGRADE, url], env=clean_environment(PYTHONPATH=str(APP)), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(count)
    ]  # fmt: skip
    assert [process.stdout.readline() for process in processes if process.stdout] == ["ready\n"] * count
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [(out.strip(), err[-500:]) for out, err in (process.communicate(timeout=30) for process in processes)]


async def test_eight_processes_that_start_at_once_all_succeed_and_one_makes_the_tables(empty_url: str, empty_database: Database) -> None:
    told = await asyncio.to_thread(upgrade_at_once, empty_url, 8)
    assert sorted(told) == [("False", "")] * 7 + [("True", "")]
    assert await empty_database.read(schema.current_revision) == schema.HEAD

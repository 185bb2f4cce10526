"""The databases of the contract tests: made once per session, emptied (PostgreSQL) or copied (SQLite) for each test."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from support import services
from waystation.db import schema
from waystation.db.engine import open_database
from waystation.db.tables import metadata


async def make_tables(url: str) -> None:
    database = open_database(url)
    try:
        await schema.upgrade(database)
    finally:
        await database.close()


async def empty(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"TRUNCATE {', '.join(table.name for table in metadata.sorted_tables)} RESTART IDENTITY")
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def made_postgres_url(postgres_server: str) -> Iterator[str]:
    with services.database_of(postgres_server) as url:
        asyncio.run(make_tables(url))
        yield url


@pytest.fixture(scope="session")
def made_sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("made") / "waystation.db"
    asyncio.run(make_tables(f"sqlite:///{file}"))
    return file


@pytest.fixture
def postgres_url(made_postgres_url: str) -> str:
    """A PostgreSQL database with empty tables."""
    asyncio.run(empty(made_postgres_url))
    return made_postgres_url


@pytest.fixture
def sqlite_url(made_sqlite_file: Path, tmp_path: Path) -> str:
    """A file with empty tables."""
    return f"sqlite:///{shutil.copy(made_sqlite_file, tmp_path / 'waystation.db')}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url

"""Fixtures that several suites share: databases of both kinds, and servers.

`database_url` runs a test once per kind of database, each time on an empty database of its own with its tables made.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support import services
from support.pgbouncer import Pgbouncer, pgbouncer
from waystation.db import schema
from waystation.db.engine import Database, open_database


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with services.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    with services.redis() as url:
        yield url


@pytest.fixture(scope="session")
def pgbouncer_server(postgres_server: str) -> Iterator[Pgbouncer]:
    with pgbouncer(postgres_server) as found:
        yield found


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database without tables."""
    with services.database_of(postgres_server) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that is not there yet."""
    return f"sqlite:///{tmp_path / 'waystation.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind with its tables made."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    asyncio.run(_make_tables(url))
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    found = open_database(database_url)
    try:
        yield found
    finally:
        await found.close()


async def _make_tables(url: str) -> None:
    database = open_database(url)
    try:
        await schema.upgrade(database)
    finally:
        await database.close()

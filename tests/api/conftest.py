"""`api` is a server of the stub agents on SQLite, `api_on_each` the same on each kind of database."""

from collections.abc import AsyncIterator

import pytest

from support.api_server import ApiServer, api_server


@pytest.fixture
async def api(sqlite_url: str) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url) as server:
        yield server


@pytest.fixture
async def api_on_each(database_url: str) -> AsyncIterator[ApiServer]:
    async with api_server(database_url) as server:
        yield server

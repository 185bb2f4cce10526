"""The services that the tests stand on, also where a machine has none of its own."""

from collections.abc import Iterator

import pytest
import redis.asyncio as redis_client

from support import services


@pytest.fixture
def machine_without_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv(services.REDIS_VARIABLE, raising=False)
    monkeypatch.setattr(services, "REDIS_PORT", services.free_port())
    monkeypatch.setenv("PATH", "/nonexistent")
    with services.redis() as url:
        yield url


async def test_redis_answers(redis_server: str) -> None:
    client = redis_client.from_url(redis_server)
    assert await client.ping() is True
    await client.aclose()


async def test_redis_is_started_from_its_wheel_where_the_machine_has_none(machine_without_redis: str) -> None:
    client = redis_client.from_url(machine_without_redis, retry_on_error=[ConnectionError])
    assert await client.ping() is True
    await client.aclose()

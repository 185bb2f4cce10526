"""News through Redis: PUBLISH and SUBSCRIBE on one channel. Redis keeps nothing of Waystation's."""

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from waystation import tasks
from waystation.errors import ConfigError

CHANNEL = "waystation"
PATIENCE_S = 5.0


class RedisLink:
    """A link of `live.remote`."""

    def __init__(self, url: str) -> None:
        try:
            # No tries of its own: a subscription that was renewed unseen would have missed news unseen.
            self._client = Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=PATIENCE_S)
        except ValueError as exc:
            raise ConfigError("WAYSTATION_REDIS_URL is not a Redis URL: expected redis://host:port") from exc
        self._subscription = self._client.pubsub()
        self._reader: asyncio.Task[None] | None = None

    async def open(self, on_text: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        self._subscription = self._client.pubsub()
        try:
            await self._subscription.subscribe(CHANNEL)
            # Heard is what is published after the confirmation.
            if await self._subscription.get_message(timeout=PATIENCE_S) is None:
                raise ConnectionError("the subscription is not confirmed")
        except RedisError as exc:
            raise ConnectionError(str(exc)) from exc
        self._reader = asyncio.create_task(_read(self._subscription, on_text), name="redis")
        self._reader.add_done_callback(lambda _: on_lost())

    async def send(self, text: str) -> None:
        if self._reader is None or self._reader.done():
            raise ConnectionError("the subscription has ended")
        try:
            await self._client.publish(CHANNEL, text)
        except RedisError as exc:
            raise ConnectionError(str(exc)) from exc

    async def close(self) -> None:
        if self._reader is not None:
            await tasks.end([self._reader])
            self._reader = None
        await self._subscription.aclose()  # type: ignore[no-untyped-call]
        await self._client.aclose()


async def _read(subscription: PubSub, on_text: Callable[[str], None]) -> None:
    try:
        async for message in subscription.listen():
            if message["type"] == "message":
                on_text(message["data"].decode())
    except RedisError:
        pass  # the end of this task tells

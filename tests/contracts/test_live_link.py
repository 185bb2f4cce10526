"""What goes over a link between processes, and when a link counts as lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from waystation.live import remote
from waystation.live.base import News
from waystation.live.remote import RemoteLive


class PlainLink:
    """A link to nobody else. While it `echoes`, own words come back."""

    def __init__(self, *, echoes: bool = True) -> None:
        self.echoes = echoes
        self.opened = 0
        self.sent: list[News] = []
        self.hear: Callable[[str], None] = lambda text: None

    async def open(self, on_text: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        self.opened += 1
        self.hear = on_text

    async def send(self, text: str) -> None:
        self.sent.append(News.decode(text.partition(" ")[2]))
        if self.echoes:
            self.hear(text)

    async def close(self) -> None:
        pass

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def carried(link: PlainLink) -> AsyncIterator[tuple[RemoteLive, list[News]]]:
    """A live that runs over the link and has said that it is there, and what it hears."""
    heard: list[News] = []
    live = RemoteLive("plain", link, heard.append)
    task = asyncio.create_task(live.run())
    await link.until(lambda: bool(link.sent))
    yield live, heard
    task.cancel()
    await asyncio.wait([task])


async def test_what_gathers_goes_in_one_text() -> None:
    link = PlainLink()
    async with carried(link) as (live, _):
        for index in range(100):
            live.tell_events("r1", index)
        live.tell_due()
        live.tell_cancel("r2")
        await link.until(lambda: len(link.sent) == 2)
    assert link.sent == [News(is_everything=True), News(moved={"r1": 99}, is_due=True, cancels=["r2"])]


async def test_nothing_is_sent_while_no_other_process_lives_and_the_first_word_of_one_changes_that() -> None:
    link = PlainLink()
    async with carried(link) as (live, heard):
        live.has_others = False
        live.tell_due()
        link.hear(f"somebody {News(is_everything=True).encode()}")
        live.tell_events("r1", 5)
        await link.until(lambda: len(link.sent) == 2)
    assert link.sent[1:] == [News(moved={"r1": 5})]
    assert heard == [News(is_everything=True)] * 2  # the link is there; another process is there


async def test_a_link_whose_own_words_do_not_come_back_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ECHO_S", 0.05)
    monkeypatch.setattr(remote, "SILENCE_S", 0.05)
    link = PlainLink(echoes=False)
    async with carried(link) as (live, _):
        await link.until(lambda: not live.is_connected)
        await link.until(lambda: link.opened == 2)


async def test_what_was_told_last_is_sent_when_the_process_ends() -> None:
    link = PlainLink()
    async with carried(link) as (live, _):
        pass
    live.tell_due()
    await live.close()
    assert link.sent[-1] == News(is_due=True)

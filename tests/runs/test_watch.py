"""Watching: no event lost between reading and waiting, none twice, whatever the window of the hub still holds."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from benchmarks.stub_agents import stub_agents

from support.api_agents import Gate, SmallAgent
from support.api_container import NOBODY, Process, process
from support.live import alone
from waystation.agents.turn import Emitter, Turn
from waystation.domain.event import Gap, RunContent, Segment
from waystation.errors import RunNotFoundError
from waystation.live.hub import WINDOW_BYTES, Channel, Hub
from waystation.runs.request import ContinueRequest


def segment(first: int, last: int | None = None, *, size: int = 10, ends: bool = False) -> Segment:
    last = first if last is None else last
    lines = [b'{"event":"RunContent","event_index":%d,"x":"%b"}' % (i, b"x" * size) for i in range(first, last + 1)]
    return Segment(first, last, b"\n".join(lines), ends)


def spans(found: list[Segment] | None) -> list[tuple[int, int]] | None:
    return None if found is None else [(one.first_index, one.last_index) for one in found]


# ---- the channel ----------------------------------------------------------------------------------------------------------------


def test_a_channel_gives_what_is_behind_a_cursor_also_within_a_segment() -> None:
    channel = Channel("r", alone())
    for one in (segment(0, 2), segment(3), segment(4, 9)):
        channel.publish(one)
    assert spans(channel.since(-1)) == [(0, 2), (3, 3), (4, 9)]
    assert spans(channel.since(1)) == [(2, 2), (3, 3), (4, 9)] and spans(channel.since(9)) == []
    assert channel.since(1)[0].lines == segment(2).lines


def test_the_window_is_bounded_and_who_falls_behind_is_sent_to_the_store() -> None:
    """B23."""
    channel = Channel("r", alone())
    for index in range(300):
        channel.publish(segment(index, size=10_000))
    assert channel.since(5) is None and spans(channel.since(298)) == [(299, 299)]
    kept = sum(len(one.lines) for one in channel.since(240) or [])
    assert kept <= WINDOW_BYTES and channel._bytes <= WINDOW_BYTES


def test_one_segment_that_is_larger_than_the_window_is_kept_alone() -> None:
    channel = Channel("r", alone())
    channel.publish(segment(0))
    channel.publish(segment(1, size=2 * WINDOW_BYTES))
    assert spans(channel.since(0)) == [(1, 1)] and channel.since(-1) is None


def test_what_was_published_before_is_ignored_and_a_jump_forgets_the_window() -> None:
    channel = Channel("r", alone())
    for one in (segment(0, 3), segment(2, 3), segment(0)):
        channel.publish(one)
    assert spans(channel.since(-1)) == [(0, 3)]
    channel.publish(segment(7))
    assert channel.since(3) is None and spans(channel.since(6)) == [(7, 7)]


async def test_a_waiter_is_woken_by_a_publication_and_by_the_end() -> None:
    channel = Channel("r", alone())
    changed, ended = asyncio.create_task(channel.changed()), asyncio.create_task(channel.ended())
    await asyncio.sleep(0)
    channel.publish(segment(0))
    await asyncio.wait_for(changed, 1)
    assert not ended.done()
    channel.publish(segment(1, ends=True))
    await asyncio.wait_for(ended, 1)


def test_a_hub_forgets_a_run_that_nobody_watches() -> None:
    hub = Hub(alone())
    first, second = hub.attach("r"), hub.attach("r")
    assert first is second
    hub.detach(first)
    assert hub.stats() == {"channels": 1, "users": 1}
    hub.detach(second)
    assert hub.stats() == {"channels": 0, "users": 0}


# ---- watching ---------------------------------------------------------------------------------------------------------------------


async def seen(found: AsyncIterator[Segment | Gap]) -> list[int]:
    """The indices that a viewer is given."""
    return [index async for item in found if isinstance(item, Segment) for index, _, _ in item.each()]


async def bursts(turn: Turn, emit: Emitter) -> None:
    """Commits of many sizes, so that viewers read the window and the store in turn."""
    for burst in range(30):
        for _ in range(burst % 7 + 1):
            emit(RunContent(content="x" * 20_000))
        await emit.stored()


async def test_viewers_that_come_at_any_moment_see_every_event_once(database_url: str) -> None:
    """The race between reading the store and waiting; the window overflows meanwhile."""
    async with process(database_url, [SmallAgent(bursts)]) as server:
        ticket = await server.submit()
        viewers = []
        for _ in range(40):
            viewers.append(asyncio.create_task(seen(server.container.watch.segments(ticket.run_id, -1))))
            await asyncio.sleep(0.002)
        logs = await asyncio.wait_for(asyncio.gather(*viewers), 20)
        whole = list(range((await server.run(ticket.run_id)).next_index))
        assert all(log == whole for log in logs)


async def test_a_viewer_that_is_slow_reads_the_store_and_misses_nothing(sqlite_url: str) -> None:
    """B23, B24."""
    async with process(sqlite_url, [SmallAgent(bursts)]) as server:
        ticket = await server.submit()
        watching = server.container.watch.segments(ticket.run_id, -1)
        first = await anext(watching)
        await server.until(ticket.run_id, "COMPLETED")
        rest = await seen(watching)
        assert rest == list(range(first.last_index + 1, (await server.run(ticket.run_id)).next_index))


@pytest.mark.parametrize("after", [-1, 0, 2, 10**6])
async def test_a_viewer_in_another_process_follows_by_asking_the_store(sqlite_url: str, after: int) -> None:
    """B34: without any wake-up between the two."""
    gate = Gate()
    agent = SmallAgent(gate.turn)
    async with process(sqlite_url, [agent]) as owner, process(sqlite_url, [agent]) as other:
        ticket = await owner.submit()
        await gate.reached.wait()
        watching = asyncio.create_task(seen(other.container.watch.segments(ticket.run_id, after)))
        waiting = asyncio.create_task(other.container.watch.settled(ticket.run_id))
        await asyncio.sleep(0.2)
        gate.opened.set()
        assert await asyncio.wait_for(watching, 5) == [index for index in range(4) if index > after]
        assert (await asyncio.wait_for(waiting, 5)).run.status == "COMPLETED"


async def test_a_viewer_that_leaves_leaves_nothing_behind(sqlite_url: str) -> None:
    gate = Gate()
    async with process(sqlite_url, [SmallAgent(gate.turn)]) as server:
        ticket = await server.submit()
        await gate.reached.wait()
        watching = asyncio.create_task(seen(server.container.watch.segments(ticket.run_id, -1)))
        waiting = asyncio.create_task(server.container.watch.settled(ticket.run_id))
        await asyncio.sleep(0.05)
        users = server.container.hub.stats()["users"]
        for task in (watching, waiting):
            task.cancel()
        await asyncio.gather(watching, waiting, return_exceptions=True)
        assert (users, server.container.hub.stats()["users"]) == (3, 1)
        gate.opened.set()


async def test_watching_a_run_that_is_not_there_ends(sqlite_url: str) -> None:
    async with process(sqlite_url, []) as server:
        assert await seen(server.container.watch.segments("nope", -1)) == []
        with pytest.raises(RunNotFoundError):
            await server.container.watch.settled("nope")


# ---- pauses -------------------------------------------------------------------------------------------------------------------------


async def go_on(server: Process, run_id: str) -> None:
    run = await server.run(run_id)
    answers = [r.tool_execution.model_dump(mode="json") | {"confirmed": True} for r in run.requirements]
    await server.container.continuations.go_on(ContinueRequest(agent_id="native", run_id=run_id, answers=answers), NOBODY)


async def test_who_comes_after_a_pause_waits_for_its_continuation_if_he_says_so(sqlite_url: str) -> None:
    async with process(sqlite_url, stub_agents()) as server:
        run = await server.ended("confirm", "native")
        end = (await server.run(run.id)).next_index
        watch = server.container.watch
        assert await asyncio.wait_for(seen(watch.segments(run.id, end - 1)), 2) == []
        waiting = asyncio.create_task(seen(watch.segments(run.id, end - 1, waits_when_paused=True)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await go_on(server, run.id)
        got = await asyncio.wait_for(waiting, 5)
        assert got == list(range(end, (await server.run(run.id)).next_index))


async def test_who_waits_for_a_continuation_is_not_given_the_pause_before_it(sqlite_url: str) -> None:
    """A viewer that stalls keeps the run's channel over the pause."""
    async with process(sqlite_url, stub_agents()) as server:
        ticket = await server.submit("confirm", "native")
        stalled = server.container.watch.segments(ticket.run_id, -1)
        await anext(stalled)
        assert (await server.container.watch.settled(ticket.run_id)).run.status == "PAUSED"
        await go_on(server, ticket.run_id)
        detail = await asyncio.wait_for(server.container.watch.settled(ticket.run_id), 5)
        await stalled.aclose()  # type: ignore[attr-defined]
        assert detail.run.status == "COMPLETED"

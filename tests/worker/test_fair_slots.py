"""Half of the slots at most for one user while others wait: real processes without HTTP, on both databases."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.api_agents import SmallAgent
from support.api_container import Process, process
from waystation.agents.turn import Emitter, Turn
from waystation.runs.request import Ticket
from waystation.store import runs as run_store


class Floor:
    """Whose runs are on the floor, in the order in which they came; each stays until it is let go."""

    def __init__(self, found: Process) -> None:
        self.process = found
        self.came: list[str] = []
        self.here: Counter[str] = Counter()
        self._leaves: dict[str, list[asyncio.Event]] = defaultdict(list)

    async def turn(self, turn: Turn, emit: Emitter) -> None:
        user, leave = turn.run.user_id or "nobody", asyncio.Event()
        self.came.append(user)
        self.here[user] += 1
        self._leaves[user].append(leave)
        await leave.wait()
        self.here[user] -= 1

    def let_go(self, user: str, count: int = 1) -> None:
        for _ in range(count):
            self._leaves[user].pop(0).set()

    async def enqueue(self, user: str | None, count: int = 1) -> list[Ticket]:
        return [await self.process.submit(user_id=user, background=True) for _ in range(count)]

    async def until(self, **here: int) -> None:
        """Until so many runs of these users are on the floor."""
        async with asyncio.timeout(10):
            while {user: self.here[user] for user in here} != here:
                await asyncio.sleep(0.005)


@pytest.fixture
async def floor(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Floor]:
    """A process with four slots, or as many as the test asks for."""
    floors: list[Floor] = []

    async def turn(turn: Turn, emit: Emitter) -> None:
        await floors[0].turn(turn, emit)

    slots: int = getattr(request, "param", 4)
    async with process(database_url, [SmallAgent(turn)], worker_concurrency=slots, drain_s=0.0) as found:
        floors.append(Floor(found))
        yield floors[0]


async def test_one_user_has_all_slots_while_nobody_else_waits(floor: Floor) -> None:
    await floor.enqueue("ann", 6)
    await floor.until(ann=4)


async def test_who_has_half_waits_behind_who_came_later(floor: Floor) -> None:
    await floor.enqueue("ann", 8)
    await floor.until(ann=4)
    await floor.enqueue("bob", 3)
    floor.let_go("ann", 2)
    await floor.until(ann=2, bob=2)
    assert floor.came == ["ann"] * 4 + ["bob"] * 2
    floor.let_go("bob")  # ann has half, bob less: the oldest of bob
    await floor.until(ann=2, bob=2)
    floor.let_go("bob")  # nobody waits but ann
    await floor.until(ann=3, bob=1)


async def test_no_claim_takes_a_user_over_the_half_at_once(floor: Floor) -> None:
    await floor.enqueue(None, 4)
    await floor.until(nobody=4)
    await floor.enqueue("ann", 6)
    await floor.enqueue("bob", 2)
    floor.let_go("nobody", 4)
    await floor.until(ann=2, bob=2)
    assert Counter(floor.came[4:]) == {"ann": 2, "bob": 2}


async def test_runs_of_nobody_are_not_counted_together(floor: Floor) -> None:
    await floor.enqueue("ann", 4)
    await floor.until(ann=4)
    await floor.enqueue(None, 6)
    floor.let_go("ann", 4)
    await floor.until(ann=0, nobody=4)


@pytest.mark.parametrize("floor", [2, 3], indirect=True)
async def test_few_slots_are_shared_and_all_used(floor: Floor) -> None:
    slots = floor.process.container.slots.limit
    await floor.enqueue("ann", 5)
    await floor.until(ann=slots)
    await floor.enqueue("bob")
    floor.let_go("ann")
    await floor.until(ann=slots - 1, bob=1)
    floor.let_go("bob")
    await floor.until(ann=slots, bob=0)


async def test_a_run_in_the_foreground_is_no_way_round(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    await floor.enqueue("ann", 2)
    await floor.until(ann=2)
    claim_now: Any = run_store.claim_now
    monkeypatch.setattr(run_store, "claim_now", lambda *_: [])  # a claim is under way, so to say
    container = floor.process.container
    container.slots.some_wait = True
    ann, bob = await floor.process.submit(user_id="ann"), await floor.process.submit(user_id="bob")
    assert [(await floor.process.run(ticket.run_id)).status.value for ticket in (ann, bob)] == ["PENDING", "RUNNING"]
    monkeypatch.setattr(run_store, "claim_now", claim_now)
    container.worker.wake()
    await floor.until(ann=3, bob=1)


@pytest.mark.parametrize("floor", [1], indirect=True)
async def test_a_single_slot_goes_by_age(floor: Floor) -> None:
    for user in ("ann", "ann", "bob", "ann"):
        await floor.enqueue(user)
    for count in range(1, 5):
        async with asyncio.timeout(10):
            while len(floor.came) < count:
                await asyncio.sleep(0.005)
        floor.let_go(floor.came[-1])
    assert floor.came == ["ann", "ann", "bob", "ann"]

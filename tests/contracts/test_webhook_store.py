"""Deliveries are stored with the end that they tell of, and with nothing else, on both databases."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from support.store_ops import LATER, commit, ending, find, lines, rows, starting, step_of
from waystation.db.engine import Database
from waystation.db.tables import webhook_deliveries
from waystation.domain.lifecycle import RunStatus
from waystation.domain.webhook import Endpoint, NewDelivery
from waystation.store import runs as run_store
from waystation.store.operations import Step

AGENTS = Endpoint(source="agent", id="ours", events=("run.completed",))
OWN = Endpoint(source="run", id="0", url="https://example.com/hook?x=1")


def new(id: str, endpoint: Endpoint = OWN) -> NewDelivery:
    return NewDelivery(id=id, endpoint=endpoint, event="run.completed", payload="{}")


def telling(run_id: str, session: str, *deliveries: NewDelivery, **more: Any) -> Step:
    """The end of a run that tells of it."""
    step = ending(run_id, session, **more)
    assert step.finish is not None
    step.finish = replace(step.finish, deliveries=deliveries)
    return step


async def stored(database: Database) -> list[Any]:
    table = webhook_deliveries.c
    return await rows(database, sa.select(table.id, table.run_id, table.target, table.status, table.attempts).order_by(table.id))


async def test_whom_a_run_tells_is_kept_with_it(database: Database) -> None:
    await commit(
        database, starting("r", "s", webhooks=(OWN, AGENTS)), starting("q", "t"), starting("p", "u", may_wait=True, webhooks=(OWN,))
    )
    assert [(await find(database, id)).webhooks for id in ("r", "q", "p")] == [(OWN, AGENTS), (), (OWN,)]


async def test_what_an_end_tells_is_stored_with_it_also_beside_ordinary_ends(database: Database) -> None:
    await commit(database, starting("r", "s"), starting("q", "t"))
    await commit(database, telling("r", "s", new("d1"), new("d2", AGENTS)), ending("q", "t"))
    assert [(await find(database, id)).status for id in ("r", "q")] == [RunStatus.COMPLETED] * 2
    assert await stored(database) == [("d1", "r", "https://example.com", "pending", 0), ("d2", "r", "a/ours", "pending", 0)]


async def test_an_end_that_is_stored_twice_tells_once(database: Database) -> None:
    await commit(database, starting("r", "s"))
    end = telling("r", "s", new("d1"))
    await commit(database, end)
    [again] = await commit(database, end)
    assert (again.owned, len(await stored(database))) == (True, 1)


@pytest.mark.parametrize("stale", [{"epoch": 7}, {"first": 9}])
async def test_an_end_that_the_fence_refuses_tells_nothing(database: Database, stale: dict[str, int]) -> None:
    await commit(database, starting("r", "s"))
    step = telling("r", "s", new("d1"))
    step.epoch, step.first_index = stale.get("epoch", step.epoch), stale.get("first", step.first_index)
    await commit(database, step)
    assert await stored(database) == []


async def test_an_end_without_an_owner_tells_only_if_it_is_the_end(database: Database) -> None:
    await commit(database, starting("r", "s", webhooks=(OWN,)))
    seen = await find(database, "r")
    await commit(database, step_of("r", "s"))  # it goes on meanwhile
    arguments = (RunStatus.CANCELLED, lines(seen.next_index, "RunCancelled"), {}, "", LATER, (new("d1"),))
    assert not await database.write(run_store.end_idle, seen, *arguments)
    assert await stored(database) == []
    now_is = await find(database, "r")
    assert await database.write(run_store.end_idle, now_is, *arguments)
    assert len(await stored(database)) == 1

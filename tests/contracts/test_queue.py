"""What counts as stuck, and what does not."""

from typing import Any

import pytest
import sqlalchemy as sa

from support.store_ops import LATER, commit, execute, finished, starting, waiting
from waystation.db.engine import Database
from waystation.db.tables import runs, workers
from waystation.store import queue

SINCE = LATER - queue.PATIENCE_S


async def worker(database: Database, **more: Any) -> None:
    row = {"id": "w", "host": "h", "boot_id": "b", "pid": 1, "process_started": "1", "started_at": 1.0, "renewed_at": LATER}
    await execute(database, sa.insert(workers).values(**row | more))


async def change(database: Database, **values: Any) -> None:
    await execute(database, sa.update(runs).where(runs.c.id == "r").values(**{"deadline_at": LATER} | values))


async def stuck(database: Database) -> int:
    return await database.read(queue.count_stuck, SINCE)


async def test_what_runs_waits_and_is_over_is_not_stuck(database: Database) -> None:
    await worker(database)
    await finished(database, "done", "s1")
    await commit(database, starting("r", "s2"), waiting("alone", "s3"))
    await commit(database, waiting("next", "s2"))
    await change(database)
    assert await stuck(database) == 0


@pytest.mark.parametrize(
    ("lease", "values"),
    [
        ({}, {"worker_id": None}),
        ({}, {"worker_id": "unknown"}),
        ({"dead_at": SINCE - 1}, {}),
        ({"renewed_at": SINCE - 1}, {}),
        ({}, {"deadline_at": SINCE - 1}),
    ],
    ids=["without an owner", "of an owner without a lease", "of a dead owner", "of a silent owner", "long past its deadline"],
)
async def test_a_running_run_that_nobody_moves_is_stuck(database: Database, lease: dict[str, Any], values: dict[str, Any]) -> None:
    await worker(database, **lease)
    await commit(database, starting("r"))
    await change(database, **values)
    assert await stuck(database) == 1


async def test_runs_of_the_newly_dead_are_left_to_recovery(database: Database) -> None:
    await worker(database, dead_at=SINCE + 1)
    await commit(database, starting("r"))
    await change(database)
    assert await stuck(database) == 0


async def test_a_turn_behind_a_run_that_has_ended_and_holds_the_session_is_stuck(database: Database) -> None:
    await finished(database, "r", "s")
    await commit(database, waiting("behind", "s"))
    await change(database, holds_session=True)
    assert await stuck(database) == 1

"""The short form of `make chaos`: several replicas, faults at random moments, a printed seed."""

import os
import random
from pathlib import Path

import pytest

from support.chaos import DATABASE_FAULTS, PROCESS_FAULTS, Report, run_chaos
from support.services import private_postgres

RUNS = 250


def check(report: Report) -> None:
    print(report.table())
    assert report.wrong == []
    assert report.wrongly_ended == []
    assert len(report.history.runs) > RUNS / 2 and report.faults.total() > 0


def seed() -> int:
    found = int(os.environ.get("WAYSTATION_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"WAYSTATION_TEST_SEED={found}")
    return found


@pytest.mark.timeout(300)
async def test_faults_of_processes_on_one_sqlite_file_lose_nothing(sqlite_url: str, tmp_path: Path) -> None:
    names = ("kill -9", "SIGTERM")
    check(await run_chaos(sqlite_url, tmp_path, runs=RUNS, seed=seed(), names=names, replicas=2))


@pytest.mark.timeout(300)
async def test_faults_of_processes_and_of_the_database_lose_nothing_on_postgresql(tmp_path: Path) -> None:
    with private_postgres() as server:
        names = PROCESS_FAULTS + DATABASE_FAULTS
        check(await run_chaos(server.url, tmp_path, runs=RUNS, seed=seed(), names=names, postgres=server))

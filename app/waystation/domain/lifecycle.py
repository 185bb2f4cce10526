"""The statuses of a run and every allowed change between them. The only place where these rules stand.

COMPLETED, ERROR and CANCELLED are final. REGENERATED is not a stored status: it is COMPLETED with `replaced_by_run_id`,
shown so at read time. `store/runs.py` takes the sources of its compare-and-set statements from here.
"""

from enum import StrEnum


class RunStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    ERROR = "ERROR"
    REGENERATED = "REGENERATED"


FINAL = frozenset({RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.ERROR})
SETTLED = FINAL | {RunStatus.PAUSED, RunStatus.REGENERATED}
"""Statuses in which no leg is going on or waiting to."""

TRANSITIONS: dict[RunStatus | None, frozenset[RunStatus]] = {
    None: frozenset({RunStatus.PENDING, RunStatus.RUNNING}),
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.ERROR}),
    # PENDING: handed back, or to be tried again later. RUNNING: another epoch.
    RunStatus.RUNNING: FINAL | {RunStatus.PAUSED, RunStatus.PENDING, RunStatus.RUNNING},
    # ERROR: the pause expired.
    RunStatus.PAUSED: frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.ERROR}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
    RunStatus.ERROR: frozenset(),
}


def allows(source: RunStatus | None, target: RunStatus) -> bool:
    return target in TRANSITIONS[source]


def sources_of(target: RunStatus) -> frozenset[RunStatus]:
    """The stored statuses from which a run may come to `target`."""
    return frozenset(source for source, targets in TRANSITIONS.items() if source is not None and target in targets)

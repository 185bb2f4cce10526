"""Every pair of statuses, against the rules as the design states them."""

import itertools

import pytest

from support.store_ops import make_run
from waystation.domain.lifecycle import FINAL, SETTLED, RunStatus, allows, sources_of

STORED = [status for status in RunStatus if status is not RunStatus.REGENERATED]
ALLOWED = {
    (None, "PENDING"), (None, "RUNNING"),
    ("PENDING", "RUNNING"), ("PENDING", "CANCELLED"), ("PENDING", "ERROR"),
    ("RUNNING", "COMPLETED"), ("RUNNING", "ERROR"), ("RUNNING", "CANCELLED"), ("RUNNING", "PAUSED"), ("RUNNING", "PENDING"),
    ("RUNNING", "RUNNING"),
    ("PAUSED", "PENDING"), ("PAUSED", "RUNNING"), ("PAUSED", "CANCELLED"), ("PAUSED", "ERROR"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), list(itertools.product([None, *STORED], RunStatus)))
def test_a_change_is_allowed_exactly_where_the_design_says_so(source: RunStatus | None, target: RunStatus) -> None:
    assert allows(source, target) is ((source, target) in ALLOWED)


@pytest.mark.parametrize("target", RunStatus)
def test_the_sources_of_a_status_are_those_that_may_come_to_it(target: RunStatus) -> None:
    assert sources_of(target) == {source for source, to in ALLOWED if source is not None and to == target}


def test_a_final_status_is_never_left_and_a_settled_one_has_no_leg() -> None:
    assert {"COMPLETED", "CANCELLED", "ERROR"} == FINAL
    assert not {source for source, _ in ALLOWED} & FINAL
    assert FINAL | {"PAUSED", "REGENERATED"} == SETTLED


@pytest.mark.parametrize(
    ("status", "replaced_by", "shown"),
    [("COMPLETED", "x", "REGENERATED"), ("COMPLETED", None, "COMPLETED"), ("ERROR", "x", "ERROR"), ("CANCELLED", "x", "CANCELLED")],
)
def test_only_a_completed_run_is_shown_as_regenerated(status: str, replaced_by: str | None, shown: str) -> None:
    assert make_run("r", status=RunStatus(status), replaced_by_run_id=replaced_by).shown_status == shown

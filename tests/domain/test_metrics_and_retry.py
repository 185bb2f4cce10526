"""Sums that are exact, and waits that stay within their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.domain.metrics import COUNTS, Metrics, ModelUsage
from waystation.domain.retry import RetryPolicy

USAGES = st.lists(
    st.builds(
        ModelUsage, id=st.sampled_from("ab"), provider=st.sampled_from("pq"), cost=st.none() | st.integers(0, 99).map(float),
        **{name: st.integers(0, 10**12) for name in COUNTS},
    ),
    max_size=8,
)  # fmt: skip


def summed(usages: list[ModelUsage]) -> Metrics:
    metrics = Metrics()
    for usage in usages:
        metrics = metrics.with_usage(usage)
    return metrics


@given(USAGES)
def test_sums_are_exact_in_all_and_for_each_model(usages: list[ModelUsage]) -> None:
    metrics = summed(usages)
    assert {name: getattr(metrics.totals(), name) for name in COUNTS} == {name: sum(getattr(u, name) for u in usages) for name in COUNTS}
    assert {(m.id, m.provider) for m in metrics.models} == {(u.id, u.provider) for u in usages}
    assert len(metrics.models) == len({(u.id, u.provider) for u in usages})
    costs = [usage.cost for usage in usages if usage.cost is not None]
    assert metrics.cost == (sum(costs) if costs else None)


@given(USAGES)
def test_metrics_come_back_from_their_wire_form(usages: list[ModelUsage]) -> None:
    metrics = summed(usages).model_copy(update={"duration": 1.5})
    assert Metrics.from_wire(metrics.wire()) == metrics


def test_zero_counts_are_left_out_of_the_wire_form_and_a_cost_of_zero_is_not() -> None:
    assert Metrics().wire() == {}
    wire = summed([ModelUsage(id="m", provider="p", input_tokens=3, cost=0.0)]).wire()
    assert wire == {"input_tokens": 3, "cost": 0.0, "details": {"model": [{"input_tokens": 3, "cost": 0.0, "id": "m", "provider": "p"}]}}


@pytest.mark.parametrize(
    ("policy", "attempt", "delay"),
    [
        (RetryPolicy(delay_s=2), 1, 2),
        (RetryPolicy(delay_s=2), 5, 2),
        (RetryPolicy(delay_s=2, exponential=True), 1, 2),
        (RetryPolicy(delay_s=2, exponential=True), 4, 16),
        (RetryPolicy(delay_s=2, exponential=True), 10, 60),
        (RetryPolicy(delay_s=2, exponential=True), 100_000, 60),
        (RetryPolicy(delay_s=100), 1, 60),
        (RetryPolicy(delay_s=0, exponential=True), 9, 0),
    ],
)
def test_the_wait_after_a_failed_attempt(policy: RetryPolicy, attempt: int, delay: float) -> None:
    assert policy.delay_after(attempt) == delay


@given(st.integers(1, 5_000), st.floats(0, 1e6), st.booleans(), st.floats(0, 1e4))
def test_a_drawn_wait_stays_within_its_bounds(attempt: int, delay_s: float, exponential: bool, most: float) -> None:
    policy = RetryPolicy(delay_s=delay_s, exponential=exponential, jitter=True, max_delay_s=most)
    assert 0 <= policy.delay_after(attempt) <= most

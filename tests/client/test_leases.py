"""Times of lease renewals, for workers and for Spark's driver."""

import pytest

from millstream.client.leases import LeasePlan

MIN_IDLE = [1, 15, 150, 3_000, 30_000, 3_600_000]


@pytest.mark.parametrize("min_idle", MIN_IDLE)
def test_a_worker_renews_each_entry_before_two_thirds_have_passed(min_idle: int) -> None:
    """A worker renews each lease before two thirds of its time have passed, down to 15 ms."""
    plan = LeasePlan.known(min_idle)
    assert not plan.is_due(1_000_000, 1_000_000 - min_idle // 3 + 1)
    latest = min_idle // 3 + plan.period * 1000
    assert plan.is_due(1_000_000 + round(latest), 1_000_000)
    assert latest <= max(min_idle * 2 / 3, 15 * 2 / 3)


@pytest.mark.parametrize("min_idle", [*MIN_IDLE, None])
def test_a_round_that_asks_renews_all_but_the_youngest(min_idle: int | None) -> None:
    """A round with an unknown lease time renews leases older than half a round."""
    plan = LeasePlan.asked(min_idle)
    assert plan.renew_after_ms == int(plan.period * 1000 / 2)
    assert plan.period <= max((min_idle or 30_000) / 3000, 0.05)

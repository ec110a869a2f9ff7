"""Retry decisions and read sizes as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.worker.model.retry import Failure, FailureRecord, Retry, RunMode, decide, resize, run_mode, share, tries

chances = st.floats(0, 1, exclude_max=True)
backoffs = st.sampled_from(["exponential", "linear", "constant"])


@given(st.integers(1, 2**63 - 1), chances, backoffs, st.floats(0, 1e6), st.floats(0, 1e6), st.booleans())
def test_delay_stays_between_nothing_and_its_bound(
    deliveries: int, chance: float, backoff: str, base: float, bound: float, jitter: bool
) -> None:
    """A retry delay stays between its lower bound and max_delay for any count. Jitter never goes below half."""
    retry = Retry(backoff=backoff, base=base, max_delay=bound, jitter=jitter)  # type: ignore[arg-type] # drawn
    whole = Retry(backoff=backoff, base=base, max_delay=bound, jitter=False).delay(deliveries, 0)  # type: ignore[arg-type] # drawn
    assert whole / 2 <= retry.delay(deliveries, chance) <= whole <= bound


def test_delays_grow_as_they_say() -> None:
    """Exponential delays double, linear ones add, and constant ones stay."""
    figures = {
        kind: [Retry(backoff=kind, base=0.5, jitter=False).delay(n, 0) for n in (1, 2, 3, 4)]  # type: ignore[arg-type] # literal
        for kind in ("exponential", "linear", "constant")
    }
    assert figures == {"exponential": [0.5, 1, 2, 4], "linear": [0.5, 1, 1.5, 2], "constant": [0.5, 0.5, 0.5, 0.5]}


@given(st.integers(1, 50), st.integers(1, 50), chances)
def test_the_limit_counts_deliveries_exactly(limit: int, counted: int, chance: float) -> None:
    """The failure number max_deliveries is the last one, neither one earlier nor one later."""
    assert decide(Retry(max_deliveries=limit), Failure.ERROR, counted, chance).dead is (counted >= limit)


@given(st.integers(1, 2**40), chances)
def test_no_limit_means_never_dead(deliveries: int, chance: float) -> None:
    """max_deliveries=0 retries without end, except for failures that no retry can mend."""
    retry = Retry(max_deliveries=0)
    assert not decide(retry, Failure.ERROR, deliveries, chance).dead
    assert decide(retry, Failure.INVALID, deliveries, chance).dead


@pytest.mark.parametrize("failure", [Failure.REJECT, Failure.INVALID, Failure.OVERDUE])
def test_some_failures_are_final(failure: Failure) -> None:
    """A rejected, unreadable or expired entry becomes a dead letter at once."""
    assert decide(Retry(max_deliveries=100), failure, 1, 0.5).dead


def test_the_handler_may_choose_the_delay() -> None:
    """Nack() retries at once, Nack(delay=) after that delay, and an exception after the backoff."""
    retry = Retry(base=4, jitter=False)
    assert decide(retry, Failure.NACK, 1, 0.5).delay == 0
    assert decide(retry, Failure.NACK, 1, 0.5, 7.5).delay == 7.5
    assert decide(retry, Failure.ERROR, 1, 0.5).delay == 4


@given(st.integers(0, 10_000))
def test_claims_leave_room_for_new_entries(room: int) -> None:
    """Over two reads, claims take at least one and at most half of the free places."""
    taken = share(room, False) + share(room, True)
    assert taken <= room
    assert taken >= 1 or room == 0


@given(st.integers(2, 10_000), st.booleans())
def test_claims_never_take_all_though_nothing_new_came_lately(room: int, turn: bool) -> None:
    """While only claims arrive, an eighth of the free places stays reserved for new entries."""
    assert room - max(room // 8, 1) == share(room, turn, alone=True) < room


@given(st.integers(1, 500), st.integers(1, 50), st.integers(50, 500), st.floats(0, 1e6))
def test_read_ahead_stays_in_its_bounds(target: int, lowest: int, highest: int, waited: float) -> None:
    """The read-ahead size stays between one and its bound, however quick or slow handlers are."""
    assert lowest <= resize(target, lowest, highest, waited_ms=waited) <= highest


@pytest.mark.parametrize("wrong", [{"max_deliveries": -1}, {"base": -0.1}, {"max_delay": -1}, {"backoff": "fibonacci"}])
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    """An invalid retry policy is refused at import."""
    with pytest.raises(ConfigError, match="Retry"):
        Retry(**wrong)  # type: ignore[arg-type] # wrong on purpose


def test_a_count_that_turned_negative_is_above_every_limit() -> None:
    """A delivery count from 2**63 on, which Redis shows as negative, is above every limit."""
    assert tries(-(2**63), None) == 2**63
    assert tries(-1, FailureRecord(uncharged=True)) == 2**64 - 2
    assert run_mode(Retry(max_deliveries=3), -(2**63), None) is RunMode.DEAD


class BusyError(TimeoutError):
    """A subclass of an error class listed before it."""


def test_each_kind_of_error_has_its_policy() -> None:
    """An error gets the policy of the first class in the list that matches it."""
    slow = Retry(max_deliveries=20, base=60)
    retry = Retry(max_deliveries=3, on={TimeoutError: slow, BusyError: "ack", ValueError: "reject", OSError: "ack"})
    assert retry.policy(BusyError()) is slow
    assert retry.policy(ValueError()) == "reject"
    assert retry.policy(OSError()) == "ack"
    assert retry.policy(KeyError()) is retry
    assert retry.limit == 20
    assert Retry(on={OSError: Retry(max_deliveries=0)}).limit == 0


@pytest.mark.parametrize(
    "on",
    [{"ValueError": "ack"}, {int: "ack"}, {OSError: "drop"}, {OSError: Retry(on={KeyError: "ack"})}, [OSError], {1: 1}],
)
def test_a_wrong_policy_of_an_error_is_refused(on: object) -> None:
    """A wrong policy for an error class is refused with the class and the allowed values."""
    with pytest.raises(ConfigError, match=r"Retry\(on="):
        Retry(on=on)  # type: ignore[arg-type] # wrong on purpose

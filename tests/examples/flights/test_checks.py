"""Each check of the demo passes for a faultless run, and fails if its subject is wrong."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from flights.checks.compare import check_all
from flights.checks.evidence import Evidence
from flights.checks.truth import Truth
from flights.producer import Resumption
from flights.receipts import Receipt


def test_faultless_run_passes(facts: Truth, faultless: Evidence) -> None:
    """All checks pass for a faultless run."""
    assert [check.what for check in check_all(facts, faultless) if not check.ok] == []


def _lose_receipt(facts: Truth, found: Evidence) -> None:
    found.receipts = [one for one in found.receipts if one.id != facts.ids[3]]


def _unknown_receipt(facts: Truth, found: Evidence) -> None:
    found.receipts.append(Receipt("worker-1", "1-1", 1, "fine"))


def _unexplained_repeat(facts: Truth, found: Evidence) -> None:
    found.receipts.append(Receipt("worker-3", facts.ids[3], 1, "fine"))


def _no_retry(facts: Truth, found: Evidence) -> None:
    found.receipts = [one._replace(deliveries=1) if one.id in facts.flaky else one for one in found.receipts]


def _left_pending(facts: Truth, found: Evidence) -> None:
    found.pending = 1


def _short_stream(facts: Truth, found: Evidence) -> None:
    found.length -= 1


def _server_forgot(facts: Truth, found: Evidence) -> None:
    found.incidents.resumptions.append(Resumption(facts.ids[9], facts.ids[8], 0))


def _server_forgot_an_early_one(facts: Truth, found: Evidence) -> None:
    found.survived = [9]


def _nobody_killed(facts: Truth, found: Evidence) -> None:
    found.incidents = replace(found.incidents, victim="", held=[])


def _not_claimed(facts: Truth, found: Evidence) -> None:
    held = found.incidents.held[0]
    found.receipts = [one._replace(worker="worker-2") if one.id == held else one for one in found.receipts]


def _alert_missing(facts: Truth, found: Evidence) -> None:
    found.alerts.pop(0)


def _alert_too_many(facts: Truth, found: Evidence) -> None:
    found.alerts.append(("1-1", {"of": facts.ids[3], "kind": "cancelled"}))


def _alert_repeated(facts: Truth, found: Evidence) -> None:
    once = {one.id for one in found.receipts if one.deliveries == 1}
    found.alerts.append(next(entry for entry in found.alerts if entry[1]["of"] in once))


def _dead_missing(facts: Truth, found: Evidence) -> None:
    found.dead.pop()


def _dead_twice(facts: Truth, found: Evidence) -> None:
    found.dead.append(found.dead[0])


def _dead_changed(facts: Truth, found: Evidence) -> None:
    found.dead[0][1]["origin"] = "XXX"


def _dead_for_another_reason(facts: Truth, found: Evidence) -> None:
    found.dead[0][1]["_dead.error"] = "ZeroDivisionError"


def _hour_missing(facts: Truth, found: Evidence) -> None:
    found.tables["hourly_by_airport"] = found.tables["hourly_by_airport"].iloc[1:]


def _counted_twice(facts: Truth, found: Evidence) -> None:
    found.tables["hourly_by_carrier"].loc[0, "flights"] += 1


def _mean_off(facts: Truth, found: Evidence) -> None:
    found.tables["hourly_by_carrier"].loc[5, "mean"] += 1e-6


def _routes_out_of_order(facts: Truth, found: Evidence) -> None:
    found.routes.reverse()


def _no_routes(facts: Truth, found: Evidence) -> None:
    found.routes = []


SPOILT: list[tuple[Callable[[Truth, Evidence], None], str]] = [
    (_lose_receipt, "events lost"),
    (_unknown_receipt, "handled, but never sent"),
    (_unexplained_repeat, "handled more than once"),
    (_no_retry, "failed once, handled later"),
    (_left_pending, "left pending"),
    (_short_stream, "flights published"),
    (_server_forgot, "acknowledged before the server was killed"),
    (_server_forgot_an_early_one, "acknowledged before the server was killed"),
    (_nobody_killed, "entries in hand"),
    (_not_claimed, "claimed and settled by others"),
    (_alert_missing, "60 minutes late"),
    (_alert_too_many, "cancelled, with an aircraft"),
    (_alert_repeated, "raised twice"),
    (_dead_missing, "cancelled, without an aircraft"),
    (_dead_twice, "set aside more than once"),
    (_dead_changed, "still carry their flight"),
    (_dead_for_another_reason, "names the missing tailnum"),
    (_hour_missing, "hours by airport"),
    (_counted_twice, "hours by carrier"),
    (_mean_off, "hours by carrier"),
    (_routes_out_of_order, "busiest routes"),
    (_no_routes, "busiest routes"),
]


@pytest.mark.parametrize(("spoil", "what"), SPOILT, ids=lambda case: getattr(case, "__name__", ""))
def test_fault_is_found(facts: Truth, faultless: Evidence, spoil: Callable[..., None], what: str) -> None:
    """For each planted fault, the check for it fails."""
    spoil(facts, faultless)
    failed = [check.what for check in check_all(facts, faultless) if not check.ok]
    assert any(what in one for one in failed), failed

"""The checks: the expected value, the actual value and the result of each."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flights import receipts, rules
from flights.checks.evidence import Evidence
from flights.checks.truth import Truth, flight_text
from flights.producer import as_pair

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 1e-9
"""Largest difference allowed between two means, relative to the larger; sums and counts must be equal."""


@dataclass(frozen=True)
class Check:
    """One line of the table.

    Attributes:
        part: Part of the path that it checks.
        what: The promise.
        expected: Value from the source file, or the rule.
        found: Value that the run left.
        ok: True if the promise was kept.
    """

    part: str
    what: str
    expected: str
    found: str
    ok: bool


def equal(part: str, what: str, expected: int | str, found: int | str) -> Check:
    """Return a check that two values are the same."""
    return Check(part, what, _text(expected), _text(found), expected == found)


def _text(value: float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def check_all(truth: Truth, evidence: Evidence) -> list[Check]:
    """Return every check, in the order of the path."""
    return [
        *stream_checks(truth, evidence),
        *worker_checks(truth, evidence),
        *crash_checks(evidence),
        *alert_checks(truth, evidence),
        *dead_checks(truth, evidence),
        *spark_checks(truth, evidence),
    ]


def stream_checks(truth: Truth, evidence: Evidence) -> Iterator[Check]:
    """Check the published events."""
    yield equal("stream", "flights published", truth.rows, evidence.length)
    yield equal("stream", "id of the first", truth.first_id, evidence.first_id)
    yield equal("stream", "id of the last", truth.last_id, evidence.last_id)
    for last, survived in zip(evidence.incidents.acknowledged, evidence.survived, strict=True):
        acknowledged = truth.ids.index(last) + 1
        resumed = evidence.incidents.resumptions
        lost = any(as_pair(one.found) < as_pair(one.acknowledged) for one in resumed)
        known = sum(one.known for one in resumed)
        yield Check(
            "stream",
            "acknowledged before the server was killed",
            _text(acknowledged),
            _text(survived) + (f" (and {known:,} more in flight)" if known else ""),
            survived == acknowledged and not lost,
        )


def worker_checks(truth: Truth, evidence: Evidence) -> Iterator[Check]:
    """Check the work of the consumer group."""
    handled = Counter(one.id for one in evidence.receipts if one.outcome in receipts.HANDLED)
    dead = {fields_of(entry)["id"] for entry in evidence.dead}
    every = set(truth.ids)
    yield equal("workers", "events handled, or dead letters", truth.rows, len(every & (set(handled) | dead)))
    yield equal("workers", "events lost", 0, len(every - set(handled) - dead))
    yield equal("workers", "handled, but never sent", 0, len(set(handled) - every))
    yield equal("workers", "left pending, or never delivered", 0, evidence.pending + evidence.lag)
    again = {entry_id for entry_id, count in handled.items() if count > 1}
    redelivered = {one.id for one in evidence.receipts if one.deliveries > 1}
    repeats = sum(handled.values()) - len(handled)
    yield Check("workers", "handled more than once, each redelivered", "counted", f"{repeats:,}", again <= redelivered)
    retried = {one.id for one in evidence.receipts if one.deliveries > 1 and one.outcome in receipts.HANDLED}
    yield equal(
        "workers",
        f"flights to {rules.FLAKY_DESTINATION}: failed once, handled later",
        len(truth.flaky),
        len(truth.flaky & retried),
    )


def crash_checks(evidence: Evidence) -> Iterator[Check]:
    """Check the entries that the killed worker held."""
    incidents = evidence.incidents
    held = set(incidents.held)
    yield Check(
        "crash",
        "entries in hand when it was killed",
        "at least 1",
        f"{len(held):,} ({incidents.victim or 'no worker was killed'})",
        bool(held),
    )
    others = {one.id for one in evidence.receipts if one.worker != incidents.victim and one.deliveries > 1}
    settled = others | {fields_of(entry)["id"] for entry in evidence.dead}
    yield equal("crash", "of these, claimed and settled by others", len(held), len(held & settled))


def alert_checks(truth: Truth, evidence: Evidence) -> Iterator[Check]:
    """Check the alerts against the rules."""
    by_kind: dict[str, set[str]] = {"late": set(), "cancelled": set()}
    for _, fields in evidence.alerts:
        by_kind.setdefault(fields["kind"], set()).add(fields["of"])
    notices = truth.cancelled - set(truth.unusable)
    what = f"left {rules.ALERT_MINUTES} minutes late or more"
    yield _same_set("alerts", what, truth.delayed, by_kind["late"])
    yield _same_set("alerts", "cancelled, with an aircraft", notices, by_kind["cancelled"])
    distinct = sum(len(ids) for ids in by_kind.values())
    redelivered = {one.id for one in evidence.receipts if one.deliveries > 1}
    count = Counter(fields["of"] for _, fields in evidence.alerts)
    again = {entry_id for entry_id, number in count.items() if number > 1}
    yield Check(
        "alerts",
        "raised twice, each redelivered",
        "counted",
        f"{len(evidence.alerts) - distinct:,}",
        again <= redelivered,
    )


def dead_checks(truth: Truth, evidence: Evidence) -> Iterator[Check]:
    """Check the dead letters, and all cancelled flights."""
    letters = [fields_of(entry) for entry in evidence.dead]
    dead = {one["id"] for one in letters}
    yield _same_set("dead letters", "cancelled, without an aircraft", set(truth.unusable), dead)
    yield equal("dead letters", "set aside more than once", 0, len(letters) - len(dead))
    kept = sum(truth.unusable.get(one["id"]) == one["flight"] for one in letters)
    yield equal("dead letters", "that still carry their flight", len(truth.unusable), kept)
    reasons = sum("tailnum" in one["error"] for one in letters)
    yield equal("dead letters", "whose error names the missing tailnum", len(letters), reasons)
    noticed = {fields["of"] for _, fields in evidence.alerts if fields["kind"] == "cancelled"}
    yield Check(
        "dead letters",
        "all cancelled flights = alerts + dead letters",
        _text(len(truth.cancelled)),
        f"{len(noticed):,} + {len(dead):,}",
        noticed | dead == truth.cancelled and not noticed & dead,
    )


def fields_of(entry: tuple[str, dict[str, str]]) -> dict[str, str]:
    """Return the ``id`` of a dead letter's entry, its ``error`` and its ``flight``."""
    fields = entry[1]
    flight = flight_text(fields["carrier"], fields["flight"], fields["origin"], fields["dest"])
    return {"id": fields["_dead.id"], "error": fields["_dead.error"], "flight": flight}


def spark_checks(truth: Truth, evidence: Evidence) -> Iterator[Check]:
    """Check the pipeline's tables against those of pandas."""
    airports, carriers = evidence.tables["hourly_by_airport"], evidence.tables["hourly_by_carrier"]
    yield equal("spark", "flights counted, each once", truth.rows, int(airports["flights"].sum()))
    yield equal("spark", "of which left", truth.departed, int(airports["departed"].sum()))
    yield equal("spark", "minutes of delay in all", truth.delay, int(airports["delay"].sum()))
    yield _same_table("hours by airport, rows equal", truth.airports, airports, ["time_hour", "origin"])
    yield _same_table("hours by carrier, rows equal", truth.carriers, carriers, ["time_hour", "carrier"])
    expected = [route_text(row) for row in truth.routes.to_dict(orient="records")]
    found = [route_text(row) for row in evidence.routes]
    right = sum(one == other for one, other in zip(expected, found, strict=False))
    yield Check("spark", "busiest routes in the stream, equal", _text(len(expected)), _text(right), expected == found)


def route_text(row: Any) -> str:
    """Return a route and its sums as one text, for comparison."""
    return f"{row['origin']}-{row['dest']}: {int(row['flights']):,} flights, {int(row['delay']):,} min"


def _same_set(part: str, what: str, expected: set[str], found: set[str]) -> Check:
    wrong = len(expected ^ found)
    text = _text(len(found)) + (f" ({wrong} differ)" if wrong else "")
    return Check(part, what, _text(len(expected)), text, not wrong)


def _same_table(what: str, expected: "pd.DataFrame", found: "pd.DataFrame", keys: list[str]) -> Check:
    """Return True if two tables have the same keys, counts and sums, and means that differ only by rounding."""
    merged = expected.merge(found, on=keys, how="outer", suffixes=("_e", "_f"), indicator=True)
    same = merged["_merge"] == "both"
    for column in ("flights", "departed", "delay"):
        same &= merged[f"{column}_e"] == merged[f"{column}_f"]
    difference = (merged["mean_e"] - merged["mean_f"]).abs()
    close = difference <= TOLERANCE * merged["mean_e"].abs().clip(lower=1)
    same &= close | (merged["mean_e"].isna() & merged["mean_f"].isna())
    largest = float(difference.max()) if len(merged) else 0.0
    return Check(
        "spark",
        what,
        _text(len(expected)),
        _text(int(same.sum())) + (f" (means differ by {largest:.0e} at most)" if largest else ""),
        bool(same.all()) and len(merged) == len(expected),
    )

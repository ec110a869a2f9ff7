"""The flights as events: complete, in time order, cleaned, each with a unique id."""

import itertools

import pytest

from flights import data, rules
from flights.checks.truth import Truth, compute
from flights.data import FlightEvent
from flights.producer import as_pair
from millstream.errors import UsageError


@pytest.fixture(scope="module")
def year() -> list[FlightEvent]:
    """Return every event of the year."""
    return list(data.events())


def test_every_flight_is_an_event_in_time_order(year: list[FlightEvent]) -> None:
    """Every flight is an event, and ids increase strictly."""
    assert len(year) == 336_776
    ids = [as_pair(event.id) for event in year]
    assert all(before < after for before, after in itertools.pairwise(ids))


def test_id_is_the_scheduled_departure(year: list[FlightEvent]) -> None:
    """An event's id is the scheduled departure in UTC: 10:15 for the first flight, due at 5:15 in New York."""
    assert year[0].id == "1357035300000-0"
    assert year[0].fields["carrier"] + year[0].fields["flight"] == "UA1545"


def test_missing_values_are_absent_fields(year: list[FlightEvent]) -> None:
    """A missing value is an absent field, and the year's incomplete rows have the known numbers."""
    assert not any(value in {"", "NA"} for event in year for value in event.fields.values())
    assert sum("dep_time" not in event.fields for event in year) == 8_255
    assert sum("tailnum" not in event.fields for event in year) == 2_512
    assert not any("tailnum" not in event.fields and "dep_time" in event.fields for event in year)


def test_two_ways_lead_to_the_same_ids(year: list[FlightEvent]) -> None:
    """The ids that pandas computes are those of the events read line by line."""
    facts = compute()
    assert facts.ids == [event.id for event in year]
    figures = (len(facts.cancelled), len(facts.unusable), len(facts.delayed), facts.departed, len(facts.airports))
    assert figures == (8_255, 2_512, 27_059, 328_521, 19_486)


def test_truths_equal_a_plain_count(year: list[FlightEvent], facts: Truth) -> None:
    """The expected results of a short run equal a count without pandas."""
    some = year[: facts.rows]
    late = {event.id for event in some if int(event.fields.get("dep_delay", 0)) >= rules.ALERT_MINUTES}
    assert facts.delayed == late
    assert facts.delay == sum(int(event.fields.get("dep_delay", 0)) for event in some)
    lax = [event for event in some if (event.fields["origin"], event.fields["dest"]) == ("JFK", "LAX")]
    row = facts.routes[(facts.routes["origin"] == "JFK") & (facts.routes["dest"] == "LAX")].iloc[0]
    assert row["flights"] == len(lax)


def test_short_run_has_every_kind_of_trouble(facts: Truth) -> None:
    """Even the shortest run has late, cancelled, unusable and flaky flights."""
    shortest = compute(1_000)
    assert shortest.cancelled
    assert shortest.delayed
    assert shortest.flaky
    assert facts.unusable


def test_short_run_is_the_beginning_of_the_year(year: list[FlightEvent]) -> None:
    """``--rows N`` uses the first N events."""
    assert list(data.events(2_000)) == year[:2_000]


def test_missing_file_says_what_to_install() -> None:
    """Without the demo's data, the error states how to install it."""
    with pytest.raises(UsageError, match=r"pip install -e '\.\[demo\]'"):
        data.data_file("no-such-file.csv")

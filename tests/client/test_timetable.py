"""Cron lines and intervals: their times in every zone, also when clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from millstream.client.later.recurring import Placing, Recurring, placing
from millstream.client.later.timetable import MOST, Timetable, timetable
from millstream.errors import ConfigError

ZONES = (
    *("Europe/Berlin", "Europe/London", "Europe/Lisbon", "America/New_York", "America/Sao_Paulo", "America/St_Johns"),
    *("Africa/Casablanca", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Auckland", "Pacific/Apia"),
)
MINUTE = 60_000


def ms(text: str) -> int:
    """Return the milliseconds of an ISO time."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def times_of(table: Timetable, after: str, count: int) -> list[str]:
    """Return the next times in UTC."""
    found = islice(table.after(ms(after)), count)
    return [datetime.fromtimestamp(at / 1000, UTC).strftime("%m-%d %H:%M") for at in found]


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        ("30 2 * * *", "2026-03-28T12:00Z", ["03-29 01:00", "03-30 00:30"]),  # 02:30 does not exist on the 29th
        ("30 2 * * *", "2026-10-24T12:00Z", ["10-25 00:30", "10-26 01:30"]),  # and exists twice on the 25th of October
        ("*/30 * * * *", "2026-10-24T23:59Z", ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30"]),
        ("0 0 29 2 *", "2026-01-01T00:00Z", ["02-28 23:00"]),
    ],
)
def test_nights_when_clocks_change(line: str, after: str, expected: list[str]) -> None:
    """A daily time fires once where it is skipped and once where it occurs twice. Other times follow the clock."""
    assert times_of(timetable("x", line, tz="Europe/Berlin"), after, len(expected)) == expected


@pytest.mark.parametrize("zone", ZONES)
def test_a_daily_time_fires_once_a_day_all_year(zone: str) -> None:
    """A daily time fires once a day in twelve zones for a year, at its time unless that is skipped."""
    for line, hour, minute in (("30 2 * * *", 2, 30), ("15 1 * * *", 1, 15), ("0 0 * * *", 0, 0)):
        table = timetable("x", line, tz=zone)
        days = []
        for at in islice(table.after(ms("2026-01-01T12:00Z")), 365):
            local = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
            days.append(local.date())
            exact = (local.hour, local.minute) == (hour, minute)
            before = (datetime.fromtimestamp(at / 1000, UTC) - timedelta(minutes=1)).astimezone(ZoneInfo(zone))
            assert exact or local.utcoffset() != before.utcoffset(), f"{zone}: {local}"
        assert days == [days[0] + timedelta(days=n) for n in range(365)]


def test_an_interval_is_a_grid_that_nothing_moves() -> None:
    """An interval's times are multiples of it since 1970 plus the offset."""
    table = timetable("x", every="6h", offset="1h")
    for after in ("2026-01-01T00:00Z", "2026-01-01T06:59:59Z", "2026-03-29T02:30+02:00"):
        (at,) = islice(table.after(ms(after)), 1)
        assert at % (6 * 60 * MINUTE) == 60 * MINUTE
        assert 0 < at - ms(after) <= 6 * 60 * MINUTE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "0 0 30 2 *"}, "day"),
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": ""}, "five fields"),
        ({"cron": 5}, "five fields"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, "time zone"),
        ({"cron": "* * * * *", "tz": "../etc/passwd"}, "time zone"),
        ({"cron": "* * * * *", "every": 5}, "either"),
        ({}, "either"),
        ({"every": 0.5}, "one second"),
        ({"every": "soon"}, "length of time"),
        ({"every": 5, "catch_up": "some"}, "catch_up"),
        ({"every": 5, "overlap": "no"}, "overlap"),
        ({"every": 5, "jitter": -1}, "between 0"),
    ],
)
def test_a_wrong_timetable_is_refused(options: dict[str, object], words: str) -> None:
    """A wrong timetable is an error with the schedule's name and the correct form."""
    with pytest.raises(ConfigError, match=f"(?i)schedule 'x'.*{words}"):
        timetable("x", **options)  # type: ignore[arg-type] # wrong on purpose


def table(catch_up: str) -> Timetable:
    """Build a timetable of every minute."""
    return timetable("x", every="1m", catch_up=catch_up, grace="90s")  # type: ignore[arg-type] # drawn


NOW = 100 * MINUTE + 30_000


@pytest.mark.parametrize(
    ("catch_up", "placed", "expected"),
    [
        ("latest", None, (101, [])),
        ("latest", 101, None),
        ("latest", 100, (101, [])),
        ("latest", 97, (100, [98, 99])),
        ("none", 97, (99, [98])),
        ("none", 99, (100, [])),
        ("all", 97, (98, [])),
        ("all", None, (101, [])),
    ],
)
def test_missed_firings_are_made_up_for_as_it_was_said(
    catch_up: str, placed: int | None, expected: tuple[int, list[int]] | None
) -> None:
    """After missed firings ``catch_up`` runs one, those within the grace, or all. The others are counted."""
    found = placing(table(catch_up), None if placed is None else placed * MINUTE, NOW)
    if expected is None:
        assert found is None
        return
    at, missed = expected
    assert found == Placing(at * MINUTE, (at + 1) * MINUTE, tuple(one * MINUTE for one in missed))


@pytest.mark.parametrize("catch_up", ["latest", "none", "all"])
@pytest.mark.parametrize("line", [None, "* * * * *"])
def test_a_very_long_outage_takes_no_long_look(catch_up: str, line: str | None) -> None:
    """After ten years of missed minutes the catch-up is bounded, and the next firing is not long past."""
    one = timetable("x", line, every=None if line else "1m", catch_up=catch_up)  # type: ignore[arg-type] # drawn
    now = ms("2026-01-01T00:00:30Z")
    found = placing(one, ms("2016-01-01T00:00Z"), now)
    assert found is not None
    assert found.more
    assert len(found.missed) <= MOST
    if catch_up == "all":
        assert found.at_ms == ms("2026-01-01T00:00Z") - (MOST - 1) * MINUTE
    else:
        assert found.at_ms == ms("2026-01-01T00:00Z")  # 30 s late, and the grace is a minute


def test_a_declaration_survives_its_way_to_the_server() -> None:
    """A schedule declaration is read back equal. A foreign one is ignored."""
    one = Recurring("näme", timetable("x", "0 3 * * *", tz="Asia/Tokyo"), "s", (b"*", b"\xff", b""), True, "g", 5, 6)
    assert Recurring.of_json(one.to_json().encode()) == one
    for text in (b"", b"[]", b"{}", b'{"table": {"cron": "x"}}', one.to_json().replace("0 3", "99 3").encode()):
        assert Recurring.of_json(text) is None

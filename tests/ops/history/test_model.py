"""Tables of figures: what a writer writes is read again, and nothing else is read as figures."""

import zlib

import pytest

from millstream.ops.history import model
from millstream.ops.history.model import Row, Subject, merged, named, opened, packed, row_of, table
from millstream.ops.history.windows import RANGES, stepped, window_of

GROUP = ("group", 'or"ders\n\udcff', "bil ling")
ROWS: dict[Subject, Row] = {
    model.TOTAL: (12, 0, 3, 1.5, None, 0, 0.25, 0, 123_456_789, 1234.5),
    GROUP: ((3, 9), 250, 0, 0.333),
    ("version", "1.2"): (4,),
    ("handler", "bill", "orders", "billing"): (1, 0, None),
}


@pytest.mark.parametrize("copies", [1, 100])
def test_figures_come_back(copies: int) -> None:
    """Names of any bytes, bounds and unknown figures come back from a plain and from a compressed table."""
    rows = ROWS | {("group", "other", str(number)): (number, 0, 0, 0) for number in range(copies)}
    field, value = packed(table(rows))
    lines = opened([b"v", b"1", field.encode(), value])
    assert field == ("text" if copies == 1 else "zlib")
    assert lines is not None
    assert {subject: row_of(lines, subject) for subject in rows} == rows
    assert (named(lines, "version"), len(named(lines, "handler"))) == ({("version", "1.2")}, 1)
    assert row_of(lines, ("group", "other", "nope")) is None


@pytest.mark.parametrize(
    "flat",
    [
        None,
        [],
        [b"v"],
        [b"v", b"2", b"text", b""],
        [b"text", b'["total"] 1'],
        [b"v", b"1", b"zlib", b"not compressed"],
        [b"v", b"1", b"zlib", zlib.compress(b"cut")[:-2]],
        [b"v", b"1", b"zlib", zlib.compress(bytes(model.LARGEST + 1))],
        [b"v", b"1", b"text", bytes(model.LARGEST + 1)],
    ],
)
def test_other_entries_are_not_tables(flat: "list[bytes] | None") -> None:
    """An entry of another form, of another version, or of more bytes than a table may have, is not opened."""
    assert opened(flat) is None


@pytest.mark.parametrize(
    "cells", ["", "1", "1 2 3", "1 2 x 4", "nan 0 0 0", "1 2 inf 0", "-1 0 0 0", "1 0 0 ..", f"{9**40} 0 0 0"]
)
def test_a_damaged_line_has_no_figures(cells: str) -> None:
    """A line with too few figures, or with others than finite positive ones, is skipped; others stay."""
    lines = f'\n["group","a","b"] {cells}\n["group","a","c"] 1 2 3 4 5'.encode(errors="surrogateescape")
    assert row_of(lines, ("group", "a", "b")) is None
    assert row_of(lines, ("group", "a", "c")) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "name", ["", "[" * 100_000, '["version"', '["version",5]', '["version",{}]', '["version","a","b"]']
)
def test_a_hostile_name_is_skipped(name: str) -> None:
    """Names that no writer writes are skipped."""
    assert named(f'\n["version",{name}] 1\n["version","9"] 1'.encode(), "version") == {("version", "9")}


def test_a_table_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that do not fit are left out, so that the table can be opened."""
    monkeypatch.setattr(model, "LARGEST", 100)
    lines = table({("group", "orders", str(number)): (1, 2, 3, 4) for number in range(10)})
    assert (len(lines) <= 100, lines.count(b"\n")) == (True, 2)


def test_five_minutes_keep_means_of_rates_and_peaks_of_the_others() -> None:
    """A rate becomes its mean and another figure its highest one; unknown figures are left out."""
    rows: list[Row] = [(5, 100, None, 1.0), ((0, 9), 300, None, 3.0), (2, 200, None, None)]
    assert merged(rows, model.COLUMNS["group"]) == (5, 300, None, 2.0)


def test_ranges_have_steps_that_fit() -> None:
    """Each range has at most 300 steps, aligned so that a live chart moves by whole steps."""
    now = 1_800_000_003_210
    for name, wide in RANGES.items():
        found = window_of(name, now)
        assert (found.name, found.start_ms % found.step_ms, found.steps <= 301) == (name, 0, True)
        assert found.end_ms >= now
        assert now - wide >= found.start_ms > now - wide - found.step_ms
    assert [window_of(name, now).fine for name in RANGES] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("", RANGES["1h"]),
        ("9h", RANGES["1h"]),
        ("1800000000000-1800000900000", 900_000),
        ("1800000000000-1800000000001", 60_000),
        ("1800000900000-1800000000000", 60_000),
        ("0-99999999999999", RANGES["30d"]),
        ("5-1", 60_000),
        ("99999999999999-0", 60_000),
        ("-5-3", RANGES["1h"]),
    ],
)
def test_any_range_in_an_address_is_a_range(text: str, wide: int) -> None:
    """A range is at least a minute and at most 30 days, and does not end in the future."""
    now = 1_800_003_600_000
    found = window_of(text, now)
    assert wide <= found.end_ms - found.start_ms <= wide + 2 * found.step_ms
    assert found.end_ms <= now + found.step_ms
    assert window_of(found.moved(-0.5, -0.5), now).start_ms <= found.start_ms


def test_a_step_has_the_mean_and_the_ends() -> None:
    """Readings of one step become their mean with the lowest and the highest; a step without any stays empty."""
    window = window_of("15m", 1_800_000_000_000)
    at = window.start_ms
    steps = stepped(
        [(at, 1), (at + 9_999, 3), (at + 20_000, (5, 8)), (at - 1, 99), (window.end_ms, 99), (at, None)], window
    )
    found = [None if step is None else (step.value, step.least, step.most) for step in steps]
    assert found[:4] == [(2, 1, 3), None, (None, 5, 8), None]
    assert set(found[4:]) == {None}


def test_the_highest_figures_stay_finite() -> None:
    """The highest figures that a client may cause, or write, give finite sums and points."""
    row = (2.0**100, (2**62, 2**63), 0, 1.0)
    back = row_of(opened([b"v", b"1", *_pair(packed(table({GROUP: row})))]) or b"", GROUP)
    assert back == (1e18, (1e18, 1e18), 0, 1)
    high = row_of(b'\n["stream","a"] 1e308 1e308 1e308', ("stream", "a"))
    assert high is not None
    window = window_of("1h", 3_600_000)
    (step,) = [one for one in stepped([(60_000, high[0]), (60_001, high[0])], window) if one is not None]
    assert step.value == 1e18


def test_names_are_looked_for_in_few_and_short_lines() -> None:
    """Damaged lines count like others, and a line of megabytes has no name: any client may have written the table."""
    damaged = b'\n["version",' * 1000 + b'\n["version","1.2"] 3'
    assert named(damaged, "version", 20) == frozenset()
    long = b'\n["version","' + b"x" * 5000 + b'"] 3\n["version","1.2"] 3'
    assert named(long, "version", 20) == {("version", "1.2")}


def test_a_very_long_name_leaves_out_its_own_line_alone() -> None:
    """A name of megabytes takes no other series from the table, and does not fill the stream."""
    rows: dict[Subject, Row] = {("version", "x" * model.LARGEST): (1,), ("stream", "a"): (1, 2, 3)}
    assert table(rows) == b'["stream","a"] 1 2 3'


def _pair(field: tuple[str, bytes]) -> list[bytes]:
    return [field[0].encode(), field[1]]

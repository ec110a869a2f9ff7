"""Figures of one moment: rates between readings, percentiles of all workers, and the choice of series."""

import json
from dataclasses import replace
from typing import Any

import pytest

from millstream.client.partitions.layout import HIGHEST_ID, first_layout
from millstream.ops.history.model import TOTAL
from millstream.ops.history.own import OwnHistory
from millstream.ops.history.sampling import CounterRates, Sampler
from millstream.ops.history.windows import window_of
from millstream.ops.server.status import server_status
from millstream.ops.streams.partitioned import with_sums
from millstream.ops.streams.status import GroupStatus, Lag, OldestEntry, StreamsSeen, StreamStatus
from millstream.ops.workers.status import WorkerStatus, worker_status
from millstream.worker.registry import facts

HANDLER = ("handler", "bill", "orders", "billing")


def record(name: str, beat_ms: int, handled: int, bounds: Any = None, runs: Any = None) -> dict[str, Any]:
    """Return a worker's record."""
    one = {"handler": "bill", "stream": "orders", "group": "billing", "handled": handled, "failed": 0}
    one |= {"recent": runs if runs is None or isinstance(runs, str) else {"runs": runs}}
    one |= {**dict.fromkeys(("slots", "running", "buffered", "dead"), 0), "consumer": "c", "paused": None, "jobs": []}
    if isinstance(runs, list):
        one["recent"] |= dict.fromkeys(("over_ms", "handled", "failed", "retried", "dead"), 0)
    about = {"host": "h", "state": "running", "pid": 1, "started_ms": 1, "last_error": None, "blocked": None}
    return {**about, "id": name, "version": "1", "beat_ms": beat_ms, "bounds_ms": bounds, "subscribers": [one]}


def worker(name: str, beat_ms: int, handled: int, bounds: Any = (), runs: Any = None, **about: Any) -> WorkerStatus:
    """Return a worker's report."""
    return worker_status({**record(name, beat_ms, handled, bounds, runs), **about})


def test_rates_are_of_counters() -> None:
    """A rate needs two readings of a counter that grew; the same report again has the same rate."""
    rates = CounterRates()
    found = [rates.rate(("a",), *each) for each in ((0, 5), (1000, 15), (1000, 15), (2000, 3), (4000, 5), (5000, None))]
    assert found == [None, 10, 10, None, 1, None]
    rates.keep([])
    assert rates.rate(("a",), 6000, 9) is None


def test_the_reports_of_workers_are_bounded() -> None:
    """Any client may report more versions and handlers than there are; the first ones count."""
    sampler, many = Sampler(), [worker(f"w{number}", 1000, 1, version=f"v{number}") for number in range(100)]
    sub = record("x", 1000, 1)["subscribers"][0]
    many.append(worker("x", 1000, 1, subscribers=[sub | {"handler": f"h{number}"} for number in range(60_000)]))
    sampler.note_workers(many)
    assert sum(name[0] == "version" for name in sampler.rows) == 20
    assert sum(name[0] == "handler" for name in sampler.rows) == 50_000 - 99


def test_a_rate_goes_on_after_a_clock_was_set_back() -> None:
    """A counter begins anew at a time before the last one, and does not keep its last rate for a day."""
    rates = CounterRates()
    found = [rates.rate(("a",), *each) for each in ((86_400_000, 5), (86_401_000, 15), (1000, 15), (2000, 16))]
    assert found == [None, 10, None, 1]


def test_a_console_goes_on_after_a_clock_was_set_back() -> None:
    """The figures of a console's own readings continue after the clock was set back by a day."""
    own, subject = OwnHistory(), ("stream", "s1")
    for at_ms in (100_000_000, 100_010_000, 1_000_000, 1_010_000):
        own.note(StreamsSeen(at_ms, (stream(1, 0),)), whole=True)
        last = own.read((subject,), window_of("15m", at_ms + 1))
    assert [at for at, _ in last.rows[subject]] == [1_000_000, 1_010_000]


def test_a_console_keeps_figures_of_handlers_and_servers() -> None:
    """A console's own history also has the handlers, the memory and the commands, and a mark for a new version."""
    own, info = OwnHistory(), {"used_memory": "1000", "instantaneous_ops_per_sec": "7"}
    for at_ms, handled, version in ((100_000_000, 5, "1"), (100_010_000, 25, "2")):
        own.note_besides([worker("a", at_ms, handled, version=version)], [server_status(info, at_ms)] * 2)
        own.note(StreamsSeen(at_ms, (stream(1, 1),)), whole=True)
    seen = own.read((TOTAL, HANDLER), window_of("15m", 100_010_001))
    assert seen.column(HANDLER, "handled") == [(100_000_000, 0), (100_010_000, 2)]
    assert [seen.column(TOTAL, name)[-1][1] for name in ("memory", "commands")] == [2000, 14]
    assert [mark.text for mark in seen.marks] == ["workers of version 2"]


def test_workers_are_summed() -> None:
    """The runs of all workers are added, and their percentile is that of all their last minutes."""
    sampler = Sampler()
    bounds = [10.0, 25.0, 50.0]
    sampler.note_workers([worker("a", 1000, 100, bounds, [90, 4]), worker("b", 1000, 7, bounds, [0, 0, 0, 6])])
    sampler.note_workers([worker("a", 2000, 110, bounds, [90, 4]), worker("b", 2000, 12, bounds, [0, 0, 0, 6])])
    assert sampler.rows[HANDLER] == (15, 0, 50)
    assert sampler.rows["version", "1"] == (2,)
    sampler.note_workers([worker("a", 3000, 120, bounds, [10, 80, 10])])
    assert sampler.rows[HANDLER][2] == 37.5, "it lies within its bucket"
    sampler.note_workers([])
    assert sampler.rows == {}


@pytest.mark.parametrize(
    ("bounds", "runs"),
    [
        *((None, [1]), ([], [1]), ([1.0], None), ([1.0], "x"), ([1.0], [1, 2, 3]), (["1"], [1]), ([1.0], ["1"])),
        *(([1.0], [-1]), ([1.0], [10**30]), ([1.0], [0]), ({}, {}), ([float("nan")], [1])),
    ],
)
def test_a_hostile_report_has_no_percentile(bounds: Any, runs: Any) -> None:
    """A record with other figures than a histogram leaves the percentile unknown, and the counters known."""
    sampler, found = Sampler(), facts.parse("a", json.dumps(record("a", 1000, 100, bounds, runs)).encode())
    assert found is not None
    sampler.note_workers([worker_status(found)])
    assert sampler.rows[HANDLER] == (0, 0, None)


def stream(number: int, groups: int) -> StreamStatus:
    """Return a stream whose groups lag by its number."""
    lag = Lag(number, at_least=number, at_most=number)
    one = OldestEntry()
    there = tuple(
        GroupStatus(f"s{number}", f"g{each}", 1, 0, "1-0", 5, lag, oldest_undelivered=one) for each in range(groups)
    )
    return StreamStatus(f"s{number}", 9, "9-0", "1-0", "9-0", 9, "0-0", there)


def test_at_most_the_limit_is_chosen() -> None:
    """The total, handlers and the groups with the most lag are chosen, up to the limit of series."""
    sampler = Sampler()
    seen = StreamsSeen(1000, tuple(stream(number, 3) for number in range(200)))
    sampler.note(seen, whole=True)
    sampler.note_workers([worker("a", 1000, 1)])
    found = sampler.chosen(seen)
    assert found[0] == TOTAL
    assert HANDLER in found
    assert ("group", "s199", "g0") in found
    assert ("group", "s0", "g0") not in found
    wide = {"total": 10, "handler": 3, "group": 4, "stream": 3, "version": 0}
    assert 380 < sum(wide[name[0]] for name in found) <= 400
    assert sampler.total()[0] == sum(range(200)) * 3


def test_a_part_of_the_groups_keeps_the_age_of_the_others() -> None:
    """A reading without the ages of some groups leaves their last known ones."""
    sampler = Sampler()
    sampler.note(StreamsSeen(1000, (stream(1, 1),)), whole=True)
    bare = StreamStatus("s1", 9, "9-0", "1-0", "9-0", 9, "0-0", (GroupStatus("s1", "g0", 1, 0, "1-0", 5, Lag(4)),))
    sampler.note(StreamsSeen(2000, (bare,)), whole=False)
    assert sampler.rows["group", "s1", "g0"] == (4, 0, 0, 0)


def test_the_figures_of_partitions_are_summed() -> None:
    """A partitioned stream has the sums of its partitions, which count once in the totals; another stream has not."""
    many = [one.key for one in PARTS]
    assert many == ["orders", "orders{0}", "orders{1}", "plain", "plain{1}", "orders{1}:dead"]
    seen = with_sums(StreamsSeen(1000, PARTS), LAYOUTS)
    assert [(one.key, one.length) for one in seen.streams if one.partitions is not None] == [("orders", 6)]
    sampler = Sampler()
    sampler.note(seen, whole=True)
    later = tuple(replace(one, entries_added=(one.entries_added or 0) + 10) for one in PARTS)
    sampler.note(with_sums(StreamsSeen(11_000, later), LAYOUTS), whole=True)
    assert sampler.rows["stream", "orders"] == (6, 3.0, 3)  # the sealed stream's counter grows too in this test
    assert sampler.rows["group", "orders", "g0"][:3] == (3, 0, 0)
    assert sampler.rows["stream", "plain"] == (3, 1.0, 0)
    lag, _, _, added, *_ = sampler.total()
    assert (lag, added) == (3 + 7, 6.0)


def test_a_key_outside_the_layout_counts_in_no_sum() -> None:
    """A stream that only has the form of a partition is a stream of its own."""
    seen = with_sums(StreamsSeen(1000, (*PARTS, part("orders{9}", 5))), LAYOUTS)
    assert {one.key: one.length for one in seen.streams}["orders"] == 6


@pytest.mark.parametrize("lag", [None, 5])
def test_an_unknown_lag_of_a_partition_bounds_the_sum(lag: int | None) -> None:
    """If the lag of one partition is unknown, the sum has bounds."""
    unknown = Lag(lag, at_least=1, at_most=5)
    one = PARTS[2]
    parts = (*PARTS[:2], replace(one, groups=(replace(one.groups[0], lag=unknown),)))
    sampler = Sampler()
    sampler.note(with_sums(StreamsSeen(1000, parts), LAYOUTS), whole=True)
    assert sampler.rows["group", "orders", "g0"][0] == ((2, 6) if lag is None else 6)


def part(key: str, lag: int, last: str = "9-0", length: int = 3) -> StreamStatus:
    """Return a stream with a group of this lag; none without a lag."""
    group = GroupStatus(
        key, "g0", 1, 0, "1-0", 5, Lag(lag, at_least=lag, at_most=lag), oldest_undelivered=OldestEntry()
    )
    return StreamStatus(key, length, last, "1-0", "9-0", 9, "0-0", (group,) if lag else ())


LAYOUTS = {"orders": first_layout("orders", 2, None)}
PARTS = (
    part("orders", 0, HIGHEST_ID, 0),
    part("orders{0}", 1),
    part("orders{1}", 2),
    part("plain", 3),
    part("plain{1}", 4),
    part("orders{1}:dead", 0),
)

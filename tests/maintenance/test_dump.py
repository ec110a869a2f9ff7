"""Records as people and programs read them: every op, selected by position, time, key and kind."""

import inspect
from pathlib import Path

import pytest

from maintenance.conftest import START, STEP, content, write_log, xadd
from maintenance.test_examine import damage_middle
from millstream.engine import collection_ops, ids, keyspace
from millstream.errors import LogCorruptError, UsageError
from millstream.maintenance.log.dump import Choice, dump
from millstream.maintenance.log.moment import Moment, parse_moment
from millstream.maintenance.log.records import read_record, wall_of
from millstream.node.log import codec
from millstream.persistence.log import Log


def positions(home: Path, **chosen: object) -> list[int]:
    return [record.position for record in dump(home, Choice(**chosen))]


def test_all_and_a_part(home: Path) -> None:
    """``log dump`` selects records by position and by time, including both ends."""
    before = content(home)
    assert positions(home) == list(range(1, 21))
    assert positions(home, start=Moment(position=7), end=Moment(position=9)) == [7, 8, 9]
    at = START + 6 * STEP
    assert positions(home, start=Moment(ms=at), end=Moment(ms=at + STEP)) == [7, 8]
    assert positions(home, start=Moment(ms=at + 1), end=Moment(position=8)) == [8]
    assert content(home) == before


def test_by_key_and_kind(tmp_path: Path) -> None:
    """A selection by key or kind shows only the matching changes of a record."""
    both = codec.pack(START, [("set", 0, b"a", b"x", None), ("gack", 0, b"orders:1", b"g", ids.pack(5))])
    write_log(tmp_path / "data", [xadd(1), both, codec.pack(START, [("flush", 3)])])
    home = tmp_path / "data"
    assert [[c.op for c in r.changes] for r in dump(home, Choice(key="orders*"))] == [["xnew", "xadd"], ["gack"]]
    assert [[c.op for c in r.changes] for r in dump(home, Choice(streams=True))] == [["xnew", "xadd"], ["gack"]]
    assert [[c.op for c in r.changes] for r in dump(home, Choice(key="a"))] == [["set"]]
    assert [[c.op for c in r.changes] for r in dump(home, Choice())][2] == ["flush"]


def test_keys_are_chosen_as_keys_and_scan_choose_them(tmp_path: Path) -> None:
    """Keys are selected by the patterns of KEYS and SCAN, not by those of Python's fnmatch."""
    names = [b"a1", b"b1", b"x*", b"xy", b"\xff"]
    write_log(tmp_path / "data", [codec.pack(START, [("set", 0, name, b"x", None)]) for name in names])
    home = tmp_path / "data"
    assert positions(home, key="[^a]1") == [2]
    assert positions(home, key="x\\*") == [3]
    assert positions(home, key="x*") == [3, 4]
    assert positions(home, key="[!a]1") == [1]
    assert positions(home, key="\udcff") == [5]


def test_beside_a_running_owner(home: Path) -> None:
    """A dump beside a running owner takes no lock and shows the latest records."""
    log, _ = Log.open(home)
    log.append(xadd(21))
    log.write()
    assert positions(home)[-1] == 21
    log.close()


def test_damage(home: Path) -> None:
    """A dump of a damaged log shows the records before the damage, then an error, or all readable ones on request."""
    damage_middle(home)
    shown = []
    with pytest.raises(LogCorruptError, match="damaged"):
        shown.extend(record.position for record in dump(home, Choice()))
    whole = positions(home, past_damage=True)
    (damaged,) = set(range(1, 21)) - set(whole)
    assert shown == list(range(1, damaged))


def test_sentences() -> None:
    """A change is shown as a sentence with readable ids, times, scores and payloads, and quoted bytes."""
    steps = [
        ("xadd", 2, b"k\xff", ids.pack(ids.make(5, 6)), [b"f", b"\x00"], False, None),
        ("gack", 0, b"k", b"g", ids.pack_all([ids.make(1, 0), ids.make(2, 3)])),
        ("zadd", 0, b"z", [b"m"], collection_ops.pack_scores([1.5])),
        ("restore", 0, b"r", b"x" * 90, None),
        ("swap", 0, 1),
    ]
    record = read_record(9, codec.pack(START, steps))
    assert (record.position, record.wall) == (9, START)
    assert [change.sentence() for change in record.changes] == [
        r"xadd db2 'k\xff' entry_id=5-6 fields=['f', '\x00'] fresh=False",
        "gack db0 'k' group='g' ids=[1-0, 2-3]",
        "zadd db0 'z' members=['m'] scores=[1.5]",
        "restore db0 'r' payload=(90 bytes)",
        "swap db0 other=1",
    ]
    assert [change.key for change in record.changes] == [b"k\xff", b"k", b"z", b"r", None]
    assert wall_of(9, codec.pack(START, steps)) == START


def test_an_op_that_is_not_known_is_shown_all_the_same() -> None:
    """A record with an unknown op of a later version is shown."""
    record = read_record(1, codec.pack(START, [("xlater", 0, b"k", 7)]))
    assert record.changes[0].sentence() == "xlater argument1=0 argument2='k' argument3=7"


def test_an_older_record_is_shown_with_its_names() -> None:
    """A record of an older version is shown without the fields that were added later."""
    old = ("gread", 0, b"k", b"g", b"c", START, ids.pack(7), False)
    new = (*old, ids.pack(5))
    (before,), (after,) = (read_record(1, codec.pack(START, [step])).changes for step in (old, new))
    assert (before.key, before.arguments["upto"]) == (b"k", "0-7")
    assert after.arguments == {**before.arguments, "after": "0-5"}


def test_every_op_begins_with_its_database() -> None:
    """Every op's applier begins with database and key, which the dump relies on."""
    for op, applier in keyspace.OPS.items():
        names = tuple(inspect.signature(applier).parameters)
        assert names[:2] == ("space", "db"), op
        assert names[2:3] == ("key",) or op in {"flush", "swap", "hist", "off", "role", "tpacks"}, op


def test_records_of_cold_entries_are_short() -> None:
    """Extents and plans are shown by their sizes, and the ids of entries as ids."""
    steps = [("tcold", 0, b"s", 1, bytes(176), []), ("xdel", 0, b"s", ids.pack(5 << 64), [[0, 1, b"", b"", bytes(64)]])]
    placed, deleted = read_record(1, codec.pack(START, steps)).changes
    assert placed.sentence() == "tcold db0 's' pack=1 extents=(176 bytes) holes=(0 parts)"
    assert deleted.sentence() == "xdel db0 's' ids=[5-0] places=(1 part)"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("4711", Moment(position=4711)),
        ("1772366400000", Moment(ms=START)),
        ("2026-03-01T12:00:00", Moment(ms=START)),
        ("2026-03-01T13:00:00+01:00", Moment(ms=START)),
        ("2026-03-01T12:00:00.250Z", Moment(ms=START + 250)),
        ("10m ago", Moment(ms=START - 600_000)),
        ("2d ago", Moment(ms=START - 2 * 86_400_000)),
    ],
)
def test_places(word: str, expected: Moment) -> None:
    """A place in a log is a position, a time with or without a zone, or an age."""
    assert parse_moment(word, START) == expected


@pytest.mark.parametrize("word", ["", "yesterday", "-5", "10 minutes", "2026-13-01"])
def test_no_places(word: str) -> None:
    """An invalid place is refused with the valid forms."""
    with pytest.raises(UsageError, match="not a position in a log"):
        parse_moment(word, START)

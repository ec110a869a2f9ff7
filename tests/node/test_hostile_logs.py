"""Logs of broken and hostile primaries are refused, or accepted and then equal after a rewriting and a start."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream import core
from millstream.engine.ids import pack
from millstream.engine.keyspace import Keyspace
from millstream.errors import LogCorruptError, StorageError
from millstream.maintenance.backup.backup import back_up
from millstream.maintenance.backup.restore import restore
from millstream.maintenance.log.examine import examine_directory, kind_of
from millstream.node.log import codec
from millstream.node.log.foreign import from_copy
from millstream.node.log.replay import read_back
from millstream.persistence.disk import RealDisk
from millstream.persistence.log import Log
from millstream.persistence.rewrite import make
from node.hostile_logs import outcomes
from support import campaign

NEW = ("xnew", 0, b"s", 100, 100)
GROUP = ("gnew", 0, b"s", b"g", pack(0), 0)
CONSUMER = ("gconsumers", 0, b"s", b"g", [b"c", 1, 1])
HASH = ("hset", 0, b"h", [b"f", b"v"])
LIST = ("lpush", 0, b"l", [b"a"], False)


def add(number: int, *, fresh: bool = False) -> tuple[Any, ...]:
    return ("xadd", 0, b"s", pack(number), [b"f", b"v"], fresh, None)


def pending(*ids: int) -> tuple[Any, ...]:
    count = len(ids)
    return ("gpending", 0, b"s", b"g", b"".join(map(pack, ids)), [0] * count, [1] * count, [1] * count)


def node(*ids: int, dead: list[int] | None = None, **other: Any) -> list[Any]:
    """Return a packed node with the given invalid parts."""
    wires = [b"*2\r\n$3\r\n0-%d\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n" % each for each in ids]
    starts = [sum(map(len, wires[:at])) for at in range(len(wires))]
    places = b"".join(each.to_bytes(4, "little") for each in starts)
    parts = {
        "ids": b"".join(map(pack, ids)),
        "places": places,
        "dead": dead or [],
        "counters": [0, len(ids), 50],
        "names": [b"f"],
        "wire": b"".join(wires),
    }
    return list((parts | other).values())


def blocks(*nodes: list[Any]) -> list[tuple[Any, ...]]:
    return [("xmake", 0, b"s", pack(9), pack(0), [2, 100, 100, 0, 0]), ("xblocks", 0, b"s", list(nodes))]


HOSTILE: dict[str, list[tuple[Any, ...]]] = {
    "an entry twice": [NEW, add(5, fresh=True), add(5)],
    "an entry twice, in two nodes": [NEW, add(5, fresh=True), add(5, fresh=True)],
    "an id below the last": [NEW, add(5, fresh=True), add(4)],
    "the id 0-0": [NEW, add(0, fresh=True)],
    "an id at the last of an empty stream": [NEW, ("xsetid", 0, b"s", pack(7), None, None), add(7, fresh=True)],
    "a last id below an entry": [NEW, add(5, fresh=True), ("xsetid", 0, b"s", pack(4), None, None)],
    "an entry in no node": [NEW, add(5)],
    "an empty list": [LIST, ("lpop", 0, b"l", 1, True)],
    "an empty hash": [HASH, ("hdel", 0, b"h", [b"f"])],
    "an empty hash that was made so": [("hset", 0, b"h", [])],
    "an empty set": [("vnew", 0, b"e", b"set", b"listpack")],
    "an empty sorted set": [("zadd", 0, b"z", [], b"")],
    "a time of no key": [("expire", 0, b"nowhere", 5)],
    "database -1": [("set", -1, b"k", b"v", None)],
    "database 16": [("set", 16, b"k", b"v", None)],
    "a move to database -1": [HASH, ("move", 0, b"h", -1, b"h")],
    "a swap with database -1": [("swap", 0, -1)],
    "two gigabytes of nothing": [("overwrite", 0, b"k", 2**31, b"x")],
    "a place before the string": [("set", 0, b"k", b"value", None), ("overwrite", 0, b"k", -2, b"x")],
    "bytes taken back": [("off", 0, -5)],
    "bytes of no history": [("off", -1, 5)],
    "a database of no history": [("off", 0, 0)],
    "a history without a name": [("hist", -1, "", 5, "", -1)],
    "earlier names of no history": [("hist", -1, "", 0, "", -1, ["x" * 40, 5])],
    "a group's record twice": [NEW, GROUP, CONSUMER, pending(3, 3), ("gsort", 0, b"s", b"g")],
    "records without an order": [NEW, GROUP, CONSUMER, pending(3)],
    "a change among records": [NEW, GROUP, CONSUMER, pending(3), ("gack", 0, b"s", b"g", pack(3))],
    "a record of nobody": [NEW, GROUP, pending(3), ("gsort", 0, b"s", b"g")],
    "a consumer twice": [NEW, GROUP, CONSUMER, CONSUMER],
    "a time beyond 64 bits": [NEW, GROUP, ("cseen", 0, b"s", b"g", b"c", 2**63)],
    "less than no delivery": [NEW, GROUP, ("gclaim", 0, b"s", b"g", b"c", 1, 1, pack(3), [-1])],
    "half an id": [NEW, ("xdel", 0, b"s", bytes(17))],
    "a node with an entry twice": blocks(node(3, 3)),
    "two nodes with the same entry": blocks(node(3), node(3)),
    "nodes in another order": blocks(node(5), node(3)),
    "a node that begins with 0-0": blocks(node(0)),
    "a node with ids of others": blocks(node(3, ids=pack(4))),
    "a node with other names": blocks(node(3, names=[b"g"])),
    "a node with other places": blocks(node(3, places=bytes(8))),
    "a node with other counters": blocks(node(3, counters=[1, 1, 50])),
    "a node with a tombstone too many": blocks(node(3, dead=[1])),
    "a node with bytes of anything": blocks(node(3, wire=b"*2\r\n$3\r\n0-3\r\n*2\r\n:1\r\n:2\r\n")),
    "a node with words too many": blocks(node(3, wire=b"*2\r\n$3\r\n0-3\r\n*999999998\r\n$1\r\nf\r\n$1\r\nv\r\n")),
    "an entry again that lies above the last id": [
        ("xmake", 0, b"s", pack(2), pack(0), [2, 100, 100, 0, 0]),
        ("xblocks", 0, b"s", [node(3)]),
        add(3),
        ("xsetid", 0, b"s", pack(9), None, None),
    ],
    "a node with an entry above the last id": blocks(node(10, wire=node(10)[5].replace(b"$3\r\n0-10", b"$4\r\n0-10"))),
}


@pytest.mark.parametrize("apart", [False, True], ids=["one record", "a record each"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_snapshot_could_not_bring_back_is_not_taken(name: str, *, apart: bool) -> None:
    """A record is refused if it would make the next snapshot unreadable, or later commands fail."""
    steps = HOSTILE[name]
    records = [codec.pack(0, [step]) for step in steps] if apart else [codec.pack(0, steps)]
    with pytest.raises((ValueError, TypeError, LookupError, OverflowError)):
        from_copy(records)


@pytest.mark.parametrize(
    "record", [b"\x93\x01\x00\x80", b"\x93\x01\xc0\x90", b"\x93\x01\xff\x90", b"\x93\x01\x00\xc4\x00"], ids=bytes.hex
)
def test_a_record_has_a_time_and_transitions(record: bytes) -> None:
    """A record without a valid time is refused by a start and by `log check` alike."""
    with pytest.raises(ValueError, match="time"):
        from_copy([record])


def lines(name: str, first: int, count: int) -> list[str]:
    """Return the outcomes of some logs on a core."""
    words = [sys.executable, "-m", "node.hostile_logs", str(first), str(count)]
    env = os.environ | {core.VARIABLE: name, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout.splitlines()


def both_agree(first: int, count: int) -> int:
    """Try some logs on both cores; return their number."""
    mine = list(outcomes(first, count))
    theirs = mine if core.native is None else lines(core.PYTHON, first, count)
    assert mine == theirs, [pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]][:3]
    return count


def test_a_changed_log_is_refused_or_comes_back_from_a_snapshot() -> None:
    """A changed log is refused, or has equal data after a start, and after a rewriting and a start, on both cores."""
    both_agree(0, 250)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_changed_logs_are_refused_or_come_back_from_a_snapshot() -> None:
    """200,000 changed logs are refused, or have equal data after a start and after a rewriting, on both cores."""
    campaign.run("hostile-logs", lambda seed: both_agree(seed * 2000, 2000), range(1, 101), unit="logs")


def directory_of(path: Path, *steps: tuple[Any, ...]) -> Path:
    """Return a data directory whose log has these records."""
    log, _ = Log.open(path)
    for step in steps:
        log.append(codec.pack(1, [step]))
    log.write()
    log.sync()
    log.close()
    return path


def test_check_backup_and_restore_read_a_directory_as_a_start_does(tmp_path: Path) -> None:
    """Check, backup and restore refuse a directory that no start accepts, or that the next rewriting would destroy."""
    home = directory_of(tmp_path / "bad", *HOSTILE["an entry twice"])
    found = examine_directory(home)
    assert [kind_of(each) for each in found.report.problems] == ["illegible"]
    assert not found.report.starts
    assert "record 3 is as it was written" in found.report.problems[0].text
    with pytest.raises(LogCorruptError, match="record 3 is as it was written"):
        back_up(home, tmp_path / "copy")
    with pytest.raises(LogCorruptError, match="record 3 is as it was written"):
        restore(home, tmp_path / "other")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad"]
    good = directory_of(tmp_path / "good", NEW, add(5, fresh=True), add(6))
    assert examine_directory(good).report.ok
    back_up(good, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "other")


@pytest.mark.parametrize("name", ["an entry twice", "a consumer twice", "nodes in another order"])
def test_a_snapshot_that_a_start_cannot_read_replaces_nothing(tmp_path: Path, name: str) -> None:
    """A rewriting whose snapshot no start can read is given up, and the log stays and continues."""
    directory_of(tmp_path, NEW)
    log, _ = Log.open(tmp_path)
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    made = [codec.pack(0, [step]) for step in HOSTILE[name]]
    with pytest.raises(StorageError, match="cannot be applied"):
        make(RealDisk(), tmp_path, rewrite, made, partial(read_back, Keyspace()))
    log.remove_obsolete()
    log.append(codec.pack(1, [add(5, fresh=True)]))
    log.write()
    log.close()
    space = Keyspace()
    log, recovered = Log.open(tmp_path)
    read_back(space, recovered.payloads())
    log.close()
    assert space.databases[0].keys.keys() == {b"s"}

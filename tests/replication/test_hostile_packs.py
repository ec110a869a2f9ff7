"""A primary that sends packs of other sizes, names, numbers or contents: the replica loses nothing, and says why."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from typing import Any
from zlib import crc32

import pytest

from millstream import core
from millstream.engine.cold import Extent
from millstream.engine.history import NO_DATABASE
from millstream.engine.ids import pack as pack_id
from millstream.node.log import codec
from millstream.node.log.copied_log import PACKED, read_head
from millstream.persistence.frame import HEADER_SIZE
from millstream.server.thread import ServerThread
from node.test_copied_log import Whole, sent
from replication.test_following_redis import follow
from replication.test_link import ID, Primary
from replication.test_packed_copy import manifest
from replication.test_redis_follows import info
from support.coldness import IS_COLD
from support.packed import PackedWorld, packed
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)
if core.native is None:
    pytest.skip("the Python core takes no packs of others", allow_module_level=True)

HISTORY = ("hist", NO_DATABASE, ID, 100, "", -1)
Facts = dict[str, Any]


def copy_of(home: Path, *steps: tuple[Any, ...]) -> bytes:
    """Return a copy of a log with a stream in a pack, and of these transitions."""
    world = PackedWorld(home)
    world.fill("good")
    world.chill(b"good")
    world.seal()
    world.log.append(codec.pack(0, [HISTORY, *steps]))
    world.sync()
    files = world.log.files(world.log.appended, frozenset())
    data = sent(files) + b"".join((home / each.name).read_bytes()[:size] for each, size in files.packs or ())
    files.close()
    world.close()
    return data


def altered(data: bytes, change: Callable[[Facts], object]) -> bytes:
    """Return a copy with another head, whose checksum is right."""
    begin = len(PACKED) + 8
    length = int.from_bytes(data[len(PACKED) : len(PACKED) + 4], "little")
    facts = json.loads(data[begin : begin + length])
    change(facts)
    text = json.dumps(facts).encode()
    return PACKED + pack("<II", len(text), crc32(text)) + text + data[begin + length :]


def with_pack(**facts: object) -> Callable[[Facts], object]:
    """Return a change of the first pack in the manifest."""
    return lambda head: head["source"]["packs"][0].update(facts)


def with_size(difference: int, **facts: object) -> Callable[[Facts], object]:
    """Return a change of the size of the first pack, in the manifest only if that is said."""

    def change(head: Facts) -> None:
        head["packs"][0][1] += difference
        head["source"]["packs"][0].update(facts)

    return change


def size_of_pack(data: bytes) -> int:
    """Return the size of the only pack of a copy."""
    ((_, size),) = read_head(Whole(data).read_at).packs
    return size


def twice(head: Facts) -> None:
    """Name a pack twice."""
    head["source"]["packs"] *= 2
    head["packs"] *= 2


def renamed(head: Facts) -> None:
    """Give the pack another identity."""
    entry = head["source"]["packs"][0]
    entry["name"] = entry["name"].replace(entry["identity"], "f" * 16)
    entry["identity"] = "f" * 16


def unnamed(head: Facts) -> None:
    """Name no pack, though records refer to one."""
    head["source"]["packs"], head["packs"] = [], []


HEADS: dict[str, tuple[Callable[[Facts], object], str]] = {
    "a pack that is here, it says": (lambda head: head["packs"].clear(), "bytes than its list of files says"),
    "a larger size": (with_size(1), "its list of files is invalid"),
    "a negative size": (with_size(-(10**6)), "its list of files is invalid"),
    "a huge size": (with_size(10**15), "its list of files is invalid"),
    "a huge size in both places": (with_size(2**46, bytes=None, sealed=False), "the primary's copy needs "),
    "a size that is text": (lambda head: head["packs"].append([1, "1"]), "its list of files is invalid"),
    "another pack": (lambda head: head["packs"].append([2, 100]), "its list of files is invalid"),
    "a pack without a size": (lambda head: head.update(packs=[[1]]), "its list of files is invalid"),
    "a pack without a number": (lambda head: head.update(packs=[[]]), "its list of files is invalid"),
    "a pack that is text": (lambda head: head.update(packs=["a"]), "its list of files is invalid"),
    "packs as a number": (lambda head: head.update(packs=5), "its list of files is invalid"),
    "a pack twice": (twice, "two packs have the same number"),
    "a name with a slash": (with_pack(name="../../pack"), "is not a pack"),
    "a name of another": (with_pack(name="snapshot"), "is not a pack"),
    "an identity with a slash": (with_pack(identity="../../../etc/pass"), "is not a mark of a file"),
    "another identity": (renamed, "is damaged"),
    "a number too high": (lambda head: head["source"].update(next_pack=2**40), "the number of the next pack"),
    "a number below": (lambda head: head["source"].update(next_pack=1), "the number of the next pack"),
    "no pack": (unnamed, "bytes than its list of files says"),
}
ROW = Extent(1, HEADER_SIZE, 200, 1, 1, 1, 1 << 64, 1 << 64, 1 << 64, 1 << 64)


def cold(extent: Extent, holes: list[Any] | None = None) -> tuple[tuple[Any, ...], ...]:
    """Return transitions of a stream whose cold part is one extent."""
    node = ("xadd", 0, b"x", pack_id((8 << 64) + 1), [b"f", b"v"], True, None)
    return ("xnew", 0, b"x", 100, 100), ("tcold", 0, b"x", extent.pack, extent.row(), holes or []), node


RECORDS: dict[str, tuple[tuple[tuple[Any, ...], ...], str]] = {
    "another pack": (cold(ROW._replace(pack=7)), "in pack 7, which did not come along"),
    "a pack beyond all numbers": (cold(ROW._replace(pack=2**32 + 1)), "argument 3 of tcold is 4294967297"),
    "an offset outside": (cold(ROW._replace(offset=1 << 40)), "beyond the end of pack 1"),
    "an end outside": (cold(ROW._replace(length=1 << 24)), "beyond the end of pack 1"),
    "an offset in the header": (cold(ROW._replace(offset=0)), "beyond the end of pack 1"),
    "another identity": ((("tpacks", -1, [[1, "f" * 16, 0]]),), "which did not come along"),
    "packs with a text as their number": ((("tpacks", -1, [["1", "f" * 16, 0]]),), "argument 2 of tpacks is damaged"),
    "holes of anything": (cold(ROW, [["x", b"", b""]]), "argument 5 of tcold is damaged"),
    "holes beyond": (cold(ROW, [[9, b"", b""]]), "holes of an extent that is not there"),
    "no hot node": (cold(ROW)[:2], "the stream at b'x'"),
    "more live than stored": (cold(ROW._replace(live=5)), "extents out of order"),
    "live ends outside": (cold(ROW._replace(last_live=2 << 64)), "extents out of order"),
    "deaths of other places": ((*cold(ROW), ("xdel", 0, b"x", b"", [[5, 0, b"", b"", bytes(64)]])), "not there"),
    "ends that come back": (
        (*cold(ROW._replace(stored=2, live=2)), ("xdel", 0, b"x", pack_id(1 << 64), [[0, 1, b"", b"", b"\xff" * 64]])),
        "the stream at b'x'",
    ),
    "places of anything": ((*cold(ROW), ("xtrim", 0, b"x", None, False, True, [5])), "argument 6 of xtrim is"),
}


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Wire]:
    packed(tmp_path / "replica")
    with ServerThread(tmp_path / "replica") as server, Wire(server.url) as wire:
        yield wire


def expect_refused(
    replica: Wire, home: Path, data: bytes, good: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Send a copy that is refused for this reason and replaces nothing, then a good one."""
    before = manifest(home).packs
    primary = Primary(data, good)
    try:
        follow(replica, primary.port)
        eventually(lambda: reason in caplog.text, what=f"{reason} is told")
        if replica.ask("EXISTS", "s"):  # else the next copy was quick
            assert manifest(home).packs == before
            assert len(replica.ask("XRANGE", "s", "-", "+")) == 20
        eventually(lambda: replica.ask("XLEN", "good") == 20, what="the next copy is taken")
        assert len(replica.ask("XRANGE", "good", "-", "+")) == 20
        assert replica.ask("DBSIZE") == 1
        names = {each.name for each in manifest(home).packs}
        eventually(lambda: {path.name for path in home.glob("*.pack")} == names, what="nothing else is left")
    finally:
        primary.close()


@pytest.mark.parametrize("what", HEADS)
def test_a_head_that_somebody_made_up(
    replica: Wire, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """A head with sizes, names or numbers of no pack is refused before anything is written."""
    change, reason = HEADS[what]
    good = copy_of(tmp_path / "primary")
    expect_refused(replica, tmp_path / "replica", altered(good, change), good, reason, caplog)


@pytest.mark.parametrize("what", RECORDS)
def test_records_of_other_places(replica: Wire, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Records of entries that are in no pack of the copy are refused."""
    steps, reason = RECORDS[what]
    bad = copy_of(tmp_path / "bad", *steps)
    expect_refused(replica, tmp_path / "replica", bad, copy_of(tmp_path / "primary"), reason, caplog)


@pytest.mark.parametrize("what", ["more", "less", "a byte", "a pack"])
def test_other_bytes_than_announced(replica: Wire, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Data without an end, or cut short, or with one byte changed, or without a pack, are refused."""
    good = copy_of(tmp_path / "primary")
    bad, reason = {
        "more": (good + b"x" * 100_000, "bytes than its list of files says"),
        "less": (good[:-1], "bytes than its list of files says"),
        "a pack": (altered(good, lambda head: head["packs"].clear())[: -size_of_pack(good)], "does not bring pack 1"),
        "a byte": (good[:-300] + bytes([good[-300] ^ 1]) + good[-299:], "is damaged at byte "),
    }[what]
    expect_refused(replica, tmp_path / "replica", bad, good, reason, caplog)


def test_packs_that_nobody_asked_for(tmp_path: Path) -> None:
    """A replica without a directory refuses a log with packs."""
    good = copy_of(tmp_path / "primary")
    primary = Primary(good)
    try:
        with ServerThread() as server, Wire(server.url) as replica:
            replica.ask("SET", "mine", "v")
            follow(replica, primary.port)
            said = "sent packs to a server without a data directory"
            eventually(lambda: said in info(replica).get("millstream_link_error", ""), what="it is told")
            assert replica.ask("GET", "mine") == b"v"
    finally:
        primary.close()

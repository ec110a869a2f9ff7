"""Damage of packs: an error to the readers of the damaged entries, and to nobody else."""

import re
from random import Random
from typing import Any

import pytest

from millstream.engine.cold import FRAME_HEAD, cold_records, unpack_extents
from millstream.engine.streams import extents
from millstream.replies import Error
from node.test_cold import ColdWorld, aging, extent_length, filled
from support.coldness import IS_COLD, BadSector
from support.inprocess import Client

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

SMALL = {"stream-node-max-entries": "3"}


def test_any_changed_byte_is_found_by_who_reads_it_and_by_nobody_else() -> None:
    """A change of any byte of an extent is an error of its readers; every other command works."""
    world = ColdWorld()
    client = filled(world, 8)
    client.call("XDEL", "s", "2-1")
    right = client.call("XRANGE", "s", "-", "+")
    filled(world, 8, "other")
    world.chill()
    world.chill(b"other")
    (row,) = (rows for _, rows, _ in cold_records(world.stream().entries, 10))
    file = world.packs.files[1]
    damaged, named = 0, dict[str, int]()
    for at in range(FRAME_HEAD, extent_length(row)):
        file[at] ^= 0x21
        client.call("COPY", "s", "copy", "REPLACE")  # a copy has not read its extents yet
        reply = client.call("XRANGE", "copy", "-", "+")
        if isinstance(reply, Error):
            found = re.match(r"MSDAMAGED entries (.*) of 'copy' cannot be read: pack-1 is damaged at", reply.line)
            assert found is not None, reply.line
            named[found[1]] = named.get(found[1], 0) + 1
            damaged += 1
        else:
            assert reply == right, at
        file[at] ^= 0x21
    assert damaged == extent_length(row) - FRAME_HEAD
    sizes = [each.size for each in extents.rows(bytes(file[FRAME_HEAD : extent_length(row)]))]
    assert [named.pop(node) for node in ("1-1 to 3-1", "4-1 to 6-1")] == sizes
    assert named == {"1-1 to 6-1": damaged - sum(sizes)}  # of the table
    client.call("DEL", "copy")
    file[FRAME_HEAD] ^= 1
    assert isinstance(client.call("XRANGE", "s", "-", "+"), Error)
    assert client.call("XRANGE", "s", "7-0", "+") == right[-2:]  # type: ignore[index]  # a reply may be anything
    assert len(client.call("XRANGE", "other", "-", "+")) == 8  # type: ignore[arg-type]  # a reply may be anything
    assert client.call("XADD", "s", "9-1", "f", "v") == b"9-1"
    assert client.call("XLEN", "s") == 8
    assert client.call("XTRIM", "s", "MINID", "7-0") == 5
    world.expect_replay()


def test_damage_refuses_no_new_entry(caplog: pytest.LogCaptureFixture) -> None:
    """XADD that trims succeeds where the oldest entries cannot be read: it trims nothing, and the log says so once."""
    world = ColdWorld()
    client, reader = filled(world), world.client()
    world.chill()
    reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    world.packs.fails = True
    for number in (21, 22):
        assert client.call("XADD", "s", "MAXLEN", 10, f"{number}-1", "f", "v") == b"%d-1" % number
    assert not reader.waits
    assert client.call("XLEN", "s") == 22
    assert caplog.text.count("entries 7-1 to 12-1 of 's' cannot be read") == 1
    assert isinstance(client.call("XTRIM", "s", "MAXLEN", 10), Error)
    world.packs.fails = False
    assert client.call("XADD", "s", "MAXLEN", 10, "23-1", "f", "v") == b"23-1"
    assert client.call("XLEN", "s") == 10
    world.expect_replay()


def test_damage_ends_no_work_of_the_node_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Retention keeps a damaged extent until all of it is too old; who waits for a claim in it gets the error."""
    world, client = aging(each=4)
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", 1, "STREAMS", "s", ">")
    client.call("XGROUP", "SETID", "s", "g", "$")
    other = world.client()
    other.send("XREADGROUP", "GROUP", "g", "b", "BLOCK", 0, "CLAIM", 100, "STREAMS", "s", ">")
    assert other.waits
    world.packs.files[1][FRAME_HEAD] ^= 1  # the first extent is that of "s"
    world.stream().entries = world.stream().entries.copy()  # a copy has not read its extents yet
    world.advance(2000)
    world.advance(2000)
    assert client.call("XLEN", "s") == 12
    assert 0 < client.call("XLEN", "t") < 12  # type: ignore[operator]  # a reply may be anything
    assert caplog.text.count("retention removes the oldest entries of s later, since they cannot be read") == 1
    (reply,) = other.inbox
    assert isinstance(reply, Error)
    assert reply.line.startswith("MSDAMAGED")
    world.advance(86_400_000)
    assert client.call("XLEN", "s") == client.call("XLEN", "t") == 0


def test_a_group_stays_where_damage_is() -> None:
    """XREADGROUP reports damage and moves no position, so that nothing is skipped silently."""
    world = ColdWorld()
    client = filled(world)
    client.call("XGROUP", "CREATE", "s", "g", 0)
    world.chill()
    world.packs.fails = True
    read = ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"]
    for _ in range(2):
        reply = client.call(*read)
        assert isinstance(reply, Error)
        assert reply.line.startswith("MSDAMAGED")
    assert client.call("XPENDING", "s", "g")[0] == 0  # type: ignore[index]  # a reply may be anything
    world.packs.fails = False
    assert len(client.call(*read)[0][1]) == 20  # type: ignore[index]  # a reply may be anything
    world.expect_replay()


@pytest.mark.parametrize("count", [1, 2, 5, 50])
@pytest.mark.parametrize("unit", [False, True])
def test_a_group_that_goes_past_damage_as_documented_misses_only_that(
    count: int, unit: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names one block, and comes once all before it are delivered: SETID to its end skips nothing else."""
    world = ColdWorld()
    client = filled(world)
    client.call("XGROUP", "CREATE", "s", "g", 0)
    world.chill(each=6)
    (record,) = cold_records(world.stream().entries, 10)
    (extent,) = unpack_extents(*record)
    file, begin = world.packs.files[1], extent.offset + FRAME_HEAD
    whole = bytes(file)
    for node in extents.rows(whole[begin : extent.offset + extent.length])[2:5:2]:
        file[begin + node.begin + 3] ^= 0xFF
    found: list[bytes] = []
    passed = []
    while not found or found[-1] != b"20-1":
        if unit:
            client.call("MULTI")
        reply: Any = client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", count, "STREAMS", "s", ">")
        if unit:
            (reply,) = client.call("EXEC")  # type: ignore[misc]  # a reply may be anything
        if isinstance(reply, Error):
            passed.append(reply.line.partition(" of ")[0])
            client.call("XGROUP", "SETID", "s", "g", passed[-1].rpartition(" ")[2])
        else:
            found += [row[0] for row in reply[0][1]]
    assert passed == ["MSDAMAGED entries 7-1 to 9-1", "MSDAMAGED entries 13-1 to 15-1"]
    assert found == [b"%d-1" % each for each in range(1, 21) if each not in {7, 8, 9, 13, 14, 15}]
    assert [passed[at].partition(" ")[2] + " of" in caplog.text for at in (0, 1)] == [True, True]
    file[:] = whole
    world.expect_replay()


@pytest.mark.parametrize(
    "claim",
    [
        ["XREADGROUP", "GROUP", "g", "b", "CLAIM", "1", "STREAMS", "s", ">"],
        ["XAUTOCLAIM", "s", "g", "b", "1", "0", "COUNT", "100"],
        ["XCLAIM", "s", "g", "b", "0", *(f"{number}-1" for number in range(1, 21))],
    ],
    ids=lambda words: words[0],
)
def test_pending_damage_that_is_acknowledged_as_documented_moves_no_group(claim: list[str]) -> None:
    """The group is behind the damage already, so SETID to its end would deliver later entries again."""
    world = ColdWorld()
    client = filled(world)
    client.call("XGROUP", "CREATE", "s", "g", 0)
    client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    client.call("XACK", "s", "g", *(f"{number}-1" for number in range(1, 7)))
    world.chill()
    _damaged(world, b"s", 1)
    world.clock.advance(1)
    if claim[0] != "XCLAIM":  # the others come first
        assert not isinstance(client.call(*claim), Error)
    reply = client.call(*claim)
    assert isinstance(reply, Error)
    words = reply.line.split(" ")
    assert words[0] == "MSDAMAGED"
    pending: Any = client.call("XPENDING", "s", "g", words[2], words[4], 1000)
    lost = [row[0] for row in pending]
    assert client.call("XACK", "s", "g", *lost) == len(lost) == 3
    world.clock.advance(1)
    found: Any = client.call(*(word for word in claim if word.encode() not in lost))  # a client names pending entries
    rows = {"XREADGROUP": lambda: found[0][1], "XAUTOCLAIM": lambda: found[1], "XCLAIM": lambda: found}[claim[0]]()
    left = [b"%d-1" % number for number in range(7, 21) if b"%d-1" % number not in lost]
    assert [row[0] for row in rows] == left
    (facts,) = client.call("XINFO", "GROUPS", "s")  # type: ignore[misc]  # a reply may be anything
    assert facts[facts.index(b"last-delivered-id") + 1] == b"20-1"
    assert client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">") is None


def test_the_log_names_the_entries_of_damage_that_a_check_has_found(caplog: pytest.LogCaptureFixture) -> None:
    """The check knows only the place, so the first command that needs the entries gets a line of its own."""
    world = ColdWorld()
    client = filled(world)
    world.chill()
    _damaged(world, b"s", 0)
    world.node.cold.report_damage((1, 0, "pack-1", "the checksum of its frame is wrong"))
    for _ in range(2):
        assert "MSDAMAGED" in str(client.call("XRANGE", "s", "-", "+"))
    assert caplog.text.count("entries 4-1 to 6-1 of 's' cannot be read") == 1
    assert len(world.node.cold.damages()) == 1


def _damaged(world: ColdWorld, key: bytes, index: int) -> None:
    """Damage the last node of an extent."""
    (record,) = cold_records(world.stream(key).entries, 100)
    extent = unpack_extents(*record)[index]
    world.packs.files[extent.pack][extent.offset + extent.length - 3] ^= 0xFF


@pytest.mark.parametrize("unit", [False, True])
def test_what_was_claimed_before_damage_is_delivered(unit: bool) -> None:
    """Otherwise each try would count a delivery that no consumer gets, until the entries are dead letters."""
    world = ColdWorld()
    client = filled(world, 20)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "2", "STREAMS", "s", ">")
    world.chill()
    _damaged(world, b"s", 1)
    found = []
    for _ in range(3):
        world.clock.advance(1000)
        if unit:
            client.call("MULTI")
        reply: Any = client.call("XREADGROUP", "GROUP", "g", "b", "COUNT", "18", "CLAIM", "100", "STREAMS", "s", ">")
        replies: Any = client.call("EXEC") if unit else [reply]
        found.append([row[0] for row in replies[0][0][1]])
    pending: Any = client.call("XPENDING", "s", "g", "-", "+", "100")
    assert [row[3] for row in pending][:2] == [4, 4]
    assert found == [[row[0] for row in pending]] * 3
    client.call("XACK", "s", "g", *found[0])
    assert "MSDAMAGED" in str(client.call("XREADGROUP", "GROUP", "g", "b", "CLAIM", "0", "STREAMS", "s", ">"))


@pytest.mark.parametrize("order", ["sd", "ds"])
@pytest.mark.parametrize("unit", [False, True])
def test_damage_of_one_stream_leaves_the_others_of_a_read(order: str, unit: bool) -> None:
    """A read of several streams delivers those that are whole, and reports damage once nothing else is new."""
    world = ColdWorld()
    client = filled(world, 20)
    filled(world, 20, "d")
    for key in order:
        client.call("XGROUP", "CREATE", key, "g", "0")
        world.chill(key.encode(), each=1)
    _damaged(world, b"d", 0)

    def read() -> Any:
        if unit:
            client.call("MULTI")
        reply: Any = client.call("XREADGROUP", "GROUP", "g", "a", "NOACK", "COUNT", "15", "STREAMS", *order, ">", ">")
        replies: Any = client.call("EXEC") if unit else [reply]
        return replies[0]

    assert [[key, len(rows)] for key, rows in read()] == [[b"s", 15]]
    assert [[key, len(rows)] for key, rows in read()] == [[b"s", 5]]
    assert "MSDAMAGED" in str(read())
    assert len(world.node.cold.damages()) == 1


@pytest.mark.parametrize("order", ["sd", "ds"])
@pytest.mark.parametrize("budget", [[], ["MAXSIZE", "100000"], ["BLOCK", "0"]])
@pytest.mark.parametrize("unit", [False, True])
def test_damage_of_one_stream_leaves_the_others_of_a_plain_read(order: str, budget: list[str], unit: bool) -> None:
    """XREAD answers with the streams that are whole, so that their reader goes on; then it reports damage."""
    world = ColdWorld()
    client = filled(world, 20)
    filled(world, 20, "d")
    for key in order:
        world.chill(key.encode(), each=1)
    _damaged(world, b"d", 0)

    def read(after: str) -> Any:
        if unit:
            client.call("MULTI")
        positions = [after if key == "s" else "0" for key in order]
        reply: Any = client.call("XREAD", "COUNT", "15", *budget, "STREAMS", *order, *positions)
        replies: Any = client.call("EXEC") if unit else [reply]
        return replies[0]

    assert [[key, len(rows)] for key, rows in read("0")] == [[b"s", 15]]
    assert [[key, len(rows)] for key, rows in read("15-1")] == [[b"s", 5]]
    assert "MSDAMAGED" in str(read("20-1"))
    assert len(world.node.cold.damages()) == 1


@pytest.mark.parametrize("words", [["XACKDEL", "s", "g", "IDS"], ["XDELEX", "s", "DELREF", "IDS"], ["XDEL", "s"]])
def test_a_deletion_that_meets_damage_changes_nothing(words: list[str]) -> None:
    """In a transaction too: an entry that was acknowledged and not deleted would stay for ever."""
    world = ColdWorld()
    client = filled(world, 20)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    world.chill()
    _damaged(world, b"s", 1)
    ids = ["1-1", "12-1"]
    client.call("MULTI")
    client.call(*words, *(["2"] if "IDS" in words else []), *ids)
    assert "MSDAMAGED" in str(client.call("EXEC"))
    pending: Any = client.call("XPENDING", "s", "g")
    assert pending[0] == client.call("XLEN", "s") == 20


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("claim", [100, 100_000])
def test_a_damaged_pending_entry_stops_no_read_that_claims(claim: int, unit: bool) -> None:
    """Its stream delivers the other stale entries and the new ones; the damaged one does not count as delivered."""
    world = ColdWorld()
    client = filled(world, 20)
    filled(world, 3, "t")
    for key in "st":
        client.call("XGROUP", "CREATE", key, "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "15", "STREAMS", "s", ">")
    world.chill()
    _damaged(world, b"s", 1)
    world.clock.advance(1000)

    def read() -> Any:
        if unit:
            client.call("MULTI")
        words = ["XREADGROUP", "GROUP", "g", "b", "CLAIM", claim, "STREAMS", "s", "t", ">", ">"]
        reply: Any = client.call(*words)
        replies: Any = client.call("EXEC") if unit else [reply]
        return replies[0]

    is_due = claim == 100
    stale = [each for each in range(1, 16) if each not in {10, 11, 12}] if is_due else []
    assert [[int(row[0][:-2]) for row in rows] for _, rows in read()] == [[*stale, *range(16, 21)], [1, 2, 3]]
    pending: Any = client.call("XPENDING", "s", "g", "-", "+", "100")
    assert [row[1:4:2] for row in pending[9:12]] == [[b"a", 1]] * 3
    assert [row[3] for row in pending[:9]] == [2 if is_due else 1] * 9
    assert ("MSDAMAGED" in str(read())) == is_due
    _damaged(world, b"s", 1)  # whole again
    world.expect_replay()


def delivered() -> tuple[ColdWorld, Client]:
    """Make a stream of twenty cold entries, of which consumer a has 1 to 15 pending and 10 to 12 are damaged."""
    world = ColdWorld()
    client = filled(world, 20)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "15", "STREAMS", "s", ">")
    world.chill()
    _damaged(world, b"s", 1)
    return world, client


def numbers(rows: Any) -> list[int]:
    """Return the numbers of the entries of a reply."""
    return [int((row if isinstance(row, bytes) else row[0])[:-2]) for row in rows]


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("just", [[], ["JUSTID"]])
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_a_claim_of_all_passes_damage(count: int, just: list[str], unit: bool) -> None:
    """Entries that cannot be read stay pending, and those after them are claimed; then the error names them."""
    world, client = delivered()
    client.call("XDEL", "s", "14-1")
    world.clock.advance(1000)

    def claim(cursor: bytes) -> Any:
        if unit:
            client.call("MULTI")
        reply: Any = client.call("XAUTOCLAIM", "s", "g", "b", 500, cursor, "COUNT", count, *just)
        replies: Any = client.call("EXEC") if unit else [reply]
        return replies[0] if unit else reply

    found, gone, cursor = [], [], b"0-0"
    while cursor:
        cursor, rows, deleted = claim(cursor)
        found, gone = found + numbers(rows), gone + numbers(deleted)
        cursor = cursor if cursor != b"0-0" else b""
    assert found == [*range(1, 10), 13, 15]
    assert gone == [14]
    pending: Any = client.call("XPENDING", "s", "g", "-", "+", 100)
    assert [(int(row[0][:-2]), row[1], row[3]) for row in pending if row[1] == b"a"] == [
        (number, b"a", 1) for number in (10, 11, 12)
    ]
    assert len(world.node.cold.damages()) == 1
    for _ in range(2):
        assert "MSDAMAGED entries 10-1 to 12-1 of 's'" in str(claim(b"10-1"))
    before = client.call("XINFO", "CONSUMERS", "s", "g")
    world.clock.advance(100)
    assert "MSDAMAGED" in str(claim(b"10-1"))
    after: Any = client.call("XINFO", "CONSUMERS", "s", "g")
    assert [row[:4] for row in after] == [row[:4] for row in before]  # type: ignore[union-attr]  # a reply may be anything
    _damaged(world, b"s", 1)  # whole again
    assert numbers(claim(b"0-0")[1]) == [10, 11, 12][:count]
    world.expect_replay()


def test_damage_that_is_not_idle_for_long_enough_is_no_error_of_a_claim() -> None:
    """Its consumer may have it, and acknowledges it soon."""
    world, client = delivered()
    assert client.call("XAUTOCLAIM", "s", "g", "b", 500, "0") == [b"0-0", [], []]
    assert not world.node.cold.damages()


def test_a_long_claim_passes_much_damage_by_its_cursor() -> None:
    """A claim looks at ten records for each that it wants, and returns the cursor if all of these are damaged."""
    world, client = delivered()
    world.packs.fails = True
    reply: Any = client.call("XAUTOCLAIM", "s", "g", "b", 0, "0", "COUNT", 1)
    assert reply == [b"11-1", [], []]
    assert "MSDAMAGED" in str(client.call("XAUTOCLAIM", "s", "g", "b", 0, "11-1", "COUNT", 1))
    assert client.call("XPENDING", "s", "g", "-", "+", 100, "b") == []


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_history_passes_damage(count: int, unit: bool) -> None:
    """A consumer works off all that it can, and gets the error if only damaged entries are left."""
    world, client = delivered()
    client.call("XDEL", "s", "14-1")

    def read(after: str | bytes) -> Any:
        if unit:
            client.call("MULTI")
        reply: Any = client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", count, "STREAMS", "s", after)
        replies: Any = client.call("EXEC") if unit else [reply]
        return replies[0]

    found: list[int] = []
    while found[-1:] != [15]:
        ((_, rows),) = read(b"%d-1" % (found or [0])[-1])
        found += numbers(rows)
        assert [row[1] is None for row in rows] == [row[0] == b"14-1" for row in rows]
    assert found == [*range(1, 10), 13, 14, 15]
    pending: Any = client.call("XPENDING", "s", "g", "-", "+", 100)
    assert [row[3] for row in pending] == [2] * 9 + [1] * 3 + [2, 1, 2]
    assert client.call("XACK", "s", "g", *(f"{number}-1" for number in found)) == 12
    assert "MSDAMAGED entries 10-1 to 12-1 of 's'" in str(read("0"))
    assert client.call("XACK", "s", "g", "10-1", "11-1", "12-1") == 3
    assert read("0") == [[b"s", []]]
    _damaged(world, b"s", 1)  # whole again
    world.expect_replay()


def beside_bad_sectors(bad: slice, each: int = 20) -> tuple[BadSector, Client]:
    """Make a stream of forty pending cold entries, one in each node; the disk cannot read these bytes of its pack."""
    world = ColdWorld({"stream-node-max-entries": "1"})
    world.packs = world.node.keyspace.reads.source = packs = BadSector()
    client = world.client()
    for number in range(1, 42):
        client.call("XADD", "s", f"{number}-1", "f", "v" * 3000)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "40", "STREAMS", "s", ">")
    world.chill(each=each)
    packs.bad = range(len(packs.files[1]))[bad]
    return packs, client


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ["XAUTOCLAIM", "s", "g", "b", "0", "0", "COUNT", "100"],
        ["XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", "0"],
        ["XREADGROUP", "GROUP", "g", "b", "COUNT", "39", "CLAIM", "0", "STREAMS", "s", ">"],
    ],
)
def test_what_lies_beside_a_bad_sector_is_not_left_out(words: list[str], unit: bool) -> None:
    """The disk cannot read one node, so its neighbours in the extent are claimed and read."""
    _, client = beside_bad_sectors(slice(-4000, -3500))
    if unit:
        client.call("MULTI")
    reply: Any = client.call(*words)
    reply = client.call("EXEC")[0] if unit else reply  # type: ignore[index]  # a reply may be anything
    assert numbers(reply[1] if words[0] == "XAUTOCLAIM" else reply[0][1]) == [*range(1, 39), 40]
    assert "MSDAMAGED entries 39-1 to 39-1 of 's'" in str(client.call("XRANGE", "s", "39-1", "+"))


@pytest.mark.parametrize(
    "words", [["XAUTOCLAIM", "s", "g", "b", "0", "0"], ["XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", "0"]]
)
def test_a_walk_that_waits_for_a_failing_disk_ends_early(words: list[str]) -> None:
    """A read that fails may take seconds, so one command tries some nodes, and then one of each extent."""
    packs, client = beside_bad_sectors(slice(10000, -10), each=40)
    client.call("MULTI")
    client.call(*words)
    reply: Any = client.call("EXEC")
    ((_, rows, *_),) = reply if words[0] == "XAUTOCLAIM" else reply[0]
    assert numbers(rows) == [1, 2, 3]
    assert packs.failed < 12


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("words", [["XCLAIM", "s", "g", "b", 0, "1-1", "12-1", "LASTID", "999-0"]])
def test_a_claim_that_meets_damage_changes_nothing(words: list[str | int], unit: bool) -> None:
    """Otherwise LASTID would move the group past entries that nobody got."""
    world = ColdWorld()
    client = filled(world, 20)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "15", "STREAMS", "s", ">")
    world.chill()
    _damaged(world, b"s", 1)
    state = [["XINFO", "GROUPS", "s"], ["XINFO", "CONSUMERS", "s", "g"], ["XPENDING", "s", "g", "-", "+", 100]]
    before = [client.call(*each) for each in state]
    if unit:
        client.call("MULTI")
    reply = client.call(*words)
    assert "MSDAMAGED" in str(client.call("EXEC") if unit else reply)
    assert [client.call(*each) for each in state] == before


def test_a_claim_of_deleted_entries_reads_no_damage_behind_them() -> None:
    """Records of deleted entries need no other entry, so damage of the next node stops no claim of them."""
    world = ColdWorld()
    client = filled(world, 20)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "9", "STREAMS", "s", ">")
    client.call("XACK", "s", "g", "4-1", "5-1", "6-1")
    world.chill(each=1)
    client.call("XDEL", "s", "1-1", "2-1", "3-1", "7-1")
    _damaged(world, b"s", 0)  # of those that are left, so 4-1 to 6-1
    reply: Any = client.call("XAUTOCLAIM", "s", "g", "b", "0", "0", "COUNT", "100")
    assert [row[0] for row in reply[1]] == [b"8-1", b"9-1"]
    assert reply[2] == [b"1-1", b"2-1", b"3-1", b"7-1"]
    _damaged(world, b"s", 0)  # whole again
    world.expect_replay()


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("words", [["XACKDEL", "s", "g", "IDS"], ["XDELEX", "s", "DELREF", "IDS"], ["XDEL", "s"]])
@pytest.mark.parametrize(
    ("damaged", "ids"),
    [
        (0, ["13-1", "1-1", "2-1"]),
        (2, ["19-1", "1-1", "20-1"]),
        (2, ["13-1", "19-1", "20-1"]),
        (1, [f"{number}-1" for number in (19, *range(13, 19), 20)]),
        (1, [f"{number}-1" for number in range(20, 12, -1)]),
    ],
)
def test_a_deletion_that_meets_damage_beside_its_entries_changes_nothing(
    damaged: int, ids: list[str], words: list[str], unit: bool
) -> None:
    """A deletion reads the ends of an extent, and the last cold node if all hot entries go."""
    world = ColdWorld()
    client = filled(world, 20)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    world.chill()
    client.call("XDEL", "s", "5-1")
    _damaged(world, b"s", damaged)
    world.stream().entries = world.stream().entries.copy()  # a copy has not read its extents yet

    def delete() -> Any:
        if unit:
            client.call("MULTI")
        reply: Any = client.call(*words, *([len(ids)] if "IDS" in words else []), *ids)
        replies: Any = client.call("EXEC") if unit else [reply]
        return replies[0]

    assert re.search(r"MSDAMAGED entries \S+ to \S+ of 's' cannot", str(delete()))
    pending: Any = client.call("XPENDING", "s", "g")
    assert (pending[0], client.call("XLEN", "s")) == (20, 19)
    _damaged(world, b"s", damaged)  # whole again
    assert delete() == (len(ids) if words[0] == "XDEL" else [1] * len(ids))
    world.expect_replay()


@pytest.mark.parametrize("words", [["XTRIM", "s"], ["XADD", "s"]])
def test_a_trim_that_meets_damage_drops_no_reference(words: list[str]) -> None:
    """DELREF drops pending entries before the trim, which reads the node of its bound."""
    world, client = delivered()
    client.call("XACK", "s", "g", "10-1", "11-1", "12-1")
    world.stream().entries = world.stream().entries.copy()  # a copy has not read its extents yet
    added = ["21-1", "f", "v"] if words[0] == "XADD" else []
    reply = client.call(*words, "MINID", "11-1", "DELREF", *added)
    assert reply == b"21-1" if added else "MSDAMAGED" in str(reply)
    pending: Any = client.call("XPENDING", "s", "g")
    assert (pending[0], client.call("XLEN", "s")) == (12, 20 + bool(added))
    _damaged(world, b"s", 1)  # whole again
    assert client.call("XTRIM", "s", "MINID", "11-1", "DELREF") == 10
    assert client.call("XPENDING", "s", "g")[0] == 3  # type: ignore[index]  # a reply may be anything
    world.expect_replay()


def test_a_deletion_at_random_changes_all_or_nothing() -> None:
    """Any part of the newest entries, in any order, beside any damage."""
    for seed in range(150):
        random = Random(seed)
        world = ColdWorld()
        client = filled(world, 20)
        client.call("XDEL", "s", *(f"{number}-1" for number in range(2, 19) if random.random() < 0.2))
        world.chill(each=random.choice((1, 2, 3)))
        client.call("XDEL", "s", *(f"{number}-1" for number in range(2, 19) if random.random() < 0.2))
        rows: Any = client.call("XRANGE", "s", "-", "+")
        last = random.randrange(len(rows) - 2)
        gone = [row[0] for row in rows[last:] if random.random() < 0.9 or row[0] in {b"19-1", b"20-1"}]
        random.shuffle(gone)
        _damaged(world, b"s", random.randrange(world.stream().entries.extent_count))
        world.stream().entries = world.stream().entries.copy()  # a copy has not read its extents yet
        reply = client.call(*random.choice((["XDEL", "s"], ["XDELEX", "s", "IDS", len(gone)])), *gone)
        removed = len(gone) if not isinstance(reply, Error) else 0
        assert client.call("XLEN", "s") == len(rows) - removed


@pytest.mark.parametrize("policy", [[], ["DELREF"]])
def test_a_trim_reads_no_damaged_node_of_which_it_needs_nothing(policy: list[str]) -> None:
    """The bound lies in a node whose entries below it are deleted already."""
    world = ColdWorld()
    client = filled(world, 12)
    client.call("XDEL", "s", "4-1")
    world.chill(each=3)
    (extent, *_) = unpack_extents(*next(cold_records(world.stream().entries)))
    begin = extent.offset + FRAME_HEAD
    file = world.packs.files[1]
    node = extents.rows(bytes(file)[begin : extent.offset + extent.length])[1]
    file[begin + node.begin + 3] ^= 0xFF
    world.stream().entries = world.stream().entries.copy()  # nothing of it is cached
    assert client.call("XTRIM", "s", "MINID", "5-1", *policy) == 3
    assert client.call("XLEN", "s") == 8

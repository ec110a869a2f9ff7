"""Entries go to packs while commands run: each reply is that of a node without packs, before and after a restart."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millstream.engine.cold_ops import named_packs
from millstream.engine.streams import nodeform
from millstream.errors import DiskFullError, StorageError
from millstream.node.log import rebuilding
from millstream.node.log.compaction import compact
from millstream.node.log.rebuilding import differing, from_log
from millstream.node.tiering import policy, writing
from millstream.node.tiering.gathering import Copies
from millstream.node.tiering.writing import Filler
from millstream.persistence.frame import FRAME_SIZE
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry
from millstream.persistence.packs import PackWriter
from replication.replicated import Changes
from support.coldness import IS_COLD
from support.inprocess import Client, World
from support.packed import open_packs
from support.simdisk import Fault, SimDisk
from support.spilled import AtOnce, Later, SpillWorld, small
from support.state import check, snapshot

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

SHOWN = (["XINFO", "STREAM", "{}", "FULL", "COUNT", "0"], ["XREVRANGE", "{}", "+", "-"], ["DUMP", "{}"])


@pytest.fixture(autouse=True)
def _tiered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    small(monkeypatch)
    yield
    Later.waiting.clear()


def filled(world: World, count: int = 30, key: str = "s") -> Client:
    """Add entries with ids from 1-1."""
    client = world.client()
    for number in range(1, count + 1):
        client.call("XADD", key, f"{number}-1", "f", f"v{number}")
    return client


def expect_replay(world: SpillWorld) -> None:
    """Make the data again from the log, which must read no pack, and compare them."""
    world.written()
    fresh = from_log(world.opened.replay())
    fresh.reads.source = world.node.keyspace.reads.source
    assert differing(fresh, world.node.keyspace) == []


def expect_same(cold: SpillWorld, hot: World) -> None:
    """Compare all that clients see of both nodes."""
    mine, theirs = cold.client(), hot.client()
    keys = sorted(hot.node.keyspace.databases[0].keys)
    assert mine.raw("DBSIZE") == theirs.raw("DBSIZE")
    for key in keys:
        if theirs.raw("TYPE", key) != b"+stream\r\n":
            continue
        for words in SHOWN:
            line = [key if word == "{}" else word for word in words]
            assert mine.raw(*line) == theirs.raw(*line), line
    mine.close()
    theirs.close()


URGENT = {"maxmemory": "100gb"}
"""Memory is always short with :func:`always_urgent`, and nothing is refused."""


def always_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any use of memory be urgent."""
    monkeypatch.setattr(policy, "_URGENT", 0)


@pytest.mark.parametrize("seed", range(8))
def test_random_commands_answer_as_without_packs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are the same to the byte, with turns of spilling in between, and after restarts."""
    assert at_random(seed, monkeypatch) > 0


def at_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run random commands on both nodes; return the number of bytes that went to packs."""
    random, more = Random(seed), URGENT if seed % 2 else {}
    if more:
        always_urgent(monkeypatch)
    hot, cold = World({"stream-node-max-entries": "3"}), SpillWorld(more, thread=Later)
    clients, spilled = [hot.client(), cold.client()], 0
    for words in Changes(seed, hot.clock.now().wall, newest=True).some(500):
        for world in (hot, cold):
            world.clock.advance(20)
        assert clients[0].raw(*words) == clients[1].raw(*words), words
        if random.random() < 0.5:
            cold.spiller.turn(cold.clock.now())
        if random.random() < 0.2:
            Later.run_all()
        if random.random() < 0.05:
            check(cold.node)
        if random.random() < 0.01 and clients[1].session.queue is None:
            spilled += cold.spiller.spilled
            cold = restarted(cold, clients, more)
    if clients[0].session.queue is not None:
        for client in clients:
            client.call("DISCARD")
    expect_same(cold, hot)
    check(cold.node)
    expect_replay(cold)
    spilled += cold.spiller.spilled
    assert snapshot(cold.again().node)[0].keys() == snapshot(hot.node)[0].keys()
    return spilled


def restarted(cold: SpillWorld, clients: list[Client], more: dict[str, str]) -> SpillWorld:
    """Start the node of the second client from its disk, with what CONFIG SET has changed; its client goes on."""
    expect_replay(cold)
    cold.close()
    kept = {name: str(value) for name, value in cold.node.config.values.items() if name.startswith("stream-idmp")}
    again = SpillWorld(more | kept, disk=cold.disk, thread=Later)
    again.clock = cold.clock
    clients[1] = again.client()
    clients[1].session.db = clients[0].session.db
    return again


RACES: dict[str, list[list[str]]] = {
    "nothing": [],
    "trim": [["XTRIM", "s", "MAXLEN", "25"]],
    "trim much": [["XTRIM", "s", "MAXLEN", "8"]],
    "trim all": [["XTRIM", "s", "MAXLEN", "0"]],
    "delete some": [["XDEL", "s", "2-1", "9-1"]],
    "delete a node": [["XDEL", "s", "4-1", "5-1", "6-1"]],
    "delete the first": [["XDEL", "s", "1-1", "2-1", "3-1"]],
    "delete all": [["XDEL", "s", *(f"{number}-1" for number in range(1, 31))]],
    "delete the end": [["XDEL", "s", *(f"{number}-1" for number in range(13, 31))]],
    "go back": [
        ["XDEL", "s", *(f"{number}-1" for number in range(1, 31))],
        ["XSETID", "s", "30-1", "ENTRIESADDED", "30", "MAXDELETEDID", "0-1"],
        ["XSETID", "s", "0-1"],
        *(["XADD", "s", f"{number}-1", "f", f"w{number}"] for number in range(1, 31)),
    ],
    **{
        f"go back and {how}": [
            ["XADD", "s", "31-1", "f", "v"],
            ["MULTI"],
            ["XTRIM", "s", "MAXLEN", "0"],
            ["XSETID", "s", "0-1"],
            *(["XADD", "s", f"{number}-1", "f", f"w{number}"] for number in range(1, 31)),
            *away,
            ["EXEC"],
            *back,
        ]
        for how, away, back in (
            ("rename", [["RENAME", "s", "t"]], [["RENAME", "t", "s"]]),
            ("move", [["MOVE", "s", "1"]], [["SELECT", "1"], ["MOVE", "s", "0"], ["SELECT", "0"]]),
            ("swap", [["SWAPDB", "0", "1"]], [["SWAPDB", "0", "1"]]),
        )
    },
    "del": [["DEL", "s"]],
    "del and add": [["DEL", "s"], *(["XADD", "s", f"{n}-1", "f", f"w{n}"] for n in range(1, 31))],
    "unlink": [["UNLINK", "s"]],
    "rename": [["RENAME", "s", "t"]],
    "rename and back": [["RENAME", "s", "t"], ["RENAME", "t", "s"]],
    "rename over": [["XADD", "t", "1-1", "f", "v"], ["RENAME", "t", "s"]],
    "flush": [["FLUSHALL"]],
    "swap": [["SWAPDB", "0", "1"]],
    "move": [["MOVE", "s", "1"]],
    "expire": [["PEXPIRE", "s", "1"]],
    "expire later": [["EXPIRE", "s", "100"]],
    "copy": [["COPY", "s", "t"]],
    "copy over": [["XADD", "t", "1-1", "f", "v"], ["COPY", "t", "s", "REPLACE"]],
    "set over": [["SET", "s", "v"]],
    "add": [["XADD", "s", f"{number}-1", "f", "v"] for number in range(31, 60)],
    "acked trim": [
        ["XGROUP", "CREATE", "s", "g", "0"],
        ["XREADGROUP", "GROUP", "g", "a", "COUNT", "5", "STREAMS", "s", ">"],
        ["XACK", "s", "g", "1-1", "2-1", "3-1", "4-1", "5-1"],
        ["XTRIM", "s", "MINID", "20-1", "ACKED"],
    ],
}


@pytest.mark.parametrize("moment", ["gathered", "written"])
@pytest.mark.parametrize("race", RACES)
def test_what_changes_before_the_commit_is_right_after_it(race: str, moment: str) -> None:
    """A command between copying and committing changes what it changes without packs."""
    hot, cold = World({"stream-node-max-entries": "3"}), SpillWorld(thread=Later)
    clients = [filled(hot), filled(cold)]
    while not Later.waiting:
        cold.spiller.turn(cold.clock.now())
    if moment == "written":
        Later.run_all()
    for words in RACES[race]:
        assert clients[0].raw(*words) == clients[1].raw(*words)
    for world in (hot, cold):
        world.advance(200)
    Later.run_all()
    cold.spiller.turn(cold.clock.now())
    check(cold.node)
    expect_same(cold, hot)
    expect_replay(cold)
    if race in {"nothing", "trim", "delete some", "delete a node", "copy", "rename and back", "add", "expire later"}:
        assert cold.extents()
    expect_same(cold.again(), hot)


def test_entries_that_got_hot_and_cold_again_are_read_and_delivered() -> None:
    """A deletion of the end lets nodes get hot; once they are in a later extent, ranges and groups find them there."""
    hot, cold = World({"stream-node-max-entries": "3"}), SpillWorld()
    clients = [filled(hot), filled(cold)]
    cold.spill()
    for world, client in zip((hot, cold), clients, strict=True):
        client.call("XDEL", "s", *(f"{number}-1" for number in range(11, 31)))
        for number in range(31, 50):
            client.call("XADD", "s", f"{number}-1", "f", f"v{number}")
        for position in range(10):
            client.call("XGROUP", "CREATE", "s", f"g{position}", f"{position}-1")
        world.clock.advance(2000)
    cold.spill()
    assert cold.extents() > 1
    for start in range(1, 40):
        for end in range(start, 40):
            words = ("XRANGE", "s", f"{start}-1", f"{end}-1")
            assert clients[0].raw(*words) == clients[1].raw(*words), words
    for position in range(10):
        for words in (
            ("XREADGROUP", "GROUP", f"g{position}", "c", "COUNT", str(10 - position), "STREAMS", "s", ">"),
            ("XPENDING", "s", f"g{position}", "-", "+", "100"),
        ):
            assert clients[0].raw(*words) == clients[1].raw(*words), words
    expect_same(cold, hot)
    expect_replay(cold)


def memory_of(client: Client) -> tuple[int, int]:
    """Return the counted bytes in use, and the part of them that the limit ignores."""
    told = client.call("INFO", "memory")
    assert isinstance(told, bytes)
    rows = dict(line.split(b":", 1) for line in told.splitlines() if b":" in line)
    return int(rows[b"used_memory"]), int(rows[b"mem_not_counted_for_evict"])


def test_copies_on_their_way_to_a_pack_are_memory_in_use() -> None:
    """INFO counts copied bytes until they are committed, but the limit ignores them: refusing needs no copy."""
    cold = SpillWorld(thread=Later)
    client = filled(cold)
    cold.written()
    used, beside = memory_of(client)
    left = cold.node.memory.left(cold.clock.now().wall)
    while not Later.waiting:
        cold.spiller.turn(cold.clock.now())
    now, ignored = memory_of(client)
    assert ignored > beside == 0
    assert now - used == ignored
    assert cold.node.memory.left(cold.clock.now().wall) == left
    cold.spill()
    Later.run_all()
    cold.spill()
    cold.written()
    assert not cold.spiller.is_busy
    assert memory_of(client)[1] == 0


def test_a_restored_stream_is_not_the_one_that_was_copied() -> None:
    """RESTORE over a stream between copying and committing stays hot."""
    cold = SpillWorld(thread=Later)
    client = filled(cold)
    payload = client.call("DUMP", "s")
    assert isinstance(payload, bytes)
    while not Later.waiting:
        cold.spiller.turn(cold.clock.now())
    client.call("RESTORE", "s", "0", payload, "REPLACE")
    Later.run_all()
    cold.spiller.turn(cold.clock.now())
    assert cold.extents() == 0
    expect_replay(cold)


def test_a_copy_of_which_much_died_is_given_up() -> None:
    """An extent of which more than a quarter died stays hot, and its stream is left alone for a while."""
    cold = SpillWorld(thread=Later)
    client = filled(cold)
    while not Later.waiting:
        cold.spiller.turn(cold.clock.now())
    client.call("XDEL", "s", *(f"{number}-1" for number in range(1, 20, 2)))
    Later.run_all()
    cold.spiller.turn(cold.clock.now())
    assert cold.extents() == 0
    cold.spill()
    assert not Later.waiting
    cold.advance(10_001)
    cold.spill()
    assert Later.waiting


def test_the_last_two_full_nodes_stay() -> None:
    """The open node and the two before it are hot under any pressure."""
    cold = SpillWorld()
    filled(cold).call("CONFIG", "SET", "maxmemory", "1")
    cold.spill()
    (_, stream), *_ = cold.streams()
    assert len(list(stream.entries.hot_nodes())) == 3
    assert stream.entries.extent_count


def test_a_node_over_the_bound_stays_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that a reader would not take back stays hot, with all behind it, and is not encoded in each look."""
    asked: list[int] = []
    monkeypatch.setattr(nodeform, "may_go", lambda node: asked.append(node.first >> 64) or asked[-1] != 10)
    cold = SpillWorld()
    client = filled(cold)
    cold.spill()
    (_, stream), *_ = cold.streams()
    assert next(iter(stream.entries.hot_nodes())).first >> 64 == 10
    asked.clear()
    for _ in range(20):
        cold.advance(1001)
        cold.spill()
    assert not asked
    client.call("XDEL", "s", *(f"{number}-1" for number in range(10, 13)))
    cold.advance(1001)
    cold.spill()
    assert next(iter(stream.entries.hot_nodes())).first >> 64 > 13
    assert len(client.call("XRANGE", "s", "-", "+")) == 27  # type: ignore[arg-type]  # a list


def test_no_byte_differs_without_a_tier() -> None:
    """With ``tier no`` the log and its manifest are those of a node without a spiller."""
    files = []
    for parameter in ("no", None):
        disk = SimDisk()
        world = SpillWorld({"tier": "no"}, disk=disk, entropy=lambda size: b"e" * size)
        filled(world)
        if parameter is not None:
            world.spill()
        world.close()
        files.append({path.name: bytes(inode.cache) for path, inode in disk.names.items()})
    assert files[0] == files[1]


def test_spilling_ends_with_the_parameter() -> None:
    """CONFIG SET tier no ends it; what is in packs stays there and answers."""
    cold = SpillWorld()
    client = filled(cold)
    cold.spill()
    before = cold.extents()
    client.call("CONFIG", "SET", "tier", "no")
    for number in range(31, 90):
        client.call("XADD", "s", f"{number}-1", "f", "v")
    cold.spill()
    assert (cold.extents(), cold.node.spills) == (before, None)
    client.call("CONFIG", "SET", "tier", "yes")
    cold.spill()
    assert cold.extents() > before
    assert len(client.call("XRANGE", "s", "-", "+")) == 89  # type: ignore[arg-type]  # a list


def test_packs_have_a_largest_size_together() -> None:
    """Above ``tier-max-bytes`` nothing more goes, and a larger value lets it go."""
    cold = SpillWorld({"tier-max-bytes": "300"})
    client = filled(cold, 90)
    cold.spill()
    assert cold.spiller.filler.status == "max-bytes"
    assert cold.spiller.filler.size <= 300
    client.call("CONFIG", "SET", "tier-max-bytes", "1mb")
    cold.advance(2000)
    cold.spill()
    assert cold.spiller.filler.status == "ok"
    assert cold.extents()


def test_nothing_is_copied_for_packs_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs at their largest size cost the loop no copies, and a write that needs memory does not wait for them."""
    cold = SpillWorld({"tier-max-bytes": "300"})
    filled(cold, 90)
    cold.spill()
    copied = []
    real = Copies.gather

    def gather(self: Copies, limit: policy.Leave, most: int) -> int:
        copied.append(real(self, limit, most))
        return copied[-1]

    monkeypatch.setattr(Copies, "gather", gather)
    for _ in range(5):
        cold.advance(2000)
        cold.spill()
    assert copied == []
    assert not cold.spiller.may_help(cold.clock.now())
    cold.client().call("CONFIG", "SET", "tier-max-bytes", "0")
    assert cold.spiller.may_help(cold.clock.now())


def test_a_batch_that_packs_cannot_take_any_more_is_dropped() -> None:
    """A limit that is set while a batch is gathered leaves none, for which writers and the vacuum would wait."""
    cold = SpillWorld()
    client = filled(cold, 90)
    cold.spill()
    for number in range(91, 180):
        client.call("XADD", "s", f"{number}-1", "f", "v")
    while not cold.spiller.is_busy:
        cold.spiller.turn(cold.clock.now())
    client.call("CONFIG", "SET", "tier-max-bytes", "1")
    cold.spiller.turn(cold.clock.now())
    assert not cold.spiller.is_busy
    assert not cold.spiller.may_help(cold.clock.now())


def test_a_disk_that_is_nearly_full_keeps_its_space() -> None:
    """Spilling leaves room for the next rewriting of the log, and begins again when there is room."""
    disk = SimDisk(capacity=100_000)
    cold = SpillWorld({"disk-free-floor": "0"}, disk=disk, spare=90_000)
    filled(cold, 200)
    cold.written()
    cold.spill()
    assert cold.spiller.filler.status == "disk-low"
    assert cold.extents() == 0
    disk.capacity = 1 << 30
    cold.advance(5_000)
    cold.spill()
    assert cold.extents() == 0
    cold.advance(6_000)
    cold.spill()
    assert (cold.extents() > 0, cold.spiller.filler.status) == (True, "ok")
    expect_replay(cold)


@pytest.mark.parametrize(("hot", "needed"), [("1mb", 6), ("0", 4), ("20mb", 44), ("1gb", 64)])
def test_the_space_that_stays_free_follows_the_hot_part(hot: str, needed: int) -> None:
    """A small disk serves a small hot part; other data count as the last snapshot shows, up to a bound."""
    cold = SpillWorld({"disk-free-floor": "0", "tier-hot": hot}, spare=writing.SPARE)
    assert cold.spiller.disk_needed == needed << 20


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC, Fault.EINTR, Fault.SHORT, Fault.EMFILE])
def test_each_operation_of_a_spill_fails_once(fault: Fault) -> None:
    """After any failure of the disk the node goes on, unless its manifest is unknown; the data are right at a start."""
    clean = SpillWorld()
    filled(clean)
    clean.written()
    first = clean.disk.operations  # type: ignore[attr-defined]  # a SimDisk
    clean.spill()
    last = clean.disk.operations  # type: ignore[attr-defined]  # a SimDisk
    hot = World({"stream-node-max-entries": "3"})
    filled(hot)
    for at in range(first + 1, last + 1):
        world = SpillWorld(disk=SimDisk(at, faults={at: fault}))
        filled(world)
        world.written()
        world.spill()
        expect_same(world, hot)
        if world.opened.is_poisoned:
            continue
        if world.spiller.filler.failures:
            assert world.spiller.filler.pause == writing.FIRST_PAUSE
            world.advance(10_001)
            world.spill()
        assert world.extents(), at
        expect_same(world, hot)
        world.written()
        world.close()
        expect_same(SpillWorld(disk=world.disk), hot)


def test_only_a_lack_of_space_keeps_the_first_pause() -> None:
    """Space may be back soon, however often it lacked; failures of another kind double the pause up to an hour."""
    filler = SpillWorld().spiller.filler
    for status in ("disk-low", "disk-full"):
        for _ in range(12):
            filler.fail(status, "no space")
        assert (filler.failures, filler.pause) == (12, writing.FIRST_PAUSE)
        filler.failures = 0
    pauses = []
    for _ in range(12):
        filler.fail("error", "Input/output error")
        pauses.append(filler.pause)
    assert pauses[:3] == [writing.FIRST_PAUSE * factor for factor in (1, 2, 4)]
    assert pauses[-1] == writing.LONGEST_PAUSE


def test_a_pack_whose_sync_failed_is_never_written_again() -> None:
    """After a failed sync the next batch goes to another pack, and pauses grow."""
    disk = SimDisk()
    world = SpillWorld(disk=disk)
    filled(world)
    world.written()
    world.spill()
    client = world.client()
    sizes = {name: len(disk.names[world.directory / name].cache) for name in world.node.cold.packs.names.values()}
    (name,) = sizes
    for number in range(31, 90):
        client.call("XADD", "s", f"{number}-1", "f", "v")
    world.written()
    disk.faults = {disk.operations + 3: Fault.EIO}  # after the free space and the write
    world.spill()
    assert world.spiller.filler.failures == 1
    written = len(disk.names[world.directory / name].cache)
    disk.faults = {}
    world.advance(10_001)
    world.spill()
    assert world.spiller.filler.status == "ok"
    assert len(world.node.cold.packs.names) == 2
    assert len(disk.names[world.directory / name].cache) == written
    expect_replay(world)


def test_a_pack_that_a_failed_log_does_not_end_is_closed(tmp_path: Path) -> None:
    """The committer of a log that has failed takes no further job."""

    def run(job: Callable[[], Any]) -> Any:
        if has_failed:
            raise StorageError("the log accepts no more jobs")
        return job()

    has_failed = False
    log, _ = Log.open(tmp_path)
    filler = Filler(log, run)
    assert filler.write([b"extent"], 0, 0).pack
    assert len(open_packs(tmp_path)) == 1
    has_failed = True
    filler.end()
    assert open_packs(tmp_path) == []
    log.close()


def test_packs_are_ended_at_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that has its size gets a seal, and the next batch begins another one."""
    monkeypatch.setattr(writing, "SMALLEST", 1000)
    world = SpillWorld(thread=AtOnce)
    filled(world, 300)
    world.spill()
    assert len(world.node.cold.packs.names) > 1
    expect_replay(world)
    size = world.opened.pack_bytes()
    assert world.again().opened.pack_bytes() == size + FRAME_SIZE  # the end of the last pack has a seal


def test_the_size_of_a_pack_without_an_end_is_asked_for_once() -> None:
    """The loop asks for the bytes of all packs often, so that must not open a file each time."""
    disk = SimDisk()
    world = SpillWorld(disk=disk)
    filled(world)
    world.spill()
    size = world.opened.pack_bytes()
    world.written()
    world.opened.close()  # as a crash leaves it
    again = SpillWorld(disk=disk)
    (entry,) = again.opened.packs
    assert entry.bytes is None
    assert again.opened.pack_bytes() == size
    disk.remove(again.directory / entry.name)
    assert again.opened.pack_bytes() == size


def test_a_pack_that_cannot_be_opened_gets_no_entry() -> None:
    """If a new pack cannot be read, its entries stay hot, and work pauses."""
    world = SpillWorld()
    filled(world)

    def refuse(entry: PackEntry) -> None:
        raise DiskFullError(f"cannot open {entry.name}")

    read, world.spiller.on_pack = world.spiller.on_pack, refuse
    world.spill()
    assert (world.extents(), world.spiller.filler.failures) == (0, 1)
    world.spiller.on_pack = read
    world.advance(10_001)
    world.spill()
    assert world.extents()
    expect_replay(world)


@pytest.mark.parametrize("moment", ["before", "gathered"])
def test_data_from_elsewhere_are_spilled_too(moment: str) -> None:
    """After a replica has taken its primary's data, copies of the former data are dropped, and the new data go."""
    world, other = SpillWorld(thread=Later), World({"stream-node-max-entries": "3"})
    filled(world)
    filled(other, 60)
    filled(other, 60, "t")
    while moment == "gathered" and not Later.waiting:
        world.spiller.turn(world.clock.now())
    world.spiller.turn(world.clock.now())
    rebuilding.adopt(world.node.keyspace, from_log(other.log.replay()))
    world.node.following.scan()
    for _ in range(40):
        Later.run_all()
        world.spiller.turn(world.clock.now())
    check(world.node)
    expect_same(world, other)
    assert world.extents()
    assert world.extents(b"t")


@pytest.mark.parametrize(
    "then", [["XDEL", "s", "1-1"], ["XTRIM", "s", "MAXLEN", "=", "12"], ["XADD", "s", "100-1", "f", "v"]]
)
@pytest.mark.parametrize("how", ["RELOAD", "LOADAOF"])
def test_a_reloaded_stream_stays_as_cold_as_the_log_says(how: str, then: list[str]) -> None:
    """After DEBUG RELOAD and LOADAOF, records of later changes fit what a start loads."""
    hot, cold = World({"stream-node-max-entries": "3"}), SpillWorld({"enable-debug-command": "yes"})
    clients = [filled(hot), filled(cold)]
    cold.spill()
    extents = cold.extents()
    assert clients[1].raw("DEBUG", how) == b"+OK\r\n"
    assert cold.extents() == extents > 0
    for client in clients:
        client.call(*then)
    cold.spill()
    check(cold.node)
    expect_same(cold, hot)
    expect_replay(cold)
    expect_same(cold.again(), hot)


@pytest.mark.parametrize("how", ["full", "unreadable"])
def test_spilling_that_ends_during_a_failure_is_over(how: str) -> None:
    """CONFIG SET tier no while a batch fails leaves nothing that would look at the data again."""
    world = SpillWorld({"tier-max-bytes": "1" if how == "full" else "0"}, thread=Later)
    client = filled(world)

    def refuse(entry: PackEntry) -> None:
        raise DiskFullError(f"cannot open {entry.name}")

    world.spiller.on_pack = refuse
    while not Later.waiting:
        world.spiller.turn(world.clock.now())
    client.call("CONFIG", "SET", "tier", "no")
    Later.run_all()
    for _ in range(3):
        world.spiller.turn(world.clock.now())
    assert world.node.spills is None
    assert len(world.spiller.ring) == 0


def test_no_batch_is_written_after_the_end() -> None:
    """A turn that meets the end of the spiller starts no thread, since nobody would wait for it."""

    class Ending(Later):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            world.spiller.stop()

    world = SpillWorld(thread=Ending)
    filled(world)
    for _ in range(50):
        world.spiller.turn(world.clock.now())
    assert not Later.waiting
    assert world.opened.pack_count == 0


def test_the_records_of_a_pack_come_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pack is ended once its last batch is committed, so a rewriting that follows knows its entries."""
    monkeypatch.setattr(writing, "SMALLEST", 1000)
    world, real, ended = SpillWorld(thread=Later), Log.end_pack, []

    def end_pack(self: Log, pack: PackWriter) -> None:
        referred = named_packs(world.node.keyspace)
        ended.append((pack.entry.number in {number for number, *_ in referred}, world.spiller.filler.status))
        at = self.appended
        real(self, pack)
        world.written()
        rewrite = self.begin_rewrite()
        assert rewrite is not None
        assert rewrite.target.last >= at
        compacted: list[set[int]] = []
        compact(world.disk, world.directory, rewrite, on_packs=compacted.append)
        assert self.settled_packs(rewrite) <= {number for each in compacted for number in each}
        self.commit_rewrite(rewrite)

    monkeypatch.setattr(Log, "end_pack", end_pack)
    filled(world, 300)
    for _ in range(200):
        Later.run_all()
        world.spiller.turn(world.clock.now())
    assert ended
    assert all(is_known for is_known, _ in ended)
    expect_replay(world)


def test_a_process_far_above_its_limit_keeps_fewer_nodes() -> None:
    """Spilling aims lower by the bytes that a process has above 1.25 of ``maxmemory``, from the second check on."""
    world = SpillWorld({"maxmemory": "100mb", "tier-hot": "50mb"})
    wall, mib = world.clock.now().wall, 1 << 20
    sizes = []
    for resident in (230, 230, 90):
        world.node.memory.look(resident * mib)
        sizes.append(world.spiller.aim(wall, 40 * mib).size // mib)
    assert sizes == [0, 20, 0]


@pytest.mark.parametrize("change", [[], ["XTRIM", "s", "MAXLEN", "240"], ["XDEL", "s", "1-1", "60-1"], ["DEL", "s"]])
@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_is_gathered_while_another_is_written(
    change: list[str], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little memory left the next batch is ready when one is written; what happens to one spoils no other."""
    always_urgent(monkeypatch)
    small(monkeypatch, batch=400)
    cold, hot = SpillWorld(URGENT, thread=Later), World({"stream-node-max-entries": "3"})
    for world in (cold, hot):
        filled(world, 300)
    while not Later.waiting:
        cold.spiller.turn(cold.clock.now())
    for _ in range(20):
        cold.spiller.turn(cold.clock.now())
    if fails:
        with monkeypatch.context() as patch:
            patch.setattr(writing.Filler, "_added", lambda *_: writing.Written())
            Later.run_all()
    if change:
        for world in (cold, hot):
            world.client().call(*change)
    Later.run_all()
    cold.spiller.turn(cold.clock.now())
    assert not cold.extents() or not fails
    for world in (cold, hot):
        world.clock.advance(60_000)
    cold.spiller.turn(cold.clock.now())
    assert fails or Later.waiting, "the next batch is not gathered first"
    for _ in range(100):
        Later.run_all()
        cold.spiller.turn(cold.clock.now())
    expect_same(cold, hot)
    check(cold.node)
    expect_replay(cold)
    assert cold.extents() or change == ["DEL", "s"]

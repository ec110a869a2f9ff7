"""Extents are written anew, packs are let go, and damage is found, while commands run and answer as without packs."""

import threading
from collections.abc import Iterable, Iterator
from errno import EMFILE
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from millstream.engine.cold import cold_records
from millstream.errors import StorageError
from millstream.node.maintenance import vacuum
from millstream.node.tiering import writing
from millstream.node.tiering.background import JobError
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.persistence.manifest import PackEntry
from millstream.replies import Error
from node.test_spilling import expect_replay, restarted
from replication.replicated import Changes
from support.coldness import IS_COLD
from support.inprocess import Client, World
from support.simdisk import Fault, SimDisk, SimFile
from support.spilled import AtOnce, Later, SpillWorld, small
from support.state import check

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

SMALL = {"stream-node-max-entries": "3"}
SHOWN = (["XINFO", "STREAM", "{}", "FULL", "COUNT", "0"], ["XREVRANGE", "{}", "+", "-"], ["XLEN", "{}"])


@pytest.fixture(autouse=True)
def _tiered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    small(monkeypatch)
    yield
    Later.waiting.clear()


def filled(world: World, count: int) -> Client:
    """Add entries with ids from 1-1."""
    client = world.client()
    for number in range(1, count + 1):
        client.call("XADD", "s", f"{number}-1", "f", f"v{number}" * 9)
    return client


def expect_same(cold: SpillWorld, hot: World) -> None:
    """Compare what clients see of both nodes; only DUMP shows the values of dead entries."""
    mine, theirs = cold.client(), hot.client()
    assert mine.raw("DBSIZE") == theirs.raw("DBSIZE")
    for key in sorted(hot.node.keyspace.databases[0].keys):
        if theirs.raw("TYPE", key) == b"+stream\r\n":
            for words in SHOWN:
                line = [key if word == "{}" else word for word in words]
                assert mine.raw(*line) == theirs.raw(*line), line
    mine.close()
    theirs.close()


def care(world: SpillWorld, seconds: int = 11) -> None:
    """Run all turns that are due after some seconds."""
    world.advance(seconds * 1000)
    world.spill()


def worlds(thread: type[threading.Thread] = AtOnce, count: int = 60) -> tuple[World, SpillWorld, list[Client]]:
    """Return a node without packs and one whose entries are cold, with the same entries."""
    hot, cold = World(SMALL), SpillWorld(thread=thread)
    clients = [filled(hot, count), filled(cold, count)]
    for _ in range(8):
        cold.spill()
        Later.run_all()
    return hot, cold, clients


def ids(numbers: Iterable[int]) -> list[str]:
    """Return ids of the entries with these numbers."""
    return [f"{number}-1" for number in numbers]


def both(clients: list[Client], *words: str) -> None:
    """Run a command on both nodes."""
    assert clients[0].raw(*words) == clients[1].raw(*words), words


def test_an_extent_that_is_mostly_deleted_is_written_anew_once_for_each_halving() -> None:
    """It takes less room and has no holes; only further deletions of a half have it written again."""
    hot, cold, clients = worlds()
    (_, stream), *_ = cold.streams()
    before = stream.entries.cold_bytes
    deleted = [each for number in range(1, 49, 3) for each in (f"{number}-1", f"{number + 1}-1")]
    both(clients, "XDEL", "s", *deleted)
    assert stream.entries.hole_bytes
    care(cold)
    assert not stream.entries.hole_bytes
    assert stream.entries.cold_bytes < before
    count = cold.vacuum.extents
    assert count
    both(clients, "XADD", "s", "100-1", "f", "v")
    care(cold)
    both(clients, "XDEL", "s", "3-1")
    care(cold)
    assert cold.vacuum.extents == count
    expect_same(cold, hot)
    check(cold.node)
    expect_replay(cold)
    expect_same(cold.again(), hot)


def test_trimming_alone_writes_nothing_anew() -> None:
    """The first extent of a capped stream goes as a whole soon, so its beginning is not taken off."""
    _, cold, clients = worlds()
    for bound in range(2, 40, 2):
        both(clients, "XTRIM", "s", "MINID", f"{bound}-1")
        care(cold)
    assert cold.vacuum.extents == 0


def test_random_commands_answer_as_without_packs() -> None:
    """Replies are the same to the byte, with the care of packs in between, and after restarts."""
    assert sum(map(at_random, range(6))) > 9


def at_random(seed: int) -> int:
    """Run random commands on both nodes; return the number of extents that were written anew."""
    random = Random(seed)
    hot, cold = World(SMALL), SpillWorld(thread=Later)
    clients = [hot.client(), cold.client()]
    extents = 0
    for number, words in enumerate(Changes(seed, hot.clock.now().wall, newest=True).some(500)):
        if words[0].upper() in {"DUMP", "RESTORE"}:
            continue
        both(clients, "XADD", "u", f"{number + 1}-1", "f", str(number) * 9)
        both(
            clients, "XDEL", "u", *ids(random.sample(range(1, number + 2), random.choice((0, 1)) * min(number, 3) + 1))
        )
        seconds = 0.02 if random.random() < 0.9 else 12
        for world in (hot, cold):
            world.clock.advance(int(seconds * 1000))
        both(clients, *words)
        for _ in range(random.randrange(4)):
            cold.spiller.turn(cold.clock.now())
        if random.random() < 0.3:
            Later.run_all()
        if random.random() < 0.05:
            cold.vacuum.ask()
            for _ in range(30):
                cold.spiller.turn(cold.clock.now())
                if random.random() < 0.5:
                    Later.run_all()
            check(cold.node)
        if random.random() < 0.01 and clients[1].session.queue is None:
            extents += cold.vacuum.extents
            cold = restarted(cold, clients, {})
    if clients[0].session.queue is not None:
        for client in clients:
            client.call("DISCARD")
    expect_same(cold, hot)
    check(cold.node)
    expect_replay(cold)
    return extents + cold.vacuum.extents


RACES: dict[str, list[list[str]]] = {
    "nothing": [],
    "delete one": [["XDEL", "s", "3-1"]],
    "delete a node": [["XDEL", "s", "3-1", "6-1"]],
    "delete much": [["XDEL", "s", *ids(range(3, 48, 3))]],
    "delete all": [["XDEL", "s", *ids(range(1, 61))]],
    "trim": [["XTRIM", "s", "MINID", "14-1"]],
    "trim much": [["XTRIM", "s", "MINID", "33-1"]],
    "del": [["DEL", "s"]],
    "del and add": [["DEL", "s"], *(["XADD", "s", f"{n}-1", "f", f"w{n}"] for n in range(1, 31))],
    "rename": [["RENAME", "s", "t"]],
    "rename and back": [["RENAME", "s", "t"], ["RENAME", "t", "s"]],
    "copy": [["COPY", "s", "t"]],
    "copy and delete": [["COPY", "s", "t"], ["XDEL", "t", *ids(range(3, 30, 3))]],
    "flush": [["FLUSHALL"]],
    "swap": [["SWAPDB", "0", "1"]],
    "expire": [["PEXPIRE", "s", "1"]],
    "set over": [["SET", "s", "v"]],
    "acked trim": [
        ["XGROUP", "CREATE", "s", "g", "0"],
        ["XREADGROUP", "GROUP", "g", "a", "COUNT", "5", "STREAMS", "s", ">"],
        ["XACK", "s", "g", *ids(range(3, 18, 3))],
        ["XTRIM", "s", "MINID", "20-1", "ACKED"],
    ],
}

STAY = {"nothing", "delete one", "delete a node", "trim", "trim much", "rename and back", "copy", "copy and delete"}
STAY |= {"acked trim"}


@pytest.mark.parametrize("moment", ["found", "written"])
@pytest.mark.parametrize("race", RACES)
def test_what_changes_before_the_commit_is_right_after_it(
    race: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command between the reading of extents and the commit changes what it changes without packs."""
    small(monkeypatch, extent=1000, piece=2000, batch=4000)
    hot, cold, clients = worlds(Later)
    both(clients, "XDEL", "s", *(each for number in range(1, 49, 3) for each in ids(range(number, number + 2))))
    cold.advance(11_000)
    hot.advance(11_000)
    while not Later.waiting:
        assert cold.spiller.turn(cold.clock.now()) is not None or Later.waiting
    if moment == "written":
        Later.run_all()
    for words in RACES[race]:
        both(clients, *words)
    for world in (hot, cold):
        world.advance(200)
    Later.run_all()
    cold.spiller.turn(cold.clock.now())
    check(cold.node)
    expect_same(cold, hot)
    expect_replay(cold)
    assert (cold.vacuum.extents > 0) == (race in STAY)
    expect_same(cold.again(), hot)


def test_a_copy_of_a_stream_keeps_its_own_holes() -> None:
    """Both streams refer to one extent; each has it written anew with what it has deleted itself."""
    hot, cold, clients = worlds()
    both(clients, "XDEL", "s", "10-1", "20-1")
    both(clients, "COPY", "s", "t")
    expect_same(cold, hot)
    both(clients, "XDEL", "s", *(each for number in range(1, 49, 3) for each in ids(range(number, number + 2))))
    both(clients, "XDEL", "t", *(each for number in range(2, 49, 3) for each in ids(range(number, number + 2))))
    care(cold)
    assert cold.vacuum.extents > 3
    expect_same(cold, hot)
    expect_replay(cold)


def test_a_dump_of_lean_entries_is_restored() -> None:
    """DUMP of a stream whose dead entries have no values gives the same live entries where it is restored."""
    hot, cold, clients = worlds()
    both(clients, "XDEL", "s", *(each for number in range(1, 49, 3) for each in ids(range(number, number + 2))))
    care(cold)
    assert cold.vacuum.extents
    payload = clients[1].call("DUMP", "s")
    assert isinstance(payload, bytes)
    clients[0].call("RESTORE", "s", "0", payload, "REPLACE")
    expect_same(cold, hot)


def test_the_last_cold_node_is_made_hot_after_it_was_written_anew() -> None:
    """XSETID back into lean entries works, and its record is replayed."""
    hot, cold, clients = worlds()
    both(clients, "XDEL", "s", *(each for number in range(1, 49, 3) for each in ids(range(number, number + 2))))
    care(cold)
    both(clients, "XDEL", "s", *ids(range(48, 61)))
    both(clients, "XSETID", "s", "60-1", "ENTRIESADDED", "60", "MAXDELETEDID", "0-1")
    both(clients, "XSETID", "s", "45-1")
    assert (
        clients[1].call("XADD", "s", "46-1", "f", "again")
        == clients[0].call("XADD", "s", "46-1", "f", "again")
        == b"46-1"
    )
    expect_same(cold, hot)
    check(cold.node)
    expect_replay(cold)


def test_a_node_that_gets_hot_after_a_vacuum_is_as_full_as_before() -> None:
    """It takes as many further entries as without packs, so nodes and trimming by whole nodes are the same."""
    sizes = {"stream-node-max-entries": "100", "stream-node-max-bytes": "400"}
    hot, cold = World(sizes), SpillWorld(sizes)
    clients = [filled(hot, 90), filled(cold, 90)]
    for _ in range(8):
        cold.spill()
    both(clients, "XDEL", "s", *ids(number for number in range(1, 90) if number % 5))
    care(cold)
    assert cold.vacuum.extents
    (_, stream), *_ = cold.streams()
    both(clients, "XDEL", "s", *ids(range(1 + (stream.entries.cold_last >> 64), 91)))
    assert next(iter(stream.entries.hot_nodes())).live
    for number in range(91, 140):
        both(clients, "XADD", "s", f"{number}-1", "f", f"v{number}")
        both(clients, "XINFO", "STREAM", "s")
    expect_same(cold, hot)
    both(clients, "XTRIM", "s", "MAXLEN", "~", "30")
    expect_same(cold, hot)
    expect_replay(cold)


def idle(world: SpillWorld) -> list[bool]:
    """Note when a rewriting would begin."""
    asked: list[bool] = []

    def note(at_once: bool) -> bool:
        asked.append(at_once)
        return True

    world.vacuum.on_idle = note
    return asked


def test_a_rewriting_begins_once_packs_without_references_are_worth_it() -> None:
    """It begins for more than a quarter of all packs, also of one that is being filled, and ends that pack."""
    _, cold, clients = worlds(count=60)
    asked = idle(cold)
    cold.node.config.rewrite_min_size = 0
    care(cold)
    assert not asked
    both(clients, "XTRIM", "s", "MAXLEN", "3")
    care(cold)
    assert asked == [False]
    (pack,) = cold.opened.packs
    assert pack.sealed
    assert cold.rewrite() == {1}
    assert cold.opened.packs == ()
    care(cold)
    assert asked == [False]
    expect_replay(cold)


def test_few_bytes_without_references_wait_for_the_next_rewriting() -> None:
    """Below the least size of a log no rewriting begins for packs alone, unless the disk is nearly full."""
    disk = SimDisk(capacity=1 << 40)
    cold = SpillWorld({"disk-free-floor": "1mb"}, disk=disk)
    client = filled(cold, 60)
    cold.spill()
    cold.spill()
    assert cold.extents()
    asked = idle(cold)
    client.call("DEL", "s")
    care(cold)
    assert not asked
    disk.capacity = 1 << 20
    client.call("SET", "k", "v")
    care(cold)
    assert asked == [True]


def test_a_vacuum_that_was_asked_for_takes_all_holes_and_ends() -> None:
    """Single deletions are taken off as well, and then a rewriting begins for the packs that are left."""
    hot, cold, clients = worlds()
    asked = idle(cold)
    both(clients, "XDEL", "s", "10-1", "30-1")
    care(cold)
    assert cold.vacuum.extents == 0
    assert cold.vacuum.ask()
    assert not cold.vacuum.ask()
    care(cold, 1)
    assert not cold.vacuum.is_asked
    assert cold.vacuum.status == "ok"
    assert sum(stream.entries.hole_bytes for _, stream in cold.streams()) == 0
    expect_same(cold, hot)
    assert asked in ([], [True])


def test_a_pack_to_which_little_refers_is_emptied() -> None:
    """Its last extents move to another pack though they are whole, so that the file can go."""
    cold = SpillWorld()
    client = filled(cold, 300)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    for number in range(1, 40):
        client.call("XADD", "t", f"{number}-1", "f", f"w{number}" * 9)
    for _ in range(9):
        cold.spill()
    assert cold.extents(b"t")
    before = client.call("XRANGE", "t", "-", "+")
    client.call("DEL", "s")
    idle(cold)
    cold.spiller.filler.end()
    cold.vacuum.ask()
    care(cold)
    assert client.call("XRANGE", "t", "-", "+") == before
    assert cold.vacuum.extents
    cold.advance(11_000)
    assert cold.rewrite() == {1}
    assert client.call("XRANGE", "t", "-", "+") == before
    expect_replay(cold)


def test_the_rate_bounds_writing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second batch begins once the rate permits it; a rate of 0 turns it off."""
    monkeypatch.setattr(vacuum, "BATCH", 1)
    _, cold, clients = worlds()
    both(clients, "XDEL", "s", *(each for number in range(1, 49, 3) for each in ids(range(number, number + 2))))
    clients[1].call("CONFIG", "SET", "tier-vacuum-rate", "0")
    care(cold)
    assert cold.vacuum.extents == 0
    clients[1].call("CONFIG", "SET", "tier-vacuum-rate", "100")
    clients[1].call("SET", "k", "v")
    care(cold)
    assert cold.vacuum.extents == 1
    care(cold, 1)
    assert cold.vacuum.extents == 1
    care(cold, 9)
    assert cold.vacuum.extents == 2


def spoil(world: SpillWorld, at: int) -> None:
    """Change a byte of the only pack."""
    (path,) = (path for path in world.disk.names if path.suffix == ".pack")  # type: ignore[attr-defined]  # a SimDisk
    world.disk.names[path].cache[at] ^= 1  # type: ignore[attr-defined]  # a SimDisk


def test_damage_is_reported_once_and_stops_nothing_else() -> None:
    """A damaged extent is not written anew; the others are."""
    _, cold, clients = worlds()
    damages = []
    cold.vacuum.on_damage = damages.append
    both(clients, "XDEL", "s", *(each for number in range(1, 49, 3) for each in ids(range(number, number + 2))))
    spoil(cold, HEADER_SIZE + FRAME_SIZE + 40)
    (_, stream), *_ = cold.streams()
    for _ in range(3):
        care(cold)
        cold.vacuum.ask()
    assert [damage[:2] for damage in damages] == [(1, HEADER_SIZE)]
    # The number of extents depends on the memory of all streams in the process, also of other tests
    left = [(pack, rows[:8]) for pack, rows, holes in cold_records(stream.entries, 1) if holes]
    assert left == [(1, HEADER_SIZE.to_bytes(8, "little"))]
    assert cold.vacuum.extents
    assert isinstance(clients[1].call("XRANGE", "s", "1-1", "3-1"), Error)
    assert clients[1].raw("XRANGE", "s", "30-1", "+") == clients[0].raw("XRANGE", "s", "30-1", "+")


@pytest.mark.parametrize("deleted", [["10-1", "30-1"], ids(n for n in range(1, 49) if n % 3)], ids=["few", "many"])
def test_a_vacuum_ends_though_a_pack_cannot_be_opened(deleted: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """It leaves out the extents of that pack, says so once, and ends with an error instead of trying for ever."""
    _, cold, clients = worlds()
    both(clients, "XDEL", "s", *deleted)
    cold.spiller.filler.end()
    (path,) = (path for path in cold.disk.names if path.suffix == ".pack")  # type: ignore[attr-defined]  # a SimDisk
    cold.disk.remove(path)
    assert cold.vacuum.ask()
    for _ in range(300):
        cold.spiller.turn(cold.clock.now())
    assert not cold.vacuum.is_asked
    assert cold.vacuum.status == "error"
    assert cold.vacuum.extents == 0
    lines = [each.getMessage() for each in caplog.records if "cannot be read" in each.getMessage()]
    assert len(lines) == 1
    assert "pack 1 cannot be read" in lines[0]


def test_a_walk_is_repeated_once_the_sizes_of_packs_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack whose end the manifest could not take has to be opened for its size, and descriptors may lack then."""
    disk = SimDisk()
    cold = SpillWorld(disk=disk)
    filled(cold, 60)
    for _ in range(8):
        cold.spill()
    disk.faults = {disk.operations + step: Fault.ENOSPC for step in range(3, 6)}
    cold.spiller.filler.end()
    disk.faults = {}
    open_read = disk.open_read

    def refuse(path: Path) -> SimFile:
        if path.suffix == ".pack":
            raise OSError(EMFILE, "Too many open files")
        return open_read(path)

    with monkeypatch.context() as context:
        context.setattr(disk, "open_read", refuse)
        assert cold.vacuum.ask()
        for _ in range(9):
            care(cold, 1)
        assert (cold.vacuum.is_asked, cold.vacuum.status) == (False, "error")
    assert cold.vacuum.ask()
    for _ in range(9):
        care(cold)
    assert cold.vacuum.status == "ok"


def test_a_vacuum_ends_though_new_packs_cannot_be_read() -> None:
    """Without a way to read the pack that was written, no extent moves, and the vacuum ends with an error."""
    _, cold, clients = worlds()
    both(clients, "XDEL", "s", "10-1", "30-1")

    def refuse(entry: PackEntry) -> None:
        raise StorageError(f"cannot open {entry.name}")

    cold.spiller.on_pack = refuse
    assert cold.vacuum.ask()
    for _ in range(300):
        cold.spiller.turn(cold.clock.now())
    assert (cold.vacuum.is_asked, cold.vacuum.status, cold.vacuum.extents) == (False, "error", 0)


def test_turning_the_tier_off_ends_a_vacuum() -> None:
    """Its status says that it was interrupted."""
    _, cold, clients = worlds()
    clients[1].call("XDEL", "s", "10-1", "30-1")
    assert cold.vacuum.ask()
    cold.spiller.turn(cold.clock.now())
    clients[1].call("CONFIG", "SET", "tier", "no")
    care(cold, 1)
    assert (cold.vacuum.is_asked, cold.vacuum.status) == (False, "interrupted")


def test_writing_anew_is_tried_again_after_the_disk_was_nearly_full() -> None:
    """No change of data is needed for that."""
    disk = SimDisk(capacity=1 << 40)
    cold = SpillWorld({"disk-free-floor": "1mb"}, disk=disk)
    client = filled(cold, 60)
    for _ in range(8):
        cold.spill()
    client.call("XDEL", "s", *ids(n for n in range(1, 49) if n % 3))
    disk.capacity = 1 << 20
    care(cold)
    assert (cold.vacuum.status, cold.vacuum.extents) == ("disk-low", 0)
    disk.capacity = 1 << 40
    for _ in range(4):
        care(cold)
    assert cold.vacuum.status == "ok"
    assert cold.vacuum.extents


def test_a_vacuum_goes_on_after_it_began_a_rewriting_on_a_nearly_full_disk() -> None:
    """Holes that are left have their own reason: no extent can be written anew there."""
    disk = SimDisk(capacity=1 << 40)
    cold = SpillWorld({"disk-free-floor": "1mb", "tier-vacuum-rate": "0"}, disk=disk)
    client = filled(cold, 60)
    for _ in range(8):
        cold.spill()
    cold.spiller.filler.end()
    for number in range(61, 121):
        client.call("XADD", "t", f"{number}-1", "f", "v" * 9)
    for _ in range(8):
        cold.spill()
    client.call("DEL", "t")
    client.call("XDEL", "s", "10-1", "30-1")
    asked = idle(cold)
    disk.capacity = 1 << 20
    cold.vacuum.ask()
    care(cold, 1)
    assert asked == [True]
    assert (cold.vacuum.is_asked, cold.vacuum.status) == (False, "disk-low")


def test_the_rest_of_a_sparse_pack_moves_without_a_further_change() -> None:
    """A trim is the last change; the pack's few entries move, and the pack goes."""
    cold = SpillWorld({"tier-vacuum-rate": "1gb"})
    client = filled(cold, 90)
    for _ in range(8):
        cold.spill()
    cold.spiller.filler.end()
    client.call("XTRIM", "s", "MINID", "72")
    care(cold)
    assert cold.vacuum.sparse == {1}
    care(cold)
    assert cold.vacuum.extents
    assert cold.rewrite() == {1}
    assert client.call("XRANGE", "s", "-", "+", "COUNT", "1")[0][0] == b"72-1"
    expect_replay(cold)


def test_a_sparse_pack_goes_once_it_can_take_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The little that it is needed for moves, though entries cannot go to packs; a pack that is needed stays open."""
    monkeypatch.setattr(writing, "LEAST_SPARE", 1)
    cold = SpillWorld({"disk-free-floor": "0", "tier-vacuum-rate": "1gb"}, spare=1 << 20)
    client = filled(cold, 90)
    cold.spill()
    for number in range(91, 400):
        client.call("XADD", "t", f"{number}-1", "f", "v" * 99)
    monkeypatch.setattr(cold.opened, "free", lambda: cold.spiller.disk_needed + 1000)
    cold.spill()
    assert (cold.spiller.filler.status, cold.spiller.filler.open_pack) == ("disk-low", 1)
    client.call("XTRIM", "s", "MINID", "72")
    care(cold, 1)
    for _ in range(3):
        care(cold)
    assert cold.spiller.filler.status == "disk-low"
    assert cold.vacuum.extents
    assert cold.rewrite() == {1}
    expect_replay(cold)


def test_a_log_that_has_doubled_is_rewritten_on_a_nearly_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packs are all needed; the log's own space is worth it, and only once it has doubled again."""
    monkeypatch.setattr(vacuum, "LEAST_SPARE", 3000)
    cold = SpillWorld({"disk-free-floor": "1mb"})
    client = filled(cold, 60)
    for _ in range(8):
        cold.spill()
    monkeypatch.setattr(cold.opened, "free", lambda: 0)
    asked = idle(cold)
    client.call("SET", "k", "v")
    cold.written()
    care(cold)
    assert asked == [True]
    assert cold.rewrite() == set()
    for count in (10, 40):
        for _ in range(count):
            client.call("SET", "k", "v" * 100)
        cold.written()
        care(cold)
    assert asked == [True, True]


def test_an_idle_pack_goes_though_there_is_nothing_to_rewrite() -> None:
    """A record that changes nothing lets one rewriting begin; no write of a client is needed for that."""
    cold = SpillWorld()
    client = filled(cold, 60)
    for _ in range(8):
        cold.spill()
    client.call("DEL", "s")
    assert cold.rewrite() == set()
    cold.node.config.rewrite_min_size = 0
    asked = idle(cold)
    care(cold)
    assert asked == [False]
    assert cold.rewrite() == {1}
    assert cold.opened.packs == ()
    for _ in range(9):
        care(cold)
    assert asked == [False]
    expect_replay(cold)


def test_an_idle_pack_that_a_rewriting_keeps_is_tried_once_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further rewritings wait for a change of data, or for somebody who asks for a vacuum."""
    cold = SpillWorld()
    client = filled(cold, 60)
    for _ in range(8):
        cold.spill()
    client.call("DEL", "s")
    monkeypatch.setattr(cold.opened, "settled_packs", lambda _: set())
    cold.rewrite()
    cold.node.config.rewrite_min_size = 0
    asked = idle(cold)
    care(cold)
    cold.rewrite()
    for _ in range(9):
        care(cold)
    assert asked == [False]
    cold.vacuum.ask()
    care(cold, 1)
    assert (cold.vacuum.is_asked, cold.vacuum.status) == (False, "ok")
    assert asked[:2] == [False, True]
    cold.rewrite()
    before = len(asked)
    care(cold)
    assert len(asked) == before
    client.call("SET", "k", "v")
    care(cold)
    assert asked[before:] == [False]


class Refused(AtOnce):
    """A thread that the system does not start, as long as ``left`` is above 0."""

    left: ClassVar[int] = 0

    def start(self) -> None:
        """Fail, or run here."""
        if Refused.left:
            Refused.left -= 1
            raise RuntimeError("can't start new thread")
        super().start()


def test_work_goes_on_after_a_thread_could_not_start(caplog: pytest.LogCaptureFixture) -> None:
    """The lack is logged once; a later turn spills the same entries, and writes the same extents anew."""
    hot, cold, clients = worlds(Refused)
    for words in (["XADD", "s", "99-1", "f", "v"], ["XDEL", "s", *ids(n for n in range(1, 49) if n % 3)]):
        both(clients, *words)
        Refused.left = 2
        cold.advance(11_000)
        caplog.clear()
        for _ in range(2):
            cold.spill()
            assert not cold.spiller.background.is_busy
        assert [each.getMessage() for each in caplog.records if "no thread" in each.getMessage()] == [
            """no thread for work on packs was started; it is tried again: RuntimeError("can't start new thread")"""
        ]
        care(cold)
        check(cold.node)
    assert cold.vacuum.extents
    assert not cold.spiller.is_busy
    expect_same(cold, hot)
    expect_replay(cold)


def often(world: SpillWorld) -> None:
    """Run all turns that are due in some minutes."""
    for _ in range(5):
        care(world, 61)


def no_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("job", ["scrubbing.scrub", "vacuum.Vacuum._end_idle"])
def test_work_goes_on_after_a_job_found_no_memory(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error reaches the shell, which logs it; later jobs spill, end packs and read them as before."""
    hot, cold, clients = worlds()
    asked, count = idle(cold), cold.spiller.spilled
    cold.node.config.rewrite_min_size = 0
    both(clients, "XTRIM", "s", "MAXLEN", "9")
    if job.startswith("scrubbing"):
        cold.spiller.filler.end()
    with monkeypatch.context() as patched:
        patched.setattr(f"millstream.node.maintenance.{job}", no_memory)
        with pytest.raises(JobError):
            often(cold)
    often(cold)
    assert asked
    for number in range(100, 160):
        both(clients, "XADD", "s", f"{number}-1", "f", "v")
    often(cold)
    assert cold.spiller.spilled > count
    cold.spiller.filler.end()
    often(cold)
    assert cold.vacuum.scrubber.ended_at
    expect_same(cold, hot)
    expect_replay(cold)


def test_a_batch_whose_job_found_no_memory_stays_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on its way any more, and the same entries go to a pack later."""
    hot, cold = World(SMALL), SpillWorld()
    filled(hot, 60)
    filled(cold, 60)
    with monkeypatch.context() as patched:
        for name in ("write", "broken"):
            patched.setattr(writing.Filler, name, no_memory)
        with pytest.raises(JobError):
            cold.spill()
    assert not cold.spiller.is_busy
    assert cold.spiller.filler.status == "error"
    assert not cold.spiller.spilled
    care(cold)
    assert cold.spiller.spilled
    expect_same(cold, hot)
    expect_replay(cold)

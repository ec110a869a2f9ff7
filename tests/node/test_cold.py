"""Cold entries in a node: they answer as hot ones, a replay reads no pack, and damage concerns only who reads it."""

import os
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millstream.clock import Now
from millstream.commands.context.context import Context, Origin
from millstream.commands.context.session import Session
from millstream.engine.cold import FRAME_HEAD, cold_records, each_extent, extent_of, least_size, unpack_extents
from millstream.engine.streams import extents
from millstream.engine.streams.stream import Stream
from millstream.node.log import codec
from millstream.node.log.foreign import from_copy
from millstream.node.log.rebuilding import differing, from_log
from millstream.node.obeying import DivergedError
from millstream.persistence.disk import RealDisk
from millstream.persistence.frame import FRAME_SIZE
from millstream.persistence.packs import begin_pack, new_pack
from millstream.replication.dialect import ALWAYS, LOSSY, commands_of
from millstream.replies import Error
from replication.exactness import Replica, fed, held
from replication.replicated import Changes
from support.coldness import IS_COLD, MemoryPacks, chill
from support.inprocess import Client, World
from support.state import check

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

SMALL = {"stream-node-max-entries": "3"}


class ColdWorld(World):
    """A node whose packs are in memory."""

    def __init__(self, config: dict[str, str] | None = None) -> None:
        super().__init__(config or SMALL)
        self.packs = self.node.keyspace.reads.source = MemoryPacks()

    def chill(self, key: bytes = b"s", db: int = 0, each: int = 2) -> None:
        """Make all sealed nodes of a stream cold."""
        step = chill(self.node.keyspace, self.packs, db, key, each)
        if step is not None:
            ctx = self.node.context(self.node.sessions.open(self.clock.now()), self.clock.now())
            ctx.commit(step, soft=True)
            self.node.close(ctx)
        self.packs.forget()

    def stream(self, key: bytes = b"s") -> Stream:
        """Return the stream at a key."""
        found = self.node.keyspace.databases[0].keys[key]
        assert isinstance(found, Stream)
        return found

    def expect_replay(self) -> None:
        """Make the data again from the log, which must read no pack, and compare them."""
        fresh = from_log(self.log.replay())
        fresh.reads.source = self.packs
        assert differing(fresh, self.node.keyspace) == []


def filled(world: World, count: int = 20, key: str = "s") -> Client:
    client = world.client()
    for number in range(1, count + 1):
        client.call("XADD", key, f"{number}-1", "f", f"v{number}")
    return client


def told(world: World, dialect: str, annotate: str) -> tuple[list[Any], list[str]]:
    """Collect the commands for replicas and the names of transitions, from here on."""
    found: list[Any] = []
    ops: list[str] = []
    node, note = world.node, world.node.journal.note

    def noted(step: Any, soft: bool) -> None:
        note(step, soft)
        found.extend(commands_of(node.keyspace, step, soft=soft, dialect=dialect, annotate=annotate))
        ops.append(step[0])

    def context(session: Session, now: Now, origin: Origin = Origin.CLIENT) -> Context:
        return Context(node.host, session, now, noted, node.sessions.notify, origin)

    node.context = context  # type: ignore[method-assign]  # every change is made in a context
    return found, ops


def test_a_frame_has_the_head_that_readers_skip() -> None:
    """The engine, which knows no files, skips as many bytes as a frame's head has."""
    assert FRAME_HEAD == FRAME_SIZE


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_answer_as_with_hot_entries(seed: int) -> None:
    """Replies, commands for replicas and the data themselves are the same; the log and its snapshots read no pack."""
    random, hot, cold = Random(seed), World(SMALL), ColdWorld()
    dialect, annotate = random.choice([("7.0", LOSSY), ("8.8", ALWAYS), ("8.2", LOSSY)])
    said = [told(world, dialect, annotate) for world in (hot, cold)]
    clients, total, different = [hot.client(), cold.client()], 0, 0
    for words in Changes(seed, hot.clock.now().wall, newest=True).some(700):
        for world in (hot, cold):
            world.clock.advance(3)
        assert clients[0].raw(*words) == clients[1].raw(*words), words
        # If the last hot node may go, entries go in two steps, of which each has its commands
        (mine, _), (theirs, ops) = said
        assert mine == theirs or {"xdel", "xdrop"} & set(ops), words
        total += len(mine)
        different += mine != theirs
        for each in (mine, theirs, ops):
            each.clear()
        if random.random() < 0.2:
            for key in (b"s", b"t", b"u"):
                cold.chill(key, each=random.randint(1, 3))
        if random.random() < 0.01:
            cold.expect_replay()
            cold.log.rewrite()
    for key in ("s", "t", "u"):
        for words in (["XINFO", "STREAM", key, "FULL", "COUNT", 0], ["XREVRANGE", key, "+", "-"], ["DUMP", key]):
            assert clients[0].raw(*words) == clients[1].raw(*words)
    check(cold.node)
    cold.expect_replay()
    assert total > 300
    assert different < 5
    assert cold.packs.misses


def test_a_stream_is_cold_after_a_restart() -> None:
    """A snapshot has the extents with their holes, and a restart without packs restores them."""
    world = ColdWorld()
    client = filled(world)
    world.chill()
    client.call("XDEL", "s", "2-1")
    cold = world.stream().entries
    assert (cold.extent_count, cold.cold_live, cold.node_count) == (3, 17, 7)
    world.log.rewrite()
    again = world.recovered().keyspace.databases[0].keys[b"s"]
    assert isinstance(again, Stream)
    assert list(cold_records(again.entries, 10)) == list(cold_records(cold, 10))
    with pytest.raises(ValueError, match="no reader of packs"):
        again.entries.wire(1 << 64 | 1)


def test_a_snapshot_names_its_packs_first() -> None:
    """The first transition of a snapshot has number, identity and size of each pack that it needs."""
    world = ColdWorld()
    filled(world)
    world.chill()
    world.node.keyspace.packs[1] = "00ff"
    world.log.append(codec.pack(0, [("tpacks", -1, [[1, "00ff", 0]])]))
    world.log.rewrite()
    size = sum(map(len, world.packs.files.values()))
    assert codec.unpack(world.log.snapshot[0])[1][0] == ["tpacks", -1, [[1, "00ff", size]]]
    assert world.recovered().keyspace.packs == {1: "00ff"}


def test_the_last_hot_node_may_go() -> None:
    """A cold node becomes hot before the last hot one goes, since the last node takes entries."""
    world = ColdWorld()
    client = filled(world)
    world.chill()
    assert client.call("XDEL", "s", "19-1", "20-1", "17-1") == 3
    assert client.call("XDEL", "s", "18-1") == 1
    assert world.stream().entries.extent_count
    assert client.call("XADD", "s", "21-1", "f", "v") == b"21-1"
    check(world.node)
    world.expect_replay()
    world.chill()
    assert client.call("XDEL", "s", *(f"{number}-1" for number in range(3, 22))) == 15
    ops = [step[0] for step in codec.unpack(world.log.payloads[-1])[1]]
    assert ops == ["xdel", "twarm", "xdel"]
    assert (world.stream().entries.node_count, client.call("XLEN", "s")) == (1, 2)
    world.expect_replay()
    world.chill()
    assert client.call("XADD", "s", "30-1", "f", "v") == b"30-1"
    assert client.call("XDEL", "s", "1-1", "2-1", "30-1") == 3
    assert (world.stream().entries.extent_count, client.call("XLEN", "s")) == (0, 0)
    world.expect_replay()


def test_the_last_id_may_go_back_to_the_cold_part() -> None:
    """XSETID below all hot nodes makes the last cold node hot, for the ids to come."""
    world = ColdWorld()
    client = filled(world)
    world.chill()
    client.call("XGROUP", "CREATE", "s", "g", 0)
    client.call("XTRIM", "s", "MAXLEN", "100", "ACKED")
    client.call("XDEL", "s", *(f"{number}-1" for number in range(12, 21)))
    client.call("XSETID", "s", "20-1", "MAXDELETEDID", "0-1")
    client.call("XSETID", "s", "11-1")
    assert client.call("XADD", "s", "12-0", "f", "v") == b"12-0"
    assert client.call("XLEN", "s") == 12
    check(world.node)
    world.expect_replay()


def test_a_trim_of_whole_extents_reads_one_table() -> None:
    """Trimming of many extents reads only the table of the one that has the boundary."""
    world = ColdWorld({"stream-node-max-entries": "2"})
    client = filled(world, 200)
    world.chill(each=5)
    reads: list[int] = []
    read = world.packs.read
    world.packs.read = lambda pack, offset, length, *, may_wait: (  # type: ignore[method-assign]  # counts
        reads.append(offset) or read(pack, offset, length, may_wait=may_wait)  # type: ignore[func-returns-value]  # it appends
    )
    assert client.call("XTRIM", "s", "MAXLEN", "~", 57) == 142
    assert len(set(reads)) == 1
    assert client.call("XTRIM", "s", "MINID", "~", "171-0") == 28
    world.expect_replay()


@pytest.mark.parametrize("options", [["MAXLEN", "=", "57"], ["MINID", "~", "144-0"]])
def test_a_trim_of_what_no_group_needs_reads_one_extent(options: list[str]) -> None:
    """ACKED trims as exactly as ever, but reads and logs only a boundary, if no group needs what lies below it."""
    world = ColdWorld({"stream-node-max-entries": "2"})
    client = filled(world, 200)
    client.call("XGROUP", "CREATE", "s", "g", "149-1")
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")  # pending: from the 150th on
    world.chill(each=5)
    extents, read = set[int](), world.packs.read
    offsets = [extent.offset for record in cold_records(world.stream().entries) for extent in unpack_extents(*record)]

    def noted(pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        extents.add(max(each for each in offsets if each <= offset))
        return read(pack, offset, length, may_wait=may_wait)

    world.packs.read = noted  # type: ignore[method-assign]  # looks on
    assert client.call("XTRIM", "s", *options, "ACKED") == 143
    assert len(extents) == 1
    assert len(world.log.payloads[-1]) < 300
    assert (client.call("XLEN", "s"), world.stream().first_id) == (57, 144 << 64 | 1)
    world.expect_replay()


def test_adding_to_a_capped_stream_reads_no_pack_while_it_is_short_enough() -> None:
    """XADD with MAXLEN looks at no extent before the length is passed, and then at few of very many."""
    world = ColdWorld()
    client, asked = filled(world), list[tuple[int, int]]()
    world.chill()
    assert client.call("XADD", "s", "MAXLEN", "~", 100, "21-1", "f", "v") == b"21-1"
    assert client.call("XADD", "s", "MAXLEN", "=", 22, "22-1", "f", "v") == b"22-1"
    assert world.packs.there == []

    class Listing:
        """A store of a thousand extents."""

        def extents(self, begin: int, most: int) -> list[tuple[int, int, int, int]]:
            asked.append((begin, most))
            return [(1, at, 1, 100) for at in range(begin, min(begin + most, 1000))]

    assert [last for _, last, *_ in islice(each_extent(Listing()), 3)] == [0, 1, 2]
    assert (len(asked), asked[0][0]) == (1, 0)
    assert [last for _, last, *_ in each_extent(Listing())] == list(range(1000))


def test_a_miss_counts_a_look_up_once_and_says_an_event_once() -> None:
    """A command that runs again after a miss counts one hit and publishes one event."""
    world = ColdWorld({**SMALL, "notify-keyspace-events": "KEA"})
    client, other = filled(world), world.client()
    world.chill()
    other.call("SUBSCRIBE", "__keyevent@0__:xdel")
    hits = world.node.stats.lookups.hits
    client.call("XRANGE", "s", "-", "+")
    assert world.node.stats.lookups.hits == hits + 1
    assert client.call("XDEL", "s", "1-1", "7-1", "13-1") == 3
    assert world.packs.misses
    assert len(world.node.sessions.messages) <= 1


def test_a_script_and_a_transaction_wait_for_what_they_read() -> None:
    """Commands that cannot begin again read without a miss."""
    world = ColdWorld()
    client = filled(world)
    world.chill()
    assert client.call("EVAL", "return #redis.call('XRANGE', 's', '-', '+')", 0) == 20
    client.call("MULTI")
    client.call("XDEL", "s", "1-1")
    client.call("XRANGE", "s", "-", "2-1")
    assert client.call("EXEC") == [1, [[b"2-1", [b"f", b"v2"]]]]
    assert world.packs.misses == 0


def extent_length(row: bytes) -> int:
    return int.from_bytes(row[8:12], "little")


def aging(each: int) -> tuple[ColdWorld, Client]:
    """Return a node with a rule of a day, and two cold streams of entries of the last two days."""
    world = ColdWorld({**SMALL, "stream-retention": "* 1d 0"})
    client, now = world.client(), world.clock.now().wall
    for key in ("s", "t"):
        for number in range(12):
            client.call("XADD", key, f"{now - 2 * 86_400_000 + number * 14_000_000}-1", "f", "v")
        client.call("XGROUP", "CREATE", key, "g", 0)
        world.chill(key.encode(), each=each)
    return world, client


def test_retention_removes_damaged_extents_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    """An extent of which all entries are too old goes unread, so damage in it does not stop retention."""
    world, client = aging(each=2)
    world.packs.files[1][FRAME_HEAD] ^= 1  # the first extent is that of "s"
    world.stream().entries = world.stream().entries.copy()  # a copy has not read its extents yet
    world.advance(2000)
    assert client.call("XLEN", "s") == client.call("XLEN", "t") == 6
    assert "cannot be read" not in caplog.text
    world.expect_replay()


def test_retention_reads_only_where_it_ends() -> None:
    """Whole extents go without a look into them; a stream of which nothing is too old is not looked at."""
    world = ColdWorld({**SMALL, "stream-retention": "* 1d 0"})
    client, now = world.client(), world.clock.now().wall
    for number in range(100):
        client.call("XADD", "s", f"{now - 2 * 86_400_000 + number * 1_700_000}-1", "f", "v")
    world.chill(each=4)
    (record,) = cold_records(world.stream().entries, 100)
    end = unpack_extents(*record)[4]
    world.advance(2000)
    assert client.call("XLEN", "s") == 49
    assert world.packs.there
    assert all(end.offset <= offset < end.offset + end.length for _, offset, _ in world.packs.there)
    client.call("CONFIG", "SET", "stream-retention", "* 7d 1gb")
    world.packs.forget()
    world.advance(2000)
    assert world.packs.there == []
    world.expect_replay()


def followed() -> tuple[World, Client, Replica, MemoryPacks]:
    """Return a primary with a group of one pending entry, and a replica at its level whose sealed nodes are cold."""
    world = World({**SMALL, "repl-annotate": "always"})
    replica, client, packs = Replica(fed(world), world.clock), world.client(), MemoryPacks()
    replica.node.keyspace.reads.source = packs
    replica.node.config.node_max_entries = 3
    for number in range(1, 21):
        client.call("XADD", "s", f"{number}-1", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", 0)
    replica.catch_up()
    step = chill(replica.node.keyspace, packs, 0, b"s")
    assert step is not None
    replica.node.keyspace.apply(step)
    return world, client, replica, packs


def test_a_replica_has_cold_entries_of_its_own() -> None:
    """Annotations and commands of a primary apply to a replica's cold entries, and its log carries what they are."""
    world, client, replica, packs = followed()
    noted: list[tuple[str, int]] = []
    note = replica.node.journal.note
    replica.node.journal.note = lambda step, soft: (noted.append((step[0], len(step))), note(step, soft))[1]  # type: ignore[method-assign,func-returns-value]  # looks on
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", 5, "STREAMS", "s", ">")
    client.call("XACK", "s", "g", "2-1", "3-1")
    client.call("XTRIM", "s", "MINID", "5-0", "ACKED")
    client.call("XDEL", "s", "4-1", "20-1")
    client.call("XTRIM", "s", "MINID", "8-0")
    replica.catch_up()
    assert replica.node.keyspace.databases[0].keys[b"s"].entries.extent_count  # type: ignore[attr-defined]  # a stream
    assert held(replica.node.keyspace, times=True) == held(world.node.keyspace, times=True)
    assert {("gread", 10), ("xdrop", 6), ("xdel", 5), ("xtrim", 7)} <= set(noted)  # with what the packs have
    assert replica.node.following.divergences == 0
    assert packs.there


def test_a_replica_that_meets_damage_asks_for_a_full_copy() -> None:
    """A replica cannot leave out a change, whether it came as a command or as an annotation."""
    for change in (["XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">"], ["XDEL", "s", "1-1"]):
        _, client, replica, packs = followed()
        packs.fails = True
        client.call(*change)
        with pytest.raises(DivergedError, match=r"cannot be (read|applied here: the disk reports: Input/output error)"):
            replica.catch_up()
        assert replica.node.following.divergences == 1
        assert len(replica.node.cold.damages()) == 1  # the next copy brings the pack


def test_an_extent_may_move_to_another_pack() -> None:
    """An extent that is written anew takes the place of the old one, but only with the same entries."""
    world = ColdWorld()
    client = filled(world)
    world.chill()
    client.call("XDEL", "s", "2-1")
    before = client.call("XRANGE", "s", "-", "+")
    nodes = list(world.stream().entries.nodes())[:2]
    place = world.packs.write(extents.encode(nodes), 2)
    moved = extent_of(nodes, 2, *place)
    ctx = world.node.context(client.session, world.clock.now())
    ctx.commit(("tmove", 0, b"s", 0, 2, moved.row(), []), soft=True)
    world.node.close(ctx)
    world.packs.files[1][:100] = bytes(100)
    assert client.call("XRANGE", "s", "-", "+") == before
    world.expect_replay()
    with pytest.raises(ValueError, match="other entries"):
        world.stream().entries.move_cold(1, 2, moved.row(), [])


def test_extents_of_other_entries_are_damage_of_the_log() -> None:
    """A record about other nodes than the first hot ones is refused."""
    world = ColdWorld()
    filled(world)
    step = chill(world.node.keyspace, world.packs, 0, b"s")
    assert step is not None
    for wrong in (step[4][:88], step[4][88:], step[4] + step[4][-88:], step[4][:-1], b""):
        entries = world.stream().entries.copy()
        entries.reads = world.node.keyspace.reads
        if wrong == step[4][:88]:
            entries.add_cold(1, wrong, [])  # a part is fine
            continue
        with pytest.raises(ValueError, match="extent"):
            entries.add_cold(1, wrong, [])


class FilePacks:
    """Packs in files, as the log's directory has them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entry = new_pack(1, os.urandom)

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        """Return a part of a pack."""
        assert pack == self.entry.number
        with (self.directory / self.entry.name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def name(self, pack: int) -> str:
        """Return the name of a pack's file."""
        return self.entry.name


def test_entries_lie_in_packs_as_the_log_writes_them(tmp_path: Path) -> None:
    """Extents that were written to a real pack are read by their offsets and sizes there."""
    world = World(SMALL)
    client = filled(world)
    before = client.call("XRANGE", "s", "-", "+")
    source = world.node.keyspace.reads.source = FilePacks(tmp_path)
    writer = begin_pack(RealDisk(), tmp_path, source.entry)
    stream = world.node.keyspace.databases[0].keys[b"s"]
    assert isinstance(stream, Stream)
    nodes = list(stream.entries.hot_nodes())[:-1]
    parts = [nodes[:3], nodes[3:]]
    places = writer.add([extents.encode(part) for part in parts])
    rows = b"".join(extent_of(part, 1, *place).row() for part, place in zip(parts, places, strict=True))
    world.node.keyspace.apply(("tcold", 0, b"s", 1, rows, []))
    assert client.call("XRANGE", "s", "-", "+") == before
    writer.end()
    writer.close()
    file = tmp_path / source.entry.name
    file.write_bytes(file.read_bytes()[: places[1][0] + 9])
    reply = client.call("XRANGE", "s", "10-1", "+")
    assert isinstance(reply, Error)
    assert source.entry.name in reply.line
    assert client.call("XRANGE", "s", "1-1", "9-1") == before[:9]  # type: ignore[index]  # a reply may be anything


def test_another_servers_records_may_not_refer_to_packs() -> None:
    """A copy from another server is refused if it needs packs, since it brings none."""
    world = ColdWorld()
    filled(world)
    world.chill()
    with pytest.raises(ValueError, match="tcold of entries in packs, which did not come along"):
        from_copy(world.log.replay())


def test_retention_counts_cold_nodes() -> None:
    """Retention by age removes the same entries, hot or cold."""
    worlds = [World({**SMALL, "stream-retention": "s 1d 0"}), ColdWorld({**SMALL, "stream-retention": "s 1d 0"})]
    lengths = []
    for world in worlds:
        client, now = world.client(), world.clock.now().wall
        for number in range(20):
            client.call("XADD", "s", f"{now - 2 * 86_400_000 + number * 9_000_000}-1", "f", "v")
        if isinstance(world, ColdWorld):
            world.chill()
        world.advance(2000)
        lengths.append((client.call("XLEN", "s"), client.call("XRANGE", "s", "-", "+", "COUNT", 1)))
    assert lengths[0] == lengths[1]
    assert 0 < lengths[0][0] < 20  # type: ignore[operator]  # a reply may be anything


def usage(client: Client) -> dict[bytes, Any]:
    """Return the reply of TIER USAGE."""
    reply = client.call("TIER", "USAGE", "s")
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def test_tier_usage_tells_where_entries_are() -> None:
    """TIER USAGE counts hot and cold entries without reading a pack, and has the same form without a tier."""
    world = ColdWorld()
    client = world.client()
    assert client.call("TIER", "USAGE", "s") is None
    for number in range(1, 11):
        client.call("XADD", "s", f"{number}-1", "f", "v")
    hot = usage(client)
    rest = {b"cold-entries": 0, b"cold-bytes": 0, b"packs": 0, b"oldest-id": b"1-1"}
    assert hot == {b"entries": 10, b"hot-bytes": hot[b"hot-bytes"], **rest}
    world.chill()
    assert usage(client)[b"cold-entries"] == 9
    client.call("XTRIM", "s", "MINID", "~", "7-1")
    cold = usage(client)
    assert (cold[b"entries"], cold[b"oldest-id"], cold[b"packs"]) == (4, b"7-1", 1)
    assert cold[b"cold-bytes"] > 0
    assert cold[b"hot-bytes"] < hot[b"hot-bytes"]
    client.call("SET", "s", "v")
    assert isinstance(client.call("TIER", "USAGE", "s"), Error)


def test_a_wait_for_a_claim_reads_no_cold_entry() -> None:
    """A client that waits for a claim of a cold entry is served in time, and no change meanwhile reads a pack."""
    world = ColdWorld()
    client, other = filled(world), world.client()
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", 20, "NOACK", "STREAMS", "s", ">")
    client.call("XCLAIM", "s", "g", "a", 0, "1-1", "FORCE", "JUSTID")
    world.clock.advance(10)
    client.call("XCLAIM", "s", "g", "a", 0, "20-1", "FORCE", "JUSTID")
    world.chill()
    other.send("XREADGROUP", "GROUP", "g", "b", "BLOCK", 0, "CLAIM", 100, "STREAMS", "s", ">")
    assert other.waits
    world.packs.forget()
    client.call("XCLAIM", "s", "g", "c", 0, "20-1", "JUSTID")
    assert world.packs.there == []
    world.advance(90)
    assert other.inbox[-1] == [[b"s", [[b"1-1", [b"f", b"v1"], 100, 1]]]]


def test_a_command_that_has_changed_something_does_not_run_again() -> None:
    """XDEL of the last hot entry reads a node after it has deleted others: it waits there, and counts each entry."""
    world = ColdWorld()
    client = world.client()
    for number in range(1, 11):
        client.call("XADD", "s", f"{number}-1", "f", "v")
    world.chill()
    assert world.stream().entries.extent_count
    assert client.call("XDEL", "s", "2-1", "10-1") == 2
    assert client.call("XLEN", "s") == 8
    world.expect_replay()


@pytest.mark.parametrize("seed", range(4))
def test_the_least_size_of_a_range_is_not_more_than_its_reply(seed: int) -> None:
    """A read is refused by this size before anything is read, so it must never be too large."""
    random, world = Random(seed), ColdWorld()
    client = filled(world, 200)
    world.chill(each=random.randint(1, 3))
    for number in random.sample(range(1, 200), 40):
        client.call("XDEL", "s", f"{number}-1")
    entries, found = world.stream().entries, 0
    for _ in range(300):
        start, end = sorted(random.randint(0, 210) << 64 for _ in range(2))
        count, backwards = random.choice([-1, 1, 10, 50, 150]), random.random() < 0.5
        size = least_size(entries, start, end, count, 1 << 20, backwards=backwards)
        _, buffers, _ = entries.reply(start, end, count, backwards=backwards)
        assert size <= sum(map(len, buffers)), (start, end, count, backwards)
        found += size > 0
    assert found > 100
    for count in (-1, 160, 161, 400):
        size = least_size(entries, 0, 210 << 64, count, 1 << 20, backwards=count % 2 > 0)
        assert size == entries.cold_weight(0, 210 << 64)


def test_a_script_gets_an_error_instead_of_a_range_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the server would read all of it, which may be far more than its memory."""
    monkeypatch.setattr("millstream.node.tiering.reading.OUTPUT_HARD_MAX", 500)
    world = ColdWorld()
    client = filled(world, 100)
    world.chill()
    for words in (("XRANGE", "s", "-", "+"), ("XREAD", "COUNT", "90", "STREAMS", "s", "0")):
        calls = ", ".join(f"'{word}'" for word in words)
        reply = client.call("EVAL", f"return redis.call({calls})", "0")
        assert "too large for a script" in str(reply)
    assert len(client.call("EVAL", "return redis.call('XRANGE', 's', '-', '+', 'COUNT', '10')", "0")) == 10


@pytest.mark.parametrize(
    ("words", "nothing"),
    [
        (["XRANGE", "s", "-", "+"], []),
        (["XREAD", "STREAMS", "s", "0"], None),
        (["XINFO", "STREAM", "s", "FULL", "COUNT", "0"], "no such key"),
        (["DUMP", "s"], None),
    ],
)
def test_an_expired_stream_is_not_too_large(words: list[str], nothing: list[Any] | str | None) -> None:
    """Its client gets the reply for a missing key, and is not cut for entries that nobody reads."""
    world = ColdWorld()
    client = filled(world, 100)
    world.node.replies.are_limited = True
    client.call("CONFIG", "SET", "client-output-buffer-limit", "normal 500 0 0")
    world.chill()
    client.call("PEXPIRE", "s", "10")
    client.send(*words)
    assert client.session.overflow
    client = world.client()
    world.clock.advance(11)
    reply = client.call(*words)
    assert nothing in str(reply) if isinstance(nothing, str) else reply == nothing
    assert not client.session.overflow


def test_trimming_what_is_acknowledged_reads_nothing_behind_the_hindmost_group() -> None:
    """All of it stays, so XADD to a stream whose group is far behind must not read the backlog each time."""
    world = ColdWorld()
    client = filled(world, 90)
    client.call("XGROUP", "CREATE", "s", "g", "5-1")
    world.chill(each=5)
    begun, read = [], world.packs.read
    rows = [unpack_extents(*record) for record in cold_records(world.stream().entries, 100)]

    def noted(pack: int, offset: int, length: int, *, may_wait: bool) -> bytes:
        begun.append(offset)
        return read(pack, offset, length, may_wait=may_wait)

    world.packs.read = noted  # type: ignore[method-assign]  # looks on
    assert client.call("XTRIM", "s", "MAXLEN", "3", "ACKED") == 5
    tables = {extent.offset + FRAME_HEAD for extent in rows[0]}
    assert len(tables) == 6
    assert tables <= set(begun)
    assert 0 < len(set(begun) - tables) <= 3  # nodes

"""Parts of a primary without a socket: stored bytes, partial syncs, and the log's count of the stream."""

import random
from typing import Any

import pytest

from millstream.engine.history import NO_DATABASE, ReplicationState
from millstream.engine.keyspace import OPS, Keyspace
from millstream.engine.serialization import snapshot_ops
from millstream.engine.serialization.snapshot import transitions
from millstream.node.durability.outage import Outage
from millstream.node.log import codec, rebuilding
from millstream.replication import words
from millstream.replication.backlog import Backlog
from millstream.replication.followers import Followers
from millstream.replication.units import unit
from support.inprocess import World
from support.resp import decode


class Shell:
    """Shell that sends nothing."""

    def begin(self, feed: Any) -> None: ...

    def join(self, follower: Any) -> None: ...

    def leave(self, follower: Any) -> None: ...

    def confirmed(self) -> None: ...


def fed(world: World) -> World:
    """Attach a replica to the world's node."""
    world.node.primary.shell = Shell()
    world.client().raw("PSYNC", "?", "-1")
    return world


# ---------------------------------------------------------------------- the backlog


def test_bytes_go_out_once_their_position_is_reached() -> None:
    """Bytes are sent to replicas only after the log has written them."""
    backlog = Backlog(100, 1000)
    for position, data in ((1, b"one"), (2, b"two"), (2, b"more")):
        backlog.append(data)
        backlog.await_position(position)
    assert (backlog.kept(0), backlog.read(100, 99)) == (False, b"")
    assert (backlog.kept(1), backlog.read(100, 99), backlog.next_position()) == (True, b"one", 2)
    assert (backlog.kept(2), backlog.read(101, 5), backlog.next_position()) == (True, b"netwo", None)


def test_old_bytes_go_and_those_somebody_needs_stay() -> None:
    """The backlog stores as many bytes as configured, and more while a replica still needs them."""
    backlog = Backlog(0, 100_000)
    for at in range(10):
        backlog.append(bytes([at]) * 65_536)
    backlog.sendable = backlog.end
    backlog.trim(needed=65_536)
    assert (backlog.first, backlog.has(65_536), backlog.has(65_535)) == (65_536, True, False)
    backlog.trim(needed=backlog.end)
    assert backlog.end - backlog.first == 131_072
    assert backlog.read(backlog.first, 2) == b"\x08\x08"
    assert not backlog.has(backlog.end + 1)


def test_whoever_reads_from_wherever_reads_the_same() -> None:
    """A reader of the backlog gets the same bytes from any offset, across its pieces and blocks."""
    chance = random.Random(7)
    backlog, whole = Backlog(1000, 1 << 30), b""
    for _ in range(400):
        data = chance.randbytes(chance.choice([1, 80, 80, 80, 3000, 70_000]))
        backlog.append(data)
        whole += data
        backlog.sendable = chance.randint(backlog.sendable, backlog.end)
        offset, most = chance.randint(1000, backlog.end), chance.choice([1, 100, 65_536])
        for at in (offset, max(backlog.end - 200, 1000)):
            there = whole[at - 1000 : backlog.sendable - 1000][:most]
            found = backlog.read(at, most)
            assert there.startswith(found)
            assert bool(found) is bool(there)


# ---------------------------------------------------------------------- histories


@pytest.mark.parametrize(
    ("replid", "offset", "follows"),
    [("new", 1, True), ("new", 99, True), ("old", 51, True), ("old", 52, False), ("other", 1, False), ("", 1, False)],
)
def test_who_may_go_on_where_it_was(replid: str, offset: int, follows: bool) -> None:
    """A replica may continue with the same history, or with the previous one up to their common offset."""
    assert ReplicationState("new", 90, 0, "old", 51).follows(replid, offset) is follows


def test_nobody_follows_where_there_is_no_history() -> None:
    """No replica continues with an empty history, not even with an empty name."""
    assert not ReplicationState().follows("", 1)


# ---------------------------------------------------------------------- replicas


def test_replicas_that_are_not_there_yet_do_not_count() -> None:
    """WAIT counts only replicas that are online, and ``min-replicas-to-write`` only those heard of recently."""
    followers = Followers()
    for number, stage in enumerate(("wait_bgsave", "send_bulk", "online", "online")):
        follower = followers.known(number, "ip")
        follower.stage, follower.acked, follower.durable, follower.heard_at = stage, 100 * number, 50, 1000 * number
    assert (followers.count(100), followers.count(300), followers.count(51, durable=True)) == (2, 1, 0)
    followers.known(9, "ip").stage = "online"
    assert followers.count(0) == 2
    followers.drop(9)
    assert (followers.good(12_999, 10), followers.good(13_000, 10)) == (2, 1)


# ---------------------------------------------------------------------- units


def test_a_unit_is_one_command_or_a_transaction() -> None:
    """A unit is one command or a transaction. SELECT comes where the database changes, before MULTI as in Redis."""
    data, db = unit([(2, [b"SET", b"k", b"v"])], NO_DATABASE)
    assert (data.count(b"SELECT"), data.count(b"MULTI"), db) == (1, 0, 2)
    data, db = unit([(2, [b"DEL", b"k"]), (3, [b"DEL", b"k"]), (NO_DATABASE, [b"PING"])], 2)
    words = [word for word in data.split(b"\r\n") if word.isupper()]
    assert (words, db) == ([b"MULTI", b"DEL", b"SELECT", b"DEL", b"PING", b"EXEC"], 3)


def test_every_transition_of_commands_is_told_or_meant_to_be_silent() -> None:
    """Every transition of the log has commands for replicas, or is listed as having none."""
    of_snapshots = {op for op, applier in OPS.items() if applier.__module__ == snapshot_ops.__name__}
    assert set(OPS) - of_snapshots == words.KNOWN | words.SILENT
    assert not words.KNOWN & words.SILENT


# ---------------------------------------------------------------------- the log


def test_a_record_counts_the_bytes_that_tell_of_it() -> None:
    """A record counts its bytes in the stream, so log and snapshot have the offset, messages included."""
    world = fed(World())
    client, feed = world.client(), world.node.primary.feed
    assert feed is not None
    client.call("SELECT", 3)
    client.call("PUBLISH", "c", "m")
    assert rebuilding.from_log(world.log.replay()).history.offset == feed.offset
    client.call("SET", "k", "v")
    client.call("XADD", "s", "*", "f", "v")
    for space in (rebuilding.from_log(world.log.replay()), world.node.keyspace):
        assert (space.history.offset, space.history.db, space.history.replid) == (
            feed.offset,
            3,
            world.node.primary.replid,
        )
    again = Keyspace()
    for step in transitions(world.node.keyspace):
        again.apply(step)
    assert again.history == world.node.keyspace.history


def test_while_a_copy_is_made_each_record_says_its_database() -> None:
    """While a copy is made, each record selects its database, so a tool that misses the copy's database is right."""
    world = fed(World())
    feed = world.node.primary.feed
    assert feed is not None
    run = codec.pack(0, [("set", 1, b"k", b"v", None)])
    feed.tell_run(run)
    feed.selects = True
    begin = feed.offset
    for _ in range(2):
        feed.tell_run(run)
    feed.appended(1)
    feed.backlog.kept(1)
    assert feed.backlog.read(begin, 1000).count(b"SELECT") == 2


def test_nothing_is_counted_before_a_replica_comes() -> None:
    """A server without replicas counts no bytes, and logs as it would otherwise."""
    world = World()
    client = world.client()
    client.call("SET", "k", "v")
    client.call("PUBLISH", "c", "m")
    assert [step[0] for record in world.log.payloads for step in codec.unpack(record)[1]] == ["set"]


def test_who_tells_no_replicas_ends_the_history() -> None:
    """A directory that ``file://`` writes to ends its history, so that no replica continues with it."""
    world = fed(World())
    world.client().call("SET", "k", "v")
    twin = World()
    twin.node.recover(world.log.replay())
    assert twin.node.keyspace.history.replid == ""
    assert codec.unpack(twin.log.payloads[0])[1][0][0] == "hist"


def test_a_start_takes_another_name_and_knows_the_old_one() -> None:
    """A start renames the history and lists the old name, under which bytes sent but not stored stay unknown."""
    world = fed(World())
    world.client().call("SET", "k", "v")
    past = world.node.keyspace.history
    twin = World()
    twin.node.primary.shell = Shell()
    twin.node.recover(world.log.replay(), tells_replicas=True)
    twin.node.primary.resume(twin.clock.now())
    now = twin.node.keyspace.history
    assert now.replid != past.replid
    assert (now.replid2, now.second, now.offset) == (past.replid, past.offset + 1, past.offset)
    assert twin.client().raw("PSYNC", past.replid, past.offset + 1) == b"+CONTINUE %b\r\n" % now.replid.encode()
    assert twin.client().raw("PSYNC", past.replid, past.offset + 2) == b""


def test_a_full_disk_makes_no_copy_and_lets_go_on_who_can() -> None:
    """With a full disk no copy is made: the replica is told to retry. One that needs none continues."""
    world = fed(World())
    client, feed = world.client(), world.node.primary.feed
    assert feed is not None
    world.node.journal.suspend(Outage("no space is left"))
    assert client.raw("PSYNC", "?", "-1").startswith(b"-NOMASTERLINK the disk")
    assert not client.session.is_replica
    assert client.raw("PSYNC", world.node.primary.replid, feed.offset + 1).startswith(b"+CONTINUE")


def test_a_node_in_another_program_has_no_replicas() -> None:
    """A node in another program refuses replicas, which could not reach it."""
    for asked in (["PSYNC", "?", "-1"], ["SYNC"], ["REPLCONF", "listening-port", "7"]):
        assert World().client().raw(*asked).startswith(b"-ERR this server lives in another program")


@pytest.mark.parametrize(
    "said_words",
    [
        *(["REPLCONF", "capa"], ["REPLCONF", "what", "1"], ["REPLCONF", "listening-port", "x"]),
        *(["REPLCONF", "ip-address", address] for address in ("9" * 256, "1\r\nrole:slave", "here and there")),
    ],
)
def test_what_a_replica_says_wrong(said_words: list[str]) -> None:
    """An invalid option of REPLCONF is an error, which replicas ignore."""
    said = fed(World()).client().raw(*said_words)
    assert said.startswith(b"-ERR ")
    assert b"another program" not in said


def test_what_a_replica_says_of_itself() -> None:
    """REPLCONF accepts all options in one command too, and ignores GETACK, which is for replicas."""
    client = fed(World()).client()
    told = ["listening-port", "7", "ip-address", "there", "capa", "eof", "version", "8.0.0", "rdb-no-compress", "1"]
    assert client.call("REPLCONF", *told) == decode(b"+OK\r\n")
    assert client.raw("REPLCONF", "GETACK", "*") == b""
    assert client.raw("REPLCONF", "ACK", "12") == b""
    known = client.world.node.primary.followers.get(client.session.id)
    assert known is not None
    assert (known.port, known.ip, known.stage) == (7, "there", None)


def test_a_replica_does_not_have_what_it_was_not_sent() -> None:
    """An acknowledgement beyond the sent bytes is ignored, since WAIT would believe it for ever."""
    world = fed(World())
    primary = world.node.primary
    follower = next(iter(primary.followers))
    primary.go_online(follower)
    session = next(each for each in world.node.sessions if each.id == follower.id)
    for offset in (follower.cursor + 1, 2**63 - 1, -(2**63)):
        primary.acknowledge(session, offset, offset, world.clock.now())
    assert (follower.acked, follower.durable) == (-1, -1)
    primary.acknowledge(session, follower.cursor, follower.cursor, world.clock.now())
    assert (follower.acked, follower.durable) == (follower.cursor, follower.cursor)


def test_who_goes_on_where_it_was_has_confirmed_nothing() -> None:
    """A replica that continues with PSYNC has confirmed nothing yet: a power cut may still take its last writes."""
    world = fed(World())
    primary = world.node.primary
    feed = primary.feed
    assert feed is not None
    assert world.client().raw("PSYNC", primary.replid, feed.offset + 1).startswith(b"+CONTINUE")
    (follower,) = primary.followers.online
    assert (follower.cursor, follower.acked, follower.durable) == (feed.offset, -1, -1)
    assert primary.count(0) == 0


def test_an_acknowledgement_lets_out_what_waits_for_it() -> None:
    """An acknowledgement releases replies under ``sync-replicas`` at once, not at the next periodic check."""
    world = fed(World({"sync-replicas": "1"}))
    client, primary = world.client(), world.node.primary
    assert world.client().raw("PSYNC", primary.replid, primary.offset + 1).startswith(b"+CONTINUE")
    (follower,) = primary.followers.online
    session = next(each for each in world.node.sessions if each.id == follower.id)
    primary.acknowledge(session, follower.cursor, None, world.clock.now())
    client.call("SET", "k", "v")
    unconfirmed = world.node.journal.unconfirmed
    assert len(unconfirmed) == 1
    follower.cursor = primary.offset
    primary.acknowledge(session, primary.offset, None, world.clock.now())
    assert len(unconfirmed) == 0


def test_the_first_ping_is_a_period_after_the_stream_began() -> None:
    """The first PING comes a whole period after a stream began or a start, so the offset does not move by itself."""
    world = World()
    world.clock.advance(3_600_000)
    primary = fed(world).node.primary
    primary.go_online(next(iter(primary.followers)))
    before = primary.offset
    assert primary.tick(world.clock.now()) == []
    assert primary.offset == before
    world.clock.advance(10_000)
    primary.tick(world.clock.now())
    assert primary.offset > before


def test_while_clients_are_paused_replicas_are_told_that_their_primary_is_there() -> None:
    """PINGs to replicas continue during CLIENT PAUSE, so that they do not give the primary up."""
    world = fed(World())
    primary = world.node.primary
    primary.go_online(next(iter(primary.followers)))
    world.client().call("CLIENT", "PAUSE", "1000000", "ALL")
    before = primary.offset
    world.clock.advance(10_000)
    primary.tick(world.clock.now())
    assert primary.offset > before


def test_silent_replicas_are_named_and_pings_are_counted() -> None:
    """A PING goes out every period and counts in the log. A replica silent for the timeout is listed for cutting."""
    world = fed(World({"repl-timeout": "15"}))
    primary = world.node.primary
    follower = next(iter(primary.followers))
    primary.go_online(follower)
    feed = primary.feed
    assert feed is not None
    before = feed.offset
    world.clock.advance(10_000)
    assert primary.tick(world.clock.now()) == []
    assert feed.offset == before + len(b"*1\r\n$4\r\nPING\r\n") == world.node.keyspace.history.offset
    world.clock.advance(6_000)
    assert primary.tick(world.clock.now()) == [follower]

"""A primary's commands on our node: their special meaning, the failures that stop them, and their records."""

from pathlib import Path

import pytest

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.engine.history import ReplicationState
from millstream.engine.streams.stream import Stream
from millstream.node.node import Node
from millstream.node.obeying import DivergedError, NotHeldError, Obedience
from millstream.persistence.log import Log
from millstream.protocol import limits
from millstream.replication.received import ReceivedStream
from millstream.replication.units import EXEC, MULTI, packed


class Nowhere:
    """Shell that connects to nothing and sends nothing."""

    def begin(self, feed: object) -> None: ...

    def join(self, follower: object) -> None: ...

    def leave(self, follower: object) -> None: ...

    def follow(self, host: str, port: int) -> None: ...

    def stop(self) -> None: ...


class Follower:
    """A replica node, and the commands that its primary sends."""

    def __init__(self, log: Log | None = None) -> None:
        self.clock = ManualClock()
        self.node = Node(Config({}), log)
        self.node.primary.shell = self.node.following.shell = Nowhere()
        self.node.following.follow("primary", 6379, self.clock.now())
        self.obedience = Obedience(self.node, self.node.following)
        self.obedience.begin()
        self.received = ReceivedStream()
        self.client = self.node.sessions.open(self.clock.now())

    def hear(self, *commands: str, whole: bool = False) -> None:
        """Run commands of the primary, as one unit if ``whole``."""
        data = b"".join(packed([word.encode() for word in line.split()]) for line in commands)
        self.received.feed(MULTI + data + EXEC if whole else data)
        while self.obedience.run(self.received, self.clock.now()):
            pass

    def ask(self, line: str, session: Session | None = None) -> bytes:
        """Run a client's command and return the bytes of its reply."""
        outcome = self.node.execute(session or self.client, line.encode().split(), self.clock.now())
        assert outcome is not None
        return b"".join(map(bytes, outcome.buffers))


@pytest.fixture
def follower() -> Follower:
    return Follower()


def test_an_addition_with_an_id_and_a_message_is_made(follower: Follower) -> None:
    """XADD with an id and a message adds the entry on a replica, which then knows the message for a promotion."""
    follower.hear("XADD s IDMP p m 5-1 f v", "XADD s IDMPAUTO p 6-1 f v")
    assert follower.ask("XRANGE s - +").count(b"-1\r\n") == 2
    follower.hear("XADD s IDMP p m 7-1 f v")  # its clock has forgotten what ours has not
    assert follower.ask("XLEN s") == b":3\r\n"
    follower.ask("REPLICAOF NO ONE")
    assert follower.ask("XADD s IDMP p m * f v") == b"$3\r\n7-1\r\n"


def test_a_duplicate_adds_nothing(follower: Follower) -> None:
    """A replicated XADD IDMP with ``*`` was a duplicate on the primary, so it adds nothing, even if unknown here."""
    follower.hear("XADD s 1-1 f v", "XADD s IDMP p m * f v", "XADD t IDMP p m * f v")
    assert follower.ask("XLEN s") == b":1\r\n"
    assert follower.ask("EXISTS t") == b":0\r\n"


def test_words_that_only_a_primary_may_say(follower: Follower) -> None:
    """A primary's commands may have LIMIT with ``=`` and delivery times ahead of the replica's clock."""
    follower.hear(
        "XADD s 1-1 f v", "XADD s 2-1 f v", "XADD s MAXLEN = 2 LIMIT 4 3-1 f v", "XTRIM s MINID = 3-1 LIMIT 9"
    )
    assert follower.ask("XLEN s") == b":1\r\n"
    ahead = follower.clock.wall + 60_000
    follower.hear("XGROUP CREATE s g 0", f"XCLAIM s g c 0 3-1 TIME {ahead} RETRYCOUNT 1 FORCE JUSTID LASTID 3-1")
    stream = follower.node.keyspace.databases[0].keys[b"s"]
    assert isinstance(stream, Stream)
    assert [record.time for record in stream.groups[b"g"].order] == [ahead]


def test_a_group_has_read_what_the_primary_says(follower: Follower) -> None:
    """A group's replicated entries-read may exceed the entries added, which XSETID can lower."""
    follower.hear("XADD s 1-1 f v", "XGROUP CREATE s g 1-1 ENTRIESREAD 9", "XGROUP CREATE s h 0")
    follower.hear("XGROUP SETID s h 1-1 ENTRIESREAD 8")
    stream = follower.node.keyspace.databases[0].keys[b"s"]
    assert isinstance(stream, Stream)
    assert [stream.groups[name].entries_read for name in (b"g", b"h")] == [9, 8]


@pytest.mark.parametrize("has_log", [False, True])
def test_a_history_is_renamed_behind_all_that_came(has_log: bool, tmp_path: Path) -> None:
    """A renamed history continues behind everything received, also a PING, so a replica of this one needs no copy."""
    log = Log.open(tmp_path)[0] if has_log else None
    follower = Follower(log)
    follower.node.keyspace.history.replid = "a" * 40
    for line in ("SET k v", "PING"):
        follower.hear(line)
    follower.node.following.renamed("b" * 40, follower.clock.wall)
    assert follower.node.keyspace.history.follows("a" * 40, follower.node.following.offset + 1)
    if log is not None:
        log.close()


def test_no_key_is_over_before_the_primary_says_so(follower: Follower) -> None:
    """A replica stores keys whose time is over, hides them from readers, and deletes them by the primary's DEL."""
    past = follower.clock.wall - 1000
    follower.hear("SET k v", f"PEXPIREAT k {past}", f"SET l v PXAT {past}")
    assert follower.ask("GET k") == b"$-1\r\n"
    follower.clock.advance(10_000)
    follower.node.tick(follower.clock.now())
    assert follower.node.keyspace.databases[0].keys.keys() == {b"k", b"l"}
    follower.hear("APPEND l more", "DEL k")
    assert follower.node.keyspace.databases[0].keys.keys() == {b"l"}
    follower.ask("REPLICAOF NO ONE")
    follower.clock.advance(1000)
    follower.node.tick(follower.clock.now())
    assert not follower.node.keyspace.databases[0].keys


def test_rights_roles_and_limits_are_for_clients(follower: Follower) -> None:
    """Commands from the primary ignore ACL rules, min-replicas-to-write and the read-only role of the replica."""
    follower.ask("CONFIG SET min-replicas-to-write 1")
    admin = follower.node.sessions.open(follower.clock.now())
    follower.ask("ACL SETUSER default -@write", admin)
    follower.hear("SET k v", "SELECT 3", "SET k w")
    assert follower.node.keyspace.databases[3].keys.keys() == {b"k"}
    assert follower.ask("SET k v").startswith(b"-NOPERM")
    follower.ask("ACL SETUSER default +@all", admin)
    assert follower.ask("SET k v") == b"-READONLY You can't write against a read only replica.\r\n"
    script = follower.node.execute(
        follower.client, [b"EVAL", b"return redis.call('SET', KEYS[1], 1)", b"1", b"k"], follower.clock.now()
    )
    assert script is not None
    assert b"READONLY You can't write against a read only replica." in b"".join(map(bytes, script.buffers))


def test_what_does_not_exist_here_is_not_run_nor_what_is_with_it(follower: Follower) -> None:
    """A unit with a command that Millstream lacks is not run at all; earlier units count."""
    with pytest.raises(NotHeldError, match="PFADD visitors one"):
        follower.hear("SET k v", whole=False) or follower.hear("SET k w", "PFADD visitors one", whole=True)
    assert follower.ask("GET k") == b"$1\r\nv\r\n"
    assert follower.node.following.offset == len(packed([b"SET", b"k", b"v"]))
    fresh = Follower()
    with pytest.raises(NotHeldError, match="SELECT 16"):
        fresh.hear("SELECT 16")


@pytest.mark.parametrize(
    "line",
    [
        *("SHUTDOWN NOSAVE", "CONFIG SET maxmemory 1", "DEBUG SLEEP 0", "ACL SETUSER default off", "REPLICAOF NO ONE"),
        *("SAVE", "SUBSCRIBE channel", "EVAL return 0", "CLIENT KILL TYPE normal", "WATCH k", "AUTH k", "GET k"),
        *("EXEC", "QUIT", "MONITOR", "PSYNC ? -1", "XGROUP", "XGROUP NOPE s g", "CONFIG"),
    ],
)
def test_a_primary_only_changes_data(follower: Follower, line: str) -> None:
    """A primary's command that does not belong in a stream, such as CONFIG, is not run, alone or with others."""
    with pytest.raises(NotHeldError, match=line.partition(" ")[0]):
        follower.hear(line)
    with pytest.raises(NotHeldError):
        follower.hear("SET k v", line, whole=line != "EXEC")
    assert follower.ask("ROLE").startswith(b"*5\r\n$5\r\nslave")


def test_what_fails_here_asks_for_a_copy(follower: Follower) -> None:
    """A replicated command that fails means diverged data: nothing more is run, and the history is dropped.

    The failure is counted, in the same record.
    """
    follower.node.keyspace.history = ReplicationState("a" * 40, 0)
    with pytest.raises(DivergedError, match="LPUSH k v failed here: WRONGTYPE"):
        follower.hear("SET k v", "LPUSH k v", "SET k w")
    assert follower.ask("GET k") == b"$1\r\nv\r\n"
    assert follower.node.following.divergences == 1
    assert follower.node.keyspace.history.replid == ""


@pytest.mark.parametrize("line", ["LPUSH k", "SET k", "XADD s 1-1 f", "GET", "NOSUCH k"])
def test_a_transaction_with_a_word_that_cannot_be_run_is_not_begun(follower: Follower, line: str) -> None:
    """A replicated transaction with an unknown command, or one of wrong arity, is not run at all."""
    follower.hear("SET k v")
    before = follower.node.following.offset
    with pytest.raises((NotHeldError, DivergedError)):
        follower.hear("SET k w", "SET other w", line, "SET k x", whole=True)
    assert (follower.ask("GET k"), follower.ask("DBSIZE")) == (b"$1\r\nv\r\n", b":1\r\n")
    assert follower.node.following.offset == before


def test_a_transaction_that_fails_in_its_midst_is_never_gone_on_behind(follower: Follower) -> None:
    """If a replicated transaction fails halfway, its first part stays until the copy. The history is dropped."""
    follower.node.keyspace.history = ReplicationState("a" * 40, 0)
    follower.hear("SET k v")
    before = follower.node.following.offset
    with pytest.raises(DivergedError, match="LPUSH k x failed here: WRONGTYPE"):
        follower.hear("SADD z 1", "LPUSH k x", "SADD z 2", whole=True)
    assert follower.ask("SCARD z") == b":1\r\n"
    assert (follower.node.following.offset, follower.node.following.divergences) == (before, 1)
    assert follower.node.keyspace.history.replid == ""


@pytest.mark.parametrize("data", [packed([b"PING"]) * 1000, b"*2\r\n$3\r\nSET\r\n$9999999999\r\n" + b"k" * 70_000])
def test_a_transaction_without_an_end_is_given_up(
    follower: Follower, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replicated transaction that exceeds a limit is given up for a copy; small words count with their overhead."""
    monkeypatch.setattr(limits, "CHANGE_MAX", 1 << 16)
    follower.hear("SET k v")
    follower.received.feed(MULTI)

    def hear_more() -> None:
        while follower.received.waiting < 1 << 18:
            follower.received.feed(data)
            follower.obedience.run(follower.received, follower.clock.now())

    with pytest.raises(DivergedError, match="too large"):
        hear_more()
    assert follower.ask("GET k") == b"$1\r\nv\r\n"
    assert follower.node.keyspace.history.replid == ""


def test_units_that_come_together_are_one_record_with_their_offset(tmp_path: Path) -> None:
    """Units that arrive together are one record with their offset, PING and GETACK included. A start resumes there."""
    log, _ = Log.open(tmp_path)
    follower = Follower(log)
    before = log.appended
    follower.hear("SELECT 2", "SET a 1", "PING", "SET b 2", "REPLCONF GETACK *")
    assert log.appended == before + 1
    offset = follower.node.following.offset
    assert follower.obedience.asked == offset
    assert follower.node.following.relay.backlog.sendable == 0
    follower.hear("PING")
    offset += len(b"*1\r\n$4\r\nPING\r\n")
    log.close()
    log, recovery = Log.open(tmp_path)
    again = Node(Config({}), log)
    again.recover(recovery.payloads())
    past = again.keyspace.history
    assert (past.offset, past.db, again.keyspace.followed) == (offset, 2, ("primary", 6379))
    assert again.keyspace.databases[2].keys.keys() == {b"a", b"b"}
    refused = again.execute(Session(1), [b"SET", b"k", b"v"], ManualClock().now())
    assert refused is not None
    assert b"".join(map(bytes, refused.buffers)).startswith(b"-READONLY")  # a program that opens it by file:// too
    log.close()


def test_who_watches_and_who_waits_hears_of_it(follower: Follower) -> None:
    """Replicated changes break WATCH and serve XREAD BLOCK."""
    follower.hear("XADD s 1-1 f v")
    follower.ask("WATCH s")
    waiting = follower.node.sessions.open(follower.clock.now())
    line = b"XREAD BLOCK 0 STREAMS s $".split()
    assert follower.node.execute(waiting, line, follower.clock.now()) is None
    follower.hear("XADD s 2-1 f v")
    assert [session for session, _ in follower.node.outbox] == [waiting]
    follower.ask("MULTI")
    follower.ask("GET k")
    assert follower.ask("EXEC") == b"*-1\r\n"


def test_the_role_is_refused_where_nobody_can_connect() -> None:
    """An embedded store refuses REPLICAOF with an error, since it has no link."""
    node = Node(Config({}))
    outcome = node.execute(Session(1), b"REPLICAOF localhost 6379".split(), ManualClock().now())
    assert outcome is not None
    assert b"ERR this server runs inside another program" in b"".join(map(bytes, outcome.buffers))

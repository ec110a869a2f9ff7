"""Invalid input from primaries, replicas and admins: it is neither run, nor stored for ever, nor shown raw."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.engine.keyspace import Keyspace
from millstream.engine.serialization.rdb.reading import AuxField, RdbError, named, read_file
from millstream.errors import ProtocolError, StorageError
from millstream.node.durability.outage import Outage
from millstream.node.log import codec
from millstream.node.log.taking import fill
from millstream.node.node import Node
from millstream.node.obeying import NotHeldError
from millstream.persistence.disk import RealDisk
from millstream.persistence.log import Log
from millstream.persistence.rewrite import Rewrite
from millstream.replication.handshake import Handshake, Introduction, LinkRefused
from millstream.replication.received import ReceivedStream
from millstream.replication.units import packed
from millstream.server.following.pauses import copy_pause
from millstream.server.thread import ServerThread
from replication.test_following_redis import follow
from replication.test_link import ID, Primary, copy, full_disk  # noqa: F401 - a fixture
from replication.test_obeying import Follower, Nowhere
from replication.test_redis_follows import info
from support.waiting import eventually
from support.wire import Wire


class Leader:
    """A node of ours that leads, and a replica whose bytes are not read."""

    def __init__(self, log: Log | None = None) -> None:
        self.clock = ManualClock()
        self.node = Node(Config({}), log)
        self.node.primary.shell = self.node.following.shell = Nowhere()
        self.client = self.node.sessions.open(self.clock.now())

    def ask(self, *words: bytes | str, session: Session | None = None) -> bytes | None:
        """Run a command and return the bytes of its reply; None while it waits."""
        given = [word.encode() if isinstance(word, str) else word for word in words]
        outcome = self.node.execute(session or self.client, given, self.clock.now())
        return None if outcome is None else b"".join(map(bytes, outcome.buffers))

    def replica(self, *, port: int = 7000) -> Session:
        """Return the session of a replica that is online and has acknowledged nothing."""
        session = self.node.sessions.open(self.clock.now(), addr="127.0.0.1:9")
        self.ask("REPLCONF", "listening-port", str(port), session=session)
        self.ask("PSYNC", "?", "-1", session=session)
        follower = self.node.primary.followers.get(session.id)
        assert follower is not None
        self.node.primary.go_online(follower)
        return session


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def follower() -> Follower:
    return Follower()


# ---------------------------------------------------------------------- whoever may say REPLICAOF


@pytest.mark.parametrize(
    "host", [b"\xff\xfe", b"a\r\nrole:master", b"a b", b"x" * 256, b"", b"\x00", b"a,state=online"]
)
def test_a_host_that_is_no_address_is_refused(tmp_path: Path, host: bytes) -> None:
    """REPLICAOF refuses a host that is not printable text, which could crash the log or forge lines of INFO."""
    log, _ = Log.open(tmp_path)
    leader = Leader(log)
    assert leader.ask("REPLICAOF", host, "6379") == b"-ERR Invalid master host\r\n"
    assert leader.ask("SET", "k", "v") == b"+OK\r\n"
    log.close()


@pytest.mark.parametrize("change", [["SET", "k", "v"], ["EVAL", "redis.call('SET', 'k', 'v')", "0"]])
def test_a_transaction_does_not_change_data_and_the_role(leader: Leader, change: list[str]) -> None:
    """REPLICAOF is refused in a transaction with writes: a replica may not write, nor a former primary confirm."""
    leader.replica()
    for words in (["MULTI"], change, ["REPLICAOF", "other", "6379"]):
        leader.ask(*words)
    assert b"-ERR REPLICAOF is not allowed after changes" in (leader.ask("EXEC") or b"")
    assert (leader.ask("ROLE") or b"").startswith(b"*3\r\n$6\r\nmaster")
    for words in (["MULTI"], ["REPLICAOF", "other", "6379"], change):
        leader.ask(*words)
    assert b"READONLY" in (leader.ask("EXEC") or b"")
    leader.ask("REPLICAOF", "NO", "ONE")
    assert leader.ask("APPEND", "k", "") == b":1\r\n"


def test_a_server_that_hands_its_role_over_does_not_take_it_meanwhile(leader: Leader) -> None:
    """A server refuses PSYNC FAILOVER while it hands over its own role, for it could take the role from itself."""
    session = leader.replica()
    assert leader.ask("FAILOVER") == b"+OK\r\n"
    leader.ask("REPLCONF", "ACK", str(leader.node.primary.offset + 1), session=session)  # of no replica
    assert leader.node.primary.failover == "waiting-for-sync"
    leader.ask("REPLCONF", "ACK", str(leader.node.primary.followers.online[0].cursor), session=session)
    leader.node.primary.followers.online[0].cursor = leader.node.primary.offset
    leader.ask("REPLCONF", "ACK", str(leader.node.primary.offset), session=session)
    assert leader.node.primary.failover == "failover-in-progress"
    replid, after = leader.node.keyspace.history.replid, str(leader.node.primary.offset + 1)
    other = leader.node.sessions.open(leader.clock.now())
    refused = leader.ask("PSYNC", replid, after, "FAILOVER", session=other)
    assert refused == b"-ERR PSYNC FAILOVER not allowed while failing over.\r\n"
    assert leader.ask("FAILOVER", "ABORT") == b"+OK\r\n"
    assert leader.ask("SET", "k", "v") == b"+OK\r\n"


# ---------------------------------------------------------------------- pauses


def test_a_pause_of_clients_and_that_of_a_failover_are_two(leader: Leader) -> None:
    """CLIENT PAUSE during a failover ends at its own time, and FAILOVER ABORT ends only the failover's pause."""
    leader.replica()
    leader.ask("FAILOVER")
    assert leader.ask("CLIENT", "PAUSE", "10", "ALL") == b"+OK\r\n"
    reader, writer = (leader.node.sessions.open(leader.clock.now()) for _ in range(2))
    assert leader.ask("PING", session=reader) is None
    leader.clock.advance(11)
    leader.node.tick(leader.clock.now())
    assert not reader.blocked
    assert leader.ask("PING") == b"+PONG\r\n"
    assert leader.ask("SET", "k", "v", session=writer) is None
    assert leader.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"
    writer.blocked, writer.held = False, None
    assert leader.ask("SET", "k", "v", session=writer) is None
    assert leader.ask("FAILOVER", "ABORT") == b"+OK\r\n"
    assert leader.ask("SET", "k", "v") == b"+OK\r\n"


def test_the_end_of_a_failover_is_not_that_of_another_pause(leader: Leader) -> None:
    """The end of a failover does not end the pauses of CLIENT PAUSE and SHUTDOWN."""
    leader.replica()
    leader.ask("SET", "k", "v")
    shutter, writer = (leader.node.sessions.open(leader.clock.now()) for _ in range(2))
    assert leader.ask("SHUTDOWN", session=shutter) is None
    leader.ask("FAILOVER")
    leader.ask("CLIENT", "PAUSE", "5000", "WRITE")
    assert leader.ask("FAILOVER", "ABORT") == b"+OK\r\n"
    assert leader.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"
    assert leader.ask("SET", "k", "w", session=writer) is None
    assert leader.ask("SHUTDOWN", "ABORT") == b"+OK\r\n"
    assert leader.ask("SET", "k", "w") == b"+OK\r\n"


# ---------------------------------------------------------------------- replicas


@pytest.mark.parametrize(
    "words",
    [["SET", "k", "v"], ["GET", "k"], ["XADD", "s", "*", "f", "v"], ["EVAL", "return 1", "0"], ["PUBLISH", "c", "m"]],
)
def test_a_replica_is_no_client(leader: Leader, words: list[str]) -> None:
    """A replica's connection cannot run data commands, as in Redis, since no pause would delay it."""
    session = leader.replica()
    refused = b"-ERR Replica can't interact with the keyspace\r\n"
    assert leader.ask(*words, session=session) == refused
    leader.ask("MULTI", session=session)
    leader.ask(*words, session=session)
    assert (leader.ask("EXEC", session=session) or b"").startswith(b"-EXECABORT")
    assert leader.ask("PING", session=session) == b"+PONG\r\n"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("listening-port", "-1"),
        ("listening-port", "65536"),
        ("ip-address", "1.2.3.4,state=online"),
        ("ip-address", "a=b"),
    ],
)
def test_what_a_replica_says_of_itself_fits_its_field(leader: Leader, option: str, value: str) -> None:
    """A replica's announced address and port must be valid, since INFO shows them and FAILOVER connects there."""
    assert (leader.ask("REPLCONF", option, value) or b"").startswith(b"-ERR REPLCONF")


# ---------------------------------------------------------------------- primaries


@pytest.mark.parametrize("number", [b"9" * 5000, b"16", b"1_0", b"+1", b"-1"])
def test_a_database_that_does_not_exist_stops_the_link(follower: Follower, number: bytes) -> None:
    """SELECT of a database that does not exist stops the link with a reason, whatever the number's length."""
    follower.received.feed(packed([b"SELECT", number]))
    with pytest.raises(NotHeldError, match="selects a database that does not exist here"):
        follower.obedience.run(follower.received, follower.clock.now())


@pytest.mark.parametrize("number", [b"99", b"x", b"", b"9" * 5000])
def test_a_copy_goes_on_with_a_database_that_exists(number: bytes) -> None:
    """A copy whose stream continues in a database that does not exist is refused, and the old data stays."""
    lacking = fill(Keyspace(), iter([AuxField(b"repl-stream-db", number)]))
    assert len(lacking) == 1
    assert len(lacking[0].what) < 300
    space = Keyspace()
    assert not fill(space, iter([AuxField(b"repl-stream-db", b"15")]))
    assert space.history.db == 15


@pytest.mark.parametrize("line", [b"*1_0\r\n", b"*+1\r\n", b"* 1\r\n", b"*1\r\n$ 3\r\n", b"*1\r\n$1_0\r\n"])
def test_a_number_of_the_stream_is_digits(line: bytes) -> None:
    """A number in the stream must be plain digits, also where Python's int() accepts more."""
    stream = ReceivedStream()
    stream.feed(line)
    with pytest.raises(ProtocolError):
        stream.next()


def test_a_password_is_any_bytes() -> None:
    """The password for a primary may be any bytes."""
    words = Introduction(7000, user="\udcfe", password="\udcff", ip="\udcfd")
    shake = Handshake(words)
    sent = b"".join(event.data for event in shake.feed(b"+PONG\r\n"))  # type: ignore[union-attr]  # all are Send
    assert sent == packed([b"AUTH", b"\xfe", b"\xff"])


@pytest.mark.parametrize("line", [b"+OK", b":1", b"$5"])
def test_an_answer_that_is_none_is_said_to_be_that(line: bytes) -> None:
    """An invalid reply of a primary is quoted in the reason for the link's end, in one sentence."""
    shake = Handshake(Introduction(7000))
    events = [event for _ in range(4) for event in shake.feed(b"+OK\r\n" if _ < 3 else line + b"\r\n")]
    assert events[-1] == LinkRefused(f"it has answered {line.decode()!r}: it may not be a Redis server")


def test_a_name_in_a_reason_is_not_longer_than_a_line() -> None:
    """A key's name in the reason for the link's end is shortened to less than a line."""
    assert named(b"key") == "b'key'"
    assert len(named(b"\x1b" * 1_000_000)) < 900
    size = 1_000_000
    head = b"REDIS0010\x00\x80" + size.to_bytes(4, "big") + b"k" * size
    with pytest.raises(RdbError) as raised:
        list(read_file([head + b"\xc7"]))
    assert len(str(raised.value)) < 400


def test_words_of_a_primary_steer_no_terminal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Text of a primary appears in INFO and the log as one line of printable characters."""
    primary = Primary(copy(k="theirs"))
    try:
        with ServerThread(tmp_path) as server, Wire(server.url) as ours, caplog.at_level(logging.WARNING):
            follow(ours, primary.port)
            eventually(lambda: primary.acks, what="the copy is taken")
            primary.say("\x1b[2J\r\nrole:master")
            eventually(lambda: info(ours)["millstream_link_error"], what="the link has stopped")
            found = info(ours)
            assert found["role"] == "slave"
            assert "\\x1b[2J" in found["millstream_link_error"]
            assert found["millstream_link_error"].isprintable()
            assert all(record.getMessage().replace("\n    ", "").isprintable() for record in caplog.records)
    finally:
        primary.close()


def test_a_log_that_fails_while_a_copy_becomes_it_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that fails while it adopts a copy ends the server, since the disk may lack the data."""
    real, commit = RealDisk.sync_directory, Log.commit_rewrite

    def failing(self: RealDisk, directory: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def amid(self: Log, rewrite: Rewrite, **packs: Any) -> None:
        monkeypatch.setattr(RealDisk, "sync_directory", failing)
        try:
            commit(self, rewrite, **packs)
        finally:
            monkeypatch.setattr(RealDisk, "sync_directory", real)

    primary = Primary(copy(k="theirs"))
    try:
        server = ServerThread(tmp_path).start()
        with Wire(server.url) as ours:
            ours.ask("SET", "k", "mine")
            monkeypatch.setattr(Log, "commit_rewrite", amid)
            follow(ours, primary.port)
            assert ours.is_closed()
        with pytest.raises(StorageError, match="no more are taken; start again"):
            server.stop()
        monkeypatch.setattr(Log, "commit_rewrite", commit)
        with ServerThread(tmp_path) as again, Wire(again.url) as ours:
            assert ours.ask("GET", "k") == b"mine"
    finally:
        primary.close()


@pytest.mark.usefixtures("full_disk")
def test_no_room_for_a_copy_is_said_in_a_sentence(tmp_path: Path) -> None:
    """A full disk on taking a copy is reported in a sentence with the directory and advice."""
    primary = Primary(copy(large="v" * 300_000))
    try:
        with ServerThread(tmp_path) as server, Wire(server.url) as ours:
            follow(ours, primary.port)
            eventually(lambda: info(ours)["millstream_link_error"], what="it is told")
            found = info(ours)["millstream_link_error"]
            assert (
                found == f"cannot keep the primary's copy in {tmp_path}: No space left on device; free some space there"
            )
    finally:
        primary.close()


def test_copies_that_cannot_be_taken_are_asked_for_ever_more_rarely() -> None:
    """After a failed copy the first retry is immediate. Later ones wait ever longer, as each costs a rewriting."""
    assert [copy_pause(failed) for failed in (0, 1, 2, 3, 100)] == [0, 0, 2, 4, 60]


class _Babbling(Primary):
    """Primary that continues the stream, and then sends bytes that are not a command."""

    def _answer(self, replica: object, lines: object) -> None:
        while words := self._command(lines):  # type: ignore[arg-type]  # as its base has it
            if words[0] == b"PSYNC" and words[1] == ID.encode():
                self.asked.append(words)
                replica.sendall(b"+CONTINUE\r\n*x\r\n")  # type: ignore[attr-defined]  # a socket
                return
            if words[0] == b"PSYNC":
                if not self._copies:
                    return
                file = self._copies.pop(0)
                replica.sendall(b"+FULLRESYNC %b 100\r\n$%d\r\n%b*x\r\n" % (ID.encode(), len(file), file))  # type: ignore[attr-defined]  # as above
            else:
                replica.sendall({b"PING": b"+PONG\r\n", b"INFO": b"$0\r\n\r\n"}.get(words[0], b"+OK\r\n"))  # type: ignore[attr-defined]  # as above


def test_a_primary_that_fails_in_one_way_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link that fails again and again in the same way is retried slowly and logged once."""
    primary = _Babbling(copy(k="theirs"))
    try:
        with ServerThread(tmp_path) as server, Wire(server.url) as ours, caplog.at_level(logging.WARNING):
            follow(ours, primary.port)
            eventually(lambda: len(primary.asked) > 4, what="it is tried again and again")
            down = [record for record in caplog.records if "is down" in record.getMessage()]
            assert len(down) <= 2
            assert ours.ask("GET", "k") == b"theirs"
    finally:
        primary.close()


def test_who_takes_a_role_on_a_full_disk_answers_others_as_before(tmp_path: Path) -> None:
    """While REPLICAOF waits for disk space, other replies are not delayed, neither PING's nor INFO's."""
    log, _ = Log.open(tmp_path)
    leader = Leader(log)
    now = leader.clock.now()
    leader.ask("SET", "k", "v")
    leader.node.journal.suspend(Outage("there is no space", [codec.pack(0, [("set", 0, b"other", b"v", None)])]))
    other = leader.node.sessions.open(now)
    for words in (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]):
        before = log.appended
        told = leader.node.execute(leader.client, [word.encode() for word in words], now)
        seen = [leader.node.execute(other, each, now) for each in ([b"PING"], [b"GET", b"k"])]
        assert told is not None
        assert told.barrier == log.appended
        assert [each and each.barrier for each in seen] == [0, 0]
        assert log.appended > before
    leader.node.journal.resume()
    later = leader.node.execute(other, [b"GET", b"k"], now)
    assert later is not None
    assert later.barrier == log.appended
    log.close()

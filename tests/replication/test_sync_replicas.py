"""``sync-replicas``: a write is confirmed once enough replicas have it, and is refused without them."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis.exceptions import ResponseError

import millstream
from millstream.cli.main import main
from millstream.node import primary
from millstream.server.thread import ServerThread
from replication.test_following_redis import WITH_DEBUG, follow, wait_level
from replication.test_redis_follows import info, port_of
from support.ports import free_port
from support.servers import redis_server
from support.waiting import eventually
from support.wire import Wire, pack

NO_REPLICAS = (
    "NOREPLICAS Not enough good replicas to write. Fewer replicas confirm writes than sync-replicas requires: see INFO "
    "replication"
)
HELD = "NOREPLICAS This command reads keys with changes that fewer replicas hold"
FORCED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"


class Pair:
    """A primary with ``sync-replicas 1``, and a replica of it.

    Args:
        servers: the two.
        stack: closes what is opened.
    """

    def __init__(self, servers: list[ServerThread], stack: ExitStack) -> None:
        self._stack = stack
        self.patch = stack.enter_context(pytest.MonkeyPatch.context())
        self.primary, self.replica = servers
        self.one, self.other = self.client(), self.client(self.replica)

    def client(self, server: ServerThread | None = None) -> Wire:
        """Return a further client, of the primary unless another server is given."""
        return self._stack.enter_context(Wire((server or self.primary).url))

    def begin(self) -> None:
        """Let the replica follow, and wait until writes are accepted."""
        follow(self.other, int(port_of(self.primary)))
        eventually(lambda: self.one.ask("SET", "plain", "1") == b"OK", what="writes are taken")

    def freeze(self) -> None:
        """Stop the replica from running anything; it still sends acknowledgements."""
        self.other.ask("CLIENT", "PAUSE", "1000000", "WRITE")

    def thaw(self) -> None:
        self.other.ask("CLIENT", "UNPAUSE")

    def waits(self, count: int) -> bool:
        """Return True if ``count`` clients of the primary have delayed replies."""
        return len(self.primary.server.gate.holders) == count


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Yield a pair, with data directories or without."""
    folder = None if getattr(request, "param", "log") == "memory" else tmp_path
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerThread(folder and folder / name, parameters={"sync-replicas": "1"}))
            for name in ("a", "b")
        ]
        yield Pair(servers, stack)


def each_way(*marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Parametrize a test with pairs with data directories and without, with these marks."""
    return pytest.mark.parametrize("pair", ["log", pytest.param("memory", marks=marks)], indirect=True)


def nothing_yet(*wires: Wire) -> bool:
    """Return True if no reply has come on any connection."""
    for wire in wires:
        wire.socket.setblocking(False)
        try:
            with pytest.raises(BlockingIOError):
                wire.socket.recv(1)
        finally:
            wire.socket.settimeout(30)
    return True


def short(pair: Pair, stalled: int = 0) -> None:
    """Wait until the primary refuses writes, ``stalled`` milliseconds after the last confirmation."""
    pair.patch.setattr(primary, "STALLED", stalled)
    eventually(lambda: pair.primary.server.node.journal.shortage is not None, what="writes are refused")
    assert str(pair.client().ask("SET", "plain", "2")) == NO_REPLICAS


def sync_facts(client: Wire) -> tuple[str, ...]:
    """Return INFO's facts: if writes are accepted, and the numbers of required and confirming replicas."""
    found = info(client)
    return tuple(found[f"millstream_sync_{name}"] for name in ("state", "asked", "confirming"))


@each_way()
def test_who_watches_the_server_waits_for_nobody(pair: Pair) -> None:
    """PING, HELLO, INFO and ROLE do not wait for replicas, except behind a delayed reply on the same connection."""
    pair.patch.setattr(primary, "STALLED", 10**9)
    pair.begin()
    pair.freeze()
    writer, watcher = pair.client(), pair.client()
    writer.socket.sendall(pack("SET", "k", "v") + pack("PING"))
    eventually(lambda: pair.waits(1), what="the write waits")
    watcher.socket.sendall(pack("PING") * 2)
    assert [watcher.read(), watcher.read()] == [b"PONG", b"PONG"]
    assert watcher.ask("HELLO", "3")[b"role"] == b"master"
    assert b"role:master" in watcher.ask("INFO", "replication")
    assert watcher.ask("ROLE")[0] == b"master"
    assert nothing_yet(writer)
    watcher.send("GET", "k")
    eventually(lambda: pair.waits(2), what="the read waits")
    assert nothing_yet(watcher)
    pair.thaw()
    assert [writer.read(), writer.read(), watcher.read()] == [b"OK", b"PONG", b"v"]


@each_way()
def test_nothing_is_told_before_a_replica_holds_it(pair: Pair) -> None:
    """No client sees a write that no replica has: no writer, reader, transaction, script, waiting client or subscriber.

    Once a replica has it, all replies are sent in order.
    """
    pair.patch.setattr(primary, "STALLED", 10**9)
    pair.begin()
    pair.one.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    pair.one.ask("CONFIG", "SET", "notify-keyspace-events", "KEA")
    waiting, reading, listening, events = (pair.client() for _ in range(4))
    waiting.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
    reading.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    listening.ask("SUBSCRIBE", "channel")
    events.ask("SUBSCRIBE", "__keyevent@0__:xadd")
    eventually(lambda: "blocked_clients:2" in pair.one.ask("INFO", "clients").decode(), what="they wait")
    pair.freeze()
    writer, getter, transaction, script, plain, telling, looking = (pair.client() for _ in range(7))
    writer.send("XADD", "s", "1-1", "f", "v")
    eventually(lambda: pair.waits(4), what="four replies are held")
    getter.send("XLEN", "s")
    transaction.send("MULTI")
    transaction.send("XADD", "s", "1-2", "f", "v")
    transaction.send("PUBLISH", "channel", "message")
    transaction.send("EXEC")
    script.send("EVAL", "return redis.call('XADD', KEYS[1], '1-3', 'f', 'v')", "1", "s")
    eventually(lambda: pair.waits(8), what="all of them wait")
    words = [["MULTI"], ["XADD", "s", "1-4", "f", "v"], ["XACK", "s", "g", "1-1"], ["EXEC"]]
    plain.socket.sendall(b"".join(pack(*each) for each in words))
    eventually(lambda: pair.waits(9), what="the plain transaction waits")
    telling.send("EVAL", "return redis.call('PUBLISH', 'channel', redis.call('XLEN', KEYS[1]))", "1", "s")
    looking.send("OBJECT", "ENCODING", "s")
    eventually(lambda: pair.waits(11), what="who looked waits, and who told others what it saw")
    assert nothing_yet(waiting, reading, listening, events, writer, getter, script, plain, telling, looking)
    pair.thaw()
    assert writer.read() == b"1-1"
    assert getter.read() == 1
    assert waiting.read() == [[b"s", [[b"1-1", [b"f", b"v"]]]]]
    assert reading.read() == [[b"s", [[b"1-1", [b"f", b"v"]]]]]
    assert [transaction.read() for _ in range(4)] == [b"OK", b"QUEUED", b"QUEUED", [b"1-2", 1]]
    assert script.read() == b"1-3"
    assert [plain.read() for _ in range(4)] == [b"OK", b"QUEUED", b"QUEUED", [b"1-4", 1]]
    assert [telling.read(), looking.read()] == [1, b"stream"]
    assert [listening.read()[2] for _ in range(2)] == [b"message", b"4"]
    assert [events.read()[2] for _ in range(4)] == [b"s"] * 4
    wait_level(pair.other, pair.one)
    assert pair.other.ask("XLEN", "s") == 4


def test_without_replicas_no_write_is_taken(pair: Pair) -> None:
    """Without replicas every write is refused with Redis's error, in transactions and scripts too. Reads work."""
    one = pair.one
    for words in (["SET", "k", "v"], ["XADD", "s", "*", "f", "v"]):
        assert str(one.ask(*words)) == NO_REPLICAS
    assert "NOREPLICAS" in str(one.ask("EVAL", "return redis.call('SET', KEYS[1], '1')", "1", "k"))
    assert one.ask("MULTI") == b"OK"
    assert str(one.ask("SET", "k", "v")) == NO_REPLICAS
    assert str(one.ask("EXEC")) == "EXECABORT Transaction discarded because of previous errors."
    assert (one.ask("PING"), one.ask("GET", "k"), one.ask("DBSIZE")) == (b"PONG", None, 0)
    assert sync_facts(one) == ("refused", "1", "0")
    pair.begin()
    assert sync_facts(one) == ("ok", "1", "1")
    pair.other.ask("REPLICAOF", "NO", "ONE")
    short(pair)
    assert str(pair.other.ask("SET", "k", "v")) == NO_REPLICAS  # who leads from here on asks for replicas as well
    assert one.ask("CONFIG", "SET", "sync-replicas", "0") == b"OK"
    assert one.ask("SET", "k", "v") == b"OK"


@each_way(pytest.mark.long)
def test_what_is_in_flight_when_no_replica_confirms(pair: Pair) -> None:
    """If confirmation stalls, replies are delayed and reads of changed keys refused. Other reads and PING work.

    A lower ``sync-replicas`` releases the replies.
    """
    pair.begin()
    pair.freeze()
    writer = pair.client()
    writer.send("SET", "touched", "v")
    eventually(lambda: pair.waits(1), what="the reply is held")
    short(pair, primary.STALLED)
    one = pair.client()
    assert str(one.ask("GET", "touched")).startswith(HELD)
    assert str(one.ask("DBSIZE")).startswith(HELD)
    assert (one.ask("GET", "plain"), one.ask("PING")) == (b"1", b"PONG")
    found = info(one)
    assert (found["millstream_replicas_waiting"], found["millstream_sync_held"]) == ("1", "1")
    assert sync_facts(one) == ("refused", "1", "0")
    assert nothing_yet(writer)
    assert one.ask("CONFIG", "SET", "sync-replicas", "0") == b"OK"
    assert writer.read() == b"OK"
    assert one.ask("GET", "touched") == b"v"
    pair.thaw()
    wait_level(pair.other, one)


def test_what_is_held_does_not_end_the_look_of_the_doctor(pair: Pair) -> None:
    """While writes wait for replicas, the doctor names the setting, lists the unreadable parts and checks the rest."""
    pair.begin()
    pair.freeze()
    writer = pair.client()
    writer.send("SET", "k", "v")
    eventually(lambda: pair.waits(1), what="the reply is held")
    assert pair.other.ask("REPLICAOF", "NO", "ONE") == b"OK"
    short(pair)
    done = CliRunner().invoke(main, ["doctor", pair.primary.url, "--replica", pair.replica.url, "-o", "json"])
    found = {each["what"]: (each["level"], each["check"]) for each in json.loads(done.output)}
    assert found.pop("writes are refused: sync-replicas 1, 0 confirm") == ("problem", "replication")
    assert found.pop("does not report claim, idmp; has xnack, xackdel, xdelex") == ("note", "capabilities")
    (unread,) = [what for what in found if what.startswith("not looked at: NOREPLICAS")]
    assert found[unread] == ("problem", "streams")
    assert f"{pair.replica.url} is not a replica" in found
    assert not [what for what in found if "stopped looking" in what]
    pair.thaw()
    pair.begin()
    assert writer.read() == b"OK"


def test_a_replica_that_comes_back_lets_out_what_is_held(pair: Pair) -> None:
    """The acknowledgement of a replica that returns releases the delayed replies, and writes are accepted again."""
    pair.begin()
    pair.freeze()
    writer = pair.client()
    writer.send("SET", "k", "v")
    eventually(lambda: pair.waits(1), what="the reply is held")
    assert pair.other.ask("REPLICAOF", "NO", "ONE") == b"OK"
    short(pair)
    assert nothing_yet(writer)
    pair.thaw()
    pair.begin()
    assert writer.read() == b"OK"
    wait_level(pair.other, pair.client())
    assert pair.other.ask("GET", "k") == b"v"


@each_way(pytest.mark.long)
def test_who_follows_another_tells_nobody_of_what_was_held(pair: Pair) -> None:
    """When the server becomes a replica, delayed replies turn into an error, and their connections are closed."""
    pair.begin()
    pair.freeze()
    writers = [pair.client() for _ in range(3)]
    for at, writer in enumerate(writers):
        writer.send("XADD", "s", "*", "at", str(at))
    eventually(lambda: pair.waits(3), what="the replies are held")
    short(pair)
    one = pair.client()
    assert one.ask("REPLICAOF", "127.0.0.1", str(free_port())) == b"OK"
    for writer in writers:
        assert str(writer.read()) == FORCED
        assert writer.is_closed()
    assert info(one)["role"] == "slave"


@each_way()
def test_becoming_a_replica_amid_a_pipeline(pair: Pair) -> None:
    """A client's own REPLICAOF behind unconfirmed writes does not confirm them: they get an error."""
    pair.begin()
    pair.freeze()
    one = pair.client()
    one.socket.sendall(pack("SET", "k", "v") + pack("REPLICAOF", "127.0.0.1", "1"))
    assert str(one.read()) == FORCED
    assert one.is_closed()


@each_way(pytest.mark.long)
def test_failover_with_confirmation(pair: Pair) -> None:
    """After FAILOVER under ``sync-replicas`` the new primary has every confirmed write.

    A writer without confirmation gets an error, never an OK.
    """
    pair.begin()
    confirmed: list[bytes] = []

    def write() -> None:
        with Wire(pair.primary.url) as wire:
            while isinstance(reply := answer(wire), bytes):
                confirmed.append(reply)

    writer = threading.Thread(target=write)
    writer.start()
    eventually(lambda: len(confirmed) > 50, what="it writes")
    pair.client().ask("FAILOVER", "TIMEOUT", "20000")
    writer.join(30)
    eventually(lambda: info(pair.other)["role"] == "master", what="the other leads")
    assert set(confirmed) <= {entry[0] for entry in pair.other.ask("XRANGE", "s", "-", "+")}


def answer(wire: Wire) -> Any:
    """Return the reply to one more entry; None if the connection ends."""
    try:
        return wire.ask("XADD", "s", "*", "f", "v")
    except (EOFError, ConnectionError):
        return None


def test_a_redis_confirms_too(tmp_path: Path) -> None:
    """A Redis replica confirms writes under ``sync-replicas`` too."""
    with (
        ServerThread(tmp_path / "a", parameters={"sync-replicas": "1"}) as server,
        Wire(server.url) as one,
        redis_server(tmp_path / "b", *WITH_DEBUG, "--replicaof", "127.0.0.1", port_of(server)),
    ):
        eventually(lambda: one.ask("SET", "k", "v") == b"OK", what="writes are taken")


def test_a_store_in_process_refuses_it() -> None:
    """An embedded store refuses ``sync-replicas`` at once, since no replica reaches it."""
    with millstream.connect("memory://") as client, pytest.raises(ResponseError, match="no replica reaches it"):
        client.config_set("sync-replicas", 1)

"""During a sync a server shows nothing that is not durable yet: no reply, read, wake-up, event or message."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.persistence.disk import RealFile
from millstream.server.thread import ServerThread
from support.waiting import eventually
from support.wire import Wire, pack


class Gate:
    """Lets syncs of the real disk pass, or blocks them.

    Attributes:
        entered: a sync waits, or passed, since the gate was last shut.
        syncs: how many were begun.
    """

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.syncs = 0
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        """Block syncs from now on."""
        self.entered.clear()
        self._open.clear()

    def open(self) -> None:
        """Let syncs pass."""
        self._open.set()

    def passing(self) -> None:
        """Pass the gate with a sync."""
        self.syncs += 1
        self.entered.set()
        assert self._open.wait(60)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Yield a gate before every fdatasync of this process."""
    found, sync = Gate(), RealFile.datasync

    def gated(self: RealFile) -> None:
        found.passing()
        sync(self)

    monkeypatch.setattr(RealFile, "datasync", gated)
    yield found
    found.open()


@pytest.fixture
def server(tmp_path: Path, gate: Gate) -> Iterator[ServerThread]:
    """Yield a server with fsync always and every keyspace event; the gate is open when it ends."""
    with ServerThread(tmp_path / "data", parameters={"notify-keyspace-events": "KEA"}) as running:
        yield running
        gate.open()


@pytest.fixture
def connect(server: ServerThread) -> Iterator[Callable[[], Wire]]:
    """Yield a function that connects; all connections are closed at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Wire(server.url))


def settle(server: ServerThread) -> None:
    """Run a few turns of the server's loop, so that everything ready is sent."""
    for _ in range(4):
        gone_by = threading.Event()
        server.server.loop.call_soon_threadsafe(gone_by.set)
        assert gone_by.wait(30)


def silent(wire: Wire) -> bool:
    """Return True if nothing has come."""
    wire.socket.setblocking(False)
    try:
        return not wire.socket.recv(1)
    except BlockingIOError:
        return True
    finally:
        wire.socket.settimeout(30)


def all_durable(server: ServerThread) -> bool:
    """Return True if everything logged so far is on the medium."""
    facts = server.server.node.surroundings.log()
    return facts.durable == facts.appended > 0


def waits(server: ServerThread) -> Callable[[], bool]:
    """Return a function that reports whether some client waits inside a command."""
    return lambda: len(server.server.node.waits) > 0


class Scene:
    """Two clients, one of which writes during a sync.

    Attributes:
        heard: connections that must get nothing before the sync ends, with their later replies.
    """

    def __init__(self, server: ServerThread, gate: Gate, writer: Wire, observer: Wire) -> None:
        self.server, self.gate = server, gate
        self.writer, self.observer = writer, observer
        self.heard: list[tuple[Wire, Any]] = []

    def write(self, *words: str, reply: object = b"2-0") -> None:
        """Write; on return the command has run and its sync has begun."""
        self.gate.shut()
        self.writer.send(*words)
        assert self.gate.entered.wait(30)
        self.heard.append((self.writer, reply))

    def ask(self, wire: Wire, count: int, data: bytes, reply: object) -> None:
        """Send ``count`` commands from a client; on return they have run."""
        processed = self.server.server.node.stats.processed
        wire.socket.sendall(data)
        eventually(lambda: self.server.server.node.stats.processed >= processed + count)
        self.heard.append((wire, reply))


ADD = ("XADD", "s", "2-0", "f", "v")
ENTRIES = [[b"2-0", [b"f", b"v"]]]


def reply(scene: Scene) -> None:
    scene.write(*ADD)


def read(scene: Scene) -> None:
    scene.write(*ADD)
    scene.ask(scene.observer, 1, pack("XRANGE", "s", "2", "+"), ENTRIES)


def count_of_keys(scene: Scene) -> None:
    """Read INFO's counts of keys and bytes written, and DBSIZE."""
    scene.write("SET", "k", "v", reply=b"OK")
    scene.ask(scene.observer, 1, pack("INFO", "keyspace"), None)


def wake_up(scene: Scene) -> None:
    scene.observer.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    eventually(waits(scene.server))
    scene.write(*ADD)
    scene.heard.append((scene.observer, [[b"s", ENTRIES]]))


def group_wake_up(scene: Scene) -> None:
    assert scene.writer.ask("XGROUP", "CREATE", "s", "g", "$") == b"OK"
    scene.observer.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    eventually(waits(scene.server))
    scene.write(*ADD)
    scene.heard.append((scene.observer, [[b"s", ENTRIES]]))


def event(scene: Scene) -> None:
    assert scene.observer.ask("SUBSCRIBE", "__keyevent@0__:xadd")[2] == 1
    scene.write(*ADD)
    scene.heard.append((scene.observer, [b"message", b"__keyevent@0__:xadd", b"s"]))


def message(scene: Scene) -> None:
    assert scene.observer.ask("SUBSCRIBE", "news")[2] == 1
    scene.write(*ADD)
    scene.ask(scene.writer, 1, pack("PUBLISH", "news", "s has 2-0"), 1)
    scene.heard.append((scene.observer, [b"message", b"news", b"s has 2-0"]))


def script(scene: Scene) -> None:
    scene.write("EVAL", "return redis.call('XADD', 's', '2-0', 'f', 'v')", "0")


def transaction(scene: Scene) -> None:
    assert scene.writer.ask("MULTI") == b"OK"
    assert scene.writer.ask(*ADD) == b"QUEUED"
    scene.write("EXEC", reply=[b"2-0"])


def xinfo(scene: Scene) -> None:
    """XINFO waits for the record of a fruitless read, whose time it shows."""
    look(scene)
    scene.ask(scene.writer, 2, pack("XINFO", "CONSUMERS", "s", "none") + pack("PING"), None)


def dump(scene: Scene) -> None:
    """DUMP waits for that record too."""
    look(scene)
    scene.ask(scene.writer, 1, pack("DUMP", "s"), None)


def dump_in_a_transaction(scene: Scene) -> None:
    """DUMP in a transaction waits for it."""
    scene.observer.ask("MULTI")
    scene.observer.ask("DUMP", "s")
    look(scene)
    scene.ask(scene.observer, 1, pack("EXEC"), None)


def dump_in_a_script(scene: Scene) -> None:
    """DUMP in a script waits for it."""
    look(scene)
    scene.ask(scene.writer, 1, pack("EVAL", "return redis.call('DUMP', KEYS[1])", "1", "s"), None)


def look(scene: Scene) -> None:
    """Read and find nothing: the logged seen time delays only the commands that show it."""
    writer = scene.writer
    assert writer.ask("XGROUP", "CREATE", "s", "g", "$") == b"OK"
    for _ in range(2):
        assert writer.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") is None
    eventually(lambda: all_durable(scene.server))
    scene.gate.shut()
    later = scene.server.server.clock.now().wall
    eventually(lambda: scene.server.server.clock.now().wall > later)  # an attempt within a millisecond is not logged
    assert writer.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") is None
    assert scene.gate.entered.wait(30)


SCENES = [
    reply,
    read,
    count_of_keys,
    wake_up,
    group_wake_up,
    event,
    message,
    script,
    transaction,
    xinfo,
    dump,
    dump_in_a_transaction,
    dump_in_a_script,
]


@pytest.mark.parametrize("play", SCENES, ids=lambda play: play.__name__.replace("_", "-"))
def test_nothing_is_shown_before_it_is_durable(
    server: ServerThread, gate: Gate, connect: Callable[[], Wire], play: Callable[[Scene], None]
) -> None:
    """Every effect of a write is sent when its sync ends, and not before."""
    scene = Scene(server, gate, connect(), connect())
    assert scene.writer.ask("XADD", "s", "1-0", "f", "v") == b"1-0"
    play(scene)
    settle(server)
    assert [silent(wire) for wire, _ in scene.heard] == [True] * len(scene.heard)
    gate.open()
    for wire, expected in scene.heard:
        found = wire.read()
        assert expected is None or found == expected


@pytest.mark.parametrize("behind", [b"", b"*1\r\n$4\r\nPI"], ids=["alone", "before-a-half"])
@pytest.mark.parametrize("asked", [("XLEN", "s"), ("XRANGE", "s", "-", "+"), ("GET", "k")], ids=lambda words: words[0])
def test_nothing_plain_is_shown_before_it_is_durable(
    tmp_path: Path, gate: Gate, behind: bytes, asked: tuple[str, ...]
) -> None:
    """Plain commands that run together show a write, in their own replies and in reads, only after the sync."""
    with ServerThread(tmp_path / "data") as server, Wire(server.url) as writer, Wire(server.url) as reader:
        scene = Scene(server, gate, writer, reader)
        assert writer.ask("XADD", "s", "1-0", "f", "v") == b"1-0"
        gate.shut()
        writer.socket.sendall(pack("XADD", "s", "*", "f", "v") + pack("SET", "k", "v") + behind)
        assert gate.entered.wait(30)
        scene.ask(reader, 1, pack(*asked), None)
        settle(server)
        shown = [silent(writer), silent(reader)]
        gate.open()
        assert shown == [True, True]
        assert b"-" in writer.read()
        assert writer.read() == b"OK"
        assert reader.read()


def test_no_reply_overtakes_one_that_waits(server: ServerThread, gate: Gate, connect: Callable[[], Wire]) -> None:
    """A reply that need not wait stays behind an earlier one that does."""
    scene = Scene(server, gate, connect(), connect())
    scene.writer.ask("XADD", "s", "1-0", "f", "v")
    xinfo(scene)
    scene.ask(scene.writer, 1, pack("ECHO", "late"), None)
    settle(server)
    assert silent(scene.writer)
    gate.open()
    assert [type(scene.writer.read()) is bytes for _ in range(3)] == [False, True, True]


def test_a_stop_sends_what_waited_for_the_disk(server: ServerThread, gate: Gate, connect: Callable[[], Wire]) -> None:
    """A stop during a sync sends the delayed replies after it, and then closes the connections."""
    scene = Scene(server, gate, connect(), connect())
    scene.write(*ADD)
    server.server.loop.call_soon_threadsafe(server.server.request_stop)
    settle(server)
    assert silent(scene.writer)
    gate.open()
    assert scene.writer.read() == b"2-0"
    assert scene.writer.is_closed()


@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_save_is_a_sync(tmp_path: Path, gate: Gate, fsync: str) -> None:
    """SAVE replies when everything is on the medium, in every fsync mode."""
    with ServerThread(tmp_path, fsync=fsync) as server, Wire(server.url) as wire:  # type: ignore[arg-type] # parametrised
        assert wire.ask("XADD", "s", "1-0", "f", "v") == b"1-0"
        before = gate.syncs
        assert wire.ask("SAVE") == b"OK"
        assert all_durable(server)
        if fsync == "no":
            assert gate.syncs == before + 1


def test_a_replica_is_sent_nothing_before_it_is_durable(
    server: ServerThread, gate: Gate, connect: Callable[[], Wire]
) -> None:
    """A replica is sent only durable bytes, so it is never ahead of its primary after a power cut."""
    writer, replica = connect(), connect()
    replica.send("PSYNC", "?", "-1")
    eventually(lambda: server.server.node.primary.followers.online, what="it has its copy")
    settle(server)
    while not silent(replica):
        replica.socket.recv(65536)
    gate.shut()
    writer.send(*ADD)
    assert gate.entered.wait(30)
    settle(server)
    assert silent(replica)
    gate.open()
    assert b"XADD" in replica.socket.recv(65536)

"""Clients whose commands miss cold entries: they are parked, and nobody else waits for the disk."""

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from millstream import core
from millstream.node.node import Node
from millstream.node.tiering.figures import reading_rows
from millstream.server.thread import ServerThread
from support.coldness import IS_COLD, GatedPacks, chill
from support.waiting import eventually
from support.wire import Wire, pack

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)


class ColdServer:
    """A server in this process whose packs are in memory."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.thread = stack.enter_context(ServerThread(parameters={"stream-node-max-entries": "3"}))
        self.packs = GatedPacks()
        self.node: Node = self.thread.server.node
        stack.callback(self.packs.gate.set)
        self.inside(self._begin)

    def _begin(self) -> None:
        self.node.keyspace.reads.source = self.packs
        self.node.cold.serve_packs()

    def inside(self, work: Callable[[], Any]) -> Any:
        """Run something in the server's loop."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                done.set_exception(error)

        self.thread.server.loop.call_soon_threadsafe(run)
        return done.result(30)

    def client(self) -> Wire:
        """Connect a client."""
        return self._stack.enter_context(Wire(self.thread.url))

    def fill(self, key: str = "s", count: int = 20) -> list[Any]:
        """Add entries whose sealed nodes are cold, two in an extent; return them."""
        with Wire(self.thread.url) as wire:
            wire.ask_together([("XADD", key, f"{number}-1", "f", f"v{number}") for number in range(1, count + 1)])
            found = wire.ask("XRANGE", key, "-", "+")

        def make_cold() -> None:
            step = chill(self.node.keyspace, self.packs, 0, key.encode(), 2)
            assert step is not None
            self.node.keyspace.apply(step)

        self.inside(make_cold)
        assert isinstance(found, list)
        return found

    @property
    def parked(self) -> int:
        """Number of parked clients."""
        return int(self.inside(lambda: self.node.sessions.parking.count))

    def expect_parked(self, count: int = 1) -> None:
        """Wait until so many clients are parked."""
        eventually(lambda: self.parked == count, what=f"{count} clients are parked")

    def expect_idle(self) -> None:
        """Expect that nothing is left of parked clients."""
        tickets = self.node.cold.tickets
        assert tickets is not None
        eventually(lambda: self.inside(lambda: tickets.is_idle) and not self.packs.pins)
        assert not self.inside(lambda: dict(self.node.sessions.parking.by_session))


@pytest.fixture
def cold() -> Iterator[ColdServer]:
    with ExitStack() as stack:
        yield ColdServer(stack)


def test_a_client_that_misses_is_parked_and_others_are_not(cold: ColdServer) -> None:
    """While the disk is read others are answered; a pipeline behind the parked command keeps its order."""
    entries, reader, other = cold.fill(), cold.client(), cold.client()
    reader.socket.sendall(
        pack("ECHO", "a") + pack("XRANGE", "s", "-", "+") + pack("XADD", "s", "30-1", "f", "v") + pack("XLEN", "s")
    )
    assert reader.read() == b"a"
    cold.expect_parked()
    for number in range(50):
        assert other.ask("ECHO", str(number)) == b"%d" % number
    assert other.ask("XLEN", "s") == 20  # no input of the parked client runs
    listed = next(line for line in other.ask("CLIENT", "LIST").splitlines() if b"cmd=xrange" in line)
    assert b"flags=d " in listed
    assert b"blocked_clients:0" in other.ask("INFO", "clients")
    calls = [line for line in other.ask("INFO", "commandstats").splitlines() if line.startswith(b"cmdstat_xrange:")]
    assert b"calls=1," in calls[0]
    cold.packs.gate.set()
    assert [reader.read() for _ in range(3)] == [entries, b"30-1", 21]
    calls = [line for line in other.ask("INFO", "commandstats").splitlines() if line.startswith(b"cmdstat_xrange:")]
    assert b"calls=2," in calls[0]
    assert not cold.packs.waited
    cold.expect_idle()


def test_fifty_clients_do_not_wait_for_one_that_reads_cold_entries() -> None:
    """Over a disk of 5 ms a read others get hundreds of replies, while a reader goes through cold entries."""
    with ExitStack() as stack:
        cold = ColdServer(stack)
        cold.packs.seconds = 0.005
        cold.packs.gate.set()
        entries, reader = cold.fill(count=300), cold.client()
        others = [cold.client() for _ in range(50)]
        reader.socket.sendall(b"".join(pack("XRANGE", "s", f"{at}-0", "+", "COUNT", "1") for at in range(1, 101)))
        done = 0
        for turn in range(20):
            before = len(cold.packs.begun)
            for other in others:
                other.send("ECHO", str(turn))
            assert [other.read() for other in others] == [b"%d" % turn] * 50
            done += len(cold.packs.begun) - before < 50  # not one read of the disk for each reply
        assert done == 20
        assert [reader.read() for _ in range(100)] == [[entries[at]] for at in range(100)]
        assert not cold.packs.waited  # the loop itself has waited for none
        cold.expect_idle()


@pytest.mark.parametrize("how", ["kill", "reset"])
def test_a_parked_client_may_go(cold: ColdServer, how: str) -> None:
    """CLIENT KILL and a reset connection end the wait at once, and nothing is pinned or read for them any more."""
    cold.fill()
    reader, other = cold.client(), cold.client()
    number = reader.ask("CLIENT", "ID")
    reader.send("XRANGE", "s", "-", "+")
    cold.expect_parked()
    if how == "kill":
        assert other.ask("CLIENT", "KILL", "ID", number) == 1
        assert reader.is_closed()
    else:
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader.socket.close()
    cold.expect_parked(0)
    assert not cold.inside(lambda: dict(cold.node.sessions.parking.by_session))
    cold.packs.gate.set()
    cold.expect_idle()
    assert other.ask("XLEN", "s") == 20


def test_a_client_that_sends_no_more_gets_its_replies(cold: ColdServer) -> None:
    """A half-closed connection gets the reply of a parked command and of those behind it."""
    entries, reader = cold.fill(), cold.client()
    reader.socket.sendall(pack("XRANGE", "s", "-", "+") + pack("ECHO", "z"))
    reader.socket.shutdown(1)
    cold.expect_parked()
    cold.packs.gate.set()
    assert [reader.read(), reader.read()] == [entries, b"z"]
    assert reader.is_closed()


def test_a_blocked_reader_that_is_parked_may_close(cold: ColdServer) -> None:
    """A client that closes while its XREADGROUP BLOCK is parked is gone at once, as any blocked one."""
    cold.fill()
    reader, other = cold.client(), cold.client()
    other.ask("XGROUP", "CREATE", "s", "g", "$")
    reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
    eventually(lambda: b"blocked_clients:1" in other.ask("INFO", "clients"))
    cold.inside(lambda: setattr(_group(cold.node, b"g"), "last_id", 0))
    assert other.ask("XADD", "s", "21-1", "f", "v") == b"21-1"
    cold.expect_parked()
    reader.socket.close()
    cold.expect_parked(0)
    cold.packs.gate.set()
    cold.expect_idle()
    eventually(lambda: b"connected_clients:1\r" in other.ask("INFO", "clients"))
    assert other.ask("XPENDING", "s", "g")[0] == 0


def test_all_who_miss_the_same_share_its_reads(cold: ColdServer) -> None:
    """Waiters of one range share its reads, and are answered in the order of their commands."""
    entries = cold.fill()
    readers = [cold.client() for _ in range(5)]
    for count, reader in enumerate(readers, 1):
        reader.send("XRANGE", "s", "1", "3")
        cold.expect_parked(count)
    cold.packs.gate.set()
    assert [reader.read() for reader in readers] == [entries[:3]] * 5
    assert len(cold.packs.begun) == len(set(cold.packs.begun))
    cold.expect_idle()


def test_a_broken_disk_is_an_error_of_the_reader(cold: ColdServer) -> None:
    """EIO in a thread is the reply MSDAMAGED of the command that needs the bytes, and the loop reads nothing."""
    entries = cold.fill()
    reader, other = cold.client(), cold.client()
    cold.packs.fails = True
    cold.packs.gate.set()
    reader.socket.sendall(pack("XRANGE", "s", "-", "+") + pack("ECHO", "z"))
    error = reader.read()
    assert str(error).startswith("MSDAMAGED entries 1-1 to 6-1 of 's' cannot be read: pack-1 is damaged at byte 0")
    assert reader.read() == b"z"
    assert other.ask("XRANGE", "s", "20", "+") == entries[19:]
    cold.packs.fails = False
    assert other.ask("XRANGE", "s", "-", "+") == entries
    cold.expect_idle()


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "full"), OSError(errno.ENOMEM, "full"), MemoryError()], ids=repr
)
def test_a_lack_of_memory_or_files_is_no_damage(cold: ColdServer, error: Exception, is_quick: bool) -> None:
    """If neither a thread nor the loop has what a read needs, the command waits for the disk and gets its entries."""
    entries, reader = cold.fill(), cold.client()

    def refuse(pack: int, offset: int, length: int) -> bytes:
        raise error

    cold.packs.fetch = refuse  # type: ignore[method-assign]  # as the system would
    if is_quick:
        cold.inside(lambda: [cold.node.cold.pace.note(0, 0) for _ in range(100)])
    assert reader.ask("XRANGE", "s", "-", "+") == entries
    assert cold.packs.waited
    assert not cold.node.cold.damages()
    cold.expect_idle()


def test_a_group_reads_cold_entries(cold: ColdServer) -> None:
    """XREADGROUP, its history, XCLAIM and XDEL of cold entries park, and change what they would change."""
    entries, reader = cold.fill(), cold.client()
    assert reader.ask("XGROUP", "CREATE", "s", "g", "0") == b"OK"
    reader.socket.sendall(
        pack("XREADGROUP", "GROUP", "g", "c", "COUNT", "4", "STREAMS", "s", ">")
        + pack("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")
        + pack("XCLAIM", "s", "g", "d", "0", "2-1", "9-1")
        + pack("XDEL", "s", "1-1", "12-1", "20-1")
        + pack("XPENDING", "s", "g")
    )
    cold.expect_parked()
    assert cold.client().ask("XPENDING", "s", "g")[0] == 0
    cold.packs.gate.set()
    found = [reader.read() for _ in range(5)]
    assert found[:2] == [[[b"s", entries[:4]]]] * 2
    assert found[2:] == [[entries[1]], 3, [4, b"1-1", b"4-1", [[b"c", b"3"], [b"d", b"1"]]]]
    assert core.native is None or not cold.packs.waited  # the Python core keeps one table only
    cold.expect_idle()


def test_a_blocked_reader_that_wakes_to_a_miss_waits_on(cold: ColdServer) -> None:
    """XREADGROUP BLOCK whose group is set back to cold entries parks; its deadline and UNBLOCK go on meanwhile."""
    entries = cold.fill()
    readers, other = [cold.client() for _ in range(3)], cold.client()
    for number, reader in enumerate(readers):
        other.ask("XGROUP", "CREATE", "s", f"g{number}", "$")
        reader.send("XREADGROUP", "GROUP", f"g{number}", "c", "BLOCK", [0, 300, 0][number], "STREAMS", "s", ">")
    eventually(lambda: b"blocked_clients:3" in other.ask("INFO", "clients"))
    for number in range(3):
        cold.inside(lambda number=number: setattr(_group(cold.node, b"g%d" % number), "last_id", 0))
    assert other.ask("XADD", "s", "21-1", "f", "v") == b"21-1"
    cold.expect_parked(3)
    assert b"blocked_clients:0" in other.ask("INFO", "clients")
    assert readers[1].read() is None  # its time is over
    ids = [line.split()[0][3:] for line in other.ask("CLIENT", "LIST").splitlines() if b"flags=d " in line]
    assert other.ask("CLIENT", "UNBLOCK", ids[1]) == 1
    assert readers[2].read() is None
    assert readers[2].ask("ECHO", "a") == b"a"
    cold.packs.gate.set()
    assert readers[0].read() == [[b"s", [*entries, [b"21-1", [b"f", b"v"]]]]]
    assert readers[1].ask("XRANGE", "s", "1", "1") == entries[:1]
    assert not cold.packs.waited
    cold.expect_idle()


@pytest.mark.parametrize("how", ["del", "set"])
def test_a_blocked_reader_whose_key_goes_keeps_no_bytes(cold: ColdServer, how: str) -> None:
    """Bytes that were read for a wait are let go if its key has gone meanwhile, and the wait goes on."""
    cold.fill()
    reader, other = cold.client(), cold.client()
    reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "20-1")
    eventually(lambda: b"blocked_clients:1" in other.ask("INFO", "clients"))
    waiter = next(iter(cold.inside(lambda: list(cold.node.waits.by_session.values()))))
    cold.inside(lambda: _look_back(waiter))
    other.ask("XADD", "s", "21-1", "f", "v")
    cold.expect_parked()
    other.ask("MULTI")
    other.ask("DEL", "s")
    if how == "set":
        other.ask("SET", "s", "v")
    other.ask("EXEC")
    cold.packs.gate.set()
    cold.expect_idle()
    assert b"blocked_clients:1" in other.ask("INFO", "clients")
    other.ask("DEL", "s")
    assert other.ask("XADD", "s", "30-1", "f", "v") == b"30-1"
    assert reader.read() == [[b"s", [[b"30-1", [b"f", b"v"]]]]]


def _look_back(waiter: Any) -> None:
    """Let a waiting XREAD begin with the first entry."""
    waiter.argv[waiter.argv.index(b"20-1")] = b"0-0"
    waiter.glance = None


def _group(node: Node, name: bytes) -> Any:
    stream: Any = node.keyspace.databases[0].keys[b"s"]
    return stream.groups[name]


def test_a_transaction_parks_as_a_whole(cold: ColdServer) -> None:
    """EXEC asks for what its commands name before it begins, and nothing of it has happened meanwhile."""
    entries, reader, other = cold.fill(), cold.client(), cold.client()
    assert reader.ask("XGROUP", "CREATE", "s", "g", "0") == b"OK"
    commands = [
        ("XADD", "t", "1-1", "f", "v"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", "2", "STREAMS", "s", ">"),
        ("XRANGE", "s", "7", "7"),
        ("XREVRANGE", "s", "+", "-", "COUNT", "4"),
        ("XREAD", "COUNT", "1", "STREAMS", "s", "2"),
        ("XDEL", "s", "12-1"),
    ]
    reader.socket.sendall(pack("MULTI") + b"".join(pack(*each) for each in commands) + pack("EXEC") + pack("ECHO", "z"))
    assert [reader.read() for _ in range(7)] == [b"OK"] + [b"QUEUED"] * 6
    cold.expect_parked()
    assert other.ask("XLEN", "t") == 0
    assert other.ask("XPENDING", "s", "g")[0] == 0
    cold.packs.gate.set()
    assert reader.read() == [b"1-1", [[b"s", entries[:2]]], [entries[6]], entries[:15:-1], [[b"s", [entries[1]]]], 1]
    assert reader.read() == b"z"
    assert not cold.packs.waited
    cold.expect_idle()


def test_a_transaction_that_was_parked_sees_a_broken_watch(cold: ColdServer) -> None:
    """A change of a watched key while the transaction is parked discards it."""
    cold.fill()
    reader, other = cold.client(), cold.client()
    reader.ask_together([("WATCH", "k"), ("MULTI",), ("XRANGE", "s", "1", "1")])
    reader.send("EXEC")
    cold.expect_parked()
    other.ask("SET", "k", "v")
    cold.packs.gate.set()
    assert reader.read() is None
    cold.expect_idle()


def test_what_a_parked_command_meets_is_the_state_of_its_new_run(cold: ColdServer) -> None:
    """A stream that is deleted meanwhile, a pause, and lost rights hold for the command that runs again."""
    entries = cold.fill()
    readers, other = [cold.client() for _ in range(3)], cold.client()
    other.ask("ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all")
    assert readers[1].ask("AUTH", "u", "p") == b"OK"
    for count, reader in enumerate(readers, 1):
        reader.send("XRANGE", "s", f"{6 * count}", f"{6 * count}")
        cold.expect_parked(count)
    other.ask("ACL", "SETUSER", "u", "-xrange")
    assert other.ask("CLIENT", "PAUSE", 600_000, "ALL") == b"OK"
    cold.packs.gate.set()
    cold.expect_parked(0)
    assert str(readers[1].read()).startswith("NOPERM")
    cold.inside(lambda: cold.node.sessions.unpause(cold.thread.server.clock.now()))
    cold.inside(cold.thread.server.after_commands)
    assert [readers[0].read(), readers[2].read()] == [[entries[5]], [entries[17]]]
    cold.packs.gate.clear()
    readers[0].send("XRANGE", "s", "1", "1")
    cold.expect_parked()
    assert other.ask("DEL", "s") == 1
    cold.packs.gate.set()
    assert readers[0].read() == []
    cold.expect_idle()


def test_the_server_stops_while_a_client_is_parked() -> None:
    """A stop does not wait for a parked client, and ends the threads."""
    with ExitStack() as stack:
        cold = ColdServer(stack)
        cold.fill()
        reader = cold.client()
        reader.send("XRANGE", "s", "-", "+")
        cold.expect_parked()
        cold.packs.gate.set()
        cold.thread.stop()
        assert reader.is_closed()


def test_one_read_may_have_several_parts_of_a_client(cold: ColdServer) -> None:
    """A client whose parts are all in one read of another client goes on when that read ends."""
    entries, readers = cold.fill(), [cold.client(), cold.client()]
    readers[0].send("XRANGE", "s", "-", "+")
    cold.expect_parked()
    assert readers[1].ask("MULTI") == b"OK"
    readers[1].ask_together([("XRANGE", "s", "8", "8"), ("XRANGE", "s", "14", "14")])
    readers[1].send("EXEC")
    cold.expect_parked(2)
    cold.packs.gate.set()
    assert readers[0].read() == entries
    assert readers[1].read() == [[entries[7]], [entries[13]]]
    cold.expect_idle()


def test_a_reader_in_order_is_read_ahead_for(cold: ColdServer) -> None:
    """Threads read the extents after the second one, and what is behind is dropped from the page cache later."""
    cold.packs.gate.set()
    entries, reader = cold.fill(count=600), cold.client()
    found: list[Any] = []
    last = b"-"
    while page := reader.ask("XRANGE", "s", last, "+", "COUNT", "3"):
        found += page
        last = b"(" + page[-1][0]
    assert found == entries
    ahead = [place for place, is_needed in cold.packs.advice if is_needed]
    assert ahead
    assert not cold.packs.marks or len(cold.packs.marks) == 1
    cold.inside(lambda: cold.node.cold.forget_behind(cold.thread.server.clock.now().mono / 1000 + 60))
    dropped = [place for place, is_needed in cold.packs.advice if not is_needed]
    assert dropped
    cold.expect_idle()


def test_nothing_is_read_ahead_for_a_reader_of_single_entries(cold: ColdServer) -> None:
    """A client that reads here and there gets what it asks for, and no more."""
    cold.packs.gate.set()
    entries, reader = cold.fill(count=60), cold.client()
    for number in (40, 3, 55, 20, 9, 31):
        assert reader.ask("XRANGE", "s", f"{number}-1", f"{number}-1") == [entries[number - 1]]
    assert not cold.packs.advice


def test_a_disk_that_proves_quick_is_read_by_the_loop(cold: ColdServer) -> None:
    """After enough quick reads of single nodes the loop reads them itself; larger parts still park."""
    cold.packs.gate.set()
    entries, reader = cold.fill(), cold.client()
    for _ in range(32):
        cold.inside(lambda: cold.node.cold.pace.note(100, 0.00001))
    tickets = cold.node.cold.tickets
    assert tickets is not None
    before = tickets.parked
    assert reader.ask("XRANGE", "s", "5-1", "5-1") == [entries[4]]
    assert tickets.parked == before
    for _ in range(4):
        cold.inside(lambda: cold.node.cold.pace.note(100, 0.01))
    assert reader.ask("XRANGE", "s", "5-1", "5-1") == [entries[4]]
    assert tickets.parked > before
    cold.expect_idle()


def test_a_range_above_the_limit_of_a_client_is_not_read(cold: ColdServer) -> None:
    """A read whose reply would pass the hard limit ends its client, and no byte is read and no entry delivered."""
    cold.fill(count=300)
    other = cold.client()
    assert other.ask("XGROUP", "CREATE", "s", "g", "0") == b"OK"
    assert other.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 2000 0 0") == b"OK"
    cut = int(cold.thread.server.facts.output_buffer_closed)
    large = [
        ("XRANGE", "s", "-", "+"),
        ("XREVRANGE", "s", "+", "-"),
        ("XRANGE", "s", "-", "+", "COUNT", "250"),
        ("XREVRANGE", "s", "+", "-", "COUNT", "250"),
        ("XREAD", "STREAMS", "s", "0"),
        ("XREAD", "COUNT", "250", "STREAMS", "other", "s", "0", "9"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"),
        ("XINFO", "STREAM", "s", "FULL", "COUNT", "0"),
        ("DUMP", "s"),
    ]
    for words in large:
        reader = cold.client()
        reader.send(*words)
        assert reader.is_closed(), words
        reader = cold.client()
        reader.ask("MULTI")
        reader.ask(*words)
        reader.send("EXEC")
        assert reader.is_closed(), words
    silent = cold.client()
    silent.send("CLIENT", "REPLY", "OFF")
    silent.send("XREAD", "STREAMS", "s", "0")  # it would be read for nothing
    assert silent.is_closed()
    assert cold.thread.server.facts.output_buffer_closed == cut + 2 * len(large) + 1
    assert not cold.packs.begun
    assert not cold.packs.waited
    assert other.ask("XPENDING", "s", "g") == [0, None, None, None]
    cold.packs.gate.set()
    ids = [f"{number}-1" for number in range(1, 201)]
    other.ask("XCLAIM", "s", "g", "c", "0", *ids, "FORCE", "JUSTID")
    for words in (
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0"),
        ("XCLAIM", "s", "g", "d", "0", *ids),
        ("XAUTOCLAIM", "s", "g", "d", "0", "0"),
    ):
        reader = cold.client()
        reader.send(*words)
        assert reader.is_closed(), words
    assert other.ask("XPENDING", "s", "g")[3] == [[b"c", b"200"]]
    cold.packs.gate.set()
    assert len(cold.client().ask("XRANGE", "s", "5", "9")) == 5


def test_figures_of_reading(cold: ColdServer) -> None:
    """The rows for INFO have misses, parked clients, times and damage."""
    cold.fill()
    reader = cold.client()
    reader.send("XRANGE", "s", "-", "+")
    cold.expect_parked()
    rows = dict(cold.inside(lambda: reading_rows(cold.node.cold, cold.node.sessions)))
    assert (rows["tier_misses"], rows["tier_parked_clients"], rows["tier_nowait"]) == (1, 1, "yes")
    cold.packs.fails = True
    cold.packs.gate.set()
    assert str(reader.read()).startswith("MSDAMAGED")
    rows = dict(cold.inside(lambda: reading_rows(cold.node.cold, cold.node.sessions)))
    assert (rows["tier_parked_clients"], rows["tier_damaged_extents"]) == (0, 1)
    assert rows["tier_miss_usec"] != "p50=0,p99=0"


def test_a_reader_that_waits_to_claim_parks_when_it_may(cold: ColdServer) -> None:
    """XREADGROUP CLAIM that waits for cold entries to become idle parks when they are, and then claims them."""
    cold.packs.gate.set()
    entries, reader, other = cold.fill(), cold.client(), cold.client()
    other.ask("XGROUP", "CREATE", "s", "g", "0")
    other.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", "2", "STREAMS", "s", ">")
    other.ask("XGROUP", "SETID", "s", "g", "$")
    reader.send("XREADGROUP", "GROUP", "g", "d", "BLOCK", "0", "CLAIM", "200", "STREAMS", "s", ">")
    assert [row[:2] for row in reader.read()[0][1]] == entries[:2]
    assert other.ask("XPENDING", "s", "g")[3] == [[b"d", b"2"]]
    cold.expect_idle()

"""A Millstream replica starts from the files of its primary's log: other receivers, the content, and refusals."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from millstream.engine import transitions
from millstream.engine.history import NO_DATABASE
from millstream.engine.keyspace import OPS
from millstream.errors import DiskError, DiskFullError, UsageError
from millstream.node.log import codec
from millstream.node.log.copied_log import MAGIC, payloads
from millstream.node.log.rebuilding import from_log
from millstream.persistence.frame import FORMAT_VERSION
from millstream.persistence.log import Log
from millstream.persistence.manifest import FORMATS
from millstream.replication.handshake import OURS, READS_LOG, READS_PACKS
from millstream.server.leading import making
from millstream.server.thread import ServerThread
from node.test_copied_log import Whole, sent
from node.test_hostile_logs import HOSTILE
from persistence.reference import HOME, entropy
from replication.replicated import state
from replication.test_following_redis import follow, wait_level, write
from replication.test_link import ID, Primary
from replication.test_redis_follows import info, port_of
from server.disk.test_shown import Gate
from support.servers import millstream_server
from support.simdisk import SimDisk
from support.waiting import eventually
from support.wire import Wire

assert transitions.MODULES


class Taker:
    """A connection that requests a copy, and returns its bytes."""

    def __init__(self, url: str, *announced: bytes) -> None:
        self.wire = Wire(url)
        self.lines = self.wire.socket.makefile("rb")
        if announced:
            self.wire.send("REPLCONF", *announced)
            assert self.lines.readline() == b"+OK\r\n"

    def line(self) -> bytes:
        """Return the next line that is not empty."""
        while (line := self.lines.readline()) == b"\n":
            pass
        return line

    def copy(self) -> tuple[str, int, bytes]:
        """Request a copy; return the history, its offset, and the copy."""
        self.wire.send("PSYNC", "?", "-1")
        return self.rest()

    def rest(self) -> tuple[str, int, bytes]:
        """Return the same for a copy that was already requested."""
        _, replid, offset = self.line().split()
        return replid.decode(), int(offset), self.lines.read(int(self.line()[1:]))

    def __enter__(self) -> "Taker":
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.wire.close()


def ours(url: str) -> Taker:
    """Connect and introduce itself as a Millstream replica."""
    return Taker(url, b"capa", b"eof", b"capa", OURS, b"capa", READS_LOG)


def test_what_is_sent_are_the_records_up_to_the_moment(tmp_path: Path) -> None:
    """A log copy has a snapshot and the records up to its offset, and the stream continues with the next byte."""
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        wire.ask("SET", "early", "v")
        wire.ask("BGREWRITEAOF")
        eventually(lambda: info(wire, "persistence")["aof_rewrite_in_progress"] == "0", what="there is a snapshot")
        wire.ask("XADD", "s", "1-1", "f", "v")
        wire.ask("SELECT", "3")
        wire.ask("SET", "late", "v")
        with ours(server.url) as taker:
            replid, offset, data = taker.copy()
            space = from_log(payloads(Whole(data).read_at))
            assert [sorted(space.databases[db].keys) for db in (0, 3)] == [[b"early", b"s"], [b"late"]]
            assert (space.history.replid, space.history.offset) == (replid, offset)
            assert replid == info(wire)["master_replid"]
            wire.ask("SET", "next", "v")
            expected = b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*3\r\n$3\r\nSET\r\n$4\r\nnext\r\n$1\r\nv\r\n"
            assert taker.lines.read(len(expected)) == expected
            assert info(wire)["millstream_last_full_sync_made_bytes"] == str(len(data))


def test_the_capability_says_what_is_in_a_log() -> None:
    """The capability that two servers compare changes with the log's formats."""
    forms = [f"{name}({', '.join(signature(applier).parameters)})" for name, applier in sorted(OPS.items())]
    forms += [f"record {codec.VERSION}", f"file {FORMAT_VERSION}", f"manifest {FORMATS}"]
    made = sha256("\n".join(forms).encode()).hexdigest()[:16]
    assert (READS_LOG, READS_PACKS, made) == (b"millstream-log-1", b"millstream-log-2", "ca69e34d0e3fc5ee"), (
        "where more than a name is new, so is its number"
    )


@pytest.mark.parametrize(
    "announced",
    [
        (),
        (b"capa", OURS),
        (b"capa", OURS, b"capa", b"millstream-log-3"),
        (b"capa", READS_LOG, b"rdb-only", b"1"),
        (b"capa", READS_LOG, b"rdb-filter-only", b""),
    ],
    ids=["redis", "earlier", "later", "copy", "keyless"],
)
def test_who_else_gets_an_rdb_file(tmp_path: Path, announced: tuple[bytes, ...]) -> None:
    """A Redis, a Millstream with another log format, redis-cli --rdb and a tool without keys get an RDB file."""
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        wire.ask("SET", "k", "v")
        with Taker(server.url, *announced) as taker:
            _, _, data = taker.copy()
            assert data.startswith(b"REDIS")
            assert (b"\x01k\x01v" in data) == (b"rdb-filter-only" not in announced)


def test_a_log_with_much_behind_its_snapshot_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with many records behind its snapshot is rewritten before it is sent, to save bytes and descriptors."""
    for name in ("MOST_BEHIND", "MOST_FILES"):
        with ServerThread(tmp_path) as server, Wire(server.url) as wire, monkeypatch.context() as few:
            few.setattr(making, name, 1)
            wire.ask("SET", "k", "v" * 100)
            with ours(server.url) as taker:
                assert taker.copy()[2].startswith(b"REDIS")
            eventually(lambda: info(wire, "persistence")["aof_rewrite_in_progress"] == "0", what="it is rewritten")
            if name == "MOST_BEHIND":
                with ours(server.url) as taker:
                    assert taker.copy()[2].startswith(MAGIC)


def test_copies_that_nobody_reads_do_not_hold_all_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies to replicas that do not read cannot use up all file descriptors."""
    monkeypatch.setattr(making, "MOST_FILES", 1)
    with ServerThread(tmp_path) as server, Wire(server.url) as wire, ours(server.url) as stalled:
        wire.ask("SET", "k", "v" * (32 << 20))
        stalled.wire.send("PSYNC", "?", "-1")
        assert stalled.line().startswith(b"+FULLRESYNC")
        assert stalled.line().startswith(b"$")
        with ours(server.url) as taker:
            assert taker.copy()[2].startswith(b"REDIS")


def test_who_takes_nothing_of_his_copy_is_sent_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A replica that reads nothing of its copy is disconnected after the timeout, so removed files are freed."""
    parameters = {"repl-timeout": "1"}
    with ServerThread(tmp_path, parameters=parameters) as server, Wire(server.url) as wire, ours(server.url) as stalled:
        wire.ask("SET", "k", "v" * (32 << 20))
        stalled.wire.send("PSYNC", "?", "-1")
        assert stalled.line().startswith(b"+FULLRESYNC")
        eventually(lambda: info(wire)["connected_slaves"] == "0", what="it is sent away")
        assert "closing replica 127.0.0.1:0, since it read nothing of its copy for too long" in caplog.text
        assert caplog.text.count("closing replica") == 1


def test_nothing_is_sent_of_what_the_disk_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log copy contains only what the primary's disk has, so a power cut never leaves the replica ahead.

    The record of the request itself is written and not synced, with all before it.
    """
    gate, sync = Gate(), Log.sync

    def gated(log: Log) -> int:
        gate.passing()
        return sync(log)

    monkeypatch.setattr(Log, "sync", gated)
    with ExitStack() as stack:
        server = stack.enter_context(ServerThread(tmp_path, fsync="always"))
        stack.callback(gate.open)
        taker = stack.enter_context(ours(server.url))
        stack.enter_context(Wire(server.url)).ask("SET", "k", "v")
        gate.shut()
        taker.wire.send("PSYNC", "?", "-1")
        assert gate.entered.wait(30)
        assert taker.lines.read(3) == b"\n\n\n", "a look each second tells it that it waits"
        taker.wire.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            taker.wire.socket.recv(1, socket.MSG_PEEK)
        taker.wire.socket.setblocking(True)
        gate.open()
        assert taker.rest()[2].startswith(MAGIC)


@pytest.mark.parametrize("memory", [False, True], ids=["directory", "memory"])
def test_a_replica_holds_what_its_primary_holds(tmp_path: Path, *, memory: bool) -> None:
    """A replica that took a log copy has its primary's data, also under writes and behind another replica."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerThread(tmp_path / name)) for name in "ab"]
        servers.append(stack.enter_context(ServerThread(None if memory else tmp_path / "c")))
        first, second, third = (stack.enter_context(Wire(server.url)) for server in servers)
        write(first, 1, 500)
        follow(second, int(port_of(servers[0])))
        write(first, 2, 500)
        wait_level(second, first)
        follow(third, int(port_of(servers[1])))
        write(first, 3, 500)
        wait_level(third, first)
        assert state(first.ask) == state(second.ask) == state(third.ask)
        assert info(third)["master_port"] == port_of(servers[1])
        assert [info(each)["millstream_full_syncs_taken"] for each in (second, third)] == ["1", "1"]
        assert third.ask("REPLICAOF", "NO", "ONE") == b"OK"
        assert third.ask("SET", "own", "v") == b"OK"


def test_who_starts_with_a_copied_log_follows_whom_it_came_from(tmp_path: Path) -> None:
    """A server restarted on a copied log follows the server that sent it, and needs no other copy."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerThread(tmp_path / name)) for name in "ab"]
        first, second = (stack.enter_context(Wire(server.url)) for server in servers)
        follow(second, int(port_of(servers[0])))
        wait_level(second, first)
        with ServerThread(tmp_path / "c") as server, Wire(server.url) as third:
            follow(third, int(port_of(servers[1])))
            wait_level(third, first)
        with ServerThread(tmp_path / "c") as server, Wire(server.url) as third:
            assert info(third)["master_port"] == port_of(servers[1])
            first.ask("SET", "k", "v")
            wait_level(third, first)
            assert info(third)["millstream_full_syncs_taken"] == "0", "it goes on where it was"
            assert third.ask("GET", "k") == b"v"


@pytest.mark.parametrize(
    ("error", "sent_away"), [(UsageError("the log has no files"), False), (DiskError("cannot read it"), True)], ids=str
)
def test_files_that_cannot_be_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    *,
    sent_away: bool,
) -> None:
    """A copy of log files that a rewriting removed is tried again. After a disk error the replica retries."""
    real: Callable[..., Any] = Log.files

    def once(log: Log, last: int, having: object = None) -> Any:
        monkeypatch.setattr(Log, "files", real)
        raise error

    monkeypatch.setattr(Log, "files", once)
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        wire.ask("SET", "k", "v")
        with ours(server.url) as taker:
            if sent_away:
                taker.wire.send("PSYNC", "?", "-1")
                assert taker.wire.is_closed()
                assert "closing replica 127.0.0.1:0, since its copy could not be made: cannot read it" in caplog.text
            else:
                assert taker.copy()[2].startswith(MAGIC)
        with ours(server.url) as taker:
            assert b"k" in taker.copy()[2]


def test_no_descriptors_for_the_files_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If too few file descriptors are left for the log's files, the replica gets an RDB file, which needs one."""

    def none_left(log: Log, last: int, having: object = None) -> Any:
        raise DiskFullError("Too many open files")

    monkeypatch.setattr(Log, "files", none_left)
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        wire.ask("SET", "k", "v")
        with ours(server.url) as taker:
            assert taker.copy()[2].startswith(b"REDIS")


@pytest.mark.parametrize("lacks", ["memory", "thread"])
def test_no_memory_to_open_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """If memory ends while the log's files are opened, the replica is disconnected, and the next one gets its copy."""
    real: Callable[..., Any] = Log.files

    def once(log: Log, last: int, having: object = None) -> Any:
        monkeypatch.setattr(Log, "files", real)
        raise MemoryError

    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        wire.ask("SET", "k", "v")
        if lacks == "memory":
            monkeypatch.setattr(Log, "files", once)
        else:
            ended = ThreadPoolExecutor()
            ended.shutdown()
            server.server.loop.call_soon_threadsafe(server.server.loop.set_default_executor, ended)
        with ours(server.url) as taker:
            taker.wire.send("PSYNC", "?", "-1")
            assert taker.wire.is_closed()
        server.server.loop.call_soon_threadsafe(server.server.loop.set_default_executor, ThreadPoolExecutor())
        with ours(server.url) as taker:
            assert taker.copy()[2].startswith(MAGIC)
        assert wire.ask("GET", "k") == b"v"


def test_what_has_come_is_let_go_once_it_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A replica releases the received copy's disk space as soon as it is adopted."""
    with ExitStack() as stack:
        caplog.set_level(logging.INFO, "millstream")
        servers = [stack.enter_context(ServerThread(tmp_path / name)) for name in "ab"]
        first, second = (stack.enter_context(Wire(server.url)) for server in servers)
        follow(second, int(port_of(servers[0])))
        wait_level(second, first)
        held = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert [name for name in held if name.startswith(str(tmp_path)) and name.endswith("(deleted)")] == []
        assert ", the log as it is, goes to replica 127.0.0.1:" + port_of(servers[1]) in caplog.text
        assert f"replica 127.0.0.1:{port_of(servers[1])} was sent its copy" in caplog.text
        assert "the log was rewritten" not in caplog.text


def test_what_is_out_of_date_in_a_copied_log_goes_as_on_the_primary(tmp_path: Path) -> None:
    """Outdated records in a copied log count toward the next rewriting, so they do not grow with each copy."""
    with ExitStack() as stack:
        small = {"auto-aof-rewrite-min-size": "1mb"}
        first = stack.enter_context(ServerThread(tmp_path / "a", parameters={"auto-aof-rewrite-percentage": "0"}))
        second = stack.enter_context(ServerThread(tmp_path / "b", parameters=small))
        above, below = (stack.enter_context(Wire(server.url)) for server in (first, second))
        for _ in range(8):
            above.ask("SET", "k", os.urandom(300_000))
        follow(below, int(port_of(first)))
        wait_level(below, above)
        above.ask("SET", "more", "v")
        eventually(lambda: int(info(below, "persistence")["aof_current_size"]) < 1_000_000, what="it is rewritten")
        assert below.ask("GET", "k") == above.ask("GET", "k")


# ---------------------------------------------------------------------- what a primary may send


def log_of(*records: bytes) -> bytes:
    """Return a copy of a log of records."""
    made, _ = Log.open(HOME, SimDisk(), entropy=entropy(1))
    for record in records:
        made.append(record)
    made.write()
    made.sync()
    return sent(made.files(made.appended))


HISTORY = ("hist", NO_DATABASE, ID, 100, "", -1)
ENTRY_TWICE = HOSTILE["an entry twice"]
GOOD = log_of(codec.pack(0, [HISTORY, ("set", 0, b"k", b"good", None)]))


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Wire]:
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        assert wire.ask("SET", "mine", "v") == b"OK"
        yield wire


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (log_of(codec.pack(0, [("set", 0, b"k", b"v", None)])), "and holds history none up to offset 0"),
        (log_of(codec.pack(0, [("hist", -1, ID, 99, "", -1)])), "and holds history " + ID + " up to offset 99"),
        (log_of(codec.pack(0, [HISTORY, ("nothing", 0)])), "a record is invalid: KeyError('nothing')"),
        (log_of(codec.pack(0, [HISTORY, ("set", 99, b"k", b"v", None)])), "a record is invalid: IndexError"),
        (log_of(codec.pack(0, [HISTORY, ("set",)])), "a record is invalid: "),
        (log_of(codec.pack(0, [HISTORY, ("set", 0, "text", b"v", None)])), "a record is invalid: TypeError"),
        (log_of(codec.pack(0, [HISTORY, ("set", 0, b"k", b"v", "soon")])), "a record is invalid: TypeError"),
        (log_of(codec.pack(0, [("hist", 99, ID, 100, "", -1)])), "database 99 is selected"),
        (log_of(codec.pack(0, [("hist", 0, ID, 100, "a\nb", 7)])), "a history is called"),
        (log_of(*(codec.pack(0, [step]) for step in (HISTORY, *ENTRY_TWICE))), "an id that is not above the last"),
        (log_of(codec.pack(0, [HISTORY, ("set", -1, b"k", b"v", None)])), "argument 1 of set is -1"),
        (
            log_of(codec.pack(0, [HISTORY, ("overwrite", 0, b"k", 2**31, b"x")])),
            "argument 3 of overwrite is 2147483648",
        ),
        (log_of(codec.pack(0, [HISTORY, ("hset", 0, b"h", [])])), "the hash at b'h'"),
        (log_of(codec.pack(0, [HISTORY, ("expire", 0, b"k", 5)])), "a time of a key that is not there"),
        (log_of(b"\xc1"), "a record is invalid: "),
        (log_of(b""), "a record is invalid: "),
        (log_of(b"\x93\x09\x00\x90"), "version 9"),
        (GOOD[:-1], "is damaged or cut short at byte 32 of"),
        (GOOD[:40], "its list of files is cut short"),
        (MAGIC, "it does not begin as one"),
    ],
    ids=range(20),
)
def test_a_log_that_is_none_takes_the_place_of_nothing(replica: Wire, data: bytes, reason: str) -> None:
    """An invalid log copy replaces nothing: the old data is shown with the reason, and the next copy is taken."""
    primary = Primary(data, GOOD)
    try:
        follow(replica, primary.port)
        eventually(lambda: reason in info(replica).get("millstream_link_error", ""), what=f"{reason} is told")
        assert (replica.ask("GET", "mine"), replica.ask("DBSIZE")) == (b"v", 1)
        eventually(lambda: replica.ask("GET", "k") == b"good", what="the next copy is taken")
        assert replica.ask("DBSIZE") == 1
        assert info(replica)["slave_repl_offset"] == "100"
    finally:
        primary.close()


def test_no_memory_for_a_copy_is_told_in_words(tmp_path: Path) -> None:
    """If memory ends on taking a copy, the replica reports it in words, keeps its data and takes the next copy."""
    large = [("overwrite", 0, b"k%d" % number, 500 << 20, b"x") for number in range(12)]
    primary = Primary(log_of(codec.pack(0, [HISTORY, *large])), GOOD)
    server = millstream_server(tmp_path)
    server.command = ["sh", "-c", 'ulimit -v 3000000; exec "$@"', "sh", *server.command]
    try:
        with server, Wire(server.url) as replica:
            replica.ask("SET", "mine", "v")
            follow(replica, primary.port)
            reason = "there is not enough memory for the primary's copy: give this server more"
            eventually(lambda: reason in info(replica).get("millstream_link_error", ""), what="the reason is told")
            assert replica.ask("GET", "mine") == b"v"
            eventually(lambda: replica.ask("GET", "k") == b"good", what="the next copy is taken")
    finally:
        primary.close()

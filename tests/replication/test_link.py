"""The link to a primary that the test scripts: damaged copies, offset requests, diverging data."""

import contextlib
import logging
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from millstream.engine.keyspace import Keyspace, StringValue
from millstream.engine.serialization.rdb.writing import write_file
from millstream.errors import StorageError
from millstream.node.following.role import Following
from millstream.replication.units import packed
from millstream.server.thread import ServerThread
from replication.test_following_redis import follow
from replication.test_redis_follows import info
from support.ports import free_port
from support.waiting import eventually
from support.wire import Wire

ID = "c" * 40
MARK = bytes(range(48, 88))  # no byte twice: a copy whose last bytes begin a mark would end too early


def copy(**keys: str) -> bytes:
    """Return an RDB file of strings."""
    space = Keyspace()
    space.databases[0].keys = {name.encode(): StringValue(value.encode()) for name, value in keys.items()}
    return b"".join(write_file(space, aux={"repl-stream-db": "0"}))


class Primary:
    """Answers one replica after the other, each with the next of its copies.

    Attributes:
        asked: the words of each PSYNC.
        acks: acknowledged offsets.
    """

    def __init__(self, *copies: bytes) -> None:
        self._copies = list(copies)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.asked: list[list[bytes]] = []
        self.acks: list[int] = []
        self._replica: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                self._replica, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), self._replica, self._replica.makefile("rb") as lines:
                self._answer(self._replica, lines)

    def _answer(self, replica: socket.socket, lines: BinaryIO) -> None:
        while words := self._command(lines):
            if words[0] == b"PSYNC":
                self.asked.append(words)
                if words[1] == ID.encode():
                    replica.sendall(b"+CONTINUE\r\n")
                elif not self._copies:
                    return  # who asks once more is hung up on
                else:
                    file = self._copies.pop(0)
                    replica.sendall(b"+FULLRESYNC %b 100\r\n\n$EOF:%b\r\n%b%b" % (ID.encode(), MARK, file, MARK))
            elif words[:2] == [b"REPLCONF", b"ACK"]:
                self.acks.append(int(words[2]))
            else:
                replica.sendall({b"PING": b"+PONG\r\n", b"INFO": b"$0\r\n\r\n"}.get(words[0], b"+OK\r\n"))

    @staticmethod
    def _command(lines: BinaryIO) -> list[bytes]:
        while (head := lines.readline()) == b"\n":
            pass
        words = []
        for _ in range(int(head[1:] or b"0")):
            lines.readline()
            words.append(lines.readline().removesuffix(b"\r\n"))
        return words

    def say(self, *commands: str) -> int:
        """Send commands of the stream; return the number of bytes."""
        assert self._replica is not None
        data = b"".join(packed([word.encode() for word in line.split()]) for line in commands)
        self._replica.sendall(data)
        return len(data)

    def cut(self) -> None:
        """Close the connection."""
        assert self._replica is not None
        self._replica.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the listener and the connection."""
        self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self.cut()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Wire]:
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        yield wire


def test_a_damaged_copy_replaces_nothing_and_another_is_asked_for(ours: Wire) -> None:
    """A damaged copy changes nothing: the old data is shown until another copy is whole."""
    whole = copy(k="theirs")
    primary = Primary(whole[:-20], b"REDIS0099" + whole[9:], whole)
    try:
        ours.ask("SET", "mine", "v")
        follow(ours, primary.port)
        eventually(lambda: len(primary.asked) == 2, what="the first copy is refused")
        assert ours.ask("GET", "mine") == b"v"
        eventually(lambda: ours.ask("GET", "k") == b"theirs", what="the third is taken")
        assert ours.ask("DBSIZE") == 1
        assert [words[1] for words in primary.asked] == [b"?"] * 3
    finally:
        primary.close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first file for a copy be on a full disk; later ones are not."""
    real, files = tempfile.TemporaryFile, [Path("/dev/full").open("w+b")]  # noqa: SIM115 - its user closes it
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: files.pop() if files else real(**options))


@pytest.mark.usefixtures("full_disk")
def test_a_copy_that_finds_no_room_is_asked_for_again(ours: Wire) -> None:
    """If a copy finds no space, even when its file is closed, the replica requests another."""
    primary = Primary(copy(k="large"), copy(k="theirs"))
    try:
        follow(ours, primary.port)
        eventually(lambda: ours.ask("GET", "k") == b"theirs", what="the second copy is taken")
    finally:
        primary.close()


@pytest.mark.usefixtures("full_disk")
def test_no_room_for_a_copy_cuts_who_wants_it_alone() -> None:
    """If a server without a directory finds no space to write a copy, only the requesting replica is disconnected.

    The next replica is served.
    """
    with ServerThread(None) as server, Wire(server.url) as wire, Wire(server.url) as replica, Wire(server.url) as next_:
        replica.send("PSYNC", "?", "-1")
        eventually(lambda: info(wire)["connected_slaves"] == "0", what="it is cut")
        assert replica.is_closed()
        next_.send("PSYNC", "?", "-1")
        eventually(lambda: "state=online" in info(wire).get("slave0", ""), what="the next one is served")


def test_what_is_kept_is_told_and_a_cut_transaction_is_asked_for_again(ours: Wire) -> None:
    """A GETACK is answered once all before it is durable. After a cut, PSYNC requests the first unapplied unit."""
    primary = Primary(copy(k="1"))
    try:
        follow(ours, primary.port)
        eventually(lambda: primary.acks, what="the copy is taken")
        offset = 100 + primary.say("INCR k", "REPLCONF GETACK *")
        eventually(lambda: offset in primary.acks, what="the question is answered")
        assert ours.ask("GET", "k") == b"2"
        primary.say("MULTI", "INCR k")
        primary.cut()
        eventually(lambda: len(primary.asked) == 2, what="the link comes back")
        assert primary.asked[1][1:] == [ID.encode(), b"%d" % (offset + 1)]
        eventually(lambda: info(ours)["master_link_status"] == "up", what="it goes on")
        primary.say("MULTI", "INCR k", "EXEC")
        eventually(lambda: ours.ask("GET", "k") == b"3", what="the transaction is run once")
    finally:
        primary.close()


def test_a_history_that_cannot_be_logged_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of history that cannot be logged ends the server, as any change in memory but not in the log does."""
    primary = Primary(copy(k="1"))

    def unlogged(following: Following, replid: str, wall: int) -> None:
        raise StorageError(f"{following} is not {replid} at {wall}")

    monkeypatch.setattr(Following, "renamed", unlogged)
    server = ServerThread().start()
    try:
        with Wire(server.url) as ours:
            follow(ours, primary.port)
            eventually(lambda: primary.acks, what="the copy is taken")
            primary.cut()
            eventually(lambda: server.server.failure, what="it ends")
        with pytest.raises(StorageError, match="is not c"):
            server.stop()
    finally:
        primary.close()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "NOAUTH"),
        ({"masterauth": "wrong"}, "WRONGPASS"),
        ({"masteruser": "narrow", "masterauth": "pass"}, "NOPERM"),
    ],
    ids=["no password", "a wrong one", "too few rights"],
)
def test_the_log_names_what_lets_a_replica_in(
    parameters: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the primary refuses a replica's login, the log adds the parameters to set; other failures add none."""
    with (
        ServerThread(parameters={"requirepass": "secret"}) as primary,
        ServerThread(parameters=parameters) as replica,
        Wire(primary.url) as leader,
        Wire(replica.url) as client,
        caplog.at_level(logging.WARNING),
    ):
        leader.ask("AUTH", "secret")
        leader.ask("ACL", "SETUSER", "narrow", "on", ">pass", "+ping")
        follow(client, int(primary.url.rpartition(":")[2].partition("/")[0]))
        eventually(lambda: info(client)["millstream_link_error"].startswith(reason), what="it is refused")
        (line,) = {record.getMessage() for record in caplog.records if " is down: " in record.getMessage()}
        assert f"is down: {reason}" in line
        assert "masteruser and masterauth" in line
        caplog.clear()
        follow(client, free_port())
        eventually(lambda: "refused" in info(client)["millstream_link_error"], what="nobody is there")
        assert not [record for record in caplog.records if "masterauth" in record.getMessage()]


def test_data_that_differ_are_replaced_by_a_copy_once(ours: Wire) -> None:
    """A replicated command that fails ends the link, and a copy is requested at once. The next failure waits."""
    primary = Primary(copy(k="string"), copy(k="string", other="2"))
    try:
        follow(ours, primary.port)
        eventually(lambda: primary.acks, what="the copy is taken")
        primary.say("LPUSH k element")
        eventually(lambda: ours.ask("GET", "other") == b"2", what="another copy is taken")
        eventually(lambda: info(ours)["master_link_status"] == "up", what="the link is up")
        primary.say("LPUSH k element")
        eventually(lambda: info(ours)["millstream_link_divergences"] == "2", what="it failed again")
        assert "LPUSH k element failed here: WRONGTYPE" in info(ours)["millstream_link_error"]
        assert len(primary.asked) == 2
    finally:
        primary.close()


def test_who_leads_with_data_that_differed_begins_a_history_of_another_name(ours: Wire) -> None:
    """A replica promoted after its data diverged starts a new history, so no replica continues with the old one."""
    primary = Primary(copy(k="string"))
    try:
        follow(ours, primary.port)
        eventually(lambda: primary.acks, what="the copy is taken")
        primary.say("LPUSH k element")
        eventually(lambda: info(ours)["millstream_link_divergences"] == "1", what="it failed here")
        assert ours.ask("REPLICAOF", "NO", "ONE") == b"OK"
        ours.ask("SET", "k", "other")
        ours.send("PSYNC", "?", "-1")
        data = b""
        while b"$" not in data:
            data += ours.socket.recv(65536)
        assert ID.encode() not in data
    finally:
        primary.close()

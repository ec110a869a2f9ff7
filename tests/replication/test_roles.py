"""What a connection is once it is a replica's, and where a replica says that it is reached."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.clock import Now
from millstream.node.primary import Primary
from millstream.replication.followers import Follower
from millstream.server import replicas
from millstream.server.listener import ListenError
from millstream.server.thread import ServerThread
from replication.test_following_redis import wait_level
from replication.test_redis_follows import info, port_of
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.process


def test_who_listened_and_becomes_a_replica_hears_the_stream_alone() -> None:
    """A push between the stream's bytes would be counted as a part of it, and every later offset be wrong."""
    with ServerThread() as server, Wire(server.url) as other, Wire(server.url, resp=3) as wire:
        wire.ask("SUBSCRIBE", "channel")
        wire.ask("PSUBSCRIBE", "*")
        wire.send("PSYNC", "?", "-1")
        eventually(lambda: info(other)["connected_slaves"] == "1", what="it is a replica")
        assert other.ask("PUBLISH", "channel", "hello") == 0
        other.ask("SET", "last", "v")
        data = b""
        while b"last" not in data:
            data += wire.socket.recv(65536)
        assert b"FULLRESYNC" in data
        assert b"message" not in data
        assert b"$7\r\nPUBLISH\r\n$7\r\nchannel\r\n$5\r\nhello\r\n" in data


def test_a_replica_says_where_it_is_reached(tmp_path: Path) -> None:
    """Its primary, and Sentinel by that, knows it under the address and port that it was told to announce."""
    words = ["--replica-announce-ip", "127.0.0.9", "--replica-announce-port", "7777", "--set", "replica-announced=no"]
    with ServerThread() as primary, Wire(primary.url) as theirs:
        place = f"127.0.0.1:{port_of(primary)}"
        with millstream_server(tmp_path, "--replicaof", place, *words) as replica, Wire(replica.url) as ours:
            wait_level(ours, theirs)
            assert info(theirs)["slave0"].startswith("ip=127.0.0.9,port=7777,state=online,")
            assert theirs.ask("ROLE")[2][0][:2] == [b"127.0.0.9", b"7777"]
            assert info(ours)["replica_announced"] == "0"
            assert ours.ask("CONFIG", "GET", "slave-announce-port") == [b"slave-announce-port", b"7777"]


def test_a_defect_does_not_end_the_looks_at_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there was none any more, nobody was told that the primary is there, nor noticed who was silent."""
    tick, calls = Primary.tick, []

    def broken(primary: Primary, now: Now) -> list[Follower]:
        calls.append(now)
        if len(calls) == 1:
            raise ZeroDivisionError
        return tick(primary, now)

    monkeypatch.setattr(Primary, "tick", broken)
    with ServerThread() as server, Wire(server.url) as wire:
        wire.send("PSYNC", "?", "-1")
        eventually(lambda: len(calls) > 1, what="another look")


def test_no_memory_for_a_copy_cuts_who_wants_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server took that copy for one under way, and began no other."""
    begin, calls = replicas.write_in_child, []

    def short(*words: Any) -> None:
        calls.append(words)
        if len(calls) == 1:
            raise MemoryError
        begin(*words)

    monkeypatch.setattr(replicas, "write_in_child", short)
    with ServerThread() as server, Wire(server.url) as wire, Wire(server.url) as first, Wire(server.url) as second:
        first.send("PSYNC", "?", "-1")
        assert first.is_closed()
        second.send("PSYNC", "?", "-1")
        eventually(lambda: "state=online" in info(wire).get("slave0", ""), what="the next one is served")


def test_a_replica_that_came_by_ipv6_can_be_reached(tmp_path: Path) -> None:
    """Its address stood in brackets, in which nobody finds it: Sentinel, nor the primary that hands its role over."""
    primary = ServerThread(tmp_path / "a", host="::1")
    try:
        primary.start()
    except ListenError:
        pytest.skip("this machine has no IPv6 loopback")
    with ExitStack() as stack:
        stack.callback(primary.stop)
        replica = stack.enter_context(ServerThread(tmp_path / "b", host="::1"))
        with Wire(primary.url) as theirs, Wire(replica.url) as ours:
            assert ours.ask("REPLICAOF", "::1", port_of(primary)) == b"OK"
            wait_level(ours, theirs)
            assert info(theirs)["slave0"].startswith("ip=::1,port=")
            assert theirs.ask("FAILOVER", "TO", "::1", port_of(replica)) == b"OK"
            eventually(lambda: info(ours)["role"] == "master", what="it leads")
            wait_level(theirs, ours)

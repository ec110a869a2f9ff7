"""What a connection is once it is a replica's, and where a replica says that it is reached."""

from pathlib import Path

import pytest

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

"""The link in CLIENT LIST, CLIENT KILL and INFO, and the synced offset that a replica reports."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from millstream.node.durability import group_commit
from millstream.node.durability.group_commit import Fsync
from millstream.persistence.log import Log
from millstream.server.thread import ServerThread
from replication.test_following_redis import follow, wait_level
from replication.test_link import Primary, copy
from replication.test_redis_follows import info, port_of
from support.waiting import eventually
from support.wire import Wire


@pytest.fixture(params=["always", "everysec"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Wire]]:
    """Yield a primary, and a replica with one of the policies."""
    with ExitStack() as stack:
        first = stack.enter_context(ServerThread(tmp_path / "a"))
        second = stack.enter_context(ServerThread(tmp_path / "b", fsync=cast("Fsync", request.param)))
        wires = [stack.enter_context(Wire(server.url)) for server in (first, second)]
        follow(wires[1], int(port_of(first)))
        wait_level(wires[1], wires[0])
        yield wires


def listed(wire: Wire, kind: str) -> list[dict[str, str]]:
    """Return the clients of a type, their fields by name."""
    lines = wire.ask("CLIENT", "LIST", "TYPE", kind).decode().splitlines()
    return [dict(field.split("=", 1) for field in line.split(" ")) for line in lines]


def test_waitaof_counts_what_replicas_have_synced(pair: list[Wire]) -> None:
    """WAITAOF counts a replica once its disk has the data, under each policy that syncs; with everysec a bit later."""
    one, _ = pair
    for at in range(3):
        one.ask("SET", "k", at)
        assert one.ask("WAITAOF", "0", "1", "20000") == [1, 1]


def test_the_link_is_a_client(pair: list[Wire]) -> None:
    """CLIENT LIST shows the link on both sides as Redis does. If killed, it reconnects and needs no copy."""
    one, other = pair
    (replica,) = listed(one, "replica")
    (primary,) = listed(other, "master")
    assert (replica["flags"], primary["flags"]) == ("S", "M")
    assert (primary["user"], primary["cmd"]) == ("(superuser)", "NULL")
    assert (replica["addr"], replica["laddr"]) == (primary["laddr"], primary["addr"])
    assert listed(other, "normal")[0]["flags"] == "N"
    assert info(other, "clients")["connected_clients"] == "2"
    assert other.ask("CLIENT", "KILL", "TYPE", "normal") == 0
    assert other.ask("CLIENT", "KILL", "TYPE", "master") == 1
    eventually(lambda: [each["id"] != primary["id"] for each in listed(other, "master")] == [True], what="a new link")
    assert one.ask("CLIENT", "KILL", "TYPE", "slave") == 1
    one.ask("SET", "k", "v")
    wait_level(other, one)
    assert info(one, "stats")["sync_full"] == "1"
    other.ask("REPLICAOF", "NO", "ONE")
    eventually(lambda: not listed(other, "master"), what="there is no link")


def test_a_change_of_users_leaves_the_link_alone(pair: list[Wire]) -> None:
    """Changing or deleting a user does not cut the link, since commands of the primary run under no user."""
    one, other = pair
    (before,) = listed(other, "master")
    other.ask("ACL", "SETUSER", "somebody", "on")
    other.ask("ACL", "DELUSER", "somebody")
    one.ask("SET", "k", "v")
    wait_level(other, one)
    assert [each["id"] for each in listed(other, "master")] == [before["id"]]


def test_bytes_of_replication_are_counted(pair: list[Wire]) -> None:
    """INFO counts the bytes of replication apart from those of clients, equally on either side."""
    one, other = pair
    one.ask("CONFIG", "SET", "repl-ping-replica-period", "1000")
    one.ask("SET", "k", "v" * 10_000)
    wait_level(other, one)
    sent, received = info(one, "stats"), info(other, "stats")
    assert (sent["total_net_repl_input_bytes"], received["total_net_repl_output_bytes"]) == ("0", "0")
    assert 10_000 < int(sent["total_net_repl_output_bytes"]) <= int(sent["total_net_output_bytes"])
    assert 10_000 < int(received["total_net_repl_input_bytes"]) <= int(received["total_net_input_bytes"])


def test_who_leads_while_a_question_of_its_primary_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica promoted while its disk has not answered the primary's GETACK serves its clients."""
    may_sync, sync = threading.Event(), Log.sync
    primary = Primary(copy(k="v"))
    try:
        with ServerThread(tmp_path) as server, Wire(server.url) as wire:

            def asked() -> bool:
                return b"asked" in server.server.node.keyspace.databases[0].keys

            def held(log: Log) -> int:
                if asked():  # syncs of what came before are not held, so nothing waits in front of it
                    may_sync.wait(30)
                return sync(log)

            monkeypatch.setattr(Log, "sync", held)
            monkeypatch.setattr(group_commit, "QUICK_SECONDS", 0.0)  # the thread syncs, and the loop goes on
            follow(wire, primary.port)
            eventually(lambda: wire.ask("GET", "k") == b"v", what="the copy is taken")
            primary.say("SET asked 1", "REPLCONF GETACK *")
            eventually(asked, what="the question has come")
            wire.send("REPLICAOF", "NO", "ONE")
            eventually(lambda: not server.server.node.following.is_replica, what="it leads")
            may_sync.set()
            assert wire.read() == b"OK"
            assert wire.ask("SET", "k", "w") == b"OK"
    finally:
        may_sync.set()
        primary.close()

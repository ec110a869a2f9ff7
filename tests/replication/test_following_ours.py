"""Millstream follows Millstream: a chain of three, a promotion in its middle, and replicas killed or out of space."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.server.thread import ServerThread
from replication.replicated import state
from replication.test_following_redis import follow, is_level, seen, wait_level, write
from replication.test_redis_follows import info, port_of
from support.ports import free_port
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

if TYPE_CHECKING:
    from millstream.node.durability.group_commit import Fsync


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_a_primary_that_starts_again_and_its_replica(fsync: "Fsync", tmp_path: Path) -> None:
    """A replica continues after its primary's restart, unless it has more data. Then it gets a copy."""
    port = free_port()
    with ServerThread() as replica, Wire(replica.url) as below:
        with ServerThread(tmp_path / "a", port=port, fsync=fsync) as primary, Wire(primary.url) as above:
            follow(below, port)
            above.ask("SET", "k", "early")
            wait_level(below, above)
            made, taken = info(above), info(below)
            assert made["millstream_full_syncs_made"] == taken["millstream_full_syncs_taken"] == "1"
            size = taken["millstream_last_full_sync_taken_bytes"]
            assert made["millstream_last_full_sync_made_bytes"] == size != "-1"
            assert float(taken["millstream_last_full_sync_taken_seconds"]) >= 0
        with ServerThread(tmp_path / "a", port=port, fsync=fsync) as primary, Wire(primary.url) as above:
            eventually(lambda: info(above, "stats")["sync_partial_ok"] == "1", what="the replica goes on")
            wait_level(below, above)
            assert info(below)["millstream_full_syncs_taken"] == "1"
            shutil.copytree(tmp_path / "a", tmp_path / "left")  # as a machine that is lost now could leave it
            above.ask("SET", "k", "lost")
            wait_level(below, above)
            assert below.ask("GET", "k") == b"lost"
        ahead = int(info(below)["slave_repl_offset"])
        with ServerThread(tmp_path / "left", port=port, fsync=fsync) as primary, Wire(primary.url) as above:
            eventually(lambda: info(below)["millstream_full_syncs_taken"] == "2", what="the replica has a copy")
            assert int(info(above)["second_repl_offset"]) <= ahead
            wait_level(below, above)
            assert above.ask("GET", "k") == below.ask("GET", "k") == b"early"


def test_what_a_replica_has_told_its_primary(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """INFO has the offsets that a replica has logged and synced, none with --memory. The log reports both copies."""
    with caplog.at_level(logging.INFO, "millstream"), ExitStack() as stack:
        servers = [stack.enter_context(ServerThread(folder)) for folder in (tmp_path / "a", tmp_path / "b", None)]
        first, *replicas = [stack.enter_context(Wire(server.url)) for server in servers]
        assert "millstream_link_kept_offset" not in info(first)
        for replica in replicas:
            follow(replica, int(port_of(servers[0])))
        for replica in replicas:
            wait_level(replica, first)
        assert caplog.text.count(f"the copy of 127.0.0.1:{port_of(servers[0])} replaced the former data") == 2
        first.ask("SET", "k", "v")
        offset = int(info(first)["master_repl_offset"])
        assert first.ask("WAIT", "2", "30000") == 2
        told = [info(replica) for replica in replicas]
        assert [int(each["millstream_link_kept_offset"]) >= offset > 0 for each in told] == [True, True]
        assert told[0]["millstream_link_durable_offset"] == told[0]["millstream_link_kept_offset"]
        assert told[1]["millstream_link_durable_offset"] == "-1"


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[list[Wire]]:
    """Yield a chain of three servers, with and without a log."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerThread(folder)) for folder in (tmp_path / "a", tmp_path / "b", None)]
        wires = [stack.enter_context(Wire(server.url)) for server in servers]
        write(wires[0], 1, 300)
        for above, below, server in zip(wires, wires[1:], servers, strict=False):
            follow(below, int(port_of(server)))
            wait_level(below, above)
        yield wires


def test_all_of_a_chain_hold_the_same(chain: list[Wire]) -> None:
    """Writes to the first of a chain reach the last as the same bytes, with the same history and offset."""
    first, middle, last = chain
    write(first, 2, 600)
    eventually(lambda: is_level(middle, first) and is_level(last, first), what="all are level")
    assert state(middle.ask) == state(last.ask)
    assert seen(first) == seen(middle)
    assert len({info(wire)["master_replid"] for wire in chain}) == 1
    assert first.ask("WAIT", 1, 30_000) == 1
    assert str(middle.ask("WAIT", 1, 0)).startswith("ERR WAIT cannot be used with replica instances")
    first.ask("PUBLISH", "c", "no record counts this by itself")
    eventually(lambda: is_level(last, first), what="messages count too")


def test_who_followed_the_one_that_leads_now_goes_on(chain: list[Wire]) -> None:
    """If the middle of a chain is promoted, its replica and the former primary continue without a copy.

    That requires that the former primary wrote nothing since.
    """
    first, middle, last = chain
    port = middle.ask("CONFIG", "GET", "port")[1]
    wait_level(middle, first)
    assert middle.ask("REPLICAOF", "NO", "ONE") == b"OK"
    write(middle, 3, 300)
    eventually(lambda: is_level(last, middle), what="the last one goes on")
    follow(first, int(port))
    eventually(lambda: is_level(first, middle), what="the former primary follows")
    assert seen(first) == seen(middle) == seen(last)
    assert len({(info(wire)["master_replid"], info(wire)["master_replid2"]) for wire in chain}) == 1
    assert [info(wire)["millstream_full_syncs_taken"] for wire in (first, last)] == ["0", "1"]


def test_a_primary_that_wrote_alone_gets_a_copy(chain: list[Wire]) -> None:
    """A former primary with writes that the new one lacks gets a copy of the new history."""
    first, middle, _ = chain
    wait_level(middle, first)
    middle.ask("REPLICAOF", "NO", "ONE")
    first.ask("SET", "alone", "gone")
    write(middle, 4, 100)
    follow(first, int(middle.ask("CONFIG", "GET", "port")[1]))
    wait_level(first, middle)
    assert first.ask("GET", "alone") is None
    assert info(first)["millstream_full_syncs_taken"] == "1"
    assert seen(first) == seen(middle)


def test_a_replica_that_is_killed_goes_on(tmp_path: Path) -> None:
    """A replica killed at any moment under load continues after its last byte, with a single copy."""
    with ServerThread(tmp_path / "primary") as primary, Wire(primary.url) as theirs:
        write(theirs, 1, 200)
        replica = millstream_server(tmp_path, "--replicaof", f"127.0.0.1:{port_of(primary)}")
        for seed in range(3):
            with replica, Wire(replica.url) as ours:
                write(theirs, seed, 300)
                wait_level(ours, theirs) if seed == 0 else write(theirs, seed + 10, 300)
                replica.kill()
        with replica, Wire(replica.url) as ours:
            wait_level(ours, theirs)
            assert seen(ours) == seen(theirs)
            assert info(theirs, "stats")["sync_full"] == "1"


def test_a_role_that_was_given_is_kept_by_a_start(tmp_path: Path) -> None:
    """--replicaof applies only to a directory without a role: a promoted server stays a primary after a start."""
    words = ("--replicaof", f"127.0.0.1:{free_port()}")
    replica = millstream_server(tmp_path, *words)
    with replica, Wire(replica.url) as ours:
        assert ours.ask("ROLE")[0] == b"slave"
        assert ours.ask("REPLICAOF", "NO", "ONE") == b"OK"
        replica.stop()
    with replica, Wire(replica.url) as ours:
        assert ours.ask("ROLE")[0] == b"master"
        assert ours.ask("SET", "k", "v") == b"OK"
        replica.stop()
    assert "this server is a primary, as the last REPLICAOF set" in replica.log.read_text()


def test_a_replica_killed_while_it_takes_a_copy_holds_the_old_data_or_the_new(tmp_path: Path) -> None:
    """A replica killed while it takes a copy has all old or all new data, and takes the copy in the end."""
    with ServerThread(tmp_path / "primary") as primary, Wire(primary.url) as theirs:
        theirs.ask_together(["SET", f"k{at}", at] for at in range(20_000))
        replica = millstream_server(tmp_path)
        with replica, Wire(replica.url) as ours:
            ours.ask("SET", "mine", "v")
            follow(ours, int(port_of(primary)))
            eventually(lambda: info(ours)["millstream_link_state"] != "connect", what="the copy is on its way")
            replica.kill()
        for _ in range(2):
            with replica, Wire(replica.url) as ours:
                held = ours.ask("DBSIZE"), ours.ask("EXISTS", "mine")
                assert held in {(1, 1), (20_000, 0)}
                eventually(lambda: info(ours)["millstream_link_state"] in {"sync", "connected"}, what="a copy comes")
                replica.kill()
        with replica, Wire(replica.url) as ours:
            wait_level(ours, theirs)
            assert (ours.ask("DBSIZE"), ours.ask("EXISTS", "mine")) == (20_000, 0)

"""FAILOVER: the role goes to a replica with all data, under writers, and back; a server that refuses does not lead."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from millstream.server.thread import ServerThread
from replication.replicated import state
from replication.test_following_redis import WITH_DEBUG, follow, is_level, seen, wait_level, write
from replication.test_redis_follows import info, port_of
from support.ports import free_port
from support.servers import millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[tuple[ServerThread, Wire]]]:
    """Yield a primary and its replica, both with a log."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerThread(tmp_path / name)) for name in ("a", "b")]
        wires = [stack.enter_context(Wire(server.url)) for server in servers]
        write(wires[0], 1, 100)
        follow(wires[1], int(port_of(servers[0])))
        wait_level(wires[1], wires[0])
        yield list(zip(servers, wires, strict=True))


def over(wire: Wire) -> bool:
    """Return True if no failover is under way, and the server is a replica whose link is up."""
    found = info(wire)
    return (found["master_failover_state"], found.get("master_link_status")) == ("no-failover", "up")


def add(url: str, ids: list[bytes]) -> None:
    """Add entries until the server is not a primary any more, and collect the confirmed ids."""
    with Wire(url) as wire:
        while isinstance(reply := wire.ask("XADD", "written", "*", "f", "v"), bytes) and reply[:1].isdigit():
            ids.append(reply)


def test_nothing_is_lost_under_writers(pair: list[tuple[ServerThread, Wire]]) -> None:
    """After FAILOVER under writers the new primary has every confirmed write.

    Both continue with one history, without a copy, there and back.
    """
    (first, one), (second, other) = pair
    for old, old_wire, new_wire in ((first, one, other), (second, other, one)):
        ids: list[list[bytes]] = [[], [], []]
        writers = [threading.Thread(target=add, args=(old.url, each)) for each in ids]
        for writer in writers:
            writer.start()
        eventually(lambda ids=ids: all(len(each) > 20 for each in ids), what="they write")
        assert old_wire.ask("FAILOVER", "TIMEOUT", "20000") == b"OK"
        for writer in writers:
            writer.join(30)
        eventually(lambda wire=old_wire: over(wire), what="the former primary follows")
        there = {entry[0] for entry in new_wire.ask("XRANGE", "written", "-", "+")}
        assert {entry for each in ids for entry in each} <= there
        assert info(new_wire)["role"] == "master"
        write(new_wire, 2, 100)
        wait_level(old_wire, new_wire)
        assert state(old_wire.ask) == state(new_wire.ask)
    assert [info(wire)["millstream_full_syncs_taken"] for wire in (other,)] == ["1"]
    assert info(one)["role"] == "master"


def test_the_log_says_who_changed_a_role(
    pair: list[tuple[ServerThread, Wire]], caplog: pytest.LogCaptureFixture
) -> None:
    """REPLICAOF, NO ONE and FAILOVER each log one line with the user and the address of the client."""
    (first, one), (second, other) = pair
    with caplog.at_level(logging.INFO):
        assert other.ask("REPLICAOF", "NO", "ONE") == b"OK"
        assert other.ask("REPLICAOF", "NO", "ONE") == b"OK"  # which changes nothing
        follow(other, int(port_of(first)))
        wait_level(other, one)
        assert one.ask("FAILOVER", "TO", "127.0.0.1", port_of(second)) == b"OK"
        eventually(lambda: over(one), what="the former primary follows")
    said = [record.getMessage() for record in caplog.records]
    for start, count in (
        ("REPLICAOF NO ONE: this server is a primary from offset", 1),
        (f"REPLICAOF: this server follows 127.0.0.1:{port_of(first)} from here on (by default at 127.0.0.1:", 1),
        (f"FAILOVER: writers wait until 127.0.0.1:{port_of(second)} has caught up (by default at 127.0.0.1:", 1),
        ("PSYNC FAILOVER, its primary hands over: this server is a primary from offset", 1),
        ("failover: the replica is the primary now, and this server follows it", 1),
    ):
        assert sum(line.startswith(start) for line in said) == count, (start, said)


def test_what_is_refused(pair: list[tuple[ServerThread, Wire]]) -> None:
    """FAILOVER is refused with Redis's errors: no replicas, unknown replica, nothing to abort, or on a replica."""
    (_, one), (server, other) = pair
    place = ("TO", "127.0.0.1", port_of(server))
    for wire, words, text in (
        (one, ("ABORT",), "ERR No failover in progress."),
        (one, ("TIMEOUT", "0"), "ERR FAILOVER timeout must be greater than 0"),
        (one, ("TO", "127.0.0.1", "1"), "ERR FAILOVER target HOST and PORT is not a replica."),
        (one, (*place, "FORCE"), "ERR FAILOVER with force option requires both a timeout and target HOST and IP."),
        (one, ("TO",), "ERR syntax error"),
        (one, ("ABORT", "FORCE"), "ERR syntax error"),
        (other, (), "ERR FAILOVER is not valid when server is a replica."),
    ):
        assert str(wire.ask("FAILOVER", *words)) == text
    assert str(one.ask("PSYNC", "?", "-1", "FAILOVER")) == "ERR PSYNC FAILOVER can't be sent to a master."
    assert str(other.ask("PSYNC", "x", "5", "FAILOVER")) == "ERR PSYNC FAILOVER replid must match my replid."
    assert other.ask("REPLICAOF", "NO", "ONE") == b"OK"
    assert str(other.ask("FAILOVER")) == "ERR FAILOVER requires connected replicas."


def test_a_replica_that_never_holds_all(pair: list[tuple[ServerThread, Wire]]) -> None:
    """While FAILOVER waits for a lagging replica, writers are paused. ABORT and TIMEOUT resume them.

    A second FAILOVER and REPLICAOF are refused.
    """
    (server, one), (_, other) = pair
    other.ask("CLIENT", "PAUSE", "100000", "WRITE")  # a replica that is paused runs nothing
    one.ask("SET", "k", "it lacks this")
    assert one.ask("FAILOVER") == b"OK"
    assert info(one)["master_failover_state"] == "waiting-for-sync"
    assert str(one.ask("FAILOVER")) == "ERR FAILOVER already in progress."
    assert str(one.ask("REPLICAOF", "NO", "ONE")) == "ERR REPLICAOF not allowed while failing over."
    with Wire(server.url) as writer:
        writer.send("SET", "k", "held back")
        eventually(lambda: b"blocked_clients:1" in one.ask("INFO", "clients"), what="it is held back")
        assert one.ask("GET", "k") == b"it lacks this"
        assert one.ask("FAILOVER", "ABORT") == b"OK"
        assert writer.read() == b"OK"
    assert one.ask("FAILOVER", "TIMEOUT", "10") == b"OK"
    eventually(lambda: info(one)["master_failover_state"] == "no-failover", what="the time is up")
    assert (info(one)["role"], one.ask("SET", "k", "goes on")) == ("master", b"OK")
    other.ask("CLIENT", "UNPAUSE")
    eventually(lambda: is_level(other, one), what="it follows on")


def test_a_target_that_cannot_be_reached(pair: list[tuple[ServerThread, Wire]]) -> None:
    """If FAILOVER cannot connect to its target, the server takes the role back, and the other replica stays."""
    (server, one), (_, other) = pair
    nowhere = free_port()
    with Wire(server.url) as target:
        assert target.ask("REPLCONF", "listening-port", nowhere) == b"OK"
        target.send("PSYNC", "?", "-1")
        mark = b"port=%d,state=online" % nowhere
        eventually(lambda: mark in one.ask("INFO", "replication"), what="it is online")
        assert one.ask("FAILOVER", "TO", "127.0.0.1", nowhere, "TIMEOUT", "10", "FORCE") == b"OK"
        eventually(lambda: failed(one), what="it has its role back")
    assert one.ask("SET", "k", "v") == b"OK"
    eventually(lambda: is_level(other, one), what="the other one follows on")
    assert info(other)["millstream_full_syncs_taken"] == "1"


def failed(wire: Wire) -> bool:
    """Return True if no failover is under way, and the server is a primary whose history has a new name."""
    found = info(wire)
    is_over = (found["master_failover_state"], found["role"]) == ("no-failover", "master")
    return is_over and found["master_replid2"] != "0" * 40


@pytest.mark.realserver
def test_to_a_redis_and_back(tmp_path: Path) -> None:
    """FAILOVER moves the role from ours to a Redis and back, with the same commands."""
    with ServerThread(tmp_path / "ours") as server, Wire(server.url) as ours:
        ours.ask("XADD", "s", "1-1", "f", "v")
        with redis_server(tmp_path / "theirs", *WITH_DEBUG) as redis, Wire(redis.url) as theirs:
            theirs.ask("REPLICAOF", "127.0.0.1", port_of(server))
            eventually(lambda: info(theirs)["master_link_status"] == "up", what="it follows")
            for old, new in ((ours, theirs), (theirs, ours)):
                assert old.ask("FAILOVER", "TIMEOUT", "20000") == b"OK"
                eventually(lambda wire=old: over(wire), what="the former primary follows")
                assert new.ask("XADD", "s", "*", "f", "v")
                wait_level(old, new)
                assert seen(old) == seen(new)
        assert info(ours)["role"] == "master"


def count(url: str, answers: list[int]) -> None:
    """Count up until the server is not a primary any more, and collect the replies."""
    with Wire(url) as wire:
        while isinstance(reply := wire.ask("INCR", "count"), int):
            answers.append(reply)


@pytest.mark.realserver
def test_a_redis_under_writers_hands_over(tmp_path: Path) -> None:
    """FAILOVER from a Redis to Millstream under writers counts each reply once: a paused write gets an error."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path / "theirs", *WITH_DEBUG))
        server = stack.enter_context(ServerThread(tmp_path / "ours"))
        theirs, ours = (stack.enter_context(Wire(each.url)) for each in (redis, server))
        follow(ours, redis.port)
        wait_level(ours, theirs)
        answers: list[list[int]] = [[], [], []]
        writers = [threading.Thread(target=count, args=(redis.url, each)) for each in answers]
        for writer in writers:
            writer.start()
        eventually(lambda: all(len(each) > 20 for each in answers), what="they write")
        assert theirs.ask("FAILOVER", "TO", "127.0.0.1", port_of(server), "TIMEOUT", "20000") == b"OK"
        for writer in writers:
            writer.join(30)
        eventually(lambda: over(theirs), what="the Redis follows")
        assert info(ours)["role"] == "master"
        assert int(ours.ask("GET", "count")) == sum(map(len, answers))


def test_a_primary_that_is_killed_before_the_answer_asks_again(tmp_path: Path) -> None:
    """A primary killed between its new role and the target's reply asks again: it neither leads nor waits for ever."""
    former, target = millstream_server(tmp_path / "a"), millstream_server(tmp_path / "b")
    with former, target, Wire(target.url) as other:
        with Wire(former.url) as one:
            write(one, 1, 50)
            follow(other, former.port)
            wait_level(other, one)
            assert target.process is not None
            target.process.send_signal(signal.SIGSTOP)
            assert one.ask("FAILOVER", "TO", "127.0.0.1", target.port, "FORCE", "TIMEOUT", "100") == b"OK"
            eventually(lambda: info(one)["master_failover_state"] == "failover-in-progress", what="it asks")
        former.kill()
        former.start()
        with Wire(former.url) as one:
            assert info(one)["role"] == "slave"
            target.process.send_signal(signal.SIGCONT)
            eventually(lambda: over(one), what="the former primary follows")
            assert info(other)["role"] == "master"
            other.ask("SET", "after", "v")
            wait_level(one, other)
            assert seen(one) == seen(other)
            assert info(one)["millstream_full_syncs_taken"] == "0"

"""A replica is promoted again and again under writers: confirmed writes are there, and groups unchanged.

A replica that replaces a killed or separated primary misses the last writes: the link delays some of them.
"""

import random
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream.migrate.compare_keys import compare_servers
from replication.test_following_redis import follow, wait_level
from replication.test_redis_follows import info
from support.between import Between
from support.campaign import LIMIT, run
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

PROMOTIONS = 10
"""Promotions in one piece, to and fro between two servers."""
CONFIRMING: dict[str, list[str]] = {
    "wait": ["WAIT", "1", "1000"],
    "waitaof": ["WAITAOF", "0", "1", "3000"],
    "sync": ["PING"],  # sync-replicas 1: any reply confirms
    "none": ["PING"],
}
WAYS = ("kill", "detach", "failover")


@dataclass
class Writer:
    """Adds to a stream of its own, reads it in a group, acknowledges earlier entries, and has that confirmed.

    Attributes:
        key: The name of the stream.
        confirmation: A word of :data:`CONFIRMING`.
        added: Ids whose adding was confirmed.
        delivered: Consumer of each id whose delivery was confirmed.
        acked: Ids whose acknowledgement was confirmed.
        maybe: Acknowledged ids with an unknown outcome.
        units: Number of confirmed units.
        failure: The first error reply or exception that ended it.
    """

    key: str
    confirmation: str
    added: set[bytes] = field(default_factory=set)
    delivered: dict[bytes, bytes] = field(default_factory=dict)
    acked: set[bytes] = field(default_factory=set)
    maybe: set[bytes] = field(default_factory=set)
    units: int = 0
    failure: object = None
    stopped: bool = False

    def work(self, url: str, consumer: bytes) -> None:
        """Run until stopped, or until the server accepts nothing more."""
        held: list[bytes] = []
        self.failure, self.stopped = None, False
        try:
            with Wire(url) as wire:
                while not self.stopped and self.failure is None:
                    self._unit(wire, consumer, held)
        except (OSError, EOFError) as error:
            self.failure = error

    def _unit(self, wire: Wire, consumer: bytes, held: list[bytes]) -> None:
        done = held.pop(0) if len(held) > 2 else b"0-0"
        self.maybe.add(done)
        replies: list[Any] = wire.ask_together(
            [
                ["XADD", self.key, "*", "f", "v" * 40],
                ["XREADGROUP", "GROUP", "g", consumer, "COUNT", "1", "STREAMS", self.key, ">"],
                ["XACK", self.key, "g", done],
                CONFIRMING[self.confirmation],
            ]
        )
        self.failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if self.failure is not None:
            return
        held += (got := [entry[0] for _, entries in replies[1] or [] for entry in entries])
        if self._is_confirmed(replies[3]):
            self.added.add(replies[0])
            self.delivered |= dict.fromkeys(got, consumer)
            self.acked.add(done)
            self.units += 1

    def _is_confirmed(self, reply: Any) -> bool:
        return {"wait": reply == 1, "waitaof": reply in ([0, 1], [1, 1])}.get(self.confirmation, True)

    def check(self, wire: Wire) -> None:
        """Check that confirmed writes are there: entries, group position, owners and counts of pending entries."""
        there = {entry[0] for entry in wire.ask("XRANGE", self.key, "-", "+")}
        assert self.added - there == set()
        pending = {row[0]: row for row in wire.ask("XPENDING", self.key, "g", "-", "+", "1000000")}
        assert self.acked & pending.keys() == set()
        for entry, consumer in self.delivered.items():
            if entry not in self.maybe:
                assert (pending[entry][1], pending[entry][3]) == (consumer, 1), entry
        group = dict(zip(*[iter(wire.ask("XINFO", "GROUPS", self.key)[0])] * 2, strict=True))
        if self.delivered:
            assert number(group[b"last-delivered-id"]) >= max(map(number, self.delivered))

    def forget(self) -> None:
        """Drop the record of confirmed writes."""
        self.added.clear()
        self.delivered.clear()
        self.acked.clear()


def number(entry: bytes) -> tuple[int, ...]:
    """Return an id in a form to compare."""
    return tuple(map(int, entry.split(b"-")))


def promotions(folder: Path, seed: int, count: int) -> int:
    """Run ``count`` promotions with confirmed units before each; check that each new primary has them all."""
    chance = random.Random(seed)
    confirmation = tuple(CONFIRMING)[seed % len(CONFIRMING)]
    options = [
        "--fsync",
        chance.choice(("always", "everysec")),
        "--set",
        f"sync-replicas={int(confirmation == 'sync')}",
    ]
    servers = [millstream_server(folder / name, *options) for name in ("a", "b")]
    writers = [Writer(f"s{at}", confirmation) for at in range(4)]
    link = Between(0, seed)
    try:
        for server in servers:
            server.start()
        pair(servers[0], servers[1], link)
        with Wire(servers[0].url) as wire:
            for writer in writers:
                ready = lambda key=writer.key: wire.ask("XGROUP", "CREATE", key, "g", "0", "MKSTREAM") == b"OK"  # noqa: E731 - one condition of each
                eventually(ready, what="writes are taken")
        for at in range(count):
            before = sum(writer.units for writer in writers)
            way = chance.choice(WAYS)
            promote(servers, link, writers, way, b"c%d" % at, chance.choice((1, 20, 100)))
            assert sum(writer.units for writer in writers) > before
            servers.reverse()
            judge(servers[0], writers, way)
            pair(servers[0], servers[1], link)
        assert compare_servers(servers[0].url, servers[1].url, lambda *_: None).different == []
    finally:
        link.close()
        for server in servers:
            if server.process is not None:
                server.kill()
    return count


def pair(primary: ServerProcess, replica: ServerProcess, link: Between) -> None:
    """Let the second server follow the first over the link, and wait until it has everything."""
    link.target = primary.port
    link.go_on()
    with Wire(primary.url) as one, Wire(replica.url) as other:
        if info(other).get("master_port") != str(link.port):
            follow(other, link.port)
        wait_level(other, one)


def promote(
    servers: Sequence[ServerProcess], link: Between, writers: list[Writer], way: str, consumer: bytes, units: int
) -> None:
    """Under writers, promote the second server in place of the first, and prepare the first to follow.

    Args:
        servers: The primary and its replica.
        link: The link over which the one follows the other.
        writers: The writers to the primary.
        way: One of :data:`WAYS`.
        consumer: A name for the reader.
        units: Least number of units confirmed before it happens.
    """
    old, new = servers
    goal = sum(writer.units for writer in writers) + units
    threads = [threading.Thread(target=writer.work, args=(old.url, consumer)) for writer in writers]
    for thread in threads:
        thread.start()

    def written() -> bool:
        assert any(thread.is_alive() for thread in threads), [writer.failure for writer in writers]
        return sum(writer.units for writer in writers) >= goal

    try:
        eventually(written, 60, what="units are confirmed")
        lead(old, new, link, way)
    finally:
        for writer in writers:
            writer.stopped = True
        for thread in threads:
            thread.join(60)
    if way == "kill":
        old.start()


def lead(old: ServerProcess, new: ServerProcess, link: Between, way: str) -> None:
    """Promote the replica; without a handover it lacks some sent bytes."""
    with Wire(old.url) as one, Wire(new.url) as other:
        if way == "failover":
            assert one.ask("FAILOVER", "TIMEOUT", "20000") == b"OK"
            eventually(lambda: info(other)["role"] == "master", what="the other leads")
            return
        link.stop()
        eventually(lambda: link.holds, what="the replica lacks something")
        if way == "kill":
            old.kill()
        assert other.ask("REPLICAOF", "NO", "ONE") == b"OK"
        if way == "detach":
            link.target = new.port
            link.go_on()
            follow(one, link.port)  # which ends the waiting of who would be told of nothing now


def judge(primary: ServerProcess, writers: list[Writer], way: str) -> None:
    """Check that confirmed writes are on the new primary; without confirmation only FAILOVER promises that."""
    with Wire(primary.url) as wire:
        for writer in writers:
            if writer.confirmation == "none" and way != "failover":
                writer.forget()
            writer.check(wire)


def piece(seed: int) -> int:
    """Run ten promotions of one pair, with one kind of confirmation."""
    with tempfile.TemporaryDirectory() as folder:
        return promotions(Path(folder), seed, PROMOTIONS)


@pytest.mark.parametrize("seed", [1, 2], ids=["waitaof", "sync"])
def test_what_was_confirmed_is_on_the_new_primary(tmp_path: Path, seed: int) -> None:
    """Writes confirmed by WAIT, WAITAOF or sync-replicas are on the promoted replica, with their groups' state."""
    assert promotions(tmp_path, seed, 1) == 1


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_two_hundred_promotions_lose_nothing_confirmed() -> None:
    """Two hundred promotions lose no confirmed write: after a kill, REPLICAOF NO ONE, or a handover."""
    run("repl-promote", piece, range(20), version=3, processes=2, unit="promotions")

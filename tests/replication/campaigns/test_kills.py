"""Primary and replica are killed under load and restarted: nothing acknowledged is missing, both have equal data."""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest

from replication.campaigns.load import Writers, assert_same
from replication.test_following_redis import follow
from replication.test_redis_follows import info
from server.load.crowd import all_work, crowd
from support.campaign import LIMIT, run
from support.servers import ServerProcess, millstream_server
from support.waiting import aeventually, eventually
from support.wire import Wire

POLICIES = ("always", "everysec", "no")


class Pair:
    """A primary and its replica, each of which is killed and started again.

    Args:
        folder: for the data of both.
        seed: the random seed; it also chooses the fsync policies.
        clients: the number of clients that check acknowledged writes.

    Attributes:
        kills: the number of kills.
        partial: starts of the primary after which the replica continued without a copy.
    """

    def __init__(self, folder: Path, seed: int, clients: int) -> None:
        self.kills = self.partial = 0
        self._chance = random.Random(seed)
        self._clients = crowd(clients)
        options = "--set", "repl-backlog-size=256mb", "--fsync"
        self.primary = millstream_server(folder / "primary", *options, POLICIES[seed % 3])
        self.replica = millstream_server(folder / "replica", *options, POLICIES[seed // 3 % 3])
        self._seed = seed

    def run(self, count: int) -> None:
        """Run ``count`` lives of the primary, with kills of the replica in them; then compare both."""
        with self.primary, self.replica:
            with Wire(self.replica.url) as replica:
                follow(replica, self.primary.port)
            self._wait_up()
            with Writers(self.primary.url, self._seed, count=3, spares=True) as writers:
                for _ in range(count):
                    asyncio.run(self._a_life())
                    self._come_back()
                writers.more(100)
            with Wire(self.primary.url) as primary, Wire(self.replica.url) as replica:
                assert_same(replica, primary)
                assert info(primary)["connected_slaves"] == "1"
            for server in (self.primary, self.replica):
                text = server.log.read_text(errors="replace")
                assert "Traceback" not in text, text[-3000:]

    async def _a_life(self) -> None:
        """Write from all clients; kill the replica a few times, and at the end the primary."""
        working = asyncio.create_task(all_work(self._clients, self.primary.port, self._chance))
        is_settled = True
        for _ in range(self._chance.choice((0, 1, 1, 2))):
            await self._more()
            before = await asyncio.to_thread(self._stats)
            await self._kill(self.replica)
            await self._more()
            await asyncio.to_thread(self.replica.start)
            was_settled, is_settled = is_settled, self._chance.random() >= 0.2
            if not is_settled:
                continue  # it is killed again, wherever it is
            await asyncio.to_thread(self._wait_up)
            after = await asyncio.to_thread(self._stats)
            assert after[::2] == before[::2], "full and refused syncs of the replica's start"
            # A start that was cut short may have asked for its sync behind the count before
            assert after[1] - before[1] in ((1,) if was_settled else (1, 2)), "partial syncs of its start"
        await asyncio.to_thread(self._wait_up)
        await self._more()
        await self._kill(self.primary)
        await working

    async def _kill(self, server: ServerProcess) -> None:
        self.kills += 1
        await asyncio.to_thread(server.kill)

    async def _more(self) -> None:
        wanted = self._acknowledged() + self._chance.choice((1, 30, 200))
        await aeventually(lambda: self._acknowledged() >= wanted, what="more is acknowledged")

    def _acknowledged(self) -> int:
        return sum(len(client.acknowledged) for client in self._clients)

    def _stats(self) -> tuple[str, int, str]:
        with Wire(self.primary.url) as primary:
            found = info(primary, "stats")
        return found["sync_full"], int(found["sync_partial_ok"]), found["sync_partial_err"]

    def _come_back(self) -> None:
        """Start the primary again, and check that it has every acknowledged write and all data of its replica."""
        with Wire(self.replica.url) as replica:
            eventually(lambda: info(replica)["master_link_status"] == "down", what="the link is down")
            there = int(info(replica)["slave_repl_offset"])
        self.primary.start()
        with Wire(self.primary.url) as primary:
            recovered = int(info(primary)["second_repl_offset"]) - 1
        with self.primary.client() as client:
            assert sum(one.check(client) for one in self._clients) > 0
        assert there <= recovered, "the replica had what its primary did not"
        self._wait_up()
        full, partial, _ = self._stats()
        if there == recovered:
            assert (full, partial) == ("0", 1), "it had all, and goes on"
        assert partial + int(full) == 1
        self.partial += partial

    def _wait_up(self) -> None:
        with Wire(self.replica.url) as replica:
            eventually(lambda: info(replica)["master_link_status"] == "up", 60, what="the link is up")


def kills(seed: int, count: int = 6, clients: int = 20) -> int:
    """Run ``count`` lives of a primary; return the number of kills."""
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder), seed, clients)
        pair.run(count)
        return pair.kills


def test_some_kills_of_both() -> None:
    """After kills of primary and replica nothing acknowledged is missing, and the replica never has more.

    The replica continues without a copy if it had everything.
    """
    assert kills(0, 1, 5) >= 1


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_two_hundred_kills_of_both() -> None:
    """Two hundred kills under all nine pairs of fsync policies lose nothing; a killed replica needs no copy."""
    run("repl-kills", kills, range(18), version=2, unit="kills")

"""A chain of three behind proxies: its middle is killed, promoted, moved; addresses stay right, no copy is needed."""

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.campaigns.load import Writers, assert_same
from replication.test_following_redis import follow
from replication.test_redis_follows import info
from support.between import Between
from support.campaign import LIMIT, run
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

STORES = (("--fsync", "always"), ("--fsync", "everysec"), ("--fsync", "no"))


class Chain:
    """Three servers, each of which is reached by the others through a proxy alone.

    Args:
        stack: ends them.
        folder: for their data.
        seed: of all chance.

    Attributes:
        servers: in no order.
        order: their numbers, from the primary on.
    """

    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        self._chance, self._seed = random.Random(seed), seed
        self.servers = [
            stack.enter_context(millstream_server(folder / str(at), *self._chance.choice(STORES))) for at in range(3)
        ]
        self.doors = [stack.enter_context(Between(server.port, seed)) for server in self.servers]
        self.order = [0, 1, 2]
        self._link(1, 0)
        self._link(2, 1)
        self.settle()
        self.copies = self.count_copies()

    def _link(self, below: int, above: int) -> None:
        with Wire(self.servers[below].url) as wire:
            follow(wire, self.doors[above].port)

    def count_copies(self, without: int | None = None) -> int:
        """Copies that were asked of all, or of all but one."""
        found = 0
        for at, server in enumerate(self.servers):
            if at != without:
                with Wire(server.url) as wire:
                    found += int(info(wire, "stats")["sync_full"])
        return found

    def settle(self) -> None:
        """Write some; then all hold the same, and know each other by the right addresses."""
        first = self.servers[self.order[0]]
        with Writers(first.url, self._chance.randrange(1 << 20), count=2) as writers:
            writers.more(self._chance.choice((50, 300)))
            if self._chance.random() < 0.5:
                self._chance.choice(self.doors).cut()
            writers.more(50)
        for below, above in zip(self.order[1:], self.order, strict=False):
            with Wire(self.servers[below].url) as replica, Wire(self.servers[above].url) as primary:
                assert_same(replica, primary)
                self._check(replica, primary, below, above)

    def _check(self, replica: Wire, primary: Wire, below: int, above: int) -> None:
        port = self.servers[below].port
        its = info(replica)
        assert (its["master_host"], int(its["master_port"])) == ("127.0.0.1", self.doors[above].port)
        assert replica.ask("ROLE")[1:3] == [b"127.0.0.1", self.doors[above].port]
        line = eventually(lambda: info(primary).get("slave0"), what="it is listed")
        assert line.startswith(f"ip=127.0.0.1,port={port},state=online,")
        assert info(primary)["connected_slaves"] == "1"
        role = primary.ask("ROLE")
        if role[0] == b"master":
            assert [row[:2] for row in role[2]] == [[b"127.0.0.1", b"%d" % port]]

    def kill(self) -> None:
        """The middle is killed and comes back; both sides go on."""
        middle = self.order[1]
        self.servers[middle].kill()
        self.copies = self.count_copies(without=middle)
        self.servers[middle].start()

    def promote(self) -> None:
        """The middle leads; the one that led follows the last."""
        first, middle, last = self.order
        with Wire(self.servers[middle].url) as wire:
            assert wire.ask("REPLICAOF", "NO", "ONE") == b"OK"
        self.order = [middle, last, first]
        self._link(first, last)

    def move(self) -> None:
        """The last goes between the other two."""
        first, middle, last = self.order
        self._link(last, first)
        self._link(middle, last)
        self.order = [first, last, middle]


def chain(seed: int, count: int = 6) -> int:
    """So many changes of a chain; how many there were."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = Chain(stack, folder, seed)
        chance = random.Random(seed)
        for turn in range(count):
            (made.kill, made.promote, made.move)[turn % 3 if turn < 3 else chance.randrange(3)]()
            made.settle()
            assert made.count_copies() == made.copies, "a copy was needed"
        return count


def test_the_middle_of_a_chain_is_killed_and_promoted() -> None:
    """All go on without a copy, and are listed by the address at which they listen; moves are in the campaign."""
    assert chain(0, 2) == 2


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_chains_that_change() -> None:
    """The same in any order, with cuts meanwhile, on any store."""
    run("repl-chain", chain, range(30), unit="changes")

"""A chain of three behind proxies: its middle is killed, promoted, moved. Addresses stay right, no copy is needed."""

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
    """Three servers, each of which the others reach only through a proxy.

    Args:
        stack: ends them.
        folder: for their data.
        seed: the random seed.

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
        """Return the number of copies requested from all servers, or from all but one."""
        found = 0
        for at, server in enumerate(self.servers):
            if at != without:
                with Wire(server.url) as wire:
                    found += int(info(wire, "stats")["sync_full"])
        return found

    def settle(self) -> None:
        """Write, then check that all have the same data and the right addresses of each other."""
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
        """Kill the middle server and start it again; both links continue."""
        middle = self.order[1]
        self.servers[middle].kill()
        self.copies = self.count_copies(without=middle)
        self.servers[middle].start()

    def promote(self) -> None:
        """Promote the middle server; the former primary follows the last."""
        first, middle, last = self.order
        with Wire(self.servers[middle].url) as wire:
            assert wire.ask("REPLICAOF", "NO", "ONE") == b"OK"
        self.order = [middle, last, first]
        self._link(first, last)

    def move(self) -> None:
        """Move the last server between the other two."""
        first, middle, last = self.order
        self._link(last, first)
        self._link(middle, last)
        self.order = [first, last, middle]


def chain(seed: int, count: int = 6) -> int:
    """Make ``count`` changes of a chain; return their number."""
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
    """The middle of a chain of three is killed and promoted, and all continue without a copy.

    Each is listed by its listening address; the campaign also moves servers.
    """
    assert chain(0, 2) == 2


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_chains_that_change() -> None:
    """Chains that change in any order, with cuts meanwhile, on any store, continue without a copy."""
    run("repl-chain", chain, range(30), unit="changes")

"""A primary or its replica loses power at any disk operation: no replica is ahead, and none continues wrongly."""

import random

import pytest

from millstream.clock import ManualClock
from replication.campaigns.machines import CRASHES, Link, Machine, assert_level
from support.campaign import LIMIT, run
from support.simdisk import Crash, PowerCut

POLICIES = ("always", "everysec", "no")
# Operations of a disk until power is lost, at most
FARTHEST = 120


class Pair:
    """Two machines, one of which follows the other; either loses power again and again.

    Args:
        seed: the random seed.
        fsync: the policies of both.

    Attributes:
        ahead: Times that a replica was ahead of its recovered primary.
        went_on: Links that continued without a copy, after a loss.
        copies: Links that needed a copy.
    """

    def __init__(self, seed: int, fsync: tuple[str, str]) -> None:
        self.ahead = self.went_on = self.copies = 0
        self._chance = random.Random(seed)
        clock = ManualClock()
        self.primary, self.replica = (Machine(2 * seed + at, one, clock) for at, one in enumerate(fsync))
        self.replica.follow()
        self._link: Link | None = None

    def live(self) -> None:
        """Run until one of them loses power; then both continue, in either role, and end equal."""
        doomed = self._chance.choice((self.primary, self.replica))
        doomed.disk.crash_after = doomed.disk.operations + self._chance.randint(1, FARTHEST)
        try:
            while True:
                self._step()
        except PowerCut:
            assert doomed.is_cut
        self._drop_link(doomed)
        told, there = self._told, self.replica.offset
        crash = self._chance.choice(CRASHES)
        doomed.lose(crash, self._chance.randrange(1 << 30))
        if doomed is self.primary:
            self._primary_is_back(there, crash)
        elif self.replica.fsync == "always" or crash is Crash.PROCESS:
            assert self.replica.recovered >= told, "what the primary was told is gone"
        if self._chance.random() < 0.5:
            self.primary.write(self._chance.choice((1, 5, 20)))
            self.primary.commit()
        self._level()

    def _primary_is_back(self, there: int, crash: Crash) -> None:
        is_ahead = there > self.primary.recovered
        self.ahead += is_ahead
        if self.primary.fsync == "always" or crash is Crash.PROCESS:
            assert not is_ahead, "the replica had what its primary lost"
        if self._chance.random() < 0.3:
            self.replica.lead()
            self.replica.commit()
            self.primary, self.replica = self.replica, self.primary
            if self._chance.random() < 0.5:
                self.replica.write(3)  # it does not know yet, and writes alone
                self.replica.commit()
            self.replica.follow()

    def _step(self) -> None:
        """Write, commit and send; now and then cut the link or rewrite the log."""
        chance = self._chance
        if self._link is None:
            self._connect()
        self.primary.write(chance.choice((1, 1, 3)))
        self.primary.commit()
        assert self._link is not None
        if chance.random() < 0.8:
            self._link.pump(chance.choice((100, 1000, 1 << 30)))
        self._told = self._link.acked
        if chance.random() < 0.05:
            self._drop_link(None)
        if chance.random() < 0.05:
            chance.choice((self.primary, self.replica)).rewrite()

    def _connect(self) -> None:
        self._told = -1
        self._link = Link(self.primary, self.replica, self._chance)

    def _drop_link(self, lost: Machine | None) -> None:
        if self._link is not None and lost is None:
            self._link.close()
        elif self._link is not None and lost is self.primary:
            self.replica.node.following.lost("cut", 0)
        elif self._link is not None:
            self._link.leave()
        self._link = None

    def _level(self) -> None:
        self._connect()
        assert self._link is not None
        self.went_on += self._link.went_on
        self.copies += not self._link.went_on
        assert_level(self.primary, self.replica, self._link)


def losses(seed: int, count: int = 40) -> tuple[int, Pair]:
    """Let two machines lose power ``count`` times; return the number, and the pair."""
    pair = Pair(seed, (POLICIES[seed % 3], POLICIES[seed // 3 % 3]))
    for _ in range(count):
        pair.live()
    return pair.primary.losses + pair.replica.losses, pair


def test_a_message_is_counted_before_it_is_sent() -> None:
    """PUBLISH and PING, which change only the offset, are logged before they are sent to replicas.

    So a primary that lost power never has a lower offset than its replica.
    """
    clock = ManualClock()
    primary, replica = (Machine(at, "always", clock) for at in range(2))
    replica.follow()
    link = Link(primary, replica, random.Random(0))
    assert_level(primary, replica, link)
    assert primary.ask("PUBLISH", "channel", "message") == 0
    assert link.pump() == 0
    primary.commit()
    assert link.pump() > 0
    primary.lose(Crash.DROPPED, 0)
    assert primary.recovered == replica.offset
    assert Link(primary, replica, random.Random(0)).went_on


def test_power_is_lost_on_either_side() -> None:
    """With ``always`` a replica is never ahead of a primary that lost power. With other policies that is detected."""
    pairs = [losses(seed, 8)[1] for seed in range(5)]
    assert sum(pair.went_on for pair in pairs) >= 5
    assert sum(pair.copies for pair in pairs) >= 5
    assert sum(pair.ahead for pair in pairs) > 0


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_power_is_lost_very_often() -> None:
    """With any pair of policies and any remains on disk, a replica ahead of its primary never goes undetected."""
    run("repl-power", lambda seed: losses(seed)[0], range(180), version=2, unit="losses")

"""Clocks of a primary and its replica that are hours apart, and jump: times and expiry are the primary's."""

import random

import pytest

from millstream.clock import ManualClock, Now
from replication.campaigns.machines import CRASHES, Link, Machine, assert_level
from replication.replicated import state
from support.campaign import LIMIT, run

HOUR = 3_600_000


class Skewed(ManualClock):
    """Clock at a distance from another one; its monotonic time is the same.

    Args:
        base: the other clock.

    Attributes:
        apart: milliseconds that it is ahead.
    """

    def __init__(self, base: ManualClock) -> None:
        super().__init__()
        self._base = base
        self.apart = 0

    def now(self) -> Now:
        wall, mono = self._base.now()
        return Now(wall + self.apart, mono)

    def wall_time(self) -> int:
        return self._base.wall_time() + self.apart

    def mono_time(self) -> int:
        return self._base.mono_time()


def skews(seed: int, count: int = 60) -> int:
    """Change data while the replica's clock jumps, then let it lead; return the number of jumps."""
    chance = random.Random(seed)
    clock = ManualClock()
    other = Skewed(clock)
    primary, replica = Machine(2 * seed, "always", clock), Machine(2 * seed + 1, "always", other)
    replica.follow()
    link = Link(primary, replica, chance)
    for _ in range(count):
        other.apart = chance.randint(-9 * HOUR, 9 * HOUR)
        primary.write(chance.choice((1, 5, 20)))
        primary.commit()
        link.pump()
        keys = sizes(replica)
        replica.node.tick(replica.now)
        replica.node.outbox.clear()
        assert sizes(replica) == keys, "the replica has let a key go by its own clock"
        if chance.random() < 0.1:
            link.close()
            replica.lose(chance.choice(CRASHES), chance.randrange(1 << 30))
            link = Link(primary, replica, chance)
            assert link.went_on
    other.apart = 0  # keys are hidden by the clock of whoever is asked
    assert_level(primary, replica, link)
    shown = state(primary.ask)
    other.apart = -HOUR
    replica.lead()
    added = replica.ask("XADD", "s-new", "*", "f", "v")
    assert int(added.partition(b"-")[0]) == replica.now.wall
    other.apart = 0
    now = state(replica.ask)
    assert {place: now[place] for place in shown} == shown
    return count


def sizes(machine: Machine) -> list[int]:
    """Return the number of keys in each database, expired ones included."""
    return [len(db.keys) for db in machine.node.keyspace.databases]


def test_clocks_that_are_apart() -> None:
    """Delivery times and expiry are the primary's, whatever the replica's clock shows."""
    assert skews(0, 25) == 25


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_clocks_that_are_apart_and_jump() -> None:
    """With many seeds of clocks that jump, times and expiry are the primary's."""
    run("repl-skew", skews, range(60), unit="jumps")

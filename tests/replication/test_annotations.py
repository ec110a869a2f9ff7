"""What is said between servers of ours beside the words: both hold the same, and nothing of it is believed unseen."""

import random
from collections.abc import Iterator

import pytest

from millstream.engine.ids import pack as packed_id
from millstream.engine.serialization import plain
from millstream.engine.serialization.dump import dump
from millstream.node.following.obeying import DivergedError
from millstream.replication.annotations import MARK
from millstream.replication.dialect import DIALECTS
from millstream.replication.units import packed
from replication.exactness import Replica, fed, held
from replication.replicated import Changes
from replication.test_words import together
from support.inprocess import World


def words_of(seed: int, dialect: str, annotate: str, count: int = 300) -> Iterator[tuple[World, Replica]]:
    """A primary that runs random commands, and its replica, level after each few."""
    world = World({"repl-dialect": dialect, "repl-annotate": annotate}, logged=bool(seed % 2))
    told = fed(world)
    replica, client, chance = Replica(told, world.clock), world.client(), random.Random(seed)
    changes = Changes(seed, world.clock.now().wall, newest=True)
    for _ in range(count // 25):
        together(client, list(changes.some(25)), chance)
        replica.catch_up()
        yield world, replica
        world.clock.advance(700)
        world.node.tick(world.clock.now())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("annotate", ["lossy", "always"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_ours_hold_the_same_to_the_last_byte(seed: int, dialect: str, annotate: str) -> None:
    """Messages of producers, the order of released entries, counters and nodes; with ``always`` all times too."""
    times = annotate == "always"
    for world, replica in words_of(seed, dialect, annotate):
        replica.catch_up()
        assert held(replica.node.keyspace, times=times) == held(world.node.keyspace, times=times)

"""Any commands, for each version of replica, build the same data there, on ours to the last byte."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from millstream.replication.dialect import DIALECTS
from replication.exactness import held
from replication.replicated import state
from replication.test_annotations import words_of
from replication.test_words import follow, read
from support.campaign import LIMIT, run
from support.servers import redis_server
from support.wire import Wire

pytestmark = pytest.mark.realserver

COMMANDS = 1000


def piece(seed: int) -> int:
    """Run our replica with annotations, and a Redis 7.0 with and without them; return the number of commands."""
    for annotate in ("lossy", "always"):
        times = annotate == "always"
        for world, replica in words_of(seed, DIALECTS[seed % len(DIALECTS)], annotate, COMMANDS):
            assert held(replica.node.keyspace, times=times) == held(world.node.keyspace, times=times)
    with TemporaryDirectory() as folder, redis_server(Path(folder)) as server, Wire(server.url) as redis:
        offset = None
        for world, replica in words_of(seed, "7.0", "never" if seed % 2 else "always", COMMANDS):
            feed, client = world.node.primary.feed, world.client()
            assert feed is not None
            offset = follow(redis, feed, feed.backlog.first if offset is None else offset)
            shown = lasting(state(lambda *words, asks=client: read(asks.raw(*words))))
            assert lasting(state(redis.ask)) == shown
            if seed % 2:
                assert lasting(state(asking(replica))) == shown
            redis.ask("SELECT", max(feed.db, 0))
    return 3 * COMMANDS


def asking(replica: Any) -> Any:
    """Return a function that runs a client's command on a replica."""
    session = replica.node.sessions.open(replica.clock.now())

    def ask(*words: bytes) -> Any:
        outcome = replica.node.execute(session, list(words), replica.clock.now())
        return read(b"".join(map(bytes, outcome.buffers)))

    return ask


def lasting(values: dict[tuple[int, bytes], Any]) -> dict[tuple[int, bytes], Any]:
    """Return values without those that 7.0's commands lose: the largest deleted id, and records of missing entries."""
    for expires, value in values.values():
        del expires
        if isinstance(value, tuple):
            counters, entries, groups = value
            counters.pop(b"max-deleted-entry-id")
            there = {entry for entry, _ in entries}
            for _, pending, consumers in groups.values():
                for rows in (pending, *consumers.values()):
                    rows[:] = [row for row in rows if row[0] in there]
    return values


def test_one_sequence_of_commands() -> None:
    """A replica of ours is equal to the last byte.

    A Redis, or ours without annotations, lacks only what 7.0 cannot express.
    """
    assert piece(1) == 3 * COMMANDS


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
def test_many_sequences_of_commands() -> None:
    """In 200 random sequences, our replicas are equal to the last byte. A Redis 7.0 lacks what it cannot express."""
    run("repl-words", piece, range(200), unit="commands", processes=2)

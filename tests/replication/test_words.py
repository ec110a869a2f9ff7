"""The commands for replicas, run by a real server, build the same data as ours."""

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest

from replication.exactness import fed
from replication.replicated import SCRIPT, Changes, state
from support.inprocess import Client, World
from support.servers import redis_server
from support.wire import Wire, pack

pytestmark = pytest.mark.realserver


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    with redis_server(Path(tmp_path_factory.mktemp("redis"))) as server, Wire(server.url) as wire:
        yield wire


def together(client: Client, commands: list[list[bytes]], chance: random.Random) -> None:
    """Run commands as a connection does: plain ones in runs."""
    node, now = client.world.node, client.world.clock.now()
    for words in commands:
        batches = node.batches
        if chance.random() < 0.5 and batches.takes(client.session) and client.session.queue is None:
            run = batches.run(client.session, pack(*words), 0, now.wall)
            if run.commands:
                continue
        node.execute(client.session, words, now)
        client.world.deliver()


def read(data: bytes) -> Any:
    """Return a reply decoded as a connection would."""
    reader = hiredis.Reader()
    reader.feed(data)
    return reader.gets()


def follow(redis: Wire, feed: Any, offset: int) -> int:
    """Run the stream since an offset on the real server, which must refuse nothing."""
    backlog = feed.backlog
    backlog.sendable = backlog.end
    while data := backlog.read(offset, 1 << 20):
        redis.socket.sendall(data)
        offset += len(data)
    redis.send("ECHO", "end")
    errors = list(itertools.takewhile(lambda reply: reply != b"end", iter(redis.read, b"end")))
    flat = [each for reply in errors for each in (reply if isinstance(reply, list) else [reply])]
    wrong = [str(each) for each in flat if isinstance(each, Exception)]
    assert wrong == []
    return offset


@pytest.mark.parametrize("seed", range(6))
def test_what_replicas_are_told_makes_the_same_data(seed: int, redis: Wire) -> None:
    """A Redis replica has the same data after any commands, one by one, in runs, transactions and scripts."""
    redis.ask("FLUSHALL")
    world = World(logged=bool(seed % 2))
    world.clock.wall = int(time.time() * 1000) - 60_000  # what is to expire does so on the real server's clock
    told, client, chance = fed(world), world.client(), random.Random(seed)
    changes, offset = Changes(seed, world.clock.now().wall), told.feed.offset
    for _ in range(12):
        together(client, list(changes.some(50)), chance)
        world.clock.advance(3)
        offset = follow(redis, told.feed, offset)
        assert state(redis.ask) == state(lambda *words: read(client.raw(*words)))
        redis.ask("SELECT", max(told.feed.db, 0))


def test_trimming_of_acknowledged_entries_only(redis: Wire) -> None:
    """XTRIM ACKED is trimming for a replica at the stream's front, and deletion in its middle."""
    redis.ask("FLUSHALL")
    world = World()
    told, client = fed(world), world.client()
    for at in range(1, 7):
        client.call("XADD", "s", f"{at}-1", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", "2-1")
    client.call("XTRIM", "s", "MAXLEN", "3", "ACKED")
    offset = follow(redis, told.feed, told.feed.backlog.first)
    assert state(redis.ask) == state(lambda *words: read(client.raw(*words)))
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    client.call("XACK", "s", "g", "4-1")
    client.call("XTRIM", "s", "MAXLEN", "2", "ACKED")
    follow(redis, told.feed, offset)
    ours, theirs = state(lambda *words: read(client.raw(*words))), state(redis.ask)
    assert (ours[0, b"s"][1][0].pop(b"max-deleted-entry-id"), theirs[0, b"s"][1][0].pop(b"max-deleted-entry-id")) == (
        b"0-0",
        b"4-1",
    )
    assert theirs == ours


def test_a_value_that_was_restored(redis: Wire) -> None:
    """A RESTORE of our own payload reaches a Redis replica as Redis's payload of the value."""
    redis.ask("FLUSHALL")
    world = World()
    told, client = fed(world), world.client()
    changes = Changes(3, world.clock.now().wall)
    together(
        client,
        [words for words in changes.some(300) if words[0] not in {b"FLUSHDB", b"MULTI", b"EXEC"}],
        random.Random(3),
    )
    client.call("SELECT", 0)
    for key in read(client.raw("KEYS", "*")):
        payload = read(client.raw("DUMP", key))
        client.call("RESTORE", key, 0, payload, "REPLACE")
    follow(redis, told.feed, told.feed.backlog.first)
    ours = state(lambda *words: read(client.raw(*words)))
    assert {type(value[1]) for value in ours.values()} == {bytes, list, tuple}
    assert state(redis.ask) == ours


def test_a_restored_group_that_has_read_more_than_was_added(redis: Wire) -> None:
    """A restored group's entries-read above the number added reaches a replica by a further command."""
    redis.ask("FLUSHALL")
    world = World()
    told, client = fed(world), world.client()
    for line in ("XADD s 1-1 f v", "XGROUP CREATE s g 1-1 ENTRIESREAD 9"):
        client.raw(*line.split())
    client.call("RESTORE", "s", 0, read(client.raw("DUMP", "s")), "REPLACE")
    follow(redis, told.feed, told.feed.backlog.first)
    assert state(redis.ask) == state(lambda *words: read(client.raw(*words)))


def test_a_script_that_ran_before_the_first_replica_came(redis: Wire) -> None:
    """Without a log, changes by a script before the first replica came are not sent to it later."""
    redis.ask("FLUSHALL")
    world = World(logged=False)
    client = world.client()
    client.call("XGROUP", "CREATE", "u", "g", "0", "MKSTREAM")
    client.call("EVAL", SCRIPT, 2, "u", "k", "before")
    told = fed(world)
    redis.ask("XGROUP", "CREATE", "u", "g", "0", "MKSTREAM")
    client.call("EVAL", SCRIPT, 2, "u", "k", "behind")
    follow(redis, told.feed, told.feed.backlog.first)
    assert (redis.ask("XLEN", "u"), redis.ask("GET", "k")) == (1, b"behind")

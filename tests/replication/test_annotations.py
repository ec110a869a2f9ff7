"""Annotations, which our servers send beside the commands: both have the same data, and each annotation is checked."""

import contextlib
import random
import time
from collections.abc import Iterator

import pytest

from millstream.engine.ids import pack as packed_id
from millstream.engine.serialization import plain
from millstream.engine.serialization.dump import dump, load
from millstream.errors import ProtocolError
from millstream.node.obeying import DivergedError, NotHeldError
from millstream.replication.annotations import MARK
from millstream.replication.dialect import DIALECTS
from millstream.replication.units import packed
from replication.exactness import Replica, fed, held
from replication.replicated import Changes
from replication.test_words import together
from support.inprocess import World


def words_of(seed: int, dialect: str, annotate: str, count: int = 300) -> Iterator[tuple[World, Replica]]:
    """Yield a primary that runs random commands, and its replica, level after every few commands."""
    world = World({"repl-dialect": dialect, "repl-annotate": annotate}, logged=bool(seed % 2))
    world.clock.wall = int(time.time() * 1000) - 300_000  # what is to expire does so on a real server's clock
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
    """A replica of ours equals its primary in messages, released entries, counters and nodes.

    With ``repl-annotate always`` all times are equal too.
    """
    times = annotate == "always"
    for world, replica in words_of(seed, dialect, annotate):
        replica.catch_up()
        assert held(replica.node.keyspace, times=times) == held(world.node.keyspace, times=times)


def test_without_annotations_the_test_above_would_see_it() -> None:
    """Without annotations, some random commands leave a replica different, so the comparison above is able to fail."""
    assert any(
        held(replica.node.keyspace, times=False) != held(world.node.keyspace, times=False)
        for world, replica in words_of(0, "7.0", "never")
    )


@pytest.mark.parametrize("annotate", ["lossy", "always"])
def test_one_that_leads_goes_on_as_the_former_would_have(annotate: str) -> None:
    """A promoted replica knows messages, limits and released entries in order, and counts nothing as deleted."""
    world = World({"repl-annotate": annotate})
    told = fed(world)
    client, replica = world.client(), Replica(told, world.clock)
    for words in (
        "XGROUP CREATE s g 0 MKSTREAM",
        "XCFGSET s IDMP-DURATION 7 IDMP-MAXSIZE 9",
        *(f"XADD s {at}-1 f v" for at in range(1, 7)),
        "XADD s IDMP p m * f v",
        "XADD s IDMPAUTO p * a 1",
        "XREADGROUP GROUP g c COUNT 5 STREAMS s >",
        "XACK s g 3-1",
        "XTRIM s MAXLEN 7 ACKED",
        "XNACK s g FAIL IDS 2 5-1 2-1",
        "XNACK s g FAIL IDS 1 1-1",
    ):
        client.raw(*words.split())
    replica.catch_up()
    replica.node.following.lead(world.clock.now())
    asked = (
        "XADD s IDMP p m * f v",
        "XADD s IDMPAUTO p * a 1",
        "XINFO STREAM s",
        "XINFO GROUPS s",
        "XREADGROUP GROUP g d COUNT 4 CLAIM 0 STREAMS s >",
    )
    heir = replica.node.sessions.open(world.clock.now())
    for line in asked:
        outcome = replica.node.execute(heir, line.encode().split(), world.clock.now())
        assert outcome is not None
        assert b"".join(map(bytes, outcome.buffers)) == client.raw(*line.split())


def test_those_that_follow_a_replica_get_the_same_bytes() -> None:
    """Annotations go down a chain of replicas unchanged."""
    world = World({"repl-annotate": "always"})
    told = fed(world)
    client, middle = world.client(), Replica(told, world.clock)
    client.raw("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    data = middle.catch_up()
    relay = middle.node.following.relay.backlog
    relay.sendable = relay.end
    assert (MARK in data, relay.read(relay.first, 1 << 20)) == (True, data)


def said(covers: object, op: object, *arguments: object) -> bytes:
    return packed([b"PING", MARK + plain.pack([covers, op, *arguments])])


ONE, TWO, NINE = packed_id(1 << 64), packed_id(2 << 64), packed_id(9 << 64)
WRONG = {
    "no payload": packed([b"PING", MARK]),
    "damaged": packed([b"PING", MARK + b"\x06\xff\xff\xff"]),
    "no list": packed([b"PING", MARK + plain.pack(1)]),
    "too short": packed([b"PING", MARK + plain.pack([0, b"xcfg", 0])]),
    "a role": said(0, b"role", 0, b"host", 6379),
    "a history": said(0, b"hist", -1, b"x" * 40, 5, b"", -1),
    "an offset": said(0, b"off", 0, 5),
    "all data": said(0, b"flush", 0, b"k"),
    "a string": said(0, b"set", 0, b"k", b"v", None),
    "an unknown one": said(0, b"xwhatever", 0, b"s"),
    "a name of another type": said(0, 5, 0, b"s", 1, 1),
    "a database too high": said(0, b"xcfg", 16, b"s", 1, 1),
    "a key that is none": said(0, b"xcfg", 0, 5, 1, 1),
    "bounds too low": said(0, b"xcfg", 0, b"s", 0, 1),
    "a truth for a number": said(0, b"xcfg", 0, b"s", True, 1),
    "one argument too many": said(0, b"xcfg", 0, b"s", 1, 1, 1),
    "no stream": said(0, b"xcfg", 0, b"none", 1, 1),
    "another type": said(0, b"xcfg", 0, b"text", 1, 1),
    "a stream again": said(0, b"xnew", 0, b"s", 1, 1),
    "half an id": said(0, b"xidmp", 0, b"s", b"p", b"m", b"x" * 15),
    "no producer": said(0, b"xidmp", 0, b"s", b"", b"m", ONE),
    "an entry that is not there": said(0, b"xdrop", 0, b"s", NINE, None),
    "no group": said(0, b"cseen", 0, b"s", b"none", b"c", 1),
    "a time too late": said(0, b"cseen", 0, b"s", b"g", b"c", 2**63),
    "a time before all": said(0, b"cseen", 0, b"s", b"g", b"c", -1),
    "counts for other entries": said(0, b"gclaim", 0, b"s", b"g", b"c", 1, 1, ONE, [1, 2]),
    "an entry twice": said(0, b"gclaim", 0, b"s", b"g", b"c", 1, 1, ONE + ONE, [1, 1]),
    "a claim of nothing": said(0, b"gclaim", 0, b"s", b"g", b"c", 1, 1, NINE, [1]),
    "counts that are none": said(0, b"gnack", 0, b"s", b"g", ONE, [b"1"]),
    "a release of nothing": said(0, b"gnack", 0, b"s", b"g", NINE, [1]),
    "what is another's": said(0, b"gagain", 0, b"s", b"g", b"other", 1, ONE),
    "what is not pending": said(0, b"gagain", 0, b"s", b"g", b"c", 1, TWO),
    "no consumer": said(0, b"gagain", 0, b"s", b"g", b"none", 1, ONE),
    "a damaged payload": said(0, b"restore", 0, b"k", b"\x81nothing", None),
    "an empty payload": said(0, b"restore", 0, b"k", b"", None),
    "more than came": said(2, b"xcfg", 0, b"s", 5, 5) + packed([b"PING"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_stops_the_link(name: str) -> None:
    """An annotation that no command could cause stops the link, and is not applied."""
    world = World()
    told = fed(world)
    client, replica = world.client(), Replica(told, world.clock)
    for words in ("XADD s 1-0 f v", "XADD s 2-0 f v", "XGROUP CREATE s g 0", "SET text v"):
        client.raw(*words.split())
    client.raw("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">")
    client.raw("XGROUP", "CREATECONSUMER", "s", "g", "other")
    replica.catch_up()
    before = held(replica.node.keyspace, times=True)
    with pytest.raises(DivergedError, match="annotation"):
        replica.hear(WRONG[name])
    assert replica.node.following.divergences == 1
    if name != "more than came":
        assert held(replica.node.keyspace, times=True) == before


@pytest.mark.parametrize("seed", range(20))
def test_damaged_annotations_never_break_the_node(seed: int) -> None:
    """An annotation with changed bytes is refused, or does what a valid one could do."""
    chance = random.Random(seed)
    world = World({"repl-annotate": "always"})
    told = fed(world)
    client, replica = world.client(), Replica(told, world.clock)
    together(client, list(Changes(seed, world.clock.now().wall, newest=True).some(120)), chance)
    data = replica.catch_up()
    marks = [at for at in range(len(data)) if data.startswith(MARK, at)]
    twin = Replica(told, world.clock)
    spoilt = bytearray(data)
    for at in chance.sample(marks, min(5, len(marks))):
        spoilt[at + len(MARK) + chance.randrange(2, 12)] ^= 1 << chance.randrange(8)
    with contextlib.suppress(DivergedError, NotHeldError, ProtocolError):
        twin.hear(bytes(spoilt))
    for value in held(twin.node.keyspace, times=True).values():
        assert dump(load(value[0])) == value[0]

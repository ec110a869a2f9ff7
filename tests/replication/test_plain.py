"""The native core's part of replication: plain commands of a primary, and bytes for replicas.

Both are compared with the Python code that they replace.
"""

from random import Random

import msgpack
import pytest

from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.node.log import codec, feeding
from millstream.node.node import Node
from millstream.node.obeying import DivergedError, NotHeldError
from millstream.replication.units import EXEC, MULTI, packed
from replication.test_obeying import Follower
from support import needs

native = needs.native_core(at_work=True)


def ordinary() -> Follower:
    """Return a follower that runs all commands in Python."""
    follower = Follower()
    follower.node.batches._runner = None  # noqa: SLF001 - no setting switches the native runner off alone
    return follower


def seen(node: Node) -> list[object]:
    """Return everything that replication must leave equal."""
    found: list[object] = [node.keyspace.history, node.stats.dirty]
    for db in node.keyspace.databases:
        for key, value in db.keys.items():
            if not isinstance(value, Stream):
                found.append((db.index, key, bytes(value.data)))  # type: ignore[attr-defined]  # a string
                continue
            found.append((db.index, key, value.last_id, value.entries_added, value.length))
            for name, group in value.groups.items():
                found.append((name, group.last_id, group.entries_read))
                found += [(r.id, r.consumer and r.consumer.name, r.time, r.count) for r in group.order]
                found += [(c.name, c.seen, c.active) for c in group.consumers.values()]
    return found


def lines(random: Random, wall: int, count: int) -> list[bytes]:
    """Return commands that a primary might send, mostly plain ones, as units."""
    units, ids = [], [1]

    def one() -> bytes:
        entry = random.choice([ids[0] + 1, ids[0] + 5, ids[0] + 5, random.randint(1, ids[0] + 1)])
        key = random.choice(["s", "s", "s", "t"])
        group, consumer = random.choice(["g", "h"]), random.choice(["a", "b"])
        time = wall + random.randint(-5, 5)
        some = sorted({random.randint(1, ids[0] + 1) for _ in range(random.randint(1, 4))})
        named = " ".join(f"{each}-0" for each in some)
        kind = random.random()
        if kind < 0.4:
            ids[0] = max(ids[0] + 1, entry)
            return f"XADD {key} {ids[0]}-0 f v{'x' * random.choice([0, 1, 300])}".encode()
        if kind < 0.7:
            last = f" LASTID {some[-1]}-0" if random.random() < 0.6 else ""
            options = f"TIME {time} RETRYCOUNT {random.randint(0, 3)} FORCE JUSTID{last}"
            return f"XCLAIM {key} {group} {consumer} 0 {named} {options}".encode()
        return random.choice(
            [
                f"XACK {key} {group} {named}",
                f"XACK {key} {group} {named}",
                f"XGROUP SETID {key} {group} {ids[0]}-0 ENTRIESREAD {random.randint(0, ids[0])}",
                f"SET k {entry}",
                f"SET l {entry} PXAT {wall + 5}",
                f"XDEL {key} {some[0]}-0",
                f"XTRIM {key} MAXLEN = {random.randint(3, 30)}",
                f"XGROUP CREATECONSUMER {key} {group} {consumer}",
            ]
        ).encode()

    for _ in range(count):
        many = [packed(one().split()) for _ in range(random.choice([0, 1, 1, 2, 20]))]
        if random.random() < 0.5:
            units += many
        else:
            units.append(MULTI + b"".join(many) + EXEC)
        if random.random() < 0.05:
            units.append(packed([b"SELECT", random.choice([b"0", b"0", b"3"])]))
        if random.random() < 0.05:
            units.append(packed([b"PING"]))
    return units


@pytest.mark.parametrize("seed", range(20))
def test_the_native_core_obeys_as_python_does(seed: int) -> None:
    """The native core applies a primary's commands like Python: same data, counts, offset and failures."""
    random = Random(seed)
    mine, theirs = ordinary(), Follower()
    first = [b"XADD s 1-0 f v", b"XADD t 1-0 f v"]
    first += [b"XGROUP CREATE %b %b 0" % (key, group) for key in (b"s", b"t") for group in (b"g", b"h")]
    begin = b"".join(packed(line.split()) for line in first)
    data = (
        packed([b"SELECT", b"3"])
        + begin
        + packed([b"SELECT", b"0"])
        + begin
        + b"".join(lines(random, mine.clock.wall, 120))
    )
    at = 0
    failed = [False, False]
    while at < len(data) and not any(failed):
        size = random.choice([1, 7, 40, 500, 5000])
        for place, follower in enumerate((mine, theirs)):
            follower.received.feed(data[at : at + size])
            try:
                while follower.obedience.run(follower.received, follower.clock.now()):
                    pass
            except DivergedError:
                failed[place] = True
        at += size
        assert failed[0] == failed[1]
        assert seen(mine.node) == seen(theirs.node), at
    assert not any(failed)


def test_plain_commands_are_not_run_one_by_one() -> None:
    """A replica runs plain commands together, alone and in MULTI, so it keeps up with a Redis at full rate."""
    follower = Follower()
    follower.hear("XADD s 1-0 f v", "XGROUP CREATE s g 0", "XGROUP CREATECONSUMER s g c", "XADD s 2-0 f v")
    follower.hear("XCLAIM s g c 0 1-0 TIME 5 RETRYCOUNT 1 FORCE JUSTID LASTID 1-0")

    def refuse(*_: object) -> None:
        raise AssertionError("one by one")

    follower.node.run = refuse  # type: ignore[method-assign]  # a trap
    follower.hear("XADD s 3-0 f v", "XCLAIM s g c 0 2-0 TIME 5 RETRYCOUNT 1 FORCE JUSTID LASTID 2-0")
    follower.hear("XADD s 4-0 f v", "XGROUP SETID s g 2-0 ENTRIESREAD 2", "XACK s g 1-0", "SET k v", whole=True)
    assert follower.ask("XLEN s") == b":4\r\n"
    assert follower.node.following.offset > 0


def test_nothing_of_a_transaction_is_run_that_has_what_does_not_exist_here() -> None:
    """A transaction with a command that Millstream lacks runs none of its commands, plain ones included."""
    follower = Follower()
    follower.hear("XADD s 1-0 f v")
    for stranger in ("PFADD p a", "XGROUP NOPE s g 0 ENTRIESREAD 1", "GET k"):
        with pytest.raises(NotHeldError):
            follower.hear("XADD s 2-0 f v", stranger, "XADD s 3-0 f v", whole=True)
        assert follower.ask("XLEN s") == b":1\r\n"
        follower.received = type(follower.received)()


def test_a_client_that_waits_is_served_by_what_comes_in() -> None:
    """XREAD BLOCK on a replica is served by an addition inside a replicated transaction."""
    follower = Follower()
    follower.hear("XADD s 1-0 f v")
    waiting = follower.node.execute(follower.client, b"XREAD BLOCK 0 STREAMS s 1-0".split(), follower.clock.now())
    assert waiting is None
    follower.hear("SET k v", "XADD s 2-0 f v", "XADD s 3-0 f v", whole=True)
    (session, outcome), *_ = follower.node.outbox
    assert isinstance(session, Session)
    assert b"2-0" in b"".join(map(bytes, outcome.buffers))
    assert follower.ask("XLEN s") == b":3\r\n"


def told(record: bytes, selected: int, uncounted: int) -> tuple[bytes, int, bytes]:
    """Return Python's bytes for a record after database ``selected``, and the record with its count."""
    space = Keyspace()
    space.history.db = selected
    feed = feeding.Feed(space, Config({}))
    feed.note_run(record)
    feed.close()
    feed.appended(0)
    feed.backlog.kept(0)
    data = feed.backlog.read(0, 1 << 20)
    return data, feed.db, codec.add(record, ("off", feed.db, len(data) + uncounted))


@pytest.mark.parametrize("seed", range(20))
def test_the_native_core_tells_replicas_what_python_tells(seed: int) -> None:
    """The native core sends replicas the same bytes as Python, and leaves records that it does not support."""
    random = Random(seed)

    def step() -> tuple[object, ...]:
        word = random.randbytes(random.choice([0, 3, 200, 300]))
        entry = random.randbytes(16)
        return random.choice(
            [
                ("xadd", 3, word, entry, [word, b"v"] * random.choice([1, 20]), random.random() < 0.5, None),
                ("set", 3, b"k", word, None),
                ("gack", 3, b"s", word, entry * random.choice([1, 9])),
            ]
        )

    for count in (1, 1, 2, 15, 40):
        record = codec.pack(random.choice([5, 2**41]), [step() for _ in range(count)])
        for selected, uncounted in ((-1, 0), (0, 14), (3, 1 << 40)):
            assert native.tell_plain(record, selected, uncounted) == told(record, selected, uncounted)
        for cut in range(0, len(record), 1 + len(record) // 200):
            assert native.tell_plain(record[:cut], 0, 0) is None
    for other in (
        ("set", 0, b"k", b"v", 5),
        ("xadd", 0, b"s", bytes(16), [b"f", b"v"], False, [b"p", b"m"]),
        ("cseen", 0, b"s", b"g", b"c", 5),
        ("gack", 0, b"s", b"g", bytes(17)),
    ):
        assert native.tell_plain(codec.pack(5, [("set", 0, b"k", b"v", None), other]), 0, 0) is None
    two = [("set", 0, b"k", b"v", None), ("set", 1, b"k", b"v", None)]
    assert native.tell_plain(msgpack.packb((1, 5, two)), 0, 0) is None


@pytest.mark.parametrize("tell", [feeding.py_tell_plain, native.tell_plain])
def test_each_record_selects_while_a_copy_is_made(monkeypatch: pytest.MonkeyPatch, tell: object) -> None:
    """While a copy is made, each record of the native core selects its database too."""
    monkeypatch.setattr(feeding, "tell_plain", tell)
    feed = feeding.Feed(Keyspace(), Config({}))
    feed.selects = True
    for _ in range(2):
        begun = feed.offset
        feed.tell_run(codec.pack(5, [("set", 0, b"k", b"v", None)]))
        feed.appended(1)
        feed.backlog.kept(1)
        assert feed.backlog.read(begun, 100).startswith(packed([b"SELECT", b"0"]))

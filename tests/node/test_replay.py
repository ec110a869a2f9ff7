"""Records applied by the native core leave the keyspace that applying their transitions one by one leaves."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgpack
import pytest

from millstream.engine import transitions
from millstream.engine.history import ReplicationState
from millstream.engine.ids import pack
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.node.log import codec, rebuilding, replay
from support import campaign, needs

assert transitions.MODULES, "importing them is what matters"
native = needs.native_core(at_work=True)

Step = tuple[Any, ...]


def streams(*keys: bytes) -> Keyspace:
    """Return a keyspace of streams in two databases, of one entry each, since the first opens a node."""
    space = Keyspace()
    for db in (0, 3):
        for key in keys:
            space.apply(("xnew", db, key, 0, 0))
            space.apply(("xadd", db, key, pack(2 << 64), [b"f", b"v"], True, None))
    return space


def additions(random: Random, last: int) -> list[Step]:
    """Return steps as XADD logs them, with words and numbers of every length that MessagePack encodes differently."""
    steps: list[Step] = []
    for _ in range(random.choice([1, 1, 2, 15, 16, 40])):
        last += random.choice([1, 1 << 64, 300])
        size = random.choice([0, 5, 31, 32, 255, 256, 70000 if random.random() < 0.1 else 3])
        words = [random.randbytes(size) for _ in range(random.choice([2, 4, 14, 16, 40]))]
        db, key = random.choice([0, 3]), random.choice([b"a", b"b" * 300])
        steps.append(("xadd", db, key, pack(last), words, random.random() < 0.2, None))
    return steps


def facts(space: Keyspace) -> list[tuple[Any, ...]]:
    """Return the facts of each stream that an addition changes."""
    found = [(base.index, key, value) for base in space.databases for key, value in base.keys.items()]
    return [(db, key, s.last_id, s.entries_added, s.max_deleted) for db, key, s in found if isinstance(s, Stream)]


def short(payload: bytes, space: Keyspace) -> int:
    """Apply a record by the native core; return -1 if it must be applied by steps."""
    wall: int = native.apply_plain(space.databases, Stream, payload, space.history)
    return wall


def by_steps(payload: bytes, space: Keyspace) -> None:
    """Apply a record step by step, as specified."""
    for step in codec.unpack(payload)[1]:
        space.apply(tuple(step))


WALLS = (0, 127, 128, 70000, 1 << 33, 1795374684834)


def leave_the_same(seed: int) -> int:
    """Apply records of one step and of many, with additions of all shapes, both ways; return their number."""
    random = Random(seed)
    mine, theirs = streams(b"a", b"b" * 300), streams(b"a", b"b" * 300)
    last = 5 << 64
    for wall in WALLS:
        steps = additions(random, last)
        last = int.from_bytes(steps[-1][3], "big")
        if seed % 2:  # as while replicas follow
            steps.append(("off", random.choice([0, 3, 200]), random.choice([0, 90, 70000, 1 << 40])))
        payload = codec.pack(wall, steps)
        assert short(payload, theirs) == wall, seed
        by_steps(payload, mine)
    assert rebuilding.differing(mine, theirs) == []
    assert facts(mine) == facts(theirs)
    assert mine.history == theirs.history
    return len(WALLS)


def test_both_leave_the_same_keyspace() -> None:
    """Records of additions of all shapes, with one step or many, leave the same keyspace both ways."""
    assert sum(leave_the_same(seed) for seed in range(40)) == 240


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_both_leave_the_same_keyspace_after_many_records() -> None:
    """60,000 records leave the same keyspace both ways."""

    def piece(number: int) -> int:
        return sum(leave_the_same(seed) for seed in range(number * 100, number * 100 + 100))

    campaign.run("replay-twins", piece, range(1, 101), unit="records")


ID = pack(7 << 64)
ODD: list[list[Step]] = [
    [("xnew", 0, b"n", 0, 0)],
    [("xadd", 0, b"nowhere", ID, [b"f", b"v"], False, None)],
    [("xadd", 16, b"a", ID, [b"f", b"v"], False, None)],
    [("xadd", -1, b"a", ID, [b"f", b"v"], False, None)],
    [("xadd", 0, b"text", ID, [b"f", b"v"], False, None)],
    [("xadd", 0, b"a", ID, [b"f", b"v"], False, [b"p", b"m"])],
    [("xadd", 0, b"a", ID[1:], [b"f", b"v"], False, None)],
    [("xadd", 0, b"a", ID, [b"f"], False, None)],
    [("xadd", 0, b"a", ID, [b"f"] * 258, False, None)],
    [("xadd", 0, b"a", ID, [], False, None)],
    [("xadd", 0, b"a", ID, ["f", "v"], False, None)],
    [("xadd", 0, b"a", ID, [b"f", b"v"], 1, None)],
    [("xadd", 0, b"a", ID, [b"f", b"v"], False)],
    [("xadd", 0, b"a", ID, [b"f", b"v"], False, None), ("xdel", 0, b"a", ID)],
    [("off", 0, 90)],
    [("off", 0, 90), ("xadd", 0, b"a", ID, [b"f", b"v"], False, None)],
    [("xadd", 0, b"a", ID, [b"f", b"v"], False, None), ("off", -1, 90)],
    [("xadd", 0, b"a", ID, [b"f", b"v"], False, None), ("off", 0, 1 << 63)],
    [("xadd", 0, b"a", ID, [b"f", b"v"], False, None), ("off", 0, 90, 1)],
]


@pytest.mark.parametrize("steps", ODD, ids=range(len(ODD)))
def test_what_is_not_plain_is_left_to_the_ordinary_way(steps: list[Step]) -> None:
    """A record with another step, encoding or type of key is left unchanged to the Python code, which applies it."""
    space = streams(b"a")
    space.apply(("set", 0, b"text", b"v", None))
    assert short(codec.pack(5, steps), space) == -1
    assert facts(space) == facts(streams(b"a"))
    assert space.history == ReplicationState()


def outcome(apply: Callable[[Keyspace], object]) -> tuple[object, list[tuple[Any, ...]], Keyspace]:
    """Return the result of applying, or its error, and the keyspace after it."""
    space = streams(b"a")
    try:
        given = apply(space)
    except (IndexError, ValueError, OverflowError) as error:
        given = type(error)
    return given, facts(space), space


def test_a_damaged_record_changes_nothing_or_is_another_whole_one() -> None:
    """A record cut or changed at any byte is refused, or applied as its unpacked steps would be."""
    whole = codec.pack(300, [("xadd", 0, b"a", ID, [b"f", b"v" * 40], False, None)])
    for cut in range(len(whole)):
        assert short(whole[:cut], streams(b"a")) == -1
    taken = 0
    for at in range(len(whole)):
        for value in range(256):
            changed = whole[:at] + bytes([value]) + whole[at + 1 :]
            given, after, theirs = outcome(partial(short, changed))
            if given == -1:
                assert after == facts(streams(b"a"))
                continue
            expected, same, mine = outcome(partial(by_steps, changed))
            assert (given if isinstance(given, type) else None, after) == (expected, same)
            assert rebuilding.differing(mine, theirs) == []
            taken += 1
    assert taken > 40 * 256


def test_a_version_that_is_not_known_is_refused() -> None:
    """A record of an unknown version is not applied by the native core."""
    later = msgpack.packb((2, 5, [("xadd", 0, b"a", ID, [b"f", b"v"], False, None)]))
    space = streams(b"a")
    with pytest.raises(Exception, match="records of version 2"):
        replay.apply(space, later)
    assert facts(space) == facts(streams(b"a"))

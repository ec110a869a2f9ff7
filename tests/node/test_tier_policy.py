"""The choice of nodes that go to packs: how many bytes, by which class, and up to which entry."""

from collections.abc import Iterator

import pytest

from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.group import Group
from millstream.engine.streams.stream import Stream
from millstream.node.tiering import policy
from millstream.node.tiering.policy import Aim, Leave, Ring, aim, leave_of, leaving
from support.inprocess import World

MIB = 1 << 20
NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_LEAST", 1)


def stream_of(ids: Iterator[int] | list[int], each: int = 1) -> Stream:
    """Return a stream with ``each`` entries in a node."""
    stream = Stream(100, 100)
    for number, entry_id in enumerate(ids):
        stream.add(entry_id, [b"f", b"v"], fresh=number % each == 0)
    return stream


def chosen(stream: Stream, limit: Leave | None) -> list[int]:
    """Return the last ids of the nodes that may go."""
    return [] if limit is None else [node.last for node in leaving(stream, limit)]


@pytest.mark.parametrize(
    ("sealed", "hot", "used", "limit", "expected"),
    [
        (100, 200, 0, 0, Aim(0, 200, 2)),
        (105 * MIB, 100 * MIB, 0, 0, Aim(0, 100 * MIB, 2)),
        (109 * MIB, 100 * MIB, 0, 0, Aim(9 * MIB, 100 * MIB, 2)),
        (1200, 1000, 0, 0, Aim(0, 1000, 2)),
        (1300, 1000, 0, 0, Aim(300, 1000, 2)),
        (500, 1000, 890, 1000, Aim(0, 1000, 2)),
        (500, 1000, 920, 1000, Aim(70, 430, 2)),
        (500, 1000, 960, 1000, Aim(110, 390, 3)),
        (50, 1000, 2000, 1000, Aim(50, 0, 3)),
    ],
)
def test_the_amount(sealed: int, hot: int, used: int, limit: int, expected: Aim) -> None:
    """Above ``tier-hot`` with some slack, or above nine tenths of the limit down to 0.85 of it."""
    assert aim(sealed, hot, used, limit) == expected


def test_the_last_three_nodes_never_go() -> None:
    """The open node and two full ones stay in each class; shorter streams stay whole."""
    for count in range(1, 8):
        stream = stream_of(list(range(1, count + 1)))
        assert chosen(stream, leave_of(stream, 3, 0, NOW)) == list(range(1, count - 2))
    assert chosen(stream, leave_of(stream, 2, 0, NOW)) == []


def test_class_one_leaves_a_share_of_the_stream() -> None:
    """Without a near group all before the share goes."""
    stream = stream_of(list(range(1, 101)))
    size = stream.entries.sealed_bytes // 99
    assert chosen(stream, leave_of(stream, 1, size * 30, NOW))[-1] in {68, 69, 70}
    assert chosen(stream, leave_of(stream, 1, size * 200, NOW)) == []


def test_a_near_group_keeps_what_it_has_not_read() -> None:
    """The hindmost group within the share is the bound; one that is further behind does not count."""
    stream = stream_of(list(range(1, 101)))
    size = stream.entries.sealed_bytes // 99
    for name, position in ((b"far", 10), (b"near", 80), (b"nearer", 95)):
        stream.add_group(name, Group(position, -1))
    assert chosen(stream, leave_of(stream, 1, size * 30, NOW))[-1] == 80
    stream.drop_group(b"near")
    assert chosen(stream, leave_of(stream, 1, size * 30, NOW))[-1] == 95
    stream.drop_group(b"nearer")
    assert chosen(stream, leave_of(stream, 1, size * 30, NOW))[-1] in {68, 69, 70}


def test_class_one_leaves_new_entries_alone() -> None:
    """Entries younger than a second stay, if ids are times; class 3 takes them."""
    stream = stream_of([NOW - 2000 + 100 * at << 64 for at in range(20)])
    assert chosen(stream, leave_of(stream, 1, 0, NOW))[-1] >> 64 < NOW - 1000
    assert chosen(stream, leave_of(stream, 3, 0, NOW))[-1] >> 64 > NOW - 1000


def test_age_goes_by_the_times_of_ids() -> None:
    """Nodes older than ``tier-after`` may go; a user's own numbers have no age."""
    stream = stream_of([NOW - 10_000 + 1000 * at << 64 for at in range(10)])
    found = chosen(stream, policy.aged(stream, NOW, 5000))
    assert [entry_id >> 64 for entry_id in found] == [NOW - 10_000 + 1000 * at for at in range(5)]
    assert policy.aged(stream, NOW, 20_000) is None
    assert policy.aged(stream_of(list(range(1, 50))), NOW, 1000) is None


def test_a_turn_of_the_ring_looks_at_some_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn continues after the last one, and forgets streams that are gone."""
    world = World({"stream-node-max-entries": "1"})
    client = world.client()
    for name in ("a", "b", "c", "d", "e"):
        for number in range(1, 6):
            client.call("XADD", name, f"{number}-1", "f", "v")
    client.call("SET", "string", "v")
    space, ring = world.node.keyspace, Ring()
    ring.scan(space)
    assert (len(ring), ring.sealed) == (5, sum(_sealed(space, name) for name in b"a b c d e".split()))
    assert [place[1] for place, _ in ring.turn(space, 3)] == [b"a", b"b", b"c"]
    client.call("DEL", "d")
    assert [place[1] for place, _ in ring.turn(space, 3)] == [b"e", b"a"]
    assert len(ring) == 4
    client.call("XADD", "f", "1-1", "f", "v")
    ring.observe(("xnew", 0, b"f"))
    client.call("RENAME", "a", "g")
    ring.observe(("move", 0, b"a", 0, b"g"))
    assert sorted(place[1] for place, _ in ring.turn(space, 9)) == [b"b", b"c", b"e", b"f", b"g"]
    assert ring.sealed == sum(_sealed(space, name) for name in b"b c e f g".split())


def _sealed(space: Keyspace, key: bytes) -> int:
    stream = space.databases[0].keys[key]
    assert isinstance(stream, Stream)
    return stream.entries.sealed_bytes

"""A stream's deduplication of its producers' messages, and its limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.streams.idempotence import Idempotence, content_digest
from millstream.replies import Simple
from support.inprocess import Client, World
from support.resp import fields

pairs = st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), min_size=1, max_size=5)


@given(pairs, st.randoms())
def test_the_order_of_the_pairs_does_not_matter(content: list[tuple[bytes, bytes]], random: object) -> None:
    """A message with the same pairs in another order is the same message."""
    other = content.copy()
    random.shuffle(other)  # type: ignore[attr-defined] # hypothesis's own random
    flat = [word for pair in content for word in pair]
    assert content_digest(flat) == content_digest([word for pair in other for word in pair])


@given(pairs, pairs)
def test_other_content_is_another_message(one: list[tuple[bytes, bytes]], two: list[tuple[bytes, bytes]]) -> None:
    """Two contents are the same message only if each pair occurs equally often in both."""
    same = sorted(one) == sorted(two)
    digests = [content_digest([word for pair in content for word in pair]) for content in (one, two)]
    assert (digests[0] == digests[1]) == same


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([b"a", b"1", b"a", b"1"], [b"a", b"1"]),
        ([b"ab", b"c"], [b"a", b"bc"]),
        ([b"a", b"b"], [b"b", b"a"]),
        ([b"", b"a"], [b"a", b""]),
    ],
)
def test_near_misses_are_other_messages(one: list[bytes], two: list[bytes]) -> None:
    """Messages that differ in a repetition, or in the border between two words, are different messages."""
    assert content_digest(one) != content_digest(two)


@pytest.mark.parametrize(
    ("words", "digest"),
    [
        (b"f v", "6e95729ee727f0814aedffba55730079"),
        (b"a 1 b 2", "c5b282935f77a53123e1ff7a302a11f2"),
        (b"b 2 a 1", "c5b282935f77a53123e1ff7a302a11f2"),
        (b"a 1 a 1", "7cd8847868842eaf3c2706c3f301a55b"),
    ],
)
def test_messages_have_the_names_that_redis_gives_them(words: bytes, digest: str) -> None:
    """A message's computed id equals that of Redis 8.8, so copies between the two still deduplicate."""
    assert content_digest(words.split()).hex() == digest


def test_the_oldest_goes_when_there_are_too_many() -> None:
    """Each producer has its own limit of tracked messages, beyond which its oldest is dropped."""
    memory = Idempotence(duration=100, maxsize=2)
    for number, message in enumerate([b"1", b"2", b"3"]):
        memory.remember(b"p", message, number)
    memory.remember(b"q", b"1", 9)
    assert [memory.find(b"p", message) for message in (b"1", b"2", b"3")] == [None, 1, 2]
    assert memory.find(b"q", b"1") == 9
    assert (memory.tracked(), memory.added) == (3, 4)


def test_a_change_forgets_all_and_no_change_nothing() -> None:
    """XCFGSET clears all tracked messages if it changes a value, and none if the values are already in force."""
    memory = Idempotence(duration=100, maxsize=100)
    memory.remember(b"p", b"1", 1)
    memory.configure(100, 100)
    assert memory.find(b"p", b"1") == 1
    memory.configure(100, 99)
    assert memory.find(b"p", b"1") is None
    assert memory.added == 1


@pytest.fixture
def world() -> World:
    """Return an empty node."""
    return World()


def counters(client: Client) -> tuple[object, ...]:
    found = fields(client.call("XINFO", "STREAM", "s"))
    return tuple(found[name] for name in (b"pids-tracked", b"iids-tracked", b"iids-added", b"iids-duplicates"))


def test_a_repeated_message_is_added_once(world: World) -> None:
    """A repeated message returns the id of the first entry, and neither adds an entry nor trims."""
    client = world.client(3)
    first = client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    world.advance(5)
    assert client.call("XADD", "s", "MAXLEN", "0", "IDMP", "p", "m", "*", "other", "w") == first
    assert client.call("XLEN", "s") == 1
    assert client.call("XADD", "s", "IDMP", "q", "m", "*", "f", "v") != first
    assert counters(client) == (2, 2, 2, 1)


def test_content_makes_the_message_with_idmpauto(world: World) -> None:
    """IDMPAUTO computes a message's id from its pairs in any order. Given and computed ids share a producer's table."""
    client = world.client(3)
    first = client.call("XADD", "s", "IDMPAUTO", "p", "*", "a", "1", "b", "2")
    world.advance(1)
    assert client.call("XADD", "s", "IDMPAUTO", "p", "*", "b", "2", "a", "1") == first
    assert client.call("XADD", "s", "IDMPAUTO", "p", "*", "a", "1") != first
    assert counters(client) == (1, 2, 2, 1)


def test_a_deleted_entry_is_still_remembered(world: World) -> None:
    """A message stays tracked after XDEL or XTRIM removed its entry, and is not added again."""
    client = world.client(3)
    first = client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    client.call("XTRIM", "s", "MAXLEN", "0")
    world.advance(1)
    assert client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v") == first
    assert client.call("XLEN", "s") == 0


def test_messages_are_forgotten_by_the_age_of_their_entry(world: World) -> None:
    """A message older than the stream's duration is dropped by a periodic job, and is a duplicate until then."""
    client = world.client(3)
    client.call("XADD", "s", "1-1", "f", "v")
    client.call("XCFGSET", "s", "IDMP-DURATION", "1")
    first = client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    world.clock.advance(1500)
    assert client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v") == first
    world.tick()
    assert counters(client) == (0, 0, 1, 1)
    assert client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v") != first


def test_forgetting_is_in_the_log(world: World) -> None:
    """The drop of old messages is logged, so a recovered node tracks the same messages."""
    client = world.client(3)
    client.call("XADD", "s", "IDMP", "p", "old", "*", "f", "v")
    client.call("XCFGSET", "s", "IDMP-DURATION", "2")
    client.call("XADD", "s", "IDMP", "p", "old", "*", "f", "v")
    world.advance(1500)
    client.call("XADD", "s", "IDMP", "p", "new", "*", "f", "v")
    world.advance(1000)
    stream = world.recovered().keyspace.databases[0].keys[b"s"]
    assert list(stream.idempotence.producers[b"p"]) == [b"new"]  # type: ignore[attr-defined] # it is a stream
    assert counters(client) == (1, 1, 3, 0)


def test_the_memory_goes_with_the_stream(world: World) -> None:
    """RENAME and COPY keep a stream's tracked messages, DEL drops them."""
    client = world.client(3)
    first = client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    client.call("RENAME", "s", "t")
    client.call("COPY", "t", "u")
    world.advance(1)
    for key in ("t", "u"):
        assert client.call("XADD", key, "IDMP", "p", "m", "*", "f", "v") == first
    client.call("DEL", "t")
    assert client.call("XADD", "t", "IDMP", "p", "m", "*", "f", "v") != first


def test_a_message_that_is_too_old_is_remembered_until_the_next_look() -> None:
    """XIDMPRECORD tracks an entry older than IDMP-DURATION until the next cleanup, which runs once a second."""
    world = World()
    client = world.client()
    client.call("XADD", "s", "1-1", "f", "v")
    assert client.call("XIDMPRECORD", "s", "p", "m", "1-1") == Simple(b"OK")
    world.node.tick(world.clock.now())
    assert client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v") == b"1-1"
    assert tracked(client) == 1
    world.clock.advance(900)
    world.node.tick(world.clock.now())
    assert tracked(client) == 1
    world.clock.advance(200)
    world.node.tick(world.clock.now())
    assert tracked(client) == 0
    assert client.call("XIDMPRECORD", "s", "p", "m", "1-1") == Simple(b"OK")
    assert tracked(client) == 1


def test_a_look_at_messages_does_not_hold_back_what_expires() -> None:
    """A key that expires soon is removed in time, though the next cleanup of messages is a second away."""
    world = World({"notify-keyspace-events": "Ex"})
    client, listener = world.client(), world.client()
    client.call("XADD", "s", "IDMP", "p", "m", "*", "f", "v")
    world.node.tick(world.clock.now())
    client.call("SET", "k", "v", "PX", "150")
    listener.call("SUBSCRIBE", "__keyevent@0__:expired")
    while not listener.inbox:
        due = world.node.next_deadline(world.clock.now())
        assert due is not None
        assert due <= world.clock.now().mono + 100
        world.clock.advance(100)
        world.node.tick(world.clock.now())
        world.deliver()
    assert listener.inbox == [[b"message", b"__keyevent@0__:expired", b"k"]]
    assert client.call("DBSIZE") == 1


def tracked(client: Client) -> object:
    return fields(client.call("XINFO", "STREAM", "s"))[b"iids-tracked"]

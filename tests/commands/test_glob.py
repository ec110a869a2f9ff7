"""Patterns match the same bytes as in Redis, and the work that a client can cause with them is bounded."""

import logging
import random
from collections.abc import Callable

import pytest

from conformance.pipe import Pipe
from millstream.engine.channels import Patterns
from millstream.glob import Effort, Pattern, PatternTooCostlyError, matcher
from millstream.replies import Error
from support.inprocess import World
from support.servers import ServerProcess
from support.steps import steps

TOO_COMPLEX = Error(str(PatternTooCostlyError()))
SIGNS = b"aAbBzZ*?[]^-\\\x00\x7f\x80\xff_19"
WEIGHTS = (6, 2, 6, 2, 2, 1, 8, 5, 8, 6, 3, 6, 5, 1, 1, 1, 1, 1, 2, 2)


def written(choice: random.Random, most: int) -> bytes:
    return bytes(choice.choices(SIGNS, WEIGHTS, k=choice.randrange(most)))


def ways(pattern: bytes, *, nocase: bool = False) -> list[Callable[[bytes], bool]]:
    """Return matchers of the pattern: the one that commands use, and the slower one for long names."""
    whole = Pattern(pattern, Effort(), nocase=nocase)
    return [matcher(pattern, nocase=nocase), lambda name: whole.fits(name, Effort())]


@pytest.mark.realserver
def test_patterns_fit_what_they_fit_in_redis(each_redis: ServerProcess) -> None:
    """KEYS with random patterns over all special characters selects the same names as Redis, byte for byte."""
    choice = random.Random(8)
    names = sorted({written(choice, 9) for _ in range(120)} | {b"a" * 1200} - {b""})
    patterns = [written(choice, 11) for _ in range(3000)] + [b"*a" * count for count in (999, 1000, 1001)]
    patterns += [
        b"*a" * 1000 + b"*",
        b"*a" * 1001 + b"**",
        b"a" * 1200,
        b"**",
        b"[",
        b"[^",
        b"[^]",
        b"[]",
        b"\\",
        b"a\\",
    ]
    pipe = Pipe(each_redis.port)
    try:
        pipe.ask([[b"FLUSHALL"], [b"MSET", *[word for name in names for word in (name, b"1")]]])
        replies = pipe.ask([[b"KEYS", pattern] for pattern in patterns])
    finally:
        pipe.close()
    for pattern, wanted in zip(patterns, replies, strict=True):
        assert isinstance(wanted, list)
        for fits in ways(pattern):
            if pattern != b"*":
                assert [name for name in names if fits(name)] == sorted(wanted), pattern


@pytest.mark.realserver
def test_patterns_without_case_fit_what_they_fit_in_redis(each_redis: ServerProcess) -> None:
    """CONFIG GET's patterns ignore case as Redis does: a range's ends are put in order before they are lowercased."""
    choice = random.Random(9)
    patterns = [b"*" + bytes(choice.choices(b"aAeEsSmM-_*?[]^\\zZ", k=choice.randrange(10))) for _ in range(1000)]
    pipe = Pipe(each_redis.port)
    try:
        everything = pipe.ask([[b"CONFIG", b"GET", b"*"]])[0]
        replies = pipe.ask([[b"CONFIG", b"GET", pattern] for pattern in patterns])
    finally:
        pipe.close()
    assert isinstance(everything, list)
    names = sorted(everything[::2])
    for pattern, wanted in zip(patterns, replies, strict=True):
        assert isinstance(wanted, list)
        for fits in ways(pattern, nocase=True):
            assert [name for name in names if fits(name)] == sorted(wanted[::2]), pattern


def test_both_forms_of_a_pattern_and_both_searches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern gives one result by each method: regular expression, then part by part, then by bits."""
    choice = random.Random(10)
    cases = []
    for _ in range(3000):
        pattern, name = written(choice, 12), written(choice, 12)
        cases.append((pattern, name, [fits(name) for fits in ways(pattern)] if name else [not pattern] * 2))
    monkeypatch.setattr("millstream.glob._SMALL", 0)
    for pattern, name, found in cases:
        assert [Pattern(pattern, Effort()).fits(name, Effort())] * 2 == found, (pattern, name)
    assert len({found[0] for _, _, found in cases}) == 2


def test_a_star_and_the_empty_name() -> None:
    """A lone ``*`` matches every key, also the empty one. As in Redis, it does not match an empty channel name."""
    world = World()
    one, other = world.client(), world.client()
    one.call("SET", "", "x")
    assert one.call("KEYS", "*") == [b""]
    assert one.call("KEYS", "**") == []
    other.call("PSUBSCRIBE", "*")
    assert one.call("PUBLISH", "", "x") == 0
    assert one.call("PUBLISH", "c", "x") == 1


@pytest.mark.parametrize("piece", [b"[^]", b"[a-z]", b"?", b"\\a", b"*a", b"*[ab]", b"**"])
def test_taking_a_pattern_apart_costs_its_length_or_nothing(piece: bytes) -> None:
    """Parsing a pattern of twice the length takes at most twice the work. Past a thousand stars it takes none."""
    name = b"a" * 3000
    short, long = (steps(lambda n=n: matcher(piece * n)(name)) for n in (2000, 4000))
    assert long < 2.5 * short + 100
    if piece[:1] == b"*" and len(piece) > 1 and piece != b"**":
        assert steps(lambda: matcher(piece * 500_000)(name)) < 1.5 * long + 100


def test_what_would_keep_everybody_waiting_is_refused() -> None:
    """A pattern whose cost with the keys' lengths is absurd is refused with advice, and delays no other client."""
    world = World()
    client = world.client()
    for number in range(200):
        client.call("SET", b"a" * 100_000 + b"%d" % number, "x")
    for pattern in (b"*[ab]" * 900 + b"c*", b"*" + b"[ab]" * 900 + b"c*", b"*" + b"a" * 900 + b"b*"):
        assert client.call("KEYS", pattern) == TOO_COMPLEX
        assert client.call("SCAN", "0", "MATCH", pattern, "COUNT", "100000") == TOO_COMPLEX
    assert client.call("KEYS", b"*[ab]" * 900 + b"*b*") == TOO_COMPLEX
    assert client.call("KEYS", b"[^]" * 4_000_000) == TOO_COMPLEX
    assert client.call("CONFIG", "GET", b"[^]" * 4_000_000) == TOO_COMPLEX
    assert client.call("PUBSUB", "CHANNELS", b"[^]" * 4_000_000) == TOO_COMPLEX
    assert client.call("PUBSUB", "CHANNELS", b"[" + b"a-z" * 1_000_000) == TOO_COMPLEX


def test_what_people_write_is_never_refused() -> None:
    """Ordinary patterns over many keys, and long names that a prefix decides, are never refused."""
    world = World()
    client = world.client()
    names = [b"user:%d:profile" % number for number in range(20_000)]
    client.call("MSET", *[word for name in names for word in (name, b"")])
    for number in range(50):
        client.call("SET", b"long:%d:" % number + b"x" * 100_000, "")
    for pattern, found in ((b"*[0-9][0-9][0-9]:*", 19_900), (b"long:*", 50), (b"*:prof?le", 20_000), (b"*4:x*", 5)):
        reply = client.call("KEYS", pattern)
        assert isinstance(reply, list)
        assert len(reply) == found


def test_hostile_patterns_of_one_do_not_stop_the_publishing_of_another() -> None:
    """PSUBSCRIBE pays for its patterns.

    PUBLISH to ordinary channels costs nothing more, and only absurd names are refused.
    """
    world = World({"notify-keyspace-events": "KEA"})
    hostile, other = world.client(), world.client()
    assert hostile.call("PSUBSCRIBE", "fine", b"[^]" * 4_000_000) == TOO_COMPLEX
    assert hostile.session.patterns == set()
    for number in range(300):
        hostile.raw("PSUBSCRIBE", b"*" + b"[ab]" * 300 + b"c%d*" % number, b"*a" * 5000 + b"%d" % number)
    assert other.call("PUBLISH", "orders.new", "x") == 0
    assert steps(lambda: other.call("PUBLISH", "orders.new", "x")) < 5000
    assert other.call("PUBLISH", b"a" * 1_000_000, "x") == TOO_COMPLEX
    assert hostile.inbox == []


def test_an_event_that_cannot_be_compared_does_not_undo_the_change(caplog: pytest.LogCaptureFixture) -> None:
    """A key is written even if its name is too long to compare with subscribed patterns; the log reports it."""
    world = World({"notify-keyspace-events": "KEA"})
    hostile, other = world.client(), world.client()
    for number in range(300):
        hostile.call("PSUBSCRIBE", b"*" + b"[ab]" * 300 + b"c%d*" % number)
    with caplog.at_level(logging.WARNING):
        assert other.raw("SET", b"a" * 1_000_000, "v") == b"+OK\r\n"
    assert "event set of a key of 1000000 bytes is not published" in caplog.text
    assert other.call("STRLEN", b"a" * 1_000_000) == 1


def test_a_pattern_left_by_all_is_forgotten() -> None:
    """A pattern is removed when its last subscriber leaves, and works again when a client subscribes again."""
    world = World()
    one, two, three = world.client(), world.client(), world.client()
    one.call("PSUBSCRIBE", "a*")
    two.call("PSUBSCRIBE", "a*")
    one.call("PUNSUBSCRIBE", "a*")
    assert three.call("PUBLISH", "ab", "x") == 1
    two.close()
    assert three.call("PUBLISH", "ab", "x") == 0
    one.call("PSUBSCRIBE", "a*")
    assert three.call("PUBLISH", "ab", "x") == 1


def test_a_rule_never_wears_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ACL pattern's cost counts for each long key or channel alone, so a user never loses rights by using them."""
    monkeypatch.setattr("millstream.glob.MOST_EFFORT", 20_000_000)
    world = World({})
    world.client().call("ACL", "SETUSER", "ann", "on", "nopass", "+@all", "~k:*[ab]*x*[ab]*", "&k:*[ab]*x*[ab]*")
    client, name = world.client(), "k:" + "ax" * 20_000 + "b"
    client.call("AUTH", "ann", "x")
    for _ in range(1000):
        assert client.call("EXISTS", name) == 0
        assert client.call("PUBLISH", name, "") == 0
    assert client.call("EXISTS", "k:axb") == 0


def test_many_patterns_in_one_command_cost_what_one_may() -> None:
    """PSUBSCRIBE refuses too many patterns before it parses one. SCAN parses only the last MATCH."""
    client = World({}).client()
    many = [b"%d" % number + b"?**aa" * 400 for number in range(1000)]
    one = steps(lambda: matcher(many[0]))
    assert steps(lambda: client.call("PSUBSCRIBE", *many)) < 10 * one
    assert client.call("PSUBSCRIBE", *many) == TOO_COMPLEX
    for start in (("SCAN", "0"), ("HSCAN", "h", "0")):
        words = [*start, *(word for pattern in many for word in (b"MATCH", pattern))]
        assert steps(lambda words=words: client.call(*words)) < 10 * one


def test_ten_thousand_patterns_as_people_write_them_are_taken() -> None:
    """Ten thousand patterns of thirty bytes with two stars each are accepted."""
    patterns: Patterns[int] = Patterns()
    names = [b"app:tenant-%d:orders:*:changed:*" % number for number in range(10_000)]
    patterns.prepare(names)
    assert patterns.fitting(b"app:tenant-77:orders:1:changed:2") == [names[77]]

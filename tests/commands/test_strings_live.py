"""Ranges of strings, and numbers with fractions: the replies of a running redis-server, to the last digit."""

import random

import pytest

from conformance.pipe import Pipe
from millstream.commands.table import long_double
from millstream.replies import Error
from support.inprocess import World, to_words
from support.servers import ServerProcess

COMMANDS = 8000
PLACES = ("0", "1", "-1", "2", "5", "-2", "100", "x", "", "9223372036854775807")
OFFSETS = ("0", "1", "5", "-1", "x", "536870912", "9223372036854775807")
BOUNDS = (
    *("9223372036854775807", "-9223372036854775807", "-9223372036854775808", "9223372036854775808"),
    *("2147483648", "4294967296", "01", "+1", "1.0", "-0"),
)
RANGES = (
    *(("GETRANGE", "s"), ("SUBSTR", "s"), ("GETRANGE", "one"), ("GETRANGE", "none"), ("GETRANGE", "l")),
    *(("LRANGE", "l"), ("LRANGE", "none"), ("ZRANGE", "z"), ("ZREVRANGE", "z")),
)
ODD_TEXT = (
    "inf -inf nan infinity  1 1e5000 1e-5000 1e4932 -1e4932 0x10 0x1.8p3 1e . .5 5. 1e400 1e-400 --1 +1 1_0 0x 0x.8 "
    "1e99999999999 0e99999999999 0x1p-70 1e-4950 1e-4951 3.0e3 -0 -0.0 1e-18 5e-18 1.5e-17 9223372036854775807"
)
ODD = ODD_TEXT.split(" ")


class Generator:
    """Generator of random command lines from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self) -> str:
        rng = self.random
        kind = rng.random()
        if kind < 0.15:
            return rng.choice(ODD)
        if kind < 0.4:
            return str(rng.randint(-(10 ** rng.randint(1, 25)), 10 ** rng.randint(1, 25)))
        if kind < 0.7:
            return repr(rng.uniform(-1, 1) * 10 ** rng.randint(-10, 20))
        return f"{rng.uniform(-1000, 1000):.{rng.randint(1, 18)}f}"

    def line(self) -> list[str]:
        pick = self.random.choice
        key = pick("abcl")
        return pick(
            [
                ["INCRBYFLOAT", key, self.number()],
                ["INCRBYFLOAT", key, self.number()],
                ["SET", key, self.number()],
                [pick(["GETRANGE", "SUBSTR"]), key, pick(PLACES), pick(PLACES)],
                ["SETRANGE", key, pick(OFFSETS), pick(["", "ab", "xyz"])],
                ["MSETNX", key, "1", *pick([[], ["odd"]]), *pick([[], [pick("abc"), "2"]])],
                ["DEL", key],
                ["LPUSH", "l", "x"],
                ["GET", key],
                ["PEXPIRE", key, "1000000"],
                ["PERSIST", key],
            ]
        )


@pytest.mark.realserver
@pytest.mark.parametrize("seed", [1, 2])
def test_strings_answer_as_redis_does(each_redis: ServerProcess, seed: int) -> None:
    """INCRBYFLOAT rounds sums to 64 bits and writes 17 places, and string ranges are cut, as in Redis."""
    generator = Generator(seed)
    lines = [[word.encode() for word in generator.line()] for _ in range(COMMANDS)]
    client = World(logged=False).client()
    pipe = Pipe(each_redis.port)
    try:
        theirs = pipe.ask(lines)
    finally:
        pipe.close()
    differing = [
        f"{line}\n  redis: {wanted!r}\n  here:  {found!r}"
        for line, wanted in zip(lines, theirs, strict=True)
        if (found := client.call(*line)) != wanted
    ]
    assert not differing, "\n".join(differing[:5])
    assert (
        sum(line[0] == b"INCRBYFLOAT" and isinstance(reply, bytes) for line, reply in zip(lines, theirs, strict=True))
        > 800
    )
    assert len({reply.line for reply in theirs if isinstance(reply, Error)}) >= 6


@pytest.mark.parametrize(
    ("one", "two", "total"),
    [
        (b"10.5", b"0.1", b"10.6"),
        (b"3.0e3", b"200", b"3200"),
        (b"0.1", b"0.2", b"0.3"),
        (b"1e17", b"0.01", b"100000000000000000.0078125"),
        (b"-1", b"1", b"0"),
        (b"-0", b"0", b"0"),
        (b"0x10", b"-0x.8", b"15.5"),
    ],
)
def test_sums(one: bytes, two: bytes, total: bytes) -> None:
    """INCRBYFLOAT examples; the third needs a 64-bit mantissa: with a double it would end in ...04."""
    left, right = long_double.read(one), long_double.read(two)
    assert left is not None
    assert right is not None
    assert not isinstance(left, float)
    assert not isinstance(right, float)
    found = long_double.add(left, right)
    assert found is not None
    assert long_double.text(found) == total


def test_parts_and_events_of_a_string() -> None:
    """SETRANGE pads with zero bytes, keeps the time to live, and creates no key for an empty value."""
    client = World().client()
    assert client.call("SETRANGE", "k", 0, "") == 0
    assert client.call("EXISTS", "k") == 0
    assert client.call("SETRANGE", "k", 2, "ab") == 4
    assert client.call("PEXPIRE", "k", 1000) == 1
    assert client.call("SETRANGE", "k", 1, "x") == 4
    assert client.call("GET", "k") == b"\0xab"
    assert client.call("PTTL", "k") == 1000
    assert client.call("INCRBYFLOAT", "n", "1.5") == b"1.5"
    assert client.call("MSETNX", "n", "1", "new", "2") == 0
    assert client.call("EXISTS", "new") == 0


@pytest.mark.realserver
def test_ranges_are_cut_as_redis_cuts_them(each_redis: ServerProcess) -> None:
    """Each pair of offsets, before, inside and after the value, is cut as in Redis in every command that takes two."""
    places = ["0", "-1", "1", "-2", "-4", "-5", "-6", "-100", "4", "5", "100", *BOUNDS]
    setup = [["FLUSHALL"], ["SET", "s", "Hello"], ["SET", "one", "H"], ["RPUSH", "l", "a", "b", "c"]]
    setup.append(["ZADD", "z", "1", "a", "2", "b", "3", "c"])
    lines = [[command, key, start, end] for command, key in RANGES for start in places for end in places]
    client = World(logged=False).client()
    pipe = Pipe(each_redis.port)
    try:
        theirs = pipe.ask([to_words(line) for line in setup + lines])[len(setup) :]
    finally:
        pipe.close()
    for line in setup:
        client.call(*line)
    found = {tuple(line): client.call(*line) for line in lines}
    assert found == {tuple(line): reply for line, reply in zip(lines, theirs, strict=True)}
    assert found["GETRANGE", "s", "0", "-100"] == b"H"

"""Random keyspaces as commands to a server, and everything that clients can read about each key: for RDB files."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from millstream.engine.serialization.rdb.bulk import crc64

Ask = Callable[..., Any]

WORDS = [b"", b"a", b"7", b"-12", b"300", b"70000", b"-9000000000", b"\x00\xff\r\n", b"x" * 63, b"y" * 64, b"z" * 5000]
IDS = [f"{ms}-{seq}" for ms in range(1, 40) for seq in (1, 7, 400)]
LATER = 4_000_000_000_000
# Numbers of an implementation, what newer servers say of themselves, and what moves by itself
UNTOLD = {b"radix-tree-nodes", b"lag", b"idle", b"inactive"}


def commands(random: Random, keys: int, *, is_newest: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield commands that write up to ``keys`` keys; a server that refuses one has fewer.

    Args:
        random: the random generator.
        keys: the number of key names.
        is_newest: also use commands that only Redis 8.8 and Millstream have.
    """
    for number in range(keys):
        yield ("SELECT", number % 3)
        key = b"key %d \xff" % number
        yield from _CHOICES[number % len(_CHOICES)](random, key, is_newest)
        if random.random() < 0.3:
            yield ("PEXPIREAT", key, LATER + number)


def word(random: Random) -> bytes:
    if random.random() < 0.6:
        return random.choice(WORDS)
    return b"%d" % random.randrange(-(2 ** random.choice((7, 15, 31, 62))), 2**62)


def string(random: Random, key: bytes, _: bool) -> Iterator[tuple[Any, ...]]:
    yield ("SET", key, random.choice((word(random), b"ab" * 3000, bytes(range(256)) * 30)))


def _many(random: Random) -> int:
    return random.choice((1, 3, 40, 200, 700))


def hashes(random: Random, key: bytes, _: bool) -> Iterator[tuple[Any, ...]]:
    yield ("HSET", key, *(part for at in range(_many(random)) for part in (b"f%d" % at, word(random))))


def sets(random: Random, key: bytes, _: bool) -> Iterator[tuple[Any, ...]]:
    if random.random() < 0.5:
        bits = random.choice((5, 14, 30, 60))
        yield ("SADD", key, *(random.randrange(-(2**bits), 2**bits) for _ in range(_many(random))))
    else:
        yield ("SADD", key, *(word(random) + b"%d" % at for at in range(_many(random))))


def sorted_sets(random: Random, key: bytes, _: bool) -> Iterator[tuple[Any, ...]]:
    scores = ("0", "-1.5", "inf", "-inf", "3", "1e300", "0.1", "17179869184")
    yield ("ZADD", key, *(part for at in range(_many(random)) for part in (random.choice(scores), b"m%d" % at)))


def lists(random: Random, key: bytes, _: bool) -> Iterator[tuple[Any, ...]]:
    yield ("RPUSH", key, *(word(random) for _ in range(_many(random))))


def streams(random: Random, key: bytes, is_newest: bool) -> Iterator[tuple[Any, ...]]:
    for entry_id in sorted(random.sample(IDS, random.choice((1, 5, 60))), key=lambda one: [*map(int, one.split("-"))]):
        names = random.choice(((b"f",), (b"f",), (b"g", b"h"), (b"f", b"f")))
        yield ("XADD", key, entry_id, *(part for name in names for part in (name, word(random))))
    for group in (b"g", b"\x00other")[: random.randrange(3)]:
        yield ("XGROUP", "CREATE", key, group, "0", "ENTRIESREAD", random.choice((-1, 0, 3)))
        for consumer in (b"ann", b"", b"b\r\n"):
            yield ("XGROUP", "CREATECONSUMER", key, group, consumer)
            yield ("XREADGROUP", "GROUP", group, consumer, "COUNT", random.randrange(1, 9), "STREAMS", key, ">")
        yield ("XACK", key, group, *random.sample(IDS, 20))
        yield (
            "XCLAIM",
            key,
            group,
            b"ann",
            0,
            *random.sample(IDS, 20),
            "TIME",
            5,
            "RETRYCOUNT",
            random.randrange(2**40),
        )
        if is_newest:
            yield ("XNACK", key, group, "FAIL", "IDS", 30, *random.sample(IDS, 30))
    yield ("XDEL", key, *random.sample(IDS, random.choice((1, 30))))
    if random.random() < 0.2:
        yield ("XTRIM", key, "MAXLEN", random.randrange(4))
    if random.random() < 0.2:
        yield ("XSETID", key, "77-0", "ENTRIESADDED", 1000, "MAXDELETEDID", "40-0")
    if is_newest and random.random() < 0.5:
        yield ("XCFGSET", key, "IDMP-DURATION", 86400, "IDMP-MAXSIZE", 50)
        for at in range(random.randrange(5)):
            yield ("XADD", key, "IDMP", b"p%d" % (at % 2), b"m%d" % (at % 3), "*", "f", "v")


_CHOICES = (streams, string, streams, hashes, streams, sets, sorted_sets, lists)


def portrait(ask: Ask, key: bytes) -> Any:
    """Return everything that one server's commands show of a key."""
    kind = ask("TYPE", key)
    kind = bytes(getattr(kind, "text", kind))
    asked: Any = {
        b"string": lambda: ask("GET", key),
        b"list": lambda: ask("LRANGE", key, 0, -1),
        b"set": lambda: sorted(ask("SMEMBERS", key)),
        b"zset": lambda: _scores(ask("ZRANGE", key, 0, -1, "WITHSCORES")),
        b"hash": lambda: _pairs(ask("HGETALL", key)),
        b"stream": lambda: _stream(ask, key),
    }
    return [kind, ask("PEXPIRETIME", key), asked[kind]()]


def _pairs(flat: list[bytes]) -> list[Any]:
    return sorted(zip(flat[::2], flat[1::2], strict=True))


def _scores(flat: list[bytes]) -> list[Any]:
    """Return scores as numbers, since Redis 7.0 writes them with more digits than necessary."""
    return list(zip(flat[::2], map(float, flat[1::2]), strict=True))


def named(flat: list[Any]) -> dict[bytes, Any]:
    """Return a flat reply of names and values as a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _stream(ask: Ask, key: bytes) -> dict[bytes, Any]:
    found = named(ask("XINFO", "STREAM", key, "FULL", "COUNT", 0))
    found[b"groups"] = [_group(ask, key, named(each)) for each in found[b"groups"]]
    return {name: value for name, value in found.items() if name not in UNTOLD}


def _group(ask: Ask, key: bytes, group: dict[bytes, Any]) -> dict[bytes, Any]:
    group = {name: value for name, value in group.items() if name not in UNTOLD}
    group[b"consumers"] = [named(each) for each in group[b"consumers"]]
    group[b"rows"] = [[row[0], row[1], row[3]] for row in ask("XPENDING", key, group[b"name"], "-", "+", 1000)]
    return group


def told_apart(one: Any, other: Any, place: str = "") -> list[str]:
    """Return the differences between two portraits in facts that both servers have."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() & other.keys())
        return [text for name in names for text in told_apart(one[name], other[name], f"{place} {name.decode()}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            text
            for at, (mine, theirs) in enumerate(zip(one, other, strict=True))
            for text in told_apart(mine, theirs, f"{place}[{at}]")
        ]
    return [] if one == other else [f"{place}: {one!r} and {other!r}"]


# ---------------------------------------------------------------------- forms that only old servers wrote


def sized(data: bytes) -> bytes:
    """Return bytes with their size before them."""
    return b"\x80" + len(data).to_bytes(4, "big") + data


def ziplist(*elements: bytes) -> bytes:
    """Return a ziplist of encoded elements."""
    body, before, last = b"", 0, 10
    for element in elements:
        entry = (bytes([before]) if before < 254 else b"\xfe" + before.to_bytes(4, "little")) + element
        last, before = 10 + len(body), len(entry)
        body += entry
    return (
        (len(body) + 11).to_bytes(4, "little")
        + last.to_bytes(4, "little")
        + len(elements).to_bytes(2, "little")
        + (body + b"\xff")
    )


def text(data: bytes) -> bytes:
    """Return a string as an element of a ziplist."""
    if len(data) < 64:
        return bytes([len(data)]) + data
    return (1 << 14 | len(data)).to_bytes(2, "big") + data


NUMBERS = {
    b"\xf1": b"0",
    b"\xfd": b"12",
    b"\xfe\xf0": b"-16",
    b"\xc0\x00\x80": b"-32768",
    b"\xf0\xff\xff\x7f": b"8388607",
    b"\xd0\x00\x00\x00\x80": b"-2147483648",
    b"\xe0\xff\xff\xff\xff\xff\xff\xff\x7f": b"9223372036854775807",
}
_LONG = b"l" * 300
_HASH = [(b"a", b"-16"), (b"long", _LONG), (b"z", b"")]
_PAIRS = ziplist(text(b"a"), b"\xfe\xf0", text(b"long"), text(_LONG), text(b"z"), text(b""))
_SET16 = (2).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"\xff\xff\x00\x00\x07\x00"
_SCORED = ziplist(text(b"m"), text(b"-inf"), text(b"n"), b"\xfe\xf0", text(b"o"), text(b"1.5"))
OLD_FORMS: list[tuple[int, bytes, Any]] = [
    (1, b"\x02" + sized(b"a") + b"\xc0\x07", [b"a", b"7"]),
    (
        3,
        b"\x03" + sized(b"m") + b"\xff" + sized(b"n") + b"\x03-16" + sized(b"o") + b"\xfe",
        [-float("inf"), -16, float("inf")],
    ),
    (9, sized(b"\x02\x01a\x02\x00bb\x03ccc\x01\x02d--\xff"), [(b"a", b"bb"), (b"ccc", b"d")]),
    (10, sized(ziplist(*NUMBERS, text(_LONG), text(b"end"))), [*NUMBERS.values(), _LONG, b"end"]),
    (11, sized(_SET16), [b"-1", b"0", b"7"]),
    (12, sized(_SCORED), [-float("inf"), -16, 1.5]),
    (13, sized(_PAIRS), _HASH),
    (14, b"\x02" + sized(ziplist(text(b"a"))) + sized(ziplist(*NUMBERS)), [b"a", *NUMBERS.values()]),
]
"""Types, bodies and values. For sorted sets the values are only the scores, in order."""


def payload(kind: int, body: bytes, version: int = 9) -> bytes:
    """Return a payload in the form of DUMP."""
    whole = bytes([kind]) + body + version.to_bytes(2, "little")
    return whole + crc64(whole).to_bytes(8, "little")


def file_of(*parts: bytes, magic: bytes = b"REDIS0014", checksum: bool = True) -> bytes:
    """Return a whole RDB file of the given parts."""
    whole = magic + b"".join(parts) + b"\xff"
    return whole + (crc64(whole) if checksum else 0).to_bytes(8, "little")

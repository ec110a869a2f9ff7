"""Workloads that a node gets in large pieces: plain commands in them run together, so records have many steps."""

import random
from collections.abc import Iterator

Line = list[str]

# An id ahead of the clock, so that those behind it are known: -1, -2 and so on
AHEAD = 1_800_000_000_000


def opened(*keys: str) -> Iterator[Line]:
    """Write one entry to each stream, so that further additions are plain."""
    for key in keys:
        yield ["XADD", key, f"{AHEAD}-0" if key == "s" else "1-0", "n", "0"]


def writing(chance: random.Random) -> Iterator[Line]:
    """Yield additions of many sizes, strings, reads between them, and some commands that are not plain."""
    yield from opened("s", "t", "u", "w")
    yield ["XGROUP", "CREATE", "w", "g", "$"]
    for number in range(500):
        kind = chance.randrange(20)
        if kind < 13:
            yield ["XADD", chance.choice("ssttuw"), "*", "n", str(number), "pad", "x" * chance.choice((0, 5, 60, 700))]
        elif kind < 16:
            yield ["SET", f"k{number % 7}", "v" * chance.choice((0, 3, 300))]
        elif kind == 16:
            yield ["XTRIM", chance.choice("stu"), "MAXLEN", "~", "50"]
        elif kind == 17 and number % 5 == 0:
            inside = [["XADD", chance.choice("stu"), "*", "n", "t"] for _ in range(chance.choice((2, 9)))]
            yield from (["MULTI"], *inside, ["HSET", "h", "n", str(number)], *inside[:1], ["SET", "k1", "t"], ["EXEC"])
        else:
            yield chance.choice((["GET", "k1"], ["XLEN", "s"], ["PING"], ["XRANGE", "t", "-", "+", "COUNT", "3"]))


def consuming(chance: random.Random) -> Iterator[Line]:
    """Yield reads and acknowledgements of two groups between additions, and some claims and deletions."""
    yield from opened("s", "w")
    for group in "gh":
        yield ["XGROUP", "CREATE", "s", group, f"{AHEAD}-0", "ENTRIESREAD", "1"]
        yield from (["XGROUP", "CREATECONSUMER", "s", group, consumer] for consumer in "ab")
    yield ["XGROUP", "CREATE", "w", "g", "$"]
    added = 0
    for number in range(400):
        group, consumer = chance.choice("gh"), chance.choice("ab")
        kind = chance.randrange(20)
        if kind < 8:
            added += 1
            yield ["XADD", "s", "*", "n", str(number)]
        elif kind < 13:
            options = [[], ["COUNT", "3"], ["COUNT", "2", "NOACK"]][chance.randrange(3)]
            yield ["XREADGROUP", "GROUP", group, consumer, *options, "STREAMS", "s", ">"]
        elif kind < 18:
            yield [
                "XACK",
                "s",
                group,
                *(f"{AHEAD}-{chance.randint(1, added + 1)}" for _ in range(chance.choice((1, 9)))),
            ]
        elif kind == 18:
            yield ["XADD", "w", "*", "n", str(number)]
        else:
            one = f"{AHEAD}-{chance.randint(1, added + 1)}"
            yield chance.choice((["XCLAIM", "s", group, consumer, "0", one], ["XDEL", "s", one], ["XLEN", "s"]))


def both(chance: random.Random) -> Iterator[Line]:
    """Alternate between the two workloads."""
    for number, (one, other) in enumerate(zip(consuming(chance), writing(chance), strict=False)):
        yield one
        if other[0] in {"XADD", "SET", "XTRIM"} and other[1] not in ("s", "w")[: 1 + (number < 9)]:
            yield other


WAITING = ["XREADGROUP", "GROUP", "g", "waiter", "BLOCK", "0", "STREAMS", "w", ">"]
"""Blocked read of a second client, repeated always; plain additions to ``w`` wake it."""

WORKLOADS = {"plain": writing, "plain-groups": consuming, "plain-rewrite": both}

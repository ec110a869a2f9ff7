"""Random stream commands that every Redis since 7.0 supports, some of them with faults, all from one seed."""

import random
from collections.abc import Callable

Command = list[bytes]

KEYS = ["s", "s", "s", "t", "t", "str", "missing"]
GROUPS = ["g", "g", "g", "h", "nog"]
CONSUMERS = ["a", "b", ""]
# No "*", since ids made by the clock differ: they are for the key "auto" only
ODD = ["", "-", "+", "$", ">", "~", "=", "(", "(1-1", "05-07", "+9-1", " 3", "3 ", "11--0", "1-1-1", "-1", "x", "0x1"]
ODD += ["18446744073709551615", "18446744073709551616-0", "9223372036854775807", "9223372036854775808", "1e3", "3.0"]
ODD += ["00", "COUNT", "LIMIT", "STREAMS", "MAXLEN", "JUSTID", "FORCE", "IDLE", "5-1\x00x"]


class Generator:
    """Commands of one run.

    Args:
        seed: Seed; the same one makes the same commands.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.highest = dict.fromkeys(KEYS, 0)
        self.makers: list[tuple[int, Callable[[], list[str]]]] = [
            (22, self.xadd),
            (2, self.xadd_auto),
            (5, self.xdel),
            (3, self.xtrim),
            (5, self.xrange),
            (4, self.xread),
            (16, self.xreadgroup),
            (6, self.xack),
            (6, self.xpending),
            (6, self.xclaim),
            (5, self.xautoclaim),
            (8, self.xinfo),
            (4, self.xgroup),
            (1, self.xsetid),
            (2, self.keyspace),
        ]

    def setup(self, resp: int) -> list[Command]:
        """Return commands that create a fresh database with two streams of two groups and their consumers."""
        lines = [f"HELLO {resp}", "FLUSHALL", "SET str x"]
        lines += [f"XGROUP CREATE {key} {group} 0 MKSTREAM" for key in "st" for group in "gh"]
        commands = [line.split() for line in lines]
        commands += [["XGROUP", "CREATECONSUMER", k, g, c] for k in "st" for g in "gh" for c in CONSUMERS]
        return [encoded(words) for words in commands]

    def commands(self, count: int) -> list[Command]:
        """Return the next commands."""
        weights = [weight for weight, _ in self.makers]
        made = []
        for _, maker in self.random.choices(self.makers, weights, k=count):
            words = maker()
            if self.random.random() < 0.06 and words[0] != "XSETID" and words[1] != "auto":
                words = self.spoiled(words)
            made.append(encoded(words))
        return made

    def spoiled(self, words: list[str]) -> list[str]:
        """Return the command with a word left out, doubled, or replaced by an odd one."""
        words = words.copy()
        at = self.random.randrange(1, len(words))
        kind = self.random.randrange(4)
        if kind == 0:
            del words[at]
        elif kind == 1:
            words.insert(at, words[at])
        else:
            words[at] = self.random.choice(ODD)
        return words

    def one(self, *words: str) -> str:
        return self.random.choice(words)

    def key(self) -> str:
        return self.random.choice(KEYS)

    def maybe(self, chance: float, *words: str) -> list[str]:
        return list(words) if self.random.random() < chance else []

    def entry(self) -> str:
        """Return an id of an existing, a former or a future entry."""
        ms = self.random.randint(0, max(self.highest.values()) + 2)
        return self.one(f"{ms}", f"{ms}-0", f"{ms}-0", f"{ms}-1", f"{ms}-1", f"{ms}-2")

    def entries(self, most: int = 4) -> list[str]:
        return [self.entry() for _ in range(self.random.randint(1, most))]

    def bound(self) -> str:
        return self.one("-", "+", self.entry(), self.entry(), "(" + self.entry())

    def fields(self) -> list[str]:
        words = []
        for _ in range(self.random.randint(1, 3)):
            value = self.one("v", "", "17", "-5", "70000", "x" * 70, "x" * 300, "\x00\xff\r\n")
            words += [self.one("f", "f", "name", "other"), value]
        return words

    def trimming(self) -> list[str]:
        if self.random.random() < 0.5:
            words = ["MAXLEN", self.one("=", "~", "~"), str(self.random.randint(0, 60))]
        else:
            words = ["MINID", self.one("=", "~"), self.entry()]
        return words + (self.maybe(0.4, "LIMIT", str(self.random.randint(0, 120))) if words[1] == "~" else [])

    def xadd(self) -> list[str]:
        key = self.key()
        new = self.highest[key]
        if self.random.random() < 0.9:
            new += self.random.randint(0, 2)
            self.highest[key] = new
        else:
            new = self.random.randint(0, new + 1)
        word = self.one(f"{new}-*", f"{new}-*", f"{new}-0", f"{new}-1", f"{new}-2", f"{new}")
        options = self.maybe(0.1, "NOMKSTREAM") + (self.trimming() if self.random.random() < 0.05 else [])
        return ["XADD", key, *options, word, *self.fields()]

    def xadd_auto(self) -> list[str]:
        return ["XADD", "auto", "*", *self.fields()]

    def xdel(self) -> list[str]:
        return ["XDEL", self.key(), *self.entries()]

    def xtrim(self) -> list[str]:
        return ["XTRIM", self.key(), *self.trimming()]

    def xrange(self) -> list[str]:
        count = self.maybe(0.5, "COUNT", str(self.random.randint(-1, 5)))
        return [self.one("XRANGE", "XREVRANGE"), self.key(), self.bound(), self.bound(), *count]

    def streams(self, *specials: str) -> list[str]:
        keys = [self.random.choice("ssst") for _ in range(self.random.randint(1, 3))]
        return ["STREAMS", *keys, *[self.one(self.entry(), *specials) for _ in keys]]

    def xread(self) -> list[str]:
        return ["XREAD", *self.maybe(0.6, "COUNT", str(self.random.randint(-1, 4))), *self.streams("0", "$")]

    def xreadgroup(self) -> list[str]:
        words = ["XREADGROUP", "GROUP", self.one(*GROUPS), self.one(*CONSUMERS)]
        words += self.maybe(0.7, "COUNT", str(self.random.randint(0, 4))) + self.maybe(0.1, "NOACK")
        return [*words, *self.streams(">", ">", ">", ">", "0")]

    def xack(self) -> list[str]:
        return ["XACK", self.key(), self.one(*GROUPS), *self.entries(6)]

    def xpending(self) -> list[str]:
        words = ["XPENDING", self.key(), self.one(*GROUPS)]
        if self.random.random() < 0.3:
            return words
        idle = self.maybe(0.2, "IDLE", self.one("0", "1000000"))
        count = str(self.random.randint(-1, 8))
        return [*words, *idle, self.bound(), self.bound(), count, *self.maybe(0.4, self.one(*CONSUMERS, "nobody"))]

    def xclaim(self) -> list[str]:
        words = ["XCLAIM", self.key(), self.one(*GROUPS), self.one(*CONSUMERS), self.one("0", "0", "-5", "1000000")]
        words += self.entries()
        words += self.maybe(0.2, "IDLE", self.one("0", "5000000", "-1"))
        words += self.maybe(0.1, "TIME", self.one("0", "1000", "99999999999999"))
        words += self.maybe(0.2, "RETRYCOUNT", self.one("0", "7"))
        words += self.maybe(0.3, "FORCE") + self.maybe(0.4, "JUSTID")
        return words + self.maybe(0.05, "LASTID", self.entry())

    def xautoclaim(self) -> list[str]:
        words = ["XAUTOCLAIM", self.key(), self.one(*GROUPS), self.one(*CONSUMERS), self.one("0", "0", "1000000")]
        words += [self.one("0", "-", self.entry(), "(" + self.entry(), "+")]
        return words + self.maybe(0.6, "COUNT", str(self.random.randint(1, 4))) + self.maybe(0.4, "JUSTID")

    def xinfo(self) -> list[str]:
        kind = self.random.randrange(5)
        if kind == 0:
            return ["XINFO", "GROUPS", self.key()]
        if kind == 1:
            return ["XINFO", "CONSUMERS", self.key(), self.one(*GROUPS)]
        full = self.maybe(0.6, "FULL", "COUNT", str(self.random.randint(-1, 6))) if kind > 2 else []
        return ["XINFO", "STREAM", self.key(), *full]

    def xgroup(self) -> list[str]:
        key, group = self.key(), self.one("g", "h", "nog")
        kind = self.random.randrange(6)
        if kind < 3:
            return ["XGROUP", "SETID", key, group, self.one(self.entry(), "$", "0", "-", "+")]
        if kind == 3:
            return ["XGROUP", "CREATE", key, group, self.one("0", "$", self.entry())]
        if kind == 4:
            return ["XGROUP", "CREATECONSUMER", key, group, self.one(*CONSUMERS)]
        return ["XLEN", key]

    def xsetid(self) -> list[str]:
        key = self.one("s", "t", "missing")
        self.highest[key] += self.random.randint(1, 3)
        words = ["XSETID", key, f"{self.highest[key]}-3"]
        if self.random.random() < 0.3:
            words += ["ENTRIESADDED", str(self.random.randint(0, 300)), "MAXDELETEDID", self.entry()]
        return words

    def keyspace(self) -> list[str]:
        line = self.one("TYPE s", "EXISTS s t missing", "COPY s t REPLACE", "DEL missing", "TYPE missing", "RENAME t t")
        if line.startswith("COPY"):
            self.highest["t"] = max(self.highest["s"], self.highest["t"])
        return line.split()


def encoded(words: list[str]) -> Command:
    """Encode words, each letter as one byte."""
    return [word.encode("latin-1") for word in words]

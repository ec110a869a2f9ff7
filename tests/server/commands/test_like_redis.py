"""Connection, key and string commands against a real Redis: the same commands, the same replies."""

import random
from typing import Any

import pytest

from millstream.server.thread import ServerThread
from support.servers import ServerProcess
from support.wire import Wire

KEYS = ["a", "b", "c", "dd"]
FAR = 4_000_000_000  # seconds since 1970 at which no test still runs
INTEGERS = [
    "0",
    "1",
    "-1",
    "7",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "x",
    "",
    "+1",
    "01",
]
VALUES = ["v", "10", "-3", "", "abc def", "9223372036854775807", "a" * 60]
TIMES = ["NX", "XX", "GT", "LT", "nx", "FOO"]


class Writer:
    """Generator of random commands, most of them valid."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def key(self) -> str:
        return self.rng.choice(KEYS)

    def some(self, words: list[str], most: int) -> list[str]:
        return [self.rng.choice(words) for _ in range(self.rng.randint(0, most))]

    def command(self) -> list[str]:
        maker = self.rng.choice(
            [self.string, self.string, self.number, self.expiry, self.expiry, self.key_command, self.database, self.own]
        )
        words: list[str] = maker()
        if self.rng.random() < 0.03:
            words = words[: self.rng.randint(1, len(words))]
        elif self.rng.random() < 0.03:
            words.append(self.rng.choice(VALUES))
        return words

    def string(self) -> list[str]:
        rng = self.rng
        value = rng.choice(VALUES)
        options = ["NX", "XX", "GET", "KEEPTTL", "EX", "PX", "EXAT", "PXAT", "1000000", str(FAR), "0", "x", "get"]
        return rng.choice(
            [
                ["SET", self.key(), value],
                ["SET", self.key(), value, *self.some(options, 3)],
                ["SET", self.key(), value, "EXAT", str(FAR), *self.some(["GET", "XX", "NX"], 1)],
                ["GET", self.key()],
                ["SETNX", self.key(), value],
                ["SETEX", self.key(), rng.choice(["100000", "0", "-1", "x", "9223372036854775807"]), value],
                ["PSETEX", self.key(), rng.choice(["100000000", "0", "x"]), value],
                ["GETSET", self.key(), value],
                ["GETDEL", self.key()],
                ["GETEX", self.key(), *self.some(["PERSIST", "EXAT", "PXAT", str(FAR), "1", "EX"], 2)],
                ["MSET", self.key(), value, self.key(), value],
                ["MGET", self.key(), self.key(), "none"],
                ["APPEND", self.key(), value],
                ["STRLEN", self.key()],
            ]
        )

    def number(self) -> list[str]:
        name = self.rng.choice(["INCR", "DECR", "INCRBY", "DECRBY"])
        return [name, self.key()] + ([self.rng.choice(INTEGERS)] if name.endswith("BY") else [])

    def expiry(self) -> list[str]:
        rng = self.rng
        return rng.choice(
            [
                ["EXPIREAT", self.key(), str(FAR + rng.randint(0, 3)), *self.some(TIMES, 2)],
                ["PEXPIREAT", self.key(), str(FAR * 1000 + rng.randint(0, 3)), *self.some(TIMES, 1)],
                ["EXPIREAT", self.key(), rng.choice(INTEGERS)],
                ["EXPIRE", self.key(), rng.choice(["0", "-1", "9223372036854775807", "-9223372036854775808", "x"])],
                ["PEXPIRE", self.key(), rng.choice(["0", "-1", "9223372036854775807", "x"])],
                ["EXPIRETIME", self.key()],
                ["PEXPIRETIME", self.key()],
                ["PERSIST", self.key()],
                ["TTL", "none"],
            ]
        )

    def key_command(self) -> list[str]:
        rng = self.rng
        return rng.choice(
            [
                ["DEL", self.key(), self.key()],
                ["UNLINK", self.key()],
                ["EXISTS", self.key(), self.key(), self.key()],
                ["TOUCH", self.key(), self.key()],
                ["TYPE", self.key()],
                ["KEYS", rng.choice(["*", "?", "[ab]", "[^a]", "d*", "\\a", "[a-c]", "a*b*", ""])],
                ["SCAN", "0", "COUNT", "1000", *self.some(["MATCH", "COUNT", "d*", "0"], 2)],
                ["SCAN", "0", "COUNT", "1000", "TYPE", *self.some(["string"], 1)],
                ["SCAN", rng.choice(["x", "+0", "99999999999999999999"])],
                ["RENAME", self.key(), self.key()],
                ["RENAMENX", self.key(), self.key()],
                ["COPY", self.key(), self.key(), *self.some(["REPLACE", "DB", "1", "99", "x"], 3)],
                ["MOVE", self.key(), rng.choice(["1", "0", "99", "x"])],
                ["OBJECT", "ENCODING", self.key()],
                ["DBSIZE"],
                ["XADD", self.key(), "1-1", "f", "v"],
            ]
        )

    def database(self) -> list[str]:
        rng = self.rng
        return rng.choice(
            [
                ["SELECT", rng.choice(["0", "1", "0", "99", "-1", "x"])],
                ["SWAPDB", rng.choice(["0", "1", "x", "99"]), rng.choice(["0", "1", "y"])],
                ["FLUSHDB", *self.some(["ASYNC", "SYNC", "x"], 1)],
                ["DBSIZE"],
            ]
        )

    def own(self) -> list[str]:
        rng = self.rng
        return rng.choice(
            [
                ["PING", *self.some(["hi"], 2)],
                ["ECHO", "x"],
                ["CLIENT", "SETNAME", rng.choice(["me", "", "a b"])],
                ["CLIENT", "GETNAME"],
                ["CLIENT", "REPLY", "x"],
                ["CLIENT", "TRACKING", "OFF"],
                ["CLIENT", "GETREDIR"],
                ["CLIENT", "NO-EVICT", rng.choice(["on", "OFF", "x"])],
                ["CLIENT", "KILL", *self.some(["ID", "0", "99999", "TYPE", "normal", "x", "SKIPME", "yes"], 4)],
                ["CLIENT", "UNBLOCK", rng.choice(["99999", "x"]), *self.some(["TIMEOUT", "ERROR", "x"], 1)],
                ["CLIENT", rng.choice(["BAD", "ID x"])],
                ["AUTH", *self.some(["default", "x"], 3)],
                ["HELLO", rng.choice(["1", "4", "x", "2 3"]), *self.some(["AUTH", "SETNAME", "default", "me"], 3)],
                ["MULTI"],
                ["EXEC"],
                ["DISCARD"],
                ["WATCH", self.key()],
                ["UNWATCH"],
                ["RESET"] if rng.random() < 0.2 else ["PING"],
                ["NOSUCH", *self.some(["a", "b" * 200], 2)],
                [
                    "COMMAND",
                    "GETKEYS",
                    rng.choice(["get", "mset", "nosuch", "xread"]),
                    "k",
                    *self.some(["STREAMS", "v"], 3),
                ],
                ["CONFIG", "SET", *self.some(["nosuch", "maxclients", "x", "stream-node-max-entries", "7"], 4)],
                ["CONFIG", "GET", "stream-node-max-*"],
            ]
        )


def comparable(words: list[str], reply: Any) -> Any:
    """Return a reply without the parts that may differ."""
    if isinstance(reply, list):
        items = [comparable(words, item) for item in reply]
        return sorted(items, key=repr) if words[0] in {"KEYS", "SCAN", "CONFIG"} else items
    if isinstance(reply, int) and words[0].upper() in {"EXPIRETIME", "PEXPIRETIME"}:
        return reply // (10 if words[0] == "EXPIRETIME" else 10_000)  # the two servers set it a moment apart
    return reply


def is_shifted(words: list[str]) -> bool:
    """Return True if the line asks for the keys of an XREAD."""
    return len(words) > 2 and words[:2] == ["COMMAND", "GETKEYS"] and words[2].lower().startswith("xread")


@pytest.mark.realserver
@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_random_commands_answer_as_redis_does(each_redis: ServerProcess, seed: int, resp: int) -> None:
    """A thousand random commands on connections, keys, strings and transactions have the replies of Redis."""
    writer, release = Writer(seed), each_redis.release()
    told: list[str] = []
    with ServerThread() as server, Wire(each_redis.url, resp) as theirs, Wire(server.url, resp) as ours:
        for _ in range(1000):
            words = writer.command()
            told.append(" ".join(words))
            expected, got = (comparable(words, wire.ask_exact(*words)) for wire in (theirs, ours))
            if release >= (8, 0) and is_shifted(words) and "Invalid arguments" in repr(expected):
                continue  # see SHIFTING in commands/test_introspection_live.py
            assert got == expected, "\n".join(told[-15:])


NAMES = [
    b"",
    b"a",
    b"ab",
    b"abc",
    b"a-c",
    b"a]c",
    b"[",
    b"]",
    b"^",
    b"\\",
    b"a\\b",
    b"a*b",
    b"?",
    b"-",
    b"b-",
    b"\xff",
    b"a\nb",
    b"aXbXc",
]
PIECES = [
    b"a",
    b"b",
    b"c",
    b"*",
    b"?",
    b"[",
    b"]",
    b"^",
    b"-",
    b"\\",
    b"[a-c]",
    b"[^a]",
    b"[]",
    b"[c-a]",
    b"X",
    b"\xff",
    b"**",
]


@pytest.mark.realserver
def test_patterns_match_as_redis_does(each_redis: ServerProcess) -> None:
    """KEYS with odd names and patterns finds the same names as Redis: classes, ranges, escapes, open brackets."""
    rng = random.Random(3)
    with ServerThread() as server, Wire(each_redis.url) as theirs, Wire(server.url) as ours:
        for wire in (theirs, ours):
            wire.ask("MSET", *[word for name in NAMES for word in (name, b"v")])
        for _ in range(3000):
            pattern = b"".join(rng.choice(PIECES) for _ in range(rng.randint(0, 5)))
            expected, got = (sorted(wire.ask("KEYS", pattern)) for wire in (theirs, ours))
            assert got == expected, pattern

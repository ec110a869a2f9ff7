"""Random commands that change data, and the state that must be equal on a primary and its replica."""

import random
from collections.abc import Callable, Iterator
from typing import Any

Words = list[bytes]
Ask = Callable[..., Any]

STREAMS = [b"s", b"s", b"t", b"u"]
GROUPS = [b"g", b"g", b"h"]
CONSUMERS = [b"a", b"b", b"c"]
TEXTS = [b"", b"v", b"17", b"-5", b"x" * 70, b"\x00\xff\r\n"]
COPIES = b"local d = redis.call('DUMP', KEYS[1]); if d then redis.call('RESTORE', KEYS[2], 0, d, 'REPLACE') end"
SCRIPT = b"redis.call('XADD', KEYS[1], '*', 'f', 'lua'); redis.call('SET', KEYS[2], ARGV[1]); return 1"


class Changes:
    """Commands of one run, most of which change something.

    Args:
        seed: the same seed makes the same commands.
        since: wall milliseconds of times that are given.
        newest: include changes that commands of Redis 7.0 cannot express.
    """

    def __init__(self, seed: int, since: int, *, newest: bool = False) -> None:
        self.random = random.Random(seed)
        self._since = since
        self._makers: list[tuple[int, Callable[[], Words]]] = [
            (20, self._xadd),
            (12, self._read),
            (8, self._ack),
            (6, self._claim),
            (6, self._stream),
            (6, self._group),
            (10, self._string),
            (12, self._collection),
            (4, self._key),
            *([(14, self._newest)] if newest else []),
        ]

    def some(self, count: int) -> Iterator[Words]:
        """Yield the next commands, some of them in transactions."""
        weights = [weight for weight, _ in self._makers]
        for _, maker in self.random.choices(self._makers, weights, k=count):
            if self.random.random() < 0.05:
                yield [b"MULTI"]
                yield from (self._one(weights) for _ in range(self.random.randint(0, 4)))
                yield [b"EXEC"]
            yield maker()

    def _one(self, weights: list[int]) -> Words:
        return self.random.choices(self._makers, weights)[0][1]()

    def _pick(self, *words: Any) -> Any:
        return self.random.choice(words)

    def _of(self, words: list[bytes]) -> bytes:
        return self.random.choice(words)

    def _ids(self) -> Words:
        first = self.random.randint(1, 40)
        return [b"%d-1" % (first + at) for at in range(self.random.randint(1, 4))]

    def _number(self, most: int) -> bytes:
        return b"%d" % self.random.randint(0, most)

    def _xadd(self) -> Words:
        key, fields = self._of(STREAMS), [self._of(TEXTS) for _ in range(self._pick(2, 2, 4, 6))]
        trim: list[Words] = [[], [], [], [b"MAXLEN", b"~", self._number(90)], [b"MAXLEN", self._number(30)]]
        trim += [[b"MINID", b"%d-1" % self.random.randint(1, 20)], [b"MAXLEN", b"9", b"DELREF"]]
        trim += [[b"IDMP", self._of(CONSUMERS), self._of(TEXTS[1:])]]
        name = b"*" if key == b"u" else b"%d-1" % self.random.randint(1, 99)
        return [b"XADD", key, *self._pick(*trim), b"*" if self.random.random() < 0.5 else name, *fields]

    def _read(self) -> Words:
        key, head = self._of(STREAMS), [b"XREADGROUP", b"GROUP", self._of(GROUPS), self._of(CONSUMERS)]
        options = self._pick([], [b"COUNT", b"2"], [b"NOACK"], [b"COUNT", b"3", b"CLAIM", b"0"])
        last = b">" if b"CLAIM" in options else self._pick(b">", b">", b">", b"0")
        return [*head, *options, b"STREAMS", key, last]

    def _ack(self) -> Words:
        key, group, some = self._of(STREAMS), self._of(GROUPS), self._ids()
        counted = [b"IDS", b"%d" % len(some), *some]
        return self._pick(
            [b"XACK", key, group, *some],
            [b"XACKDEL", key, group, self._pick(b"KEEPREF", b"DELREF", b"ACKED"), *counted],
            [b"XNACK", key, group, self._pick(b"FAIL", b"SILENT", b"FATAL"), *counted],
            [b"XDELEX", key, self._pick(b"KEEPREF", b"DELREF", b"ACKED"), *counted],
        )

    def _claim(self) -> Words:
        place = [self._of(STREAMS), self._of(GROUPS), self._of(CONSUMERS), b"0"]
        options = self._pick([], [b"JUSTID"], [b"FORCE"], [b"RETRYCOUNT", self._number(9)], [b"LASTID", b"30-1"])
        options = [*options, *self._pick([], [b"TIME", b"%d" % (self._since - 5000)], [b"IDLE", b"700"])]
        return self._pick([b"XCLAIM", *place, *self._ids(), *options], [b"XAUTOCLAIM", *place, b"0", b"COUNT", b"3"])

    def _stream(self) -> Words:
        key = self._of(STREAMS)
        return self._pick(
            [b"XDEL", key, *self._ids()],
            [b"XTRIM", key, b"MAXLEN", self._pick(b"=", b"~"), self._number(120)],
            [b"XTRIM", key, b"MAXLEN", self._number(9), self._pick(b"DELREF", b"KEEPREF")],
            [b"XSETID", key, b"9999999999999-1", b"ENTRIESADDED", b"500", b"MAXDELETEDID", b"3-1"],
            [b"DEL", key],
        )

    def _newest(self) -> Words:
        key, producer, message = self._of(STREAMS), self._of(CONSUMERS), self._of(TEXTS[1:])
        some = self._ids()
        return self._pick(
            [b"XADD", key, b"IDMP", producer, message, b"*", b"f", b"v"],
            [b"XADD", key, b"NOMKSTREAM", b"IDMPAUTO", producer, b"*", b"f", message],
            [b"XADD", key, self._pick(b"MAXLEN", b"MINID"), self._number(9), b"ACKED", b"*", b"f", b"v"],
            [b"XTRIM", key, b"MAXLEN", self._pick(b"~", b"="), self._number(9), b"ACKED"],
            [b"XCFGSET", key, b"IDMP-MAXSIZE", self._pick(b"2", b"100")],
            [b"XCFGSET", key, b"IDMP-DURATION", self._pick(b"3", b"100")],
            [b"XIDMPRECORD", key, producer, message, some[0]],
            [b"XNACK", key, b"g", b"SILENT", b"IDS", b"%d" % len(some), *some[::-1], b"FORCE"],
            [b"EVAL", COPIES, b"2", key, self._of(STREAMS)],
            [b"CONFIG", b"SET", b"stream-idmp-maxsize", self._pick(b"3", b"100")],
        )

    def _group(self) -> Words:
        key, group = self._of(STREAMS), self._of(GROUPS)
        return self._pick(
            *[[b"XGROUP", b"CREATE", key, group, self._pick(b"0", b"$", b"5-1"), b"MKSTREAM"]] * 4,
            [b"XGROUP", b"SETID", key, group, b"0"],
            [b"XGROUP", b"SETID", key, group, b"9-1", b"ENTRIESREAD", b"4"],
            [b"XGROUP", b"DESTROY", key, group],
            [b"XGROUP", b"CREATECONSUMER", key, group, self._of(CONSUMERS)],
            [b"XGROUP", b"DELCONSUMER", key, group, self._of(CONSUMERS)],
        )

    def _string(self) -> Words:
        key = self._pick(b"k", b"l", b"m")
        return self._pick(
            [b"SET", key, self._of(TEXTS)],
            [b"SET", key, b"v", b"EX", b"9000"],
            [b"GETEX", key, b"PERSIST"],
            [b"APPEND", key, b"more"],
            [b"SETRANGE", key, self._number(20), b"part"],
            [b"SET", b"count", self._number(99)],
            [b"INCRBYFLOAT", b"count", b"0.25"],
            [b"EVAL", SCRIPT, b"2", b"u", key, self._of(TEXTS)],
            [b"MSET", b"k", b"1", b"l", b"2"],
            [b"PEXPIRE", key, b"900000"],
            [b"PUBLISH", b"channel", b"message"],
        )

    def _collection(self) -> Words:
        some = [self._of(TEXTS) for _ in range(self._pick(1, 2, 3))]
        return self._pick(
            [b"HSET", b"hash", self._of(TEXTS), self._of(TEXTS)],
            [b"HINCRBY", b"hash", b"n", b"3"],
            [b"HDEL", b"hash", *some],
            [b"ZADD", b"zset", self._pick(b"1.5", b"-inf", b"1e300", b"0.1"), self._of(TEXTS)],
            [b"ZINCRBY", b"zset", b"0.1", b"v"],
            [b"ZREM", b"zset", *some],
            [b"LPUSH", b"list", *some],
            [b"RPUSH", b"list", *some],
            [self._pick(b"LPOP", b"RPOP"), b"list", self._number(3)],
            [b"LSET", b"list", self._number(4), b"put"],
            [b"LINSERT", b"list", self._pick(b"BEFORE", b"AFTER"), self._of(TEXTS), self._of(TEXTS)],
            [b"LREM", b"list", self._pick(b"0", b"1", b"-1"), self._of(TEXTS)],
            [b"LTRIM", b"list", self._number(2), self._pick(b"-1", b"5", b"0")],
            [b"LMOVE", b"list", b"other", b"LEFT", b"RIGHT"],
            [b"SORT", b"set", b"ALPHA", b"STORE", b"other"],
            [b"SUNIONSTORE", b"union", b"set", b"set"],
            [b"ZUNIONSTORE", b"zunion", b"1", b"zset"],
            [b"SADD", b"set", *some],
            [b"SREM", b"set", *some],
        )

    def _key(self) -> Words:
        key = self._pick(b"k", b"s", b"hash", b"list", b"zset")
        return self._pick(
            [b"SELECT", self._pick(b"0", b"0", b"1")],
            [b"COPY", key, b"twin", b"REPLACE"],
            [b"RENAME", key, b"renamed"],
            [b"MOVE", key, b"1"],
            [b"SWAPDB", b"0", b"1"],
            [b"UNLINK", b"twin", b"renamed"],
            [b"FLUSHDB"] if self.random.random() < 0.05 else [b"PERSIST", key],
        )


def state(ask: Ask) -> dict[tuple[int, bytes], Any]:
    """Return every key of databases 0 and 1, as a replica fed with Redis's own commands must have it.

    Args:
        ask: runs a command and gives its reply, in the protocol's second version.
    """
    found = {}
    for db in (0, 1):
        ask(b"SELECT", b"%d" % db)
        for key in sorted(ask(b"KEYS", b"*")):
            found[db, key] = (ask(b"PEXPIRETIME", key), _value(ask, key))
    ask(b"SELECT", b"0")
    return found


def _value(ask: Ask, key: bytes) -> Any:
    kind = ask(b"TYPE", key)
    if kind == b"string":
        return ask(b"GET", key)
    if kind == b"list":
        return ask(b"LRANGE", key, b"0", b"-1")
    if kind == b"set":
        return sorted(ask(b"SMEMBERS", key))
    if kind == b"zset":
        return [(member, float(ask(b"ZSCORE", key, member))) for member in ask(b"ZRANGE", key, b"0", b"-1")]
    if kind == b"hash":
        flat = ask(b"HGETALL", key)
        return sorted(zip(flat[::2], flat[1::2], strict=True))
    return _stream(ask, key)


_COUNTERS = (b"length", b"last-generated-id", b"max-deleted-entry-id", b"entries-added")


def _stream(ask: Ask, key: bytes) -> Any:
    """Return a stream without seen and active times, which differ per server, and without producers."""
    info = _pairs(ask(b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"))
    groups = {}
    for group in map(_pairs, info[b"groups"]):
        consumers = {
            one[b"name"]: one[b"pel" if b"pel" in one else b"pending"] for one in map(_pairs, group[b"consumers"])
        }
        held = {name: pending for name, pending in consumers.items() if name}  # released entries are those of ""
        position = group[b"last-delivered-id"], group[b"entries-read"]
        groups[group[b"name"]] = position, group[b"pel" if b"pel" in group else b"pending"], held
    return {name: info[name] for name in _COUNTERS}, ask(b"XRANGE", key, b"-", b"+"), groups


def _pairs(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))

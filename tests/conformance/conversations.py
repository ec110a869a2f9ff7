"""Random commands for several connections: blocking reads, kills, pauses, transactions, scripts, all data types.

Times to live are either far away or :data:`SOON`, and the player of the steps waits until those have passed. Ids of
streams are given, so only idle times depend on the clock. ``{n}`` in a command is the id of connection n.
"""

import random
from collections.abc import Callable

Words = list[str]

KEYS = ["a", "b", "c", "d", "e", "f"]
STORED = "f"
"""Keys for stored results, which no client waits for: Redis serves no waiting client if that replaces another type."""
VALUES = ["1", "2", "-7", "x", "", "hello world", "3.5", "1e3", "w" * 70, "9223372036854775807"]
MEMBERS = ["1", "2", "3", "7", "x", "y", "zz", "v" * 70]
SCORES = ["0", "1", "2", "-1", "1.5", "inf", "-inf", "1e20", "3", "0.25", "nan"]
SOON = "3"
"""Milliseconds until a key expires, for those that expire within the run."""
FAR = "4000000000000"
SCRIPTS = (
    "return redis.call('get', KEYS[1])",
    "redis.call('set', KEYS[1], ARGV[1]) return redis.call('incr', KEYS[1])",
    "redis.call('rpush', KEYS[1], ARGV[1], 'x') return redis.call('llen', KEYS[1])",
    "return redis.pcall('lpop', KEYS[1])",
    "redis.call('rename', KEYS[1], KEYS[2]) return redis.call('type', KEYS[2])",
    "redis.call('copy', KEYS[1], KEYS[2], 'replace') return redis.call('exists', KEYS[1], KEYS[2])",
    "redis.call('select', 1) redis.call('sadd', KEYS[1], ARGV[1]) return redis.call('scard', KEYS[1])",
    "redis.call('zadd', KEYS[1], 1, ARGV[1]) return redis.call('zrange', KEYS[1], 0, -1, 'withscores')",
    "for i = 1, 3 do redis.pcall('rpush', KEYS[1], i) end redis.pcall('del', KEYS[1]) return 1",
    "redis.call('psetex', KEYS[1], 3, 'x') return redis.call('pttl', KEYS[1]) > 0",
    "return redis.call('blpop', KEYS[1], 0)",
    "return {redis.call('exists', KEYS[1]), redis.call('object', 'encoding', KEYS[1])}",
    "local dump = redis.call('dump', KEYS[1]) return redis.call('restore', KEYS[2], 0, dump, 'replace')",
    "redis.setresp(3) return redis.pcall('hgetall', KEYS[1])",
    "return redis.error_reply('MINE ' .. ARGV[1])",
    "redis.call('flushdb') redis.call('lpush', KEYS[1], 'left') return {1, false, 'x', {2.7}}",
    "redis.call('swapdb', 0, 1) return redis.call('exists', KEYS[1])",
    "return #redis.pcall('xread', 'block', 0, 'streams', KEYS[1], '0')",
)


class Writer:
    """The steps of one run.

    Args:
        seed: Seed; the same one makes the same steps.
        lines: Number of connections.
        sorts: True to sort sorted sets too.
        many: True to wait for two keys, call blocking commands in scripts, and add entries that are trimmed at once.
    """

    def __init__(self, seed: int, lines: int, *, sorts: bool = True, many: bool = True) -> None:
        self.rng = random.Random(seed)
        self.lines = lines
        self._sorts, self._many = sorts, many
        self._entry = 0
        self._makers: list[tuple[int, Callable[[], Words]]] = [
            (14, self._string),
            (12, self._list),
            (8, self._hash),
            (8, self._set),
            (14, self._sorted),
            (14, self._stream),
            (12, self._key),
            (4, self._expiry),
            (6, self._database),
            (14, self._waiting),
            (12, self._transaction),
            (7, self._script),
            (8, self._connection),
        ]

    def words(self) -> Words:
        """Return the next command."""
        [(_, maker)] = self.rng.choices(self._makers, [weight for weight, _ in self._makers])
        words = maker()
        if self.rng.random() < 0.02 and words[0] not in {"CLIENT", "WAIT"}:
            words = words[: self.rng.randint(1, len(words))]
        return words

    def _k(self) -> str:
        return self.rng.choice(KEYS)

    def _v(self) -> str:
        return self.rng.choice(VALUES)

    def _m(self) -> str:
        return self.rng.choice(MEMBERS)

    def _n(self) -> str:
        return self.rng.choice(["0", "1", "-1", "2", "-2", "5", "-100"])

    def _some(self, make: Callable[[], str], most: int) -> Words:
        return [make() for _ in range(self.rng.randint(1, most))]

    def _one(self, *choices: Words) -> Words:
        return self.rng.choice(choices)

    def _maybe(self, *words: str) -> Words:
        return list(words) if self.rng.random() < 0.4 else []

    def _string(self) -> Words:
        k, v = self._k(), self._v()
        return self._one(
            ["SET", k, v],
            ["SET", k, v, "PX", SOON],
            ["SET", k, v, *self._one(["NX"], ["XX"], ["KEEPTTL"], ["GET"], ["PXAT", FAR], ["NX", "GET"])],
            ["GET", k],
            ["GETDEL", k],
            ["GETEX", k, *self._one(["PERSIST"], ["PXAT", FAR], ["PX", SOON], [])],
            ["SETNX", k, v],
            ["APPEND", k, v],
            ["STRLEN", k],
            ["SETRANGE", k, self.rng.choice(["0", "3", "10"]), v],
            ["GETRANGE", k, self._n(), self._n()],
            ["INCR", k],
            ["DECRBY", k, self._n()],
            ["INCRBYFLOAT", k, self.rng.choice(["0.5", "-1", "1e2", "x"])],
            ["MSET", k, v, self._k(), self._v()],
            ["MSETNX", k, v, self._k(), self._v()],
            ["MGET", k, self._k()],
            ["SETBIT", k, self.rng.choice(["0", "7", "20"]), self.rng.choice("01")],
            ["BITCOUNT", k],
            ["BITOP", self.rng.choice(["AND", "OR", "XOR"]), self._k(), k, self._k()],
            ["BITFIELD", k, "INCRBY", "u4", "3", self._n(), "GET", "i8", "0"],
        )

    def _list(self) -> Words:
        k, v = self._k(), self._v()
        side = self.rng.choice(["LEFT", "RIGHT"])
        return self._one(
            [self.rng.choice(["LPUSH", "RPUSH"]), k, *self._some(self._v, 3)],
            [self.rng.choice(["LPUSH", "RPUSH"]), k, v],
            [self.rng.choice(["LPUSHX", "RPUSHX"]), k, v],
            [self.rng.choice(["LPOP", "RPOP"]), k, *self._maybe(self.rng.choice(["0", "1", "2"]))],
            ["LLEN", k],
            ["LRANGE", k, self._n(), self._n()],
            ["LINDEX", k, self._n()],
            ["LSET", k, self._n(), v],
            ["LREM", k, self._n(), v],
            ["LTRIM", k, self._n(), self._n()],
            ["LINSERT", k, self.rng.choice(["BEFORE", "AFTER"]), self._v(), v],
            ["LPOS", k, v, *self._maybe("COUNT", "0")],
            ["LMOVE", k, self._k(), side, self.rng.choice(["LEFT", "RIGHT"])],
            ["RPOPLPUSH", k, self._k()],
            ["LMPOP", "2", k, self._k(), side, *self._maybe("COUNT", "2")],
            ["SORT", k, *self._maybe("ALPHA"), *self._maybe("DESC"), *self._maybe("STORE", STORED)]
            if self._sorts
            else ["LLEN", k],
        )

    def _hash(self) -> Words:
        k, m, v = self._k(), self._m(), self._v()
        return self._one(
            ["HSET", k, m, v],
            ["HSET", k, m, v, self._m(), self._v()],
            ["HSETNX", k, m, v],
            ["HGET", k, m],
            ["HDEL", k, *self._some(self._m, 3)],
            ["HGETALL", k],
            ["HMGET", k, m, self._m()],
            ["HINCRBY", k, m, self._n()],
            ["HINCRBYFLOAT", k, m, "0.5"],
            ["HLEN", k],
            ["HEXISTS", k, m],
            ["HSTRLEN", k, m],
        )

    def _set(self) -> Words:
        k, m = self._k(), self._m()
        name = self.rng.choice(["SINTER", "SUNION", "SDIFF"])
        return self._one(
            ["SADD", k, *self._some(self._m, 3)],
            ["SADD", k, m],
            ["SREM", k, *self._some(self._m, 2)],
            ["SISMEMBER", k, m],
            ["SMISMEMBER", k, m, self._m()],
            ["SCARD", k],
            ["SMEMBERS", k],
            ["SMOVE", k, self._k(), m],
            [name, k, self._k()],
            [name + "STORE", STORED, k, self._k()],
            ["SINTERCARD", "2", k, self._k(), *self._maybe("LIMIT", "1")],
        )

    def _sorted(self) -> Words:
        k, m, score = self._k(), self._m(), self.rng.choice(SCORES)
        ends = [self.rng.choice(["-inf", "(1", "0", "1"]), self.rng.choice(["+inf", "2", "(2", "1"])]
        operation = self.rng.choice(["ZUNION", "ZINTER", "ZDIFF"])
        weights = [] if operation == "ZDIFF" else self._maybe("AGGREGATE", self.rng.choice(["SUM", "MIN", "MAX"]))
        return self._one(
            ["ZADD", k, score, m, "2", self._m()],
            ["ZADD", k, score, m],
            ["ZADD", k, self.rng.choice(["NX", "XX", "GT", "LT", "CH", "INCR"]), score, m],
            ["ZINCRBY", k, score, m],
            ["ZREM", k, *self._some(self._m, 3)],
            ["ZSCORE", k, m],
            ["ZMSCORE", k, m, self._m()],
            ["ZCARD", k],
            ["ZRANK", k, m],
            ["ZREVRANK", k, m],
            ["ZRANGE", k, self._n(), self._n(), *self._maybe("WITHSCORES")],
            ["ZRANGE", k, *ends, "BYSCORE", *self._maybe("LIMIT", "0", "2")],
            ["ZREVRANGEBYSCORE", k, *ends[::-1], *self._maybe("WITHSCORES")],
            ["ZCOUNT", k, *ends],
            ["ZREMRANGEBYRANK", k, self._n(), self._n()],
            ["ZREMRANGEBYSCORE", k, *ends],
            [self.rng.choice(["ZPOPMIN", "ZPOPMAX"]), k, *self._maybe(self.rng.choice("012"))],
            ["ZMPOP", "2", k, self._k(), self.rng.choice(["MIN", "MAX"]), *self._maybe("COUNT", "2")],
            ["ZRANGESTORE", STORED, k, self._n(), self._n()],
            [operation, "2", k, self._k(), *weights, *self._maybe("WITHSCORES")],
            [operation + "STORE", STORED, "2", k, self._k(), *weights],
            ["GEOADD", k, "13.361389", "38.115556", m],
        )

    def _stream(self) -> Words:
        k = self._k()
        group, consumer = self.rng.choice("gh"), self.rng.choice(["p", "q"])
        self._entry += self.rng.randint(0, 1)
        entry, near = f"{self._entry}-{self.rng.randint(0, 2)}", f"{max(0, self._entry - self.rng.randint(0, 9))}-1"
        add = [
            "XADD",
            k,
            *self._maybe("MAXLEN", self.rng.choice(["0" if self._many else "1", "2", "9"])),
            entry,
            "f",
            self._v(),
        ]
        return self._one(
            add,
            add,
            add,
            ["XLEN", k],
            ["XRANGE", k, "-", "+"],
            ["XREVRANGE", k, "+", near, "COUNT", "2"],
            ["XDEL", k, near, entry],
            ["XTRIM", k, "MAXLEN", self.rng.choice(["1", "3"])],
            ["XTRIM", k, "MINID", near],
            ["XSETID", k, entry],
            ["XGROUP", "CREATE", k, group, self.rng.choice(["0", "$"]), *self._maybe("MKSTREAM")],
            ["XGROUP", "CREATE", k, group, "0", "MKSTREAM"],
            ["XGROUP", "DESTROY", k, group],
            ["XGROUP", "SETID", k, group, self.rng.choice(["0", "$", near])],
            ["XGROUP", "DELCONSUMER", k, group, consumer],
            ["XREADGROUP", "GROUP", group, consumer, *self._maybe("COUNT", "1"), "STREAMS", k, ">"],
            ["XREADGROUP", "GROUP", group, consumer, "STREAMS", k, self.rng.choice(["0", near])],
            ["XREAD", "COUNT", "2", "STREAMS", k, self._k(), "0", near],
            ["XACK", k, group, near, entry],
            ["XPENDING", k, group],
            ["XPENDING", k, group, "-", "+", "5"],
            ["XCLAIM", k, group, consumer, "0", near, *self._maybe("JUSTID")],
            ["XAUTOCLAIM", k, group, consumer, "0", "0", *self._maybe("COUNT", "1")],
            ["XINFO", "STREAM", k, *self._maybe("FULL")],
            ["XINFO", "GROUPS", k],
        )

    def _key(self) -> Words:
        k = self._k()
        db = self.rng.choice("012")
        return self._one(
            ["DEL", k, self._k()],
            ["UNLINK", k],
            ["EXISTS", k, self._k()],
            ["TYPE", k],
            ["RENAME", k, self._k()],
            ["RENAMENX", k, self._k()],
            ["COPY", k, self._k(), *self._maybe("REPLACE")],
            ["COPY", k, self._k(), "DB", db, *self._maybe("REPLACE")],
            ["MOVE", k, db],
            ["OBJECT", "ENCODING", k],
            ["TOUCH", k],
            ["KEYS", "*"],
            ["DBSIZE"],
        )

    def _expiry(self) -> Words:
        k = self._k()
        return self._one(
            ["PEXPIRE", k, SOON],
            ["PEXPIREAT", k, FAR],
            ["PEXPIREAT", k, FAR, self.rng.choice(["NX", "XX", "GT", "LT"])],
            ["PERSIST", k],
            ["EXPIRE", k, self.rng.choice(["0", "-1"])],
            ["PEXPIRETIME", k],
            ["TTL", "none"],
        )

    def _database(self) -> Words:
        return self._one(
            ["SELECT", self.rng.choice("0012")],
            ["SELECT", self.rng.choice("0012")],
            ["SWAPDB", self.rng.choice("012"), self.rng.choice("012")],
            ["FLUSHDB"] if self.rng.random() < 0.3 else ["DBSIZE"],
        )

    def _waiting(self) -> Words:
        k, other = (self.rng.choice(KEYS[:-1]) for _ in range(2))
        keys = [k, other] if self._many and k != other else [k]
        group, consumer = self.rng.choice("gh"), self.rng.choice(["p", "q"])
        wait = self.rng.choice(["0", "0", "0", "0.01"])
        ms = "0" if wait == "0" else "10"
        side = self.rng.choice(["LEFT", "RIGHT"])
        return self._one(
            [self.rng.choice(["BLPOP", "BRPOP"]), *keys, wait],
            [self.rng.choice(["BLPOP", "BRPOP"]), k, wait],
            ["BLMOVE", k, other, side, self.rng.choice(["LEFT", "RIGHT"]), wait],
            ["BRPOPLPUSH", k, other, wait],
            ["BLMPOP", wait, str(len(keys)), *keys, side, *self._maybe("COUNT", "2")],
            [self.rng.choice(["BZPOPMIN", "BZPOPMAX"]), *keys, wait],
            ["BZMPOP", wait, str(len(keys)), *keys, self.rng.choice(["MIN", "MAX"]), *self._maybe("COUNT", "2")],
            ["XREAD", "BLOCK", ms, "STREAMS", *keys, "$", self.rng.choice(["$", "0"])][: 4 + 2 * len(keys)],
            ["XREAD", "BLOCK", ms, "STREAMS", k, "$"],
            ["XREADGROUP", "GROUP", group, consumer, "BLOCK", ms, *self._maybe("NOACK"), "STREAMS", k, ">"],
            ["WAIT", self.rng.choice(["0", "1"]), "5"],
        )

    def _transaction(self) -> Words:
        return self._one(
            ["MULTI"], ["MULTI"], ["EXEC"], ["EXEC"], ["EXEC"], ["DISCARD"], ["WATCH", self._k()], ["UNWATCH"]
        )

    def _script(self) -> Words:
        script = self.rng.choice(SCRIPTS)
        while not self._many and ("blpop" in script or "'block'" in script):
            script = self.rng.choice(SCRIPTS)
        name = self.rng.choice(["EVAL", "EVAL", "EVAL", "EVAL_RO"])
        return [name, script, "2", self._k(), self._k(), self._v()]

    def _connection(self) -> Words:
        other = f"{{{self.rng.randrange(self.lines)}}}"
        return self._one(
            ["CLIENT", "KILL", "ID", other],
            ["CLIENT", "KILL", "ID", other, "SKIPME", "yes"],
            ["CLIENT", "UNBLOCK", other, *self._maybe(self.rng.choice(["ERROR", "TIMEOUT"]))],
            ["CLIENT", "UNBLOCK", other],
            ["CLIENT", "PAUSE", "100000", "WRITE"],
            ["CLIENT", "UNPAUSE"],
            ["CLIENT", "UNPAUSE"],
            ["CLIENT", "UNPAUSE"],
            ["CLIENT", "REPLY", self.rng.choice(["OFF", "SKIP", "ON"])],
            ["CLIENT", "REPLY", "OFF"],
            ["RESET"],
            ["HELLO", self.rng.choice("23")],
            ["PING"],
        )

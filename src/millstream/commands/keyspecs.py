"""Which words of a command are keys, and whether the command reads or writes what they hold.

Whoever checks permissions must see exactly the keys that the handler will use, so options are skipped here as the
handlers parse them: ``XREADGROUP GROUP streams c STREAMS key >`` has one key.

Source: https://redis.io/docs/latest/develop/reference/key-specs/
"""

from collections.abc import Callable
from typing import NamedTuple

from millstream.commands.args import read_integer
from millstream.commands.table import Command
from millstream.errors import CommandError

INVALID = "ERR Invalid arguments specified for command"
NO_KEYS = "ERR The command has no key arguments"


class Use(NamedTuple):
    """What a command does with a key's value; neither means that it looks at the key only (its type, its size)."""

    reads: bool
    writes: bool


_LOOK, _READ, _WRITE, _BOTH = Use(False, False), Use(True, False), Use(False, True), Use(True, True)

# Commands that tell of a key, but not what is in it
_LOOKERS = frozenset(
    {"exists", "touch", "type", "watch", "object|encoding", "object|refcount", "memory|usage", "xlen", "strlen"}
    | {"hlen", "hexists", "hstrlen", "llen", "zcard", "scard", "sismember"}
)
# Commands that write and, as Redis sees it, do not tell what was there. A writing command that is in no list needs both
# permissions, so that one forgotten here is refused too often, never too seldom.
_WRITERS = frozenset(
    {"xadd", "xtrim", "xdel", "xdelex", "xsetid", "xcfgset", "xidmprecord", "xack", "xackdel", "xnack", "xclaim"}
    | {"xautoclaim", "xgroup|create", "xgroup|setid", "xgroup|destroy", "xgroup|createconsumer", "xgroup|delconsumer"}
    | {"expire", "pexpire", "expireat", "pexpireat", "persist", "del", "unlink", "restore"}
    | {"setnx", "setex", "psetex", "mset", "append", "hset", "hmset", "hsetnx", "hdel", "lpush", "rpush"}
    | {"zadd", "zrem", "zremrangebyscore", "zremrangebyrank", "sadd", "srem"}
)
# Commands whose keys are used in different ways, in the order of the keys
_BY_PLACE = {"rename": (_BOTH, _WRITE), "renamenx": (_BOTH, _WRITE), "copy": (_READ, _WRITE)}

# Words between XREAD and STREAMS that take a value
_VALUED = frozenset({b"COUNT", b"BLOCK", b"MAXCOUNT", b"MAXSIZE", b"CLAIM"})


def _after_streams(argv: list[bytes]) -> range:
    """XREAD and XREADGROUP: the first half of what follows STREAMS."""
    at = 1
    while at < len(argv):
        word = argv[at].upper()
        if word == b"STREAMS":
            named = len(argv) - at - 1
            if not named or named % 2:
                break
            return range(at + 1, at + 1 + named // 2)
        at += 3 if word == b"GROUP" else 2 if word in _VALUED else 1
    raise CommandError(INVALID)


def _counted(argv: list[bytes]) -> range:
    """EVAL and its like: as many as the word behind the script says."""
    count = read_integer(argv[2])
    if count is None or not 0 <= count <= len(argv) - 3:
        raise CommandError("ERR Invalid number of keys" if count is not None and count < 0 else INVALID)
    return range(3, 3 + count)


MOVABLE: dict[str, Callable[[list[bytes]], range]] = {
    "xread": _after_streams,
    "xreadgroup": _after_streams,
    "eval": _counted,
    "evalsha": _counted,
    "eval_ro": _counted,
    "evalsha_ro": _counted,
}
"""Commands whose keys stand where a word says, not at a fixed place."""


def has_keys(row: Command) -> bool:
    """Whether a command can name keys."""
    return bool(row.keys[0]) or row.name in MOVABLE


def places_of(row: Command, argv: list[bytes]) -> range:
    """The positions of a command line's keys.

    Raises:
        CommandError: the command has none, or the words do not suit it.
    """
    finder = MOVABLE.get(row.name)
    if finder is not None:
        return finder(argv)
    first, last, step = row.keys
    if not first:
        raise CommandError(NO_KEYS)
    return range(first, len(argv) + last + 1 if last < 0 else last + 1, step)


def keys_of(row: Command, argv: list[bytes]) -> list[bytes]:
    """The words of a command line that are keys.

    Raises:
        CommandError: the command has none, or the words do not suit it.
    """
    return [argv[at] for at in places_of(row, argv)]


def uses_of(row: Command, argv: list[bytes]) -> list[tuple[int, Use]]:
    """The position of each key and what is done with it; empty for words that the handler will refuse."""
    if not has_keys(row):
        return []
    try:
        places = places_of(row, argv)
    except CommandError:
        return []
    by_place = _BY_PLACE.get(row.name)
    if by_place is not None:
        return list(zip(places, by_place, strict=True))
    use = _use_of(row, argv)
    return [(at, use) for at in places]


def _use_of(row: Command, argv: list[bytes]) -> Use:
    if row.name == "set":
        return _BOTH if any(word.upper() == b"GET" for word in argv[3:]) else _WRITE
    if row.name in _LOOKERS:
        return _LOOK
    if row.name == "xreadgroup" or "readonly" in row.flags or row.name.endswith("_ro"):
        return _READ
    return _WRITE if row.name in _WRITERS else _BOTH

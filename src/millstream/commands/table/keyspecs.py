"""The positions of keys in a command's arguments, and the use of their values: reading or writing.

Permission checks must see exactly the keys that the handler will use, so options are skipped here as the handlers parse
them: ``XREADGROUP GROUP streams c STREAMS key >`` has one key.

Source: https://redis.io/docs/latest/develop/reference/key-specs/
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple

from millstream.commands.table.args import keyword, read_integer
from millstream.commands.table.hints import KEY_USES
from millstream.commands.table.spec import Command
from millstream.errors import CommandError

INVALID = "ERR Invalid arguments specified for command"
NO_KEYS = "ERR The command has no key arguments"


class Use(NamedTuple):
    """A command's use of a key's value; without both flags it examines only the key itself (its type, its size)."""

    reads: bool
    writes: bool


_WRITING = frozenset({"insert", "update", "delete"})

# Options between XREAD and STREAMS that take a value
_VALUED = frozenset({b"COUNT", b"BLOCK", b"MAXCOUNT", b"MAXSIZE", b"CLAIM"})


def _after_streams(argv: list[bytes]) -> range:
    """XREAD and XREADGROUP: the first half of the arguments after STREAMS.

    The handler refuses invalid options before it. As in Redis, keys are then found all the same after the first STREAMS
    in a possible position.
    """
    at = 1
    while at < len(argv) and (word := keyword(argv[at])) != b"STREAMS":
        at += 3 if word == b"GROUP" else 2 if word in _VALUED else 1
    if at >= len(argv):
        start = 4 if len(argv[0]) > 5 else 1
        at = next((at for at in range(start, len(argv)) if keyword(argv[at]) == b"STREAMS"), len(argv))
    half = (len(argv) - at - 1) // 2  # if the number is odd, the handler reports the error
    if half < 1:
        raise CommandError(INVALID)
    return range(at + 1, at + 1 + half)


def _counted(argv: list[bytes], at: int, step: int, least: int, first: int) -> list[int]:
    """Positions of keys after the argument that gives their number."""
    count = read_integer(argv[at])
    if count is None or not least <= count <= (len(argv) - at - 1) // step:
        raise CommandError(INVALID)
    return [*([first] if first else []), *range(at + 1, at + 1 + count * step, step)]


def _of_sort(argv: list[bytes]) -> list[int]:
    """SORT: its key, and the key of the last STORE."""
    at, target = 2, 0
    while at < len(argv):
        word = keyword(argv[at])
        if word == b"STORE" and at + 1 < len(argv):
            target = at + 1
        at += {b"LIMIT": 3, b"GET": 2, b"BY": 2, b"STORE": 2}.get(word, 1)
    return [1, target] if target else [1]


NUMBERED: dict[str, tuple[int, int]] = {
    name: (at, step)
    for at, step, names in (
        (1, 1, "lmpop zmpop sintercard zintercard zunion zinter zdiff"),
        (1, 2, "msetex"),
        (2, 1, "eval evalsha eval_ro evalsha_ro blmpop bzmpop zunionstore zinterstore zdiffstore"),
    )
    for name in names.split()
}
"""Commands with an argument for the number of keys: its position, and the distance between keys."""


def _finder(name: str, at: int, step: int) -> Callable[[list[bytes]], Sequence[int]]:
    least, first = int(not name.startswith("eval")), int(name.endswith("store"))
    return partial(_counted, at=at, step=step, least=least, first=first)


MOVABLE: dict[str, Callable[[list[bytes]], Sequence[int]]] = {
    "xread": _after_streams,
    "xreadgroup": _after_streams,
    "sort": _of_sort,
    **{name: _finder(name, at, step) for name, (at, step) in NUMBERED.items()},
}
"""Commands whose keys have no fixed positions."""


def has_keys(row: Command) -> bool:
    """True if a command can name keys."""
    return bool(row.keys[0]) or row.name in MOVABLE


def places_of(row: Command, argv: list[bytes]) -> Sequence[int]:
    """The positions of a command line's keys."""
    finder = MOVABLE.get(row.name)
    if finder is not None:
        return finder(argv)
    first, last, step = row.keys
    if not first:
        raise CommandError(NO_KEYS)
    # A script may ask for the keys of a command with too few arguments
    return range(first, min(len(argv) + last + 1 if last < 0 else last + 1, len(argv)), step)


def keys_of(row: Command, argv: list[bytes]) -> list[bytes]:
    """The keys in a command line."""
    return [argv[at] for at in places_of(row, argv)]


def uses_of(row: Command, argv: list[bytes]) -> list[tuple[int, Use]]:
    """The position and the use of each key; empty for arguments that the handler will refuse."""
    if not has_keys(row):
        return []
    try:
        places = places_of(row, argv)
    except CommandError:
        return []
    return [(at, Use("access" in words, not _WRITING.isdisjoint(words))) for at, words in _words_of(row, argv, places)]


def flags_of_keys(row: Command, argv: list[bytes]) -> list[tuple[bytes, tuple[str, ...]]]:
    """The keys of a command line, each with the flags of its key specification."""
    return [(argv[at], words) for at, words in _words_of(row, argv, places_of(row, argv))]


def _words_of(row: Command, argv: list[bytes], places: Sequence[int]) -> list[tuple[int, tuple[str, ...]]]:
    """The positions of keys with their flags; for a few commands they depend on other arguments."""
    # A command missing from this table needs both permissions: it may be refused wrongly, but never allowed wrongly
    uses = KEY_USES.get(row.name, (("RW", "access", "update"),))
    if row.name == "set":
        reads = any(keyword(word) == b"GET" for word in argv[3:])
        uses = (("RW", "access", "update") if reads else ("OW", "update"),)
    elif row.name == "bitfield":
        writes = any(keyword(word) in {b"SET", b"INCRBY"} for word in argv[2:])
        uses = (("RW", "access", "update") if writes else ("RO", "access"),)
    elif row.name == "sort":
        uses = (*uses, ("OW", "update"))  # for STORE
    elif row.name == "delex" and len(argv) > 2:
        uses = (("RW", "access", "delete"),)
    return list(zip(places, chain(uses, repeat(uses[-1])), strict=False))

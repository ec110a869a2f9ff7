"""Parsing of clients' arguments: integers, ids and option lists, with Redis's error texts."""

import math
import re

from millstream.engine import ids
from millstream.engine.keyspace import DATABASES
from millstream.errors import CommandError

NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX_TEXT = "ERR syntax error"
DB_OUT_OF_RANGE = "ERR DB index is out of range"
LLONG_MIN, LLONG_MAX = -(2**63), 2**63 - 1


class SyntaxRefusedError(CommandError):
    """The command has a syntax error.

    What to do: compare the command with its row in docs/compatibility.md.
    """

    # A class, since a single instance that is raised repeatedly would keep a growing traceback
    def __init__(self) -> None:
        super().__init__(SYNTAX_TEXT)


SYNTAX = SyntaxRefusedError


def keyword(word: bytes) -> bytes:
    """An option in capitals, up to its first NUL: Redis compares options as C strings."""
    return word.upper() if b"\0" not in word else word.partition(b"\0")[0].upper()


def cursor(word: bytes) -> int:
    """Parse the cursor of SCAN and similar commands, as Redis 8 does; halves of ids are parsed in the same way."""
    found = ids.half(word.partition(b"\0")[0])
    if found is None:
        raise CommandError("ERR invalid cursor")
    return found


def is_sign(word: bytes, sign: bytes) -> bool:
    """True if an argument is this sign (``*``, ``$``, ``>`` ...), compared as C strings are."""
    return word == sign or (word[1:2] == b"\0" and word[:1] == sign)


# Digits of the largest 64-bit number; int() itself rejects thousands of digits, and is slow for hundreds
_DIGITS = 19


def read_integer(word: bytes) -> int | None:
    """A whole number as Redis's strict reader parses it: no ``+``, no leading zero, no blanks, 64 bits; else None."""
    digits = word[1:] if word[:1] == b"-" else word
    if len(digits) > _DIGITS or not digits.isdigit() or (digits[:1] == b"0" and word != b"0"):
        return None
    value = int(word)
    return value if LLONG_MIN <= value <= LLONG_MAX else None


def integer(word: bytes, error: str = NOT_AN_INTEGER) -> int:
    """A whole number; otherwise raise ``error``."""
    value = read_integer(word)
    if value is None:
        raise CommandError(error)
    return value


def database_number(word: bytes) -> int:
    """The number of an existing database; Redis parses it as a C int, with another error beyond its range."""
    index = integer(word)
    if not -(2**31) <= index < 2**31:
        raise CommandError(f"ERR value is out of range, value must between {-(2**31)} and {2**31 - 1}")
    if not 0 <= index < DATABASES:
        raise CommandError(DB_OUT_OF_RANGE)
    return index


def milliseconds(word: bytes, now: int) -> int:
    """Parse a timeout that starts now (wall milliseconds)."""
    value = integer(word, "ERR timeout is not an integer or out of range")
    if value < 0:
        raise CommandError("ERR timeout is negative")
    if value > LLONG_MAX - now:
        raise CommandError("ERR timeout is out of range")
    return value


_DECIMAL = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
_HEXADECIMAL = re.compile(rb"[+-]?0[xX]([\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)([pP][+-]?\d+)?\Z")
_INFINITE = re.compile(rb"[+-]?inf(inity)?\Z", re.IGNORECASE)


def read_bound(word: bytes) -> float | None:
    """Parse a number as Redis 8 parses range limits: decimal or infinite, no NaN; too large is infinite.

    A number too small for a double is 0.
    """
    if _INFINITE.match(word):
        return -math.inf if word[:1] == b"-" else math.inf
    return float(word) if _DECIMAL.match(word) else None


def read_double(word: bytes) -> float | None:
    """Parse a number as Redis parses scores: also hexadecimal; None also for one beyond the range of a double."""
    if found := _HEXADECIMAL.match(word):
        try:
            value: float | None = float.fromhex(word.decode())
        except OverflowError:
            return None
    elif found := _DECIMAL.match(word):
        value = float(word)
    else:
        return read_bound(word)
    if value in _NOT_HELD and (value or found[1].strip(b"0.")):
        return None
    return value


# Results of a conversion to a double if the number is too small or too large
_NOT_HELD = frozenset({0.0, math.inf, -math.inf})


def entry_id(word: bytes, missing_seq: int = 0) -> int:
    """Parse an explicit id; neither ``-`` nor ``+``."""
    found = ids.parse(word, missing_seq)
    if found is None:
        raise CommandError(ids.INVALID)
    return found


def entry_ids(words: list[bytes]) -> list[int]:
    """Parse several explicit ids before any is used."""
    return [entry_id(word) for word in words]


def range_start(word: bytes) -> int:
    """The lower end of a range: an id, ``-``, ``+``, or ``(id`` for "above id"."""
    found = ids.parse_bound(word, 0)
    if found is None:
        raise CommandError(ids.INVALID)
    value, exclusive = found
    if exclusive and value == ids.MAX_ID:
        raise CommandError("ERR invalid start ID for the interval")
    return value + exclusive


def range_end(word: bytes) -> int:
    """The upper end of a range: as :func:`range_start`, but a missing sequence means the largest."""
    found = ids.parse_bound(word, ids.MAX64)
    if found is None:
        raise CommandError(ids.INVALID)
    value, exclusive = found
    if exclusive and value == ids.MIN_ID:
        raise CommandError("ERR invalid end ID for the interval")
    return value - exclusive


def shown(word: bytes, most: int | None = None) -> str:
    """An argument inside an error line: its bytes up to the first NUL and a limit (as C prints it)."""
    return word.partition(b"\0")[0][:most].decode("utf-8", "surrogateescape")


def bad_subcommand(container: str, word: bytes) -> CommandError:
    """Return the error for a known subcommand with invalid options; it shows the argument unchanged."""
    name = shown(word, 128)
    return CommandError(f"ERR unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP.")

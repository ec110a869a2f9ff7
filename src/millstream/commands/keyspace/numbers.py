"""Commands on numbers stored as strings: INCR DECR INCRBY DECRBY INCRBYFLOAT INCREX.

The key holds the number's canonical text. The log records results, so a replay does not repeat the addition.

Source: https://redis.io/docs/latest/commands/?group=string
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from millstream.commands.context.context import Context
from millstream.commands.keyspace.expiry import delete_key, is_over
from millstream.commands.keyspace.strings import TIME_WORDS, Death, change_part, expiry, get_string
from millstream.commands.table import long_double
from millstream.commands.table.args import LLONG_MAX, LLONG_MIN, NOT_AN_INTEGER, SYNTAX, integer, keyword, read_integer
from millstream.commands.table.table import STRING
from millstream.errors import CommandError
from millstream.replies import Raw, Reply


def _change(ctx: Context, key: bytes, data: bytes, event: str) -> None:
    """Replace a string and keep its expiry time."""
    change_part(ctx, key, ("set", ctx.db.index, key, data, ctx.db.expires.get(key)), event)


def _add(ctx: Context, key: bytes, step: int) -> Reply:
    """Carry out INCR, DECR, INCRBY and DECRBY on a 64-bit integer in canonical form; ``+1`` and ``01`` are invalid.

    The key keeps its time to live. The event is ``incrby`` for all of them, also for DECR.
    """
    before = get_string(ctx, key)
    value = 0 if before is None else read_integer(before)
    if value is None:
        raise CommandError(NOT_AN_INTEGER)
    value += step
    if not LLONG_MIN <= value <= LLONG_MAX:
        raise CommandError("ERR increment or decrement would overflow")
    _change(ctx, key, b"%d" % value, "incrby")
    return value


@STRING.command("incrbyfloat", 3, "write denyoom fast")
def incrbyfloat(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value in decimal, as it is stored.

    Redis adds in C's ``long double``. Python's doubles would give other digits, see ``long_double``. The log records
    the result as text, so a replay does not repeat the addition.
    """
    before = get_string(ctx, argv[1])
    value = Fraction(0) if before is None else long_double.read(before)
    step = long_double.read(argv[2])
    if value is None or step is None:
        raise CommandError("ERR value is not a valid float")
    total = None if isinstance(value, float) or isinstance(step, float) else long_double.add(value, step)
    if total is None:
        raise CommandError("ERR increment would produce NaN or Infinity")
    data = long_double.text(total)
    _change(ctx, argv[1], data, "incrbyfloat")
    return data


@STRING.command("incr", 2, "write denyoom fast")
def incr(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value; a missing key counts as 0."""
    return _add(ctx, argv[1], 1)


@STRING.command("decr", 2, "write denyoom fast")
def decr(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value; a missing key counts as 0."""
    return _add(ctx, argv[1], -1)


@STRING.command("incrby", 3, "write denyoom fast")
def incrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value."""
    return _add(ctx, argv[1], integer(argv[2]))


@STRING.command("decrby", 3, "write denyoom fast")
def decrby(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value. The smallest integer is refused, since it cannot be negated."""
    step = integer(argv[2])
    if step == LLONG_MIN:
        raise CommandError("ERR decrement would overflow")
    return _add(ctx, argv[1], -step)


@dataclass(slots=True)
class _Increase:
    """INCREX's options."""

    floats: bool = False  # BYFLOAT
    step: bytes = b"1"  # Number to add
    low: bytes | None = None  # LBOUND, None if not given
    high: bytes | None = None  # UBOUND
    saturates: bool = False  # SATURATE
    enx: bool = False  # ENX
    persist: bool = False  # PERSIST
    expires: Death | None = None


def _increase(words: list[bytes]) -> _Increase:
    """Read INCREX's options, in any order, each at most once."""
    asked, seen = _Increase(), set[str]()
    valued = {b"BYINT": "step", b"BYFLOAT": "step", b"LBOUND": "low", b"UBOUND": "high"}
    plain = {b"SATURATE": "saturates", b"ENX": "enx", b"PERSIST": "persist"}
    at = 0
    while at < len(words):
        word, has_value = keyword(words[at]), at + 1 < len(words)
        name = plain.get(word) or (has_value and (valued.get(word) or (word in TIME_WORDS and "expires"))) or ""
        if not name or name in seen:
            raise SYNTAX
        seen.add(name)
        if word in plain:
            setattr(asked, name, True)
        else:
            at += 1
            setattr(asked, name, (words[at], *TIME_WORDS[word]) if word in TIME_WORDS else words[at])
        asked.floats |= word == b"BYFLOAT"
        at += 1
    if asked.persist and (asked.enx or asked.expires):
        raise SYNTAX
    if asked.enx and not asked.expires:
        raise CommandError("ERR ENX flag requires an expiration")
    return asked


_STEP = "Increment"
_CROSSED = "ERR LBOUND can't be greater than UBOUND"


def _whole(word: bytes, name: str = "value") -> Fraction:
    return Fraction(integer(word, f"ERR {name} is not an integer or out of range"))


def _real(word: bytes, name: str = "value") -> Fraction:
    value = long_double.read(word)
    if isinstance(value, float):
        raise CommandError(f"ERR {'BYFLOAT increment' if name == _STEP else name} cannot be Infinity")
    if not isinstance(value, Fraction):
        raise CommandError(f"ERR {name} is not a valid float")
    return value


def _limit(asked: _Increase, word: bytes | None, name: str) -> Fraction | float:
    """Return a bound, which may be infinite. Without one, return the limit of the number type."""
    if word is None:
        ends = (
            (-long_double.LARGEST, long_double.LARGEST) if asked.floats else (Fraction(LLONG_MIN), Fraction(LLONG_MAX))
        )
        return ends[name == "UBOUND"]
    if asked.floats and isinstance(value := long_double.read(word), float):
        return value
    return (_real if asked.floats else _whole)(word, name)


@STRING.command("increx", -2, "write denyoom fast")
def increx(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the new value and the increment applied.

    Beyond a bound nothing changes; with SATURATE the value becomes the bound. A key keeps its time to live unless
    another is given; with ENX the new one applies only if the key has none.
    """
    asked = _increase(argv[2:])
    read = _real if asked.floats else _whole
    step = read(asked.step, _STEP)
    low, high = _limit(asked, asked.low, "LBOUND"), _limit(asked, asked.high, "UBOUND")
    if low > high:
        raise CommandError(_CROSSED)
    at = expiry(ctx, asked.expires, "increx")
    before = get_string(ctx, argv[1])
    value = Fraction(0) if before is None else read(before)
    total = _bounded(value, step, low, high, asked)
    if total is None:
        return _answer(ctx, [value, Fraction(0)], floats=asked.floats)
    present = ctx.db.expires.get(argv[1])
    keeps = at is None or (asked.enx and present is not None)
    if not keeps and is_over(ctx, at):  # the key expires at once, with a single event
        if before is not None:
            delete_key(ctx, argv[1])
        return _answer(ctx, [total, total - value], floats=asked.floats)
    expires_at = None if asked.persist else present if keeps else at
    data = long_double.text(total) if asked.floats else b"%d" % int(total)
    change = ("set", ctx.db.index, argv[1], data, expires_at)
    change_part(ctx, argv[1], change, "incrbyfloat" if asked.floats else "incrby")
    if expires_at != present:
        ctx.notify("g", "persist" if expires_at is None else "expire", argv[1])
    return _answer(ctx, [total, total - value], floats=asked.floats)


def _bounded(
    value: Fraction, step: Fraction, low: Fraction | float, high: Fraction | float, asked: _Increase
) -> Fraction | None:
    """Return the sum, or with SATURATE the bound that it would pass; None if it passes a bound without SATURATE."""
    total = long_double.add(value, step) if asked.floats else value + step
    passed: Fraction | float = total if total is not None else math.inf if step > 0 else -math.inf
    nearest = min(max(passed, low), high)
    if nearest == total:
        return total
    if not asked.saturates:
        return None
    if isinstance(nearest, float) or (asked.floats and long_double.add(nearest, -value) is None):
        raise CommandError("ERR applied increment would be Infinity")
    if not asked.floats and not LLONG_MIN <= nearest - value <= LLONG_MAX:
        raise CommandError("ERR applied increment would overflow")
    return nearest


def _answer(ctx: Context, values: list[Fraction], *, floats: bool) -> Reply:
    """Return the reply of INCREX. Numbers of BYFLOAT are text in RESP2 and doubles in RESP3."""
    if not floats:
        return [int(value) for value in values]
    texts = [long_double.text(value) for value in values]
    # The reply is the stored text: a double has fewer digits and cannot exceed 1.8e308
    return [Raw([b",%s\r\n" % text]) for text in texts] if ctx.session.resp == 3 else list(texts)

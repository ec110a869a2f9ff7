"""Commands on the bits of strings: SETBIT GETBIT BITCOUNT BITPOS BITOP BITFIELD BITFIELD_RO.

Bit 0 is the highest bit of the first byte. The log records only the changed bytes.

Source: https://redis.io/docs/latest/commands/?group=bitmap
"""

from dataclasses import dataclass
from functools import reduce
from operator import and_, or_, xor

from millstream.commands.context.context import Context
from millstream.commands.keyspace.collections import Family
from millstream.commands.keyspace.strings import MAX_BYTES, change_part, get_string
from millstream.commands.table.args import SYNTAX, integer, keyword, read_integer
from millstream.engine.keyspace import StringValue
from millstream.errors import CommandError
from millstream.replies import Reply

BITS = Family("bitmap", "$")
_BAD_OFFSET = "ERR bit offset is not an integer or out of range"
_BAD_BIT = "ERR bit is not an integer or out of range"


def _offset(word: bytes, width: int = 0) -> int:
    """Return the position of a bit. With a width, ``#3`` is the position of field 3, counted from 0."""
    counts = width > 0 and word[:1] == b"#"
    offset = integer(word[counts:], _BAD_OFFSET) * (width if counts else 1)
    if offset < 0 or offset >> 3 >= MAX_BYTES:
        raise CommandError(_BAD_OFFSET)
    return offset


@BITS.command("setbit", 4, "write denyoom")
def setbit(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the old bit. The command counts as a change if the bit differs or the string grows."""
    offset, bit = _offset(argv[2]), integer(argv[3], _BAD_BIT)
    if bit not in {0, 1}:
        raise CommandError(_BAD_BIT)
    value = ctx.lookup_as(argv[1], StringValue)
    at, mask = offset >> 3, 0x80 >> (offset & 7)
    part = b"" if value is None else value.part(at, at + 1)
    byte = part[0] if part else 0
    before = int(byte & mask > 0)
    if not part or before != bit:
        change_part(
            ctx, argv[1], ("overwrite", ctx.db.index, argv[1], at, bytes([byte & ~mask | mask * bit])), "setbit"
        )
    return before


@BITS.command("getbit", 3, "readonly fast")
def getbit(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the bit; 0 beyond the end of the string."""
    offset = _offset(argv[2])
    value = ctx.lookup_as(argv[1], StringValue)
    part = b"" if value is None else value.part(offset >> 3, (offset >> 3) + 1)
    return part[0] >> 7 - (offset & 7) & 1 if part else 0


# ---------------------------------------------------------------------- ranges


def _in_bits(words: list[bytes]) -> bool:
    """Return True for the unit BIT, False for BYTE or no unit."""
    if words and keyword(words[0]) not in {b"BIT", b"BYTE"}:
        raise SYNTAX
    return bool(words) and keyword(words[0]) == b"BIT"


def _clamped(start: int, end: int, length: int) -> tuple[int, int]:
    """Limit a range to the length; both ends are included. If the range is empty, the end is below the start."""
    start = max(start + length, 0) if start < 0 else start
    end = max(end + length, 0) if end < 0 else end
    return start, min(end, length - 1)


def _within(data: bytes, first: int, last: int, *, fill: int) -> bytearray:
    """Return the bytes that contain a range of bits, both ends included; bits outside the range equal ``fill``."""
    part = bytearray(data[first >> 3 : (last >> 3) + 1])
    before, behind = 0xFF00 >> (first & 7) & 0xFF, 0x7F >> (last & 7)
    part[0] = part[0] | before if fill else part[0] & ~before
    part[-1] = part[-1] | behind if fill else part[-1] & ~behind
    return part


@BITS.command("bitcount", -2, "readonly")
def bitcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of set bits between two bytes or bits, both included; negative positions count from the end.

    The arguments are checked before the key.
    """
    if len(argv) not in {2, 4, 5}:
        raise SYNTAX
    start, end = (integer(argv[2]), integer(argv[3])) if len(argv) > 2 else (0, -1)
    in_bits = _in_bits(argv[4:])
    data = get_string(ctx, argv[1])
    if data is None or 0 > start > end:
        return 0
    unit = 1 if in_bits else 8
    start, end = _clamped(start, end, len(data) * 8 // unit)
    if start > end:
        return 0
    return int.from_bytes(_within(data, start * unit, end * unit + unit - 1, fill=0), "big").bit_count()


@BITS.command("bitpos", -3, "readonly")
def bitpos(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the position of the first bit with this value, -1 if there is none.

    Without an end argument, the string counts as followed by clear bits.
    """
    bit = integer(argv[2])
    if bit not in {0, 1}:
        raise CommandError("ERR The bit argument must be 1 or 0.")
    if len(argv) > 6:
        raise SYNTAX
    start = integer(argv[3]) if len(argv) > 3 else 0
    in_bits = _in_bits(argv[5:])
    end = integer(argv[4]) if len(argv) > 4 else -1
    data = get_string(ctx, argv[1])
    if data is None:
        return -1 if bit else 0
    unit = 1 if in_bits else 8
    start, end = _clamped(start, end, len(data) * 8 // unit)
    if start > end:
        return -1
    first = start * unit
    part = _within(data, first, end * unit + unit - 1, fill=1 - bit)
    rest = part.lstrip(b"\0" if bit else b"\xff")
    if not rest:
        return len(data) * 8 if not bit and len(argv) < 5 else -1
    byte = rest[0] if bit else ~rest[0] & 0xFF
    return ((first >> 3) + len(part) - len(rest)) * 8 + 8 - byte.bit_length()


# ---------------------------------------------------------------------- several strings

_OPERATIONS = {b"AND": and_, b"OR": or_, b"XOR": xor, b"NOT": None}


@BITS.command("bitop", -4, "write denyoom", keys=(2, -1, 1))
def bitop(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the length of the result, which equals that of the longest source. An empty result deletes the key."""
    name = keyword(argv[1])
    if name not in _OPERATIONS:
        raise SYNTAX
    operation = _OPERATIONS[name]
    if operation is None and len(argv) != 4:
        raise CommandError("ERR BITOP NOT must be called with a single source key.")
    sources = [get_string(ctx, key) or b"" for key in argv[3:]]
    length = max(map(len, sources))
    numbers = [int.from_bytes(source.ljust(length, b"\0"), "big") for source in sources]
    number = reduce(operation, numbers) if operation else numbers[0] ^ (1 << 8 * length) - 1
    ctx.host.weigh(length)
    step = ("set", ctx.db.index, argv[2], number.to_bytes(length, "big"), None) if length else None
    BITS.stored(ctx, argv[2], step, "set")
    return length


# ---------------------------------------------------------------------- fields


@dataclass(frozen=True, slots=True)
class BitField:
    """One operation of BITFIELD."""

    name: bytes  # Name of the operation: GET, SET or INCRBY
    signed: bool  # The first bit is the sign
    width: int  # Bits of the field
    offset: int  # Position of its first bit
    operand: int = 0  # Value to set or add
    overflow: bytes = b"WRAP"  # Overflow behaviour: WRAP, SAT or FAIL

    @property
    def last_byte(self) -> int:
        """Position of the last byte that the field touches."""
        return self.offset + self.width - 1 >> 3

    def read(self, value: StringValue | None) -> int:
        """Return the number in the field. Bits beyond the end of the string are 0."""
        size = self.last_byte - (self.offset >> 3) + 1
        part = b"" if value is None else value.part(self.offset >> 3, self.last_byte + 1)
        bits = int.from_bytes(part.ljust(size, b"\0"), "big") >> self._behind
        return self._wrapped(bits)

    def written(self, value: StringValue, number: int) -> bytes:
        """Return the bytes that contain the field, with a new number in it."""
        first = self.offset >> 3
        bits = int.from_bytes(value.part(first, self.last_byte + 1), "big")
        mask = (1 << self.width) - 1
        bits = bits & ~(mask << self._behind) | (number & mask) << self._behind
        return bits.to_bytes(self.last_byte + 1 - first, "big")

    def wanted(self, before: int) -> int | None:
        """Return the new number of the field, given the old one; None if it does not fit and OVERFLOW is FAIL."""
        number = before + self.operand if self.name == b"INCRBY" else self.operand
        if not self.signed and self.name == b"SET":
            number &= 2**64 - 1  # a negative number counts as a large unsigned one
        low, high = (-(1 << self.width - 1), (1 << self.width - 1) - 1) if self.signed else (0, (1 << self.width) - 1)
        if low <= number <= high:
            return number
        if self.overflow == b"FAIL":
            return None
        return self._wrapped(number) if self.overflow == b"WRAP" else min(max(number, low), high)

    @property
    def _behind(self) -> int:
        """Number of bits after the field in its last byte."""
        return 7 - (self.offset + self.width - 1 & 7)

    def _wrapped(self, bits: int) -> int:
        bits &= (1 << self.width) - 1
        return bits - (1 << self.width) if self.signed and bits >> self.width - 1 else bits


def _kind(word: bytes) -> tuple[bool, int]:
    """Return True if the type is signed, and its width in bits: ``i8`` or ``u8``."""
    sign, width = word[:1], read_integer(word.partition(b"\0")[0][1:])
    most = {b"i": 64, b"u": 63}.get(sign, 0)
    if width is None or not 1 <= width <= most:
        raise CommandError(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is."
        )
    return sign == b"i", width


_OPERANDS = {b"GET": 2, b"SET": 3, b"INCRBY": 3, b"OVERFLOW": 1}


def _fields(words: list[bytes]) -> list[BitField]:
    """Return the operations of a BITFIELD. OVERFLOW applies to the operations after it."""
    found: list[BitField] = []
    overflow, at = b"WRAP", 0
    while at < len(words):
        name = keyword(words[at])
        given = words[at + 1 : at + 1 + _OPERANDS.get(name, 0)]
        if name not in _OPERANDS or len(given) < _OPERANDS[name]:
            raise SYNTAX
        if name == b"OVERFLOW":
            overflow = keyword(given[0])
            if overflow not in {b"WRAP", b"SAT", b"FAIL"}:
                raise CommandError("ERR Invalid OVERFLOW type specified")
        else:
            signed, width = _kind(given[0])
            offset = _offset(given[1], width)
            operand = integer(given[2]) if len(given) > 2 else 0
            found.append(BitField(name, signed, width, offset, operand, overflow))
        at += 1 + len(given)
    return found


def _changed(ctx: Context, key: bytes, fields: list[BitField]) -> Reply:
    """Carry out operations in order and return their replies. Each operation sees the result of those before it.

    The string first grows to the length that all operations need, even if none of them is carried out.
    """
    value = ctx.lookup_as(key, StringValue)
    end = max(field.last_byte for field in fields if field.name != b"GET")
    grown = value is None or value.size <= end
    if grown:
        ctx.commit(("overwrite", ctx.db.index, key, end, b"\0"))
        value = ctx.db.keys[key]  # type: ignore[assignment] # the string that was created above
    assert isinstance(value, StringValue)
    replies: list[Reply] = []
    changes = 0
    for field in fields:
        before = field.read(value)
        wanted = before if field.name == b"GET" else field.wanted(before)
        replies.append(before if field.name == b"SET" and wanted is not None else wanted)
        if field.name != b"GET" and wanted is not None and (grown or wanted != before):
            ctx.commit(("overwrite", ctx.db.index, key, field.offset >> 3, field.written(value, wanted)))
            changes += 1
    if changes:
        BITS.changed(ctx, key, "setbit", changes)
    return replies


@BITS.command("bitfield", -2, "write denyoom")
def bitfield(ctx: Context, argv: list[bytes]) -> Reply:
    """Return one number per operation: the old one for SET, the new one for INCRBY; null if FAIL forbids the change."""
    fields = _fields(argv[2:])
    if any(field.name != b"GET" for field in fields):
        return _changed(ctx, argv[1], fields)
    value = ctx.lookup_as(argv[1], StringValue)
    return [field.read(value) for field in fields]


@BITS.command("bitfield_ro", -2, "readonly fast")
def bitfield_ro(ctx: Context, argv: list[bytes]) -> Reply:
    """Carry out a BITFIELD that has only GET operations."""
    fields = _fields(argv[2:])
    if any(field.name != b"GET" for field in fields):
        raise CommandError("ERR BITFIELD_RO only supports the GET subcommand")
    value = ctx.lookup_as(argv[1], StringValue)
    return [field.read(value) for field in fields]

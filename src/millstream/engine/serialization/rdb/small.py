"""Redis's forms of small collections, read as lists of elements. PURE.

Listpacks since Redis 7.0, ziplists before it, intsets, and the zipmaps of Redis before 2.6. In each the elements follow
one another, and numbers are stored as binary numbers.
"""

from collections.abc import Iterator
from itertools import pairwise

from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb.bulk import listpack
from millstream.engine.serialization.rdb.sizes import Payload

# Two-byte count for "too many": a reader must count the elements
_MANY = 0xFFFF
# Bytes of a number in a ziplist, by its first byte
_ZIP_NUMBERS = {0xC0: 2, 0xD0: 4, 0xE0: 8, 0xF0: 3, 0xFE: 1}


def listpack_elements(packed: bytes) -> list[bytes]:
    """The elements of a listpack."""
    found = list(listpack(packed))
    return _counted(found, int.from_bytes(packed[4:6], "little"))


def _counted(found: list[bytes], said: int) -> list[bytes]:
    if said not in {len(found), _MANY}:
        raise MalformedError("not as many elements as it says")
    return found


def ziplist_elements(packed: bytes) -> list[bytes]:
    """The elements of a ziplist."""
    if len(packed) < 11 or packed[:4] != len(packed).to_bytes(4, "little") or packed[-1] != 0xFF:
        raise MalformedError("not a ziplist")
    # Four bytes of total size, four for the last element's offset, two for the count
    source = Payload(packed[:-1], 10)
    found: list[bytes] = []
    before = start = source.at
    while source.at < len(source.data):
        before, start = start, source.at
        # Each element begins with the size of the element before it
        if _before(source) != (start - before if found else 0):
            raise MalformedError("a ziplist that cannot be walked backwards")
        found.append(_ziplist_element(source))
    # Redis pops from the end with this offset
    if int.from_bytes(packed[4:8], "little") != start:
        raise MalformedError("a ziplist whose last element is elsewhere")
    return _counted(found, int.from_bytes(packed[8:10], "little"))


def _before(source: Payload) -> int:
    """Read the size of the element before, in bytes."""
    first = source.byte()
    if first == 0xFF:
        raise MalformedError("a ziplist that ends early")
    return first if first < 0xFE else source.little(4)  # 0xFE announces four more bytes


def _ziplist_element(source: Payload) -> bytes:
    """Read one element, after the size of the element before."""
    first = source.byte()
    kind = first >> 6
    if kind == 0:
        return source.take(first & 63)
    if kind == 1:
        return source.take((first & 63) << 8 | source.byte())
    if first == 0x80:
        return source.take(int.from_bytes(source.take(4), "big"))
    if first in _ZIP_NUMBERS:
        return b"%d" % source.little(_ZIP_NUMBERS[first], signed=True)
    # The first byte contains a small number plus one
    if 0xF1 <= first <= 0xFD:
        return b"%d" % (first - 0xF1)
    raise MalformedError("an unknown element of a ziplist")


def intset_elements(packed: bytes) -> list[bytes]:
    """The numbers of an intset."""
    source = Payload(packed)
    width, count = source.little(4), source.little(4)
    if width not in {2, 4, 8} or len(packed) != 8 + width * count:
        raise MalformedError("not an intset")
    numbers = [source.little(width, signed=True) for _ in range(count)]
    # Redis uses binary search, and would not find members that are out of order
    if any(one >= other for one, other in pairwise(numbers)):
        raise MalformedError("an intset out of order")
    return [b"%d" % each for each in numbers]


def zipmap_elements(packed: bytes) -> list[bytes]:
    """Fields and values of a zipmap in turn."""
    if len(packed) < 2 or packed[-1] != 0xFF:
        raise MalformedError("not a zipmap")
    source = Payload(packed[:-1], 1)
    found = list(_zipmap(source))
    if packed[0] not in {len(found) // 2, 254}:
        raise MalformedError("not as many elements as it says")
    return found


def _zipmap(source: Payload) -> Iterator[bytes]:
    while source.at < len(source.data):
        yield source.take(_zipmap_size(source))
        size, unused = _zipmap_size(source), source.byte()
        yield source.take(size)
        source.take(unused)


def _zipmap_size(source: Payload) -> int:
    first = source.byte()
    if first == 0xFF:
        raise MalformedError("a zipmap that ends early")
    return first if first < 0xFE else source.little(4)

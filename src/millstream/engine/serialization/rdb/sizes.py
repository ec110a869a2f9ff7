"""Bytes of Redis's form, read from front to end: numbers and sizes. PURE."""

from millstream.engine.serialization.plain import MalformedError


class Payload:
    """Bytes that have all arrived."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data  # All bytes
        self.at = at  # Position of the next byte to read

    def reach(self, size: int) -> None:
        """Make sure that this many bytes are in ``data`` from ``at`` on, or all that are left."""

    def take(self, size: int) -> bytes:
        """Read this many bytes."""
        if size > len(self.data) - self.at:
            self.reach(size)
        start = self.at
        if size > len(self.data) - start:
            raise MalformedError("cut short")
        self.at = start + size
        return self.data[start : self.at]

    def byte(self) -> int:
        """Read one byte."""
        return self.take(1)[0]

    def little(self, size: int, *, signed: bool = False) -> int:
        """Read a number, lowest byte first."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def size(self) -> int:
        """Read a size of 6, 14, 32 or 64 bits, by its first two bits."""
        size, is_special = self.size_or_special()
        if is_special:
            raise MalformedError("a size expected")
        return size

    def size_or_special(self) -> tuple[int, bool]:
        """Read a size, or the number of a special encoding with True."""
        first = self.byte()
        kind = first >> 6
        # The first two bits determine the form: 6 bits, 14 bits, a fixed width, or a specially encoded string
        if kind == 0:
            return first & 63, False
        if kind == 1:
            return (first & 63) << 8 | self.byte(), False
        if kind == 3:
            return first & 63, True
        if first == 0x80:
            return int.from_bytes(self.take(4), "big"), False  # big-endian, unlike all other numbers of the format
        if first == 0x81:
            return int.from_bytes(self.take(8), "big"), False
        raise MalformedError("an unknown size")

    def entry_id(self) -> int:
        """Read an id stored as two sizes, as in counters."""
        ms = self.size()
        return ms << 64 | self.size()

    def end(self) -> None:
        """Raise if bytes are left over."""
        if self.at != len(self.data):
            raise MalformedError("bytes left over")

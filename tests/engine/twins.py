"""Both cores' entry stores side by side: run the same steps and compare everything visible."""

from random import Random
from typing import Any

from millstream.engine.ids import MAX_ID
from millstream.engine.streams.entries import PyEntryStore
from support import needs

native = needs.native_core()

# Numbers and strings on both sides of each bound of a listpack's sizes
VALUES = (
    *(b"", b"v", b"007", b"-", b"-0", b"+1", b"0", b"-1", b"127", b"128", b"-4096", b"-4097", b"4095", b"4096"),
    *(b"32767", b"-32769", b"8388607", b"-8388609", b"2147483647", b"2147483648", b"-2147483649"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809"),
    *(b"9" * 19, b"9" * 20, b"1" * 64, b"x" * 63, b"x" * 64, b"x" * 125, b"x" * 126, b"x" * 4095, b"x" * 4096),
    *(b"x" * 16377, b"x" * 16378, b"\r\n", b"\0\xff"),
)
NAMES = ([b"f"], [b"a", b"b", b"c"], [b"a", b"b", b"d"], [b"a", b"a"], [b"", b"1"], [b"n" * 200])
# The growth of an id: within a millisecond, over one, to where differences change their size or wrap
STEPS = (1, 1, 1, 2, 130, 2**16, 2**31, 2**63, 1 << 64, 3 << 64, (1 << 64) + 5, 2**20 << 64)


class Twins:
    """The two stores, and the last id of the stream."""

    def __init__(self) -> None:
        self.python = PyEntryStore()
        self.native = native.EntryStore()
        self.last = 0

    def both(self, name: str, *args: object, **keywords: object) -> Any:
        """Call a method of both stores, which must return the same."""
        mine = getattr(self.python, name)(*args, **keywords)
        theirs = getattr(self.native, name)(*args, **keywords)
        assert plain(mine) == plain(theirs), (name, args, keywords)
        return mine

    def add(self, step: int, fields: list[bytes], limits: tuple[int, int], *, dead: bool = False) -> None:
        """Add an entry ``step`` above the last id, if an id is left."""
        if self.last + step > MAX_ID:
            return
        self.last += step
        fresh = self.both("needs_block", sum(map(len, fields)), *limits)
        self.both("append", self.last, fields, fresh=fresh, dead=dead)

    def back(self, last: int) -> None:
        """Move the last id back, but not below a live entry."""
        self.last = max(self.python.last_live_id, min(last, self.last))
        self.both("reach_back", self.last)

    def restore(self) -> None:
        """Continue with new stores, each loaded from the other's snapshot."""
        packed = [[node.pack() for node in store.nodes()] for store in (self.native, self.python)]
        assert packed[0] == packed[1]
        self.python, self.native = PyEntryStore(), native.EntryStore()
        for store, found in zip((self.python, self.native), packed, strict=True):
            half = len(found) // 2
            if found:
                store.extend(found[:half] or found)
            if half:
                store.extend(found[half:])

    def copy(self) -> None:
        """Continue with copies."""
        self.python, self.native = self.python.copy(), self.native.copy()

    def some_id(self, random: Random) -> int:
        """Return an id that is stored, next to a stored one, or anywhere, also out of range."""
        stored = [entry for node in self.python.nodes() for entry, _, _ in node.entries()]
        near = random.choice(stored) if stored else 0
        return random.choice((near, near, near + 1, near - 1, self.last, self.last + 1, 0, -1, MAX_ID, MAX_ID + 1))

    def compare(self, start: int, end: int, count: int) -> None:
        """Compare everything visible, and one range."""
        mine, theirs = self.python, self.native
        for name in ("length", "first_id", "last_live_id", "node_count"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert [seen(node) for node in mine.nodes()] == [seen(node) for node in theirs.nodes()]
        self.both("ids", start, end, count)
        self.both("rows", start, end, count)
        for backwards in (False, True):
            number, buffers, last = mine.reply(start, end, count, backwards=backwards)
            there = theirs.reply(start, end, count, backwards=backwards)
            assert (number, b"".join(buffers), last) == (there[0], b"".join(there[1]), there[2])
        for entry in (start, end):
            self.both("wire", entry)
            assert (entry in mine) == (entry in theirs)


def plain(value: Any) -> Any:
    """Return a method's result in a form to compare."""
    if isinstance(value, memoryview):
        return bytes(value)
    if hasattr(value, "__next__"):
        return [(entry, bytes(row)) for entry, row in value]
    return value


def seen(node: Any) -> list[Any]:
    """Return everything that a node shows."""
    return [
        node.first,
        node.last,
        node.live,
        node.stored,
        node.size,
        node.live_ids(),
        list(node.entries()),
        node.pack(),
        node.listpack(),
    ]


def step(twins: Twins, random: Random) -> None:
    """Run one random step."""
    what = random.choices(
        ("add", "dead", "remove", "below", "drop", "back", "restore", "copy"), (69, 3, 20, 4, 3, 4, 1, 1)
    )[0]
    limits = random.choice(((0, 5), (4096, 100), (200, 0), (0, 0)))
    if what in {"add", "dead"}:
        names = random.choice(NAMES)
        fields = [word for name in names for word in (name, random.choice(VALUES[: random.choice((8, 30, 99))]))]
        twins.add(random.choice(STEPS[: random.choice((3, 99))]), fields, limits, dead=what == "dead")
    elif what == "remove":
        twins.both("remove", twins.some_id(random), keep=random.random() < 0.5)
    elif what == "below":
        twins.both("remove_below", twins.some_id(random), keep=random.random() < 0.5)
    elif what == "drop":
        twins.both("drop_emptied", twins.some_id(random))
    elif what == "back":
        twins.back(random.randint(0, twins.last))
    elif what == "restore":
        twins.restore()
    else:
        twins.copy()

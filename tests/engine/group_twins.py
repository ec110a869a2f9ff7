"""Both cores' groups side by side: run the same steps and compare everything visible."""

from random import Random
from typing import Any

from millstream.engine.ids import MAX_ID, pack_all
from millstream.engine.streams.entries import PyEntryStore
from millstream.engine.streams.group import PyGroup
from millstream.engine.streams.pending import MAX_DELIVERIES
from support import needs

native = needs.native_core()

NAMES = (b"a", b"b", b"", b"\r\n")
# Ids near each other and at both ends; times before the clock's beginning, together and apart
NEAR = 40
TIMES = (0, 0, 1, 5, 5, 9, 100, -3, 2**63 - 1, -(2**63) + 1)
COUNTS = (0, 1, 2, 2**40, MAX_DELIVERIES)


class GroupTwins:
    """The two groups, and the two stores of entries for claims."""

    def __init__(self, entries: range = range(1, NEAR, 2)) -> None:
        self.python = PyGroup(5, -1)
        self.native = native.Group(5, -1)
        self.stores = (PyEntryStore(), native.EntryStore())
        for store in self.stores:
            for at, entry in enumerate(entries):
                store.append(entry, [b"f", b"%d" % entry], fresh=at % 7 == 0)

    def both(self, name: str, *args: object) -> Any:
        """Call a method of both groups, which must return the same."""
        mine, theirs = getattr(self.python, name)(*args), getattr(self.native, name)(*args)
        assert mine == theirs, (name, args)
        return mine

    def assign(self, entry: int, name: bytes, time: int, count: int, *, restore: bool = False) -> None:
        """Assign an entry to a consumer."""
        for group in (self.python, self.native):
            (group.restore if restore else group.assign)(entry, group.consumer(name, time), time, count)

    def assign_all(self, entries: list[int], name: bytes, time: int, count: int) -> None:
        """Assign several entries to a consumer."""
        for group in (self.python, self.native):
            group.assign_all(pack_all(entries), group.consumer(name, time), time, [count] * len(entries))

    def restore(self) -> None:
        """Continue with new groups, each loaded from the other's snapshot."""
        pairs = ((self.native, PyGroup), (self.python, native.Group))
        self.python, self.native = (self._restored(old, kind) for old, kind in pairs)

    @staticmethod
    def _restored(old: Any, kind: Any) -> Any:
        group = kind(old.last_id, old.entries_read)
        for name, consumer in old.consumers.items():
            group.consumer(name, consumer.seen).active = consumer.active
        for one in old.order:
            group.restore(
                one.id, None if one.consumer is None else group.consumers[one.consumer.name], one.time, one.count
            )
        if len(old.pending):
            group.restored()
        return group

    def copy(self) -> None:
        """Continue with copies."""
        self.python, self.native = self.python.copy(), self.native.copy()

    def claimable(self, start: int, min_idle: int, now: int, most: int, looks: int) -> None:
        """Check that both may claim the same entries."""
        found = [
            tuple(group.claimable(store, start, min_idle, now, most=most, looks=looks))
            for group, store in zip((self.python, self.native), self.stores, strict=True)
        ]
        assert found[0] == found[1]

    def compare(self, start: int = 0, end: int = MAX_ID, count: int = 5) -> None:
        """Compare everything visible."""
        assert seen(self.python, start) == seen(self.native, start)
        for mine, theirs in self._indexes():
            for args in ((start, end, count, 0, 7), (start, end, 10**6, count, 2**62)):
                assert mine.idle_rows(*args) == theirs.idle_rows(*args)
            for own in (False, True):
                assert mine.rows(count, own=own) == theirs.rows(count, own=own)
        self.claimable(start, count, 9, 3, 5)
        self.claimable(start, 0, 9, count, 100)

    def _indexes(self) -> list[tuple[Any, Any]]:
        pairs = [(self.python.pending, self.native.pending)]
        for name, consumer in self.python.consumers.items():
            pairs.append((consumer.pending, self.native.consumers[name].pending))
        return pairs


def seen(group: Any, start: int) -> list[Any]:
    """Return everything that a group shows."""
    return [
        group.last_id,
        group.entries_read,
        rows(group.order),
        group.order.released,
        _index(group.pending, start),
        [(name, one.name, one.seen, one.active, _index(one.pending, start)) for name, one in group.consumers.items()],
    ]


def _index(index: Any, start: int) -> list[Any]:
    ends = [index.first(), index.last()] if len(index) else []
    return [len(index), ends, rows(index.walk()), rows(index.walk(start)), start in index, rows([index.get(start)])]


def rows(records: Any) -> list[Any]:
    """Return records as plain values."""
    return [
        one and (one.id, None if one.consumer is None else one.consumer.name, one.time, one.count) for one in records
    ]


def step(twins: GroupTwins, random: Random, near: int = NEAR) -> None:
    """Run one random step."""
    what = random.choices(
        ("assign", "all", "release", "forget", "forget all", "drop", "restore", "copy"), (40, 10, 10, 25, 5, 1, 1, 1)
    )[0]
    entry = random.choice((random.randrange(near), random.randrange(near), MAX_ID - random.randrange(3)))
    name, time, count = random.choice(NAMES), random.choice(TIMES), random.choice(COUNTS)
    some = [random.randrange(near) for _ in range(random.randrange(6))]
    if what == "assign":
        twins.assign(entry, name, time, count)
    elif what == "all":
        twins.assign_all(some, name, time, count)
    elif what == "release":
        twins.both("release", entry, count)
    elif what == "forget":
        twins.both("forget", entry)
    elif what == "forget all":
        twins.both("forget_all", pack_all(some))
    elif what == "drop":
        twins.both("drop_consumer", name)
    elif what == "restore":
        twins.restore()
    else:
        twins.copy()

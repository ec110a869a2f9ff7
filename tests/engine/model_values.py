"""Parts of the simple model: ids, records, groups, one stream with its arithmetic, and errors."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

Id = tuple[int, int]
# A removed entry of which only its place in its node matters: the id after which it lies, its own, its position
Buried = tuple[int, int, Id, int]
ZERO: Id = (0, 0)
TOP: Id = (2**64 - 1, 2**64 - 1)
MOST = 2**63 - 1


class Refused(Exception):  # noqa: N818 - an error reply
    """Error of a command, with its line."""


def text(entry: Id) -> bytes:
    return b"%d-%d" % entry


def following(entry: Id) -> Id:
    return (entry[0], entry[1] + 1) if entry[1] < TOP[1] else (entry[0] + 1, 0)


def element_size(word: bytes | int) -> int:
    """Return the bytes of one element of a packed list: head, content, back length."""
    number = int(word) if isinstance(word, int) or re.fullmatch(rb"0|-?[1-9][0-9]{0,17}", word) else None
    if number is None:
        assert isinstance(word, bytes)
        size = len(word) + (1 if len(word) < 64 else 2 if len(word) < 4096 else 5)
    elif 0 <= number < 128:
        size = 1
    else:
        bits = (number if number >= 0 else ~number).bit_length()
        size = next(size for size, most in ((2, 12), (3, 15), (4, 23), (5, 31), (9, 63)) if bits <= most)
    return size + next(more for more in range(1, 6) if size < 128**more)


@dataclass
class Record:
    """One pending record; a released one has no owner and time 0."""

    id: Id
    owner: bytes | None
    time: int
    count: int


@dataclass
class Group:
    """A group; its ``records`` are in time order, released ones first."""

    last: Id
    read: int | None
    records: list[Record] = field(default_factory=list)
    seen: dict[bytes, int] = field(default_factory=dict)
    active: dict[bytes, int] = field(default_factory=dict)
    trusted: bool = True  # nobody told the group where it stands: its lag must be right, or unknown

    def find(self, entry: Id) -> Record | None:
        return next((record for record in self.records if record.id == entry), None)

    def by_id(self) -> list[Record]:
        return sorted(self.records, key=lambda record: record.id)

    def of(self, owner: bytes) -> list[Record]:
        return [record for record in self.by_id() if record.owner == owner]

    def released(self) -> list[Record]:
        return [record for record in self.records if record.owner is None]

    def drop(self, entry: Id) -> bool:
        before = len(self.records)
        self.records = [record for record in self.records if record.id != entry]
        return len(self.records) < before

    def put(self, entry: Id, owner: bytes, time: int, count: int) -> None:
        self.drop(entry)
        at = len(self.records)
        while at and self.records[at - 1].owner is not None and self.records[at - 1].time > time:
            at -= 1
        self.records.insert(at, Record(entry, owner, time, count))

    def release(self, entry: Id, count: int) -> None:
        self.drop(entry)
        self.records.insert(len(self.released()), Record(entry, None, 0, count))

    def attend(self, consumer: bytes, now: int) -> None:
        self.seen[consumer] = now
        self.active.setdefault(consumer, -1)


@dataclass
class Stream:
    """A stream; ``nodes`` has the ids ever added to each node, removed ones included."""

    duration: int = 100
    maxsize: int = 100
    entries: dict[Id, list[bytes]] = field(default_factory=dict)
    nodes: list[list[Id | Buried]] = field(default_factory=list)
    last: Id = ZERO
    gone: Id = ZERO
    added: int = 0
    groups: dict[bytes, Group] = field(default_factory=dict)
    messages: dict[bytes, dict[bytes, Id]] = field(default_factory=dict)
    remembered: int = 0
    duplicates: int = 0
    trusted: bool = True
    ever: dict[Id | Buried, list[bytes]] = field(default_factory=dict)

    def node_size(self, node: list[Id | Buried]) -> int:
        """Return the bytes of a node's packed list: frame (7), counts, the first entry's names, entries."""
        live = sum(entry in self.entries for entry in node)
        ids = [entry if len(entry) == 2 else entry[2] for entry in node]
        names = self.ever[node[0]][::2]
        words: list[bytes | int] = [live, len(node) - live, len(names), *names, 0]
        for stored, entry in zip(node, ids, strict=True):
            fields = self.ever[stored]
            pairs = len(fields) // 2
            words += [0, entry[0] - ids[0][0], entry[1] - ids[0][1]]
            words += [*fields[1::2], pairs + 3] if fields[::2] == names else [pairs, *fields, 2 * pairs + 4]
        return 7 + sum(map(element_size, words))

    @property
    def first(self) -> Id:
        return min(self.entries, default=ZERO)

    @property
    def newest(self) -> Id:
        return max(self.entries, default=ZERO)

    def remove(self, entry: Id) -> bool:
        if entry not in self.entries:
            return False
        del self.entries[entry]
        self.nodes = [node for node in self.nodes if entry not in node or any(one in self.entries for one in node)]
        return True

    def bury_above(self, last: Id) -> None:
        """Free the ids above ``last``: removed entries there still take room, but lose their ids."""
        self.nodes = [node for node in self.nodes if node[0] <= last]
        for node in self.nodes:
            for at, one in enumerate(node):
                if one > last:
                    node[at] = (*last, one if len(one) == 2 else one[2], at)
                    self.ever[node[at]] = self.ever[one]

    def rebuild_nodes(self) -> None:
        """Assign every entry to its node again, with removed entries at their last known positions."""
        for node in self.nodes:
            for at, one in enumerate(node):
                if len(one) == 4:
                    node[at] = (one[0], one[1], (one[0], one[1]), at)
                    self.ever[node[at]] = self.ever[one]

    def unreference(self, entry: Id) -> None:
        for group in self.groups.values():
            group.drop(entry)

    def referenced(self, entry: Id) -> bool:
        return any(group.last < entry or group.find(entry) for group in self.groups.values())

    def between(self, start: Id, end: Id) -> list[Id]:
        return [entry for entry in sorted(self.entries) if start <= entry <= end]

    def row(self, entry: Id) -> list[object]:
        return [text(entry), list(self.entries[entry])]

    def ahead_is_gap(self, position: Id) -> bool:
        return bool(self.entries) and self.gone != ZERO and position <= self.gone

    def distance(self, entry: Id) -> int | None:
        if self.added == 0:
            return 0
        if not self.entries and entry <= self.last:
            return self.added
        if entry not in {ZERO, self.last} and entry < self.gone:
            return None
        if entry != ZERO and entry < self.gone:
            return None
        if entry == self.last:
            return self.added
        if entry > self.last:
            return None
        if self.gone == ZERO or self.gone < self.first:
            if entry < self.first:
                return self.added - len(self.entries)
            if entry == self.first:
                return self.added - len(self.entries) + 1
        return None

    def lag(self, group: Group) -> int | None:
        if not self.added or not self.entries:
            return 0
        if group.last < self.first and self.gone < self.first:
            return len(self.entries)
        if group.read is not None and not self.ahead_is_gap(group.last):
            return self.added - group.read
        passed = self.distance(group.last)
        return None if passed is None else self.added - passed


@dataclass
class Trim:
    """MAXLEN with a number or MINID with an id."""

    threshold: int | Id
    approximate: bool = False
    limit: int | None = None
    policy: str = "KEEPREF"


@dataclass
class Read:
    """The common part of XREAD and XREADGROUP."""

    resp: int = 2
    count: int | None = None
    max_count: int | None = None
    max_size: int | None = None


class Budget:
    """The rest of the reply budget of one command."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.rows = 0
        self.size = 0

    def spent(self) -> bool:
        over = self.read.max_size is not None and self.rows > 0 and self.size >= self.read.max_size
        return over or self.left() == 0

    def left(self) -> int:
        return 2**62 if self.read.max_count is None else self.read.max_count - self.rows

    def most(self) -> int:
        """Return the number of rows that one stream may still add."""
        return self.left() if self.read.count is None else min(self.read.count, self.left())

    def header(self, key: bytes) -> None:
        self.size += len(self.wire(key)) + (4 if self.read.resp == 2 else 0)

    def add(self, row: list[object]) -> None:
        self.rows += 1
        self.size += len(self.wire(row))

    def wire(self, value: object) -> bytes:
        if isinstance(value, bytes):
            return b"$%d\r\n%b\r\n" % (len(value), value)
        if isinstance(value, int):
            return b":%d\r\n" % value
        if isinstance(value, list):
            return b"*%d\r\n" % len(value) + b"".join(map(self.wire, value))
        return b"_\r\n" if self.read.resp == 3 else b"*-1\r\n"


def refusal(call: Callable[[], object]) -> object:
    """Return the result of ``call``, or the error that it raises."""
    try:
        return call()
    except Refused as refused:
        return refused

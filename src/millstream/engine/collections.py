"""Hashes, sorted sets, lists and sets: the values of a key besides streams and strings.

PURE. They serve scripts, and tools that keep a little state with their streams (due times, receipts, locks). So each is
the simplest structure that works, without caches.

Three things are as in Redis: the order of small hashes and sets, the order of sorted sets, and the name of the
encoding. Except for lists, an encoding never returns from the large to the small one.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar

from millstream.engine.streams import listpack

# Redis's limits for a listpack: number of elements, and bytes of one element
HASH_ENTRIES, HASH_VALUE = 512, 64
ZSET_ENTRIES, ZSET_VALUE = 128, 64
SET_ENTRIES, SET_VALUE = 128, 64
INTSET_ENTRIES = 512
# Changes of a sorted set are made together if they are at least this fraction of its members: one in 200
_SHARE = 200
# Bytes of an element apart from its content, measured on CPython 3.11
_FIELD, _MEMBER, _ITEM, _ELEMENT = 100, 150, 40, 80
# Limit of a list's listpack in bytes; a large list becomes a listpack again at half of it
LIST_BYTES = 8192


class Collection(ABC):
    """A value made of elements; code that empties a collection deletes its key."""

    kind: ClassVar[bytes]
    __slots__ = ("_words",)

    def __init__(self) -> None:
        self._words = 0  # Bytes of all elements' contents

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def encoding(self) -> bytes:
        """The encoding's name, as OBJECT ENCODING replies it."""

    @abstractmethod
    def begin(self, encoding: bytes) -> None:
        """Set the encoding of an empty collection; one that once was larger may show a large collection's encoding."""

    @abstractmethod
    def copy(self) -> Any:
        """An independent copy, for COPY."""

    @abstractmethod
    def content(self) -> Any:
        """All contents, as plain values that can be compared."""

    @property
    @abstractmethod
    def footprint(self) -> int:
        """Approximate memory in bytes."""


class HashValue(Collection):
    """Fields and their values, in the order in which the fields were added.

    Redis shows a small hash in that order. It shows a large one in the order of its hash table, on which clients may
    not rely.
    """

    kind: ClassVar[bytes] = b"hash"
    __slots__ = ("_is_big", "fields")

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[bytes, bytes] = {}  # Value by field; change it only through the methods
        self._is_big = False

    def __len__(self) -> int:
        return len(self.fields)

    def put(self, field: bytes, value: bytes) -> None:
        """Set one field."""
        before = self.fields.get(field)
        self._words += len(value) + (len(field) if before is None else -len(before))
        self.fields[field] = value
        if not self._is_big and (len(self.fields) > HASH_ENTRIES or len(field) > HASH_VALUE or len(value) > HASH_VALUE):
            self._is_big = True

    def drop(self, field: bytes) -> None:
        """Delete a field that exists."""
        self._words -= len(field) + len(self.fields.pop(field))

    @property
    def encoding(self) -> bytes:
        """``listpack`` or ``hashtable``."""
        return b"hashtable" if self._is_big else b"listpack"

    def begin(self, encoding: bytes) -> None:
        """Set the encoding of an empty collection."""
        self._is_big = encoding == b"hashtable"

    def copy(self) -> "HashValue":
        """An independent copy."""
        twin = HashValue()
        twin.fields, twin._words = self.fields.copy(), self._words
        twin._is_big = self._is_big
        return twin

    def content(self) -> Any:
        """Fields in order."""
        return [self.encoding, list(self.fields.items())]

    @property
    def footprint(self) -> int:
        """Total size of fields and values, and 100 per field, in bytes."""
        return self._words + _FIELD * len(self.fields)


class ZSetValue(Collection):
    """Members with scores, ordered by score, then by member.

    A sorted list, not a skip list, so ranks are positions. A change moves half of the items on average. For the tens of
    thousands of due times that such sets hold, this copies some hundred kilobytes at most.
    """

    kind: ClassVar[bytes] = b"zset"
    TOGETHER: ClassVar[int] = 32  # Number of changes from which they may be made together
    __slots__ = ("_is_big", "_order", "scores")

    def __init__(self) -> None:
        super().__init__()
        self.scores: dict[bytes, float] = {}  # Score by member; change it only through the methods
        self._order: list[tuple[float, bytes]] = []
        self._is_big = False

    def __len__(self) -> int:
        return len(self.scores)

    def put(self, member: bytes, score: float) -> None:
        """Set a member's score, which is not a NaN. A listpack stores -0 as 0."""
        if not self._is_big:
            self._is_big = len(member) > ZSET_VALUE or len(self.scores) + (member not in self.scores) > ZSET_ENTRIES
            # Adding 0.0 turns -0.0 into 0.0 and changes no other number
            score = score if self._is_big else score + 0.0
        before = self.scores.get(member)
        if before is not None:
            # Sorted by score and member, so equal scores are in order too, and the position is exact
            del self._order[bisect_left(self._order, (before, member))]
        else:
            self._words += len(member)
        insort(self._order, (score, member))
        self.scores[member] = score

    def drop(self, member: bytes) -> None:
        """Delete a member that exists."""
        del self._order[bisect_left(self._order, (self.scores.pop(member), member))]
        self._words -= len(member)

    def put_all(self, scores: Mapping[bytes, float], *, built: bool = False) -> None:
        """Set the scores of several members; none is a NaN."""
        if len(scores) > ZSET_ENTRIES or (built and any(len(one) > ZSET_VALUE for one in scores)):
            self._is_big = True
        if not self._is_big or not self._is_much(len(scores)):
            for member, score in scores.items():
                self.put(member, score)
            return
        # The old positions of existing members must be removed before the new ones are added
        if not self.scores.keys().isdisjoint(scores):
            self._order = [place for place in self._order if place[1] not in scores]
        self._words += sum(len(member) for member in scores if member not in self.scores)
        self._order.extend((score, member) for member, score in scores.items())
        self._order.sort()
        self.scores.update(scores)

    def drop_all(self, members: Sequence[bytes]) -> None:
        """Delete members that exist."""
        if not self._is_much(len(members)):
            for member in members:
                self.drop(member)
            return
        for member in members:
            del self.scores[member]
            self._words -= len(member)
        self._order = [place for place in self._order if place[1] in self.scores]

    def _is_much(self, changes: int) -> bool:
        """True if this many changes are cheaper together: each single one moves half of all items."""
        return changes >= self.TOGETHER and changes * _SHARE > len(self.scores)

    def rank(self, member: bytes) -> int:
        """Number of members before an existing one."""
        return bisect_left(self._order, (self.scores[member], member))

    def first_from(self, member: bytes, *, exclusive: bool = False) -> int:
        """The lowest rank of a member not less than (``exclusive``: greater than) ``member``, if all scores are equal.

        The result is undefined if scores differ, as in Redis.
        """
        return (bisect_right if exclusive else bisect_left)(self._order, member, key=itemgetter(1))

    def first_at(self, score: float, *, exclusive: bool = False) -> int:
        """The lowest rank with a score of at least (``exclusive``: above) ``score``."""
        return (bisect_right if exclusive else bisect_left)(self._order, score, key=itemgetter(0))

    def between(self, first: int, last: int) -> list[tuple[float, bytes]]:
        """Score and member of the ranks from ``first`` to before ``last``."""
        return self._order[first:last]

    @property
    def encoding(self) -> bytes:
        """``listpack`` or ``skiplist``."""
        return b"skiplist" if self._is_big else b"listpack"

    def begin(self, encoding: bytes) -> None:
        """Set the encoding of an empty collection."""
        self._is_big = encoding == b"skiplist"

    def copy(self) -> "ZSetValue":
        """An independent copy."""
        twin = ZSetValue()
        twin.scores, twin._words = self.scores.copy(), self._words
        twin._order = self._order.copy()
        twin._is_big = self._is_big
        return twin

    def content(self) -> Any:
        """Members in order; scores as text, so that -0 differs from 0."""
        return [self.encoding, [(repr(score), member) for score, member in self._order]]

    @property
    def footprint(self) -> int:
        """Total size of the members, and 150 per member, in bytes."""
        return self._words + _MEMBER * len(self.scores)


class ListValue(Collection):
    """Elements from head to tail.

    A deque, since lists grow and shrink at their ends; access in the middle takes time in proportion to the distance.
    The size of a listpack is counted with each change, since the encoding's name depends on it in both directions.
    """

    kind: ClassVar[bytes] = b"list"
    __slots__ = ("_bytes", "_is_big", "_items")

    def __init__(self) -> None:
        super().__init__()
        self._items: deque[bytes] = deque()
        self._bytes = listpack.EMPTY
        self._is_big = False

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: int) -> bytes:
        """The element at an existing position; negative ones count from the tail."""
        return self._items[at]

    def push(self, item: bytes, *, left: bool) -> None:
        """Add an element at one end."""
        if left:
            self._items.appendleft(item)
        else:
            self._items.append(item)
        self._words += len(item)
        self._weigh(listpack.string(item))

    def pop(self, *, left: bool) -> bytes:
        """Remove and return an element from one end of a list that is not empty."""
        item = self._items.popleft() if left else self._items.pop()
        self._words -= len(item)
        self._weigh(-listpack.string(item))
        return item

    def put(self, at: int, item: bytes) -> None:
        """Replace the element at an existing position."""
        growth = listpack.string(item) - listpack.string(self._items[at])
        self._words += len(item) - len(self._items[at])
        self._items[at] = item
        self._weigh(growth)

    def insert(self, at: int, item: bytes) -> None:
        """Add an element at a position."""
        self._items.insert(at, item)
        self._words += len(item)
        self._weigh(listpack.string(item))

    def remove(self, count: int, item: bytes) -> None:
        """Delete elements equal to the given one: ``count`` from the head, from the tail if negative, all if 0."""
        left = abs(count) or len(self._items)
        kept: list[bytes] = []
        # Starts at the end where deletion begins; ``kept`` is then in that order, and is reversed below
        for each in self._items if count >= 0 else reversed(self._items):
            if left and each == item:
                left -= 1
                self._words -= len(item)
                self._weigh(-listpack.string(item))
            else:
                kept.append(each)
        self._items = deque(kept if count >= 0 else reversed(kept))

    def trim(self, first: int, behind: int) -> None:
        """Keep only the elements from position ``first`` to before ``behind``."""
        # Computed before the head is removed, since both positions refer to the whole list
        tail = len(self._items) - behind
        for _ in range(first):
            self.pop(left=True)
        for _ in range(tail):
            self.pop(left=False)

    def find(self, item: bytes, *, backwards: bool = False, most: int = 0) -> Iterator[int]:
        """The positions of elements equal to the given one, counted from the head."""
        count = len(self._items)
        places = range(count - 1, -1, -1) if backwards else range(count)
        items = reversed(self._items) if backwards else iter(self._items)
        return (at for at, each in islice(zip(places, items, strict=True), most or None) if each == item)

    def _weigh(self, growth: int) -> None:
        """Count the bytes of a change; only growth makes a list large, and only shrinking makes it small."""
        self._bytes += growth
        # Two bounds, so that a list at the limit does not change its encoding with every push and pop
        if growth > 0 and self._bytes > LIST_BYTES:
            self._is_big = True
        elif growth < 0 and self._bytes <= LIST_BYTES // 2:
            self._is_big = False

    def between(self, first: int, last: int) -> list[bytes]:
        """Elements from one position to before another."""
        return list(islice(self._items, first, last))

    @property
    def encoding(self) -> bytes:
        """``listpack`` or ``quicklist``."""
        return b"quicklist" if self._is_big else b"listpack"

    def begin(self, encoding: bytes) -> None:
        """Set the encoding of an empty collection."""
        self._is_big = encoding == b"quicklist"

    def copy(self) -> "ListValue":
        """An independent copy."""
        twin = ListValue()
        twin._items = self._items.copy()
        twin._bytes, twin._words = self._bytes, self._words
        twin._is_big = self._is_big
        return twin

    def content(self) -> Any:
        """Elements in order."""
        return [self.encoding, list(self._items)]

    @property
    def footprint(self) -> int:
        """Total size of the elements, and 40 per element, in bytes."""
        return self._words + _ITEM * len(self._items)


class SetValue(Collection):
    """Distinct members: in numeric order while all are numbers, else in the order of adding.

    Redis shows small sets in the same order. Its large sets have no order; here they have the order of adding.
    """

    kind: ClassVar[bytes] = b"set"
    __slots__ = ("_encoding", "_members")

    def __init__(self) -> None:
        super().__init__()
        self._members: dict[bytes, None] = {}
        self._encoding = b"intset"

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: bytes) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[bytes]:
        return iter(sorted(self._members, key=int) if self._encoding == b"intset" else self._members)

    def in_order(self) -> list[bytes]:
        """Members in the order of adding, which shows once they are not all numbers."""
        return list(self._members)

    def add(self, member: bytes) -> None:
        """Add a new member."""
        if self._encoding == b"intset" and not listpack.is_integer(member):
            # From now on the order of insertion is visible; as in Redis, it begins with the numeric order
            self._members = dict.fromkeys(self)
            self._encoding = b"listpack"
        self._members[member] = None
        self._words += len(member)
        if self._encoding == b"intset":
            # A full intset becomes a hash table at once: it has more members than a listpack may have
            if len(self._members) > INTSET_ENTRIES:
                self._encoding = b"hashtable"
        elif len(self._members) > SET_ENTRIES or len(member) > SET_VALUE:
            self._encoding = b"hashtable"

    def drop(self, member: bytes) -> None:
        """Delete a member that exists."""
        del self._members[member]
        self._words -= len(member)

    @property
    def encoding(self) -> bytes:
        """``intset``, ``listpack`` or ``hashtable``."""
        return self._encoding

    def begin(self, encoding: bytes) -> None:
        """Set the encoding of an empty collection."""
        self._encoding = encoding

    def copy(self) -> "SetValue":
        """An independent copy."""
        twin = SetValue()
        twin._members, twin._words = self._members.copy(), self._words
        twin._encoding = self._encoding
        return twin

    def content(self) -> Any:
        """Members in order."""
        return [self._encoding, list(self)]

    @property
    def footprint(self) -> int:
        """Total size of the members, and 80 per member, in bytes."""
        return self._words + _ELEMENT * len(self._members)

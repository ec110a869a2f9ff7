"""Comparison of two streams: both are read again and compared entry by entry and record by record."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from millstream.migrate import read_stream
from millstream.migrate.capabilities import TargetFeatures
from millstream.migrate.commands import RELEASED_HOLDER
from millstream.migrate.connection import Link
from millstream.texts import plural

SHOWN = 10
"""Number of differences with a text. All are counted."""

Tell = Callable[[int], None]


@dataclass(slots=True)
class Differences:
    """The differences of two streams."""

    count: int = 0  # Number of all differences
    texts: list[str] = field(default_factory=list)  # Texts of the first :data:`SHOWN` differences

    def add(self, text: str) -> None:
        """Add one difference."""
        self.count += 1
        if len(self.texts) < SHOWN:
            self.texts.append(text)

    def unless_equal(self, what: str, source: object, copy: object) -> None:
        """Add one difference if both servers report the value and the two values differ."""
        if source is not None and copy is not None and source != copy:
            self.add(f"{what}: {shortened(source)} at the source, {shortened(copy)} in the copy")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two streams: its connection and key."""

    link: Link
    key: bytes


def compare(
    source: Side, copy: Side, stream: read_stream.Overview, supports: TargetFeatures, *, times: bool, tell: Tell
) -> Differences:
    """Read both streams again and return their differences."""
    found = Differences()
    made = read_stream.overview(copy.link, copy.key)
    expected = stream if times else _expected(stream, supports)
    if not times and not supports.release:
        made = replace(made, groups=tuple(map(_with_holder, made.groups)))
    _counters(found, expected, made, times=times)
    _entries(found, source, copy, stream.last_id, tell)
    here = {group.name: group for group in made.groups}
    for group, wanted in zip(stream.groups, expected.groups, strict=True):
        other = here.pop(group.name, None)
        if other is None:
            found.add(f"group {shortened(group.name)} is missing in the copy")
            continue
        _group(found, wanted, other, times=times)
        release = times or supports.release
        _records(found, group.name, _rows(source, group, release), _rows(copy, other, release))
    for name in here:
        found.add(f"group {shortened(name)} is only in the copy")
    return found


def _expected(stream: read_stream.Overview, supports: TargetFeatures) -> read_stream.Overview:
    """Return the best result that commands can produce from the source. The copy is compared with it."""
    groups = []
    for group in stream.groups if supports.release else map(_with_holder, stream.groups):
        read = group.entries_read if supports.entries_read else None
        if read is not None and stream.entries_added is not None and read > stream.entries_added:
            read = None  # newer servers limit it to the number of added entries; XINFO does not show which kind this is
        groups.append(replace(group, entries_read=read))
    added = stream.length if stream.entries_added is None else stream.entries_added
    return replace(
        stream,
        max_deleted=stream.max_deleted if supports.counters else None,
        entries_added=added if supports.counters else None,
        settings=stream.settings if supports.idempotence else None,
        groups=tuple(groups),
    )


def _with_holder(group: read_stream.GroupInfo) -> read_stream.GroupInfo:
    """Return the group with the holder of released entries among its consumers, if any entry was released."""
    consumers = {each.name: each for each in group.consumers}
    if group.released:
        consumers.setdefault(RELEASED_HOLDER, read_stream.ConsumerInfo(RELEASED_HOLDER, 0, 0, None))
    return replace(group, consumers=tuple(consumers[name] for name in sorted(consumers)))


def _counters(found: Differences, stream: read_stream.Overview, made: read_stream.Overview, *, times: bool) -> None:
    found.unless_equal("length", stream.length, made.length)
    found.unless_equal("last-generated-id", stream.last_id, made.last_id)
    found.unless_equal("max-deleted-entry-id", stream.max_deleted, made.max_deleted)
    found.unless_equal("entries-added", stream.entries_added, made.entries_added)
    found.unless_equal("idempotence settings", stream.settings, made.settings)
    if times:
        found.unless_equal("iids-added", stream.messages, made.messages)
        found.unless_equal("iids-duplicates", stream.duplicates, made.duplicates)


def _group(found: Differences, group: read_stream.GroupInfo, made: read_stream.GroupInfo, *, times: bool) -> None:
    name = f"group {shortened(group.name)}"
    found.unless_equal(f"{name}, last-delivered-id", group.last_id, made.last_id)
    found.unless_equal(f"{name}, entries-read", _read(group), _read(made))
    found.unless_equal(
        f"{name}, consumers", [each.name for each in group.consumers], [each.name for each in made.consumers]
    )
    if times:
        for one, other in zip(group.consumers, made.consumers, strict=False):
            who = f"{name}, consumer {shortened(one.name)}"
            found.unless_equal(f"{who}, seen-time", one.seen, other.seen)
            found.unless_equal(f"{who}, active-time", one.active, other.active)


def _read(group: read_stream.GroupInfo) -> object:
    """Return "entries-read" for comparison.

    A null becomes text, since None means that the server does not report it.
    """
    return "null" if group.entries_read == read_stream.UNKNOWN else group.entries_read


def _entries(found: Differences, source: Side, copy: Side, upto: bytes, tell: Tell) -> None:
    """Compare the entries page by page. Pages that differ are compared entry by entry."""
    done = 0
    theirs = read_stream.Entries(source.link, source.key, upto=upto)
    ours = read_stream.Entries(copy.link, copy.key)
    left: list[Any] = []
    right: list[Any] = []
    for one, other in zip_longest(theirs, ours, fillvalue=()):
        left += one
        right += other
        shared = min(len(left), len(right))
        if left[:shared] != right[:shared]:
            left, right = _unlike(found, left, right)
        else:
            left, right = left[shared:], right[shared:]
        if not one:
            right = _only(found, right, "is only in the copy")
        if not other:
            left = _only(found, left, "is missing in the copy")
        done += shared
        tell(done)
    _only(found, left, "is missing in the copy")
    _only(found, right, "is only in the copy")


def _only(found: Differences, rest: list[Any], what: str) -> list[Any]:
    """Add each remaining entry of one side as a difference; return an empty list."""
    for entry in rest:
        found.add(f"entry {shortened(entry[0])} {what}")
    return []


def _unlike(found: Differences, left: list[Any], right: list[Any]) -> tuple[list[Any], list[Any]]:
    """Compare two sorted runs up to the end of the shorter one; return the remainder of each."""
    at = on = 0
    while at < len(left) and on < len(right):
        one, other = left[at], right[on]
        if one[0] == other[0]:
            if one[1] != other[1]:
                found.add(f"entry {shortened(one[0])}: {_first_difference(one[1], other[1])}")
            at, on = at + 1, on + 1
        elif read_stream.as_id(one[0]) < read_stream.as_id(other[0]):
            found.add(f"entry {shortened(one[0])} is missing in the copy")
            at += 1
        else:
            found.add(f"entry {shortened(other[0])} is only in the copy")
            on += 1
    return left[at:], right[on:]


def _first_difference(one: list[bytes], other: list[bytes]) -> str:
    if len(one) != len(other):
        return f"{plural(len(one) // 2, 'field')} at the source, {len(other) // 2} in the copy"
    at = next(at for at in range(len(one)) if one[at] != other[at])
    what = "value" if at % 2 else "name"
    return f"{what} of field {at // 2 + 1} is {shortened(one[at])} at the source, {shortened(other[at])} in the copy"


def _rows(side: Side, group: read_stream.GroupInfo, release: bool) -> Iterator[read_stream.PendingRecord]:
    # If one side cannot release, a released record equals one of the consumer that holds released entries
    for page in read_stream.records(side.link, side.key, group):
        for record in page:
            yield record if release or record.consumer is not None else record._replace(consumer=RELEASED_HOLDER)


def _records(
    found: Differences,
    group: bytes,
    theirs: Iterator[read_stream.PendingRecord],
    ours: Iterator[read_stream.PendingRecord],
) -> None:
    """Compare two sorted runs of pending records."""
    one, other = next(theirs, None), next(ours, None)
    while one is not None or other is not None:
        name = f"group {shortened(group)}, pending"
        if other is None or (one is not None and read_stream.as_id(one.id) < read_stream.as_id(other.id)):
            assert one is not None
            found.add(f"{name} {shortened(one.id)} is missing in the copy")
            one = next(theirs, None)
        elif one is None or read_stream.as_id(other.id) < read_stream.as_id(one.id):
            found.add(f"{name} {shortened(other.id)} is only in the copy")
            other = next(ours, None)
        else:
            if one != other:
                found.add(f"{name} {shortened(one.id)}: {_of(one)} at the source, {_of(other)} in the copy")
            one, other = next(theirs, None), next(ours, None)


def _of(record: read_stream.PendingRecord) -> str:
    holder = "released" if record.consumer is None else f"held by {shortened(record.consumer)}"
    return f"{holder}, time {record.time}, {record.deliveries} deliveries"


def shortened(value: object) -> str:
    """Return at most sixty characters of a value, without the ``b`` of bytes."""
    text = repr(value)
    if isinstance(value, bytes):
        text = text[1:]
    return text if len(text) <= 60 else f"{text[:57]}..."

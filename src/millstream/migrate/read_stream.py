"""Reading of a stream's parts from any server, in pieces of bounded size. It changes nothing.

Entries are read by XRANGE in pages; their COUNT follows the size of the earlier pages. Pending records are read by
XPENDING, which reports the idle time and not the delivery time. So the same transaction also reads one record with a
delivery time known from XINFO, the *anchor*. Its delivery time plus its idle time is the server's clock, to the
millisecond.

Sources: https://redis.io/docs/latest/commands/xinfo-stream/, xpending/, xrange/
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from redis.exceptions import ResponseError

from millstream.migrate.connection import Command, Link, Reply
from millstream.migrate.errors import ChangedError

PAGE_BYTES = 1 << 20
"""Size of one page of entries in bytes. A single entry may be larger."""

PAGE_ENTRIES = 500
"""Largest number of entries in one page. After small entries, one page of 1 MiB entries may come."""

PAGE_RECORDS = 1000
"""Number of pending records in one page; each takes about 50 bytes of reply."""

UNKNOWN = -1
"""Value of a group's "entries-read" if the server replies null."""

Entry: TypeAlias = list[Reply]
"""An entry as XRANGE returns it: ``[id, [field, value, ...]]``."""

_FIRST_PAGE = 32
_CLOCK_TRIES = 25  # attempts to read a page of records until its times are consistent


class PendingRecord(NamedTuple):
    """A pending entry."""

    id: bytes  # Id of the entry, which may no longer be in the stream
    consumer: bytes | None  # Consumer that holds it; None if it was released
    time: int  # Wall milliseconds of its last delivery; 0 if it was released
    deliveries: int  # Number of deliveries


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer of a group."""

    name: bytes  # Name, which may be empty
    pending: int  # Number of records that it holds
    seen: int  # Wall milliseconds of its last attempt to read or claim
    # Wall milliseconds of its last success, -1 if there was none; None if not reported (before Redis 7.2)
    active: int | None


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group, without its pending records."""

    name: bytes  # Name, which may be empty
    last_id: bytes  # Id of the last delivered entry
    entries_read: int | None  # :data:`UNKNOWN` for null; None if the server does not count (before Redis 7.0)
    pending: int  # Number of records
    released: int  # Number of records without an owner
    consumers: tuple[ConsumerInfo, ...]  # Consumers by name
    anchor: PendingRecord | None = field(compare=False)  # A record with an owner, if there is one


@dataclass(frozen=True, slots=True)
class Overview:
    """A stream without its entries and pending records. If two overviews are equal, nothing was written in between."""

    length: int  # Number of entries
    last_id: bytes  # Last generated id
    # Largest id ever deleted; None if not reported (before Redis 7.0). In Redis 7.0, XSETID can lower the last id below
    # it, but not in newer servers: it then counts as equal to the last id.
    max_deleted: bytes | None
    entries_added: int | None  # Number of entries ever added; None before Redis 7.0
    # Seconds and number of messages that are remembered for idempotent adding; None if unknown
    settings: tuple[int, int] | None
    messages: int | None  # Number of messages ever remembered; None if unknown
    duplicates: int | None  # Number of duplicates ever refused; None if unknown
    remembered: int = field(compare=False)  # Number of messages remembered now; not compared, since time changes it
    groups: tuple[GroupInfo, ...]  # Groups by name

    @property
    def records(self) -> int:
        """Number of pending records of all groups."""
        return sum(group.pending for group in self.groups)


def overview(link: Link, key: bytes) -> Overview:
    """Read the overview of a stream, in one command."""
    return parse_overview(link.call(*overview_command(key)))


def overview_command(key: bytes) -> Command:
    """Return the command that reads an overview."""
    return ("XINFO", "STREAM", key, "FULL", "COUNT", 1)


def parse_overview(reply: Reply) -> Overview:
    """Return the overview from the reply to :func:`overview_command`."""
    found = _named(reply)
    deleted = found.get(b"max-deleted-entry-id")
    if deleted is not None:
        deleted = min(deleted, found[b"last-generated-id"], key=as_id)
    settings = (found[b"idmp-duration"], found[b"idmp-maxsize"]) if b"idmp-duration" in found else None
    return Overview(
        found[b"length"],
        found[b"last-generated-id"],
        deleted,
        found.get(b"entries-added"),
        settings,
        found.get(b"iids-added"),
        found.get(b"iids-duplicates"),
        found.get(b"iids-tracked", 0),
        tuple(_group(_named(row)) for row in found[b"groups"]),
    )


def _named(row: Reply) -> dict[bytes, Reply]:
    return dict(zip(row[::2], row[1::2], strict=True))


def _group(row: dict[bytes, Reply]) -> GroupInfo:
    consumers, anchor = [], None
    for each in map(_named, row[b"consumers"]):
        # Redis 6.0 to 7.0 also call the number of a consumer's records "pel-count"
        consumers.append(ConsumerInfo(each[b"name"], each[b"pel-count"], each[b"seen-time"], each.get(b"active-time")))
        if each[b"pending"] and anchor is None:
            entry_id, delivered, count = each[b"pending"][0]
            anchor = PendingRecord(entry_id, each[b"name"], delivered, count)
    read = (row[b"entries-read"] if row[b"entries-read"] is not None else UNKNOWN) if b"entries-read" in row else None
    return GroupInfo(
        row[b"name"],
        row[b"last-delivered-id"],
        read,
        row[b"pel-count"],
        row.get(b"nacked-count", 0),
        tuple(consumers),
        anchor,
    )


def deadline(link: Link, key: bytes) -> int | None:
    """Return the time when the key expires, in wall milliseconds; None if it does not."""
    found = link.ask([("PEXPIRETIME", key)])[0]
    if isinstance(found, ResponseError):  # before Redis 7.0, where times are not accurate to the millisecond
        left, (seconds, micros) = link.ask([("PTTL", key), ("TIME",)])
        found = left if left < 0 else int(seconds) * 1000 + int(micros) // 1000 + left
    if found == -2:
        raise ChangedError("the key is gone")
    return None if found < 0 else int(found)


# ---------------------------------------------------------------------- entries


class Entries:
    """The entries of a stream in order, a page at a time. The next page is requested before this one is returned."""

    def __init__(self, link: Link, key: bytes, after: bytes = b"", upto: bytes = b"+") -> None:
        self._link, self._key, self._upto = link, key, upto
        self._start = b"(" + after if after else b"-"
        self._count = _FIRST_PAGE

    def __iter__(self) -> Iterator[list[Entry]]:
        self._request()
        while page := self._link.accepted(self._link.receive(), ("XRANGE",)):
            is_last = len(page) < self._count
            self._start = b"(" + page[-1][0]
            self._count = _next_count(page)
            if not is_last:
                self._request()
            yield page
            if is_last:
                return

    def _request(self) -> None:
        self._link.send([("XRANGE", self._key, self._start, self._upto, "COUNT", self._count)])


def size_of(entry: Entry) -> int:
    """Return the size of an entry in bytes, with a small allowance for its frame."""
    return 32 + sum(map(len, entry[1])) + 8 * len(entry[1])


def _next_count(page: list[Entry]) -> int:
    """Return the number of entries for the next page, by the largest of the last eight; at most four times as many."""
    largest = max(map(size_of, page[-8:]))
    return max(1, min(PAGE_ENTRIES, PAGE_BYTES // largest, 4 * len(page)))


def missing_ids(link: Link, key: bytes, wanted: list[bytes]) -> list[bytes]:
    """Return the ids among these that the stream does not contain.

    The ids are checked one by one, since a range would read every entry in between. One round trip checks several.
    """
    missing: list[bytes] = []
    count, at = 1, 0
    while at < len(wanted):
        some = wanted[at : at + count]
        found: list[Entry] = []
        for entry_id, reply in zip(some, link.ask([("XRANGE", key, each, each) for each in some]), strict=True):
            found += link.accepted(reply, ("XRANGE",))
            if not reply:
                missing.append(entry_id)
        at += len(some)
        count = _next_count(found) if found else min(PAGE_ENTRIES, 4 * count)
    return missing


# ---------------------------------------------------------------------- pending records


def records(link: Link, key: bytes, group: GroupInfo, *, count: int = PAGE_RECORDS) -> Iterator[list[PendingRecord]]:
    """Yield a group's pending records by id, a page at a time."""
    start = b"-"
    while group.pending:
        page = _page(link, key, group, start, count)
        if page:
            yield page
        if len(page) < count:
            return
        start = b"(" + page[-1].id


def _page(link: Link, key: bytes, group: GroupInfo, start: bytes, count: int) -> list[PendingRecord]:
    rows: list[Reply] = []
    for attempt in range(_CLOCK_TRIES):
        rows, now = _rows(link, key, group, start, count)
        if now is not None and all(row[2] for row in rows):
            return [_record(row, now) for row in rows]
        if attempt > 2:
            time.sleep(0.001)  # records of this very millisecond have an idle time of 0, as future ones have
    return _by_xinfo(link, key, group, {row[0] for row in rows})


def _rows(link: Link, key: bytes, group: GroupInfo, start: bytes, count: int) -> tuple[list[Reply], int | None]:
    """Return rows of XPENDING and the server's clock at that moment; None if it cannot be determined.

    The anchor is read before and after the page, in one transaction. If both replies are equal, the clock did not move
    in between. Then it is the anchor's delivery time plus its idle time.
    """
    commands: list[Command] = [("XPENDING", key, group.name, start, "+", count)]
    anchor = group.anchor
    if anchor is not None:
        assert anchor.consumer is not None
        probe = ("XPENDING", key, group.name, anchor.id, anchor.id, 1, anchor.consumer)
        commands = [probe, *commands, probe]
    replies = link.ask([("MULTI",), *commands, ("EXEC",)])
    for command, reply in zip([*commands, ("EXEC",)], replies[1:], strict=True):
        link.accepted(reply, command)
    made = [link.accepted(reply, command) for command, reply in zip(commands, replies[-1], strict=True)]
    if anchor is None:
        return made[0], 0 if all(row[2] < 0 for row in made[0]) else None
    before, rows, after = made
    if not before or before != after or before[0][2] == 0 or before[0][3] != anchor.deliveries:
        return rows, None
    return rows, anchor.time + before[0][2]


def _record(row: Reply, now: int) -> PendingRecord:
    entry_id, consumer, idle, count = row
    # XPENDING shows a record without an owner with idle time -1 and without a name
    return PendingRecord(entry_id, None, 0, count) if idle < 0 else PendingRecord(entry_id, consumer, now - idle, count)


def _by_xinfo(link: Link, key: bytes, group: GroupInfo, wanted: set[bytes]) -> list[PendingRecord]:
    """Return the same records from XINFO, at any cost.

    This is for delivery times in the future of the server's clock, and for an unusable anchor.
    """
    count = max(group.pending, 1)
    found = _named(link.call("XINFO", "STREAM", key, "FULL", "COUNT", count))
    for row in map(_named, found[b"groups"]):
        if row[b"name"] != group.name:
            continue
        owned = [
            PendingRecord(entry_id, each[b"name"], delivered, times)
            for each in map(_named, row[b"consumers"])
            for entry_id, delivered, times in each[b"pending"]
        ]
        mine = {record.id for record in owned}
        free = [PendingRecord(each[0], None, 0, each[3]) for each in row[b"pending"] if each[0] not in mine]
        page = sorted((record for record in owned + free if record.id in wanted), key=lambda one: as_id(one.id))
        if len(page) == len(wanted):
            return page
    raise ChangedError("the group's pending entries change while they are read")


def as_id(text: bytes) -> tuple[int, int]:
    """Return an id as two numbers, which sort as ids do."""
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def ascending(ids: list[bytes]) -> bool:
    """Return True if the ids strictly increase, as in a stream."""
    return all(as_id(one) < as_id(other) for one, other in pairwise(ids))

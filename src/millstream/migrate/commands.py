"""Construction of the commands that make one stream equal to another. This module sends nothing.

The order is :func:`creating`, :func:`orphaned_records`, :func:`adding`, :func:`claiming`, :func:`closing`. XCLAIM
creates a pending record only for an existing entry. So entries that are pending but deleted are added first, claimed,
and trimmed away again. Unlike XDEL, XTRIM leaves no trace in the stream's counters, and an empty stream allows XSETID
to go back to 0-0.
"""

from collections.abc import Iterable, Iterator

from millstream.migrate.capabilities import TargetFeatures
from millstream.migrate.connection import Command
from millstream.migrate.read_stream import UNKNOWN, Entry, GroupInfo, Overview, PendingRecord, as_id
from millstream.texts import plural

CLAIMED_AT_ONCE = 500
"""Number of ids in one XCLAIM. A command blocks its server while it runs."""

RELEASED_HOLDER = b""
"""Consumer that holds released entries on servers without XNACK, as in ``millstream.client.emulate``."""

DEFAULT_SETTINGS = (100, 100)
"""Default seconds and number of messages that a stream remembers."""

_GUARD = b"millstream:moving"


def creating(key: bytes, groups: tuple[GroupInfo, ...]) -> list[Command]:
    """Return the commands for an empty stream with these groups and consumers."""
    commands: list[Command] = []
    for group in groups:
        commands.append(("XGROUP", "CREATE", key, group.name, "0-0", "MKSTREAM"))
        commands += [("XGROUP", "CREATECONSUMER", key, group.name, consumer.name) for consumer in group.consumers]
    if not groups:  # only a group can create a stream without entries
        commands += [("XGROUP", "CREATE", key, _GUARD, "0-0", "MKSTREAM"), ("XGROUP", "DESTROY", key, _GUARD)]
    return commands


def orphaned_records(
    key: bytes, held: list[tuple[bytes, list[PendingRecord]]], supports: TargetFeatures
) -> Iterator[Command]:
    """Yield the commands for pending records whose entries were deleted."""
    ids = {record.id for _, records in held for record in records}
    for entry_id in sorted(ids, key=as_id):
        yield ("XADD", key, entry_id, "gone", "1")
    for group, records in held:
        yield from claiming(key, group, records, supports)
    if ids:
        yield ("XTRIM", key, "MAXLEN", 0)
        yield ("XSETID", key, "0-0")


def adding(key: bytes, page: Iterable[Entry]) -> list[Command]:
    """Return the commands that add entries with their ids and with fields in order."""
    return [("XADD", key, entry_id, *fields) for entry_id, fields in page]


def claiming(key: bytes, group: bytes, records: list[PendingRecord], supports: TargetFeatures) -> Iterator[Command]:
    """Yield the commands for pending records of existing entries. Records delivered together are claimed together.

    One XCLAIM sets the same delivery time and count for all its ids, so different records need separate commands.
    Workers read batches, so there are far fewer such groups than records.
    """
    alike: dict[tuple[bytes | None, int, int], list[bytes]] = {}
    for record in records:
        alike.setdefault((record.consumer, record.time, record.deliveries), []).append(record.id)
    for (consumer, time, count), ids in alike.items():
        for at in range(0, len(ids), CLAIMED_AT_ONCE):
            some = ids[at : at + CLAIMED_AT_ONCE]
            if consumer is None and supports.release:
                yield ("XNACK", key, group, "FAIL", "IDS", len(some), *some, "RETRYCOUNT", count, "FORCE")
            else:
                holder = RELEASED_HOLDER if consumer is None else consumer
                how = ("TIME", time, "RETRYCOUNT", count, "FORCE", "JUSTID")
                yield ("XCLAIM", key, group, holder, 0, *some, *how)


def closing(key: bytes, stream: Overview, supports: TargetFeatures) -> list[Command]:
    """Return the commands for counters, positions and settings. They may be sent again after more entries were added.

    They come last: XADD, XTRIM and XCLAIM change the counters, and these commands restore the right values.
    """
    commands: list[Command] = []
    if supports.idempotence and stream.settings is not None and stream.settings != DEFAULT_SETTINGS:
        duration, size = stream.settings
        commands.append(("XCFGSET", key, "IDMP-DURATION", duration, "IDMP-MAXSIZE", size))
    words: list[bytes | str | int] = ["XSETID", key, stream.last_id]
    if supports.counters:
        # A server without a counter would count these entries after its upgrade
        words += ["ENTRIESADDED", stream.length if stream.entries_added is None else stream.entries_added]
        if stream.max_deleted not in {None, b"0-0"}:
            words += ["MAXDELETEDID", stream.max_deleted or b"0-0"]
    commands.append(words)
    for group in stream.groups:
        read: tuple[str | int, ...] = ()
        if supports.entries_read and group.entries_read is not None:
            read = ("ENTRIESREAD", group.entries_read)
        commands.append(("XGROUP", "SETID", key, group.name, group.last_id, *read))
    return commands


def unsupported(stream: Overview, supports: TargetFeatures) -> list[str]:
    """Return the facts, except the times of consumers, that commands cannot carry to a server with these features."""
    found = []
    if not supports.counters and (stream.max_deleted not in {None, b"0-0"} or stream.entries_added != stream.length):
        found.append("entries-added and max-deleted-entry-id: the target's XSETID does not take them; it counts again")
    counting = [group for group in stream.groups if group.entries_read not in {None, UNKNOWN}]
    if counting and not supports.entries_read:
        found.append("entries-read of the groups: the target does not keep it")
    if any((group.entries_read or 0) > (stream.entries_added or 0) for group in counting):
        found.append("entries-read beyond entries-added: servers from Redis 8.2 on lower it to entries-added")
    released = sum(group.released for group in stream.groups)
    if released and not supports.release:
        found.append(
            f"{plural(released, 'released entry', 'released entries')}: the target has no XNACK; held by a consumer "
            '"" with delivery time '
            "0, so that any claim takes them"
        )
    if stream.settings not in {None, DEFAULT_SETTINGS} and not supports.idempotence:
        found.append("settings of idempotent adding: the target has no XCFGSET")
    if stream.remembered or stream.messages or stream.duplicates:
        found.append("remembered messages of idempotent adding and their counts: no command reads them")
    return found

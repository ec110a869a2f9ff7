"""Pending entries of a group: a summary, and pages of them by id, which cost the same however many there are."""

from collections.abc import Sequence
from dataclasses import replace

from millstream.client.line import Command, Line
from millstream.client.ranges import behind
from millstream.console.model import replies
from millstream.console.model.pending import PendingEntry, PendingPage, PendingSummary
from millstream.console.reading.asking import calls, checked

PAGE = 100
"""Entries of a page, unless asked otherwise."""


async def summary(line: Line, stream: str, group: str) -> PendingSummary:
    """How much is pending in a group, and with whom.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.

    Raises:
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    (reply,) = await calls(line, [("XPENDING", stream, group)])
    return replies.pending_summary(checked(reply, stream, group))


async def page(
    line: Line,
    stream: str,
    group: str,
    *,
    start: str = "-",
    count: int = PAGE,
    consumer: str | None = None,
    idle_ms: int | None = None,
    payload: bool = False,
) -> PendingPage:
    """Some pending entries, in the order of their ids.

    Args:
        line: to the server.
        stream: key of the stream.
        group: name of the group.
        start: where to begin, ``-`` or the ``next`` of the page before.
        count: most entries.
        consumer: only what this one holds.
        idle_ms: only what was last delivered so long ago at least; what nobody holds always fits.
        payload: also the entries themselves, in a second round trip.

    Raises:
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    command: list[bytes | str | int | float] = ["XPENDING", stream, group]
    command += ["IDLE", idle_ms] if idle_ms is not None else []
    command += [start, "+", count]
    command += [consumer] if consumer is not None else []
    (reply,) = await calls(line, [command])
    rows = checked(reply, stream, group)
    found = [replies.pending_entry(stream, group, row) for row in rows]
    following = behind(rows[-1][0]) if len(rows) == count else None
    if payload:
        found = await with_payload(line, found)
    return PendingPage(tuple(found), following, len(rows))


async def with_payload(line: Line, entries: Sequence[PendingEntry]) -> list[PendingEntry]:
    """The same entries with what is in them, or that they are gone from the stream; in one round trip.

    Args:
        line: to the server.
        entries: of any streams and groups.

    Raises:
        NotReadableError: the server does not let us read the stream.
        Disconnected: no answer came.
    """
    asked: list[Command] = [("XRANGE", entry.stream, entry.id, entry.id) for entry in entries]
    found = []
    for entry, reply in zip(entries, await calls(line, asked), strict=True):
        rows = checked(reply, entry.stream)
        view = replies.entry_view(entry.stream, rows[0]) if rows else None
        found.append(replace(entry, entry=view, gone=view is None))
    return found

"""Everything that advice about a group goes by, in a few round trips however much is pending."""

from dataclasses import replace

from millstream.client.line import Line
from millstream.console.model.advice import Case
from millstream.console.model.pending import PendingEntry
from millstream.console.reading import fleet, pending
from millstream.console.reading.asking import NotReadableError
from millstream.console.reading.counting import COUNT
from millstream.console.reading.groups import read_group

_LOOKED_AT = 1000
"""Pending entries that advice goes by, the oldest."""


async def read_case(line: Line, stream: str, name: str, *, count: int = COUNT) -> Case:
    """What is known of a group: its consumers, its oldest pending entries, and who works.

    Args:
        line: to the server.
        stream: key of the stream.
        name: of the group.
        count: most entries that are counted where the server does not know the lag; 0 for none.

    Raises:
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    case = Case(await read_group(line, stream, name, count=count), workers=await fleet.workers(line))
    return replace(case, pending=await _oldest(line, stream, name)) if case.seen.group.pending else case


async def _oldest(line: Line, stream: str, name: str) -> tuple[PendingEntry, ...]:
    try:
        return (await pending.page(line, stream, name, count=_LOOKED_AT)).entries
    except NotReadableError:  # XPENDING is not for this user, who may see the rest
        return ()

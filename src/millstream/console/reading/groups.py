"""One group: its state, and each of its consumers."""

from millstream.client.line import Line
from millstream.console.model import replies
from millstream.console.model.streams import ConsumerStatus, GroupSeen, GroupStatus, StreamStatus
from millstream.console.reading.asking import NotReadableError, calls, checked
from millstream.console.reading.counting import COUNT, count_lag
from millstream.console.reading.streams import read_one

_NAMED = 10  # groups that a message names


async def read_group(line: Line, stream: str, name: str, *, count: int = COUNT) -> GroupSeen:
    """A group, its stream and its consumers."""
    seen = await read_one(line, stream)
    found = await count_lag(line, seen.streams[0], _named(seen.streams[0], name), count)
    try:
        return GroupSeen(seen, found, tuple(await consumers(line, stream, name)))
    except NotReadableError as error:
        return GroupSeen(seen, found, (), str(error))


def _named(status: StreamStatus, name: str) -> GroupStatus:
    if (refused := status.missing.get("groups")) is not None:
        raise NotReadableError(f"{status.key}: its groups are not known: {refused}")
    for found in status.groups:
        if found.name == name:
            return found
    names = sorted(each.name for each in status.groups)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    has = f"its groups are: {', '.join(names[:_NAMED])}{more}" if names else "it has none"
    raise NotReadableError(f"the stream {status.key!r} has no group {name!r}; {has}")


async def consumers(line: Line, stream: str, name: str) -> list[ConsumerStatus]:
    """The consumers of a group, by name."""
    (reply,) = await calls(line, [("XINFO", "CONSUMERS", stream, name)])
    rows = checked(reply, stream, name)
    return sorted((replies.consumer_status(stream, name, row) for row in rows), key=lambda found: found.name)

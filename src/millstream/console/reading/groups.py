"""One group: how it stands, and each of its consumers."""

from millstream.client.line import Line
from millstream.console.model import replies
from millstream.console.model.streams import ConsumerStatus, GroupStatus, StreamStatus
from millstream.console.reading.asking import NotReadableError, calls, checked
from millstream.console.reading.streams import one

_NAMED = 10  # groups that a message names


async def group(line: Line, stream: str, name: str) -> tuple[StreamStatus, GroupStatus]:
    """A group and its stream.

    Args:
        line: to the server.
        stream: key of the stream.
        name: of the group.

    Raises:
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    status = await one(line, stream)
    if (refused := status.missing.get("groups")) is not None:
        raise NotReadableError(f"{stream}: {refused}")
    for found in status.groups:
        if found.name == name:
            return status, found
    names = sorted(each.name for each in status.groups)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    has = f"its groups are: {', '.join(names[:_NAMED])}{more}" if names else "it has none"
    raise NotReadableError(f"the stream {stream!r} has no group {name!r}; {has}")


async def consumers(line: Line, stream: str, name: str) -> list[ConsumerStatus]:
    """The consumers of a group, by name.

    Args:
        line: to the server.
        stream: key of the stream.
        name: of the group.

    Raises:
        NotReadableError: there is no such stream or group, or the server does not let us look.
        Disconnected: no answer came.
    """
    (reply,) = await calls(line, [("XINFO", "CONSUMERS", stream, name)])
    rows = checked(reply, stream, name)
    return sorted((replies.consumer_status(stream, name, row) for row in rows), key=lambda found: found.name)

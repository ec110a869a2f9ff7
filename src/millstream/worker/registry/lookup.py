"""Check that a stream, a group or a worker that a user names exists; if not, list the existing ones."""

from collections.abc import Sequence
from typing import ClassVar

from redis.exceptions import NoPermissionError, ResponseError

from millstream.client.line import AccessDenied, Line
from millstream.errors import MillstreamError, UsageError
from millstream.texts import said

_SHOWN = 10


class NotThereError(MillstreamError):
    """No worker, stream or group has that name, or the server refuses to show it.

    What to do: list the workers (`millstream worker ls`), the streams or the groups, and use one of those names.
    """

    exit_code: ClassVar[int] = 4


async def groups(line: Line, stream: str) -> list[str]:
    """Return the names of a stream's groups."""
    reply = (await line.near(stream).calls([("XINFO", "GROUPS", stream)]))[0]
    if isinstance(reply, ResponseError):
        if "no such key" in str(reply):
            raise NotThereError(f"there is no stream {stream!r}: check the name, and the database in the URL")
        if str(reply).startswith("WRONGTYPE"):
            raise NotThereError(f"the key {stream!r} holds no stream")
        if isinstance(reply, NoPermissionError):
            raise AccessDenied(f"{stream}: {reply}")
        raise NotThereError(f"{stream}: {said(reply)}")
    return [dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode(errors="surrogateescape") for row in reply]


async def require_group(line: Line, stream: str, group: str, keys: Sequence[str] = ()) -> None:
    """Raise unless a stream, or one of its partitions ``keys``, has a group."""
    found = list(dict.fromkeys([name for key in keys or (stream,) for name in await groups(line, key)]))
    if group not in found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        has = f"its groups are: {', '.join(sorted(found)[:_SHOWN])}{more}" if found else "it has none"
        raise NotThereError(f"the stream {stream!r} has no group {group!r}; {has}")


def pick(known: Sequence[str], wanted: Sequence[str], *, everyone: bool = False) -> list[str]:
    """Return the ids of the workers that a user names, each by its id or by a unique prefix."""
    if bool(wanted) == everyone:
        raise UsageError("The workers are missing. Give their IDs, or --all.")
    if everyone:
        return list(known)
    chosen = []
    for name in wanted:
        fits = [each for each in known if each == name] or [each for each in known if each.startswith(name)]
        if len(fits) != 1:
            if fits:
                raise UsageError(f"the worker {name!r} is ambiguous. Give more of one of these IDs: {', '.join(fits)}.")
            alive = f"Give one of those that are: {', '.join(known)}." if known else "No worker is."
            raise NotThereError(f"the worker {name!r} is not alive. {alive}")
        chosen.append(fits[0])
    return list(dict.fromkeys(chosen))

"""Removal of dead consumers: a consumer of a process that is gone is removed once it is long idle and holds no entries.

XGROUP DELCONSUMER drops the consumer's pending entries. So one script on the server checks and removes; WATCH would not
help, because a change of a group does not break it. If scripts are not allowed, nothing is removed. A consumer removed
by mistake loses nothing: the next XREADGROUP creates it again.
"""

import logging
from collections.abc import Iterable

from redis.exceptions import ResponseError

from millstream.client.line import Line
from millstream.errors import MillstreamError
from millstream.paths import packaged
from millstream.texts import said

log = logging.getLogger("millstream.worker")

#: Idle seconds after which a consumer counts as dead.
DEFAULT_AFTER = 3600.0

#: Returns the removed names. KEYS: the stream; ARGV: group, idle milliseconds, names of live consumers.
SCRIPT = packaged("millstream.worker.registry", "reap.lua")


class ReapError(MillstreamError):
    """The server did not run the script: the group does not exist, or the user may not run scripts.

    What to do: allow the user to run scripts and XGROUP. Dead consumers stay until then, and do no harm.
    """


async def reap(line: Line, stream: str, group: str, *, idle_ms: int, alive: Iterable[str] = ()) -> list[str]:
    """Remove a group's consumers that are idle and hold no entries, atomically; return their names."""
    reply = (await line.calls([("EVAL", SCRIPT, 1, stream, group, max(idle_ms, 0), *alive)]))[0]
    if isinstance(reply, ResponseError):
        raise ReapError(f"{stream}, group {group}: {said(reply)}")
    return [name.decode(errors="surrogateescape") for name in reply]

"""The question before a look through all keys: does this server have all of them?"""

import re
from collections.abc import Sequence

from millstream.client.line import Line
from millstream.errors import UsageError

ASK = ("CLUSTER", "INFO")
"""SCAN answers from one node of a cluster as from a whole server: no MOVED tells that the rest is elsewhere."""

_SIZE = re.compile(rb"^cluster_size:(\d+)", re.MULTILINE)


def masters(reply: object) -> int:
    """The number of nodes with slots, from the reply to :data:`ASK`; 1 for an error: there is no cluster."""
    found = _SIZE.search(reply) if isinstance(reply, bytes) else None
    return int(found[1]) if found else 1


def part_of(count: int) -> str:
    """The sentence for one node that was named alone."""
    return f"the URL names one node of a Redis Cluster of {count} masters, which has a part of the keys"


async def require_whole(nodes: Sequence[Line]) -> None:
    """Insist on all keys of a server.

    Raises:
        UsageError: the one node is one of several.
        Disconnected: no answer came.
    """
    if len(nodes) == 1:
        (reply,) = await nodes[0].calls([ASK])
        if (count := masters(reply)) > 1:
            raise UsageError(f"{part_of(count)}: write it as redis+cluster://HOST:PORT")

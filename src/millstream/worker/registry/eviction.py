"""A warning at the start of a worker whose server removes whole streams when its memory is full."""

import contextlib
import logging
import re

from redis.exceptions import ResponseError

from millstream.client.line import Disconnected, Line

log = logging.getLogger("millstream.worker")

_POLICY = re.compile(rb"^maxmemory_policy:(allkeys-[a-z]+)", re.MULTILINE)


async def warn_of_eviction(line: Line) -> None:
    """Log a warning if a server may evict streams; do nothing if it refuses to show its policy."""
    policy = None
    with contextlib.suppress(ResponseError, Disconnected):
        for node in await line.nodes():
            reply = await node.call("INFO", "memory")
            policy = policy or (_POLICY.search(reply) if isinstance(reply, bytes) else None)
    if policy is not None:
        log.warning(
            "the server's maxmemory-policy is %s: when its memory is full it removes whole streams, with their groups. "
            "Write CONFIG SET maxmemory-policy noeviction, also in its configuration file",
            policy[1].decode(),
        )

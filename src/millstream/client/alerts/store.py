"""The keys of alerts: a bounded stream, the lease of its one writer, and the last entry that each hook was told of.

::

    millstream:alerts                           stream, about 1,000 entries: an alert opened or closed
    millstream:{millstream:alerts}:owner:watch  string, with a time to live: the watcher that may write
    millstream:{millstream:alerts}:fence:watch  counter: the number of the last watcher
    millstream:{millstream:alerts}:sent         hash: hook -> id of the last entry that it was told of

A watcher that lost its lease cannot write: the script that adds an entry checks the lease in the same step.
"""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from redis.exceptions import RedisError

from millstream.client.later.scripts import ServerScript
from millstream.client.line import Line, Reply
from millstream.client.partitions import lease
from millstream.client.partitions.lease import PartitionLease
from millstream.errors import MillstreamError
from millstream.texts import said

KEY = "millstream:alerts"
"""Key of the stream; a cluster keeps it on one node, like any key."""

SENT = "millstream:{millstream:alerts}:sent"

MOST = 1_000
"""Approximate limit of the stream's length, in entries; the oldest go."""

BYTES = 4 << 20
"""Limit of one reading in bytes; a watcher's 2,000 entries usually have one."""

_ENTRIES = MOST * 2  # largest number of entries that are read
_GROWTH = 8  # largest number of times that a page has more entries than the page before

SCRIPT = ServerScript.beside("millstream.client.alerts", "alert.lua")
_GROUP = "watch"  # divides watchers as a group's name divides the readers of a partition


class AlertStoreError(MillstreamError):
    """The server refuses to show or to keep alerts; the message is the server's.

    What to do: give the user the keys `millstream:alerts` and `millstream:{millstream:alerts}:*`, or mend the server.
    """


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise AlertStoreError(f"{KEY}: {said(error)}") from error


async def rows(line: Line) -> tuple[list[Reply], bool]:
    """Return the last entries of the stream, oldest first, and True if older ones exceed :data:`BYTES`."""
    found, left = list[Reply](), BYTES
    async for page in pages(line):
        found += page
        left -= _bulk(page)
        if left <= 0:
            return found[::-1], len(found) < _ENTRIES
    return found[::-1], False


async def pages(line: Line) -> AsyncIterator[list[Reply]]:
    """Read the last entries of the stream, the newest first, in pages of about :data:`BYTES` at most."""
    left, size, end = _ENTRIES, 1, "+"  # the size of entries is unknown at first
    while wanted := min(size, left):
        with _refusals():
            page: list[Reply] = await line.near(KEY).call("XREVRANGE", KEY, end, "-", "COUNT", wanted)
        if page:
            yield page
        if len(page) < wanted:
            return
        left -= wanted
        end = f"({page[-1][0].decode()}"
        size = max(min(BYTES * len(page) // max(_bulk(page), 1), wanted * _GROWTH), 1)


def _bulk(page: Sequence[Reply]) -> int:
    """Return the size of entries in bytes."""
    return sum(len(word) for _, flat in page for word in flat)


async def take(line: Line, watcher: str, lasts_ms: int) -> PartitionLease | None:
    """Return the lease of the watcher that may write; None if another watcher has it."""
    with _refusals():
        fence = await lease.take(line.near(KEY), KEY, _GROUP, watcher, lasts_ms)
    if fence is None:
        return None
    return PartitionLease(KEY, None, _GROUP, watcher, fence, lasts_ms, int(time.monotonic() * 1000))


async def renew(line: Line, held: PartitionLease) -> bool:
    """Extend the lease; return False if it was lost."""
    with _refusals():
        return await lease.renew(line.near(KEY), held)


async def give(line: Line, held: PartitionLease) -> None:
    """End the lease, so that another watcher may take it at once."""
    with _refusals():
        await lease.give(line.near(KEY), held)


async def add(line: Line, held: PartitionLease, words: Sequence[str]) -> bytes | None:
    """Add an entry and return its id; None if the lease was lost."""
    with _refusals():
        reply: bytes | None = await SCRIPT.call(line.near(KEY), (held.key, KEY), (held.text, MOST, *words))
    return reply


async def sent(line: Line, hooks: Sequence[str]) -> dict[str, bytes | None]:
    """Return the id of the last entry that each hook was told of, whatever a client wrote there."""
    with _refusals():
        found = await line.near(KEY).call("HMGET", SENT, *hooks)
    return dict(zip(hooks, found, strict=True))


async def note_sent(line: Line, hook: str, entry: str) -> None:
    """Store that a hook was told of an entry."""
    with _refusals():
        await line.near(KEY).call("HSET", SENT, hook, entry)

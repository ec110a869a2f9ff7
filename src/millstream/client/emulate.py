"""Giving entries back, delaying and keeping them: the commands for servers with XNACK and for those without. Pure.

Without XNACK one plain XCLAIM does it: the entry moves to the consumer ``""`` with a delivery time of zero, so that any
claim takes it at once, and JUSTID leaves the delivery counter alone. What differs from XNACK: a consumer named ``""``
is visible in XINFO CONSUMERS; ``XGROUP DELCONSUMER key group ""`` would drop the entries held there; an entry deleted
from the stream is dropped from the pending list instead of being kept; order among released entries is by id.

No server can delay a redelivery. A delay is made of idle time: an entry that gets ``min_idle - delay`` milliseconds of
idle time becomes claimable after ``delay`` for every reader that claims at ``min_idle``.
"""

from collections.abc import Iterable, Sequence

from millstream.client.capabilities import Capabilities
from millstream.client.line import Command

#: Owner of entries released on servers without XNACK.
NOBODY = b""

#: Owner of entries that wait for their retry, on every server: what a worker holds and what merely waits stay apart.
WAITING = b"(retry)"


def release(
    capabilities: Capabilities,
    stream: str,
    group: str,
    entries: Sequence[tuple[bytes, int]],
    *,
    charge: bool,
) -> list[Command]:
    """Commands that make entries claimable by anybody, at once.

    Args:
        capabilities: of the server.
        stream: key of the stream.
        group: name of the group.
        entries: pairs of entry id and present delivery count.
        charge: True keeps the delivery counted (the handler gave up), False takes it back (it never ran).
    """
    if not entries:
        return []
    if capabilities.xnack:
        mode = "FAIL" if charge else "SILENT"
        return [("XNACK", stream, group, mode, "IDS", len(entries), *(entry for entry, _ in entries))]
    head = ("XCLAIM", stream, group, NOBODY, 0)
    if charge:
        return [(*head, *(entry for entry, _ in entries), "TIME", 0, "JUSTID")]
    return [(*head, *ids, "TIME", 0, "RETRYCOUNT", max(count - 1, 0), "JUSTID") for count, ids in _by_count(entries)]


def delay(
    stream: str, group: str, entry: bytes, *, deliveries: int, delay_ms: int, min_idle_ms: int, owner: bytes = WAITING
) -> Command:
    """The command that makes an entry claimable after ``delay_ms``, at most ``min_idle_ms`` away.

    IDLE, not TIME, so that the clocks of worker and server need not agree.
    """
    idle = min(max(min_idle_ms - delay_ms, 0), min_idle_ms)
    return ("XCLAIM", stream, group, owner, 0, entry, "IDLE", idle, "RETRYCOUNT", deliveries, "JUSTID")


def renew(stream: str, group: str, consumer: str, entries: Sequence[bytes]) -> Command:
    """The command that resets the idle time of entries this consumer holds, delivery counts untouched."""
    return ("XCLAIM", stream, group, consumer, 0, *entries, "JUSTID")


def recount(
    stream: str, group: str, consumer: str, entries: Iterable[tuple[bytes, int]], *, min_idle_ms: int = 0
) -> list[Command]:
    """Commands that set delivery counts of entries this consumer holds, and renew them.

    Args:
        stream: key of the stream.
        group: name of the group.
        consumer: who holds them.
        entries: pairs of entry id and new delivery count.
        min_idle_ms: only entries idle for at least so long are changed.
    """
    head = ("XCLAIM", stream, group, consumer, min_idle_ms)
    return [(*head, *ids, "RETRYCOUNT", count, "JUSTID") for count, ids in _by_count(entries)]


def _by_count(entries: Iterable[tuple[bytes, int]]) -> list[tuple[int, list[bytes]]]:
    groups: dict[int, list[bytes]] = {}
    for entry, count in entries:
        groups.setdefault(count, []).append(entry)
    return list(groups.items())

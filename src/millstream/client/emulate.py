"""Commands that give entries back, delay or renew them, for servers with XNACK and for those without. Pure.

The commands do not check the owner of the entries: the caller must be sure, and ``worker/settlement/fence.py`` makes
the server check it.

Without XNACK one plain XCLAIM does it. The entry moves to the consumer ``""`` with a delivery time of zero, so that any
claim takes it at once, and JUSTID leaves the delivery counter alone. Differences from XNACK:

* A consumer named ``""`` is visible in XINFO CONSUMERS.
* ``XGROUP DELCONSUMER key group ""`` would drop the entries held there.
* An entry deleted from the stream is dropped from the pending list instead of being kept.
* The order among released entries is by id.

A server cannot delay a redelivery. A delay within ``min_idle`` is made of idle time. An entry that gets ``min_idle -
delay`` milliseconds of it becomes claimable after ``delay`` for every reader that claims at ``min_idle``.
:mod:`millstream.client.delays.due` keeps longer delays, and all delays for readers with another ``min_idle``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.client.capabilities import Capabilities
from millstream.client.line import Command


@dataclass(frozen=True, slots=True, init=False)
class Move:
    """A command on pending entries, without its key and ids."""

    # Command name and the arguments between the key and the ids. If the last argument is ``IDS``, the number of ids
    # follows
    head: tuple[bytes | str | int, ...]
    tail: tuple[bytes | str | int, ...]  # Arguments after the ids

    def __init__(self, *head: bytes | str | int, tail: tuple[bytes | str | int, ...] = ()) -> None:
        object.__setattr__(self, "head", head)
        object.__setattr__(self, "tail", tail)

    def command(self, stream: str, ids: Sequence[bytes]) -> Command:
        """Return the command for these entries of this stream."""
        number = (len(ids),) if self.head[-1] == "IDS" else ()
        return (self.head[0], stream, *self.head[1:], *number, *ids, *self.tail)


#: Owner of released entries on servers without XNACK.
NOBODY = b""

#: Owner of entries that wait for their retry, which separates them from the entries that a worker holds.
WAITING = b"(retry)"


def release(capabilities: Capabilities, group: str, deliveries: int, *, charge: bool) -> Move:
    """Return the command that makes entries claimable by any consumer, at once."""
    if capabilities.xnack:
        return Move("XNACK", group, "FAIL" if charge else "SILENT", "IDS")
    count: tuple[str | int, ...] = () if charge else ("RETRYCOUNT", max(deliveries - 1, 0))
    return Move("XCLAIM", group, NOBODY, 0, tail=("TIME", 0, *count, "JUSTID"))


def delay(group: str, *, deliveries: int, delay_ms: int, min_idle_ms: int, owner: bytes = WAITING) -> Move:
    """Return the command that makes entries claimable after ``delay_ms``, at most ``min_idle_ms`` away.

    It sets IDLE, not TIME, so that the clocks of worker and server need not agree.
    """
    idle = min(max(min_idle_ms - delay_ms, 0), min_idle_ms)
    return Move("XCLAIM", group, owner, 0, tail=("IDLE", idle, "RETRYCOUNT", deliveries, "JUSTID"))


def renew(group: str, consumer: str) -> Move:
    """Return the command that resets the idle time of entries that this consumer holds; their delivery counts stay."""
    return Move("XCLAIM", group, consumer, 0, tail=("JUSTID",))


def recount(group: str, consumer: str, deliveries: int) -> Move:
    """Return the command that sets the delivery count of entries that this consumer holds, and renews them."""
    return Move("XCLAIM", group, consumer, 0, tail=("RETRYCOUNT", deliveries, "JUSTID"))

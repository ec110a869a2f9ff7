"""The number of a stream's entries that a group was not delivered yet, or the reason why it is unknown, and the repair.

Servers keep two counters, entries ever added to the stream and entries ever delivered to the group, and take their
difference. They cannot do so in three cases:

- Entries after the group's position were deleted: XDEL does not record their number.
- A client set the position without the number of entries before it.
- Before Redis 7.0 there are no such counters.

Some cases the ids decide all the same: a group at the last entry has nothing left, one before the first entry has all.
Pure.
"""

from dataclasses import dataclass
from typing import Literal

from millstream.console.model.names import NEVER, order

UnknownLag = Literal["no-counters", "deleted", "position-set", "counters-wrong", "refused"]
"""The reason why a lag is unknown: the server has no counters; an undelivered entry was deleted; a client set the
position; the server's counters contradict each other; the server does not let us ask.
"""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group."""

    entries: int | None  # Entries in the stream that it was not delivered yet; None when that is unknown
    server: int | None = None  # The server's figure, also where the ids differ from it; None for null or nothing
    # The reason why the server does not know it; None when it does. A lag that we counted has a reason and a number.
    reason: UnknownLag | None = None
    at_least: int = 0  # It is no less
    at_most: int | None = None  # It is no more; None when nothing is known of that
    why: str = ""  # The reason as a sentence; empty without one
    # The command that makes the server know it again; None where there is none, or nothing to repair
    repair: tuple[str, ...] | None = None
    repair_note: str = ""  # A warning to read before that command, or the reason why there is none

    @property
    def known(self) -> bool:
        """True if it is a number."""
        return self.entries is not None

    @property
    def worst(self) -> int:
        """The most it may be, for sorting; of one without any bound the least it may be."""
        if self.entries is not None:
            return self.entries
        return self.at_least if self.at_most is None else self.at_most


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The position of a group in its stream, as the server reports it."""

    length: int  # Entries in the stream
    first: str | None  # Id of the oldest one; None when it is empty
    last: str | None  # Id of the newest one; None when it is empty
    added: int | None  # Entries ever added; None when the server does not tell
    deleted: str | None  # The highest id that XDEL deleted, ``"0-0"`` for none; None when the server does not tell
    delivered: str  # The group's last delivered id
    read: int | None  # Entries ever delivered to it; None when the server does not know
    lag: int | None  # The server's figure; None for null or nothing
    counts: bool = True  # True if the server has such a figure at all, be it null


def lag_of(at: GroupPosition) -> Lag:
    """The lag of a group."""
    if at.first is None or at.last is None or order(at.delivered) >= order(at.last):
        return Lag(0, at.lag, at_most=0)
    if order(at.delivered) < order(at.first):
        return Lag(at.length, at.lag, at_least=at.length, at_most=at.length)
    least, most = _bounds(at)
    if at.lag is not None and 0 < at.lag < at.length:
        return Lag(at.lag, at.lag, at_least=at.lag, at_most=at.lag)
    reason, why = _reason(at)
    return Lag(None, at.lag, reason, least, most, why)


def _bounds(at: GroupPosition) -> tuple[int, int]:
    """The least and the most a lag can be: the group's position is at an entry or between two, and before the last."""
    least, most = 1, max(at.length - 1, 1)
    if at.read is not None and at.added is not None and 0 < at.added - at.read < most:
        most = at.added - at.read
    if at.read is not None and at.read >= 0:
        least = max(least, at.length - at.read)
    return (least, most) if least <= most else (1, max(at.length - 1, 1))


def _reason(at: GroupPosition) -> tuple[UnknownLag, str]:
    if not at.counts:
        return "no-counters", "this server does not count what a group was delivered (Redis does since 7.0)"
    if at.lag is not None:
        why = f"the server counts {at.lag}, which cannot be: {at.length} entries are there, some of them delivered"
        return "counters-wrong", why
    if at.deleted is not None and order(at.delivered) <= order(at.deleted):
        why = f"an entry at or after the group's position was deleted (XDEL; the highest is {at.deleted}), and the "
        return "deleted", why + "server cannot tell how many of those it counted are gone"
    why = "the group's position was set (XGROUP CREATE or SETID) without ENTRIESREAD"
    if at.deleted not in (None, NEVER):
        why += f", or it was delivered what lay behind a deleted entry (XDEL; the highest is {at.deleted})"
    return "position-set", f"{why}; the server cannot tell how many entries lie before it"

"""A lag that the server does not know, counted by us; and the command that makes the server know it again. Pure.

XGROUP SETID with ENTRIESREAD sets the number of entries ever added up to the group's position: those ever added, less
those after it. It helps where no entry after the position was deleted. After such a deletion, no command helps: the lag
is known again when the group was delivered an entry after the highest deleted id.
"""

from dataclasses import replace

from millstream.console.model.lag import Lag
from millstream.console.model.names import order
from millstream.console.model.streams import GroupStatus, StreamStatus

_CAREFUL = (
    "it sets the group's position too, to where it is now: entries delivered between reading this and running it would "
    "be delivered again, so pause or stop whoever reads the group first"
)


def counted(stream: StreamStatus, group: GroupStatus, undelivered: int) -> Lag:
    """The lag of a group after its undelivered entries were counted, with the command that repairs the server's."""
    lag = replace(group.lag, entries=undelivered, at_least=undelivered, at_most=undelivered)
    if lag.reason == "no-counters" or stream.entries_added is None:
        return replace(lag, repair_note="a server of this version never knows it; it was counted by reading")
    if lag.reason == "deleted":
        return replace(lag, repair_note=_again(stream, group))
    command = ("XGROUP", "SETID", stream.key, group.name, group.last_delivered_id)
    read = str(max(stream.entries_added - undelivered, 0))
    return replace(lag, repair=(*command, "ENTRIESREAD", read), repair_note=_CAREFUL)


def uncounted(stream: StreamStatus, group: GroupStatus, looked_at: int) -> Lag:
    """The lag of a group that has more undelivered entries than were to be counted."""
    lag = group.lag
    least = max(lag.at_least, looked_at)
    most = None if lag.at_most is None else max(lag.at_most, least)
    note = _again(stream, group) if lag.reason == "deleted" else ""
    note = note or f"there are more than {looked_at}; counting all of them (--count) gives the command that repairs it"
    return replace(lag, at_least=least, at_most=most, repair_note=note)


def _again(stream: StreamStatus, group: GroupStatus) -> str:
    """The event after which a lag is known again that is unknown because entries were deleted."""
    deleted = stream.max_deleted_id or "0-0"
    if order(deleted) < order(group.last_delivered_id):
        return ""
    return (
        f"no command repairs it now; when the group has been delivered everything up to {deleted}, it is known again, "
        "at the latest when nothing is left"
    )

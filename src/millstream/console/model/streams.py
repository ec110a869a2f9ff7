"""The known facts about a stream, its groups and their consumers at one moment. Pure.

Unknown is None, and never a number. Each figure that a server may refuse or not have comes with a reason, in
``StreamStatus.missing`` or next to the figure. Names are text as :mod:`millstream.console.model.names` has them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millstream.console.model.lag import Lag
from millstream.console.model.names import age_ms, is_time, order


@dataclass(frozen=True, slots=True)
class OldestEntry:
    """The oldest entry of some kind, such as pending ones."""

    id: str | None = None  # Its id; None when there is none, and when it is unknown
    why: str | None = None  # The reason why it is not known; None when it is known, also that there is none

    def age(self, now_ms: int) -> int | None:
        """Milliseconds since it was added: 0 when there is none, None when that is not known."""
        if self.id is None:
            return None if self.why else 0
        return age_ms(self.id, now_ms) if is_time(self.id) else None

    @property
    def why_no_age(self) -> str | None:
        """The reason why its age is not known; None where it is, or nothing is there."""
        if self.id is None or is_time(self.id):
            return self.why
        return f"the id {self.id} is no time: whoever added the entry numbers them otherwise"


NOT_ASKED = OldestEntry(why="it was not asked for")


WAITING = "(retry)"
"""Under this name Millstream's workers keep what waits for its next try (``millstream.client.emulate``)."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The known facts about one consumer."""

    stream: str  # Key of the stream
    group: str  # Its group
    name: str  # Its name; ``""`` is where servers without XNACK keep entries without a holder
    pending: int  # Entries it holds
    idle_ms: int  # Time since it last asked for something
    # Time since it was last given something; None when it never was, or the server (before Redis 7.2) does not report
    # it: see ``inactive_known``
    inactive_ms: int | None
    inactive_known: bool = True  # True if the server tells it

    @property
    def reads(self) -> bool:
        """True if the name can be that of a process: not where entries wait for any consumer, or for their next try."""
        return self.name not in {"", WAITING}

    @property
    def waits(self) -> bool:
        """True if what it holds waits for its next try, which the group's workers make when it is due."""
        return self.name == WAITING


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The known facts about one group."""

    stream: str  # Key of the stream
    name: str  # Name of the group
    consumers: int  # Number of its consumers
    pending: int  # Entries delivered and not acknowledged
    last_delivered_id: str  # The position of the group
    entries_read: int | None  # Entries ever delivered, as the server counts them; None when it does not know
    lag: Lag  # Entries not delivered yet
    # Pending entries that no consumer holds, since they were given back; None when it was not asked
    unowned: int | None = None
    oldest_pending: OldestEntry = NOT_ASKED  # The oldest pending entry that waits for no delay
    oldest_undelivered: OldestEntry = NOT_ASKED  # The oldest entry that was not delivered yet
    # Consumer -> pending entries it holds, of those that hold any; None when it was not asked
    held: Mapping[str, int] | None = None
    # Pending entries whose delay is not over; None when it was not asked, or the server does not tell
    delayed: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The known facts about one stream."""

    key: str  # Key of the stream
    length: int  # Entries in it
    last_id: str  # The last id given to an entry, also to one that is gone
    first_entry_id: str | None  # Id of the oldest entry that is there; None when it is empty
    last_entry_id: str | None  # Id of the newest entry that is there; None when it is empty
    entries_added: int | None  # Entries ever added; None when the server (before Redis 7.0) does not tell
    max_deleted_id: str | None  # The highest id that was deleted by XDEL, ``"0-0"`` for none; None as above
    # Groups by name; empty also where they could not be read, and then ``missing`` has ``"groups"``
    groups: tuple[GroupStatus, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # Fact that the server did not tell -> why, in words

    @property
    def worst_lag(self) -> Lag | None:
        """The largest lag of a group, an unknown one by the most it may be; None without groups."""
        return max((group.lag for group in self.groups), key=lambda lag: lag.worst, default=None)

    @property
    def oldest_pending(self) -> OldestEntry:
        """The oldest pending entry of all its groups."""
        return oldest(group.oldest_pending for group in self.groups)

    @property
    def oldest_undelivered(self) -> OldestEntry:
        """The oldest undelivered entry of all its groups."""
        return oldest(group.oldest_undelivered for group in self.groups)

    @property
    def pending(self) -> int:
        """Pending entries of all its groups."""
        return sum(group.pending for group in self.groups)


@dataclass(frozen=True, slots=True)
class StreamsSeen:
    """Streams of a server, read at one moment."""

    at_ms: int  # Wall milliseconds when they were asked for
    streams: tuple[StreamStatus, ...]  # Streams by key
    refused: Mapping[str, str] = field(default_factory=dict)  # Key -> why it could not be read, in words
    more: bool = False  # True if there are streams beyond the limit that was asked for


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """One group with all that is known of it, read at one moment."""

    streams: StreamsSeen  # Its stream alone, with the moment
    group: GroupStatus  # The group
    # Consumers by name; empty where they could not be read, and then ``consumers_why`` has the reason
    consumers: tuple[ConsumerStatus, ...]
    consumers_why: str | None = None  # The reason why they could not be read; None when they were

    @property
    def at_ms(self) -> int:
        """Wall milliseconds when it was asked for."""
        return self.streams.at_ms

    @property
    def stream(self) -> StreamStatus:
        """The stream of the group."""
        return self.streams.streams[0]


def oldest(entries: Iterable[OldestEntry]) -> OldestEntry:
    """The oldest of them; not known where one of them is not."""
    found = OldestEntry()
    for entry in entries:
        if entry.why is not None:
            return entry
        if entry.id is not None and (found.id is None or order(entry.id) < order(found.id)):
            found = entry
    return found

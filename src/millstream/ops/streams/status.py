"""Streams, their groups and their consumers at one moment, and the lag of a group. PURE.

Servers keep two counters: entries ever added to the stream, and entries ever delivered to the group. They report the
difference as the lag. They cannot do so in three cases:

- Entries after the group's position were deleted: XDEL does not record their number.
- A client set the position without the number of entries before it.
- Before Redis 7.0 there are no such counters.

The ids decide some of these cases: a group at the last entry has a lag of 0, one before the first entry lags by all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.ops.words import NEVER, Facts, age_ms, brief, is_time, milliseconds, name, order, picked, rounded
from millstream.texts import plural


@dataclass(frozen=True, slots=True)
class OldestEntry:
    """The oldest entry of some kind, such as the oldest pending entry."""

    id: str | None = None  # Id of the entry; None if there is none, or if it is unknown
    why: str | None = None  # Reason why it is unknown; None if it is known, even if there is none

    def age(self, now_ms: int) -> int | None:
        """Return the milliseconds since it was added: 0 if there is none, None if unknown."""
        if self.id is None:
            return None if self.why else 0
        return age_ms(self.id, now_ms) if is_time(self.id) else None

    @property
    def why_no_age(self) -> str | None:
        """The reason why its age is unknown; None if it is known, or there is no entry."""
        if self.id is None or is_time(self.id):
            return self.why
        return f"the id {self.id} is not a time: the writer of the entry chose its own ids"


NOT_ASKED = OldestEntry(why="it was not asked for")

WAITING = "(retry)"
"""Name of the consumer under which Millstream's workers keep entries until a retry (``millstream.client.emulate``)."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The known facts about one consumer."""

    stream: str  # Key of the stream
    group: str  # Name of the group
    name: str  # Name of the consumer; ``""`` holds released entries on servers without XNACK
    pending: int  # Number of entries that it holds
    idle_ms: int  # Milliseconds since its last request
    # Milliseconds since it last received an entry; None if it never did, or if the server (before Redis 7.2) does not
    # report it: see ``inactive_known``
    inactive_ms: int | None
    inactive_known: bool = True  # True if the server reports ``inactive_ms``

    @property
    def reads(self) -> bool:
        """True if the consumer can be a process: not one that holds released entries, or entries until a retry."""
        return self.name not in {"", WAITING}

    @property
    def waits(self) -> bool:
        """True if its entries wait for a retry, which the group's workers make when due."""
        return self.name == WAITING


UnknownLag = Literal["no-counters", "deleted", "position-set", "counters-wrong", "refused"]
"""The reason why a lag is unknown.

``no-counters``: the server has none. ``deleted``: an undelivered entry was deleted. ``position-set``: a client set the
position. ``counters-wrong``: the server's counters contradict each other. ``refused``: the server refuses the query.
"""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group with its bounds."""

    entries: int | None  # Number of entries not delivered yet; None if unknown
    server: int | None = None  # Figure of the server, even if the ids contradict it; None for null or if missing
    # Reason why the server does not report a lag; None if it does. A counted lag has a reason and a number.
    reason: UnknownLag | None = None
    at_least: int = 0  # Lower bound
    at_most: int | None = None  # Upper bound; None if there is none
    why: str = ""  # Reason as a sentence; empty without one
    # Command that repairs the server's figure; None if there is none, or no need
    repair: tuple[str, ...] | None = None
    repair_note: str = ""  # Warning to read before that command, or the reason why there is none

    @property
    def known(self) -> bool:
        """True if the lag is a known number."""
        return self.entries is not None

    @property
    def worst(self) -> int:
        """The highest possible lag, for sorting; the lowest if there is no upper bound."""
        if self.entries is not None:
            return self.entries
        return self.at_least if self.at_most is None else self.at_most


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The known facts about one group."""

    stream: str  # Key of the stream
    name: str  # Name of the group
    consumers: int  # Number of consumers
    pending: int  # Entries delivered and not acknowledged
    last_delivered_id: str  # Position of the group
    entries_read: int | None  # Number of entries ever delivered, as the server counts; None if it does not report it
    lag: Lag  # Number of entries not delivered yet
    # Number of pending entries without a holder, because they were released; None if not read
    unowned: int | None = None
    oldest_pending: OldestEntry = NOT_ASKED  # Oldest pending entry that is not delayed
    oldest_undelivered: OldestEntry = NOT_ASKED  # Oldest entry that was not delivered yet
    # Consumer -> number of pending entries, without consumers that have none; None if not read
    held: Mapping[str, int] | None = None
    # Number of delayed pending entries; None if not read or not reported
    delayed: int | None = None

    @property
    def has_readers(self) -> bool:
        """True if there is something to read about its consumers: one exists, or an entry is pending."""
        return bool(self.consumers or self.pending)


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The known facts about one stream."""

    key: str  # Key of the stream
    length: int  # Number of present entries
    last_id: str  # Last id given to an entry, even if that entry is gone
    first_entry_id: str | None  # Id of the oldest present entry; None if it is empty
    last_entry_id: str | None  # Id of the newest present entry; None if it is empty
    entries_added: int | None  # Number of entries ever added; None if the server (before Redis 7.0) does not report it
    max_deleted_id: str | None  # Highest id that XDEL deleted, ``"0-0"`` for none; None before Redis 7.0
    # Groups by name; also empty if they could not be read: then ``missing`` contains ``"groups"``
    groups: tuple[GroupStatus, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # Missing fact -> reason, in words
    partitions: int | None = None  # Number of partitions whose sums these figures are; None for a plain stream

    @property
    def worst_lag(self) -> Lag | None:
        """The largest lag of a group, with the upper bound of an unknown one; None without groups."""
        return max((group.lag for group in self.groups), key=lambda lag: lag.worst, default=None)

    @property
    def oldest_pending(self) -> OldestEntry:
        """The oldest pending entry over all its groups."""
        return oldest(group.oldest_pending for group in self.groups)

    @property
    def oldest_undelivered(self) -> OldestEntry:
        """The oldest undelivered entry over all its groups."""
        return oldest(group.oldest_undelivered for group in self.groups)

    @property
    def pending(self) -> int:
        """Number of pending entries over all its groups."""
        return sum(group.pending for group in self.groups)


@dataclass(frozen=True, slots=True)
class StreamsSeen:
    """Streams of a server, read at one moment."""

    at_ms: int  # Wall milliseconds of the reading
    streams: tuple[StreamStatus, ...]  # Streams by key
    refused: Mapping[str, str] = field(default_factory=dict)  # Key -> reason why it could not be read, in words
    more: bool = False  # True if there are streams beyond the requested limit


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """One group with all known facts, read at one moment."""

    streams: StreamsSeen  # A reading of its stream alone
    group: GroupStatus  # The group
    # Consumers by name; also empty if they could not be read: then ``consumers_why`` contains the reason
    consumers: tuple[ConsumerStatus, ...]
    consumers_why: str | None = None  # Reason why the consumers could not be read; None if they were read

    @property
    def at_ms(self) -> int:
        """Time of the reading, in wall milliseconds."""
        return self.streams.at_ms

    @property
    def stream(self) -> StreamStatus:
        """The stream of the group."""
        return self.streams.streams[0]


def oldest(entries: Iterable[OldestEntry]) -> OldestEntry:
    """Return the oldest of these entries; unknown if one of them is unknown."""
    found = OldestEntry()
    for entry in entries:
        if entry.why is not None:
            return entry
        if entry.id is not None and (found.id is None or order(entry.id) < order(found.id)):
            found = entry
    return found


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The position of a group in its stream, as the server reports it."""

    stream: StreamStatus  # Stream of the group
    delivered: str  # Last id delivered to the group
    read: int | None  # Number of entries ever delivered to it; None if the server does not report it
    lag: int | None  # Lag, as the server reports it; None for null or nothing
    counts: bool = True  # True if the server reports a lag at all, even null


def lag_of(at: GroupPosition) -> Lag:
    """Compute the lag of a group from its position."""
    first, last, length = at.stream.first_entry_id, at.stream.last_entry_id, at.stream.length
    if first is None or last is None or order(at.delivered) >= order(last):
        return Lag(0, at.lag, at_most=0)
    if order(at.delivered) < order(first):
        return Lag(length, at.lag, at_least=length, at_most=length)
    least, most = _bounds(at)
    if at.lag is not None and 0 < at.lag < length:
        return Lag(at.lag, at.lag, at_least=at.lag, at_most=at.lag)
    reason, why = _reason(at)
    return Lag(None, at.lag, reason, least, most, why)


def _bounds(at: GroupPosition) -> tuple[int, int]:
    """Return the lowest and the highest possible lag of a group positioned between the stream's ends."""
    length, added = at.stream.length, at.stream.entries_added
    least, most = 1, max(length - 1, 1)
    if at.read is not None and added is not None and 0 < added - at.read < most:
        most = added - at.read
    if at.read is not None and at.read >= 0:
        least = max(least, length - at.read)
    return (least, most) if least <= most else (1, max(length - 1, 1))


def _reason(at: GroupPosition) -> tuple[UnknownLag, str]:
    deleted = at.stream.max_deleted_id
    if not at.counts:
        return "no-counters", "this server does not count the entries that a group received (Redis 7.0 and newer do)"
    if at.lag is not None:
        there = plural(at.stream.length, "entry is", "entries are")
        why = f"the server counts {at.lag}, which cannot be: {there} there, some of them delivered"
        return "counters-wrong", why
    if deleted is not None and order(at.delivered) <= order(deleted):
        why = f"an entry at or after the group's position was deleted (XDEL; the highest is {deleted}), and the "
        return "deleted", why + "server cannot tell how many of those it counted are gone"
    why = "the group's position was set (XGROUP CREATE or SETID) without ENTRIESREAD"
    if deleted not in (None, NEVER):
        why += f", or it was delivered what lay behind a deleted entry (XDEL; the highest is {deleted})"
    return "position-set", f"{why}; the server cannot tell how many entries lie before it"


_CAREFUL = (
    "it also sets the group to its present position: entries delivered before you run it would be delivered again, so "
    "pause or stop the group's readers first"
)


def counted(stream: StreamStatus, group: GroupStatus, undelivered: int) -> Lag:
    """Return the lag after its entries were counted, with the command that repairs the server's figure."""
    lag = replace(group.lag, entries=undelivered, at_least=undelivered, at_most=undelivered)
    if lag.reason == "no-counters" or stream.entries_added is None:
        return replace(lag, repair_note="servers of this version never know it; it was counted by reading")
    if lag.reason == "deleted":
        return replace(lag, repair_note=_again(stream, group))
    command = ("XGROUP", "SETID", stream.key, group.name, group.last_delivered_id)
    read = str(max(stream.entries_added - undelivered, 0))
    return replace(lag, repair=(*command, "ENTRIESREAD", read), repair_note=_CAREFUL)


def uncounted(stream: StreamStatus, group: GroupStatus, looked_at: int) -> Lag:
    """Return the lag of a group that has more undelivered entries than the limit of counting."""
    lag = group.lag
    least = max(lag.at_least, looked_at)
    most = None if lag.at_most is None else max(lag.at_most, least)
    note = _again(stream, group) if lag.reason == "deleted" else ""
    note = note or f"there are more than {looked_at}; counting all of them (--count) gives the command that repairs it"
    return replace(lag, at_least=least, at_most=most, repair_note=note)


def _again(stream: StreamStatus, group: GroupStatus) -> str:
    """Return a note on when a lag becomes known again that is unknown because entries were deleted."""
    deleted = stream.max_deleted_id or "0-0"
    if order(deleted) < order(group.last_delivered_id):
        return ""
    return (
        f"no command repairs it now; when the group has been delivered everything up to {deleted}, it is known again, "
        "at the latest when nothing is left"
    )


_NAMED = 5  # largest number of streams named for one reason


def refused_lines(refused: Mapping[str, str]) -> list[str]:
    """Return the streams that could not be read, as one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for key, why in refused.items():
        reasons.setdefault(why.removeprefix(f"{key}: "), []).append(key)
    return [f"{_listed(keys)}: {why}" for why, keys in reasons.items()]


def _listed(keys: list[str]) -> str:
    named = ", ".join(brief(name(key)) for key in keys[:_NAMED])
    more = f" and {len(keys) - _NAMED:,} more" if len(keys) > _NAMED else ""
    return named if len(keys) == 1 else f"{plural(len(keys), 'stream')} ({named}{more})"


def stream_facts(stream: StreamStatus, now_ms: int, added: float | None) -> Facts:
    """Return a stream without its groups as data."""
    lag = stream.worst_lag
    known = "groups" not in stream.missing
    unowned = [group.unowned for group in stream.groups]
    return {
        **picked(stream, "key partitions length"),
        "groups": len(stream.groups) if known else None,
        "lag": None if lag is None else lag.entries,
        "lag_at_least": None if lag is None else lag.at_least,
        "lag_at_most": None if lag is None else lag.at_most,
        "undelivered_age_ms": stream.oldest_undelivered.age(now_ms) if stream.groups else None,
        "pending": stream.pending if known else None,
        "pending_age_ms": stream.oldest_pending.age(now_ms) if stream.pending else None,
        "unowned": sum(number or 0 for number in unowned) if known and None not in unowned else None,
        "first_entry": stream.first_entry_id,
        "last_entry": stream.last_entry_id,
        "last_entry_ms": None if stream.last_entry_id is None else milliseconds(stream.last_entry_id),
        "entries_added": stream.entries_added,
        "max_deleted_id": stream.max_deleted_id,
        "added_per_second": rounded(added),
        "missing": dict(stream.missing),
    }


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """The number of pending entries in a group, in total and by consumer."""

    total: int  # Number of pending entries
    first: str | None  # Lowest id among them; None without any
    last: str | None  # Highest id among them; None without any
    held: Mapping[str, int] = field(default_factory=dict)  # Consumer -> number of its pending entries, if not 0
    unowned: int = 0  # Number of entries without a holder


@dataclass(frozen=True, slots=True)
class Hit:
    """An object with a matching name."""

    kind: str  # ``stream``, ``group`` or ``consumer``
    stream: str  # Key of the stream
    group: str | None = None  # Name of the group, or of the consumer's group
    consumer: str | None = None  # Name of the consumer

    @property
    def text(self) -> str:
        """The object's own name."""
        return next(each for each in (self.consumer, self.group, self.stream) if each is not None)


def search(seen: StreamsSeen, wanted: str) -> list[Hit]:
    """Return all objects with a matching name, the closest first; only consumers with entries are included."""
    return sorted(_hits(seen, wanted.casefold()), key=lambda hit: (_distance(hit.text, wanted), hit.stream, hit.text))


def _hits(seen: StreamsSeen, wanted: str) -> list[Hit]:
    found = []
    for stream in seen.streams:
        if wanted in stream.key.casefold():
            found.append(Hit("stream", stream.key))
        for group in stream.groups:
            if wanted in group.name.casefold():
                found.append(Hit("group", stream.key, group.name))
            found += [
                Hit("consumer", stream.key, group.name, holder)
                for holder in group.held or ()
                if wanted and wanted in holder.casefold()
            ]
    return found


def _distance(text: str, wanted: str) -> tuple[bool, bool, int]:
    """Return the sort key of a name: an equal name first, then names with this prefix, then short names."""
    low, typed = text.casefold(), wanted.casefold()
    return low != typed, not low.startswith(typed), len(text)

"""The entries that a stream's page shows: the range, the filters, and the links to the next page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millstream import times
from millstream.client.line import Command, Line
from millstream.client.ranges import order_of
from millstream.ops.asking import calls, checked
from millstream.ops.entries.reading import scan
from millstream.ops.payloads.choice import EntryChoice, choice_of
from millstream.ops.payloads.shown import light
from millstream.ops.streams.reading import entry_view
from millstream.ops.words import EntryView
from millstream.web.page import FilterError, NoPageError

LOOKED_AT = 5_000
"""Largest number of entries read for one page."""

VOLUME = 8 << 20
"""Approximate size of the entries read for one page, in bytes."""

KINDS = ("jsonl", "csv")
"""File formats in which the entries of a page can be downloaded."""


@dataclass(frozen=True, slots=True)
class EntrySearch:
    """The filters for entries, as the user typed them."""

    where: str = ""  # Condition; empty for none
    grep: str = ""  # Text that a name or a value must contain; empty for none

    @property
    def choice(self) -> EntryChoice:
        """The filters in compiled form, to apply to each entry."""
        return choice_of(None, (self.where,) if self.where else (), (self.grep,) if self.grep else ())

    @property
    def words(self) -> list[str]:
        """The filters as options of the command line."""
        return [
            word for name, value in (("--where", self.where), ("--grep", self.grep)) if value for word in (name, value)
        ]


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """The entries of a page."""

    entries: tuple[EntryView, ...]  # Entries in display order
    looked_at: int  # Number of entries that were read
    last: str | None  # Id of the last entry read; None if there was none
    further: bool  # True if there are more in the direction of reading


def filters(words: Mapping[str, str]) -> EntrySearch:
    """Return the filters from the parameters of an address."""
    found = EntrySearch(words.get("where", "").strip(), words.get("grep", ""))
    try:
        _ = found.choice
    except ValueError as reason:
        raise FilterError("where", f"where {reason}") from None
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """The range of entries for one page."""

    low: str  # Lowest id, in XRANGE's form
    high: str  # Highest id
    newest_first: bool  # True if the newest entry is shown first
    rising: bool  # True if entries are read from older to newer ones
    count: int  # Largest number of entries shown
    at_edge: bool  # True if the first shown entry is the newest (or oldest) of the range

    def command(self, key: str) -> Command:
        """Return the command that reads the entries and one more, which shows if there are further ones."""
        if self.rising:
            return ("XRANGE", key, self.low, self.high, "COUNT", self.count + 1)
        return ("XREVRANGE", key, self.high, self.low, "COUNT", self.count + 1)

    @property
    def onwards(self) -> bool:
        """True if the entries are read in the order in which they are shown."""
        return self.rising != self.newest_first


async def read_entries(line: Line, key: str, wanted: Window, sought: EntrySearch) -> FoundEntries:
    """Return the entries of a page."""
    if sought == EntrySearch():
        (reply,) = await calls(line, [wanted.command(key)])
        rows = checked(reply, key)
        views, further = [entry_view(key, row) for row in rows[: wanted.count]], len(rows) > wanted.count
        looked_at, last = len(views), views[-1].id if views else None
    else:
        bounds, fits = (wanted.low, wanted.high), sought.choice.fits
        found = await scan(
            line, key, bounds, fits, count=wanted.count, most=LOOKED_AT, volume=VOLUME, backwards=not wanted.rising
        )
        views, further, looked_at, last = list(found.entries), found.more, found.looked_at, found.last
    return FoundEntries(tuple(views if wanted.onwards else views[::-1]), looked_at, last, further)


async def listed_entries(line: Line, key: str, wanted: Window, sought: EntrySearch) -> FoundEntries:
    """Return the entries of a page with long values shortened, so that a cached reading stays small."""
    found = await read_entries(line, key, wanted, sought)
    return replace(found, entries=tuple(map(light, found.entries)))


def paging(found: FoundEntries, wanted: Window) -> dict[str, Any]:
    """Return the parameters of the first and the next page's addresses; None if there is no such page."""
    back, on = ("after", "before") if wanted.newest_first else ("before", "after")
    nowhere = {"before": None, "after": None}
    ends = [view.id for view in found.entries] or ([found.last] if found.last else [])
    further = {**nowhere, on if wanted.onwards else back: found.last} if found.further else None
    if wanted.onwards:
        first = {**nowhere, back: ends[0]} if ends and not wanted.at_edge else None
        return {"to_first": first, "to_next": further}
    return {"to_first": further, "to_next": {**nowhere, on: ends[-1]} if ends else None}


ENTRIES, MOST = 15, 500
"""Default and largest number of entries on a page."""


def window(words: Mapping[str, str], now_ms: int, count: int) -> Window:
    """Return the range from the parameters of an address.

    The parameters are ``from``, ``to``, ``order``, and ``before`` or ``after`` an id.
    """
    low = _bound("from", words.get("from", ""), now_ms, "-")
    high = _bound("to", words.get("to", ""), now_ms, "+")
    newest_first = words.get("order") != "oldest"
    if after := words.get("after"):  # read towards newer entries
        return Window(f"({_id('after', after)}", high, newest_first, True, count, at_edge=False)
    if before := words.get("before"):
        return Window(low, f"({_id('before', before)}", newest_first, False, count, at_edge=False)
    return Window(low, high, newest_first, not newest_first, count, at_edge=True)


def _bound(name: str, text: str, now_ms: int, usual: str) -> str:
    """Return one end of a range of ids. A time covers all entries of its millisecond."""
    text = text.strip()
    if not text or text == usual:
        return usual
    if _is_id(text):
        return text
    try:
        return str(times.instant(text, now_ms))
    except ValueError as reason:
        raise FilterError(name, f"{name} {text!r}: {reason}") from None


def _id(name: str, text: str) -> str:
    if not _is_id(text):
        raise NoPageError(f"{name} {text!r} is not an entry's ID. Give one such as 1763721600000-0.")
    return text


def _is_id(text: str) -> bool:
    """Return True for ``milliseconds-number``. A number alone is a time."""
    left, dash, right = text.partition("-")
    if not (dash and left.isascii() and left.isdigit() and right.isascii() and right.isdigit() and len(text) < 42):
        return False
    return max(order_of(text.encode())) < 2**64

"""The entries that a page of a stream shows: those of its window that are wanted, looked for within bounds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millstream.client.line import Line
from millstream.console.model.entries import EntryView
from millstream.console.model.replies import entry_view
from millstream.console.payloads.choice import EntryChoice, choice_of
from millstream.console.payloads.shown import light
from millstream.console.reading.asking import calls, checked
from millstream.console.reading.entries import scan
from millstream.console.web.page import NoPageError
from millstream.console.web.pages.window import Window

LOOKED_AT = 5_000
"""Entries that are looked at for one page."""

VOLUME = 8 << 20
"""Bytes of entries that are looked at for one page, about."""

KINDS = ("jsonl", "csv")
"""Files in which the entries of a page can be had."""


@dataclass(frozen=True, slots=True)
class EntrySearch:
    """The choice of entries in the window, as it was typed."""

    where: str = ""  # A condition; empty for none
    grep: str = ""  # A text that has to be in a name or a value; empty for none

    @property
    def choice(self) -> EntryChoice:
        """The same, to be asked with each entry."""
        return choice_of(None, (self.where,) if self.where else (), (self.grep,) if self.grep else ())

    @property
    def words(self) -> list[str]:
        """The same as options of the shell."""
        return [
            word for name, value in (("--where", self.where), ("--grep", self.grep)) if value for word in (name, value)
        ]


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """The entries of a page."""

    entries: tuple[EntryView, ...]  # Entries in the order they are shown
    looked_at: int  # Number of entries that were looked at
    last: str | None  # Id of the last of these, in the order they were looked at; None where there was none
    further: bool  # There are more, in the direction they were looked at


def filters(words: Mapping[str, str]) -> EntrySearch:
    """The conditions in the words of an address."""
    found = EntrySearch(words.get("where", "").strip(), words.get("grep", ""))
    try:
        _ = found.choice
    except ValueError as reason:
        raise NoPageError(f"where {reason}") from None
    return found


async def read_entries(line: Line, key: str, wanted: Window, sought: EntrySearch) -> FoundEntries:
    """The entries of a page."""
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
    """The same without the rest of long values: the kept part of a reading must not be as large as they are."""
    found = await read_entries(line, key, wanted, sought)
    return replace(found, entries=tuple(map(light, found.entries)))


def paging(found: FoundEntries, wanted: Window) -> dict[str, Any]:
    """The words of the addresses of the pages before and after this one; None where there is none."""
    back, on = ("after", "before") if wanted.newest_first else ("before", "after")
    nowhere = {"before": None, "after": None}
    ends = [view.id for view in found.entries] or ([found.last] if found.last else [])
    further = {**nowhere, on if wanted.onwards else back: found.last} if found.further else None
    if wanted.onwards:
        first = {**nowhere, back: ends[0]} if ends and not wanted.at_edge else None
        return {"to_first": first, "to_next": further}
    return {"to_first": further, "to_next": {**nowhere, on: ends[-1]} if ends else None}

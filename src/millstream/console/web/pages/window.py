"""The entries of a stream that a page shows: a range of ids or times, in either order, from page to page. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from millstream import times
from millstream.client.line import Command
from millstream.client.ranges import order_of
from millstream.console.web.page import NoPageError

ENTRIES, MOST = 50, 500
"""Entries of a page, and at most."""


@dataclass(frozen=True, slots=True)
class Window:
    """A page of entries."""

    low: str  # The least id, as XRANGE takes it
    high: str  # The greatest one
    newest_first: bool  # The order they are shown in
    rising: bool  # The order they are read in: towards newer ones
    count: int  # Most entries shown
    at_edge: bool  # Nothing was left out before the first one shown: it is the newest (or oldest) of the range

    def command(self, key: str) -> Command:
        """The command that reads it, and one entry more, to know if there are any."""
        if self.rising:
            return ("XRANGE", key, self.low, self.high, "COUNT", self.count + 1)
        return ("XREVRANGE", key, self.high, self.low, "COUNT", self.count + 1)

    @property
    def onwards(self) -> bool:
        """True if it is read in the order it is shown."""
        return self.rising != self.newest_first


def window(words: Mapping[str, str], now_ms: int, count: int) -> Window:
    """The window for the words of an address: ``from``, ``to``, ``order``, and ``before`` or ``after`` an id."""
    low = _bound("from", words.get("from", ""), now_ms, "-")
    high = _bound("to", words.get("to", ""), now_ms, "+")
    newest_first = words.get("order") != "oldest"
    if after := words.get("after"):  # further on in time
        return Window(f"({_id('after', after)}", high, newest_first, True, count, at_edge=False)
    if before := words.get("before"):
        return Window(low, f"({_id('before', before)}", newest_first, False, count, at_edge=False)
    return Window(low, high, newest_first, not newest_first, count, at_edge=True)


def _bound(name: str, text: str, now_ms: int, usual: str) -> str:
    """An id of a range; a time means all entries of its millisecond."""
    text = text.strip()
    if not text or text == usual:
        return usual
    if _is_id(text):
        return text
    try:
        return str(times.instant(text, now_ms))
    except ValueError as reason:
        raise NoPageError(f"{name} {text!r}: {reason}") from None


def _id(name: str, text: str) -> str:
    if not _is_id(text):
        raise NoPageError(f"{name} {text!r} is no entry's id")
    return text


def _is_id(text: str) -> bool:
    """True if it is ``milliseconds-number``; a number alone is a time."""
    left, dash, right = text.partition("-")
    if not (dash and left.isascii() and left.isdigit() and right.isascii() and right.isdigit() and len(text) < 42):
        return False
    return max(order_of(text.encode())) < 2**64

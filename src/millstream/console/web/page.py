"""A page before it is HTML, JSON or a live event: its facts, and how a person would get them in a shell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.client.line import Command
from millstream.console.changes.positions import entry_id
from millstream.console.watching.watch import Reading, ServerWatch
from millstream.console.web import links
from millstream.console.web.settings import ConsoleSettings
from millstream.errors import MillstreamError, UsageError


class NoPageError(MillstreamError):
    """An address that no page has, or that lacks a word; the text says which.

    What to do: begin at the console's first page and follow its links.
    """


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page is asked for.

    Attributes:
        settings: of the console.
        watch: the server.
        number: of the server among those the console shows.
        path: of the page, without ``.json``.
        words: of the query; names are text with ``surrogateescape``.
        query: as it came.
        user: who asks, where the console knows.
        peer: the address of who asks.
    """

    settings: ConsoleSettings
    watch: ServerWatch
    number: int
    path: str
    words: Mapping[str, str]
    query: str = ""
    user: str = ""
    peer: str = ""

    def word(self, name: str) -> str:
        """A word of the query that must be there; it may be empty.

        Raises:
            NoPageError: it is not.
        """
        found = self.words.get(name)
        if found is None:
            raise NoPageError(f"the address of this page needs {name}=")
        return found

    def entry_id(self, name: str) -> str:
        """A word of the query that is the id of an entry, as the server writes it.

        Raises:
            NoPageError: it is not there, or no id.
        """
        try:
            return entry_id(self.word(name))
        except UsageError as error:
            raise NoPageError(str(error)) from None

    def count(self, name: str, usual: int, most: int) -> int:
        """A number in the query.

        Args:
            name: of the word.
            usual: what it is without.
            most: what it is at most.
        """
        text = self.words.get(name, "")
        return min(max(int(text), 1), most) if text.isascii() and text.isdigit() and len(text) < 10 else usual

    def link(self, page: str, /, **words: str | int | None) -> str:
        """The address of a page about the same server."""
        return links.address(self.settings.base + page, words, self.number)

    def here(self, **words: str | int | None) -> str:
        """This page's address with some words of its query otherwise; None takes one out."""
        kept = {name: value for name, value in self.words.items() if name != "server"}
        return self.link(self.path, **{**kept, **words})


@dataclass(frozen=True, slots=True)
class WebPage:
    """All that is to be shown.

    Attributes:
        name: of the template, and ``page`` in the JSON.
        title: for the window, and the last of ``trail``.
        facts: the JSON twin: its fields never change their meaning.
        view: what the template needs beside the facts: drawings, links, words.
        shell: command lines that show the same.
        commands: the first raw commands that were sent.
        sent: how many were sent.
        at_ms: when the server had answered.
        trouble: why there is nothing newer.
        live: whether it is worth refreshing by itself.
        status: of HTTP.
        location: address of the page to go to instead; empty for this one.
    """

    name: str
    title: str
    facts: Mapping[str, Any]
    view: Mapping[str, Any] = field(default_factory=dict)
    shell: Sequence[Sequence[str]] = ()
    commands: Sequence[Command] = ()
    sent: int = 0
    at_ms: int = 0
    trouble: str = ""
    live: bool = True
    status: int = 200
    location: str = ""

    @staticmethod
    def source(*readings: Reading[Any]) -> dict[str, Any]:
        """What a page says of the readings it is made of: of several, the oldest counts."""
        oldest = min(readings, key=lambda one: one.at_ms)
        return {
            "commands": [command for one in readings for command in one.commands],
            "sent": sum(one.sent for one in readings),
            "at_ms": oldest.at_ms,
            "trouble": next((one.trouble for one in readings if one.trouble), ""),
        }

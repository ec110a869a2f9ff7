"""A page: its request, its content and its addresses.

A name is a word of the query (``/group?key=orders&group=billing``): there it may be empty, hold slashes and dots, and
any byte as ``%FF``. A form can send neither bytes that are not UTF-8 nor an end of line as it is. For those the word
has ``64`` after its name and base64 as its value.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote

from millstream.client.line import Command
from millstream.errors import MillstreamError, UsageError
from millstream.ops.parameters import entry_id
from millstream.ops.watching.watch import Reading, ServerWatch
from millstream.web.settings import ConsoleSettings

_MOST = 80  # words of a query: a page of letters that are ticked, and some more


class AddressError(ValueError):
    """An address that does not lead to a page; the text says what is wrong with it."""


def address(page: str, words: Mapping[str, str | int | None], server: int = 0) -> str:
    """The address of a page on this console."""
    pairs = [(name, str(value)) for name, value in words.items() if value is not None]
    pairs += [("server", str(server))] if server else []
    query = "&".join(f"{name}={quote(_sent(value), safe='')}" for name, value in pairs)
    return f"{page}?{query}" if query else page


def twin(path: str, query: str) -> str:
    """The address of a page's facts as JSON."""
    return ("/overview" if path == "/" else path) + ".json" + (f"?{query}" if query else "")


def words_of(query: bytes) -> dict[str, str]:
    """The words of a query, names as text with ``surrogateescape``."""
    try:
        pairs = parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, errors="surrogateescape", max_num_fields=_MOST
        )
    except ValueError:
        raise AddressError(f"an address can have at most {_MOST} parameters") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name.endswith("64"):
            found[name.removesuffix("64")] = _from_base64(name, value)
        elif name == "ids" and found.get(name):  # several were ticked
            found[name] += f" {value}"
        else:
            found[name] = value
    return found


def _sent(value: str) -> bytes:
    """A name as the server has it; half a character, which only a forged record holds, leads nowhere."""
    try:
        return value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return value.encode(errors="backslashreplace")


def form_word(name: str, value: str) -> tuple[str, str]:
    """Name and value of a form's field for a name of any bytes."""
    if value.isprintable():
        return name, value
    return f"{name}64", base64.urlsafe_b64encode(_sent(value)).decode()


def _from_base64(name: str, value: str) -> str:
    try:
        return base64.urlsafe_b64decode(value.encode(errors="replace")).decode(errors="surrogateescape")
    except (binascii.Error, ValueError):
        raise AddressError(f"{name} is not base64") from None


class NoPageError(MillstreamError):
    """An address does not lead to a page, or a parameter is missing in it; the message names it.

    What to do: begin at the console's first page and follow its links.
    """


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a page."""

    settings: ConsoleSettings  # Settings of the console
    watch: ServerWatch  # The server
    number: int  # Number of the server among those of the console
    path: str  # Path of the page, without ``.json``
    words: Mapping[str, str]  # Words of the query; names are text with ``surrogateescape``
    query: str = ""  # The query as it came
    user: str = ""  # Name of the user, where the console knows it
    peer: str = ""  # The browser's address

    def word(self, name: str) -> str:
        """A word of the query that must be there; it may be empty."""
        found = self.words.get(name)
        if found is None:
            raise NoPageError(f"the parameter {name}= is missing in the address of this page")
        return found

    def entry_id(self, name: str) -> str:
        """A word of the query that is the id of an entry, as the server writes it."""
        try:
            return entry_id(self.word(name))
        except UsageError as error:
            raise NoPageError(str(error)) from None

    def count(self, name: str, usual: int, most: int) -> int:
        """A number in the query."""
        text = self.words.get(name, "")
        return min(max(int(text), 1), most) if text.isascii() and text.isdigit() and len(text) < 10 else usual

    def link(self, page: str, /, **words: str | int | None) -> str:
        """The address of a page about the same server."""
        return address(self.settings.base + page, words, self.number)

    def here(self, **words: str | int | None) -> str:
        """This page's address with some words of its query otherwise; None takes one out."""
        kept = {name: value for name, value in self.words.items() if name != "server"}
        return self.link(self.path, **{**kept, **words})


@dataclass(frozen=True, slots=True)
class WebPage:
    """All that is to be shown."""

    name: str  # Name of the template, and ``page`` in the JSON
    title: str  # Title for the window, and the last of ``trail``
    facts: Mapping[str, Any]  # The JSON twin: its fields never change their meaning
    # Values for the template in addition to the facts: drawings, links, words
    view: Mapping[str, Any] = field(default_factory=dict)
    shell: Sequence[Sequence[str]] = ()  # Command lines that show the same
    commands: Sequence[Command] = ()  # The first raw commands that were sent
    sent: int = 0  # Number of commands that were sent
    at_ms: int = 0  # Time of the server's answer
    trouble: str = ""  # The reason why there is no newer reading
    live: bool = True  # True if it is worth refreshing by itself
    status: int = 200  # Status code of HTTP
    location: str = ""  # Address of the page to go to instead; empty for this one

    @staticmethod
    def source(*readings: Reading[Any]) -> dict[str, Any]:
        """The sources that a page shows for its readings; the oldest of several counts."""
        oldest = min(readings, key=lambda one: one.at_ms)
        return {
            "commands": [command for one in readings for command in one.commands],
            "sent": sum(one.sent for one in readings),
            "at_ms": oldest.at_ms,
            "trouble": next((one.trouble for one in readings if one.trouble), ""),
        }

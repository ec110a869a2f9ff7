"""A page: its request, its content and its addresses.

Names are parameters of the query (``/group?key=orders&group=billing``). There a name may be empty and contain slashes,
dots, and any byte as ``%FF``. A form cannot send bytes that are not UTF-8, nor line breaks unchanged. For such a value,
the parameter's name gets the suffix ``64`` and its value is base64.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote

from millstream.client.line import Command
from millstream.errors import MillstreamError, UsageError
from millstream.ops.actions import Word
from millstream.ops.parameters import entry_id
from millstream.ops.watching.watch import Reading, ServerWatch
from millstream.ops.words import as_bytes
from millstream.web.settings import ConsoleSettings

T = TypeVar("T")

_MOST = 80  # largest number of query parameters: a page of selected letters, and some more


class AddressError(ValueError):
    """An address that leads to no page; the text is the reason."""


def address(page: str, words: Mapping[str, str | int | None], server: int = 0) -> str:
    """Return the address of a page on this console."""
    pairs = [(name, str(value)) for name, value in words.items() if value is not None]
    pairs += [("server", str(server))] if server else []
    query = "&".join(f"{name}={quote(as_bytes(value), safe='')}" for name, value in pairs)
    return f"{page}?{query}" if query else page


def twin(path: str, query: str) -> str:
    """Return the address of a page's facts as JSON."""
    return ("/overview" if path == "/" else path) + ".json" + (f"?{query}" if query else "")


def words_of(query: bytes) -> dict[str, str]:
    """Return the parameters of a query; names are text with ``surrogateescape``."""
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
        elif name == "ids" and found.get(name):  # several were selected
            found[name] += f" {value}"
        else:
            found[name] = value
    return found


def form_word(name: str, value: str) -> tuple[str, str]:
    """Return name and value of a form field for a name of any bytes."""
    if value.isprintable():
        return name, value
    return f"{name}64", base64.urlsafe_b64encode(as_bytes(value)).decode()


def at_field(words: Sequence[Word], text: str) -> tuple[str, str]:
    """Return the field of a form that an error of the shell names, and the error with the field's label."""
    for word in words:
        if text.startswith(f"{word.option} ") and word.title:
            return word.name, f"{word.title.removeprefix('or ')}{text.removeprefix(word.option)}"
    return "", text


def _from_base64(name: str, value: str) -> str:
    try:
        return base64.urlsafe_b64decode(value.encode(errors="replace")).decode(errors="surrogateescape")
    except (binascii.Error, ValueError):
        raise AddressError(f"{name} is not base64") from None


class NoPageError(MillstreamError):
    """An address does not lead to a page, or a parameter is missing in it; the message names it.

    What to do: begin at the console's first page and follow its links.
    """


class FilterError(NoPageError):
    """A filter in an address is invalid; the message gives the reason.

    What to do: correct the field that the page marks.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a page."""

    settings: ConsoleSettings  # Settings of the console
    watch: ServerWatch  # The server
    number: int  # Number of the server in the console's list
    path: str  # Path of the page, without ``.json``
    words: Mapping[str, str]  # Decoded parameters of the query; names are text with ``surrogateescape``
    query: str = ""  # Query as it came
    user: str = ""  # Name of the user, if known
    peer: str = ""  # Address of the browser

    def word(self, name: str) -> str:
        """Return a required parameter of the query; it may be empty."""
        found = self.words.get(name)
        if found is None:
            raise NoPageError(f"the parameter {name}= is missing in the address of this page")
        return found

    def entry_id(self, name: str) -> str:
        """Return a parameter of the query that is an entry id, in the server's spelling."""
        try:
            return entry_id(self.word(name))
        except UsageError as error:
            raise NoPageError(str(error)) from None

    def count(self, name: str, usual: int, most: int) -> int:
        """Return a number from the query: ``usual`` if it is missing or invalid, ``most`` at most."""
        text = self.words.get(name, "")
        return min(max(int(text), 1), most) if text.isascii() and text.isdigit() and len(text) < 10 else usual

    def paged(self, rows: Sequence[T], size: int) -> tuple[Sequence[T], dict[str, int]]:
        """Return the rows of the page ``page=``, with the template values for the links to the other pages."""
        first = (self.count("page", 1, 1 + len(rows) // size) - 1) * size
        return rows[first : first + size], {"first": first, "size": size, "found": len(rows)}

    def link(self, page: str, /, **words: str | int | None) -> str:
        """Return the address of a page about the same server."""
        return address(self.settings.base + page, words, self.number)

    def here(self, **words: str | int | None) -> str:
        """Return this page's address with some parameters changed; None removes one."""
        return self.link(self.path, **{**self.kept, **words})

    @property
    def kept(self) -> dict[str, str]:
        """The parameters of this page's address, without the server."""
        return {name: value for name, value in self.words.items() if name != "server"}


@dataclass(frozen=True, slots=True)
class WebPage:
    """The content of a page: facts, values for the template, and the sources."""

    name: str  # Name of the template, and of ``page`` in the JSON
    title: str  # Title of the window, and last item of ``trail``
    facts: Mapping[str, Any]  # Data of the JSON version, whose fields never change their meaning
    # Additional values for the template: drawings, links, texts
    view: Mapping[str, Any] = field(default_factory=dict)
    shell: Sequence[Sequence[str]] = ()  # Command lines that show the same data
    commands: Sequence[Command] = ()  # First raw commands that were sent
    sent: int = 0  # Number of commands that were sent
    at_ms: int = 0  # Time of the server's reply, wall milliseconds
    trouble: str = ""  # Reason why there is no newer reading
    live: bool = True  # True if the page refreshes by itself
    status: int = 200  # HTTP status code
    location: str = ""  # Address of a redirect; empty for none

    @staticmethod
    def source(*readings: Reading[Any]) -> dict[str, Any]:
        """Return the fields that name the sources of a page's readings. The oldest reading gives the time."""
        oldest = min(readings, key=lambda one: one.at_ms)
        return {
            "commands": [command for one in readings for command in one.commands],
            "sent": sum(one.sent for one in readings),
            "at_ms": oldest.at_ms,
            "trouble": next((one.trouble for one in readings if one.trouble), ""),
        }

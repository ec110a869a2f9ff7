"""Addresses of pages, in which names may hold any bytes. Pure.

A name is a word of the query (``/group?key=orders&group=billing``): there it may be empty, hold slashes and dots, and
any byte as ``%FF``. A form can send neither bytes that are not UTF-8 nor an end of line as it is. For those the word
has ``64`` after its name and base64 as its value.
"""

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

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
        raise AddressError(f"an address has at most {_MOST} words") from None
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
        raise AddressError(f"{name} is no base64") from None

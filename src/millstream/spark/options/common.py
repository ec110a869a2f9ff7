"""The common parts of the options of reading and writing: names, values, and errors with a remedy.

Messages are one line: Spark puts a traceback before them, so that this line is the last that a user sees.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from millstream import times
from millstream.client import url as url_text
from millstream.client.url import CLUSTERS, EMBEDDED, SENTINELS, SERVERS, kind_of, wrong
from millstream.errors import ConfigError
from millstream.printable import without_password
from millstream.spark.options import foreign

T = TypeVar("T")


@dataclass(frozen=True)
class ServerOptions:
    """The option of every read and write: the server."""

    url: str = field(repr=False)  # URL of the server

    @property
    def shown_url(self) -> str:
        """The URL without its password, for messages."""
        return without_password(self.url)


_OTHER_WORDS = {"streams": "stream", "key": "stream", "pattern": "streamPattern", "maxlength": "maxLen"}
"""Other names that users may try (lower case), for suggestions; names of other products are in ``foreign``."""


def check_names(given: Iterable[str], options: Iterable[str], call: str) -> None:
    """Raise if a name is not one of the options: otherwise a misspelt one would be ignored silently."""
    lowered = {option.lower(): option for option in options}
    others = {word: meant for word, meant in _OTHER_WORDS.items() if meant in lowered.values()}
    for name in given:
        if name in lowered:
            continue
        if name == "path":
            raise ConfigError(f"{call} does not take a path. Set .option('stream', 'orders').")
        if (others_name := foreign.refusal(name, lowered.values(), call)) is not None:
            raise ConfigError(others_name)
        close = difflib.get_close_matches(name, [*lowered, *others], n=1, cutoff=0.6)
        if close:
            meant = lowered.get(close[0]) or others[close[0]]
            raise ConfigError(f"unknown option {name!r}: did you mean {meant!r}?")
        raise ConfigError(f"unknown option {name!r}: the options are {', '.join(lowered.values())}")


def refuse(given: Collection[str], unwanted: Iterable[str], why: str) -> None:
    """Raise if one of these options was given, since it would have no effect; names in ``given`` are in lower case."""
    for name in unwanted:
        if name.lower() in given:
            raise ConfigError(f"option {name!r} does nothing {why}")


def read(given: Mapping[str, str], name: str, convert: Callable[[str], T]) -> T | None:
    """Return the value of an option; None if it was not given."""
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        return convert(text.strip())
    except ValueError as reason:
        raise ConfigError(f"option {name!r} is {text!r}: {reason}") from None


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("it must be a whole number of at least 1")
    return int(text)


def one_of(first: str, second: str) -> Callable[[str], str]:
    """Return a function that parses one of two words, in upper or lower case like Spark's own options."""

    def convert(text: str) -> str:
        if text.lower() not in (first, second):
            raise ValueError(f"it must be {first} or {second}")
        return text.lower()

    return convert


def boolean(text: str) -> bool:
    """Parse true or false; Python's own ``bool`` would take the text "false" for true."""
    return one_of("true", "false")(text) == "true"


def not_empty(text: str) -> str:
    """Return the text, unless it is empty."""
    if not text:
        raise ValueError("it must not be empty")
    return text


def duration(text: str, bare: str | None = None) -> int:
    """Parse a length of time such as ``15m`` to milliseconds; ``bare`` is the unit of a number without one."""
    found = times.span(text, bare)
    if not found:
        raise ValueError(times.SPAN)
    return found


def find_url(given: Mapping[str, str]) -> str:
    """Return the server's URL: the option ``url``, or else the default of all of Millstream."""
    url = url_text.find_url(given.get("url", "").strip())
    if url.startswith(EMBEDDED):
        raise ConfigError(
            f"option 'url': {kind_of(url)} lives in one process, and Spark works in several. Run "
            "`millstream serve` and give its redis:// URL."
        )
    if not url.startswith(SERVERS):
        raise ConfigError(f"option 'url' must start with one of {', '.join(SERVERS)}, as redis://127.0.0.1:6379/0 does")
    if url.startswith((CLUSTERS, SENTINELS)):
        _check_many(url)
    elif (fault := wrong(url)) is not None:
        raise ConfigError(f"option 'url': cannot use {kind_of(url)}: {fault}")
    return url


def _check_many(url: str) -> None:
    from millstream.client.discovery import cluster, sentinel  # noqa: PLC0415 - heavy, so only its users load it

    try:
        if url.startswith(CLUSTERS):
            cluster.parse_cluster(url)
        else:
            sentinel.parse_service(url)
    except ConfigError as problem:
        raise ConfigError(f"option 'url': {problem}") from None

"""The store that a ``memory://`` or ``file://`` URL names.

::

    memory://            a private store of one client (and of its pool's connections)
    memory://orders      the store "orders", shared by all users of that name in this process
    file:///var/orders   the data directory /var/orders

``?db=3`` selects a database. ``?fsync=everysec`` selects the times at which a directory's writes are synced to disk.
:data:`PARAMETERS` are options too, in a URL or as keywords, as in ``file:///var/orders?maxmemory=512mb&tier=yes``. A
URL may write their names with underscores, as keywords do.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from millstream.node.durability.group_commit import Fsync

SCHEMES = ("memory://", "file://")
PARAMETERS = (
    "maxmemory",
    *("tier", "tier-hot", "tier-after", "tier-max-bytes", "tier-cache", "tier-stall-ms", "tier-vacuum-rate"),
    *("tier-scrub", "stream-retention", "stream-retention-groups"),
)
"""CONFIG parameters that a URL, or a keyword with underscores, may set."""


@dataclass(frozen=True, slots=True)
class Place:
    """The store that a URL names, with its options."""

    url: str = field(repr=False)  # URL as given, for messages
    name: str | None  # Name of a store in memory, empty for a private one; None for a directory
    directory: Path | None  # Absolute path with links resolved; None for memory
    fsync: "Fsync | None"  # Sync mode; None if the URL does not set one
    db: int  # Database selected at first
    parameters: tuple[tuple[str, str], ...] = ()  # CONFIG parameters, each with its value

    @property
    def is_private(self) -> bool:
        """True if no other URL can name the store."""
        return self.name == ""

    @property
    def key(self) -> tuple[str, str]:
        """Key of the store, equal for all URLs of the same store; without meaning for a private one."""
        return ("memory", self.name or "") if self.directory is None else ("file", str(self.directory))


def take_parameters(options: dict[str, Any]) -> dict[str, str]:
    """Remove CONFIG parameters from a caller's keywords and return them by name. True stands for ``yes``."""
    found = {}
    for name in PARAMETERS:
        value = options.pop(name.replace("-", "_"), None)
        if value is not None:
            found[name] = ("no", "yes")[value] if isinstance(value, bool) else str(value)
    for name in options:
        if name.startswith(("tier_", "stream_")):  # redis-py would refuse it with a text about its own classes
            known = ", ".join(each.replace("-", "_") for each in PARAMETERS)
            raise TypeError(f"the keyword {name} is invalid: an embedded store has no such option. Use one of: {known}")
    return found


def parse_place(url: str, options: dict[str, Any] | None = None) -> Place:
    """Parse a URL, and take the store's options out of a caller's keywords."""
    place = _parse(url)
    options = {} if options is None else options
    fsync, given = options.pop("fsync", None), take_parameters(options)
    repeated = [name for name, _ in place.parameters if name in given]
    if fsync is not None and place.fsync is not None:
        repeated.append("fsync")
    if repeated:
        raise ConfigError(f"{repeated[0]} is in the URL and among the keywords. Leave one of them out.")
    if fsync is not None:
        if place.directory is None:
            raise ConfigError("the keyword fsync is invalid: memory:// has no files. Leave it out.")
        place = replace(place, fsync=_fsync(fsync, "the keyword fsync is invalid: its value"))
    return replace(place, parameters=(*place.parameters, *given.items())) if given else place


def _parse(url: str) -> Place:
    try:
        parts = urlsplit(url)
    except ValueError:  # the exception's text quotes the URL
        raise ConfigError("the URL is invalid. Write memory://, memory://NAME or file:///DIR.") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    db = options.pop("db", "0")
    if not db.isdigit() or int(db) > 15:
        raise ConfigError("the URL is invalid: db is not a number from 0 to 15. Write ?db=0.")
    options = {name.replace("_", "-"): value for name, value in options.items()}
    parameters = tuple((name, options.pop(name)) for name in PARAMETERS if name in options)
    if parts.scheme == "memory":
        place = _memory(url, unquote(parts.netloc), parts.path, options, int(db))
    else:
        place = _directory(url, parts.netloc, unquote(parts.path), options, int(db))
    return replace(place, parameters=parameters)


def _memory(url: str, name: str, path: str, options: dict[str, str], db: int) -> Place:
    if path.strip("/"):
        raise ConfigError(
            "the URL is invalid: memory:// takes a name. Write memory://orders, or file:///DIR for a directory."
        )
    _expect_none(options, "memory:// has no options but db, maxmemory and stream-retention")
    return Place(url, name, None, None, db)


def _directory(url: str, host: str, path: str, options: dict[str, str], db: int) -> Place:
    if host not in {"", "localhost"} or not path.strip("/"):
        raise ConfigError("the URL is invalid: it has no absolute path. Write file:///var/lib/orders.")
    fsync = options.pop("fsync", None)
    chosen = None if fsync is None else _fsync(fsync, "the URL is invalid: fsync")
    _expect_none(options, f"file:// has no options but {', '.join(('db', 'fsync', *PARAMETERS))}")
    return Place(url, None, Path(path).resolve(), chosen, db)


def _fsync(value: object, subject: str) -> "Fsync":
    """Return a known sync mode; the subject begins the error."""
    if value not in {"always", "everysec", "no"}:
        raise ConfigError(f"{subject} is unknown. Write always, everysec or no.")
    return value


def _expect_none(options: dict[str, str], known: str) -> None:
    """Raise if options are left. A name that may be part of a secret is not repeated."""
    for name in options:
        shown = name if re.fullmatch(r"[a-z-]{1,40}", name) else "the other"
        raise ConfigError(f"the URL is invalid: {known}. Remove {shown}.")

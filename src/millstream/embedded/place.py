"""The store that a ``memory://`` or ``file://`` URL names.

::

    memory://            a private store of one client (and of its pool's connections)
    memory://orders      the store "orders", shared by all users of that name in this process
    file:///var/orders   the data directory /var/orders

``?db=3`` selects a database. ``?fsync=everysec`` selects the times at which a directory's writes are synced to disk.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from millstream.node.durability.group_commit import Fsync

SCHEMES = ("memory://", "file://")


@dataclass(frozen=True, slots=True)
class Place:
    """The store that a URL names, with its options."""

    url: str = field(repr=False)  # URL as given, for messages
    name: str | None  # Name of a store in memory, empty for a private one; None for a directory
    directory: Path | None  # Absolute path with links resolved; None for memory
    fsync: "Fsync | None"  # Sync mode; None if the URL does not set one
    db: int  # Database selected at first

    @property
    def is_private(self) -> bool:
        """True if no other URL can name the store."""
        return self.name == ""

    @property
    def key(self) -> tuple[str, str]:
        """Key of the store, equal for all URLs of the same store; without meaning for a private one."""
        return ("memory", self.name or "") if self.directory is None else ("file", str(self.directory))


def parse_place(url: str) -> Place:
    """Parse a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the exception's text quotes the URL
        raise ConfigError("the URL is invalid. Write memory://, memory://NAME or file:///DIR.") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    db = options.pop("db", "0")
    if not db.isdigit() or int(db) > 15:
        raise ConfigError("the URL is invalid: db is not a number from 0 to 15. Write ?db=0.")
    if parts.scheme == "memory":
        return _memory(url, unquote(parts.netloc), parts.path, options, int(db))
    return _directory(url, parts.netloc, unquote(parts.path), options, int(db))


def _memory(url: str, name: str, path: str, options: dict[str, str], db: int) -> Place:
    if path.strip("/"):
        raise ConfigError(
            "the URL is invalid: memory:// takes a name. Write memory://orders, or file:///DIR for a directory."
        )
    if options:
        raise ConfigError("the URL is invalid: memory:// has no option but db. Remove the others.")
    return Place(url, name, None, None, db)


def _directory(url: str, host: str, path: str, options: dict[str, str], db: int) -> Place:
    if host not in {"", "localhost"} or not path.strip("/"):
        raise ConfigError("the URL is invalid: it has no absolute path. Write file:///var/lib/orders.")
    fsync = options.pop("fsync", None)
    if fsync not in {None, "always", "everysec", "no"}:
        raise ConfigError("the URL is invalid: fsync is unknown. Write always, everysec or no.")
    if options:
        raise ConfigError("the URL is invalid: file:// has no options but db and fsync. Remove the others.")
    return Place(url, None, Path(path).resolve(), cast("Fsync | None", fsync), db)

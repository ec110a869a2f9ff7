"""One row of the command table: a command's name, arguments and properties, without the type of its context.

This module imports no context: the context of a handler has the row of its command, so the row cannot import the
context. So :data:`Handler` leaves that type open; every handler names
:class:`~millstream.commands.context.context.Context` itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream.commands.table.documents import Document, documents
from millstream.errors import CommandError
from millstream.replies import Reply

Handler = Callable[[Any, list[bytes]], Reply]
"""Called with the context and the whole argument list, beginning with the command's name; returns the reply."""

# Writing commands whose key lookups count as reads in Redis's source
_READERS = frozenset(
    {
        *("getex", "getdel", "getset", "xreadgroup", "xack", "xackdel", "xclaim", "xautoclaim", "sort", "bitop"),
        *("sinterstore", "sunionstore", "sdiffstore", "zunionstore", "zinterstore", "zdiffstore", "zrangestore"),
    }
)
# Reading commands that find their keys in another way
_LOOKING_ELSEWHERE = frozenset({"keys", "scan", "randomkey", "memory|usage", "tier|usage"})


@dataclass(slots=True)
class Command:
    """One command or subcommand."""

    name: str  # Name in lower case; a subcommand is ``container|sub``
    arity: int  # Number of arguments with the command name; a negative number is a minimum
    # COMMAND INFO's flags (``write``, ``readonly``, ``denyoom``, ``fast``, ``blocking``, ``movablekeys``, ``noscript``,
    # ``loading``, ``stale``, ``admin``, ``pubsub``, ``no_auth``, ``no_multi``, ``no_async_loading``)
    flags: frozenset[str]
    keys: tuple[int, int, int]  # First key, last key (negative counts from the end) and step; (0, 0, 0) for no keys
    group: str  # COMMAND DOCS group (``stream``, ``generic``, ``connection``, ``server``, ``string``, ``transactions``)
    handler: Handler | None  # Called with the context and the whole argument list
    # Subcommands of a container, by lower-case name without the container's
    subcommands: dict[bytes, "Command"] = field(default_factory=dict)
    # ACL categories in addition to those from flags and group, see :mod:`millstream.commands.users.categories`
    acl: frozenset[str] = frozenset()
    # INFO counts this command's key lookups as hits and misses, as for reading commands
    counts_lookups: bool = field(init=False)
    # A lookup that misses is an event (``keymiss``), if a client wants these events
    tells_misses: bool = field(init=False)

    def __post_init__(self) -> None:
        self.counts_lookups = (
            "readonly" in self.flags or self.name in _READERS
        ) and self.name not in _LOOKING_ELSEWHERE
        self.tells_misses = self.counts_lookups and not self.name.startswith("object|")

    @property
    def document(self) -> Document:
        """Its description; the file is read at the first request."""
        return documents()[self.name]

    def takes(self, argc: int) -> bool:
        """True if this number of arguments is valid for the command."""
        return argc == self.arity if self.arity > 0 else argc >= -self.arity

    def check_arity(self, argc: int) -> None:
        """Refuse an invalid number of arguments."""
        if (self.arity > 0 and argc != self.arity) or argc < -self.arity:  # takes(), inlined: it runs for each command
            raise CommandError(f"ERR wrong number of arguments for '{self.name}' command")

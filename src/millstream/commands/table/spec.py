"""One row of the command table: what a command is called, takes and does, without what its handler is given.

A leaf of the commands: the context a handler works on knows the row it runs, so the row cannot know the context.
That is why :data:`Handler` leaves its type open; every handler names
:class:`~millstream.commands.context.context.Context` itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream.commands.table.documents import Document, documents
from millstream.errors import CommandError
from millstream.replies import Reply

Handler = Callable[[Any, list[bytes]], Reply]
"""Called with the context and the whole argument list, the command's name first; its return value is the reply."""

# Commands that write, and look keys up as those do that read, in Redis's source
_READERS = frozenset(
    {
        *("getex", "getdel", "getset", "xreadgroup", "xack", "xackdel", "xclaim", "xautoclaim", "sort", "bitop"),
        *("sinterstore", "sunionstore", "sdiffstore", "zunionstore", "zinterstore", "zdiffstore", "zrangestore"),
    }
)
# Those that read, and come by their keys in another way
_LOOKING_ELSEWHERE = frozenset({"keys", "scan", "randomkey", "memory|usage"})


@dataclass(slots=True)
class Command:
    """One command or subcommand."""

    name: str  # Lower case; a subcommand is ``container|sub``
    arity: int  # Number of words, command name included; negative means "at least"
    # COMMAND INFO's flags (``write``, ``readonly``, ``denyoom``, ``fast``, ``blocking``, ``movablekeys``, ``noscript``,
    # ``loading``, ``stale``, ``admin``, ``pubsub``, ``no_auth``, ``no_multi``, ``no_async_loading``)
    flags: frozenset[str]
    keys: tuple[int, int, int]  # First key, last key (negative counts from the end), step; (0, 0, 0) for none
    group: str  # COMMAND DOCS group (``stream``, ``generic``, ``connection``, ``server``, ``string``, ``transactions``)
    handler: Handler | None  # Called with the context and the whole argument list
    # For a container, by lower-case name without the container's
    subcommands: dict[bytes, "Command"] = field(default_factory=dict)
    # ACL categories besides those that follow from flags and group, see :mod:`millstream.commands.users.categories`
    acl: frozenset[str] = frozenset()
    # INFO counts the keys that it looks up as hits and misses, as it does of what reads
    counts_lookups: bool = field(init=False)
    # A key that it looks up and does not find is an event (``keymiss``), if a client wants it
    tells_misses: bool = field(init=False)

    def __post_init__(self) -> None:
        self.counts_lookups = (
            "readonly" in self.flags or self.name in _READERS
        ) and self.name not in _LOOKING_ELSEWHERE
        self.tells_misses = self.counts_lookups and not self.name.startswith("object|")

    @property
    def document(self) -> Document:
        """Its description; the file is read when the first one is wanted."""
        return documents()[self.name]

    def takes(self, argc: int) -> bool:
        """True if a command line of this number of words suits this command."""
        return argc == self.arity if self.arity > 0 else argc >= -self.arity

    def check_arity(self, argc: int) -> None:
        """Refuse a number of words that does not suit this command."""
        if (self.arity > 0 and argc != self.arity) or argc < -self.arity:  # as takes(), without the call: each command
            raise CommandError(f"ERR wrong number of arguments for '{self.name}' command")

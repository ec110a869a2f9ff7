"""One connection as commands see it: plain data, no socket."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

WORD_SIZE = 64
"""Size of a queued argument beside its own bytes, in bytes."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The network shell's figures of a connection, read on demand; the defaults are for a node without network."""

    descriptor: int = -1  # The socket's file descriptor, -1 for none
    received: int = 0  # Bytes that came
    sent: int = 0  # Bytes that were passed on to be sent
    reads: int = 0  # Times that bytes came
    unread: int = 0  # Bytes that came and were not yet run as commands
    untaken: int = 0  # Bytes of replies that the client has not taken


class Queue:
    """The queued commands of a transaction."""

    __slots__ = ("_count", "has_together", "items", "size")

    def __init__(self) -> None:
        # In order: the words of one command, or commands that were queued together, which give the words of each
        self.items: list[list[bytes] | Iterable[list[bytes]]] = []
        self.size = 0  # Their size in memory, in bytes
        self.has_together = False  # Some were queued together
        self._count = 0

    def append(self, argv: list[bytes]) -> None:
        """Queue one command."""
        self.items.append(argv)
        self._count += 1
        self.size += sum(map(len, argv)) + WORD_SIZE * len(argv)

    def append_together(self, commands: Iterable[list[bytes]], count: int, size: int) -> None:
        """Queue commands that arrived together."""
        self.items.append(commands)
        self._count += count
        self.size += size
        self.has_together = True

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[bytes]]:
        """The arguments of each command."""
        for item in self.items:
            if isinstance(item, list):
                yield item
            else:
                yield from item


_CLIENT, _NAME = 5000, 150
"""Bytes of a client, and overhead of a name that it listens to or watches, measured on CPython 3.11."""


@dataclass(slots=True, eq=False)
class Session:
    """One client."""

    id: int  # CLIENT ID, unique for the life of the server
    addr: str = ""  # Peer address as CLIENT LIST shows it (``ip:port`` or ``path:0``)
    laddr: str = ""  # Our end of the connection
    db: int = 0  # Selected database
    resp: int = 2  # Protocol version, 2 or 3
    user: bytes | None = b"default"  # Authenticated user's name, or None before AUTH where a password is required
    name: bytes = b""  # CLIENT SETNAME
    lib_name: bytes = b""  # CLIENT SETINFO LIB-NAME
    lib_ver: bytes = b""  # CLIENT SETINFO LIB-VER
    created: int = 0  # Wall milliseconds at connect
    last_used: int = 0  # Wall milliseconds of the last command
    last_command: str = ""  # Lower-case name of the last command
    queue: Queue | None = None  # Commands queued since MULTI, or None outside a transaction
    queue_failed: bool = False  # A queued command was refused, so EXEC must abort
    watched: set[tuple[int, bytes]] = field(default_factory=set)  # Database and key of each WATCH
    watch_broken: bool = False  # A watched key was changed
    blocked: bool = False  # The command this session waits with is parked in the node, or held back by a pause
    # The command held back by CLIENT PAUSE, for the shell to run once the session is no longer blocked
    held: list[bytes] | None = None
    reply_mode: str = "on"  # ``on``, ``off`` or ``skip`` (CLIENT REPLY)
    no_evict: bool = False  # CLIENT NO-EVICT
    no_touch: bool = False  # CLIENT NO-TOUCH
    closing: bool = False  # The server must close the connection after the replies so far
    killed: bool = False  # The server must close the connection at once, with no regard to replies that were not taken
    # Bytes of a reply that was not made, since it passes what the client may leave untaken; 0 for none
    overflow: int = 0
    is_unix: bool = False  # Came in by the unix socket
    is_replica: bool = False  # A replica follows by this connection
    is_primary: bool = False  # In its name runs what this server's primary sends
    channels: set[bytes] = field(default_factory=set)  # Channels it listens to
    patterns: set[bytes] = field(default_factory=set)  # Patterns of channels it listens to
    commands: int = 0  # Commands given, refused ones among them
    traffic: Callable[[], Traffic] = Traffic  # Asks the shell for the connection's bytes

    @property
    def is_doomed(self) -> bool:
        """True if EXEC will fail, so that no further commands are stored."""
        return self.queue_failed or self.watch_broken

    @property
    def memory(self) -> int:
        """Bytes that the client takes: its commands, its names of channels and keys, its unread replies."""
        traffic = self.traffic()
        size = _CLIENT + traffic.unread + traffic.untaken + (0 if self.queue is None else self.queue.size)
        if self.channels or self.patterns or self.watched:
            names = (*self.channels, *self.patterns, *(key for _, key in self.watched))
            size += sum(map(len, names)) + _NAME * len(names)
        return size

    @property
    def is_subscribed(self) -> bool:
        """True with subscriptions; in RESP2 such a connection takes only a few commands, since messages may arrive."""
        return bool(self.channels or self.patterns)

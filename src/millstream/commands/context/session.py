"""One connection as commands see it: plain data, no socket."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

WORD_SIZE = 64
"""Size of a queued argument beside its own bytes, in bytes."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The network shell's figures of a connection, read on demand; the defaults are for a node without network."""

    descriptor: int = -1  # The socket's file descriptor, -1 for none
    received: int = 0  # Bytes received
    sent: int = 0  # Bytes passed on for sending
    reads: int = 0  # Number of reads that returned bytes
    unread: int = 0  # Bytes received but not yet run as commands
    untaken: int = 0  # Bytes of replies that the client has not read


class Queue:
    """The queued commands of a transaction."""

    __slots__ = ("_count", "has_together", "items", "size")

    def __init__(self) -> None:
        # In order: the arguments of one command, or an iterable over those of commands that were queued together
        self.items: list[list[bytes] | Iterable[list[bytes]]] = []
        self.size = 0  # Size in memory, in bytes
        self.has_together = False  # Some commands were queued together
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

    id: int  # Id for CLIENT ID, unique while the server runs
    addr: str = ""  # Peer address as CLIENT LIST shows it (``ip:port`` or ``path:0``)
    laddr: str = ""  # Address of the server's end of the connection
    db: int = 0  # Selected database
    resp: int = 2  # Protocol version, 2 or 3
    user: bytes | None = b"default"  # Name of the authenticated user; None before a required AUTH
    name: bytes = b""  # Name set by CLIENT SETNAME
    lib_name: bytes = b""  # Library name set by CLIENT SETINFO LIB-NAME
    lib_ver: bytes = b""  # Library version set by CLIENT SETINFO LIB-VER
    created: int = 0  # Wall milliseconds of the connect
    last_used: int = 0  # Wall milliseconds of the last command
    last_command: str = ""  # Lower-case name of the last command
    queue: Queue | None = None  # Commands queued since MULTI; None outside a transaction
    queue_failed: bool = False  # A queued command was refused, so EXEC must fail
    watched: set[tuple[int, bytes]] = field(default_factory=set)  # Database and key of each watched key
    watch_broken: bool = False  # A watched key was changed
    blocked: bool = False  # The session's command waits in the node, or CLIENT PAUSE holds it back
    parked: bool = False  # The session's command waits for bytes of packs
    # Command held back by CLIENT PAUSE, or parked; the shell runs it when the session is unblocked
    held: list[bytes] | None = None
    reply_mode: str = "on"  # ``on``, ``off`` or ``skip`` (CLIENT REPLY)
    no_evict: bool = False  # Set by CLIENT NO-EVICT
    no_touch: bool = False  # Set by CLIENT NO-TOUCH
    closing: bool = False  # The server must close the connection after the replies made so far
    killed: bool = False  # The server must close the connection at once, even if replies are unsent
    # Size of a reply that was not built because it exceeds the client's output limit, in bytes; 0 for none
    overflow: int = 0
    is_unix: bool = False  # Connected through the Unix socket
    is_replica: bool = False  # The client is a replica of this server
    is_primary: bool = False  # Runs the stream of this server's primary
    channels: set[bytes] = field(default_factory=set)  # Subscribed channels
    patterns: set[bytes] = field(default_factory=set)  # Subscribed patterns
    commands: int = 0  # Number of commands sent, including refused ones
    traffic: Callable[[], Traffic] = Traffic  # Reads the connection's byte counts from the shell

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

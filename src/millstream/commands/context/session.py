"""What the commands know of one connection: plain data, no socket."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

WORD_SIZE = 64
"""What a queued word takes beside its bytes."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the network shell knows of a connection when it is asked; these defaults where there is no network.

    Attributes:
        descriptor: the socket's file descriptor, -1 for none.
        received: bytes that came.
        sent: bytes that were passed on to be sent.
        reads: times that bytes came.
        unread: bytes that came and were not yet run as commands.
        untaken: bytes of replies that the client has not taken.
    """

    descriptor: int = -1
    received: int = 0
    sent: int = 0
    reads: int = 0
    unread: int = 0
    untaken: int = 0


class Queue:
    """The commands of a transaction that has begun.

    Attributes:
        items: in order: the words of one command, or commands that were queued together, which give the words of each.
        size: what they take in memory.
        has_together: some were queued together.
    """

    __slots__ = ("_count", "has_together", "items", "size")

    def __init__(self) -> None:
        self.items: list[list[bytes] | Iterable[list[bytes]]] = []
        self.size = 0
        self.has_together = False
        self._count = 0

    def append(self, argv: list[bytes]) -> None:
        """Queue one command."""
        self.items.append(argv)
        self._count += 1
        self.size += sum(map(len, argv)) + WORD_SIZE * len(argv)

    def append_together(self, commands: Iterable[list[bytes]], count: int, size: int) -> None:
        """Queue commands that came together.

        Args:
            commands: give the words of each.
            count: how many they are.
            size: what they take in memory.
        """
        self.items.append(commands)
        self._count += count
        self.size += size
        self.has_together = True

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[bytes]]:
        """The words of each command."""
        for item in self.items:
            if isinstance(item, list):
                yield item
            else:
                yield from item


@dataclass(slots=True, eq=False)
class Session:
    """One client.

    Attributes:
        id: CLIENT ID, unique for the life of the server.
        addr: peer address as CLIENT LIST shows it (``ip:port`` or ``path:0``).
        laddr: our end of the connection.
        db: selected database.
        resp: protocol version, 2 or 3.
        user: authenticated user's name, or None before AUTH where a password is required.
        name: CLIENT SETNAME.
        lib_name: CLIENT SETINFO LIB-NAME.
        lib_ver: CLIENT SETINFO LIB-VER.
        created: wall milliseconds at connect.
        last_used: wall milliseconds of the last command.
        last_command: lower-case name of the last command.
        queue: commands queued since MULTI, or None outside a transaction.
        queue_failed: a queued command was refused, so EXEC must abort.
        watched: database and key of each WATCH.
        watch_broken: a watched key was changed.
        blocked: the command this session waits with is parked in the node, or held back by a pause.
        held: the command held back by CLIENT PAUSE, for the shell to run once the session is no longer blocked.
        reply_mode: ``on``, ``off`` or ``skip`` (CLIENT REPLY).
        no_evict: CLIENT NO-EVICT.
        no_touch: CLIENT NO-TOUCH.
        closing: the server must close the connection after the replies so far.
        killed: the server must close the connection at once, with no regard to replies that were not taken.
        overflow: bytes of a reply that was not made, since it passes what the client may leave untaken; 0 for none.
        is_unix: came in by the unix socket.
        is_replica: a replica follows by this connection.
        is_primary: in its name runs what this server's primary sends.
        channels: channels it listens to.
        patterns: patterns of channels it listens to.
        commands: how many it has given, refused ones among them.
        traffic: asks the shell for the connection's bytes.
    """

    id: int
    addr: str = ""
    laddr: str = ""
    db: int = 0
    resp: int = 2
    user: bytes | None = b"default"
    name: bytes = b""
    lib_name: bytes = b""
    lib_ver: bytes = b""
    created: int = 0
    last_used: int = 0
    last_command: str = ""
    queue: Queue | None = None
    queue_failed: bool = False
    watched: set[tuple[int, bytes]] = field(default_factory=set)
    watch_broken: bool = False
    blocked: bool = False
    held: list[bytes] | None = None
    reply_mode: str = "on"
    no_evict: bool = False
    no_touch: bool = False
    closing: bool = False
    killed: bool = False
    overflow: int = 0
    is_unix: bool = False
    is_replica: bool = False
    is_primary: bool = False
    channels: set[bytes] = field(default_factory=set)
    patterns: set[bytes] = field(default_factory=set)
    commands: int = 0
    traffic: Callable[[], Traffic] = Traffic

    @property
    def is_doomed(self) -> bool:
        """EXEC will run nothing, so nothing more is kept for it."""
        return self.queue_failed or self.watch_broken

    @property
    def is_subscribed(self) -> bool:
        """In RESP2 such a connection takes only a few commands, since messages may come at any time."""
        return bool(self.channels or self.patterns)

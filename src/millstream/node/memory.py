"""The bytes that a node uses, counted by kind, and the limit on them.

Deletions must lower the count below the limit again, but they do not lower a process's resident memory. So the node
counts: the engine counts data as it changes; clients, scripts and the replication backlog report their sizes. The
interpreter itself is measured once, before any data is there (:attr:`Memory.startup`).

Clients are many, and their sizes change with each byte. They are added up at most ten times a second, and less often
the more there are.
"""

from collections.abc import Callable, Iterator

from millstream.commands.admin.info import MemoryFacts
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.memory import stream_memory
from millstream.logs import logger
from millstream.node.clients.sessions import Sessions
from millstream.node.primary import Primary
from millstream.texts import size_text

log = logger("millstream.node")

OOM = "OOM command not allowed when used memory > 'maxmemory'."
# Milliseconds before a warning is repeated
_SAID_AGAIN = 60_000
# Milliseconds for which the sum over clients stays valid, and the number of clients that extend this by one
_HOLDS, _MORE = 100, 10


class Memory:
    """The memory counts of a node, and its limit."""

    def __init__(self, config: Config, keyspace: Keyspace, sessions: Sessions, primary: Primary) -> None:
        self._config, self._keyspace, self._sessions, self._primary = config, keyspace, sessions, primary
        self.of_scripts: Callable[[], int] = lambda: 0  # Returns the bytes of Lua; the node provides it
        self.copies: list[Callable[[], int]] = []  # Each returns bytes on their way to packs or from them
        self.startup = 0  # Bytes of the process before it had data; 0 in an embedded server
        self.was_over = False  # Memory was above the limit when the present command began; scripts use this
        self.evicted = 0  # Number of clients disconnected because of ``maxmemory-clients``
        self._peak = self._clients = self._warned_at = 0
        self._large = 0  # number of successive checks at which the process was much larger than the limit
        self.excess = 0  # Bytes by which it was, at two checks or more; a tier moves so much more to files
        self._tight = 0  # Limit that was reported to be below what the empty process takes
        self._others_change = config.on_change
        config.on_change = self._change
        self._added_at: int | None = None  # wall milliseconds of the last sum over clients

    def begin_from(self, resident: int) -> None:
        """Record the resident bytes of the process before the node has data."""
        self.startup = max(resident - stream_memory(), 0)  # excludes other nodes in the same process
        self._expect_room()

    def _change(self) -> None:
        self._others_change()
        self._expect_room()

    def _expect_room(self) -> None:
        """Warn once about a limit below what the process takes without data, since then no write can succeed."""
        limit = self._config.max_memory
        if 0 < limit <= self.startup and limit != self._tight:
            log.warning(
                "maxmemory is %s, and the server takes %s without any data: every command that adds data is refused. "
                "Set maxmemory to more than that",
                size_text(limit),
                size_text(self.startup),
            )
        self._tight = limit

    # ------------------------------------------------------------------ counting

    def data(self) -> int:
        """Bytes of all keys and values in memory."""
        used = stream_memory()
        for db in self._keyspace.databases:
            if db.keys:  # most are empty, and this runs for each client's turn
                used += db.footprint
        return used

    def _used(self, wall: int) -> int:
        used = self.startup + self.data() + self._of_clients(wall) + self.of_scripts() + self._primary.backlog_held
        self._peak = max(self._peak, used)
        return used

    def _of_clients(self, wall: int) -> int:
        """Bytes of all clients but replicas, as of the last count."""
        at, sessions = self._added_at, self._sessions
        if at is None or not 0 <= wall - at < _HOLDS + len(sessions) // _MORE:
            self._added_at = wall
            self._clients = sum(size for _, size in self._sizes())
        return self._clients

    def _sizes(self) -> Iterator[tuple[Session, int]]:
        """The clients and the bytes of each, without replicas, which have a limit of their own."""
        waits = self._sessions.waits.by_session
        for session in self._sessions:
            if not (session.is_replica or session.is_primary):
                waiter = waits.get(session.id) if session.blocked else None
                yield session, session.memory + (0 if waiter is None else sum(map(len, waiter.given)))

    # ------------------------------------------------------------------ the limit

    @property
    def has_tier(self) -> bool:
        """True if entries may be moved to files."""
        return self._config.tier

    def left(self, wall: int) -> int:
        """Bytes that may be added before ``maxmemory`` is passed, negative above it; only called with a limit."""
        return self._config.max_memory - self._used(wall)

    def begin(self, wall: int, *, is_free: bool) -> bool:
        """Check the limit before a command; return True if it is passed. With ``is_free`` nothing is refused now."""
        self.was_over = self._config.max_memory > 0 and not is_free and self.left(wall) < 0
        if self.was_over and not 0 <= wall - self._warned_at < _SAID_AGAIN:
            self._warned_at = wall
            log.warning(
                "memory has passed maxmemory (%d bytes): commands that add data are refused until data is deleted or "
                "the limit is raised",
                self._config.max_memory,
            )
        return self.was_over

    def look(self, resident: int) -> None:
        """Warn once when the process is much larger than the limit at two checks in a row."""
        limit = self._config.max_memory
        self._large = self._large + 1 if 0 < 5 * limit < 4 * resident else 0
        self.excess = resident - 5 * limit // 4 if self._large > 1 else 0
        if self._large == 2:
            log.warning(
                "the process takes %d bytes, and maxmemory is %d: freed memory is kept for new data. Leave room for "
                "it, or lower maxmemory",
                resident,
                limit,
            )

    def evict_clients(self) -> None:
        """Disconnect the largest clients until all together are within ``maxmemory-clients``."""
        limit = self._config.clients_memory
        sizes = list(self._sizes()) if limit else []
        over = sum(size for _, size in sizes) - limit
        for session, size in sorted(sizes, key=lambda each: each[1], reverse=True):
            if over <= 0:
                break
            if not session.no_evict:
                log.warning("client %s takes %d bytes and is disconnected (maxmemory-clients)", session.addr, size)
                self._sessions.kill(session)
                self.evicted += 1
                over -= size

    def reset(self) -> None:
        """Reset the counters for CONFIG RESETSTAT."""
        self.evicted = self._peak = 0

    def facts(self, unwritten: int) -> MemoryFacts:
        """Return INFO's facts; ``unwritten`` is the size of the log's unwritten records in bytes."""
        self._added_at = None
        replicas = sum(session.traffic().untaken for session in self._sessions if session.is_replica)
        beside = replicas + unwritten + sum(copied() for copied in self.copies)
        used = self._used(0) + beside
        self._peak = max(self._peak, used)
        return MemoryFacts(
            used=used,
            peak=self._peak,
            startup=self.startup,
            dataset=self.data(),
            limit=self._config.max_memory,
            not_counted=beside,
            clients=self._clients,
            replicas=replicas,
            evicted_clients=self.evicted,
        )

"""The server itself as commands see it, apart from the keys; commands access it as ``ctx.host``.

Commands change keys through their context, never through the host. The node makes one host for its commands; commands
that need more of the node are in ``node/commands/``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.commands.context.slowlog import SlowLog
from millstream.commands.context.watches import Watches
from millstream.commands.users.accounts import Accounts
from millstream.engine.channels import Channels, Patterns
from millstream.engine.keyspace import Keyspace


@dataclass(slots=True)
class Lookups:
    """Counts of keys found and missed, for INFO."""

    hits: int = 0  # Reading commands that found their key
    misses: int = 0  # Reading commands that did not find their key
    expired: int = 0  # Expired keys deleted, by commands and by the node

    def reset(self) -> None:
        """CONFIG RESETSTAT: set all counters to zero."""
        self.hits = self.misses = self.expired = 0


@dataclass(slots=True, eq=False)
class Host:
    """The server's services for commands: configuration, users, sessions, publishing."""

    config: Config
    accounts: Accounts
    keyspace: Keyspace
    lookups: Lookups
    slowlog: SlowLog
    watches: Watches
    channels: Channels[Session]
    patterns: Patterns[Session]
    sessions: Iterable[Session]  # Every open session, oldest first
    wake: Callable[[int, bytes], None]  # Serves clients that wait for a key of a database, after the command
    weigh: Callable[[int], None]  # Adds bytes to the size of the present log record; raises if it is too large
    publish: Callable[[bytes, bytes], int]  # Sends a message to a channel; returns the number of local subscribers
    kill: Callable[[Session], None]  # Closes a session's connection
    unblock: Callable[[int, bool, int], bool]  # CLIENT UNBLOCK
    hold: Callable[[int, Now, bool], None]  # CLIENT PAUSE
    unpause: Callable[[Now], None]  # CLIENT UNPAUSE
    concerned: Callable[[int], list[bytes]]  # Keys of a database that clients watch or wait for
    note_refusal: Callable[[Session, str, bytes, bytes, Now, str], None]  # Adds a refusal to ACL LOG
    keeps_expired: Callable[[], bool]  # True if no command may delete an expired key at present

    @property
    def is_replica(self) -> bool:
        """True if this server follows another one."""
        return self.keyspace.followed is not None

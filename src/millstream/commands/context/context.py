"""The context of a command handler: the readable state, and the only ways to change anything.

A handler reads, decides, then calls :meth:`Context.commit` for each transition. It never touches the keyspace's
dictionaries itself, never reads a clock, and raises :class:`~millstream.errors.CommandError` only before its first
commit.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.clock import Now
from millstream.commands.context.host import Host
from millstream.commands.context.session import Session
from millstream.engine import cold_ops
from millstream.engine.cold import ColdDamage
from millstream.engine.keyspace import Database, Transition, Value
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY

if TYPE_CHECKING:
    from millstream.commands.table.spec import Command
    from millstream.replies import Reply

# Transitions without a key; those that put a key at another place; and those that replace any value that is there
_OF_DATABASES = frozenset({"flush", "swap"})
_PLACING = frozenset({"move", "copy"})
_REPLACING = _PLACING | {"restore"}

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

V = TypeVar("V", bound=Value)


LEADS_ALREADY = "ERR PSYNC FAILOVER can't be sent to a master."
"""The reply of a primary to PSYNC FAILOVER."""


Glance = Callable[[Database, int], "list[Transition] | None"]
"""A quick check for a waiting command: the transitions that a vain run would make, or None to run the command."""


class Blocked(Exception):  # noqa: N818 - control flow, not an error
    """Raised by a handler that must wait; the node lets the session wait and runs the command again later."""

    def __init__(
        self,
        keys: list[bytes],
        timeout: int,
        argv: list[bytes],
        *,
        group_wait: bool = False,
        due: Callable[[], int | None] | None = None,
        kind: type[Value] = Stream,
        late: "Callable[[], Reply]" = lambda: NIL_ARRAY,
        fulfilled: Callable[[], bool] | None = None,
        glance: "Glance | None" = None,
        may_unblock: bool = True,
    ) -> None:
        super().__init__()
        self.may_unblock = may_unblock
        self.glance = glance
        self.late = late
        self.fulfilled = fulfilled
        self.keys = keys
        self.timeout = timeout
        self.argv = argv
        self.group_wait = group_wait
        self.due = due
        self.kind = kind
        self.took = 0  # Nanoseconds of the attempt that found nothing


class TooLarge(Exception):  # noqa: N818 - control flow, as Blocked
    """Raised by a handler whose reply exceeds :attr:`Context.most`, so that its client will be cut."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size  # Bytes of the reply so far


class Origin(Enum):
    """The origin of a command, which decides which checks come before it."""

    CLIENT = "a client"
    WAITER = "a client that waited, whose command runs again"
    EXEC = "a transaction"
    SCRIPT = "a script"
    PRIMARY = "this server's primary"
    SERVER = "this server itself"


_MAY_BLOCK = frozenset({Origin.CLIENT, Origin.WAITER})


class Context:
    """One command's access to the state, the session and the server."""

    __slots__ = (
        "_journal",
        "_notify",
        "damage",
        "db",
        "dirty",
        "failed",
        "host",
        "may_block",
        "most",
        "now",
        "origin",
        "row",
        "session",
    )

    def __init__(
        self,
        host: Host,
        session: Session,
        now: Now,
        journal: Callable[[Transition, bool], None],
        notify: Callable[[str, str, int, bytes], None],
        origin: Origin = Origin.CLIENT,
    ) -> None:
        self.host = host
        self.session = session  # Client that sent the command
        self.db: Database = host.keyspace.databases[session.db]
        self.now = now  # Wall and monotonic time, read once for the command or the whole transaction
        self._journal = journal
        self._notify = notify
        self.origin = origin  # Cause of the run: a client, a transaction, a script and so on
        self.may_block = origin in _MAY_BLOCK  # The command may wait, since it would block nothing else
        self.dirty = 0  # Changes made so far, as Redis counts them (``rdb_changes_since_last_save``)
        # A script's reply contains an error, so the call counts as failed; the error itself is already counted
        self.failed = False
        # Damage of cold entries that did not make the command fail, for the node to report
        self.damage: ColdDamage | None = None
        self.most = 0  # Bytes of entries that one reply may have, 0 for any number; set where entries may be in files
        self.row: Command | None = None  # Table row of the running command; None for the server's own work

    def commit(self, step: Transition, *, soft: bool = False, is_planned: bool = False) -> Any:
        """Apply a transition and log it; returns what its applier returns.

        ``is_planned``: it touches no cold entries, or carries all that it needs of them.
        """
        space = self.host.keyspace
        if space.reads.source is not None and not is_planned:
            return self._commit_planned(step, soft=soft)
        if "n" in self.host.config.events and step[0] not in _OF_DATABASES:
            return self._commit_perhaps_new(step, soft=soft)
        result = space.apply(step)
        self._journal(step, soft)
        return result

    def _commit_planned(self, step: Transition, *, soft: bool) -> Any:
        """Commit the transitions that take the place of one that may touch cold entries; add up their results."""
        space, results = self.host.keyspace, []
        for each in cold_ops.cold_form(space, step) if step[0] in cold_ops.TOUCHING else (step,):
            space.reads.may_wait = True  # the command cannot begin again
            results.append(self.commit(each, soft=soft, is_planned=True))
        return results[0] if len(results) == 1 else sum(result or 0 for result in results)

    def _commit_perhaps_new(self, step: Transition, *, soft: bool) -> Any:
        """Commit, and publish an event for a new key; one that replaces another key is always new, as in Redis."""
        index, key = step[3:5] if step[0] in _PLACING else step[1:3]
        database = self.host.keyspace.databases[index]
        was_there = step[0] not in _REPLACING and key in database.keys
        result = self.host.keyspace.apply(step)
        self._journal(step, soft)
        if not was_there and key in database.keys:
            self.notify("n", "new", key, database)
        return result

    def overwritten(self, key: bytes, before: Value | None, database: Database | None = None) -> None:
        """Publish that a key's value was replaced as a whole, and a second event if its type has changed."""
        if before is not None and self.host.config.events:
            value = (database or self.db).keys.get(key)
            self.notify("o", "overwritten", key, database)
            if value is not None and value.kind != before.kind:
                self.notify("c", "type_changed", key, database)

    @property
    def obeys(self) -> bool:
        """True for a command of the server's primary: it is not refused, and means the same as on the primary."""
        return self.session.is_primary

    @property
    def tells_misses(self) -> bool:
        """True if missing keys are events that a client has subscribed to."""
        return self.row is not None and self.row.tells_misses and "m" in self.host.config.events

    def missed(self, key: bytes, database: Database | None = None) -> None:
        """Publish that a missing key was read."""
        self.notify("m", "keymiss", key, database)

    def lookup(self, key: bytes, database: Database | None = None) -> Value | None:
        """Return the key's value, or None; delete an expired key unless nothing may be written now.

        For a primary's command no key is expired, since the primary sends a deletion itself.
        """
        db = self.db if database is None else database
        value = self.find(key, db)
        row = self.row
        if row is not None and row.counts_lookups:
            if value is not None:
                self.host.lookups.hits += 1
            else:
                self.host.lookups.misses += 1
                if self.tells_misses:
                    self.missed(key, db)
        return value

    def find(self, key: bytes, database: Database | None = None) -> Value | None:
        """The same as :meth:`lookup`, without counting a hit or a miss: for keys that a command only writes."""
        db = self.db if database is None else database
        value = db.keys.get(key)
        if value is not None and db.expires and db.is_expired(key, self.now.wall) and not self.obeys:
            self._delete_expired(key, db)
            return None
        return value

    def _delete_expired(self, key: bytes, db: Database) -> None:
        """Delete an expired key that a command has found."""
        if self.host.keeps_expired():
            return  # writes are refused now, so the expired key is only hidden
        self.commit(("unset", db.index, key))
        self.host.lookups.expired += 1
        self.signal(key, db)
        self.notify("x", "expired", key, db)

    def lookup_as(self, key: bytes, kind: type[V]) -> V | None:
        """The key's value of the given type, or None."""
        value = self.lookup(key)
        if value is None or isinstance(value, kind):
            return value
        raise CommandError(WRONGTYPE)

    def signal(self, key: bytes, database: Database | None = None) -> None:
        """Report a change of a key that may end a client's wait, and breaks WATCHes."""
        index = (database or self.db).index
        self.host.watches.breaks(index, key)
        self.host.wake(index, key)

    def touch(self, key: bytes, database: Database | None = None) -> None:
        """Report a change of a key that can end no client's wait; it only breaks WATCHes."""
        self.host.watches.breaks((database or self.db).index, key)

    def wake(self, key: bytes) -> None:
        """Report a change of a stream's groups that may end a client's wait, but breaks no WATCH, as in Redis."""
        self.host.wake(self.db.index, key)

    def expect_small(self, size: int) -> None:
        """Raise unless a reply may have so many bytes."""
        if 0 < self.most < size:
            raise TooLarge(size)

    def notify(self, kind: str, event: str, key: bytes, database: Database | None = None) -> None:
        """Publish a keyspace event."""
        self.host.keyspace.reads.may_wait = True  # the command cannot begin again
        self._notify(kind, event, (database or self.db).index, key)

"""Admission of commands: a session may run one that is known, allowed by ACL, and not held up.

A transaction, SUBSCRIBE or a full disk can hold it up. The order of the checks is Redis's, since a client sees the
first one that fails.
"""

from collections.abc import Callable

from millstream.clock import Now
from millstream.commands.connection.clients import describe
from millstream.commands.connection.pubsub import ALLOWED_WHILE_SUBSCRIBED
from millstream.commands.context.config import Config
from millstream.commands.context.context import Context, Origin
from millstream.commands.context.session import Session
from millstream.commands.table.spec import Command
from millstream.commands.table.table import resolve
from millstream.commands.users.accounts import Accounts, Refusal
from millstream.commands.users.permissions import Denial, User
from millstream.errors import CommandError
from millstream.node.clients.pausing import MAY_WRITE
from millstream.node.following.role import LINK_DOWN, READ_ONLY, Following
from millstream.node.journal import Journal
from millstream.node.memory import OOM, Memory
from millstream.node.primary import Primary

_NOT_IN_MULTI = "ERR Command not allowed inside a transaction"
# Place of a command for ACL LOG, and the beginning of its error
_PLACES = {Origin.WAITER: "toplevel", Origin.EXEC: "multi", Origin.SCRIPT: "lua"}
_DENIED = {Origin.WAITER: "NOPERM ", Origin.SCRIPT: "ERR ACL failure in script: "}
# EXEC's errors for queued commands that are no longer allowed, by what was refused
_NO_LONGER = (
    "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is "
    "no longer allowed for the following reason: "
)
_REASONS = {
    "command": "no permission to execute the command or subcommand",
    "key": "no permission to touch the specified keys",
    "channel": "no permission to access one of the channels used as arguments",
}
NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."
LOADING = "LOADING Redis is loading the dataset in memory"
_NO_AUTH = "NOAUTH Authentication required."
_SCRIPTS = frozenset({"eval", "evalsha", "eval_ro", "evalsha_ro"})
# Commands that no pause holds back
_OF_REPLICA = "ERR Replica can't interact with the keyspace"


class Admission:
    """Decides for each command if its session may run it now."""

    def __init__(
        self,
        accounts: Accounts,
        config: Config,
        journal: Journal,
        primary: Primary,
        following: Following,
        memory: Memory,
    ) -> None:
        self._primary, self._following, self._memory = primary, following, memory
        # True if a command runs a script that the memory limit may prevent; the node sets it
        self.script_adds: Callable[[list[bytes]], bool] = lambda argv: False  # noqa: ARG005 - one signature
        self._accounts = accounts
        self._config = config
        self._journal = journal

    def admit(self, session: Session, argv: list[bytes], now: Now) -> Command:
        """Return the command's row if this session may run it now; raise if not."""
        row = resolve(argv)
        accounts = self._accounts
        if session.user is None:
            session.user = accounts.first_user  # the default user may have lost its password since
            if session.user is None and "no_auth" not in row.flags:
                raise CommandError(_NO_AUTH)
        if session.queue is not None and "no_multi" in row.flags:
            raise CommandError(_NOT_IN_MULTI)
        if session.user not in accounts.unrestricted:
            session.last_command = row.name  # ACL LOG shows it for the client
            context = "toplevel" if session.queue is None else "multi"
            refused = self.refusal(session, row, argv, now, context)
            if refused is not None:
                raise CommandError(f"NOPERM {refused[1]}")
        is_replica = self._following.is_replica
        is_free = is_replica or self._journal.loading is not None
        if self._memory.begin(now.wall, is_free=is_free) and self._adds(session, row, argv):
            raise CommandError(OOM)
        outage = self._journal.outage
        if outage is not None and (line := outage.refusal_of(session, row, argv)) is not None:
            raise CommandError(line)
        if is_replica and self._writes(session, row):
            raise CommandError(READ_ONLY)
        if self._config.min_replicas and not is_replica and self._lacks_replicas_for(session, row):
            raise CommandError(NO_REPLICAS)
        if session.resp == 2 and session.is_subscribed and row.name not in ALLOWED_WHILE_SUBSCRIBED:
            raise CommandError(
                f"ERR Can't execute '{row.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                "allowed in this context"
            )
        if is_replica and self._following.is_stale and self._lacks(session, row, "stale"):
            raise CommandError(LINK_DOWN)
        if self._journal.loading is not None and self._lacks(session, row, "loading"):
            raise CommandError(LOADING)
        if session.is_replica and self._meets_data(session, row):
            raise CommandError(_OF_REPLICA)
        return row

    def refusal_inside(self, ctx: Context, row: Command, argv: list[bytes]) -> str | None:
        """Return the error of a command inside a transaction or script that may not run now; None if it may."""
        origin, session = ctx.origin, ctx.session
        if origin is Origin.PRIMARY:
            return None
        # The rules may have changed since the command was queued or began to wait
        refused = self.refusal(session, row, argv, ctx.now, _PLACES[origin])
        if refused is not None:
            return (
                f"{_NO_LONGER}{_REASONS[refused[0].reason]}" if origin is Origin.EXEC else _DENIED[origin] + refused[1]
            )
        if origin is Origin.WAITER:
            is_full = "denyoom" in row.flags and self._memory.begin(ctx.now.wall, is_free=self._following.is_replica)
            return OOM if is_full else None
        if "write" in row.flags and self._following.is_replica and not session.is_primary:  # perhaps since a moment ago
            return READ_ONLY
        if origin is Origin.SCRIPT:
            if self.lacks_replicas(row):
                return NO_REPLICAS
            outage = self._journal.outage
            if outage is not None and (line := outage.refusal(row, argv)) is not None:
                return line
        try:
            self._journal.weight.add_words(row, argv)
        except CommandError as error:
            return error.line
        return None

    def _adds(self, session: Session, row: Command, argv: list[bytes]) -> bool:
        """True if a command may need more memory; for EXEC, if one of the queued commands may."""
        if row.name == "exec":
            return any(self._adds(session, resolve(words), words) for words in session.queue or ())
        return "denyoom" in row.flags or (row.name in _SCRIPTS and self.script_adds(argv))

    def _meets_data(self, session: Session, row: Command) -> bool:
        if row.name == "exec":
            return any(self._meets_data(session, resolve(words)) for words in session.queue or ())
        return not row.flags.isdisjoint({"write", "readonly"}) or row.name in MAY_WRITE

    def _writes(self, session: Session, row: Command) -> bool:
        if row.name == "exec":
            return any("write" in resolve(words).flags for words in session.queue or ())
        return "write" in row.flags

    def _lacks(self, session: Session, row: Command, flag: str) -> bool:
        """True if a command is without a flag; for EXEC, if any queued command is, since the role may have changed."""
        if row.name == "exec":
            return any(flag not in resolve(words).flags for words in session.queue or ())
        return flag not in row.flags

    def lacks_replicas(self, row: Command) -> bool:
        """True if a command writes, and there are fewer replicas than ``min-replicas-to-write``."""
        if self._following.is_replica:
            return False
        return self._primary.good < self._config.min_replicas and "write" in row.flags

    def _lacks_replicas_for(self, session: Session, row: Command) -> bool:
        if row.name == "exec":
            return any(map(self.lacks_replicas, map(resolve, session.queue or ())))
        return self.lacks_replicas(row)

    def refusal(
        self, session: Session, row: Command, argv: list[bytes], now: Now, context: str
    ) -> tuple[Denial, str] | None:
        """Return the reason and the text if the session's user may not run a command; record a refusal in ACL LOG."""
        name = session.user
        if name in self._accounts.unrestricted or "no_auth" in row.flags or session.is_primary:
            return None
        if name is None:  # the user was deleted, and the connection is about to be closed
            return Denial(1, 0), "the user is deleted"
        user = self._accounts.get(name) or User(name)
        denial = user.refusal(row, argv)
        if denial is None:
            return None
        thing = argv[denial.at] if denial.at else row.name.encode()
        self.note_refusal(session, denial.reason, thing, name, now, context)
        return denial, user.denial_text(denial, row, argv)

    def note_refusal(self, session: Session, reason: str, thing: bytes, user: bytes, now: Now, context: str) -> None:
        """Record a refusal in ACL LOG."""
        client = describe(session, now.wall).encode("utf-8", "surrogateescape")
        entry = Refusal(0, reason, context, thing, user, client, now.wall, now.wall)
        self._accounts.note(entry, self._config.acl_log_max)

    def allows(self, session: Session, row: Command, argv: list[bytes]) -> bool:
        """True if the session's user may run a command; a refusal is not recorded."""
        name = session.user
        if name in self._accounts.unrestricted:
            return True
        user = None if name is None else self._accounts.get(name)
        return user is not None and user.refusal(row, argv) is None

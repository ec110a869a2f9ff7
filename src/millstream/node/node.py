"""The node: one command in, its reply out, with the log, the waiters and the watches kept right on the way.

Nothing here is asynchronous, and no clock is read: a shell (the network server, or an in-process client) calls
:meth:`Node.execute` with the time, sends the reply once the log has reached its *barrier*, then sends what has gathered
in :attr:`Node.outbox` for other sessions.

Order inside one command: parse and check; apply transitions; gather them into one record; append it to the log; run
again the commands of sessions that waited for what changed. A transaction does the same with all its commands, so its
record is whole in the log or absent.
"""

import gc
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from millstream.clock import Now
from millstream.commands import load_all
from millstream.commands.admin.info import render
from millstream.commands.connection.clients import describe
from millstream.commands.connection.pubsub import ALLOWED_WHILE_SUBSCRIBED
from millstream.commands.connection.transactions import end_transaction
from millstream.commands.context.config import Config
from millstream.commands.context.context import Blocked, Context
from millstream.commands.context.session import Session
from millstream.commands.context.watches import Watches
from millstream.commands.table.events import messages
from millstream.commands.table.spec import Command
from millstream.commands.table.table import find, resolve
from millstream.commands.users.accounts import Accounts, Refusal
from millstream.commands.users.permissions import Denial, User
from millstream.engine.channels import Channels, Patterns
from millstream.engine.keyspace import Keyspace, Transition
from millstream.errors import CommandError, MillstreamError, StorageError
from millstream.glob import PatternTooCostlyError
from millstream.node.blocking import Waiter, Waits
from millstream.node.chores import Chores
from millstream.node.facts import Surroundings, gather
from millstream.node.log import codec, rebuilding
from millstream.node.log.weight import Weight
from millstream.node.muting import is_muted, pushes_in
from millstream.node.outage import Outage, shows_times
from millstream.node.outcome import Outcome
from millstream.node.pausing import Pause
from millstream.node.scripting.scripts import Scripts
from millstream.node.stats import Stats
from millstream.protocol.encoder import encode, weight
from millstream.replies import NIL_ARRAY, QUEUED, Error, Many, Push, Raw, Reply

if TYPE_CHECKING:
    from millstream.node.log.rewriting import Rewriter

load_all()

log = logging.getLogger("millstream.node")

# Commands that act on the transaction itself even while one is open
_UNQUEUED = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})
# Transitions after which entries may be claimable earlier than those who wait with CLAIM know
_STALE_LATER = frozenset({"gread", "gclaim"})
# Items of a reply that are written out without being counted before
_FEW = 1024
_NOT_IN_MULTI = "ERR Command not allowed inside a transaction"
_NO_AUTH = "NOAUTH Authentication required."
# What EXEC says of a queued command that is not allowed any more, by what was refused
_NO_LONGER = (
    "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is "
    "no longer allowed for the following reason: "
)
_REASONS = {
    "command": "no permission to execute the command or subcommand",
    "key": "no permission to touch the specified keys",
    "channel": "no permission to access one of the channels used as arguments",
}


class LogSink(Protocol):
    """What the node needs of a log; :class:`millstream.persistence.log.Log` is one."""

    def append(self, payload: bytes) -> int:
        """Take a record; returns its position."""
        ...

    @property
    def appended(self) -> int:
        """Position of the last record taken."""
        ...

    def write(self) -> int:
        """Hand everything to the operating system."""
        ...

    def sync(self) -> int:
        """Bring what was written to the medium."""
        ...

    def replay(self) -> Iterator[bytes]:
        """Every record taken so far, oldest first, read from where they are kept."""
        ...


class Node:
    """One server's whole state, without its sockets.

    Args:
        config: the parameters clients see.
        log: where records go; None keeps nothing.

    Attributes:
        outbox: replies to sessions other than the one that just ran a command; the shell empties it.
        stats: what INFO counts.
        stopping: SHUTDOWN was asked for; the shell ends the process.
        outage: why writes are refused, None while they are taken.
        surroundings: what INFO shows of the shell, the machine and the log; the shell fills it in.
        limits_replies: replies above the hard limit of ``client-output-buffer-limit`` are not made, since the shell
            would cut their client: see :attr:`~millstream.commands.context.session.Session.overflow`.
        rewriter: makes the log smaller; the shell provides it where there is a log.
    """

    # With slots, since CPython reads attributes more slowly where an object has more than thirty without
    __slots__ = (  # noqa: SIM905 - one on a line would take a line for each
        "_hard _is_hard _last_id _log _messages _nobody _overdue _pause _ready _saved_at _sessions _stale "
        "_steps _wall accounts channels chores config keyspace limits_replies lookups outage outbox patterns "
        "rewriter scripts stats stopping surroundings waits watches weight"
    ).split()

    def __init__(self, config: Config, log: LogSink | None = None) -> None:
        self.config = config
        self.accounts = Accounts()
        if config.require_pass:
            self.accounts.set_default_password(config.require_pass)
        self.keyspace = Keyspace()
        self.stats = Stats()
        self.lookups = self.stats.lookups
        self.outbox: list[tuple[Session, Outcome]] = []
        self.stopping = False
        self.outage: Outage | None = None
        self.limits_replies = False
        self.surroundings = Surroundings()
        self.rewriter: Rewriter | None = None
        self.waits = Waits()
        self.chores = Chores()
        self._pause = Pause()
        self.scripts = Scripts(self)
        self._log = log
        self._hard = 0  # position of the last record that replies wait for
        self._sessions: dict[int, Session] = {}
        self._last_id = 0
        self._wall = 0  # time of the last command, for INFO
        self._saved_at = 0  # wall seconds of the last SAVE or its kin
        self._steps: list[Transition] = []
        self.weight = Weight()  # of these
        self._is_hard = False
        self._ready: dict[tuple[int, bytes], None] = {}
        self._stale: set[tuple[int, bytes]] = set()  # where deliveries and claims happened while somebody waits
        self.channels: Channels[Session] = Channels()
        self.patterns: Patterns[Session] = Patterns()
        self._messages: list[tuple[Session, Push]] = []
        self.watches = Watches()
        self._nobody = Session(0)  # in whose name chores are done
        self._overdue: list[Waiter] = []  # who could claim, but for the outage

    # ------------------------------------------------------------------ sessions

    def open_session(self, now: Now, *, addr: str = "", laddr: str = "", is_unix: bool = False) -> Session:
        """A new client."""
        self._last_id += 1
        session = Session(
            self._last_id,
            addr,
            laddr,
            created=now.wall,
            last_used=now.wall,
            is_unix=is_unix,
            user=self.accounts.first_user,
        )
        self._sessions[session.id] = session
        self.stats.connections += 1
        return session

    def close_session(self, session: Session) -> None:
        """A client is gone; whatever it waited for or watched is forgotten."""
        waiter = self.waits.by_session.get(session.id)
        if waiter is not None:
            self.waits.stop(waiter)
        self.watches.drop(session)
        self._pause.held.pop(session, None)
        for name in session.channels:
            self.channels.leave(session, name)
        for name in session.patterns:
            self.patterns.leave(session, name)
        self._sessions.pop(session.id, None)

    def sessions(self) -> Iterator[Session]:
        """Every open session, oldest first."""
        return iter(self._sessions.values())

    # ------------------------------------------------------------------ commands

    def execute(self, session: Session, argv: list[bytes], now: Now) -> Outcome | None:
        """Run one command.

        Args:
            session: who asks; it must not be blocked.
            argv: the words, at least one.
            now: both clocks.

        Returns:
            The reply, or None: the session now waits (``session.blocked``), or asked for no replies. If it waits
            because of CLIENT PAUSE, the command is in ``session.held``, to be given again when the wait is over.
        """
        session.last_used = self._wall = now.wall
        try:
            row = self._admit(session, argv, now)
        except CommandError as error:
            return self._refuse(session, argv, error, now)
        session.last_command = row.name
        session.commands += 1
        if self._pause.ends is not None and self._pause.holds(session, row):
            session.held, session.blocked = argv, True
            session.commands -= 1  # it is given again
            self._pause.held[session] = None
            return None
        if session.queue is not None and row.name not in _UNQUEUED:
            session.queue.append(argv)
            return self._outcome(session, QUEUED, row)
        if row.name == "exec" and session.queue is not None:
            reply: Reply = self._exec(session, session.queue, now)
        else:
            ctx = self._context(session, now)
            try:
                reply = self._run(ctx, row, argv)
            except Blocked as wait:
                self.stats.dirty += ctx.dirty
                self._flush(now)
                self.waits.start(session, wait, now)
                return None
            self.stats.dirty += ctx.dirty
        self._flush(now)
        outcome = self._outcome(session, reply, row)
        if self._ready and self.outage is None:
            self._serve_ready(now)
        return outcome

    # ------------------------------------------------------------------ a disk that takes no writes

    @property
    def is_holding(self) -> bool:
        """Changes are in memory that the disk has refused for now; no reply made meanwhile tells of them."""
        return self.outage is not None and self.outage.held > 0

    def suspend(self, outage: Outage) -> None:
        """Refuse what the outage refuses, and change nothing unasked, until :meth:`resume`."""
        self.outage = outage
        if outage.held:
            self._hard = 0  # what is answered from here on rests on nothing that waits for the disk

    def resume(self) -> None:
        """Take writes again; what could not be done meanwhile is due at the next :meth:`tick`."""
        self.outage = None

    def _admit(self, session: Session, argv: list[bytes], now: Now) -> Command:
        """The command's row, if this session may run it now."""
        row = resolve(argv)
        if session.user is None:
            session.user = self.accounts.first_user  # the default user may have become open since
            if session.user is None and "no_auth" not in row.flags:
                raise CommandError(_NO_AUTH)
        if session.queue is not None and "no_multi" in row.flags:
            raise CommandError(_NOT_IN_MULTI)
        self._authorize(session, row, argv, now)
        if self.outage is not None and (line := self.outage.refusal_of(session, row, argv)) is not None:
            raise CommandError(line)
        if session.resp == 2 and session.is_subscribed and row.name not in ALLOWED_WHILE_SUBSCRIBED:
            raise CommandError(
                f"ERR Can't execute '{row.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                "allowed in this context"
            )
        return row

    def _authorize(self, session: Session, row: Command, argv: list[bytes], now: Now) -> None:
        """Raise unless the session's user may run the command."""
        if session.user in self.accounts.unrestricted:
            return
        context = "toplevel" if session.queue is None else "multi"
        refused = self.refusal(session, row, argv, now, context)
        if refused is not None:
            raise CommandError(f"NOPERM {refused[1]}")

    def refusal(
        self, session: Session, row: Command, argv: list[bytes], now: Now, context: str
    ) -> tuple[Denial, str] | None:
        """Why a session may not run a command, with the words for it; remembered in ACL LOG."""
        name = session.user
        if name in self.accounts.unrestricted or "no_auth" in row.flags:
            return None
        if name is None:  # its user was deleted, and it is about to be closed
            return Denial(1, 0), "the user is deleted"
        user = self.accounts.get(name) or User(name)
        denial = user.refusal(row, argv)
        if denial is None:
            return None
        session.last_command = row.name
        thing = argv[denial.at] if denial.at else row.name.encode()
        self.note_refusal(session, denial.reason, thing, name, now, context)
        return denial, user.denial_text(denial, row, argv)

    def note_refusal(self, session: Session, reason: str, thing: bytes, user: bytes, now: Now, context: str) -> None:
        """Remember in ACL LOG that somebody was refused something."""
        client = describe(session, now.wall).encode("utf-8", "surrogateescape")
        entry = Refusal(0, reason, context, thing, user, client, now.wall, now.wall)
        self.accounts.note(entry, self.config.acl_log_max)

    def _refuse(self, session: Session, argv: list[bytes], error: CommandError, now: Now) -> Outcome | None:
        """The reply to a command that is unknown, malformed or not allowed; a transaction remembers it.

        EXEC refused ends the transaction, as in Redis: nobody could tell otherwise whether it is still open.
        """
        session.commands += 1
        if session.queue is not None:
            session.queue_failed = True
        row, line = find(argv), error.line
        if row is not None:
            self.stats.command(row.name).rejected += 1
        if row is not None and row.name == "exec":
            end_transaction(self._context(session, now))
            line = f"EXECABORT Transaction discarded because of: {line.removeprefix('ERR ')}"
        self.stats.error(line)
        return self._outcome(session, Error(line), row)

    def _context(self, session: Session, now: Now, *, may_block: bool = True) -> Context:
        return Context(self, session, now, self._journal, self._notify, may_block=may_block)

    def _run(self, ctx: Context, row: Command, argv: list[bytes]) -> Reply:
        """Call the handler; count, and turn what it raises into a reply."""
        stats = self.stats.command(row.name)
        stats.calls += 1
        self.stats.processed += 1
        ctx.row = row
        started = time.perf_counter_ns()
        assert row.handler is not None
        try:
            return row.handler(ctx, argv)
        except CommandError as error:
            stats.failed += 1
            self.stats.error(error.line)
            return Error(error.line)
        except Blocked:
            raise
        except Exception:
            # A defect of ours must not take the server from everybody else; what was applied is logged all the same
            log.exception("internal error in %s", row.name)
            stats.failed += 1
            self.surroundings.shell.internal_errors += 1
            line = f"ERR internal error in '{row.name}'; the server's log has the details"
            self.stats.error(line)
            return Error(line)
        finally:
            stats.nanoseconds += time.perf_counter_ns() - started
            if ctx.failed:  # a script whose reply has errors in it
                ctx.failed = False
                stats.failed += 1

    def script_context(self, ctx: Context, session: Session) -> Context:
        """For the commands of a script that ``ctx`` runs: the same time, the same record, nobody served in between."""
        return self._context(session, ctx.now, may_block=False)

    def run_inside(self, ctx: Context, row: Command, argv: list[bytes]) -> Reply:
        """Run one command of a script."""
        ctx.db = self.keyspace.databases[ctx.session.db]  # SELECT inside the script
        refused = self.refusal(ctx.session, row, argv, ctx.now, "lua")
        if refused is not None:
            return self.refuse_inside(row, f"ERR ACL failure in script: {refused[1]}")
        if self.outage is not None and (line := self.outage.refusal(row, argv)) is not None:
            return self.refuse_inside(row, line)
        try:
            self.weight.add_words(row, argv)
        except CommandError as error:
            return self.refuse_inside(row, error.line)
        reply = self._run(ctx, row, argv)
        if self._log is not None and not self.is_holding and shows_times(row):
            # It shows what is logged softly, before this script and in it
            self._hard, self._is_hard = self._log.appended, self._is_hard or bool(self._steps)
        return reply

    def allows(self, session: Session, row: Command, argv: list[bytes]) -> bool:
        """Whether the session's user may run a command; nothing is remembered of a refusal."""
        name = session.user
        if name in self.accounts.unrestricted:
            return True
        user = None if name is None else self.accounts.get(name)
        return user is not None and user.refusal(row, argv) is None

    def refuse_inside(self, row: Command | None, line: str) -> Error:
        """Count an error of a script: of a command it may not run, or, without one, of its own."""
        if row is not None:
            self.stats.command(row.name).rejected += 1
        self.stats.error(line)
        return Error(line)

    def _exec(self, session: Session, queue: list[list[bytes]], now: Now) -> Reply:
        """Run a transaction: one time, one record, and nobody served in between."""
        ctx = self._context(session, now, may_block=False)
        self.stats.command("exec").calls += 1
        failed, broken = session.queue_failed, session.watch_broken or self._watched_expired(session, now)
        end_transaction(ctx)
        if failed:
            self.stats.command("exec").failed += 1
            line = "EXECABORT Transaction discarded because of previous errors."
            self.stats.error(line)
            return Error(line)
        if broken:
            return NIL_ARRAY
        replies: list[Reply] = []
        shows_soft, settled, resp = False, 0, session.resp
        ceiling, size = self._ceiling(session), 0
        for argv in queue:
            ctx.db = self.keyspace.databases[session.db]  # SELECT inside the transaction
            row = resolve(argv)
            shows_soft = shows_soft or shows_times(row)
            refused = self.refusal(session, row, argv, now, "multi")  # the rules may have changed since it was queued
            reply = self._run_queued(ctx, row, argv) if refused is None else self._no_longer(row, refused[0])
            if session.resp != resp:  # by HELLO: what was answered before stays in the protocol of its time
                replies[settled:] = [Raw(encode(each, resp)) for each in replies[settled:]]
                settled, resp = len(replies), session.resp
            if ceiling:
                size += weight(reply)
                if size > ceiling:  # the rest is done, as the whole transaction must be, and not kept to be shown
                    replies, settled = [], 0
                    continue
            replies.append(reply)
        if ceiling and size > ceiling:
            session.overflow = size
        if self._log is not None and not self.is_holding and shows_soft:
            # It shows what is logged softly, before this transaction and in it
            self._hard, self._is_hard = self._log.appended, bool(self._steps)
        self.stats.dirty += ctx.dirty
        return replies

    def _run_queued(self, ctx: Context, row: Command, argv: list[bytes]) -> Reply:
        try:
            self.weight.add_words(row, argv)
        except CommandError as error:
            return self.refuse_inside(row, error.line)
        return self._run(ctx, row, argv)

    def weigh(self, size: int) -> None:
        """See :class:`millstream.commands.context.context.CommandHost`."""
        self.weight.add(size)

    def _no_longer(self, row: Command, denial: Denial) -> Error:
        self.stats.command(row.name).rejected += 1
        line = _NO_LONGER + _REASONS[denial.reason]
        self.stats.error(line)
        return Error(line)

    def _outcome(self, session: Session, reply: Reply, row: Command | None) -> Outcome | None:
        if session.reply_mode != "on" and is_muted(session):
            told = pushes_in(reply)
            if not told:
                return None
            reply = Many(told)
        log_ = self._log
        if log_ is None:
            barrier = 0
        else:
            shows_soft = row is not None and shows_times(row) and not self.is_holding
            barrier = log_.appended if shows_soft else self._hard
        if type(reply) is list and self._overflows(session, reply):
            return None
        return Outcome(encode(reply, session.resp), barrier)

    def _overflows(self, session: Session, reply: list[Reply]) -> bool:
        """Whether a reply is not made; many of it may be one and the same string, which writing it out would copy."""
        if len(reply) > _FEW and (ceiling := self._ceiling(session)) and (size := weight(reply)) > ceiling:
            session.overflow = size
        return session.overflow > 0

    def _ceiling(self, session: Session) -> int:
        """Bytes above which a reply is not made; 0 for no such limit."""
        if not self.limits_replies or session.reply_mode != "on":
            return 0
        limits = self.config.output_limits
        return (limits.pubsub if session.is_subscribed else limits.normal).hard

    # ------------------------------------------------------------------ the log

    def _journal(self, step: Transition, soft: bool) -> None:
        self._steps.append(step)
        if not soft:
            self._is_hard = True
        if step[0] in _STALE_LATER and len(self.waits):
            self._stale.add((step[1], step[2]))

    def _flush(self, now: Now) -> None:
        """Append what was applied since the last flush as one record; then let out what was published meanwhile."""
        for place in self._stale:
            for waiter in self.waits.lines.line(place):
                self.waits.set_alarm(waiter, now)
        self._stale.clear()
        steps = self._steps
        self.weight.bytes = 0
        if steps:
            self._steps = []
            for step in steps:
                self.chores.observe(step, now)
            hard, self._is_hard = self._is_hard, False
            if self._log is not None:
                position = self._logged(now, steps)
                if hard:
                    self._hard = position
        if self._messages:
            told, self._messages = self._messages, []
            for session, push in told:
                self.outbox.append((session, Outcome(encode(push, session.resp), self._hard)))

    def _logged(self, now: Now, steps: list[Transition]) -> int:
        """Append what was applied; returns its position.

        Raises:
            StorageError: it is in memory and not in the log, whose replay would be another state from here on.
        """
        assert self._log is not None
        try:
            return self._log.append(codec.pack(now.wall, steps))
        except StorageError:
            raise
        except Exception as error:  # a record beyond its limit, no memory for it
            raise StorageError(
                f"{len(steps)} changes of one command or transaction were made in memory and cannot be logged "
                f"({error or repr(error)}); nobody was told of them, and a start leaves them out: start again, and "
                "make such changes in smaller parts"
            ) from error

    def recover(self, payloads: Iterable[bytes]) -> int:
        """Apply logged records, in order, to an empty keyspace; how many there were.

        Raises:
            StorageError: one cannot be applied, though it is as it was written.
        """
        apply = self.keyspace.apply
        records = 0
        collects = gc.isenabled()
        gc.disable()  # all that is made here stays, and the collector would walk it again and again
        try:
            for payload in payloads:
                for step in codec.unpack(payload)[1]:
                    apply(tuple(step))
                records += 1
        except MillstreamError:
            raise
        except Exception as error:
            raise StorageError(
                f"the {records + 1}. record that was read is as it was written, but cannot be applied ({error!r}): if "
                "a newer Millstream has written it, start that one; `millstream log dump` shows it"
            ) from error
        finally:
            if collects:
                gc.enable()
        self.chores.survey(self.keyspace)
        if self._log is not None:
            self._hard = self._log.appended
        return records

    # ------------------------------------------------------------------ waiting

    def concerned(self, db: int) -> list[bytes]:
        """The keys of a database that somebody watches or waits for."""
        return [key for places in (self.watches, self.waits.lines.places()) for index, key in places if index == db]

    def wake(self, db: int, key: bytes) -> None:
        """Look again at those who wait for a key, once the command is through."""
        if (db, key) in self.waits.lines:
            self._ready[db, key] = None

    def _serve_ready(self, now: Now) -> None:
        """Run again the commands that waited for what changed, in the order in which they began to wait."""
        while self._ready:
            place = next(iter(self._ready))
            del self._ready[place]
            db, key = place
            for waiter in self.waits.lines.line(place):
                # Most hear only of the type they wait for; deletion and other types are no news to them
                if not waiter.over and (
                    waiter.group_wait or isinstance(self.keyspace.databases[db].keys.get(key), waiter.kind)
                ):
                    self._retry(waiter, now)

    def _retry(self, waiter: Waiter, now: Now) -> None:
        """Run a waiting command again; it is answered, or waits on at the end of its lines."""
        session = waiter.session
        row = resolve(waiter.argv)
        ctx = self._context(session, now)
        self.waits.stop(waiter)
        refused = self.refusal(session, row, waiter.argv, now, "toplevel")  # the rules may have changed meanwhile
        if refused is not None:
            line = f"NOPERM {refused[1]}"
            self.stats.error(line)
            self._send(session, Error(line), row)
            return
        stats = self.stats.command(row.name)
        stats.calls -= 1  # the same call as before, run again
        self.stats.processed -= 1
        try:
            reply = self._run(ctx, row, waiter.argv)
        except Blocked as wait:
            self._flush(now)
            if waiter.deadline is None:
                wait.timeout = 0
            self.waits.start(session, wait, now, waiter.deadline)
            return
        self.stats.dirty += ctx.dirty
        self._flush(now)
        self._send(session, reply, row)

    def _send(self, session: Session, reply: Reply, row: Command | None = None) -> None:
        outcome = self._outcome(session, reply, row)
        if outcome is not None:
            self.outbox.append((session, outcome))
        elif session.overflow:
            self.kill(session)

    def unblock(self, session_id: int, error: bool) -> bool:
        """CLIENT UNBLOCK: end a session's wait with null or an error; False if it does not wait."""
        waiter = self.waits.by_session.get(session_id)
        if waiter is None:
            return False
        self.waits.stop(waiter)
        line = "UNBLOCKED client unblocked via CLIENT UNBLOCK"
        if error:
            self.stats.error(line)
        self._send(waiter.session, Error(line) if error else waiter.late)
        return True

    def kill(self, session: Session) -> None:
        """Have a session's connection closed; the shell sees ``killed`` when it empties the outbox."""
        session.closing = session.killed = True
        self.outbox.append((session, Outcome([], 0)))

    # ------------------------------------------------------------------ pausing

    @property
    def is_paused(self) -> bool:
        """Whether clients are paused."""
        return self._pause.ends is not None

    def pause(self, milliseconds: int, now: Now, *, writes_only: bool) -> None:
        """CLIENT PAUSE."""
        self._pause.begin(milliseconds, now, writes_only=writes_only)
        if writes_only:
            self._release_held()  # who only reads may go on

    def unpause(self, now: Now) -> None:
        """CLIENT UNPAUSE, and the end of a pause's time."""
        self._pause.ends = None
        self._release_held()
        for waiter in self.waits.by_session.values():
            self.waits.set_alarm(waiter, now)

    def _release_held(self) -> None:
        """Have the shell give again what was held back, in the order in which it came."""
        for session in self._pause.release():
            session.blocked = False
            self.outbox.append((session, Outcome([], 0)))

    # ------------------------------------------------------------------ time

    def tick(self, now: Now) -> None:
        """Whatever is due: waits that time out, claims that have become possible, expired keys, forgotten messages.

        While clients are paused nothing is claimed or expired, but waits time out.
        """
        if self._pause.is_over(now):
            self.unpause(now)
        if self.outage is None:
            for waiter in self._overdue:
                if not waiter.over:
                    self.waits.set_alarm(waiter, now)
            self._overdue.clear()
        self.waits.look(now)
        for waiter in self.waits.ringing(now):
            if waiter.over:
                continue
            if waiter.deadline is not None and waiter.deadline <= now.mono:
                self.waits.stop(waiter)
                self._send(waiter.session, waiter.late)
                continue
            waiter.alarm = None
            if self.is_paused:
                continue
            due = None if waiter.due is None else waiter.due()
            if self.outage is not None:
                self._overdue.append(waiter)
            elif due is not None and due <= now.wall:
                self._retry(waiter, now)
            else:
                self.waits.set_alarm(waiter, now)  # others took it meanwhile; it keeps its place in the line
        if self.outage is None and not self.is_paused and self.chores.is_due(now):
            ctx = self._context(self._nobody, now, may_block=False)
            self.chores.run(ctx, now)
            self._flush(now)
        if self._ready and self.outage is None:
            self._serve_ready(now)

    def next_deadline(self, now: Now) -> int | None:  # noqa: ARG002 - the time may matter to other nodes
        """Monotonic milliseconds at which :meth:`tick` is needed next; None if nothing will ever be due."""
        if self.outage is None and (self._overdue or self._ready):
            return 0
        chores = self.chores.next_due() if self.outage is None and not self.is_paused else None
        look = self.waits.next_look() if self.outage is None and not self.is_paused else None
        known = (self.waits.next_alarm(), look, chores, self._pause.ends)
        moments = [moment for moment in known if moment is not None]
        return min(moments) if moments else None

    # ------------------------------------------------------------------ what commands may ask of their host

    def _watched_expired(self, session: Session, now: Now) -> bool:
        return any(self.keyspace.databases[db].is_expired(key, now.wall) for db, key in session.watched)

    def info(self, sections: list[str]) -> str:
        """The text of INFO."""
        return render(sections, gather(self, self._wall))

    def _notify(self, kind: str, event: str, db: int, key: bytes) -> None:
        """Publish a keyspace event, if the server was told to and somebody can be listening."""
        if self.config.events and (self.channels or self.patterns):
            try:
                for channel, text in messages(self.config.events, kind, event, db, key):
                    self.publish(channel, text)
            except PatternTooCostlyError:  # the change is made; a publisher would have been refused
                log.warning(
                    "event %s of a key of %d bytes is not published: too long for the patterns", event, len(key)
                )

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to a channel's listeners, once the command's own record is in the log."""
        told = [(session, Push([b"message", channel, message])) for session in self.channels.listeners(channel)]
        for pattern in self.patterns.fitting(channel):
            push = Push([b"pmessage", pattern, channel, message])
            told += [(session, push) for session in self.patterns.listeners(pattern)]
        self._messages += told
        return len(told)

    def reset_stats(self) -> None:
        """CONFIG RESETSTAT."""
        self.stats.reset()
        self.surroundings.shell.reset()
        self.accounts.reset_counts()

    def last_save(self) -> int:
        """LASTSAVE."""
        return max(self.surroundings.log().last_save, self._saved_at)

    def save(self) -> bool:
        """SAVE: bring everything to the disk; False if nothing is kept."""
        if self._log is None:
            return False
        self._log.write()
        self._log.sync()
        self.stats.dirty = 0
        self._saved_at = self._wall // 1000
        return True

    def rewrite(self) -> bool | None:
        """BGREWRITEAOF: begin to rewrite the log; False if that is under way, None if nothing is kept."""
        return None if self.rewriter is None else self.rewriter.start()

    def rebuild(self, *, from_log: bool) -> list[bytes] | None:
        """DEBUG RELOAD and LOADAOF: see :class:`~millstream.commands.context.context.CommandHost`."""
        if not from_log:
            fresh = rebuilding.from_dumps(self.keyspace)
        elif self._log is None:
            return None
        else:
            fresh = rebuilding.from_log(self._log.replay())
        found = rebuilding.differing(self.keyspace, fresh)
        if not found:
            rebuilding.adopt(self.keyspace, fresh)
            for waiter in self.waits.by_session.values():  # what they wait for are other objects now
                self._ready.update(dict.fromkeys(waiter.places))
        return found

    def shutdown(self) -> None:
        """SHUTDOWN: ask the shell to end the process as on SIGTERM."""
        self.stopping = True

"""Plain commands: the common forms of the most frequent commands, run many at a time.

The node reads a client's bytes command by command. A *plain* command runs at once, directly on the values: no context,
no reply object, no record of its own. The first other command ends the run: one with another name, an option, an error,
a missing key, an expiring key or a key with waiting clients. That command goes the ordinary way through
:meth:`~millstream.node.node.Node.execute`, and the next run begins after it. So this code does not define any command:
it does what the handler in ``commands/`` would do in the common case, and the tests run every conformance case both
ways.

Conditions of a session as a whole (permissions, transactions, notifications, a full disk) are checked once, before the
run: see :meth:`Batches.takes`. All changes of a run are one record of the log, and its replies wait for that record
together. The runner is a part of the native core (``_core/run.c``); without it nothing is plain, and every command goes
the ordinary way.

The runner reports slow commands for SLOWLOG, since most slow commands are plain. It lists them as the bytes that were
sent, and only then are arguments made of them. A native run executes no Python code, where a signal could interrupt it
between a change and its record.
"""

from collections.abc import Callable
from typing import Any

from millstream import core
from millstream.commands.context.config import Config
from millstream.commands.context.context import Context, Origin
from millstream.commands.context.session import Session
from millstream.commands.users.accounts import Accounts
from millstream.engine.keyspace import Keyspace
from millstream.node.clients.blocking import Waiter
from millstream.node.clients.sessions import Sessions
from millstream.node.journal import Journal, not_logged
from millstream.node.memory import Memory
from millstream.node.plain import NOTHING, PlainRun
from millstream.node.plain_rights import PlainRights
from millstream.node.primary import Primary
from millstream.node.queued import append_plain
from millstream.node.stats import NodeStats
from millstream.protocol import limits
from millstream.protocol.reader import CommandReader

# Largest size of a script's collected changes, in bytes: the runner stops above 1 MiB, but one command may be large
GATHERED_MAX = 16 << 20


class Batches:
    """Runs of plain commands for the sessions of a node."""

    def __init__(
        self,
        config: Config,
        accounts: Accounts,
        keyspace: Keyspace,
        sessions: Sessions,
        journal: Journal,
        *,
        stats: NodeStats,
        primary: Primary,
        memory: Memory,
    ) -> None:
        self._config, self._accounts, self._keyspace = config, accounts, keyspace
        self._rights = PlainRights(accounts)
        self._journal, self._stats, self._primary, self._memory = journal, stats, primary, memory
        self._slowlog, self._pause, self._watched = sessions.slowlog, sessions.pause, sessions.watches.by_place
        waits = self._waits = sessions.waits
        places = waits.lines.by_place, waits.claimers.by_place
        self._runner: core.PlainRunner | None = None
        self._slow: list[tuple[bytes, int]] = []
        # Runs a plain command of a script between :meth:`begin_calls` and :meth:`end_calls`
        self.call: Callable[[bytes], object] = _not_plain
        if core.native is not None:
            self._runner = runner = core.native.PlainRunner(config, *places, journal.log is not None)
            self._slow, self.call = runner.slow, runner.call
            stats.sources.append(runner.drain)

    def make_records(self) -> None:
        """Make records of runs from here on even without a log, since replicas need them."""
        if self._runner is not None:
            self._runner.records = True

    def takes_all(self, session: Session) -> bool:
        """True if plain commands of this session may run now, with any key, also in a transaction or script."""
        return session.user in self._accounts.unrestricted and self.takes(session)

    def takes(self, session: Session) -> bool:
        """True if plain commands of this session may run now, until it runs any other command.

        These prevent it: subscriptions (RESP2 then takes few commands), CLIENT REPLY, a pause, a full disk, loading,
        too few replicas, being a replica, or a replica's connection. Events and WATCH prevent it too, except for
        commands that a transaction queues. A user with restricted rights runs only commands that are known to be
        allowed (:mod:`millstream.node.plain_rights`), and none of a transaction.
        """
        return (
            session.user is not None
            and (session.queue is None or session.user in self._accounts.unrestricted)
            and session.reply_mode == "on"
            and not (session.channels or session.patterns)
            and session.held is None
            and self._pause.ends is None
            and self._journal.outage is None
            and self._journal.loading is None
            and (not self._config.min_replicas or self._primary.good >= self._config.min_replicas)
            and (session.queue is not None or not self._config.events)
            and (session.queue is not None or not self._watched)
            and not (self._keyspace.followed is not None or session.is_replica)
        )

    def take(self, session: Session, reader: CommandReader, wall: int) -> PlainRun:
        """Run the plain commands that come next in a session's input, and remove them from it.

        The caller holds their replies until the log reaches the journal's position, then serves clients that wait for
        the key ``woken``. The command after them is in ``session.held``, if it was read. After an empty run the next
        command comes from the reader; after any other there may be a further run.
        """
        chunk = reader.chunk
        if not chunk or self._runner is None or not self.takes(session):
            return NOTHING
        run = self.run(session, chunk, reader.at, wall)
        reader.advance(run.at)
        session.held = run.words
        return run

    def run(self, session: Session, data: bytes, at: int, wall: int) -> PlainRun:
        """Run plain commands of a session for which :meth:`takes` returned True, and log them."""
        if self._runner is None or session.user is None:
            return NOTHING._replace(at=at)
        session.last_used = wall
        rights = self._rights.of(session.user)
        if rights is not None:
            return self._run_restricted(session, rights, data, at, wall)
        return self._run(session, data, at, wall)

    def _run_restricted(self, session: Session, rights: dict[bytes, int], data: bytes, at: int, wall: int) -> PlainRun:
        """Run plain commands that a user with restricted rights may run; any other one ends the run."""
        runner = self._runner
        assert runner is not None
        runner.rights = rights
        try:
            run = self._run(session, data, at, wall)
        finally:
            runner.rights = None
        if run.words is not None and session.user is not None:
            self._rights.learn(session.user, self._keyspace.databases[session.db], run.words)
        return run

    def _run(self, session: Session, data: bytes, at: int, wall: int) -> PlainRun:
        if session.queue is not None:
            if self._config.max_memory and self._memory.left(wall) < 0:
                return NOTHING._replace(at=at)
            end, commands, last = append_plain(session, session.queue, data, at)
            return NOTHING._replace(at=end, commands=commands, last=last, replies=b"+QUEUED\r\n" * commands)
        if self._config.max_memory:
            run = self._run_within(session, data, at, wall)
        else:
            run = self._counted(session, data, at, wall)
        if run.commands:
            session.commands += run.commands
            session.last_command = run.last
            if run.record is not None:
                self._journal.append_run(run.record, soft=run.soft)
        return run

    def run_inside(self, ctx: Context, data: bytes, at: int, *, is_open: bool = False) -> PlainRun:
        """Run plain commands of a transaction or of a primary, as a part of the current record."""
        session, wall = ctx.session, ctx.now.wall
        if ctx.origin is Origin.EXEC:
            run = self._counted(session, data, at, wall)
        elif self._runner is None or self._config.events or self._watched:
            return NOTHING._replace(at=at, whole=at)
        else:
            try:
                run = self._runner.obey(self._keyspace.databases[session.db], data, at, wall, is_open)
            except Exception as error:  # raised by the same call as in _counted
                raise not_logged("commands of the primary were run", error) from error
            self._count(run)
            ctx.dirty += run.changes
            if self._slow:
                self._note_slow(session, wall)
        if run.record is not None:
            self._journal.note_run(run.record, soft=run.soft)
        if run.woken is not None:
            self._waits.wake(session.db, run.woken)
        return run

    def run_again(self, waiter: Waiter, wall: int) -> PlainRun:
        """Run and log a command that waited, if it is plain now; :meth:`takes_all` must be True for its session."""
        if self._runner is None:
            return NOTHING
        run = self._counted(waiter.session, waiter.packed, 0, wall, waiter.given)
        if run.commands:  # the call is the same as before
            self._stats.processed -= 1
            self._stats.command(run.last).calls -= 1
            if run.record is not None:
                self._journal.append_run(run.record, soft=run.soft)
        return run

    def begin_calls(
        self, session: Session, wall: int, left: int, table: Callable[..., Any], faults: list[BaseException]
    ) -> bool:
        """Let the runner execute a script's plain commands until :meth:`end_calls`; return False if it cannot."""
        is_free = self._runner is not None and self.takes_all(session)
        if not is_free or self._journal.weight.bytes + GATHERED_MAX > limits.CHANGE_MAX:
            return False
        assert self._runner is not None
        self._runner.begin(self._keyspace.databases[session.db], wall, left, table, faults)
        return True

    def end_calls(self, wall: int) -> PlainRun:
        """Return the outcome of a script's plain commands; their changes are a part of the script's record."""
        assert self._runner is not None
        try:
            run = self._runner.end()
        except Exception as error:  # noqa: BLE001 - no memory for the result, which ends the record at work
            self._journal.lose(not_logged("plain commands of a script were run", error))
            return NOTHING
        self._count(run)
        if self._slow:
            self._note_slow(None, wall)
        if run.record is not None:
            self._journal.weight.takes(len(run.record))
            self._journal.note_run(run.record, soft=run.soft)
        return run

    def _run_within(self, session: Session, data: bytes, at: int, wall: int) -> PlainRun:
        """Run plain commands until memory passes its limit; then the ordinary way refuses commands that add data."""
        runner = self._runner
        assert runner is not None
        before, runner.room = runner.room, self._memory.left(wall)
        try:
            return self._counted(session, data, at, wall)
        finally:
            runner.room = before

    def _counted(self, session: Session, data: bytes, at: int, wall: int, given: list[bytes] | None = None) -> PlainRun:
        """Run plain commands, and count them; ``given`` is the client's original command if that was rewritten."""
        assert self._runner is not None
        try:
            run = self._runner.run(self._keyspace.databases[session.db], data, at, wall, session.resp)
        except Exception as error:  # the results cannot be returned without memory
            raise not_logged("plain commands were run", error) from error
        stats = self._stats  # _count, inlined: every client that waits for its reply comes through here
        stats.processed += run.commands
        stats.dirty += run.changes
        if run.hits or run.misses:
            stats.lookups.hits += run.hits
            stats.lookups.misses += run.misses
        if self._slow:
            self._note_slow(session, wall, given)
        return run

    def _note_slow(self, caller: Session | None, wall: int, given: list[bytes] | None = None) -> None:
        """Pass slow commands of ``caller`` (None: a script) to SLOWLOG; ``given`` is as for :meth:`_counted`."""
        for data, nanoseconds in self._slow:
            reader = CommandReader()
            reader.feed(data)
            words = given or reader.next()
            assert words is not None
            self._slowlog.note(caller, words, nanoseconds, wall)
        self._slow.clear()

    def _count(self, run: PlainRun) -> None:
        stats = self._stats
        stats.processed += run.commands
        stats.lookups.hits += run.hits
        stats.lookups.misses += run.misses


def _not_plain(data: bytes) -> object:  # noqa: ARG001 - the runner's signature
    """Run no command of a script, since there is no native core."""
    return None

"""The node: it runs a command and returns its reply, and updates the log, waiting clients and watches.

Nothing here is asynchronous, and no clock is read. A shell (the network server, or an in-process client) calls
:meth:`Node.execute` with the time and sends the reply once the log has reached its *barrier*. Then it sends the output
in :attr:`Node.outbox` to other sessions.

Order inside one command: admit it; run its handler, which applies transitions; append them as one record; run the
commands of sessions that waited for the changes again. A transaction does the same with all its commands, so its record
is whole in the log or absent.

To understand the node, read ``journal`` (records and barriers), ``admission`` (permission to run), ``clients``
(sessions, waits, replies), then this file, which uses them. ``host`` and ``facts`` give commands access to the server
itself.
"""

import time
from collections.abc import Callable, Iterable

from millstream.clock import Now
from millstream.commands.connection.transactions import end_transaction
from millstream.commands.context.config import Config
from millstream.commands.context.context import Blocked, Context, Glance, Origin
from millstream.commands.context.session import Queue, Session
from millstream.commands.table.spec import Command
from millstream.commands.table.table import find, resolve
from millstream.commands.users.accounts import Accounts
from millstream.engine.cold import ColdMiss
from millstream.engine.keyspace import Keyspace, Transition
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.node.admission import Admission
from millstream.node.batch import Batches
from millstream.node.clients.blocking import Waiter
from millstream.node.clients.muting import Muting
from millstream.node.clients.replies import Replies
from millstream.node.clients.sessions import Sessions
from millstream.node.commands import load_all
from millstream.node.durability.outage import shows_times
from millstream.node.facts import NodeFacts
from millstream.node.following.failover import Failover
from millstream.node.following.role import Following
from millstream.node.following.shutdown import Shutdown
from millstream.node.host import NodeHost
from millstream.node.journal import Journal
from millstream.node.log import rebuilding
from millstream.node.log.replay import read_back
from millstream.node.maintenance.cron import Cron
from millstream.node.maintenance.retention import Retention
from millstream.node.memory import OOM, Memory
from millstream.node.outcome import Outcome
from millstream.node.primary import Primary
from millstream.node.queued import Answers, PlainPiece, reading
from millstream.node.scripting.scripts import Scripts
from millstream.node.stats import NodeStats
from millstream.node.tiering.reading import ColdRunner
from millstream.node.tiering.spilling import Spiller
from millstream.persistence.log import Log
from millstream.protocol.encoder import encode, weight
from millstream.replies import NIL_ARRAY, QUEUED, Error, Raw, Reply

load_all()

log = logger("millstream.node")

# Commands that control a transaction, so an open one does not queue them
_UNQUEUED = frozenset({"exec", "discard", "multi", "watch", "quit", "reset"})
# Commands with one of these flags change nothing but data
_OF_DATA = frozenset({"write", "readonly"})


class Node:
    """One server's whole state, without its sockets, and the commands run on it."""

    def __init__(self, config: Config, log: Log | None = None) -> None:
        self.config = config  # Configuration
        self.accounts = Accounts()  # Users
        if config.require_pass:
            self.accounts.set_default_password(config.require_pass)
        self.keyspace = Keyspace()  # Data
        self.stats = NodeStats()  # Counters for INFO
        self.journal = Journal(log)  # Record of the present command, and the position that replies wait for
        self.replies = Replies(config, self.journal)  # Encodes replies
        # Clients with their waits, watches and subscriptions
        self.sessions = Sessions(config, self.accounts, self.replies, self.stats)
        self._stalled = self.sessions.stalls.until
        self.waits, self.outbox, self._pause = self.sessions.waits, self.sessions.outbox, self.sessions.pause
        self.primary = Primary(config, self.keyspace, self.journal, self.sessions)  # Replicas
        self._cron = Cron(Retention(config, self.stats))
        # Link to the primary, if this is a replica
        self.following = Following(config, self.keyspace, self.journal, self.sessions, self.primary)
        self.following.scan = self._scan
        self.primary.may_serve = lambda: self.following.is_up or not self.following.is_replica
        # Planned change of the primary
        self.failover = Failover(self.sessions, self.journal, self.primary, self.following)
        self.ending = Shutdown(config, self.sessions, self.primary)  # State of SHUTDOWN
        self.memory = Memory(config, self.keyspace, self.sessions, self.primary)  # Counted memory, and its limit
        # Checks before a command runs
        self.admission = Admission(self.accounts, config, self.journal, self.primary, self.following, self.memory)
        # Runs of plain commands
        self.batches = Batches(
            config,
            self.accounts,
            self.keyspace,
            self.sessions,
            self.journal,
            stats=self.stats,
            primary=self.primary,
            memory=self.memory,
        )
        self.primary.on_feed = self.batches.make_records
        # Lua scripts
        self.scripts = Scripts(
            config, self.admission, self.batches, self.context, self.run, self.refuse, memory=self.memory
        )
        self.memory.of_scripts, self.admission.script_adds = self.scripts.memory, self.scripts.may_add
        self._pause.only_reads = self.scripts.only_reads
        # Facts for INFO
        self.facts = NodeFacts(
            self.stats,
            self.sessions,
            self.accounts,
            self.keyspace,
            self.journal,
            self.scripts,
            self.primary,
            self.following,
            self.ending,
            self.memory,
        )
        # Facts about the shell, the machine and the log, which the shell fills in
        self.surroundings = self.facts.surroundings
        # The server, as commands see it
        self.host = NodeHost(config, self.facts, self.journal, self.admission, self.failover)
        # Runs of commands that may read cold entries
        self.cold = ColdRunner(config, self.keyspace, self.sessions, self.stats.lookups, self.replies.limit)
        self.cold.serve_woken = self._serve_woken
        self.memory.copies.append(lambda: self.cold.pinned)
        self.spills: Spiller | None = None  # Moves entries to files while a tier is on
        self._nobody = Session(0)  # session for the node's own work
        self._is_log_long = False  # Retention has removed entries while space was short, and the log was not rewritten

    # ------------------------------------------------------------------ commands

    def execute(self, session: Session, argv: list[bytes], now: Now) -> Outcome | None:
        """Run one command.

        Returns:
            The reply, or None: the session now waits (``session.blocked``), or has replies switched off. If it waits
            because of CLIENT PAUSE, the command is in ``session.held``, to be run again when the wait is over.
        """
        session.last_used = now.wall
        try:
            row = self.admission.admit(session, argv, now)
        except CommandError as error:
            if error.line == OOM and self.sessions.stalls.holds(session, argv, now):
                return None
            return self._refuse(session, argv, error, now)
        if self._stalled:
            self._stalled.pop(session, None)
        session.last_command = row.name
        session.commands += 1
        if self._pause.ends is not None and self._pause.holds(session, row, argv):
            session.held, session.blocked = argv, True
            session.commands -= 1  # it is counted again when it runs
            self._pause.held[session] = None
            return None
        if session.queue is not None and row.name not in _UNQUEUED:
            if not session.is_doomed:
                session.queue.append(argv)
            return self.replies.outcome(session, QUEUED, row)
        if row.name == "exec" and session.queue is not None:
            if self.keyspace.reads.source is not None and self.cold.parks(session, reading(session.queue), now):
                self._park(session, argv)
                return None
            reply: Reply = self._exec(session, session.queue, now)
            if self.keyspace.reads.source is not None:
                self.cold.end(session)
            self.stats.command("exec").calls += 1
            self.stats.processed += 1
        else:
            ctx = self.context(session, now)
            try:
                reply = self._call(ctx, row, argv)
            except Blocked as wait:
                self.stats.dirty += ctx.dirty
                self._flush(now)
                self.waits.start(session, wait, argv, now)
                return None
            except ColdMiss:
                self._park(session, argv)
                return None
            self.stats.dirty += ctx.dirty
        self._flush(now)
        outcome = self.replies.outcome(session, reply, row)
        if self.waits.ready and self.journal.outage is None:
            self._serve_ready(now)
        return outcome

    def _park(self, session: Session, argv: list[bytes]) -> None:
        """Hold a command until the cold entries that it needs are there; it has changed nothing."""
        session.held, session.blocked = argv, True
        session.commands -= 1  # it is counted again when it runs

    def serve(self, db: int, key: bytes, now: Now) -> None:
        """Run the commands that waited for a key again, since a plain command has changed it."""
        self.waits.wake(db, key)
        self._serve_ready(now)

    def _refuse(self, session: Session, argv: list[bytes], error: CommandError, now: Now) -> Outcome | None:
        """Reply to a command that is unknown, malformed or not allowed, and mark an open transaction as failed.

        A refused EXEC ends the transaction, as in Redis: otherwise a client could not know if it is still open.
        """
        session.commands += 1
        if session.id in self.sessions.parking.by_session:
            self.sessions.parking.drop(session)
        if session.queue is not None:
            session.queue_failed = True
        row, line = find(argv), error.line
        session.last_command = "" if row is None else row.name
        if row is not None:
            self.stats.command(row.name).rejected += 1
        if row is not None and row.name == "exec":
            end_transaction(self.context(session, now))
            line = f"EXECABORT Transaction discarded because of: {line.removeprefix('ERR ')}"
        self.stats.error(line)
        return self.replies.outcome(session, Error(line), row)

    def context(self, session: Session, now: Now, origin: Origin = Origin.CLIENT) -> Context:
        """Return the context of a command, or of several that :meth:`run` runs as one unit."""
        return Context(self.host, session, now, self.journal.note, self.sessions.notify, origin)

    def run(self, ctx: Context, row: Command, argv: list[bytes], given: list[bytes] | None = None) -> Reply:
        """Run one command as a part of a larger unit: a transaction, a script, a wait, or the primary's stream."""
        line = self.admission.refusal_inside(ctx, row, argv)
        if line is not None:
            if ctx.origin is Origin.WAITER:  # the call was counted when it began to wait
                self.stats.command(row.name).calls -= 1
                self.stats.processed -= 1
            return self.refuse(row, line)
        ctx.db = self.keyspace.databases[ctx.session.db]  # a preceding SELECT may have changed it
        reply = self._call(ctx, row, argv, given)
        if ctx.origin is Origin.SCRIPT and shows_times(row):
            self.journal.wait_for_soft()
        return reply

    def refuse(self, row: Command | None, line: str) -> Error:
        """Count an error of the current unit: of a command that may not run, or, without a row, of its own."""
        if row is not None:
            self.stats.command(row.name).rejected += 1
        self.stats.error(line)
        return Error(line)

    def close(self, ctx: Context) -> None:
        """End the current unit: make its record, and serve clients that waited for its changes."""
        self.stats.dirty += ctx.dirty
        self._flush(ctx.now)
        self._serve_woken(ctx.now)

    def commit_alone(self, steps: list[Transition], now: Now) -> None:
        """Commit transitions that no client sees as a record of their own, for which no reply waits."""
        for step in steps:
            self.keyspace.apply(step)
            self.journal.note(step, soft=True)
        self._flush(now)
        self._release_stalled(now)

    def _release_stalled(self, now: Now) -> None:
        """Let commands that wait for room in memory try again, if there is room or their time is over."""
        if self.sessions.stalls.held:
            limit = self.config.max_memory
            self.sessions.release_stalled(now, has_room=not limit or self.memory.left(now.wall) >= 0)

    def _call(self, ctx: Context, row: Command, argv: list[bytes], given: list[bytes] | None = None) -> Reply:
        """Call the handler; count, and turn its exceptions into a reply."""
        waits = failed = is_parked = False
        ctx.row = row
        started = time.perf_counter_ns()
        assert row.handler is not None
        try:
            if self.keyspace.reads.source is None:
                return row.handler(ctx, argv)
            return self.cold.run(ctx, row.handler, argv)
        except ColdMiss:
            waits = is_parked = True
            raise
        except CommandError as error:
            failed = True
            self.stats.error(error.line)
            return Error(error.line)
        except Blocked as wait:
            wait.took = time.perf_counter_ns() - started
            waits = True  # it has not finished; only the run that ends the wait is timed
            raise
        except Exception:
            # An internal error must not end the server for all clients; changes that were applied are still logged
            log.exception("internal error in %s", row.name)
            failed = True
            self.surroundings.shell.internal_errors += 1
            line = f"ERR internal error in '{row.name}'; the server's log has the details"
            self.stats.error(line)
            return Error(line)
        finally:
            took = time.perf_counter_ns() - started
            stats = self.stats.command(row.name)  # after the run, so that CONFIG RESETSTAT counts itself
            stats.nanoseconds += took
            # A waiter's call was counted when it began to wait; a parked one is counted when it has run
            if ctx.origin is not Origin.WAITER and not is_parked:
                stats.calls += 1
                self.stats.processed += 1
            stats.failed += failed or ctx.failed  # includes a script whose reply contains errors
            ctx.failed = False
            if not waits and took >= self.config.slow_from:  # the threshold as CONFIG SET itself may have changed it
                self.sessions.slowlog.note(
                    None if ctx.origin is Origin.SCRIPT else ctx.session, given or argv, took, ctx.now.wall
                )

    # ------------------------------------------------------------------ transactions

    def _exec(self, session: Session, queue: Queue, now: Now) -> Reply:
        """Run a transaction: one time, one record, and no waiting client served in between."""
        ctx = self.context(session, now, Origin.EXEC)
        failed, broken = session.queue_failed, session.watch_broken or self._watched_expired(session, now)
        end_transaction(ctx)
        if failed:
            self.stats.command("exec").failed += 1
            line = "EXECABORT Transaction discarded because of previous errors."
            self.stats.error(line)
            return Error(line)
        if broken:
            return NIL_ARRAY
        if queue.has_together and self._runs_together(session, queue):
            return self._exec_together(ctx, queue)
        replies: list[Reply] = []
        shows_soft, settled, resp = False, 0, session.resp
        ceiling, size = self.replies.ceiling(session), 0
        muting = Muting(session)
        for argv in queue:
            row = resolve(argv)
            shows_soft = shows_soft or shows_times(row)
            reply = self.run(ctx, row, argv)
            muting.note(row, reply)
            if session.resp != resp:  # HELLO changed the protocol: earlier replies keep the old one
                replies[settled:] = [Raw(encode(each, resp)) for each in replies[settled:]]
                settled, resp = len(replies), session.resp
            if ceiling:
                size += weight(reply)
                if size > ceiling:  # run the remaining commands, but drop their replies
                    replies, settled = [], 0
                    continue
            replies.append(reply)
        if ceiling and size > ceiling:
            session.overflow = size
        if shows_soft:
            self.journal.wait_for_soft()
        self.stats.dirty += ctx.dirty
        return muting.heard(replies)

    def _runs_together(self, session: Session, queue: Queue) -> bool:
        """True if nothing prevents plain commands from running in groups between the other ones."""
        if not self.batches.takes_all(session):
            return False
        rows = [resolve(item) for item in queue.items if isinstance(item, list)]
        return all(row.flags & _OF_DATA and not shows_times(row) for row in rows)

    def _exec_together(self, ctx: Context, queue: Queue) -> Reply:
        """Run a transaction with its plain commands in groups."""
        session, answers = ctx.session, Answers(len(queue), self.replies.ceiling(ctx.session))
        for item in queue.items:
            if isinstance(item, PlainPiece) and self.journal.weight.takes(item.weight):
                self._exec_piece(ctx, item, answers)
                continue
            for argv in [item] if isinstance(item, list) else item:
                answers.add(encode(self.run(ctx, resolve(argv), argv), session.resp))
        session.overflow = max(session.overflow, answers.overflow)
        self.stats.dirty += ctx.dirty
        return Raw(answers.buffers)

    def _exec_piece(self, ctx: Context, piece: PlainPiece, answers: Answers) -> None:
        """Run plain commands that were queued together; their size was counted before."""
        at, session = 0, ctx.session
        while at < len(piece.data):
            run = self.batches.run_inside(ctx, piece.data, at)
            answers.add([run.replies])
            at = run.at
            others = [] if run.words is None else [run.words]
            if not (others or run.commands or run.woken is not None):  # memory ran out while parsing
                others, at = list(piece.after(at)), len(piece.data)
            for argv in others:
                answers.add(encode(self._call(ctx, resolve(argv), argv), session.resp))

    def _watched_expired(self, session: Session, now: Now) -> bool:
        return any(self.keyspace.databases[db].is_expired(key, now.wall) for db, key in session.watched)

    # ------------------------------------------------------------------ the log

    def _flush(self, now: Now) -> None:
        """Append the transitions since the last flush as one record; then send the messages published meanwhile."""
        for step in self.journal.flush(now.wall):
            self._cron.observe(step, now)
            if self.spills is not None:
                self.spills.observe(step)
            if self.waits.by_session:
                self.waits.observe(step, now)
        if self.sessions.messages:
            self.sessions.send_messages(self.journal.position)

    def recover(self, payloads: Iterable[bytes], *, tells_replicas: bool = False) -> int:
        """Apply logged records, in order, to an empty keyspace; return their number.

        A record that fails, even partly, ends the start: it was acknowledged, so it is neither left out nor applied in
        part. The log does not change, and the keyspace is thrown away.
        """
        records, wall = read_back(self.keyspace, payloads)
        self._begin()
        if not tells_replicas:
            self.primary.recovered(wall)
        return records

    def prepared(
        self, payloads: Iterable[bytes], check: Callable[[Keyspace], None] = lambda _: None
    ) -> Callable[[Log], None]:
        """Read a log, in any thread, while clients get the loading error (``journal.loading``).

        ``check`` may refuse the data. The returned function makes them this node's, and the log the target of new
        records; its caller will call :meth:`Primary.resume`.
        """
        space = Keyspace()
        _, wall = read_back(space, payloads)
        check(space)
        return lambda log: self._adopt(space, log, wall)

    def _adopt(self, space: Keyspace, log: Log, wall: int) -> None:
        self._cron.recovered(wall)
        rebuilding.adopt(self.keyspace, space)
        self.keyspace.history, self.keyspace.primary = space.history, space.primary
        self.keyspace.hands_over = space.hands_over
        self.journal.log, self.journal.loading = log, None
        self.batches.make_records()
        self._begin()

    def _scan(self) -> None:
        """Search data that came from elsewhere for periodic work."""
        self._cron.scan(self.keyspace)
        if self.spills is not None:
            self.spills.scan()

    def _begin(self) -> None:
        self._scan()
        self.journal.recovered()

    # ------------------------------------------------------------------ waiting

    def _serve_woken(self, now: Now) -> None:
        if self.waits.ready and self.journal.outage is None:
            self._serve_ready(now)

    def _serve_ready(self, now: Now) -> None:
        """Run the commands that waited for the changed keys again, in the order in which they began to wait."""
        while self.waits.ready:
            place = next(iter(self.waits.ready))
            del self.waits.ready[place]
            db, key = place
            for waiter in self.waits.lines.line(place):
                if waiter.session.parked:
                    continue  # it is run again once its cold entries are there
                is_held = self._pause.ends is not None and self._pause.holds(
                    waiter.session, resolve(waiter.argv), waiter.argv
                )
                glance = None if waiter.over or is_held else waiter.glance
                if glance is not None and self._served_quickly(waiter, glance, now):
                    continue
                # Most clients wait only for their type; they ignore deletions and other types
                if not waiter.over and (
                    waiter.group_wait or isinstance(self.keyspace.databases[db].keys.get(key), waiter.kind)
                ):
                    if is_held:
                        self._hold(waiter.session, waiter)
                    else:
                        self._retry(waiter, now)
        self._flush(now)

    def _hold(self, session: Session, waiter: Waiter) -> None:
        """Hold a waiting command until the pause is over, since its wake-up came with the start of the pause."""
        self.waits.stop(waiter)
        session.held, session.blocked = waiter.argv, True  # not as sent: "$" would mean another entry by then
        self._pause.held[session] = None

    def _served_quickly(self, waiter: Waiter, glance: Glance, now: Now) -> bool:
        """Serve a waiting command of the usual form as :meth:`_retry` would; return False for any other form."""
        session = waiter.session
        if not self.batches.takes_all(session):
            return False
        steps = glance(self.keyspace.databases[session.db], now.wall)
        if steps is None:
            self._flush(now)  # changes by earlier commands must precede it in the log
            run = self.batches.run_again(waiter, now.wall)
            if run.commands:
                self.waits.stop(waiter)
                self.outbox.append((session, Outcome([run.replies], self.journal.position)))
            return run.commands > 0
        for step in steps:
            self.keyspace.apply(step)
            self.journal.note(step, soft=True)
        self.stats.lookups.hits += 1
        self.waits.wait_on(waiter)
        return True

    def _retry(self, waiter: Waiter, now: Now) -> None:
        """Run a waiting command again; send its reply, or let it wait at the end of its lines."""
        session = waiter.session
        row = resolve(waiter.argv)
        ctx = self.context(session, now, Origin.WAITER)
        self.waits.stop(waiter)
        try:
            reply = self.run(ctx, row, waiter.argv, waiter.given)
        except Blocked as wait:
            self._flush(now)
            if waiter.deadline is None:
                wait.timeout = 0
            self.waits.start(session, wait, waiter.given, now, waiter.deadline)
            return
        except ColdMiss:
            self._flush(now)
            self.cold.wait_on(self.waits.go_on(waiter))
            return
        self.stats.dirty += ctx.dirty
        self._flush(now)
        self.sessions.send(session, reply, row)

    # ------------------------------------------------------------------ time

    def tick(self, now: Now) -> None:
        """Do all due work: end waits that time out, serve possible claims, expire keys and messages, trim.

        While clients are paused nothing is claimed or expired, but waits time out.
        """
        if self._pause.is_over(now):
            self.sessions.unpause(now)
        if self.journal.outage is None:
            self.waits.revive_overdue(now)
        self._release_stalled(now)
        self.waits.look(now)
        for waiter in self.waits.ringing(now):
            if waiter.over:
                continue
            if waiter.deadline is not None and waiter.deadline <= now.mono:
                self.sessions.end_wait(waiter, waiter.late(), now.wall)
                continue
            if waiter.session.parked:
                continue  # it is run again anyway
            waiter.alarm = None
            if self._pause.ends is not None:
                continue
            due = None if waiter.due is None else waiter.due()
            if self.journal.outage is not None:
                self.waits.overdue.append(waiter)
            elif due is not None and due <= now.wall:
                self._retry(waiter, now)
            else:
                self.waits.set_alarm(waiter, now)  # another client was faster; this one keeps its place in the line
        if self.may_look_after and self._cron.is_due(now):
            ctx = self.context(self._nobody, now, Origin.SERVER)
            self._cron.run(ctx, now)
            self._flush(now)
        elif self._may_make_room and self._cron.is_trimming(now):
            self._make_room(now)
        if self.keyspace.reads.source is not None:
            self.cold.forget_behind(now.mono / 1000)
        self._serve_woken(now)

    @property
    def may_look_after(self) -> bool:
        """True if the server may change data by itself now."""
        return self.journal.outage is None and self._pause.ends is None and not self.following.is_taking

    def _make_room(self, now: Now) -> None:
        """Run a round of retention, and rewrite the log once it has removed all that it should."""
        ctx = self.context(self._nobody, now, Origin.SERVER)
        self._cron.trim(ctx, now)
        has_removed = ctx.dirty > 0
        self._flush(now)
        self._is_log_long |= has_removed
        rewriter = self.host.rewriter
        # Only in a later round: a rewriting must begin behind the records of the removal, or it writes all entries
        if has_removed or rewriter is None or not self.config.rewrite_percentage:
            return
        # One that failed is tried again, since no command of a client makes another one begin now
        if self._is_log_long or not rewriter.facts.is_ok:
            self._is_log_long &= not rewriter.reclaim(at_once=True)

    @property
    def _may_make_room(self) -> bool:
        """True if retention may remove entries while clients' writes are refused, since its records are small."""
        outage = self.journal.disk_outage
        is_early = outage is not None and outage.is_early and self.journal.shortage is None
        return is_early and self._pause.ends is None and not self.following.is_taking

    def next_deadline(self, now: Now) -> int | None:  # noqa: ARG002 - same signature as for other nodes
        """Monotonic milliseconds of the next needed :meth:`tick`; None if nothing will be due."""
        if self.journal.outage is None and (self.waits.overdue or self.waits.ready):
            return 0
        cron = self._cron.next_due() if self.may_look_after else None
        if self._may_make_room:
            cron = self._cron.next_trim()
        look = self.waits.next_look() if self.journal.outage is None and self._pause.ends is None else None
        known = (self.waits.next_alarm(), look, cron, self._pause.ends, self.sessions.stalls.next_due())
        moments = [moment for moment in known if moment is not None]
        return min(moments) if moments else None

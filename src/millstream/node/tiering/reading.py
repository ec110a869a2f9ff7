"""Commands that read cold entries: they run again after a miss, and report damage.

A handler that misses has changed nothing: once it has committed or published something, its reads may wait for the
disk. So it is run again from its words after the missing ranges were read. Without an event loop, and for small ranges
of a quick disk, the node reads them at once. Else the client is parked and threads read them (``tickets``). After
several misses the rest is read at once in any case.

A transaction asks before it begins, and is parked as a whole. Scripts and the commands of a primary cannot begin again,
so all their reads may wait.
"""

import errno
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import cast

from millstream.clock import Now
from millstream.commands.context.config import Config
from millstream.commands.context.context import Context, Origin, TooLarge
from millstream.commands.context.host import Lookups
from millstream.commands.context.session import Session
from millstream.engine.cold import ColdDamage, ColdMiss, Extent, Range, index_of
from millstream.engine.ids import text
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.node.clients.blocking import Waiter
from millstream.node.clients.sessions import Sessions
from millstream.node.tiering.fetching import LACKS
from millstream.node.tiering.pace import SMALL, Pace
from millstream.node.tiering.packreader import Packs, PackSource
from millstream.node.tiering.readahead import ReadAhead
from millstream.node.tiering.tickets import ColdShell, Tickets
from millstream.persistence.disk import DiskFile
from millstream.persistence.log import Log
from millstream.printable import printable
from millstream.protocol.limits import OUTPUT_HARD_MAX
from millstream.replies import Reply

log = logger("millstream.node")

# Runs of a command that may miss; a further one waits for what it reads
RUNS = 3
# Times that the loop reads for one run
_LOOKS = 8
# Marks that one run may meet, each of which lets it begin again; a further one takes away all that are near
_MARKS = 4
# Commands that read entries in order, perhaps all of a stream
_RANGES = frozenset({"xrange", "xrevrange", "xread", "xreadgroup", "xinfo|stream", "dump"})
_TOO_LARGE = "ERR the entries are too large for a script: give COUNT, or fewer ids"
# Bytes of a key in an error
_SHOWN = 100

Handler = Callable[[Context, list[bytes]], Reply]


@dataclass(slots=True)
class _Attempts:
    """The attempts to run one command, or to ask for all that a transaction reads."""

    tries: int  # Runs that missed; RUNS bounds them
    looks: int = 0  # Times that the node has read for this run; _LOOKS bounds them
    marks: int = 0  # Times that this run met nothing but marks; _MARKS bounds them


class ColdRunner:
    """Runs handlers that may read cold entries, and owns the packs of a node."""

    def __init__(
        self, config: Config, keyspace: Keyspace, sessions: Sessions, lookups: Lookups, limit: Callable[[Session], int]
    ) -> None:
        self._config, self._keyspace, self._sessions, self._lookups = config, keyspace, sessions, lookups
        self._limit = limit  # bytes of a reply to a session at most; 0 for no limit
        self.packs = Packs(config.tier_cache)  # Open packs
        self.serve_woken: Callable[[Now], None]  # Serves clients whose keys are ready; the node provides it
        self.tickets: Tickets | None = None  # Serves parked clients; None if nobody is parked
        self.pace = Pace()  # Speed of the disk
        self._ahead: ReadAhead | None = None
        self._shell: ColdShell | None = None
        self._pins: list[Range] = []  # what the node itself has read for the present command
        self._reported: set[tuple[int, int]] = set()  # Damaged extents that were reported: pack and offset
        self._named: set[tuple[int, int, int]] = set()  # The same, and the first entry that a log line has named
        self._others_change = config.on_change
        config.on_change = self._change

    # ------------------------------------------------------------------ packs

    def attach(self, shell: ColdShell) -> None:
        """Park clients from here on, since the shell has an event loop."""
        self._shell = shell
        self.serve_packs()

    def open(self, opened: Log) -> None:
        """Open the packs that a log's manifest names.

        Raises:
            DiskError: a pack cannot be opened.
        """
        for number, name, file in opened.open_packs():
            self.add_pack(number, name, file)

    def add_pack(self, number: int, name: str, file: DiskFile) -> None:
        """Read a pack from here on; its file is taken over."""
        self.packs.add(number, name, file)
        self._keyspace.reads.source = self.packs.reader
        self.serve_packs()

    def drop_packs(self, numbers: set[int]) -> None:
        """Read packs no longer, since nothing refers to them."""
        for number in numbers:
            if self._ahead is not None:
                self._ahead.drop(number)
            if self.tickets is not None:
                self.tickets.drop(number)
            self.packs.drop(number)

    def replace_packs(self, opened: list[tuple[int, str, DiskFile]]) -> None:
        """Read these packs, whose files are taken over, and no others, since other data refer to them."""
        old = self.packs.names
        kept = old.items() & {number: name for number, name, _ in opened}.items()
        self.drop_packs({number for number, _ in old.items() - kept})
        self._reported = {each for each in self._reported if each[0] in self.packs.names}
        self._named = {each for each in self._named if each[0] in self.packs.names}
        while opened:
            number, name, file = opened.pop()
            if (number, name) in kept:
                file.close()
            else:
                self.add_pack(number, name, file)

    def _change(self) -> None:
        """Apply what CONFIG SET has changed."""
        self._others_change()
        self.packs.limit(self._config.tier_cache)

    def serve_packs(self) -> None:
        """Serve parked clients, once there are packs and a loop."""
        source, config = self.source, self._config
        if self._shell is None or source is None or self.tickets is not None:
            return
        self.tickets = Tickets(
            source,
            self._sessions,
            self._shell,
            self.serve_woken,
            threads=lambda: config.tier_threads,
            rate=lambda: config.tier_read_rate,
            measured=self.pace.note,
        )
        self._ahead = ReadAhead(self.tickets, source, lambda: config.tier_readahead, lambda: self.packs.newest)

    @property
    def source(self) -> PackSource | None:
        """The reader of packs; None without packs."""
        return cast("PackSource | None", self._keyspace.reads.source)

    @property
    def pinned(self) -> int:
        """Bytes of packs that are kept for parked clients."""
        return 0 if self.tickets is None else self.tickets.pinned

    def damages(self) -> set[tuple[int, int]]:
        """Return pack and offset of each extent that could not be read."""
        return set(self._reported)

    def close(self) -> None:
        """End the threads and close the packs; no command may run any more."""
        tickets, self.tickets, self._ahead = self.tickets, None, None
        if tickets is not None:
            tickets.threads.close()
        if self.packs.reader is not None:
            self._keyspace.reads.source = None
        self.packs.close()

    # ------------------------------------------------------------------ running

    def run(self, ctx: Context, handler: Handler, argv: list[bytes]) -> Reply:
        """Run a handler, in a node that has packs; raise a miss if its client was parked."""
        try:
            reply = self._run(ctx, handler, argv)
        except ColdDamage as damage:
            raise CommandError(self._report(ctx, argv, damage)) from damage
        if ctx.damage is not None:
            self._report(ctx, argv, ctx.damage)
            ctx.damage = None
        return reply

    def _run(self, ctx: Context, handler: Handler, argv: list[bytes]) -> Reply:
        is_script = ctx.origin is Origin.SCRIPT
        if not ctx.obeys:  # a primary gets no reply
            ctx.most = OUTPUT_HARD_MAX if is_script else self._limit(ctx.session)
        try:
            self._expect_small(ctx, argv)
            return self._run_again(ctx, handler, argv)
        except TooLarge as error:
            if is_script:  # it would take an empty reply for the truth
                raise CommandError(_TOO_LARGE) from None
            if ctx.may_block:
                self.end(ctx.session)
            ctx.session.overflow = error.size
            return []

    def _run_again(self, ctx: Context, handler: Handler, argv: list[bytes]) -> Reply:
        """Run a handler, again after each miss."""
        reads = self._keyspace.reads
        if not ctx.may_block:  # it cannot run again, as the module's text says
            reads.may_wait = True
            return handler(ctx, argv)
        attempts, is_parked = _Attempts(self._tries(ctx.session, waits=ctx.origin is Origin.WAITER)), False
        try:
            while attempts.looks < _LOOKS:
                hits, misses = self._lookups.hits, self._lookups.misses
                reads.may_wait = attempts.tries >= RUNS
                try:
                    return handler(ctx, argv)
                except ColdMiss as miss:
                    self._lookups.hits, self._lookups.misses = hits, misses
                    is_parked = not self._may_go_on(ctx.session, [miss], ctx.now, attempts)
                    if is_parked:
                        raise
                finally:
                    reads.may_wait = True
            return handler(ctx, argv)
        finally:
            if not is_parked:
                self.end(ctx.session)

    def parks(self, session: Session, commands: Iterable[list[bytes]], now: Now) -> bool:
        """Park a transaction whose commands name cold entries that are not there; return False if it may run."""
        from millstream.commands.streams.asking import ask  # noqa: PLC0415 - families are loaded in their own order

        attempts = _Attempts(self._tries(session, waits=False))
        if self.tickets is None or session.is_doomed or attempts.tries >= RUNS:
            return False
        reads, wanted = self._keyspace.reads, list(commands)
        while attempts.looks < _LOOKS:
            reads.may_wait = False
            try:
                misses = ask(self._keyspace, session.db, wanted, now.wall, self._limit(session))
            finally:
                reads.may_wait = True
            if not misses:
                return False
            if not self._may_go_on(session, misses, now, attempts):
                return True
        return False

    def _may_go_on(self, session: Session, misses: list[ColdMiss], now: Now, attempts: _Attempts) -> bool:
        """Read what was missed, so that another attempt may begin; return False if the client was parked instead."""
        for miss in misses[:-1]:
            miss.ahead = ()  # commands that skip entries do not read in order, so only the last one is followed
        missed = [miss.ranges for miss in misses if not self._is_there(session, miss, now, attempts.marks)]
        if not missed:
            attempts.marks += 1
            return True
        attempts.looks += 1
        ranges = list(dict.fromkeys(chain.from_iterable(missed)))
        if not self._may_read(ranges):
            self._park(session, ranges, attempts.tries + 1)
            return False
        self._read(ranges)
        attempts.tries += self.tickets is None
        return True

    def _is_there(self, session: Session, miss: ColdMiss, now: Now, marks: int) -> bool:
        """Take in a miss after so many marks; return True if only a mark made it, and the bytes are there."""
        if self._ahead is None:
            return False
        if marks >= _MARKS:
            return self._ahead.clear(miss)
        return self._ahead.note(session, miss, now.mono / 1000)

    def forget_behind(self, seconds: float) -> None:
        """Drop from the page cache what readers in order have left some time ago; the clock is at ``seconds``."""
        if self._ahead is not None:
            self._ahead.forget(seconds)

    def _expect_small(self, ctx: Context, argv: list[bytes]) -> None:
        """Raise if a range is larger than a reply may be, before anything is read or changed."""
        if ctx.most and ctx.row is not None and ctx.row.name in _RANGES:
            from millstream.commands.streams.asking import size_of  # noqa: PLC0415 - as in parks()

            ctx.expect_small(size_of(ctx.db, argv, ctx.now.wall, ctx.most))

    def wait_on(self, waiter: Waiter) -> None:
        """Note that a client that was just parked waits for keys."""
        self._sessions.parking.by_session[waiter.session.id].waiter = waiter

    def _tries(self, session: Session, *, waits: bool) -> int:
        """Return the number of runs of the present command that missed."""
        ticket = self._sessions.parking.by_session.get(session.id)
        if ticket is None:
            return 0
        if ticket.waiter is not None and not waits:  # of an earlier command, whose wait has ended
            self._sessions.parking.drop(session)
            return 0
        return ticket.tries

    def _park(self, session: Session, ranges: list[Range], tries: int) -> None:
        assert self.tickets is not None, "without a loop the node reads by itself"
        self.tickets.park(session, ranges, tries, self._pins)
        self._pins.clear()

    def end(self, session: Session) -> None:
        """Let go what was read for a command or a transaction."""
        self._unpin()
        self._sessions.parking.drop(session)

    # ------------------------------------------------------------------ reading in the caller's thread

    def _may_read(self, ranges: list[Range]) -> bool:
        """True if the node reads these ranges itself, and nobody else has to wait for long."""
        if self.tickets is None:
            return True
        return sum(length for _, _, length in ranges) <= SMALL and self.pace.is_quick

    def _read(self, ranges: list[Range]) -> None:
        """Read ranges, and keep them for the run that follows."""
        source = self.source
        assert source is not None, "something was missed"
        began = time.perf_counter()
        for pack, offset, length in ranges:
            try:
                data = source.fetch(pack, offset, length)
                source.pin(pack, offset, len(data), data)
                self._pins.append((pack, offset, len(data)))
            except MemoryError:
                continue  # the command misses again, and waits for the disk in the end
            except OSError as error:
                if error.errno in LACKS:
                    continue
                source.pin(pack, offset, length, error.errno or errno.EIO)
                self._pins.append((pack, offset, length))
        took = time.perf_counter() - began
        if self._shell is not None:
            self.pace.waited(took, self._shell.soon)

    def _unpin(self) -> None:
        if self._pins:
            source = self.source
            assert source is not None, "something was read"
            for each in self._pins:
                source.unpin(*each)
            self._pins.clear()

    # ------------------------------------------------------------------ damage

    def _report(self, ctx: Context, argv: list[bytes], damage: ColdDamage) -> str:
        """Report damage in the log, once; return the error for a client."""
        extent, reads = damage.extent, damage.reads
        key = next((word for word in argv[1:] if _holds(ctx.db.keys.get(word), extent)), b"")
        assert reads.source is not None, "something was read"
        first, last = (text(each).decode() for each in (damage.first, damage.last))
        name = reads.source.name(extent.pack)
        line = (
            f"MSDAMAGED entries {first} to {last} of '{_printed(key)}' cannot be read: {name} is damaged at byte "
            f"{extent.offset}; see millstream log check"
        )
        self.note_damage(*extent[:2])
        if (place := (*extent[:2], damage.first)) not in self._named:
            self._named.add(place)
            log.error("%s (%s)", line.removeprefix("MSDAMAGED "), damage)
        return line

    def note_damage(self, pack: int, offset: int) -> bool:
        """Count a damaged extent; return False if it was counted before."""
        known = len(self._reported)
        self._reported.add((pack, offset))
        return len(self._reported) > known

    def report_damage(self, damage: tuple[int, int, str, str]) -> None:
        """Report damage that no command has met yet: pack, offset, name of the file and reason."""
        pack, offset, name, reason = damage
        if self.note_damage(pack, offset):
            place = f"{name} is damaged at byte {offset}; see millstream log check" if offset else name
            log.error("%s (%s)", place, reason)

    def forget_removal(self, pack: int) -> None:
        """Count a pack no longer as damaged that was removed and is there again."""
        self._reported.discard((pack, 0))


def _holds(value: object, extent: Extent) -> bool:
    """True if a value is a stream with this extent."""
    if not isinstance(value, Stream) or not value.entries.extent_count:
        return False
    record = value.entries.cold_record(index_of(value.entries, extent.first), 1)
    return record is not None and record[:2] == (extent.pack, extent.row())


def _printed(key: bytes) -> str:
    return printable(key[:_SHOWN].decode("utf-8", "surrogateescape")).replace("\n", " ")

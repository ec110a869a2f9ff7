"""Commands that read cold entries: they run again after a miss, and report damage.

A handler that misses has changed nothing: once it has committed or published something, its reads may wait for the
disk. So it is run again from its words after the missing ranges were read. Transactions, scripts and the commands of a
primary cannot begin again, so all their reads may wait.
"""

from collections.abc import Callable

from millstream.commands.context.context import Context
from millstream.commands.context.host import Lookups
from millstream.engine.cold import EXTENTS_MOST, ROW_SIZE, ColdDamage, ColdMiss, Extent
from millstream.engine.ids import text
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.printable import printable
from millstream.replies import Reply

log = logger("millstream.node")

# Runs of a command that may miss; a further one waits for what it reads
RUNS = 3
# Bytes of a key in an error
_SHOWN = 100

Handler = Callable[[Context, list[bytes]], Reply]


class ColdRunner:
    """Runs handlers that may read cold entries."""

    def __init__(self, keyspace: Keyspace, lookups: Lookups) -> None:
        self._keyspace, self._lookups = keyspace, lookups
        self.misses = 0  # Runs that ended with a miss
        self._reported: set[tuple[int, int]] = set()  # Damaged extents that were reported: pack and offset

    def run(self, ctx: Context, handler: Handler, argv: list[bytes]) -> Reply:
        """Run a handler, in a node that has packs."""
        try:
            reply = self._run(ctx, handler, argv)
        except ColdDamage as damage:
            raise CommandError(self._report(ctx, argv, damage)) from damage
        if ctx.damage is not None:
            self._report(ctx, argv, ctx.damage)
            ctx.damage = None
        return reply

    def _run(self, ctx: Context, handler: Handler, argv: list[bytes]) -> Reply:
        reads, lookups = self._keyspace.reads, self._lookups
        if not ctx.may_block:  # it is a part of a unit, which may have begun with a run that may miss
            reads.may_wait = True
            return handler(ctx, argv)
        for _ in range(RUNS):
            hits, misses = lookups.hits, lookups.misses
            reads.may_wait = False
            try:
                return handler(ctx, argv)
            except ColdMiss as miss:
                self.misses += 1
                lookups.hits, lookups.misses = hits, misses
                reads.may_wait = True
                for each in miss.ranges:
                    _fetch(reads.read, each)
            finally:
                reads.may_wait = True
        return handler(ctx, argv)

    def _report(self, ctx: Context, argv: list[bytes], damage: ColdDamage) -> str:
        """Report damage of an extent in the log, once; return the error for a client."""
        extent, reads = damage.extent, damage.reads
        key = next((word for word in argv[1:] if _holds(ctx.db.keys.get(word), extent)), b"")
        assert reads.source is not None, "something was read"
        first, last = (text(each).decode() for each in (extent.first, extent.last))
        name = reads.source.name(extent.pack)
        line = (
            f"MSDAMAGED entries {first} to {last} of '{_printed(key)}' cannot be read: {name} is damaged at byte "
            f"{extent.offset}; see millstream log check"
        )
        if extent[:2] not in self._reported:
            self._reported.add(extent[:2])
            log.error("%s (%s)", line.removeprefix("MSDAMAGED "), damage)
        return line


def _fetch(read: Callable[[int, int, int], bytes], wanted: tuple[int, int, int]) -> None:
    """Read a range that was missed; the run that follows meets the error of a broken disk, and reports it."""
    try:
        read(*wanted)
    except OSError as error:
        log.debug("a range of a pack cannot be read: %s", error)


def _holds(value: object, extent: Extent) -> bool:
    """True if a value is a stream with this extent."""
    if not isinstance(value, Stream) or not value.entries.extent_count:
        return False
    row = extent.row()
    rows = (rows for pack, rows, _ in value.entries.cold_records(EXTENTS_MOST) if pack == extent.pack)
    return any(row == each[at : at + ROW_SIZE] for each in rows for at in range(0, len(each), ROW_SIZE))


def _printed(key: bytes) -> str:
    return printable(key[:_SHOWN].decode("utf-8", "surrogateescape")).replace("\n", " ")

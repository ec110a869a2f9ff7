"""Rewriting of the log: a child process makes the snapshot, and a thread of the server waits for it.

The thread does nothing that holds the interpreter for long. It starts a process, waits for it, and calls the log at the
two moments at which files are replaced (:meth:`Log.begin_rewrite`, :meth:`Log.commit_rewrite`). A rewrite that fails
leaves the log as it is. The next attempt follows later, with growing delays while attempts keep failing.
"""

import contextlib
import errno
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, TypeVar

from millstream.commands.admin.info import RewriteFacts
from millstream.commands.context.config import Config
from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.log.children import COPY, ChildProcess, GivenUpError, reason_of
from millstream.node.log.foreign import PackList
from millstream.node.log.packs import KeyspacePacks, cut_advice, lack_of
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry
from millstream.persistence.packs import packs_of
from millstream.persistence.rewrite import Rewrite
from millstream.texts import size_text

log = logger("millstream.rewriting")

# Seconds before the next automatic attempt after a failure, doubled after each further failure, up to the longest pause
FIRST_PAUSE = 10.0
LONGEST_PAUSE = 3600.0
# Seconds between rewrites that only release packs, and while the disk is nearly full
RECLAIMS_APART, RECLAIMS_SOON = 60.0, 5.0
# Niceness of the child relative to the server, if there is time: other processes then come first
STANDS_BACK = 10
# There is time if the log took this many times as long to grow as its last rewriting took. On busy processors, a nice
# child gets a tenth of the server's share: at worst, the log grows by half again meanwhile.
CALM = 20
# After a rewriting that found too little room, the free space must grow or the data shrink by these bytes and by this
# part of the data before the next early try
MORE_ROOM, _GAINED_PART = 1 << 20, 16
# -P: the program must not import modules from the server's working directory
PROGRAM = (sys.executable, "-P", "-m", "millstream.node.log.compaction")
# Conditions for a copy alone: at most this many files, and apart from the snapshot less than one in this many parts of
# its size
FEW_FILES, SMALL_PART = 8, 10
TAKING = (*PROGRAM[:-1], "millstream.node.log.taking")
# ``TAKING`` prints this keyword before the number of bytes of the snapshot that are on the medium
SYNCED = "synced"
# ``TAKING`` prints this keyword before the number of bytes of a copied log that were a snapshot at its source
COMPACT = "compact"
# ``TAKING`` prints this keyword before the next number and the packs of a copied log, as JSON
TAKEN = "taken"
# A child prints this keyword before the numbers of the packs that the new snapshot needs
PACKS = "packs"
_NO_COPY = "the process that rewrites the log has told of none"

T = TypeVar("T")
Commit = Callable[[Callable[[], None]], None]


def niceness(last: int, grown: float) -> int:
    """Return the niceness, relative to the server, of a rewrite that begins because the log has grown.

    A low priority while writers are at full rate would let the log grow without a bound: the more the server works, the
    less time the child gets. With equal priority the child gets as much processor time as the server, and needs a
    fraction of the server's time for each record. So it keeps up even with many other processes.
    """
    return STANDS_BACK if last >= 0 and grown >= CALM * max(last, 1) else 0


@dataclass(frozen=True, slots=True)
class CopyMade:
    """A finished copy for replicas."""

    replid: str  # Name of the history of the data
    offset: int  # Offset of the data in that history
    db: int  # Database selected at that offset


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """The order to make a copy for replicas before the snapshot, or alone if there is almost nothing to rewrite."""

    file: IO[bytes]  # File to write; this process closes it
    version: int  # Version of the RDB format
    # Called once, in another thread, with the copy or the reason for its failure
    made: Callable[[CopyMade | str], None]


@dataclass(frozen=True, slots=True)
class TakeOrder:
    """The order to make a snapshot from a primary's copy, which then replaces the log."""

    child: ChildProcess  # Process from :meth:`Rewriter.reader`; closed at the end of the rewriting
    history: tuple[str, int]  # Name and offset of the copy's history
    # Called in another thread when the snapshot begins. It gets the records, which end when the snapshot is complete,
    # a function that returns the copy's packs after the first record, and one that makes the snapshot the log at the
    # end, and then calls its argument to make the records the data in memory. It raises to give up.
    swap: Callable[[Iterator[bytes], PackList, Commit], None]
    # Called in that thread at the end; the error counts only if the log was not replaced
    failed: Callable[[StorageError | OSError], None]


def _at_once(job: Callable[[], T]) -> T:
    return job()


class Rewriter:
    """Rewrites one log, one rewrite at a time."""

    def __init__(
        self,
        log: Log,
        config: Config,
        *,
        exclusively: Callable[[Callable[[], Any]], Any] = _at_once,
        packs: KeyspacePacks | None = None,
        program: Sequence[str] = PROGRAM,
        thread: type[threading.Thread] = threading.Thread,
    ) -> None:
        self._log = log
        self._config = config
        self._exclusively = exclusively
        self._packs = packs  # None: no pack is ever released
        self._program = program
        self._new_thread = thread
        self._thread: threading.Thread | None = None
        self._gate = threading.RLock()  # guards the next two attributes, and the start; a thread of tests runs in it
        self._child: ChildProcess | None = None
        self._stopped = False
        self._copy: CopyOrder | None = None
        self._take: TakeOrder | None = None
        self._is_alone = False  # only a copy is made
        # Bytes of the present snapshot that were a snapshot at its source; the remaining ones may contain outdated
        # records
        self._compact: int | None = None
        self._said_compact: int | None = None  # reported by the process of this rewriting
        self._said_packs: set[int] | None = None  # likewise
        self._said_taken: tuple[int, list[PackEntry]] | None = None  # likewise
        self._started = 0.0
        self._ended = 0.0
        self._niceness = STANDS_BACK
        self._not_before = 0.0
        # Free bytes and bytes of data when the last rewriting did not find enough room
        self._too_little: tuple[int, int] | None = None
        self.data_size: Callable[[], int] = lambda: 0  # Returns the bytes of data in memory, for a message
        self.facts = RewriteFacts()  # Results so far

    def consider(self) -> None:
        """Begin a rewrite if the log has grown to the configured size. Called often, so it does little."""
        size = self._log.total_bytes
        if size < self._config.rewrite_min_size or not self._config.rewrite_percentage or self.facts.is_running:
            return
        snapshot = self._log.snapshot_bytes
        base = max(snapshot if self._compact is None else min(snapshot, self._compact), 1)
        if (size - base) * 100 >= base * self._config.rewrite_percentage and time.monotonic() >= self._not_before:
            self.start(niceness(self.facts.seconds, time.monotonic() - self._ended))

    def reclaim(self, *, at_once: bool) -> bool:
        """Begin a rewrite that releases packs, but not soon after another one; ``at_once`` shortens that time.

        One that found too little room is tried early once the room or the data has changed by enough.
        """
        due = self._ended + (RECLAIMS_SOON if at_once else RECLAIMS_APART)
        if time.monotonic() < due:
            return False
        return (time.monotonic() >= self._not_before or self._has_more_room()) and self.start()

    def _has_more_room(self) -> bool:
        if self._too_little is None:
            return False
        before, size = self._too_little
        with contextlib.suppress(StorageError):
            gained = self._log.free() - before + size - self.data_size()
            return gained >= max(MORE_ROOM, size // _GAINED_PART)
        return False

    def start(self, priority: int = STANDS_BACK, copy: CopyOrder | None = None, take: TakeOrder | None = None) -> bool:
        """Begin a rewrite; return False if one is running, the rewriter has stopped, or no thread can be started.

        An order is told of a missing thread as of any failure, so True is returned.
        """
        with self._gate:  # another thread may stop the rewriter, and must find a thread that has begun
            if self.facts.is_running or self._stopped:
                return False
            self._niceness, self._copy, self._take, self._is_alone = priority, copy, take, False
            self._said_compact = self._said_packs = self._said_taken = None
            self.facts = replace(self.facts, is_running=True, started=self.facts.started + 1)
            self._started = time.monotonic()
            try:
                self._thread = self._new_thread(target=self._run, name="millstream-rewrite", daemon=True)
                self._thread.start()
            except (RuntimeError, MemoryError) as error:  # the system starts no more threads
                self._thread = None
                self._end(GivenUpError(f"no thread can be started for it: {reason_of(error, 'one')}"))
                return copy is not None or take is not None
        return True

    def reader(self, file: IO[bytes], words: Sequence[str]) -> ChildProcess:
        """Start a process that reads a primary's copy, perhaps still arriving, for a :class:`TakeOrder`.

        The caller sends the number of arrived bytes with its ``hint``. A caller that does not order a rewrite closes
        it.
        """
        number = file.fileno()
        return ChildProcess(TAKING, [str(self._log.directory), "0", self._log.place, str(number), *words], [number])

    def report(self) -> RewriteFacts:
        """Facts about rewriting for INFO."""
        if not self.facts.is_running:
            return self.facts
        return replace(self.facts, current_seconds=int(time.monotonic() - self._started))

    def stop(self) -> None:
        """Cancel the running rewrite, and begin no other one. Waits for the thread, which ends soon.

        The caller must still run jobs given to ``exclusively`` meanwhile.
        """
        with self._gate:
            self._stopped = True
            if self._child is not None:
                self._child.kill()
        if self._thread is not None:
            self._thread.join()

    def give_up(self, take: TakeOrder) -> None:
        """Cancel the rewrite of this order, if it is running."""
        if self._take is take:
            take.child.kill()

    def abandon(self) -> None:
        """Release, in a forked child, everything that would keep the parent's rewrite alive."""
        self._stopped = True
        if self._child is not None:
            self._child.let_go()

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        reason: StorageError | OSError | None = None
        try:
            self._rewrite()
        except (StorageError, OSError) as error:
            reason = error
        except BaseException as error:
            if not isinstance(error, MemoryError):
                log.exception("internal error while the log was rewritten")
            reason = GivenUpError(reason_of(error, "a rewriting of the log" if self._take is None else COPY))
        self._end(reason)

    def _end(self, reason: StorageError | OSError | None) -> None:
        """Settle the facts, and tell an order of its end; called in the thread, unless none could be started."""
        self._copied(_NO_COPY if reason is None else str(reason) or repr(reason))
        if self._is_alone and reason is None:
            self.facts = replace(self.facts, is_running=False)
        elif self._take is None:
            self._finish("" if reason is None else str(reason))
        else:  # its link reports the failure and schedules the next attempt
            self._take.child.close()
            self.facts = replace(self.facts, is_running=False)
            self._take.failed(reason or GivenUpError("there was nothing to take"))

    def _copied(self, made: CopyMade | str) -> None:
        """Report a copy, or its failure, once."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.made(made)

    def _seal(self) -> Rewrite | None:
        if self._copy is not None or self._take is not None:
            self._log.write()  # the copy must include these records
        return self._log.begin_rewrite()

    def _rewrite(self) -> None:
        rewrite = self._exclusively(self._seal)
        if rewrite is None:
            return
        before, snapshot = self._log.total_bytes, self._log.snapshot_bytes
        is_small = len(rewrite.source.segments) <= FEW_FILES and (before - snapshot) * SMALL_PART < snapshot
        self._is_alone = self._copy is not None and is_small
        try:
            with self._making(rewrite) as synced:
                if self._take is not None:
                    self._swap(self._take, rewrite, synced)
                else:
                    deque(synced, maxlen=0)  # read to the end
            if self._is_alone:
                return
            if self._take is None:
                gone = self._releasable(rewrite)
                self._expect_packs(gone)
                self._exclusively(lambda: self._log.commit_rewrite(rewrite, gone))
                self._compact = None
                if gone and self._packs is not None:
                    self._packs.released(gone)
        finally:
            with contextlib.suppress(StorageError):  # harmless, and repeated at the next rewriting or start
                self._log.remove_obsolete()
        if self._take is not None:
            return
        seconds = time.monotonic() - self._started
        log.info("the log was rewritten in %.1f s: %d bytes instead of %d", seconds, self._log.total_bytes, before)

    def _releasable(self, rewrite: Rewrite) -> set[int]:
        """Return the packs that neither the new snapshot nor a later record nor the data in memory need."""
        if self._said_packs is None or self._packs is None:
            return set()
        gone = self._log.settled_packs(rewrite) - self._said_packs
        kept = self._packs.needed(gone) if gone else gone
        if kept:
            self.facts = replace(self.facts, pack_disagreements=self.facts.pack_disagreements + len(kept))
            names = ", ".join(pack.name for pack in self._log.packs if pack.number in kept)
            log.error("internal error: the log does not need %s, but the data in memory do; they are kept", names)
        return gone - kept

    def _expect_packs(self, gone: set[int]) -> None:
        """Raise unless the other packs are there in their size, since the old log may still have their entries."""
        packs, sizes = self._log.packs, self._log.pack_sizes()
        for pack in packs:
            if pack.number not in gone and (reason := lack_of(self._log, pack, sizes[pack.number])):
                self.facts = replace(self.facts, lacking=pack.name)
                raise GivenUpError(
                    f"{reason}. The log keeps the records it has. Put the file back before you stop the server, or "
                    "copy what can still be read, since a start will be refused. Without a copy of the file: stop the "
                    f"server and run {cut_advice(self._log.disk, self._log.directory, [pack.name])}"
                )
        self.facts = replace(self.facts, lacking="")
        if self._packs is not None and (lost := self._packs.unreadable(gone)):
            log.warning("the rewriting removes records that may have been the last copy of damaged entries: %s", lost)

    def _swap(self, take: TakeOrder, rewrite: Rewrite, synced: Iterator[int]) -> None:
        found: list[PackEntry] = []
        adopt: Callable[[], object] = int  # does nothing

        def packs() -> list[PackEntry] | None:
            nonlocal adopt
            if self._said_taken is not None:
                found.extend(packs_of(self._said_taken[1], self._log.packs))
            if self._packs is not None:
                adopt = held.enter_context(self._packs.taking(found))
            return None if self._said_taken is None else found

        def commit(then: Callable[[], None]) -> None:
            if self._log.appended != rewrite.target.last:
                raise GivenUpError("records were added to the log while a copy was taken over")
            self._log.commit_rewrite(rewrite, taken=found, next_pack=self._said_taken[0] if self._said_taken else 1)
            self._compact = self._said_compact
            self.facts = replace(self.facts, lacking="")  # of the former log
            try:
                adopt()
                then()
            except BaseException as error:  # records of the data in memory must not follow the new snapshot
                raise self._log.refuse(error) from error

        with contextlib.ExitStack() as held:
            take.swap(self._log.rewritten(rewrite, synced), packs, commit)

    @contextlib.contextmanager
    def _making(self, rewrite: Rewrite) -> Iterator[Iterator[int]]:
        """Run the process that makes the snapshot, and stop it at the end; yield the numbers of its synced bytes."""
        child = self._spawn()
        try:
            if self._take is not None:
                child.tell("{} {}".format(*self._take.history))
            child.tell(rewrite.encode())
            yield self._synced(child)
        finally:
            with self._gate:
                self._child = None
            child.close()

    def _spawn(self) -> ChildProcess:
        with self._gate:
            if self._stopped:
                raise GivenUpError("the server stops")
            self._child = self._begun() if self._take is None else self._take.child
            return self._child

    def _begun(self) -> ChildProcess:
        words = [str(self._log.directory), str(self._niceness), self._log.place]
        if self._copy is None:
            return ChildProcess(self._program, words)
        file = self._copy.file.fileno()
        alone = ["alone"] if self._is_alone else []
        return ChildProcess(self._program, [*words, str(file), str(self._copy.version), *alone], [file])

    def _synced(self, child: ChildProcess) -> Iterator[int]:
        """Yield the numbers of synced bytes that a process prints, until its end; report the copy that it announces."""
        for line in child.said():
            words = line.split()
            if self._copy is not None and len(words) == 4 and words[0] == "copy":
                self._copied(CopyMade(words[1], int(words[2]), int(words[3])))
            elif len(words) == 2 and words[0] == SYNCED:
                yield int(words[1])
            elif len(words) == 2 and words[0] == COMPACT:
                self._said_compact = int(words[1])
            elif words and words[0] == TAKEN:
                next_pack, packs = json.loads(line.removeprefix(TAKEN))
                self._said_taken = next_pack, [PackEntry(**each) for each in packs]
            elif words and words[0] == PACKS:
                self._said_packs = set(map(int, words[1:]))

    def _finish(self, failure: str) -> None:
        facts = self.facts
        self._ended = time.monotonic()
        seconds = self._ended - self._started
        if not failure:
            self.facts = replace(facts, is_running=False, is_ok=True, seconds=int(seconds), failed_in_a_row=0)
            self._not_before, self._too_little = 0.0, None
            return
        row = facts.failed_in_a_row + 1
        pause = min(FIRST_PAUSE * 2 ** min(row - 1, 30), LONGEST_PAUSE)
        self._not_before = time.monotonic() + pause
        if not self._stopped:
            log.error(
                "rewriting the log was cancelled, without harm: %s; %sthe next try is in %d s at the earliest",
                failure,
                self._lack(failure),
                pause,
            )
        self.facts = replace(facts, is_running=False, is_ok=False, seconds=int(seconds), failed_in_a_row=row)

    def _lack(self, failure: str) -> str:
        """Note the free space if a rewriting found too little; return a clause with the numbers, or nothing."""
        self._too_little = None
        if any(os.strerror(code) in failure for code in (errno.ENOSPC, errno.EDQUOT)):
            with contextlib.suppress(StorageError):
                self._too_little = self._log.free(), self.data_size()
        if self._too_little is None:
            return ""
        free, size = map(size_text, self._too_little)
        return (
            f"{free} are free, and the snapshot takes up to {size}; a "
            "shorter stream-retention makes it smaller, and BGREWRITEAOF tries at once; "
        )

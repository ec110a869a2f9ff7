"""Scrubbing: sealed packs are read slowly and compared with their checksums, so that damage is known before it matters.

A round over all packs begins once a day at most. Bytes that were not in the page cache leave it again.
"""

from collections.abc import Callable
from contextlib import closing

from millstream.clock import Now
from millstream.errors import StorageError
from millstream.node.tiering.background import TierThread
from millstream.persistence.frame import FRAME_SIZE, HEADER_SIZE
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry
from millstream.persistence.packs import scrub

Damage = tuple[int, int, str, str]
"""Number of the pack, offset of the extent (0: the whole file), name of the pack, and the reason."""

# Milliseconds between the beginnings of two rounds
_ROUND = 86_400_000
# Milliseconds before the next look for a sealed pack
_LATER = 60_000
# Bytes of one piece of work
_PIECE = 1 << 20
_REASON = "its checksum is wrong, or the disk cannot read it"
_REMOVED = (
    "the file was removed or moved away; this process still has it open. Send BGREWRITEAOF, which writes it anew, or "
    "put it back before the process ends"
)


class Scrubber:
    """Reads one pack after the other."""

    def __init__(self, opened: Log, background: TierThread, report: Callable[[Damage], None]) -> None:
        self._log, self._background, self._report = opened, background, report
        # Called with the number of a pack that was reported as removed, and is there again or needed no more
        self.on_return: Callable[[int], None] = lambda number: None  # noqa: ARG005 - a shell replaces it
        self._removed: set[int] = set()  # Numbers of the packs that were reported so
        self.begin_again()
        self._due = self._begun = 0  # Monotonic milliseconds of the next piece, and of the round's begin
        self._has_skipped = False  # A pack of this round could not be opened or read
        self.ended_at = 0  # Seconds since 1970 of the end of the last whole round; 0 before the first one

    def begin_again(self) -> None:
        """Begin with the first pack, since others may have taken the place of all."""
        self._number, self._name, self._at = 0, "", 0  # Pack and position that come next

    def turn(self, now: Now, rate: int) -> float:
        """Begin the next piece if it is due; return the seconds until the next turn."""
        if now.mono < self._due:
            return (self._due - now.mono) / 1000
        entry = next((each for each in self._log.packs if each.sealed and each.number >= self._number), None)
        if entry is None:  # the end of a round, or there is none yet
            if self._number and not self._has_skipped:
                self.ended_at = now.wall // 1000
            for number in self._removed - {pack.number for pack in self._log.packs}:  # nothing needed it any more
                self._has_returned(number)
            self._due = self._begun + _ROUND if self._number else now.mono + _LATER
            self.begin_again()
            return max(self._due - now.mono, 0) / 1000
        if not self._number:
            self._begun, self._has_skipped = now.mono, False
        at = self._at if entry.name == self._name else 0
        at, begun = max(at, HEADER_SIZE), now.mono

        def take(made: tuple[list[int], int, int], now: Now) -> None:  # noqa: ARG001 - the signature of all
            found, end, size = made
            self._due = begun + 1000 * size // rate  # a piece ends with a frame, whatever its size
            if 0 in found:
                found = []
                if entry in self._log.packs:  # otherwise a rewriting has removed it
                    self._removed.add(entry.number)
                    self._report((entry.number, 0, entry.name, _REMOVED))
            elif entry.number in self._removed:
                self._has_returned(entry.number)
            for offset in found:
                self._report((entry.number, offset, entry.name, _REASON))
            is_read = end >= (entry.bytes or 0) - FRAME_SIZE
            self._number, self._name, self._at = (entry.number + is_read, entry.name, end)

        self._background.run(lambda: self._read(entry, at, min(rate, _PIECE)), take)
        return 0.0

    def _has_returned(self, number: int) -> None:
        self._removed.discard(number)
        self.on_return(number)

    def _read(self, entry: PackEntry, at: int, most: int) -> tuple[list[int], int, int]:
        """Return damaged offsets, the end of the piece and its size; run in the thread.

        A file that is not there has damage at 0. Other packs that cannot be opened or read are left to their readers.
        """
        try:
            with closing(self._log.open_pack(entry.name)) as file:
                found, end = scrub(file, entry, at, most)
        except (StorageError, OSError) as error:
            is_removed = isinstance(error.__cause__, FileNotFoundError)
            self._has_skipped |= not is_removed
            return [0] if is_removed else [], entry.bytes or 0, most
        return found, end, end - at

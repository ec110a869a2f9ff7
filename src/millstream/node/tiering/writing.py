"""The thread's part of spilling: it fills packs, and says why it cannot.

A pack that failed in an unknown way is ended, and never written to again. Work then pauses, longer with each failure.
A lack of space is looked at again soon. The log continues in any case.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import DiskFullError, StorageError
from millstream.logs import logger
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry
from millstream.persistence.packs import PackWriter
from millstream.texts import size_text

log = logger("millstream.tier")

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 3600.0
"""Seconds without spilling after a failure; each further failure doubles them, unless only space was missing."""
_LACKS = frozenset({"disk-low", "disk-full"})
SPARE, LEAST_SPARE = 64 << 20, 4 << 20
"""Bytes on the disk that stay free for the next rewriting, besides twice the sealed nodes: at most and at least."""
SMALLEST, LARGEST, PART = 64 << 20, 1 << 30, 1024
"""Size at which a pack is ended: a part of all packs, within two bounds in bytes."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing a batch."""

    pack: PackEntry | None = None  # Pack that holds it; None if it is in none
    places: list[tuple[int, int]] = field(default_factory=list)  # Offset and size of each extent's frame


class Filler:
    """Fills one pack after the other; used by one thread at a time."""

    def __init__(self, opened: Log, exclusively: Callable[[Callable[[], Any]], Any]) -> None:
        self._log, self._exclusively = opened, exclusively
        self._pack: PackWriter | None = None
        self.failures = 0  # Number of batches that failed
        self._refused = 0  # Bytes of the last batch for which packs had no room below their limit
        self.in_a_row = 0  # Failed batches since the last written one; a lack of space does not count
        self.status = "ok"  # Result of the last batch: ``ok``, or the reason in one word

    def another(self) -> "Filler":
        """Return a filler of other packs of the same log."""
        return Filler(self._log, self._exclusively)

    @property
    def size(self) -> int:
        """Bytes of all packs."""
        return self._log.pack_bytes()

    def spare(self, hot: int, most: int) -> int:
        """Bytes that stay free besides twice the sealed nodes, of which ``hot`` bytes should stay in memory.

        The rest of the next snapshot is about as large as the last one.
        """
        return min(LEAST_SPARE + 2 * hot + self._log.snapshot_bytes, most)

    @property
    def open_pack(self) -> int:
        """Number of the pack that is being filled; 0 without one."""
        return 0 if self._pack is None else self._pack.entry.number

    @property
    def lacks_space(self) -> bool:
        """True if the disk had no room for the last batch."""
        return self.status in _LACKS

    @property
    def pause(self) -> float:
        """Seconds without spilling from the last batch on."""
        if self.lacks_space:
            return FIRST_PAUSE
        return min(FIRST_PAUSE * 2 ** min(self.in_a_row - 1, 30), LONGEST_PAUSE) if self.in_a_row else 0.0

    def is_full(self, most: int) -> bool:
        """True if packs may not take a batch such as the last refused one; ``most`` is their limit, 0 for none."""
        is_full = bool(most) and self.size + self._refused > most
        if is_full:
            self.status = "max-bytes"
        return is_full

    def write(self, payloads: list[bytes], least: int, most: int) -> Written:
        """Write a batch, unless less than ``least`` bytes are free, or packs (0: any number) have ``most`` bytes."""
        needed = sum(map(len, payloads))
        try:
            if most and self.size + needed > most:
                self.status, self._refused = "max-bytes", needed
                return Written()
            self._refused = 0
            if (free := self._log.free()) < least + needed:
                whole = size_text(least + needed)
                return self.fail(
                    "disk-low",
                    f"{size_text(free)} of the disk are free, and {whole} are needed, mostly for rewriting the log. "
                    "Free some space, or shorten stream-retention",
                )
            if self._pack is not None and self._pack.size >= min(max(self.size // PART, SMALLEST), LARGEST):
                self.end()  # only now, since the records of its last batch must come before its end
            if self._pack is None:
                self._pack = self._exclusively(self._log.add_pack)
            return self._added(self._pack, payloads)
        except DiskFullError as error:
            self._drop_closed()
            return self.fail("disk-full", str(error))
        except StorageError as error:
            self._drop_closed()
            return self.fail("error", str(error))

    def _added(self, pack: PackWriter, payloads: list[bytes]) -> Written:
        places = pack.add(payloads)
        if self.status != "ok":
            log.info("entries go to packs again")
        self.status, self.in_a_row = "ok", 0
        return Written(pack.entry, places)

    def broken(self) -> Written:
        """Report a defect of this program as a failure."""
        self._drop_closed()
        return self.fail("error", "an internal error, see above")

    def fail(self, status: str, reason: str) -> Written:
        """Count a failure, after which work pauses."""
        is_repeated = status == self.status and status in _LACKS
        self.status = status
        self.failures += 1
        self.in_a_row += status not in _LACKS
        if not is_repeated:
            log.error("entries stay in memory for %d s at least: %s", self.pause, reason)
        return Written()

    def _drop_closed(self) -> None:
        """End a pack that takes nothing more."""
        if self._pack is not None and self._pack.is_closed:
            self.end()

    def end(self) -> None:
        """End the pack that is being filled. It keeps its bytes, even if the manifest cannot be written."""
        pack, self._pack = self._pack, None
        if pack is not None:
            try:
                self._exclusively(lambda: self._log.end_pack(pack))
            except StorageError as error:
                log.error("a pack is not ended: %s", error)  # noqa: TRY400 - the disk's fault, not this program's
            finally:
                pack.close()  # a log that has failed takes no job that would do it

    def abandon(self) -> None:
        """Close the pack in a forked child, and write nothing."""
        if self._pack is not None:
            self._pack.close()

    def drop(self) -> None:
        """Leave the pack that is being filled, since the log does not name it any more."""
        pack, self._pack = self._pack, None
        if pack is not None:
            pack.close()

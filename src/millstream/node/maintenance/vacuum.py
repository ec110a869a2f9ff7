"""The care of packs while nothing has to be spilled: extents are written anew, packs are let go, and read for damage.

A *walk* looks at a part of the streams in each turn, and reads nothing (:mod:`millstream.node.maintenance.walking`). It
finds the extents to write anew, the packs to which nothing refers, and those to which little refers. A walk is due
after a change, some seconds after the last one.

1. Extents are written anew in batches, as spilled ones are: by the thread, to a pack of their own, synced and read
   back. Then ``tmove`` lets each take its old one's place.
2. If packs without references take too much room, or the disk is nearly full, a rewriting of the log begins, since only
   that removes files of packs. A pack that is being filled is ended first.
3. Else the next part of a sealed pack is compared with its checksums.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from millstream.clock import Now
from millstream.engine.keyspace import Transition
from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.maintenance import renewing
from millstream.node.maintenance.renewing import Renewal, RenewalRule
from millstream.node.maintenance.scrubbing import Damage, Scrubber
from millstream.node.maintenance.walking import MOST, Settled, Walk
from millstream.node.tiering.gathering import BATCH
from millstream.node.tiering.spilling import Spiller
from millstream.node.tiering.writing import LEAST_SPARE, Written
from millstream.persistence.disk import DiskFile
from millstream.persistence.frame import HEADER_SIZE
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry
from millstream.persistence.packs import payload_at

log = logger("millstream.tier")

# Milliseconds between two walks, and before the next one while the disk is nearly full
_APART, _SOON = 10_000, 1000
# Packs without references that are worth a rewriting: more than this part of all packs, or these bytes
_IDLE_PART, _IDLE_MOST = 4, 1 << 30
# On a nearly full disk: these times the bytes of packs without references exceed those of hot entries
_WORTH = 16
# A pack is sparse if less than this part of it is referred to
_SPARSE_PART = 4
# Memory of holes that is too much: this part of maxmemory, or these bytes without one
_HOLES_PART, _HOLES_MOST = 16, 256 << 20


@dataclass(slots=True)
class _Renewed:
    """The result of a batch in the thread."""

    written: Written
    done: list[Renewal]
    damages: list[Damage]
    failed: dict[tuple[int, int], str]  # Extents that cannot be read now, each with the reason


class Vacuum:
    """Cares for the packs of one node, in turns of the loop and jobs of a thread."""

    def __init__(
        self, spiller: Spiller, opened: Log, on_damage: Callable[[Damage], None], on_idle: Callable[[bool], bool]
    ) -> None:
        self._spiller, self._log, self._background = spiller, opened, spiller.background
        self.renewer = spiller.filler.another()  # Writer of extents that are written anew
        # Both called in the loop: reports damage; begins a rewriting (at once if the disk is low), False if it may not
        self.on_damage, self.on_idle = on_damage, on_idle
        self._is_dirty = True  # Something changed since the last walk
        self.walk: Walk | None = None
        self._settled: Settled = WeakKeyDictionary()
        self._walk_at = self._renew_at = 0  # Monotonic milliseconds before which neither begins
        self._found: list[Renewal] = []  # Extents to write anew, the next one last
        self.sparse: frozenset[int] = frozenset()
        self._has_many_holes = False
        self._unreadable: set[tuple[int, int]] = set()  # Damaged extents: pack and offset
        self._failed: set[tuple[int, int]] = set()  # Extents that the requested vacuum could not read
        self._logged: set[int] = set()  # Packs of which the log has said that they cannot be read
        self._recorded_for: set[int] = set()  # Packs without references for which a record was made
        self._extents_before = -1  # Number of extents at that vacuum's last walk, if it found some
        self.scrubber = Scrubber(opened, self._background, self._report)
        self.is_asked = self._wants_every = False  # A requested vacuum has not ended; it is in its first round
        self.status = "ok"  # Result of the last batch or requested vacuum: ``ok``, or the reason in one word
        spiller.care = self
        self.vacuumed = self.extents = 0  # Bytes and number of the extents that were written anew

    def observe(self, step: Transition) -> None:
        """Note a transition that was committed."""
        self._is_dirty = True
        if self.walk is not None:
            self.walk.observe(step)

    def scan(self) -> None:
        """Forget what was found, since the data came from elsewhere."""
        self.walk, self._found, self._is_dirty = None, [], True
        for each in (self._unreadable, self._settled, self._failed, self._logged):
            each.clear()
        self._end_asked("interrupted")

    def begin_again(self) -> None:
        """Leave the pack that is being filled, and forget all, since other packs took the place of all."""
        self.renewer.drop()
        self.scrubber.begin_again()
        self.sparse, self._has_many_holes, self._recorded_for = frozenset(), False, set()

    def end(self) -> None:
        """End the pack that is being filled."""
        self.renewer.end()

    def rows(self, wall: int) -> Iterator[tuple[str, object]]:  # noqa: ARG002 - the signature of all
        """Yield the figures for INFO's section ``tier``."""
        yield "tier_vacuumed_bytes", self.vacuumed
        yield "tier_vacuumed_extents", self.extents
        yield "tier_vacuum_in_progress", int(self.is_asked)
        yield "tier_vacuum_left_bytes", sum(each.extent.length for each in self._found)
        yield "tier_last_vacuum_status", self.status
        yield "tier_scrubbed_at", self.scrubber.ended_at

    def ask(self) -> bool:
        """Write all extents with holes anew, and let packs go; return False if that is in progress."""
        if self.is_asked:
            return False
        self.is_asked, self._wants_every, self.status = True, True, "ok"
        self.walk, self._found, self._walk_at, self._renew_at = None, [], 0, 0
        self._extents_before = -1
        for each in (self._failed, self._logged, self._recorded_for):
            each.clear()
        return True

    def turn(self, now: Now, *, is_calm: bool) -> float | None:
        """Do the next piece of work; return the seconds until the next one, None if only a change makes it due.

        ``is_calm``: nothing is to be spilled. The node may change data by itself now.
        """
        config = self._spiller.config
        if not self._log.pack_count:
            self._end_asked("ok")
            return None
        if self.walk is not None:
            self._look(self.walk, now)
            return 0.0
        waits = []
        if self._found and (self.is_asked or (is_calm and config.tier_vacuum_rate)):
            if now.mono >= self._renew_at:
                self._renew()
                return None
            waits.append((self._renew_at - now.mono) / 1000)
        if (self._is_dirty or self.is_asked) and not (self._found and self.is_asked):
            if now.mono >= self._walk_at:
                self._begin_walk()
                return 0.0
            waits.append((self._walk_at - now.mono) / 1000)
        if is_calm and not self._found and config.tier_scrub:
            waits.append(self.scrubber.turn(now, config.tier_scrub))
        return min(waits, default=None)

    def _report(self, damage: Damage) -> None:
        """Report a damaged extent, and leave it alone from here on."""
        self._unreadable.add(damage[:2])
        self.on_damage(damage)

    # ------------------------------------------------------------------ walks

    def _begin_walk(self) -> None:
        self._is_dirty = False
        rule = RenewalRule(every=self._wants_every or self._has_many_holes, sparse=self.sparse)
        newest = max((pack.number for pack in self._log.packs), default=0)
        spiller = self._spiller
        skipped = self._unreadable | self._failed
        self.walk = Walk(spiller.keyspace, spiller.ring, rule, newest, self._settled, skipped)

    def _look(self, walk: Walk, now: Now) -> None:
        self.walk = None  # an error ends the walk, which then has no result
        if not walk.turn():
            self.walk = walk
            return
        if walk.is_void:
            self._is_dirty = True
            return
        config = self._spiller.config
        self._found = walk.found if config.tier_vacuum_rate or self.is_asked else []
        limit = config.max_memory
        self._has_many_holes = walk.holes > (limit // _HOLES_PART if limit else _HOLES_MOST)
        self._walk_at = now.mono + (0 if self.is_asked else _APART)
        self._wants_every &= walk.counted > MOST
        is_stuck = self.extents == self._extents_before
        self._extents_before = self.extents if self._found else -1
        if self.is_asked and self._found and is_stuck:  # the last batches wrote none of them
            self._give_up("error", now)
            return
        try:
            sizes = {number: size for number, size in self._log.pack_sizes().items() if number <= walk.newest}
        except StorageError as error:
            log.warning("the sizes of packs cannot be read; the next walk tries again: %s", error)
            self._give_up("error", now)
            return
        # The pack that takes what is spilled is emptied too if a vacuum is requested, or if it can take nothing now
        filler = self._spiller.filler
        filled = {self.renewer.open_pack, 0 if self.is_asked or filler.lacks_space else filler.open_pack}
        self.sparse = frozenset(
            number
            for number, size in sizes.items()
            if number not in filled and 0 < walk.needed.get(number, 0) * _SPARSE_PART < size
        )
        self._is_dirty |= not self.sparse <= walk.rule.sparse  # the next walk finds what is left in them
        idle = {number: size for number, size in sizes.items() if number not in walk.needed and size > HEADER_SIZE}
        self._consider(idle, sum(sizes.values()), now, is_last=not self._found and self.sparse <= walk.rule.sparse)

    def _consider(self, idle: dict[int, int], total: int, now: Now, *, is_last: bool) -> None:
        """Have packs without references removed if that is worth a rewriting, or if it ends a vacuum."""
        config, waste, is_last = self._spiller.config, sum(idle.values()), is_last and self.is_asked
        try:
            is_low = self._log.free() < self._least and self._is_worth(waste)
        except StorageError:
            is_low = False
        much = waste * _IDLE_PART > total or waste > _IDLE_MOST
        is_due = config.rewrite_percentage and (is_low or (much and waste >= config.rewrite_min_size))
        if (is_due or (waste and is_last)) and (self._has_records or self._make_record(set(idle), now)):
            self._is_dirty = True  # it is looked at again if they do not go
            if is_low:
                self._walk_at = now.mono + _SOON
            at_once = is_low or is_last
            self._background.run(
                lambda: self._end_idle(set(idle)), lambda _, now: self._reclaim(now, at_once=at_once, is_last=is_last)
            )
        elif is_last:
            self._end_asked("not-rewritten" if waste else "ok")

    def _is_worth(self, waste: int) -> bool:
        """True if a rewriting, which writes the hot entries, frees more than a little: packs, or most of the log."""
        hot, before = self._spiller.ring.sealed, self._log.snapshot_bytes
        return waste * _WORTH > hot or self._log.total_bytes > before + max(before + hot, LEAST_SPARE)

    @property
    def _least(self) -> int:
        """Free bytes below which the disk is nearly full."""
        return max(2 * self._spiller.config.disk_floor, self._spiller.plenty)

    def _end_idle(self, idle: set[int]) -> None:
        """End packs that are being filled, in the thread."""
        for filler in (self._spiller.filler, self.renewer):
            if filler.open_pack in idle:
                filler.end()

    @property
    def _has_records(self) -> bool:
        """True if the log has more than a snapshot. Else no rewriting begins."""
        return self._log.unwritten > 0 or self._log.total_bytes - self._log.snapshot_bytes > HEADER_SIZE

    def _make_record(self, idle: set[int], now: Now) -> bool:
        """Make a record that changes nothing, so that a rewriting can begin; return False the second time.

        If a rewriting did not remove these packs, another one waits for a change of data.
        """
        if self._recorded_for == idle:
            return False
        self._recorded_for = idle
        self._spiller.commit([("tpacks", -1, [])], now)
        return True

    def _reclaim(self, now: Now, *, at_once: bool, is_last: bool) -> None:
        has_begun = self.on_idle(at_once)
        if not has_begun:
            self._walk_at = max(self._walk_at, now.mono + _APART)
        if is_last:
            self._end_asked("ok" if has_begun else "not-rewritten")

    def _end_asked(self, status: str) -> None:
        if self.is_asked:
            self.is_asked, self.status = False, "error" if status == "ok" and self._failed else status

    def _give_up(self, status: str, now: Now) -> None:
        """End a requested vacuum, write nothing anew for a while, and look again then."""
        pause = max(self.renewer.pause, self._spiller.filler.pause)
        self._renew_at, self._walk_at = now.mono + int(pause * 1000), now.mono + _APART
        self.status, self._found, self._is_dirty = status, [], True
        self._end_asked(status)

    # ------------------------------------------------------------------ writing anew

    def _renew(self) -> None:
        batch, size = [], 0
        for each in reversed(self._found):
            batch.append(each)
            size += each.extent.length
            if size >= BATCH:
                break
        config, least = self._spiller.config, self._spiller.disk_needed
        packs = {pack.number: pack for pack in self._log.packs}
        rate = config.tier_vacuum_rate

        def take(made: _Renewed, now: Now) -> None:
            self._renew_at = now.mono + (1000 * size // rate if rate else 0)
            self._commit(made, now)

        self._background.run(lambda: self._write(batch, packs, least), take, size)
        del self._found[-len(batch) :]

    def _write(self, batch: list[Renewal], packs: dict[int, PackEntry], least: int) -> _Renewed:
        """Read extents and write them anew, in the thread."""
        done, damages = [], []
        failed: dict[tuple[int, int], str] = {}
        lost: dict[int, str] = {}  # Packs that cannot be opened

        def payloads() -> Iterator[bytes]:
            with ExitStack() as stack:
                files: dict[int, DiskFile] = {}
                for each in batch:
                    number, offset, length = each.extent[:3]
                    entry = packs.get(number)
                    if entry is None:
                        continue  # it was removed meanwhile
                    if number in lost:
                        failed[number, offset] = lost[number]
                        continue
                    try:
                        if number not in files:
                            files[number] = stack.enter_context(closing(self._log.open_pack(entry.name)))
                        payload = renewing.renewed(each, payload_at(files[number], entry, offset, length))
                    except StorageError as error:
                        failed[number, offset] = lost[number] = str(error)
                        continue
                    except (ValueError, OSError) as error:
                        if not isinstance(error, OSError) or error.errno == errno.EIO:
                            damages.append((number, offset, entry.name, str(error)))
                        else:
                            failed[number, offset] = str(error)
                        continue
                    done.append(each)
                    yield payload

        try:
            found = list(payloads())
            written = self.renewer.write(found, least, 0) if found else Written()
        except Exception:
            log.exception("internal error while extents were written anew")
            written = self.renewer.broken()
        return _Renewed(written, done, damages, failed)

    def _skip(self, failed: dict[tuple[int, int], str]) -> None:
        """Leave out extents that cannot be read now; a requested vacuum does not try them again."""
        if self.is_asked:
            self._failed |= failed.keys()
        for (number, _), reason in failed.items():
            if number not in self._logged:
                self._logged.add(number)
                log.error("extents are not written anew: pack %d cannot be read: %s", number, reason)

    def _commit(self, made: _Renewed, now: Now) -> None:
        """Let new extents take the place of old ones that are still there."""
        for damage in made.damages:
            self._report(damage)
        self._skip(made.failed)
        pack = made.written.pack
        if pack is None:
            if made.done:
                self._give_up(self.renewer.status, now)
            return
        self.status = "ok"
        steps = self._spiller.named(pack)
        if steps is None:
            self._give_up("error", now)
            return
        for renewal, step in renewing.moves(
            self._spiller.keyspace, zip(made.done, made.written.places, strict=True), pack.number
        ):
            steps.append(step)
            self.vacuumed += renewal.extent.length
            self.extents += 1
        if steps:
            self._spiller.commit(steps, now)

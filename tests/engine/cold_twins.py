"""Three entry stores side by side: a hot one, a cold one, and a blind one that is told plans and has no packs."""

from random import Random
from typing import Any

import pytest

from engine.twins import NAMES, STEPS, VALUES, plain, seen
from millstream.engine.cold import ColdReads, cold_records, each_extent, unpack_extents
from millstream.engine.ids import MAX_ID
from millstream.engine.streams.entries import PyEntryStore
from support.coldness import MemoryPacks, chilled
from support.state import check_entries


class ColdTwins:
    """The three stores, and the last id of the stream."""

    def __init__(self, store: type[PyEntryStore] = PyEntryStore) -> None:
        self.packs, self.reads = MemoryPacks(), ColdReads()
        self.reads.source = self.packs
        self._store = store
        self.hot, self.cold, self.blind = store(), self._cold(), store()
        self.blind.reads = ColdReads()
        self.last = 0

    def _cold(self) -> PyEntryStore:
        made = self._store()
        made.reads = self.reads
        return made

    def patiently(self, name: str, *args: object, **keywords: object) -> Any:
        """Call a method of the cold store, with a miss for each first read."""
        return self.packs.patiently(self.reads, lambda: plain(getattr(self.cold, name)(*args, **keywords)))

    def both(self, name: str, *args: object, **keywords: object) -> Any:
        """Call a method of the hot and the cold store, which must return the same."""
        mine = plain(getattr(self.hot, name)(*args, **keywords))
        assert self.patiently(name, *args, **keywords) == mine, (name, args, keywords)
        return mine

    def add(self, step: int, fields: list[bytes], limits: tuple[int, int], *, dead: bool) -> None:
        """Add an entry ``step`` above the last id, if an id is left."""
        if self.last + step > MAX_ID:
            return
        self.last += step
        fresh = self.both("needs_block", sum(map(len, fields)), *limits)
        self.both("append", self.last, fields, fresh=fresh, dead=dead)
        self.blind.append(self.last, fields, fresh=fresh, dead=dead)

    def spill(self, random: Random) -> None:
        """Make some of the first hot nodes cold."""
        count = random.randint(0, max(len(list(self.cold.hot_nodes())) - 1, 0))
        pack = random.randint(1, 3)
        rows = b"".join(chilled(self.cold, self.packs, count, random.randint(1, 4), pack))
        if rows:
            self.cold.add_cold(pack, rows, [])
            self.blind.add_cold(pack, rows, [])

    def warm(self) -> None:
        """Make the last cold node hot."""
        if self.cold.extent_count:
            node, places = self.patiently("plan_warm")
            self.cold.warm(node, places)
            self.blind.warm(node, places)

    def keep_hot(self, going: int) -> None:
        """Make nodes hot until more than ``going`` live entries are."""
        while self.cold.extent_count and self.cold.length - self.cold.cold_live <= going:
            self.warm()

    def remove(self, entry_id: int, *, keep: bool) -> None:
        """Delete an entry, by a plan if it is cold."""
        there = self.hot.remove(entry_id, keep=keep)
        assert self.patiently("__contains__", entry_id) == there
        if not there:
            return
        if entry_id <= self.cold.cold_last:
            places = self.patiently("plan_delete", [entry_id], 0) if keep else self.patiently("plan_delete", [entry_id])
            assert self.cold.punch(places) == self.blind.punch(places) == 1
            return
        self.keep_hot(1)
        assert self.cold.remove(entry_id, keep=keep)
        assert self.blind.remove(entry_id, keep=keep)

    def shorten(self, random: Random) -> None:
        """Delete the last entries, so that the last cold nodes get hot."""
        for entry in reversed(self.hot.ids()[-random.randint(1, 20) :]):
            self.remove(entry, keep=False)

    def below(self, bound: int) -> None:
        """Trim."""
        removed = self.hot.remove_below(bound, keep=True)
        if not self.cold.extent_count:
            assert self.cold.remove_below(bound, keep=True) == self.blind.remove_below(bound, keep=True) == removed
            return
        places = self.patiently("plan_cut", bound)
        assert self.cold.cut(bound, places) == self.blind.cut(bound, places) == removed

    def drop(self, floor: int) -> None:
        """Drop emptied nodes below a floor."""
        self.hot.drop_emptied(floor)
        self.keep_hot(0)
        places = self.patiently("plan_delete", [], floor) if self.cold.extent_count else []
        for store in (self.cold, self.blind):
            store.punch(places)
            store.drop_emptied(floor)

    def back(self, last: int) -> None:
        """Move the last id back, but not below a live entry."""
        self.last = max(self.hot.last_live_id, min(last, self.last))
        self.hot.reach_back(self.last)
        while self.cold.extent_count and next(iter(self.cold.hot_nodes())).first > self.last:
            self.warm()
        self.cold.reach_back(self.last)
        self.blind.reach_back(self.last)

    def refuse(self) -> None:
        """Refuse to remove cold entries, and the last hot node before them, without a plan."""
        cold = self.cold.copy()
        if not cold.extent_count:
            return
        for run in (
            lambda: cold.remove(cold.cold_last),
            lambda: cold.remove_below(1, keep=False),
            lambda: cold.reach_back(0),
        ):
            with pytest.raises(ValueError, match="by a plan"):
                run()

    def restart(self) -> None:
        """Make the cold and the blind store again, as a snapshot does."""
        made = self._cold(), self._store()
        made[1].reads = ColdReads()
        for store in made:
            for pack, rows, holes in cold_records(self.cold, 3):
                store.add_cold(pack, rows, holes)
            packed = [node.pack() for node in self.cold.hot_nodes()]
            if packed:
                store.extend(packed)
        self.cold, self.blind = made

    def copy(self) -> None:
        """Continue with copies, after the originals have changed."""
        twins = self.hot.copy(), self.cold.copy(), self.blind.copy()
        self.cold.cut(MAX_ID + 1, [])
        self.hot, self.cold, self.blind = twins

    def some_id(self, random: Random) -> int:
        """Return an id that is stored, next to a stored one, or anywhere, also out of range."""
        stored = [entry for node in self.hot.nodes() for entry, _, _ in node.entries()]
        near = random.choice(stored) if stored else 0
        return random.choice((near, near, near + 1, near - 1, self.last, self.last + 1, 0, -1, MAX_ID, MAX_ID + 1))

    def all_shown(self) -> list[Any]:
        """Return what the nodes show, the same in both stores."""
        shown = self.packs.patiently(self.reads, lambda: [seen(node) for node in self.cold.nodes()], most=1000)
        assert [seen(node) for node in self.hot.nodes()] == shown
        return shown

    def compare(self, start: int, end: int, count: int) -> list[Any]:
        """Compare everything visible, and one range; return what the nodes show."""
        hot, cold = self.hot, self.cold
        for name in ("length", "first_id", "last_live_id", "node_count"):
            assert getattr(hot, name) == getattr(cold, name) == getattr(self.blind, name), name
        assert list(cold_records(cold, 3)) == list(cold_records(self.blind, 3))
        listed = list(each_extent(cold))
        assert listed == list(each_extent(self.blind))
        assert cold.extents(1, 2) == self.blind.extents(1, 2) == listed[1:3]
        every = [cold.cold_record(index, 1) for index in range(-1, cold.extent_count + 1)]
        assert every == [None, *cold_records(cold, 1), None]
        assert cold.cold_record(1, 3) == self.blind.cold_record(1, 3)
        assert cold.hole_bytes == self.blind.hole_bytes
        assert cold.sealed_bytes == self.blind.sealed_bytes
        assert (cold.sealed_bytes > 0) == (len(list(cold.hot_nodes())) > 1)
        shown = self.all_shown()
        self.both("ids", start, end, count)
        self.both("rows", start, end, count)
        for _, last, *_ in cold.extents(0, 2**31):  # the ends of extents are the places where a range may go wrong
            self.both("ids", start, last + 1, -1)
        for backwards in (False, True):
            number, buffers, last = hot.reply(start, end, count, backwards=backwards)
            there = self.patiently("reply", start, end, count, backwards=backwards)
            assert (number, b"".join(buffers), last) == (there[0], b"".join(there[1]), there[2])
        for entry in (start, end):
            self.both("wire", entry)
            self.both("__contains__", entry)
        self.check()
        return shown

    def check(self) -> None:
        """Check the invariants of the cold store, reading everything."""
        check_entries(self.cold)
        for pack, rows, holes in cold_records(self.cold, 3):
            for extent in unpack_extents(pack, rows, holes):
                inside = [entry for entry in self.hot.ids() if extent.first <= entry <= extent.last]
                assert extent.live == len(inside)
                assert (extent.first_live, extent.last_live) == ((inside[0], inside[-1]) if inside else (0, 0))
        if isinstance(self.cold, PyEntryStore):
            assert self.cold.taken == self.cold.footprint


def step(twins: ColdTwins, random: Random) -> None:
    """Run one random step."""
    what = random.choices(
        ("add", "dead", "remove", "below", "drop", "back", "spill", "shorten", "warm", "refuse", "restart", "copy"),
        (69, 3, 20, 3, 3, 3, 6, 2, 1, 2, 1, 1),
    )[0]
    limits = random.choice(((0, 5), (4096, 100), (200, 0), (0, 3)))
    if what in {"add", "dead"}:
        names = random.choice(NAMES)
        fields = [word for name in names for word in (name, random.choice(VALUES[: random.choice((8, 30, 99))]))]
        twins.add(random.choice(STEPS[: random.choice((3, 99))]), fields, limits, dead=what == "dead")
    elif what == "remove":
        twins.remove(twins.some_id(random), keep=random.random() < 0.5)
    elif what == "below":
        twins.below(twins.some_id(random))
    elif what == "drop":
        twins.drop(twins.some_id(random))
    elif what == "back":
        twins.back(random.randint(0, twins.last))
    elif what in {"spill", "shorten"}:
        getattr(twins, what)(random)
    else:
        getattr(twins, what)()

"""One stream in four stores side by side: a hot and a cold one of each core, through the transitions of commands.

Each core has a third, blind store besides: it gets what the cold one's log would have, and no packs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from engine.cold_twins import ColdTwins
from engine.dump_twins import REFUSED, told
from engine.group_twins import seen as group_seen
from engine.twins import NAMES, STEPS, VALUES, native, seen
from millstream.commands.streams.trimming import Trim, run_trim
from millstream.engine.cold import FRAME_HEAD, ROW_SIZE, cold_records
from millstream.engine.cold_ops import TOUCHING, cold_form
from millstream.engine.ids import MAX_ID, pack, pack_all
from millstream.engine.keyspace import Keyspace, Transition
from millstream.engine.serialization.bulk import py_pack_entries, py_read_entries
from millstream.engine.serialization.rdb.bulk import py_read_listpacks
from millstream.engine.streams import nodeform
from millstream.engine.streams.entries import PyEntryStore
from millstream.engine.streams.group import PyGroup
from millstream.engine.streams.nodes import Block
from millstream.engine.streams.pending import MAX_DELIVERIES
from millstream.engine.streams.stream import Stream
from millstream.node.maintenance.renewing import Renewal, RenewalRule, moves, renewed, wanted

KEY, GROUP, CONSUMERS = b"s", b"g", (b"a", b"b")
PLACE = (0, KEY)
FEW = 4
"""Number of extents of which a walk may miss each read, since it begins again with each."""
MOST = 60
"""Largest number of entries that a trimmed stream keeps, since each comparison reads all of them."""

STEP_WEIGHTS = (
    *(("append", 140), ("capped", 12), ("trim", 2), ("delete", 22), ("set_id", 2), ("read", 8), ("settle", 8)),
    *(("spill", 8), ("vacuum", 8), ("shorten", 4), ("warm", 1), ("restart", 1), ("copy", 1)),
)
NAMED, WEIGHTS = zip(*STEP_WEIGHTS, strict=True)


class Core(NamedTuple):
    """The parts of one core."""

    store: type[PyEntryStore]
    group: Any
    pack_entries: Any
    read_entries: Any


CORES = (
    Core(PyEntryStore, PyGroup, py_pack_entries, py_read_entries),
    Core(native.EntryStore, native.Group, native.pack_entries, native.read_entries),
)


def leaned(node: Any) -> tuple[Any, bytes]:
    """Return a node's facts and bytes without values of dead entries, which a vacuum takes away."""
    return nodeform.lean(*nodeform.encode(node))


class StreamTwins(ColdTwins):
    """The three streams of one core, each with a group, and what was ever added to them."""

    def __init__(self, core: Core) -> None:
        super().__init__(core.store)
        self.core = core
        self.now = 0
        self.known: list[int] = []  # ids that were added, ascending
        self.written: tuple[int, list[tuple[Renewal, tuple[int, int]]]] = (0, [])  # by a vacuum: pack, extents
        self.is_lean = False  # some dead entries have lost their values
        self.spaces = Keyspace(), Keyspace(), Keyspace()
        self.spaces[1].reads = self.reads
        for space in self.spaces:
            stream = space.databases[0].keys[KEY] = Stream(100, 100)
            stream.add_group(GROUP, core.group(0, 0))
        self._place()

    def _place(self) -> None:
        """Put the stores into their streams."""
        for stream, store in zip(self.streams, (self.hot, self.cold, self.blind), strict=True):
            stream.entries = store
        self.blind.reads = self.spaces[2].reads

    @property
    def streams(self) -> list[Any]:
        """The streams of the hot, the cold and the blind store."""
        return [space.databases[0].keys[KEY] for space in self.spaces]

    @property
    def groups(self) -> list[Any]:
        """The groups of these streams."""
        return [stream.groups[GROUP] for stream in self.streams]

    def commit(self, step: Transition) -> Any:
        """Apply a transition as a command's context does: to cold entries in the form that a replay needs."""
        hot, cold, blind = self.spaces
        result, total = hot.apply(step), 0
        for each in self.packs.patiently(self.reads, lambda: begun(cold, step)):
            changed = cold.apply(each)
            assert blind.apply(each) == changed, each
            total += changed or 0
        assert (result or 0) == total, step
        return result

    def some_id(self, random: Random) -> int:
        """Return an id that is stored, next to a stored one, or anywhere, also out of range."""
        stored = self.known[max(bisect_left(self.known, self.hot.first_id) - 3, 0) :]
        near = random.choice(stored) if stored else 0
        return random.choice((near, near, near + 1, near - 1, self.last, self.last + 1, 0, -1, MAX_ID, MAX_ID + 1))

    def in_range(self, random: Random) -> int:
        """Return such an id that a transition can name."""
        return min(max(self.some_id(random), 0), MAX_ID)

    # ------------------------------------------------------------------ steps

    def append(self, random: Random) -> None:
        """Add an entry above the last id, if an id is left."""
        step = random.choice(STEPS[: random.choice((3, 3, 99))])
        if self.last + step > MAX_ID:
            return
        names = random.choice(NAMES)
        fields = [word for name in names for word in (name, random.choice(VALUES[: random.choice((8, 30, 30, 99))]))]
        limits = random.choice(((0, 5), (4096, 100), (200, 0), (0, 3)))
        self.last += step
        self.known.append(self.last)
        fresh = self.both("needs_block", sum(map(len, fields)), *limits)
        assert self.blind.needs_block(sum(map(len, fields)), *limits) == fresh
        self.commit(("xadd", 0, KEY, pack(self.last), fields, fresh, None))

    def capped(self, random: Random) -> None:
        """Add an entry with MAXLEN or MINID."""
        self.append(random)
        self.trim(random)

    def trim(self, random: Random) -> None:
        """Trim by the options of a command, as it does: mostly few entries."""
        trim = Trim(random.choice(("MAXLEN", "MAXLEN", "MINID")), approximate=random.random() < 0.7)
        over = random.choice((1, 1, 2, 5, 12, -1)) if random.random() < 0.97 else random.choice((40, MOST))
        if trim.strategy == "MINID":
            at = bisect_left(self.known, self.hot.first_id) + over
            trim.threshold = (
                self.known[at] + random.randint(-1, 1) if 0 <= at < len(self.known) else self.in_range(random)
            )
        else:
            trim.threshold = min(max(self.hot.length - over, 0), MOST)
        if trim.approximate and random.random() < 0.2:
            trim.limit = random.choice((0, 1, 7, 50))
        trim.policy = random.choice((None, None, None, b"DELREF", b"ACKED"))
        chosen = self._chosen(self.streams[0], trim)
        assert self.packs.patiently(self.reads, lambda: self._chosen(self.streams[1], trim)) == chosen
        for step in chosen:
            self.commit(step)

    @staticmethod
    def _chosen(stream: Stream, trim: Trim) -> list[Transition]:
        """Return the transitions by which a command trims a stream."""
        found: list[Transition] = []
        config = SimpleNamespace(node_max_entries=4)
        context: Any = SimpleNamespace(
            host=SimpleNamespace(config=config), db=SimpleNamespace(index=0), commit=found.append
        )
        run_trim(context, KEY, stream, trim)
        return found

    def delete(self, random: Random) -> None:
        """Delete some entries, anywhere or next to each other."""
        kind = random.random()
        if kind < 0.6:
            ids = {self.some_id(random) for _ in range(random.choice((1, 1, 3, 9)))}
        else:
            ids = set(self.both("ids", self.some_id(random), MAX_ID, random.randint(1, 12)))
        there = [entry for entry in sorted(ids) if self.both("__contains__", entry)]
        random.shuffle(there)
        if there:
            assert self.commit(("xdel", 0, KEY, pack_all(there))) == len(there)

    def shorten(self, random: Random) -> None:
        """Delete the end down into the cold entries, so that nodes get hot; then let them go to packs again."""
        ids = self.hot.ids()
        gone = ids[max(bisect_right(ids, self.cold.cold_last) - random.randint(1, 15), 0) :]
        if gone:
            random.shuffle(gone)
            assert self.commit(("xdel", 0, KEY, pack_all(gone))) == len(gone)
        for _ in range(random.randint(3, 20)):
            self.append(random)
        self.spill(random)

    def set_id(self, random: Random) -> None:
        """Move the last id back, but not below a live entry, or ahead."""
        last = random.choice((random.randint(0, self.last), self.last, self.in_range(random), self.hot.last_live_id))
        self.last = max(self.hot.last_live_id, min(last, self.last))
        del self.known[bisect_right(self.known, self.last) :]
        self.commit(("xsetid", 0, KEY, pack(self.last), None, None))

    def read(self, random: Random) -> None:
        """Deliver new entries to a consumer."""
        position = self.groups[0].last_id
        ids = self.both("ids", position + 1, MAX_ID, random.choice((1, 2, 5, 30)))
        if ids:
            noack = random.random() < 0.1
            words = (random.choice(CONSUMERS), self.now, pack(ids[-1]), noack, pack(position))
            self.commit(("gread", 0, KEY, GROUP, *words))

    def settle(self, random: Random) -> None:
        """Acknowledge, claim, release or read again some records, or move the group."""
        start, most = random.choice((0, self.in_range(random))), random.choice((1, 3, 9))
        found = self._claimable(start, random.choice((0, 5)), most)
        _, taken, counts, gone = found
        what = random.choice(("ack", "ack", "claim", "nack", "again", "set"))
        if what == "set":
            self.commit(("gset", 0, KEY, GROUP, pack(start), -1))
        elif what == "ack":
            self.commit(("gack", 0, KEY, GROUP, taken + gone))
        elif taken and what == "claim":
            more = [min(count + 1, MAX_DELIVERIES) for count in counts]
            self.commit(("gclaim", 0, KEY, GROUP, random.choice(CONSUMERS), self.now, self.now, taken, more))
        elif taken and what == "nack":
            self.commit(("gnack", 0, KEY, GROUP, taken, counts))
        for record in list(self.groups[0].pending.walk(start))[:most]:
            self.both("wire", record.id)

    def _claimable(self, start: int, idle: int, most: int) -> tuple[int, bytes, list[int], bytes]:
        """Find records to claim in both groups."""
        groups, options = self.groups, {"most": most, "looks": 10 * most}
        found = tuple(groups[0].claimable(self.hot, start, idle, self.now, **options))
        there = self.packs.patiently(
            self.reads, lambda: tuple(groups[1].claimable(self.cold, start, idle, self.now, **options))
        )
        assert found == there
        return found  # type: ignore[return-value]  # the fields of Claimable

    def vacuum(self, random: Random) -> None:
        """Write some extents anew, or let those that were written before take their places."""
        number, written = self.written
        if written:
            self.written = (0, [])
            moved = list(moves(self.spaces[1], written, number))
            for _, step in moved:
                self.spaces[1].apply(step)
                self.spaces[2].apply(step)
            self.is_lean |= bool(moved)
            return
        rule = random.choice(
            (RenewalRule(every=True), RenewalRule(), RenewalRule(share=1), RenewalRule(sparse=frozenset((1, 2))))
        )
        index, number = 0, random.randint(4, 5)
        for record in cold_records(self.cold, 3):
            for renewal in wanted(PLACE, self.streams[1], index, record, rule):
                extent = renewal.extent
                payload = bytes(
                    self.packs.files[extent.pack][extent.offset + FRAME_HEAD :][: extent.length - FRAME_HEAD]
                )
                if random.random() < 0.8:
                    written.append((renewal, self.packs.write(renewed(renewal, payload), number)))
            index += len(record[1]) // ROW_SIZE
        self.written = (number, written)

    def restart(self) -> None:
        """Make the cold and the blind store again; what a vacuum has under way is lost."""
        super().restart()
        self.written = (0, [])
        self._place()

    def copy(self) -> None:
        """Continue with copies, after the originals have changed."""
        before = self.streams
        for space, stream in zip(self.spaces, before, strict=True):
            space.databases[0].keys[KEY] = stream.copy()
        self.hot, self.cold, self.blind = (stream.entries for stream in self.streams)
        self.written = (0, [])
        before[1].entries.cut(MAX_ID + 1, [])
        for stream in before:
            stream.drop_group(GROUP)

    # ------------------------------------------------------------------ comparing

    def all_shown(self) -> list[Any]:
        """Return what the nodes show, the same in both stores; few extents are read with a miss for each first read."""
        if self.cold.extent_count < FEW:
            self.packs.patiently(self.reads, lambda: [node.live_ids() for node in self.cold.nodes()])
        shown = [self._shown(node) for node in self.cold.nodes()]
        assert [self._shown(node) for node in self.hot.nodes()] == shown
        return shown

    def _shown(self, node: Any) -> Any:
        """Return what a node shows, without values that a vacuum may have taken away."""
        if not self.is_lean:
            return seen(node)
        facts = [node.first, node.last, node.live, node.stored, node.size, node.live_ids()]
        return [*facts, leaned(node), leaned(Block.unpack(node.pack(), None)), self._leaned_listpack(node)]

    @staticmethod
    def _leaned_listpack(node: Any) -> Any:
        """The node as Redis would read it; its size there follows from its bytes."""
        read = told(lambda: py_read_listpacks([(pack(node.first), node.listpack())]))
        return read if read == REFUSED else [each for one in read.nodes() for each in one.entries() if not each[1]]

    def compare(self, start: int, end: int, count: int) -> list[Any]:
        """Compare everything visible, and one range; return what the nodes show."""
        shown_nodes = super().compare(start, end, count)
        streams, groups = self.streams, self.groups
        shown = [group_seen(group, max(start, 0) & MAX_ID) for group in groups]
        assert shown[0] == shown[1] == shown[2]
        for of in (
            lambda stream: (stream.last_id, stream.max_deleted, stream.entries_added),
            lambda stream: stream.lag(stream.groups[GROUP]),
            lambda stream: [stream.distance(entry) for entry in (start, end, self.last)],
        ):
            assert of(streams[0]) == of(streams[1]) == of(streams[2])
        return shown_nodes

    def dumped(self) -> bytes:
        """Compare the dumps of both stores; return that of the hot one."""
        hot = b"".join(self.core.pack_entries(self.hot))
        cold = b"".join(self.core.pack_entries(self.cold))
        if not self.is_lean:
            assert cold == hot
        else:
            stores = [self.core.read_entries(each, 0)[0] for each in (hot, cold)]
            read = [[leaned(node)[0]._replace(payload=0) for node in store.nodes()] for store in stores]
            assert read[0] == read[1]
            assert [store.reply(0, MAX_ID)[0] for store in stores] == [self.hot.length] * 2
        return hot


def begun(space: Keyspace, step: Transition) -> Iterator[Transition]:
    """Return the forms of a transition for cold entries, once all that the first one needs is read."""
    forms = cold_form(space, step) if step[0] in TOUCHING else iter((step,))
    return chain([next(forms)], forms)


class FourTwins:
    """The streams of both cores, to which the same happens."""

    def __init__(self, seed: int) -> None:
        self.pairs = [(Random(seed), StreamTwins(core)) for core in CORES]

    def step(self) -> None:
        """Run one random step."""
        for random, twins in self.pairs:
            twins.now += random.randrange(4)
            name = random.choices(NAMED, WEIGHTS)[0]
            act = getattr(twins, name)
            if name in {"warm", "restart", "copy"}:
                act()
            else:
                act(random)

    def compare(self) -> None:
        """Compare everything visible within and between the cores, and one range."""
        found = []
        for random, twins in self.pairs:
            start, end = sorted((twins.some_id(random), twins.some_id(random)))
            shown = twins.compare(start, end, random.choice((-1, 1, 3, 1000)))
            for _ in range(9):
                twins.both("ids", twins.some_id(random), twins.some_id(random), -1)
            groups = [group_seen(group, 0) for group in twins.groups[:1]]
            found.append(
                (start, end, shown, groups, twins.dumped(), list(cold_records(twins.cold, 3)), twins.packs.files)
            )
        assert found[0] == found[1]

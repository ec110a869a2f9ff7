"""The native core reads cold entries from real packs: equal to hot ones, or damage, whatever the disk does."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from engine.twins import NAMES, STEPS, VALUES, native
from millstream.engine.cold import FRAME_HEAD, ColdDamage, ColdReads, extent_of
from millstream.engine.streams import extents
from support import needs

SOURCE = Path(__file__).parent.parent / "support/readfaults.c"


class FilePack:
    """A pack in a real file, and a native store whose oldest nodes are in it."""

    def __init__(self, path: Path, cache: int = 1 << 20) -> None:
        self.path = path
        path.write_bytes(b"")
        self.reader = native.PackReader(cache)
        self.reader.add(7, os.open(path, os.O_RDONLY), "pack-7")
        self.reads = ColdReads()
        self.reads.source = self.reader

    def write(self, payload: bytes) -> tuple[int, int]:
        """Append a frame; return its offset and size."""
        with self.path.open("ab") as file:
            offset = file.tell()
            file.write(bytes(FRAME_HEAD) + payload)
        return offset, FRAME_HEAD + len(payload)

    def chill(self, store: Any, each: int) -> Any:
        """Return a copy of a store, with all nodes but the last in the pack."""
        cold = store.copy()
        cold.reads = self.reads
        hot = list(store.nodes())[:-1]
        for at in range(0, len(hot), each):
            part = hot[at : at + each]
            cold.add_cold(7, extent_of(part, 7, *self.write(extents.encode(part))).row(), [])
        return cold

    def again(self) -> None:
        """Read the file with another reader, which has kept nothing."""
        self.reader = self.reads.source = native.PackReader(0)
        self.reader.add(7, os.open(self.path, os.O_RDONLY), "pack-7")


def grown(random: Random, count: int) -> Any:
    """Return a native store with nodes of all kinds."""
    store, last = native.EntryStore(), 0
    for _ in range(count):
        names = random.choice(NAMES)
        fields = [word for name in names for word in (name, random.choice(VALUES[:24]))]
        last += random.choice(STEPS[:8])
        fresh = store.needs_block(sum(map(len, fields)), 300, 7)
        store.append(last, fields, fresh=fresh, dead=not random.randrange(9))
    for entry in random.sample(store.ids(), len(store.ids()) // random.choice((2, 3, 99))):
        store.remove(entry, keep=True)
    return store


def everything(store: Any) -> list[Any]:
    """Return all that a store answers."""
    found: list[Any] = [store.ids(), list(store.rows()), [store.wire(entry) for entry in store.ids()[::5]]]
    for backwards in (False, True):
        number, pieces, last = store.reply(0, 1 << 128, -1, backwards=backwards)
        found.append((number, b"".join(pieces), last))
    found.append([(node.live_ids(), list(node.entries()), node.pack(), node.listpack()) for node in store.nodes()])
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_pack_answers_as_memory(seed: int, tmp_path: Path) -> None:
    """Entries of a real file answer as those in memory, alone and in runs."""
    random = Random(seed)
    store = grown(random, 400)
    cold = FilePack(tmp_path / "pack", cache=random.choice((0, 20_000, 1 << 20))).chill(
        store, random.choice((1, 3, 90))
    )
    assert cold.extent_count
    assert everything(cold) == everything(store)
    ids = store.ids()
    for _ in range(60):
        start, end = sorted((random.choice(ids), random.choice(ids)))
        count, backwards = random.choice((-1, 1, 5, 100)), random.random() < 0.5
        hot = store.reply(start, end, count, backwards=backwards)
        found = cold.reply(start, end, count, backwards=backwards)
        assert (hot[0], b"".join(hot[1]), hot[2]) == (found[0], b"".join(found[1]), found[2])


def test_what_was_read_is_kept_within_bounds(tmp_path: Path) -> None:
    """Tables and single nodes are read once, and what is not used again goes first."""
    store = grown(Random(1), 3000)
    pack = FilePack(tmp_path / "pack", cache=60_000)
    cold = pack.chill(store, 20)
    ids = store.ids()
    assert cold.wire(ids[0]) == store.wire(ids[0])
    before = pack.reader.reads
    assert cold.wire(ids[0]) == store.wire(ids[0])
    assert pack.reader.reads == before
    for entry in ids:
        assert cold.wire(entry) == store.wire(entry)
        assert pack.reader.held <= 60_000
    assert pack.reader.held > 30_000
    rows = cold.rows()
    next(rows)
    pack.reader.drop(7)
    assert pack.reader.held == 0
    pack.reads.source = native.PackReader()
    with pytest.raises(ColdDamage, match="No such file"):
        cold.wire(ids[0])


def outcome(store: Any) -> list[Any] | None:
    """Return all that a store answers; None for damage."""
    try:
        return everything(store)
    except ColdDamage:
        return None


def test_any_byte_changed_or_cut_is_never_another_entry(tmp_path: Path) -> None:
    """A changed byte of a table or a node is damage for who reads it, and never another entry."""
    random = Random(4)
    pack = FilePack(tmp_path / "pack")
    cold = pack.chill(grown(random, 60), 90)
    right, data = everything(cold), pack.path.read_bytes()
    for at in range(FRAME_HEAD, len(data)):
        pack.path.write_bytes(data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :])
        pack.again()
        assert outcome(cold) is None, at
    for at in range(0, len(data), 7):
        pack.path.write_bytes(data[:at])
        pack.again()
        assert outcome(cold) is None, at
    pack.path.write_bytes(data)
    pack.again()
    assert everything(cold) == right


def spoilt(data: bytes, random: Random) -> bytes:
    """Return bytes with one piece changed, or some of them."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        changed[random.randrange(len(changed))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return bytes(changed)


def sealed(payload: bytes, table: bytes) -> bytes:
    """Return a payload with a table of the same size and its checksum."""
    return payload[:5] + crc32(table).to_bytes(4, "little") + table + payload[9 + len(table) :]


@pytest.mark.parametrize("seed", range(8))
def test_hostile_bytes_with_right_checksums_are_refused_or_are_whole_nodes(seed: int, tmp_path: Path) -> None:
    """Tables and nodes that no writer makes are damage or consistent nodes, despite valid checksums."""
    random = Random(seed)
    store = grown(random, 30)
    pack = FilePack(tmp_path / "pack")
    cold = pack.chill(store, 90)
    payload = pack.path.read_bytes()[FRAME_HEAD:]
    size = int.from_bytes(payload[1:5], "little")
    table, rows = payload[9 : 9 + size], extents.rows(payload)
    damaged = 0
    for _ in range(300):
        if random.randrange(2):
            changed = sealed(payload, spoilt(table, random))
        else:
            row = random.choice(rows)
            node = spoilt(payload[row.begin : row.begin + row.size], random)
            body = payload[: row.begin] + node + payload[row.begin + row.size :]
            crc = row.crc.to_bytes(4, "little")
            changed = sealed(body, table.replace(crc, crc32(node).to_bytes(4, "little"), 1))
        pack.path.write_bytes(bytes(FRAME_HEAD) + changed)
        pack.again()
        found = outcome(cold)
        damaged += found is None
        assert found is None or len(found[1]) == found[3][0] == found[4][0]
    assert damaged > 100


def test_extents_of_other_figures_are_refused(tmp_path: Path) -> None:
    """An extent that is another one than the file holds is damage, and one that cannot be one is refused."""
    store = grown(Random(2), 100)
    pack = FilePack(tmp_path / "pack")
    nodes = list(store.nodes())[:-1]
    right = extent_of(nodes, 7, *pack.write(extents.encode(nodes)))
    there = native.EntryStore()
    there.reads = pack.reads
    there.add_cold(7, right.row(), [])
    assert there.wire(store.first_id) == store.wire(store.first_id)  # the table is kept
    for change in ({"nodes": right.nodes + 1}, {"stored": right.stored - 1}, {"offset": 1}, {"offset": 1 << 40}):
        cold = native.EntryStore()
        cold.reads = pack.reads
        cold.add_cold(7, right._replace(**change).row(), [])
        assert outcome(cold) is None, change
    wrong: list[Any] = [{"live": right.stored + 1}, {"length": 3}, {"nodes": 0}, {"first": right.last + 1}]
    for change in [*wrong, {"last_live": 0}, {"offset": (1 << 64) - 1}]:
        empty = native.EntryStore()
        with pytest.raises(ValueError, match="without a way to read"):
            empty.add_cold(7, right.row(), [])
        empty.reads = pack.reads
        with pytest.raises(ValueError, match="out of order"):
            empty.add_cold(7, right._replace(**change).row(), [])
    other = store.copy()
    other.reads = pack.reads
    other.remove(other.ids()[0], keep=True)
    with pytest.raises(ValueError, match="other entries"):
        other.add_cold(7, right.row(), [])


def test_plans_that_no_program_makes_are_refused(tmp_path: Path) -> None:
    """A plan out of bounds changes nothing."""
    store = grown(Random(2), 100)
    pack = FilePack(tmp_path / "pack")
    cold = pack.chill(store, 4)
    right = everything(cold)
    ends = bytes(64)
    live = cold.extents(0, 1)[0][0]
    plans: list[Any] = [
        [[cold.extent_count, 0, b"", b"", ends]],
        [[-1, 0, b"", b"", ends]],
        [[0, live + 1, b"", b"", ends]],
        [[0, 0, b"\0\xff\xff\xff\xff", b"", ends]],
        [[0, 0, b"", b"\0\xff\0\0\0", ends]],
        [[0, 0, b"\0\1", b"", ends]],
        [[0, 0, b"\1" + b"\xff" * 99, b"", ends]],
        [[0, 0, 7, b"", ends]],
        [[0, 0, b"", b"", b""]],
        [[1, 0, b"", b"", ends], [0, 0, b"", b"", ends]],
        [[0, 0, b"", b""]],
        [7],
        7,
    ]
    for plan in plans:
        with pytest.raises((ValueError, TypeError)):
            cold.punch(plan)
        assert everything(cold) == right


def test_a_kept_node_of_another_size_is_not_used(tmp_path: Path) -> None:
    """Bytes of a node that are kept fit the table that is read now, even if somebody has put another frame there."""
    sizes, stores = (10, 700), []
    for some in (sizes, sizes[::-1]):
        store = native.EntryStore()
        for at, size in enumerate((*some, 1), 1):
            store.append(at << 64, [b"f", b"v" * size], fresh=True)
        stores.append(store)
    pack = FilePack(tmp_path / "pack", cache=1200)  # nodes of the first size are kept, tables are not
    cold = pack.chill(stores[0], 2)
    assert cold.wire(1 << 64) == stores[0].wire(1 << 64)
    held = pack.reader.held
    assert held > 0
    pack.path.write_bytes(b"")
    pack.chill(stores[1], 2)
    assert cold.wire(1 << 64) == stores[1].wire(1 << 64)


FAULTS = """
import ctypes, errno, sys
from pathlib import Path
from random import Random
from engine.test_cold_core import Plain
from engine.test_pack_reader import FilePack, everything, grown
from millstream.engine.cold import ColdDamage, ColdMiss

faults = ctypes.CDLL(sys.argv[2])
fast, slow = (ctypes.c_int.in_dll(faults, name) for name in ("read_fault", "read_wait_fault"))
store = grown(Random(3), 200)
pack = FilePack(Path(sys.argv[1]), cache=0)
cold = pack.chill(store, 30)
right = everything(store)
plain = Plain(cold)

def tried(may_wait):
    pack.reads.may_wait = may_wait
    try:
        return "right" if everything(cold) == right else "other"
    except (ColdMiss, ColdDamage) as error:
        return type(error).__name__ + (": " + str(error) if isinstance(error, ColdDamage) else "")

def expect(wanted, *found):
    assert found == wanted, (wanted, found)

expect(("right", "right"), tried(False), tried(True))
for code in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS):
    fast.value = code
    before = pack.reader.blocking
    expect(("ColdMiss",), tried(False))
    assert pack.reader.blocking == before, "it waited"
    pack.reads.may_wait = True
    assert plain.run("XRANGE", "s", "-", "+") is None
    assert pack.reader.blocking == before, "a plain command waited"
    expect(("right",), tried(True))
    assert pack.reader.blocking > before
    slow.value = errno.EIO
    expect(("ColdMiss", "ColdDamage: the disk reports: Input/output error"), tried(False), tried(True))
    slow.value = -1
    expect(("right",), tried(True))
    slow.value = 0
fast.value = errno.EIO
expect(("ColdDamage: the disk reports: Input/output error",) * 2, tried(False), tried(True))
fast.value = -1
expect(("right", "right"), tried(False), tried(True))
fast.value = 0
print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are preloaded so on Linux only")
def test_reads_that_fail(tmp_path: Path) -> None:
    """A read that would wait is a miss, or waits where it may; one that fails is damage; a short one goes on."""
    made = tmp_path / "readfaults.so"
    subprocess.run([needs.program("cc"), "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True)
    before = os.environ.get("LD_PRELOAD", "")
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS, tmp_path / "pack", made],
        env=os.environ | {"LD_PRELOAD": f"{before} {made}".strip(), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "fine\n", ran.stderr


def test_the_reader_is_a_source(tmp_path: Path) -> None:
    """It reads parts of a pack for anybody, and knows its name."""
    pack = FilePack(tmp_path / "pack")
    pack.write(b"payload")
    reader = pack.reader
    assert reader.read(7, FRAME_HEAD, 7, may_wait=True) == b"payload"
    assert reader.name(7) == "pack-7"
    assert reader.read(7, 1000, 1, may_wait=True) == b""
    with pytest.raises(OSError, match="No such file"):
        reader.read(8, 0, 1, may_wait=True)
    with pytest.raises(ValueError, match="already"):
        reader.add(7, 0, "again")
    with pytest.raises(ValueError, match="not there"):
        reader.drop(8)

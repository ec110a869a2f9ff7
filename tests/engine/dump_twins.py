"""Both cores' readers and writers of dumps side by side, for whole and for damaged bytes."""

from collections.abc import Callable
from random import Random
from typing import Any

from engine.group_twins import GroupTwins
from engine.group_twins import seen as group_seen
from engine.group_twins import step as group_step
from engine.twins import Twins, native, seen
from engine.twins import step as store_step
from millstream.engine.serialization import bulk
from millstream.engine.serialization.plain import OLDEST, MalformedError
from millstream.engine.serialization.rdb import bulk as rdb_bulk
from millstream.engine.streams.group import PyGroup
from millstream.engine.streams.listpack import back

WORDS = (b"", b"a", b"7", b"-1", b"007", b"4096", b"x" * 63, b"x" * 64, b"y" * 130, b"9" * 20, b"-9223372036854775808")
BYTES = (0, 1, 2, 3, 4, 5, 6, 63, 64, 127, 128, 129, 0xC0, 0xDF, 0xE1, 0xF0, 0xF1, 0xF2, 0xF3, 0xF4, 0xFE, 255)
REFUSED = "refused"


def told(read: Callable[[], Any]) -> Any:
    """Return a reader's result in a form to compare."""
    try:
        return read()
    except MalformedError:
        return REFUSED


def store_seen(store: Any) -> list[Any]:
    """Return everything that a store shows."""
    return [store.length, store.first_id, store.last_live_id, [seen(node) for node in store.nodes()]]


# ---------------------------------------------------------------------- the forms, each with both readers


def entries_told(data: bytes) -> Any:
    """Return the result of both cores for packed entries after the first byte, which is fixed."""

    def read(reader: Callable[[bytes, int], tuple[Any, int]]) -> Any:
        store, end = reader(data, 1)
        return store_seen(store), end

    mine, theirs = told(lambda: read(bulk.py_read_entries)), told(lambda: read(native.read_entries))
    assert mine == theirs, data
    return mine


def records_told(data: bytes, consumers: int = 3) -> Any:
    """Return the result of both cores for packed records."""

    def read(kind: Any, reader: Any) -> Any:
        group = kind(5, 5)
        holders = [group.consumer(b"c%d" % at, 1) for at in range(consumers)]
        end = reader(data, 1, group, holders)
        return group_seen(group, 3), end

    mine = told(lambda: read(PyGroup, bulk.py_read_records))
    assert mine == told(lambda: read(native.Group, native.read_records)), data
    return mine


def listpacks_told(nodes: list[tuple[bytes, bytes]]) -> Any:
    """Return the result of both cores for Redis's nodes."""
    mine = told(lambda: store_seen(rdb_bulk.py_read_listpacks(nodes)))
    assert mine == told(lambda: store_seen(native.read_listpacks(nodes))), nodes
    return mine


def pending_told(data: bytes, count: int, owned: list[bytes]) -> Any:
    """Return the result of both cores for Redis's pending records, read and then assigned to consumers."""

    def read(kind: Any, reader: Any, assign: Any) -> Any:
        group = kind(5, 5)
        records, end = reader(data, 1, count)
        assign(group, records, [(group.consumer(b"c%d" % at, 1), ids) for at, ids in enumerate(owned)])
        return records, end, group_seen(group, 3)

    mine = told(lambda: read(PyGroup, rdb_bulk.py_read_pending, rdb_bulk.py_assign_pending))
    theirs = told(lambda: read(native.Group, native.read_pending, native.assign_pending))
    assert mine == theirs, (data, count, owned)
    return mine


def compressed_told(data: bytes, size: int) -> Any:
    """Return the result of both cores for compressed bytes."""
    mine = told(lambda: rdb_bulk.py_decompress(data, size))
    assert mine == told(lambda: native.decompress(data, size)), (data, size)
    return mine


# ---------------------------------------------------------------------- bytes to be read


def some_store(random: Random) -> Any:
    """Return a store after random steps in both cores, whose dumps must be equal."""
    twins = Twins()
    for _ in range(random.choice((1, 5, 30, 100))):
        store_step(twins, random)
    packed = {b"".join(bulk.py_pack_entries(store)) for store in (twins.python, twins.native)}
    assert packed == {b"".join(native.pack_entries(twins.native))}
    return twins.native


def some_group(random: Random) -> Any:
    """Return a group after random steps, as :func:`some_store` does."""
    twins = GroupTwins()
    for _ in range(random.choice((1, 5, 30, 100))):
        group_step(twins, random)
    places = {name: at for at, name in enumerate(sorted(twins.native.consumers))}
    packed = {bulk.py_pack_records(group, places) for group in (twins.python, twins.native)}
    assert packed == {native.pack_records(twins.native, places)}
    return twins.native


def element(word: bytes | int, random: Random) -> bytes:
    """Return an element of a listpack; a number has any encoding in which it fits."""
    if isinstance(word, int):
        ways = [b"\xf4" + word.to_bytes(8, "little", signed=True)]
        for first, size in ((0xF1, 2), (0xF2, 3), (0xF3, 4)):
            if -(1 << 8 * size - 1) <= word < 1 << 8 * size - 1:
                ways.append(bytes([first]) + word.to_bytes(size, "little", signed=True))
        if -4096 <= word < 4096:
            ways.append((0xC000 | word & 0x1FFF).to_bytes(2, "big"))
        if 0 <= word < 128:
            ways += [bytes([word])] * 9
        if random.random() < 0.05:
            return element(b"%d" % word, random)
        made = random.choice(ways)
    elif len(word) < 64:
        made = bytes([0x80 | len(word)]) + word
    elif len(word) < 4096:
        made = (0xE000 | len(word)).to_bytes(2, "big") + word
    else:
        made = b"\xf0" + len(word).to_bytes(4, "little") + word
    return made + back(len(made))


def some_node(random: Random, ms: int) -> tuple[bytes, bytes]:
    """Return a node as Redis writes it."""
    names = [random.choice(WORDS) for _ in range(random.randint(1, 3))]
    items: list[bytes | int] = []
    dead = later = seq = 0
    for at in range(count := random.randint(1, 6)):
        is_dead = random.random() < 0.2
        dead += is_dead
        if at:
            later += random.choice((0, 0, 1))
            seq += random.randint(1, 300)
        # A tombstone may lie above what was added behind it, where the last id was put back in between
        ahead = seq + 1000 if is_dead and at and random.random() < 0.3 else seq
        if random.random() < 0.7:
            items += [2 | is_dead, later, ahead]
            items += [random.choice((*WORDS, random.randrange(-(2**33), 2**33))) for _ in names]
            items.append(len(names) + 3)
        else:
            fields = random.randint(1, 2)
            items += [int(is_dead), later, ahead, fields, *(random.choice(WORDS) for _ in range(2 * fields))]
            items.append(2 * fields + 4)
    parts: list[bytes | int] = [count - dead, dead, len(names), *names, 0, *items]
    packed = b"".join(element(each, random) for each in parts)
    key = ms.to_bytes(8, "big") + (5).to_bytes(8, "big")
    return key, (len(packed) + 7).to_bytes(4, "little") + b"\x00\x00" + packed + b"\xff"


def some_pending(random: Random) -> tuple[bytes, int, list[bytes]]:
    """Return a group's pending records as Redis writes them, their number, and the ids of each consumer."""
    ids = sorted(random.sample(range(1, 1000), random.randint(0, 8)))
    if random.random() < 0.1:
        random.shuffle(ids)
    out, owned = b"\0", [b"", b"", b""]
    for entry in ids:
        time = random.choice((0, 5, 5, 9, 2**40, -3))
        count = random.choice((b"\x01", b"\x3f", b"\x41\x00", b"\x80\x00\x01\x00\x00", b"\x81" + b"\0" * 7 + b"\x09"))
        out += entry.to_bytes(16, "big") + time.to_bytes(8, "little", signed=True) + count
        at = random.randrange(3)
        owned[at] += entry.to_bytes(16, "big")
    return out, len(ids), owned


def some_compressed(random: Random) -> tuple[bytes, int]:
    """Return compressed bytes and their uncompressed size."""
    out, size = b"", 0
    for _ in range(random.randint(1, 6)):
        length = random.randint(1, 32)
        if size == 0 or random.random() < 0.5:
            out += bytes([length - 1]) + random.randbytes(length)
            size += length
            continue
        distance, length = random.randint(1, min(size, 8191)) - 1, random.choice((1, 2, 6, 7, 8, 200, 255))
        out += bytes([min(length, 7) << 5 | distance >> 8])
        out += (bytes([length - 7]) if length >= 7 else b"") + bytes([distance & 255])
        size += length + 2
    return out, size


def damaged(data: bytes, random: Random) -> bytes:
    """Return the bytes with some changed, missing, doubled or moved."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = random.randrange(len(found)) if found else 0
        what = random.randrange(7)
        if what <= 2 and found:
            found[at] = random.choice((random.choice(BYTES), random.randrange(256), (found[at] + 1) % 256))
        elif what == 3:
            del found[at:]
        elif what == 4:
            del found[at : at + random.randint(1, 9)]
        elif what == 5:
            found[at:at] = bytes(random.choice(BYTES) for _ in range(random.randint(1, 19)))
        else:
            end = at + random.randint(1, 30)
            found[at:at] = found[at:end]
    return bytes(found)


def whole_ids(data: bytes) -> bytes:
    """Return the bytes without an incomplete id at the end."""
    return data[: len(data) & -16]


# ---------------------------------------------------------------------- all of it


def whole_and_damaged(seed: int, number: int) -> tuple[int, int]:
    """Read whole bytes of each form, then ``number`` damaged ones; return how many were read and how many accepted."""
    random = Random(seed)
    tried = taken = 0
    while tried < number:
        entries = b"\0" + b"".join(native.pack_entries(some_store(random)))
        assert entries_told(entries) != REFUSED
        group = some_group(random)
        records = b"\0" + native.pack_records(group, {name: at for at, name in enumerate(sorted(group.consumers))})
        is_too_old = any(one.consumer is not None and one.time < OLDEST for one in group.order)
        assert (records_told(records, 4) == REFUSED) == is_too_old
        nodes = [some_node(random, 10 * at) for at in range(random.randint(1, 3))]
        assert listpacks_told(nodes) != REFUSED
        pending, count, owned = some_pending(random)
        assert pending_told(pending, count, owned) != REFUSED
        compressed, size = some_compressed(random)
        assert len(compressed_told(compressed, size)) == size
        for _ in range(20):
            which = random.randrange(len(nodes))
            key, packed = nodes[which]
            if random.random() < 0.9:  # nothing is looked at but the head if that says another size
                body = damaged(packed[6:-1], random)
                packed = (len(body) + 7).to_bytes(4, "little") + packed[4:6] + body + b"\xff"
            else:
                packed = damaged(packed, random)
            answers = (
                entries_told(b"\0" + damaged(entries[1:], random)),
                records_told(b"\0" + damaged(records[1:], random), random.randrange(5)),
                listpacks_told([*nodes[:which], (key, packed), *nodes[which + 1 :]]),
                pending_told(b"\0" + damaged(pending[1:], random), count, owned),
                pending_told(pending, count, [whole_ids(damaged(ids, random)) for ids in owned]),
                compressed_told(damaged(compressed, random), size + random.choice((0, 0, 1, -1))),
            )
            tried += len(answers)
            taken += sum(answer != REFUSED for answer in answers)
    return tried, taken

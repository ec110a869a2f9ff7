"""Nodes as bytes of a file: equal from both cores, read back unchanged, and refused if any byte was changed."""

from random import Random
from typing import Any
from zlib import crc32

import pytest

from engine.twins import NAMES, STEPS, VALUES, Twins
from millstream.engine.streams import extents, nodeform
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.nodes import Block


def grown(random: Random, count: int) -> Twins:
    """Return stores of both cores with nodes of all kinds."""
    twins = Twins()
    for _ in range(count):
        names = random.choice(NAMES)
        fields = [word for name in names for word in (name, random.choice(VALUES[:24]))]
        twins.add(random.choice(STEPS), fields, (300, 7), dead=not random.randrange(9))
    for entry in random.sample(twins.python.ids(), len(twins.python.ids()) // random.choice((2, 3, 99))):
        twins.both("remove", entry, keep=True)
    return twins


def payload(random: Random, count: int = 40) -> bytes:
    """Return an extent of such nodes."""
    return extents.encode(list(grown(random, count).python.nodes()))


def refused(data: bytes) -> bool:
    """Return True if these bytes are refused as nodes."""
    try:
        list(extents.nodes(data))
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_both_cores_have_one_form_that_is_read_back(seed: int) -> None:
    """Both cores write the same bytes for nodes, and read the nodes back whole."""
    random = Random(seed)
    twins = grown(random, random.randrange(1, 60))
    twins.add(1, [b"f", b"v"], (300, 7))
    if random.randrange(3) == 0:
        twins.back(twins.last - random.choice((1, 1 << 64)))
    mine, theirs = list(twins.python.nodes()), list(twins.native.nodes())
    assert [nodeform.encode(node) for node in mine] == [nodeform.encode(node) for node in theirs]
    data = extents.encode(mine)
    assert data == extents.encode(theirs)
    assert list(extents.nodes(data)) == [node.pack() for node in mine]
    found = extents.rows(data)
    assert [(row.facts.first, row.facts.stored - row.facts.dead) for row in found] == [(n.first, n.live) for n in mine]


def test_any_byte_changed_or_cut_is_never_another_entry() -> None:
    """Each byte of an extent is checked by a checksum or a comparison, and one of the wrong length is refused."""
    data = payload(Random(3), 12)
    for at in range(len(data)):
        assert refused(data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :]), at
        assert refused(data[:at])
    assert refused(data + b"\0")


def words(data: bytes) -> list[list[bytes]]:
    """Return the names and values of each entry."""
    return [fields for packed in extents.nodes(data) for _, _, fields in Block.unpack(packed, None).entries()]


def sealed(table: bytes, rest: bytes) -> bytes:
    """Return a payload with this table and its valid checksum."""
    return b"\1" + len(table).to_bytes(4, "little") + crc32(table).to_bytes(4, "little") + table + rest


def spoilt(data: bytes, random: Random) -> bytes:
    """Return bytes with one piece changed, removed, doubled or a number made huge."""
    at = random.randrange(len(data))
    piece = random.choice(
        (b"", bytes((data[at] ^ 1 << random.randrange(8),)), data[at : at + 1] * 2, b"\xff" * 9 + b"\1")
    )
    return data[:at] + piece + data[at + 1 :]


@pytest.mark.parametrize("seed", range(20))
def test_a_hostile_extent_with_right_checksums_is_refused_or_is_one_node_in_every_part(seed: int) -> None:
    """Extents that no writer makes are refused despite valid checksums, or are one consistent node.

    Nothing is read out of bounds.
    """
    random = Random(seed)
    data = payload(random, 8)
    (row, *_) = extents.rows(data)
    node = data[row.begin : row.begin + row.size]
    for _ in range(200):
        changed = spoilt(node, random)
        try:
            packed = nodeform.decode(row.facts, changed)
        except ValueError:
            continue
        assert nodeform.encode(Block.unpack(packed, None)) == (row.facts, changed)
    for name, value in row.facts._asdict().items():
        for other in (value + 1, value - 1, 0, 1 << 63):
            facts: Any = row.facts._replace(**{name: other})
            if name not in ("payload", "first") and other not in (value, -1):
                with pytest.raises(ValueError, match="damaged"):
                    nodeform.decode(facts, node)


def test_a_table_with_right_checksum_and_other_nodes_is_refused_or_the_same() -> None:
    """A changed table with a valid checksum is refused or harmless: its facts are compared with the nodes."""
    random = Random(5)
    data = payload(random, 12)
    length = int.from_bytes(data[1:5], "little")
    table, rest = data[9 : 9 + length], data[9 + length :]
    before = words(data)
    for _ in range(600):
        changed = sealed(spoilt(table, random), rest)
        try:
            found = words(changed)
        except ValueError:
            continue
        assert found == before


def test_names_that_all_entries_share_do_not_make_small_bytes_huge() -> None:
    """The size of the entries read from an extent is bounded, since a two-byte entry may refer to long shared names."""
    facts, node = nodeform.encode(Block(1 << 64, [b"n" * 40_000, b""]))
    entry = node[facts.begin :]
    with pytest.raises(ValueError, match="too large"):
        nodeform.decode(facts, node[: facts.begin] + entry + b"\6\0\1\0" * 7_000)


def test_a_newer_form_is_named() -> None:
    """An extent of a newer format is reported as such, and not as damage."""
    with pytest.raises(extents.NewerExtentError, match="of form 2"):
        extents.rows(b"\2" + payload(Random(1))[1:])


def test_a_node_that_would_not_be_read_back_stays() -> None:
    """Nodes whose entries are huge in replies are not for a file; all others are, whatever their size."""
    twins = Twins()
    for at in range(40):
        twins.add(1 << 64, [b"n" * 40_000, b""], (0, 0))
        twins.add(1, [b"f", b"x" * at * 100], (0, 0))
    for store in (twins.python, twins.native):
        (node,) = store.nodes()
        assert nodeform.may_go(node)
        assert list(extents.nodes(extents.encode([node]))) == [node.pack()]
    for _ in range(7_000):
        twins.native.append(twins.last + 1, [b"n" * 40_000, b""], fresh=False)
        twins.last += 1
    (node,) = twins.native.nodes()
    assert not nodeform.may_go(node)


@pytest.mark.parametrize("seed", range(20))
def test_a_lean_node_has_the_same_live_entries_in_both_cores(seed: int) -> None:
    """A node without the values of its dead entries keeps ids, places and live entries, and is as full as before."""
    random = Random(seed)
    saved = 0
    for node in grown(random, 40).python.nodes():
        facts, data = nodeform.encode(node)
        before = list(node.entries())
        died = {at for at, (_, is_dead, _) in enumerate(before) if not is_dead and not random.randrange(3)}
        fresh, lean = nodeform.lean(facts, data, sum(1 << at for at in died))
        saved += len(data) - len(lean)
        packed = nodeform.decode(fresh, lean)
        block = Block.unpack(packed, None)
        after = list(block.entries())
        assert [(entry, dead or at in died) for at, (entry, dead, _) in enumerate(before)] == [e[:2] for e in after]
        assert [e for e in after if not e[1]] == [e for at, e in enumerate(before) if not e[1] and at not in died]
        assert fresh.payload == facts.payload
        assert len(block.listpack()) <= block.size
        assert nodeform.lean(fresh, lean) == (fresh, lean)
        store = EntryStore()
        store.extend([packed])
        (native,) = store.nodes()
        assert nodeform.encode(native) == (fresh, lean)
        assert native.listpack() == block.listpack()
    assert saved > 0

"""Damaged nodes of a snapshot with a valid checksum are refused, or consistent in every part.

Repeat the campaign on a core with checks of memory (``make core ARGS=--sanitize``) to see that nothing is read beyond.
"""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from engine.twins import native
from millstream.engine.ids import MAX_ID
from millstream.engine.streams.entries import PyEntryStore
from support import campaign

NUMBERS = [0, 1, 2, 5, 7, 99, -1, 2**31, 2**48, 2**62, 2**63 - 1, -(2**63), 2**64]
ODD: list[Any] = [None, b"", b"f", "f", 1, -1, [], [b"f"], [1], 2**70, 1.5]


def made(random: Random) -> list[Any]:
    """Return a node as in a snapshot: shared and other names, with some tombstones."""
    store = native.EntryStore()
    last = random.choice((1, 5 << 64, (1 << 64) + 3))
    count = random.randrange(1, 9)
    for at in range(count):
        last += random.choice((1, 9, 1 << 64, 1 << 70))
        names = [b"f", b"name"] if random.randrange(4) else [b"other" * random.randrange(30)]
        words = [word for name in names for word in (name, b"v" * random.choice((0, 1, 9, 300)))]
        store.append(last, words, fresh=not at)
    for entry in random.sample(list(store.ids(0, MAX_ID)), random.randrange(count)):
        store.remove(entry, keep=True)
    [node] = store.nodes()
    packed: list[Any] = node.pack()
    return packed


def damaged(packed: list[Any], random: Random) -> list[Any]:
    """Return the node with one or two parts, bytes or numbers changed."""
    found: list[Any] = [list(part) if isinstance(part, list) else part for part in packed]
    for _ in range(random.choice((1, 1, 1, 2))):
        at = random.randrange(6)
        part = found[at]
        if random.randrange(40) == 0:
            found[at] = random.choice(ODD)
        elif isinstance(part, list):
            _spoil_list(part, at, random)
        elif isinstance(part, bytes):
            found[at] = _spoilt(part, random)
    if random.randrange(60) == 0:
        del found[random.randrange(6)]
    return found


def _spoil_list(part: list[Any], at: int, random: Random) -> None:
    places = range(len(part))
    kind = random.randrange(4)
    if kind == 0 or not part:
        part.insert(random.randrange(len(part) + 1), random.choice(ODD if at == 4 else NUMBERS))
    elif kind == 1:
        del part[random.choice(places)]
    elif kind == 2:
        part[random.choice(places)] = random.choice(ODD if at == 4 else NUMBERS)
    else:
        one, other = random.choice(places), random.choice(places)
        part[one], part[other] = part[other], part[one]


def _spoilt(part: bytes, random: Random) -> bytes:
    at = random.randrange(len(part) + 1)
    kind = random.randrange(6)
    if kind == 0:
        return part[:at]
    if kind == 1:
        return part[:at] + random.randbytes(random.choice((1, 4, 16))) + part[at:]
    if kind == 2:
        size = random.choice((1, 4, 16))
        return part[:at] + part[at + size :]
    if kind == 3:
        number = random.choice(
            (b"0", b"00", b"01", b"1", b"7", b"65536", b"999999999999999999", b"-1", b"18446744073709551615")
        )
        heads = list(re.finditer(rb"[$*]\d+", part))
        if heads:
            head = random.choice(heads)
            return part[: head.start() + 1] + number + part[head.end() :]
    return part[:at] + random.randbytes(1) + part[at + 1 :]


def said(packed: list[Any]) -> list[Any]:
    """Return the reliable content of a node: with a tombstone, neither bytes nor positions."""
    return [packed[0], *packed[2:5]] if packed[2] else packed


def try_damages(seed: int, count: int) -> int:
    """Damage nodes and load them; return the number of accepted ones."""
    random = Random(seed)
    accepted = 0
    for _ in range(count):
        packed = made(random)
        wrong = damaged(packed, random)
        store = native.EntryStore()
        try:
            store.extend([wrong])
        except (ValueError, TypeError, OverflowError):
            assert (store.length, store.node_count) == (0, 0)
            continue
        accepted += 1
        [node] = store.nodes()
        assert said(node.pack()) == said(wrong), (seed, wrong)
        entries = list(store.ids(0, MAX_ID))
        assert len(entries) == len(set(entries)) == store.length
        assert store.reply(0, MAX_ID, -1, backwards=True)[0] == len(entries)
        store.needs_block(10, 4096, 100)
        for entry in entries:
            assert store.remove(entry, keep=True)
    assert accepted < count / 3
    return count


def test_a_node_that_was_not_damaged_is_read() -> None:
    """An undamaged node is read."""
    random = Random(0)
    for _ in range(200):
        packed = made(random)
        store = native.EntryStore()
        store.extend([packed])
        [node] = store.nodes()
        assert node.pack() == packed


PARTS: list[tuple[int, Any]] = [
    (0, b""),
    (0, b"x" * 17),
    (0, b"x" * 16),
    (1, b""),
    (1, b"\1\0\0\0" + b"\0" * 8),
    (1, b"\0" * 8 + b"\xff" * 4),
    (2, [-1]),
    (2, [3]),
    (3, [4, 0, 9]),
    (3, [0, 4, 9]),
    (3, [0, 3, -1]),
    (3, [0, 3, 2**63 - 1]),
]


@pytest.mark.parametrize("make", [PyEntryStore, native.EntryStore])
@pytest.mark.parametrize(("part", "wrong"), PARTS)
def test_parts_that_do_not_belong_together_are_refused(make: Callable[[], Any], part: int, wrong: Any) -> None:
    """Both cores refuse parts of a node that do not fit together: no position is out of bounds."""
    whole = make()
    for entry in (1, 2, 3):
        whole.append(entry, [b"f", b"v"], fresh=entry == 1)
    [packed] = [node.pack() for node in whole.nodes()]
    make().extend([packed])
    packed[part] = wrong
    with pytest.raises(ValueError, match="a packed node is damaged"):
        make().extend([packed])


def test_damaged_nodes_are_refused_or_as_they_say() -> None:
    """Nodes with damaged bytes, lengths, positions, names, counters or types are refused, or consistent."""
    try_damages(1, 3000)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_damaged_nodes_are_refused_or_as_they_say() -> None:
    """400,000 damaged nodes are refused, or consistent in every part."""
    campaign.run("packed-nodes", lambda seed: try_damages(seed, 4000), range(100, 200), unit="nodes")

"""The entry store in C does the same as the one in Python: step by step, in everything visible.

A longer campaign (`make test-long`): a million steps, see ``support.campaign``.
"""

import gc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.twins import NAMES, STEPS, VALUES, Twins, native, seen, step
from millstream.engine.ids import MAX_ID, pack_all
from millstream.engine.streams.entries import PyEntryStore
from support import campaign

FIELDS = [b"f", b"v"]

fields = st.sampled_from(NAMES).flatmap(
    lambda names: st.lists(st.sampled_from(VALUES), min_size=len(names), max_size=len(names)).map(
        lambda values: [word for pair in zip(names, values, strict=True) for word in pair]
    )
)
numbers = st.one_of(st.integers(-1, 40), st.sampled_from([MAX_ID, MAX_ID + 1, 1 << 64, 2**63]))


class TwinMachine(RuleBasedStateMachine):
    """Both stores, given the same steps, which hypothesis shrinks on a difference."""

    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins()

    @rule(more=st.sampled_from(STEPS), words=fields, node=st.integers(0, 4), size=st.sampled_from([0, 60, 4096]))
    def add(self, more: int, words: list[bytes], node: int, size: int) -> None:
        self.twins.add(more, words, (size, node))

    @rule(more=st.sampled_from(STEPS), words=fields)
    def add_a_tombstone(self, more: int, words: list[bytes]) -> None:
        self.twins.add(more, words, (0, 4), dead=True)

    @rule(pick=numbers, keep=st.booleans())
    def remove(self, pick: int, keep: bool) -> None:
        self.twins.both("remove", self._near(pick), keep=keep)

    @rule(pick=numbers, keep=st.booleans())
    def remove_below(self, pick: int, keep: bool) -> None:
        self.twins.both("remove_below", self._near(pick), keep=keep)

    @rule(pick=numbers)
    def drop_emptied(self, pick: int) -> None:
        self.twins.both("drop_emptied", self._near(pick))

    @rule(pick=st.integers(0, 40))
    def go_back(self, pick: int) -> None:
        self.twins.back(self._near(pick))

    @precondition(lambda self: self.twins.python.node_count)
    @rule()
    def restore(self) -> None:
        self.twins.restore()

    @rule()
    def copy(self) -> None:
        self.twins.copy()

    @rule(start=numbers, end=numbers, count=st.integers(-1, 4))
    def compare(self, start: int, end: int, count: int) -> None:
        self.twins.compare(self._near(start), self._near(end), count)

    @invariant()
    def equal(self) -> None:
        self.twins.compare(0, MAX_ID, -1)

    def _near(self, pick: int) -> int:
        """Return the stored id at this position, if there is one; else the number itself."""
        stored = [entry for node in self.twins.python.nodes() for entry, _, _ in node.entries()]
        return stored[pick] if 0 <= pick < len(stored) else pick


TestTwins = TwinMachine.TestCase
TestTwins.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def steps(seed: int, number: int) -> int:
    """Run random steps on new stores, compared now and then and at the end."""
    random, twins = Random(seed), Twins()
    for _ in range(number):
        step(twins, random)
        if random.random() < 0.2:
            twins.compare(twins.some_id(random), twins.some_id(random), random.choice((-1, -1, 0, 1, 3, 50)))
    twins.compare(0, MAX_ID, -1)
    return number


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_lead_to_the_same(seed: int) -> None:
    """Nodes, sizes, ids and the bytes of replies and snapshots are the same in both cores after random steps."""
    steps(seed, 300)


def ten_thousand_steps(seed: int) -> int:
    """Run a piece of the campaign."""
    return sum(steps(seed * 1000 + at, (20, 100, 1000)[at % 3]) for at in range(27))


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_million_random_steps_lead_to_the_same() -> None:
    """Both cores are equal after a million random steps.

    The sanitizers' build also shows that no byte is read out of bounds.
    """
    campaign.run("twins", ten_thousand_steps, range(1, 101), unit="steps")


def filled(make: Callable[[], Any], number: int = 12) -> Any:
    """Return a store of nodes of five, with a tombstone in the first."""
    store = make()
    for entry in range(1, number + 1):
        store.append(entry << 64 | 7, [b"f", b"%d" % entry], fresh=store.needs_block(2, 0, 5))
    store.remove(2 << 64 | 7, keep=True)
    return store


DAMAGES: dict[str, Callable[[list[Any]], object]] = {
    "five parts": lambda node: node.pop(),
    "no ids": lambda node: node.__setitem__(0, b""),
    "half an id": lambda node: node.__setitem__(0, node[0][:-1]),
    "an id too few": lambda node: node.__setitem__(0, node[0][:-16]),
    "an id too many": lambda node: node.__setitem__(0, node[0] + b"\xff" * 16),
    "descending ids": lambda node: node.__setitem__(0, pack_all([5, 4, 3, 2, 1])),
    "ids of another type": lambda node: node.__setitem__(0, "text"),
    "a tombstone nowhere": lambda node: node.__setitem__(2, [99]),
    "tombstones out of order": lambda node: node.__setitem__(2, [3, 1]),
    "a tombstone of another type": lambda node: node.__setitem__(2, [b"1"]),
    "no counters": lambda node: node.__setitem__(3, []),
    "a counter of another type": lambda node: node.__setitem__(3, [0, 5, b"9"]),
    "no bytes": lambda node: node.__setitem__(5, b""),
    "bytes behind": lambda node: node.__setitem__(5, node[5] + b"*"),
    "a huge word": lambda node: node.__setitem__(5, node[5].replace(b"$1\r\nf", b"$999999999999999999\r\nf", 1)),
    "a huge entry": lambda node: node.__setitem__(5, node[5].replace(b"*2\r\n$1\r\n", b"*999999998\r\n$1\r\n", 1)),
    "an odd entry": lambda node: node.__setitem__(5, node[5].replace(b"*2\r\n$1\r\n", b"*1\r\n$1\r\n", 1)),
    "not a number": lambda node: node.__setitem__(5, node[5].replace(b"$1\r\n", b"$x\r\n", 1)),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_node_of_a_snapshot_is_refused(what: str) -> None:
    """A damaged node of a snapshot is refused without reading out of bounds, and the store is unchanged."""
    packed = [node.pack() for node in filled(native.EntryStore).nodes()]
    DAMAGES[what](packed[0])
    store = native.EntryStore()
    with pytest.raises((ValueError, TypeError)):
        store.extend(packed)
    assert (store.length, store.node_count) == (0, 0)


def test_no_cut_through_a_nodes_bytes_is_read_over() -> None:
    """A node's bytes cut at any offset are refused, and not read past their end."""
    (packed, *_) = [node.pack() for node in filled(native.EntryStore).nodes()]
    for size in range(len(packed[5])):
        with pytest.raises(ValueError, match="a packed node is damaged"):
            native.EntryStore().extend([[*packed[:5], packed[5][:size]]])


def test_nodes_of_a_snapshot_are_added_in_order() -> None:
    """Nodes of a snapshot that would lie below existing ones are refused, and none of them is added."""
    packed = [node.pack() for node in filled(native.EntryStore).nodes()]
    store = native.EntryStore()
    store.extend(packed[:2])
    with pytest.raises(ValueError, match="out of order"):
        store.extend([packed[2], packed[0]])
    store.extend(packed[2:])
    assert [seen(node) for node in store.nodes()] == [seen(node) for node in filled(PyEntryStore).nodes()]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda store: store.append(MAX_ID + 1, FIELDS, fresh=True), OverflowError),
        (lambda store: store.append(-1, FIELDS, fresh=True), OverflowError),
        (lambda store: store.append(3, FIELDS, fresh=False), ValueError),
        (lambda store: store.append(MAX_ID, [b"f"], fresh=False), ValueError),
        (lambda store: store.append(MAX_ID, ["f", b"v"], fresh=False), TypeError),
        (lambda store: store.append(MAX_ID, b"fv", fresh=False), TypeError),
        (lambda store: store.append(MAX_ID, FIELDS), TypeError),
        (lambda store: store.append("1", FIELDS, fresh=False), TypeError),
        (lambda store: store.remove("1"), TypeError),
        (lambda store: store.remove_below(5), TypeError),
        (lambda store: store.ids(backwards=True), TypeError),
        (lambda store: store.rows(backwards=True), TypeError),
        (lambda store: store.wire(None), TypeError),
        (lambda store: store.ids("-", "+"), TypeError),
        (lambda store: "1" in store, TypeError),
        (lambda store: store.needs_block(2**64, 0, 0), OverflowError),
        (lambda store: store.extend(5), TypeError),
        (lambda store: native.EntryStore().append(1, FIELDS, fresh=False), IndexError),
    ],
)
def test_what_the_engine_never_asks_is_an_error(wrong: Callable[[Any], object], error: type[Exception]) -> None:
    """Calls that the engine never makes raise an error, and the store is unchanged."""
    store = filled(native.EntryStore)
    before = [seen(node) for node in store.nodes()]
    with pytest.raises(error):
        wrong(store)
    assert [seen(node) for node in store.nodes()] == before


def test_a_view_of_a_node_ends_with_the_next_change() -> None:
    """A view of a node becomes invalid with the next change of its store, so it never shows freed memory."""
    store = filled(native.EntryStore)
    nodes, rows = store.nodes(), store.rows(0, MAX_ID)
    node = next(nodes)
    next(rows)
    store.append(MAX_ID, FIELDS, fresh=False)
    for look in (lambda: node.first, node.live_ids, node.entries, node.pack, lambda: next(nodes), lambda: next(rows)):
        with pytest.raises(RuntimeError, match="changed"):
            look()


def test_a_view_keeps_its_store() -> None:
    """A view of a node keeps its store alive, also without another reference."""
    node, rows = next(filled(native.EntryStore).nodes()), filled(native.EntryStore).rows(0, MAX_ID)
    gc.collect()
    assert (node.stored, len(list(rows))) == (5, 11)


def test_a_reply_of_many_bytes_is_in_pieces() -> None:
    """A large reply comes in pieces, so that its largest node is not copied a second time."""
    twins = Twins()
    for _ in range(300):
        twins.add(1, [b"f", b"x" * 4000], (4096, 100))
    twins.compare(0, MAX_ID, -1)
    assert len(twins.native.reply(0, MAX_ID)[1]) > 1

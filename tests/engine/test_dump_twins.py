"""Dumps are written and read in C as in Python: equal bytes, and equal results for damaged ones.

A longer campaign (`make test-long`): a million damaged payloads, see ``support.campaign``.
"""

from collections.abc import Callable
from random import Random

import pytest

from engine.dump_twins import compressed_told, listpacks_told, records_told, some_node, whole_and_damaged
from engine.twins import native
from millstream.engine.serialization import plain
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb import bulk as rdb_bulk
from support import campaign


@pytest.mark.parametrize("seed", range(10))
def test_damaged_dumps_are_the_same_to_both(seed: int) -> None:
    """Both cores refuse a damaged dump, or read the same entries, records, Redis nodes or bytes from it."""
    tried, taken = whole_and_damaged(seed, 600)
    assert tried >= 600
    assert taken > tried // 20


def ten_thousand_dumps(seed: int) -> int:
    """Run a piece of the campaign."""
    return whole_and_damaged(1000 + seed, 10_000)[0]


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_million_damaged_dumps_are_the_same_to_both() -> None:
    """Both cores have the same result for a million damaged dumps.

    The sanitizers' build also shows that no byte is read out of bounds.
    """
    campaign.run("dumps", ten_thousand_dumps, range(1, 101), unit="damaged payloads")


def test_the_checksum_is_the_same() -> None:
    """Both cores compute the same checksum for every length, though the native one takes eight bytes at a time."""
    data = Random(1).randbytes(100)
    for start in range(9):
        for end in range(start, len(data)):
            part = memoryview(data)[start:end]
            assert native.crc64(part) == rdb_bulk.py_crc64(part)
    assert native.crc64(b"123456789") == 0xE9C6D914C4B8D9CA


TIMES: list[object] = [5, None, b"text", [], [[[1]]], 2**132, -(2**132)]


@pytest.mark.parametrize("time", TIMES)
def test_the_time_of_a_record_that_nobody_has_may_be_anything(time: object) -> None:
    """The time of a released record is not checked in a dump, since old logs may hold any value."""
    assert records_told(b"\0" + plain.pack([[1, None, time, 3]]))[0][2] == [(1, None, 0, 3)]


@pytest.mark.parametrize("time", [[[[[1]]]], [[[[]]]]])
def test_but_no_deep_nesting(time: object) -> None:
    """Deeply nested lists in place of that time are refused."""
    assert records_told(b"\0" + plain.pack([[1, None, time, 3]])) == "refused"


def test_numbers_of_a_node_are_written_in_the_one_way() -> None:
    """A count in a node may be text in the form that Redis accepts. Python's other spellings are refused."""
    key = (1).to_bytes(8, "big") + (1).to_bytes(8, "big")

    def node(live: bytes) -> bytes:
        head = bytes([0x80 | len(live)]) + live + bytes([len(live) + 1])
        body = head + b"\x00\x01" + b"\x01\x01\x81f\x02\x00\x01" + b"\x02\x01\x00\x01\x00\x01\x81v\x02\x04\x01"
        return (len(body) + 7).to_bytes(4, "little") + b"\0\0" + body + b"\xff"

    assert listpacks_told([(key, node(b"1"))])[0] == 1
    for text in (b"+1", b" 1", b"01", b"1_0", b"-1", b"\xd9\xa1", b"", b"9" * 30):
        assert listpacks_told([(key, node(text))]) == "refused"


def test_a_size_that_cannot_be_takes_no_memory() -> None:
    """A size in a payload is compared with the bytes that are left before any memory is allocated."""
    for size in (2**31, 2**40, 2**63, 2**64 - 1, 265):
        assert compressed_told(b"\x00", size) == "refused"
    for reader in (rdb_bulk.py_read_pending, native.read_pending):
        with pytest.raises(MalformedError):
            reader(b"\0" * 100, 0, 2**62)


def wrong(number: int) -> tuple[Callable[[], object], type[Exception]]:
    """Return calls that the engine never makes."""
    group = native.Group(0, 0)
    node = some_node(Random(1), 1)
    calls: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: native.pack_entries(group), TypeError),
        (lambda: native.pack_records(native.EntryStore(), {}), TypeError),
        (lambda: native.read_entries(bytearray(b"\x06\x00"), 0), TypeError),
        (lambda: native.read_entries(b"\x06\x00", 3), ValueError),
        (lambda: native.read_entries(b"\x06\x00", -1), ValueError),
        (lambda: native.read_records(b"\x06\x00", 0, group, [b"c"]), TypeError),
        (lambda: native.read_listpacks([node[0]]), TypeError),
        (lambda: native.read_listpacks([(bytearray(node[0]), node[1])]), TypeError),
        (lambda: native.read_listpacks(node), TypeError),
        (lambda: native.read_pending(b"", 0, -1), OverflowError),
        (lambda: native.assign_pending(group, b"\0" * 32, [(b"c", b"")]), TypeError),
        (lambda: native.crc64("text"), TypeError),
    ]
    return calls[number]


@pytest.mark.parametrize("number", range(12))
def test_what_the_engine_never_asks_is_an_error(number: int) -> None:
    """Calls that the engine never makes raise an error, and nothing is misread."""
    call, error = wrong(number)
    with pytest.raises(error):
        call()


def test_a_record_of_a_consumer_that_is_not_there_is_not_packed() -> None:
    """A pending record whose consumer is missing is an error on packing, and does not go to another consumer."""
    group = native.Group(0, 0)
    group.assign(1, group.consumer(b"c", 1), 5, 1)
    with pytest.raises(KeyError):
        native.pack_records(group, {b"d": 0})

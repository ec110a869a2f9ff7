"""The encoder: each reply type in both protocols, and a parser reads back what was encoded."""

import itertools
import math
from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.protocol.encoder import encode, error_line, weight
from millstream.replies import NIL_ARRAY, OK, Error, Map, MapNames, MapRow, Push, Raw, Reply, Set, Simple, Verbatim


def wire(value: Reply, resp: int) -> bytes:
    return b"".join(encode(value, resp))


@pytest.mark.parametrize(
    ("value", "resp2", "resp3"),
    [
        (5, b":5\r\n", b":5\r\n"),
        (-9223372036854775808, b":-9223372036854775808\r\n", b":-9223372036854775808\r\n"),
        (b"hi", b"$2\r\nhi\r\n", b"$2\r\nhi\r\n"),
        (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
        (None, b"$-1\r\n", b"_\r\n"),
        (NIL_ARRAY, b"*-1\r\n", b"_\r\n"),
        ([], b"*0\r\n", b"*0\r\n"),
        ([1, [b"a", None]], b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n", b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n"),
        (True, b":1\r\n", b"#t\r\n"),
        (False, b":0\r\n", b"#f\r\n"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (3.0, b"$1\r\n3\r\n", b",3\r\n"),
        (-math.inf, b"$4\r\n-inf\r\n", b",-inf\r\n"),
        (OK, b"+OK\r\n", b"+OK\r\n"),
        (Error("ERR no"), b"-ERR no\r\n", b"-ERR no\r\n"),
        (Error("ERR a\r\nb"), b"-ERR a  b\r\n", b"-ERR a  b\r\n"),
        (Error("ERR '\udcff'"), b"-ERR '\xff'\r\n", b"-ERR '\xff'\r\n"),
        (Map([(b"k", 1)]), b"*2\r\n$1\r\nk\r\n:1\r\n", b"%1\r\n$1\r\nk\r\n:1\r\n"),
        (Set([1, 2]), b"*2\r\n:1\r\n:2\r\n", b"~2\r\n:1\r\n:2\r\n"),
        (Push([b"p"]), b"*1\r\n$1\r\np\r\n", b">1\r\n$1\r\np\r\n"),
        (Verbatim(b"text"), b"$4\r\ntext\r\n", b"=8\r\ntxt:text\r\n"),
        (Raw([b"*1\r\n", memoryview(b":1\r\n")]), b"*1\r\n:1\r\n", b"*1\r\n:1\r\n"),
        ([Raw([b":1\r\n"]), Simple(b"x")], b"*2\r\n:1\r\n+x\r\n", b"*2\r\n:1\r\n+x\r\n"),
    ],
)
def test_each_type(value: Reply, resp2: bytes, resp3: bytes) -> None:
    """Each reply type is encoded for RESP2 and RESP3, alone and inside an array."""
    assert wire(value, 2) == resp2
    assert wire(value, 3) == resp3
    assert wire([value], 2) == b"*1\r\n" + resp2
    assert wire([value], 3) == b"*1\r\n" + resp3


def test_error_stays_one_line() -> None:
    """An error's text cannot add a second reply."""
    assert error_line("ERR x\r\n+OK\r\n") == b"-ERR x  +OK  \r\n"


def test_small_buffers_are_joined_and_large_ones_not_copied() -> None:
    """Large blocks of a reply are passed without a copy, and the small parts between them are joined."""
    block = memoryview(b"$100000\r\n" + b"x" * 100_000 + b"\r\n")
    buffers = encode([1, 2, Raw([block]), 3, 4], 2)
    assert [len(buffer) for buffer in buffers] == [12, len(block), 8]
    assert buffers[1] is block
    assert [len(buffer) for buffer in encode(Raw([block, block, b":1\r\n"]), 2)] == [len(block), len(block), 4]
    assert encode(Raw([b":1\r\n", block]), 2)[1] is block
    assert len(encode([1, b"x", [b"y"] * 100], 2)) == 1
    assert len(encode(Raw([b"*2\r\n", b":1\r\n", b":2\r\n"]), 2)) == 1


values: st.SearchStrategy[Any] = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=20) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@given(values)
@settings(max_examples=300, deadline=None)
def test_resp3_round_trip(value: Any) -> None:
    """A RESP3 parser reads back exactly what was encoded."""
    reader = hiredis.Reader()
    reader.feed(wire(value, 3))
    assert reader.gets() == value
    assert reader.gets() is False


@given(values)
@settings(max_examples=300, deadline=None)
def test_resp2_round_trip(value: Any) -> None:
    """A RESP2 parser reads back what was encoded, with booleans as numbers."""
    reader = hiredis.Reader()
    reader.feed(wire(value, 2))
    assert reader.gets() == value


@pytest.mark.parametrize("resp", [2, 3])
def test_a_row_is_encoded_as_the_map_of_its_pairs(resp: int) -> None:
    """Rows with values of any kinds have the same bytes as maps, also with a per cent sign or a large string."""
    names = MapNames(b"name", b"entries-read", b"lag")
    kinds: list[Reply] = [1, 2**70, None, b"", b"a%db", b"x" * 70_000, Raw([b"*0\r\n"]), True, [1, b"z"], Simple(b"OK")]
    for values in itertools.product(kinds, repeat=3):
        row = MapRow(names, *values)
        pairs: list[tuple[Reply, Reply]] = [*zip(names.names, values, strict=True)]
        assert b"".join(encode(row, resp)) == b"".join(encode(Map(pairs), resp))
        assert weight(row) == weight(Map(pairs))

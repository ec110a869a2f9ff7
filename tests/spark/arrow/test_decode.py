"""Replies to Arrow: the fast decoder equals the parser where it replies, and it handles entries with equal fields."""

import subprocess
import sys

import hiredis
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.spark.arrow.arrays import optional_strings
from millstream.spark.arrow.decode import decode, decode_parsed, parse_replies
from millstream.spark.arrow.decode_uniform import decode_uniform
from millstream.spark.arrow.page import Page, Want
from millstream.spark.model.offsets import Id

Entry = tuple[bytes, list[bytes]]

TAIL = b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"
"""The bytes after a page: the reply with the stream's first entry."""


def reply(entries: list[Entry]) -> bytes:
    """Build the bytes of an XRANGE reply."""

    def bulk(value: bytes) -> bytes:
        return b"$%d\r\n%s\r\n" % (len(value), value)

    body = [b"*2\r\n" + bulk(ident) + b"*%d\r\n" % len(flat) + b"".join(map(bulk, flat)) for ident, flat in entries]
    return b"*%d\r\n" % len(entries) + b"".join(body)


def same(one: Page, other: Page) -> bool:
    """Return True if two pages are equal, including bytes that are not UTF-8."""

    def raw(array: pa.Array | None) -> object:
        if array is None:
            return None
        if pa.types.is_map(array.type):
            return [array.offsets.to_pylist(), raw(array.keys), raw(array.items)]
        if pa.types.is_list(array.type):
            return array.to_pylist()
        return array.view(pa.binary()).to_pylist()

    return (
        raw(one.ids) == raw(other.ids)
        and one.times.tolist() == other.times.tolist()
        and one.fields.keys() == other.fields.keys()
        and all(raw(one.fields[name]) == raw(other.fields[name]) for name in one.fields)
        and raw(one.pairs) == raw(other.pairs)
        and raw(one.listed) == raw(other.listed)
        and (one.first, one.last) == (other.first, other.last)
    )


nasty = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"",
            b"\r\n",
            b"\r",
            b"\n",
            b"*2",
            b"*2\r\n",
            b"$3",
            b"$3\r\n1-1\r\n",
            b"+PONG\r\n",
            b"-ERR x\r\n",
            b"\xff\xfe",
            b"$-1\r\n",
        ]
    ),
    st.text(st.characters(codec="utf-8"), max_size=6).map(str.encode),
)
names = st.one_of(
    st.sampled_from([b"a", b"b", b"carrier", b"a_long_name_of_a_field", b"a_long_name_of_x_field", b""]), nasty
)
entry_ids = st.one_of(
    st.integers(10**12, 2 * 10**12).map(lambda ms: b"%d-0" % ms),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).map(lambda pair: b"%d-%d" % pair),
)
wants = st.builds(Want, st.lists(names, max_size=3, unique=True).map(tuple), st.booleans(), st.booleans())
flats = st.lists(st.tuples(names, nasty), min_size=1, max_size=5).map(
    lambda pairs: [part for pair in pairs for part in pair]
)


@settings(deadline=None)
@given(st.lists(st.tuples(entry_ids, flats), min_size=1, max_size=8), wants)
@example([(b"1-1", [b"a", b"x\r\n$1\r\ny"])], Want((b"a",), True))
@example([(b"1-1", [b"a", b"*2", b"b", b"1"]), (b"2-1", [b"a", b"*2\r\n$3\r\n2-1"])], Want((b"a", b"b"), True))
@example([(b"1-1", [b"a", b"1", b"a", b"2"])], Want((b"a",), True))
@example([(b"1-1", [b"a", b"1"]), (b"2-1", [b"b", b"1", b"b", b"2"])], Want((b"b",), True))
@example([(b"1-1", [b"a", b"12345\r\nabcdefgh"])], Want((b"a",), True))  # 15 bytes: a 5 at the end of both lengths
@example([(b"1-1", [b"a", b"1"]), (b"2-1", [b"b", b"1", b"a", b"3"]), (b"3-1", [b"c", b""])], Want((b"a",), True))
def test_the_fast_way_is_right_or_declines(entries: list[Entry], want: Want) -> None:
    """For any bytes in names and values, the fast decoder reads a reply as the real parser does, or declines it."""
    raw = reply(entries)
    slow = decode_parsed(parse_replies(raw)[0], want)
    assert slow is not None
    quick = decode_uniform(raw + TAIL, want)
    if quick is not None:
        assert quick[1] == len(raw)
        assert same(quick[0], slow)
    either, (first,) = decode(raw + TAIL, want, more=1)
    assert either is not None
    assert same(either, slow)
    assert first == [[b"1-1", [b"a", b"b"]]]


@settings(deadline=None)
@given(st.lists(st.tuples(entry_ids, flats), min_size=1, max_size=8))
@example([(b"1-1", [b"a", b"1", b"b", b"2", b"a", b"\xff\r\n"])])
def test_listed_fields_are_the_entry_itself(entries: list[Entry]) -> None:
    """Listed fields keep the order, repeated names and binary values, as an archive requires."""
    page = decode_parsed(parse_replies(reply(entries))[0], Want(listed=True))
    assert page is not None
    assert page.listed is not None
    found = [[part for pair in row for part in (pair["name"], pair["value"])] for row in page.listed.to_pylist()]
    assert found == [flat for _, flat in entries]


usual_names = st.lists(
    st.text("abcdefgh_", min_size=1, max_size=20).map(str.encode), min_size=1, max_size=6, unique=True
)


@settings(deadline=None)
@given(st.lists(st.tuples(entry_ids, flats), min_size=1, max_size=3), st.data())
def test_a_reply_cut_short_is_never_read(entries: list[Entry], data: st.DataObject) -> None:
    """An incomplete reply is never decoded."""
    raw = reply(entries)
    half = raw[: data.draw(st.integers(0, len(raw) - 1))]
    assert decode_uniform(half, Want((), True)) is None


@settings(deadline=None)
@given(st.lists(st.tuples(entry_ids, flats), min_size=1, max_size=3), st.data())
def test_a_reply_of_another_shape_is_left_to_the_parser(entries: list[Entry], data: st.DataObject) -> None:
    """If one byte of a header is wrong, the fast decoder agrees with hiredis or declines the reply."""
    raw = reply(entries)
    headers = [place for place in range(1, len(raw) - 1) if raw[place : place + 1] in b"$*" and raw[place - 1] == 10]
    at = data.draw(st.sampled_from(headers)) + data.draw(st.integers(0, 1))
    raw = raw[:at] + data.draw(st.sampled_from([b":", b"+", b"*", b"$", b"1", b"2", b"3", b"4"])) + raw[at + 1 :]
    quick = decode_uniform(raw + TAIL, Want((), True))
    if quick is not None:
        reader = hiredis.Reader()
        reader.feed(raw + TAIL)  # a longer length may reach into what follows
        slow = decode_parsed(reader.gets(), Want((), True))
        assert slow is not None
        assert same(quick[0], slow)


sizes = st.one_of(st.integers(0, 30), st.integers(90, 110), st.integers(990, 1010), st.integers(9_990, 10_010))


@st.composite
def alike(draw: st.DrawFn) -> list[Entry]:
    """Generate entries of one producer: the same fields in the same order, with any values."""
    each = draw(usual_names)
    values = st.one_of(nasty, st.builds(bytes.__mul__, st.sampled_from([b"x", b"*", b"\n"]), sizes))
    ids = st.tuples(st.integers(10**12, 10**13 - 1), st.sampled_from([0, 7, 42, 2**64 - 1]))
    rows = draw(st.integers(1, 12))
    return [
        (b"%d-%d" % draw(ids), [part for name in each for part in (name, draw(values))]) for _ in range(rows)
    ]  # fmt: skip


@settings(deadline=None)
@given(alike(), wants)
@example([(b"1700000000000-0", [b"a", b"x\r\n$1\r\ny", b"b", b"\r\n"])] * 2, Want((b"b", b"none"), True, True))
@example([(b"1700000000000-0", [b"a", b"1"]), (b"1700000000000-1", [b"a", b"\n*2\r\n$15\r\n"])], Want((b"a",), True))
def test_entries_that_are_alike_are_read_right_or_left(entries: list[Entry], want: Want) -> None:
    """Entries with the same fields are decoded correctly, or declined, whatever their values contain."""
    raw = reply(entries)
    slow = decode_parsed(parse_replies(raw)[0], want)
    assert slow is not None
    quick = decode_uniform(raw + TAIL, want)
    if quick is None:
        # Left are only values with a line that begins with a star, as entries do, or that are longer by far.
        assert any(b"\n*" in b"\n" + value or len(value) > 9999 for _, flat in entries for value in flat[1::2])
    else:
        assert quick[1] == len(raw)
        assert same(quick[0], slow)


def test_values_that_begin_with_a_star_are_read_as_fast() -> None:
    """The fast decoder also reads values that begin with ``*``, the sign at which an entry begins."""
    entries = [(b"%d-0" % (10**12 + row), [b"a", b"*" * (row % 3), b"b", b"*2"]) for row in range(9)]
    quick = decode_uniform(reply(entries) + TAIL, Want(pairs=True))
    assert quick is not None
    assert quick[0].pairs.to_pylist() == [[("a", "*" * (row % 3)), ("b", "*2")] for row in range(9)]


def test_entries_that_differ_are_left_to_the_other_ways() -> None:
    """The fast decoder declines entries that differ in names, order or number of fields, or in the form of their id."""
    usual = (b"1700000000000-0", [b"a", b"1", b"b", b"2"])
    for flat in ([b"a", b"1", b"c", b"2"], [b"b", b"1", b"a", b"2"], [b"a", b"1"], [*usual[1], b"c", b"3"]):
        for entries in ([usual, (usual[0], flat)], [(usual[0], flat), usual]):
            assert decode_uniform(reply(entries) + TAIL, Want((b"a",))) is None
    assert decode_uniform(reply([(b"1-1", usual[1])]) + TAIL, Want()) is None
    twice = reply([(usual[0], [b"a", b"1", b"a", b"2"])]) + TAIL
    assert decode_uniform(twice, Want((b"a",), True)) is None
    found = decode_uniform(twice, Want(listed=True))
    assert found is not None
    assert [pair["value"] for pair in found[0].listed.to_pylist()[0]] == [b"1", b"2"]


READ = """
import sys
from pyspark.sql.types import MapType, StringType, StructField, StructType, TimestampType
from millstream.spark.arrow.columns import Layout
from millstream.spark.arrow.decode import decode
text = StringType()
columns = {"stream": text, "id": text, "timestamp": TimestampType(), "fields": MapType(text, text), "a": text}
layout = Layout.of(StructType([StructField(name, kind) for name, kind in columns.items()]))
page, _ = decode(sys.stdin.buffer.read(), layout.want)
assert layout.batch("s", page).num_rows == 2
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("other", [b"a", b"b"], ids=["alike", "different"])
def test_a_page_becomes_a_batch_without_pandas(other: bytes) -> None:
    """A page becomes a batch without an import of pandas, which costs each worker half a second."""
    raw = reply([(b"1700000000000-0", [b"a", b"1"]), (b"1700000000001-0", [other, b"2"])])
    assert (decode_uniform(raw, Want()) is None) == (other == b"b")
    ended = subprocess.run([sys.executable, "-c", READ], input=raw, check=True, capture_output=True)
    assert ended.stdout == b"False\n"


def test_a_field_named_twice_has_its_last_value() -> None:
    """A field that occurs twice has its last value in a column and in the map."""
    page, _ = decode(reply([(b"1-1", [b"a", b"1", b"b", b"x", b"a", b"2"])]), Want((b"a",), True))
    assert page is not None
    assert page.fields[b"a"].to_pylist() == ["2"]
    assert page.pairs.to_pylist() == [[("a", "2"), ("b", "x")]]


def test_ids_outside_our_times_are_read() -> None:
    """Ids of any two numbers are decoded, not only those with 13 digits of milliseconds."""
    raw = reply([(b"5-1", [b"a", b"1"]), (b"1700000000000-3", [b"a", b"2"])])
    found, _ = decode(raw, Want((b"a",)))
    assert found is not None
    assert found.times.tolist() == [5, 1_700_000_000_000]
    assert (found.first, found.last) == (Id(5, 1), Id(1_700_000_000_000, 3))


def test_an_error_in_place_of_a_page_is_raised() -> None:
    """An error reply in place of a page raises the error."""
    raw = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    with pytest.raises(UsageError, match="WRONGTYPE"):
        decode(raw, Want())


def test_an_empty_page() -> None:
    """An empty reply ends the range."""
    page, rest = decode(b"*0\r\n" + TAIL, Want(), more=1)
    assert page is None
    assert rest == parse_replies(TAIL)


def test_the_test_writes_what_hiredis_reads() -> None:
    """The test's reply builder writes replies that hiredis reads."""
    reader = hiredis.Reader()
    reader.feed(reply([(b"1-1", [b"a", b"x\r\ny"])]))
    assert reader.gets() == [[b"1-1", [b"a", b"x\r\ny"]]]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), nasty), max_size=20))
@example([None] * 9)
@example([b"", None, b"x"] * 8)
def test_strings_are_arrow_s_own(values: list[bytes | None]) -> None:
    """Arrays built from memory equal those that Arrow builds from the same values."""
    made = optional_strings(values)
    made.validate(full=False)
    assert made.view(pa.binary()).to_pylist() == values
    assert made.null_count == values.count(None)

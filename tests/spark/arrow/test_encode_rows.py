"""Rows to commands: they equal commands built one by one, the source reads the values back, and bad rows are named."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import hiredis
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from millstream.errors import ConfigError, UsageError
from millstream.spark.arrow import encode_rows
from millstream.spark.arrow.encode_rows import RowLayout, encode
from millstream.spark.arrow.format_values import texts
from millstream.spark.arrow.parse_values import convert

TEXT_MAP = pa.map_(pa.string(), pa.string())


def commands(batch: pa.RecordBatch, layout: RowLayout) -> list[list[bytes]]:
    """Return the commands of a batch as a server parses them, and check each command's offset."""
    found = []
    for portion in encode(batch, layout):
        for row in range(len(portion.words)):
            reader = hiredis.Reader()
            reader.feed(bytes(portion.data[portion.bounds[row] : portion.bounds[row + 1]]))
            words = reader.gets()
            assert reader.gets() is False
            assert len(words) == portion.words[row]
            found.append(words)
    return found


# --- commands --------------------------------------------------------------------------------------------------------


def test_columns_become_fields_and_nulls_none() -> None:
    """Each column except stream and id becomes a field of its name. Nulls are left out, and binary values are kept."""
    batch = pa.record_batch(
        {
            "stream": ["a", "b", "a"],
            "id": ["1-0", "5", "7-1"],
            "x": pa.array([1, None, 3]),
            "none": pa.nulls(3, pa.string()),
            "raw": pa.array([b"\xff\r\n", b"", None]),
        }
    )
    layout = RowLayout(None, has_id=True, fields=("x", "none", "raw"))
    expected = [
        [b"XADD", b"a", b"1-0", b"x", b"1", b"raw", b"\xff\r\n"],
        [b"XADD", b"b", b"5", b"raw", b""],
        [b"XADD", b"a", b"7-1", b"x", b"3"],
    ]
    assert commands(batch, layout) == expected
    assert commands(batch.slice(1), layout) == expected[1:]
    assert commands(batch.slice(0, 1), RowLayout("t", has_id=False, fields=("x",))) == [
        [b"XADD", b"t", b"*", b"x", b"1"]
    ]


@given(
    rows=st.lists(
        st.dictionaries(st.text(max_size=4), st.none() | st.text(max_size=4), max_size=4) | st.none(),
        min_size=1,
        max_size=9,
    ),
    start=st.integers(0, 9),
)
def test_a_map_of_fields(rows: list[dict[str, str | None] | None], start: int) -> None:
    """A map column becomes fields in its order, without null values, also for a slice of a larger array."""
    wanted = [{key: value for key, value in (row or {}).items() if value is not None} for row in rows[start:]]
    column = pa.array([None if row is None else list(row.items()) for row in rows], TEXT_MAP)
    batch = pa.record_batch({"fields": column}).slice(start)
    if not all(wanted):
        with pytest.raises(UsageError, match="a row has no field"):
            commands(batch, RowLayout("t", has_id=False, fields=()))
        return
    found = commands(batch, RowLayout("t", has_id=False, fields=()))
    flat = [[word.encode() for pair in row.items() for word in pair] for row in wanted]
    assert found == [[b"XADD", b"t", b"*", *words] for words in flat]


@pytest.mark.parametrize("longest", [4095, 4096, 100_000])
def test_values_of_any_length(longest: int) -> None:
    """Values of any length are encoded correctly, and a null among them is left out of its row."""
    sizes = [0, 9, 10, longest, None, 4094]
    values = [None if size is None else "x" * size for size in sizes]
    batch = pa.record_batch({"n": list(range(len(sizes))), "v": pa.array(values), "stream": ["a", "b" * 5000] * 3})
    for layout in (RowLayout("t", has_id=False, fields=("n", "v")), RowLayout(None, has_id=False, fields=("n", "v"))):
        expected = []
        for number, value in enumerate(values):
            target = layout.target or batch.column("stream")[number].as_py()
            words = ["XADD", target, "*", "n", str(number), *([] if value is None else ["v", value])]
            expected.append([word.encode() for word in words])
        assert commands(batch, layout) == expected


def test_large_batches_are_made_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch is encoded in portions that contain every row, so that a task's memory stays small."""
    monkeypatch.setattr(encode_rows, "BATCH_BYTES", 100)
    batch = pa.record_batch({"n": list(range(1000))})
    layout = RowLayout("t", has_id=False, fields=("n",))
    assert len(list(encode(batch, layout))) > 50
    assert [int(words[4]) for words in commands(batch, layout)] == list(range(1000))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"n": pa.array([1, None]), "m": pa.nulls(2, pa.string())}, "a row has no field.*coalesce"),
        ({"n": [1, 2], "stream": pa.array(["a", None])}, "'stream' is null or empty"),
        ({"n": [1, 2], "stream": ["a", ""]}, "'stream' is null or empty"),
        ({"n": [1, 2], "stream": pa.array([b"a", b"\xff"]).view(pa.string())}, "'stream' is not UTF-8"),
    ],
)
def test_rows_that_cannot_be_entries_are_named(columns: dict[str, Any], told: str) -> None:
    """A row that cannot become an entry is an error that names the row and the correction."""
    by_row = "stream" in columns
    fields = tuple(name for name in columns if name != "stream")
    with pytest.raises(UsageError, match=told):
        commands(pa.record_batch(columns), RowLayout(None if by_row else "t", has_id=False, fields=fields))


# --- what columns mean -----------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("schema", "target", "expected"),
    [
        ("a int, b string", "t", RowLayout("t", has_id=False, fields=("a", "b"))),
        ("stream string, id string, a int", None, RowLayout(None, has_id=True, fields=("a",))),
        ("stream string, a int", "t", RowLayout("t", has_id=False, fields=("a",))),
        ("stream string, id string, timestamp timestamp, fields map<string,string>", "t", RowLayout("t", True, ())),
        ("fields string", "t", RowLayout("t", has_id=False, fields=("fields",))),
    ],
)
def test_what_a_column_is_written_as(schema: str, target: str | None, expected: RowLayout) -> None:
    """The target and id columns are found by name. The map ``fields``, or every other column, becomes the fields."""
    assert RowLayout.of(StructType.fromDDL(schema), target) == expected


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("schema", "target", "told"),
    [
        ("a int", None, "option 'stream' is missing. Set .option"),
        ("a int, stream int", None, "'stream' is of type int and must be the key of the stream to add to, a string"),
        ("a int, id bigint", "t", r"'id' is of type bigint and .*withColumnRenamed\('id', ...\)"),
        ("id string", "t", "no column to write"),
        ("fields map<string,int>", "t", "must be map<string,string> or map<string,binary>. Cast it"),
        ("fields map<string,string>, a int", "t", "'a' is next to the map 'fields'.*into the map or drop it"),
        ("a interval day to second", "t", "'a' is of type duration.*. Cast it to string"),
        ("a map<int,string>", "t", "'a' is a map whose keys are not strings, which .*Cast it to string"),
        ("a struct<b:array<map<int,int>>>", "t", "'a' is a map whose keys are not strings"),
        ("a void", "t", "'a' is of type null"),
        (
            "a int, timestamp timestamp",
            "t",
            r"'timestamp' would be read as an entry's own 'timestamp'. .*Renamed\('timestamp',",
        ),
        ("a int, ID string", "t", "'ID' would be read as an entry's own 'id'"),
        ("a int, _corrupt string", "t", "'_corrupt' would be read as"),
    ],
)
def test_columns_that_cannot_be_written_are_named(schema: str, target: str | None, told: str) -> None:
    """A column of an unsupported type is refused before the query runs, with its name and a correction."""
    with pytest.raises(ConfigError, match=told):
        RowLayout.of(StructType.fromDDL(schema), target)


# --- values ----------------------------------------------------------------------------------------------------------

_MOMENTS = st.datetimes()
_NUMBERS = st.floats(allow_nan=False)
_DEEP = pa.struct(
    [
        ("number", pa.decimal128(20, 3)),
        ("list", pa.list_(pa.float64())),
        ("map", pa.map_(pa.string(), pa.binary())),
        ("when", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("whole", pa.int64()),
    ]
)
_VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), _NUMBERS),
    (pa.decimal128(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pa.decimal128(38, 20), st.decimals(-1, 1, places=20)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), _MOMENTS),
    (pa.timestamp("us", tz="UTC"), _MOMENTS.map(lambda when: when.replace(tzinfo=UTC))),
    (pa.list_(pa.string()), st.lists(st.none() | st.text(), max_size=3)),
    (
        _DEEP,
        st.fixed_dictionaries(
            {
                "number": st.none() | st.decimals(-(10**16), 10**16, places=3),
                "list": st.lists(st.none() | _NUMBERS, max_size=3),
                "map": st.dictionaries(st.text(), st.binary(), max_size=3).map(lambda found: list(found.items())),
                "when": _MOMENTS.map(lambda when: when.replace(tzinfo=UTC)),
                "day": st.dates(),
                "text": st.none() | st.text(),
                "flag": st.booleans(),
                "whole": st.integers(-(2**63), 2**63 - 1),
            }
        ),
    ),
]


@given(data=st.data())
@pytest.mark.parametrize(("kind", "values"), _VALUES, ids=[str(kind)[:24] for kind, _ in _VALUES])
def test_what_the_sink_writes_the_source_reads(
    kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """Spark's source reads the values that its sink wrote, of each type, and nulls as nulls."""
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=5)), kind)
    written = texts(column, "c")
    assert written.type == pa.binary()
    found, mistaken = convert(written.view(pa.string()), kind)
    assert found.to_pylist() == column.to_pylist()
    assert mistaken is None


def test_numbers_that_json_has_not() -> None:
    """Numbers that JSON lacks, such as NaN, are written as Spark writes them and read back."""
    kind = pa.list_(pa.float64())
    written = texts(pa.array([[math.nan, math.inf, -math.inf]], kind), "c")
    assert written.to_pylist() == [b'["NaN","Infinity","-Infinity"]']
    (found,) = convert(written.view(pa.string()), kind)[0].to_pylist()
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]
    flat = pa.array([math.nan, math.inf, -math.inf])
    assert str(convert(texts(flat, "c").view(pa.string()), pa.float64())[0]) == str(flat)


def test_text_is_plain() -> None:
    """Times, dates and other values are written as plain text that other programs can read."""
    assert texts(pa.array([datetime(2020, 1, 2, 3, 4, 5, 6, UTC)]), "c").to_pylist() == [b"2020-01-02T03:04:05.000006Z"]
    berlin = pa.array([datetime(2020, 1, 2, 3, tzinfo=UTC)], pa.timestamp("us", tz="Europe/Berlin"))
    assert texts(berlin, "c").to_pylist() == [b"2020-01-02T03:00:00.000000Z"]
    assert texts(pa.array([date(2020, 1, 2)]), "c").to_pylist() == [b"2020-01-02"]
    assert texts(pa.array([Decimal("1.50")]), "c").to_pylist() == [b"1.50"]
    assert texts(pa.array([True, None]), "c").to_pylist() == [b"true", None]


def test_a_value_that_json_cannot_hold_is_named() -> None:
    """Text that is not UTF-8 inside a structure is an error that names the column."""
    inner = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(UsageError, match="column 'c' holds a value that JSON cannot"):
        texts(pa.StructArray.from_arrays([inner], ["x"]), "c")


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="+02:00")]
)
def test_a_time_that_text_cannot_carry_is_refused_with_its_column(kind: pa.DataType) -> None:
    """Times of the years 0000 to 9999 are read back unchanged. Other years are an error that names the column."""
    number, unit = (pa.int32(), 1) if pa.types.is_date(kind) else (pa.int64(), 86_400_000_000)
    first, last = -719_528 * unit, 2_932_897 * unit - 1
    fine = pa.array([first, -1, 0, last, None], number).view(kind)
    found, bad = convert(texts(fine, "due").view(pa.string()), kind)
    assert (found.view(number).to_pylist(), bad) == ([first, -1, 0, last, None], None)
    for value in (first - 1, last + 1, -(2 ** (number.bit_width - 1)), 2 ** (number.bit_width - 1) - 1):
        with pytest.raises(UsageError, match="column 'due' holds 1 value"):
            texts(pa.array([0, value], number).view(kind), "due")

"""Typed columns: correct values, null and a report for bad ones, and no value affects another row."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError, UsageError
from millstream.spark.arrow.columns import Layout
from millstream.spark.arrow.decode import decode_parsed
from millstream.spark.arrow.page import Page
from millstream.spark.arrow.parse_values import convert
from millstream.spark.model.offsets import Id

UTC = pa.timestamp("us", tz="UTC")
BAD = object()


def strings(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def moment(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "cases"),
    [
        (
            pa.int32(),
            {b"5": 5, b"-7": -7, b"+3": 3, b"0x1f": BAD, b"1.5": BAD, b"2147483648": BAD, b" 1": BAD, b"\xff": BAD},
        ),
        (pa.int8(), {b"127": 127, b"128": BAD}),
        (pa.int64(), {b"9223372036854775807": 2**63 - 1, b"9223372036854775808": BAD}),
        (
            pa.float64(),
            {b"1.5": 1.5, b"-2e3": -2000.0, b"inf": float("inf"), b"1,5": BAD, b"0x1p3": BAD, b"12": 12.0, b".5": 0.5},
        ),
        (pa.bool_(), {b"true": True, b"FALSE": False, b"1": True, b"0": False, b"yes": BAD}),
        (
            pa.decimal128(6, 2),
            {
                b"12.34": Decimal("12.34"),
                b"7": Decimal("7.00"),
                b"+0001.500": Decimal("1.50"),
                b"12e-1": Decimal("1.20"),
                b"12345.67": BAD,
                b"1.234": BAD,
                b"x": BAD,
            },
        ),
        (
            pa.decimal128(38, 18),
            {
                b"5" * 23: BAD,
                b"9" * 5000: BAD,
                b"1e30": BAD,
                b"1e999999999999": BAD,
                b"1e-999999999999": BAD,
                b"9" * 20: Decimal("9" * 20),
                b"-0." + b"0" * 17 + b"1": Decimal("-1e-18"),
            },
        ),
        (
            pa.decimal128(20, 2),
            {b"9" * 5000: BAD, b"9" * 18 + b".99": Decimal("9" * 18 + ".99"), b"1" + b"0" * 18: BAD},
        ),
        (pa.decimal128(38, 38), {b"5.1": BAD, b"0.5": Decimal("0.5"), b".5": Decimal("0.5")}),
        (
            pa.list_(pa.decimal128(38, 18)),
            {b"[" + b"5" * 23 + b"]": BAD, b"[1e999999999999]": BAD, b"[5.5]": [Decimal("5.5")]},
        ),
        (pa.date32(), {b"2013-01-31": dt.date(2013, 1, 31), b"2013-02-30": BAD, b"yesterday": BAD}),
        (
            UTC,
            {
                b"2013-01-01T10:00:00Z": moment(2013, 1, 1, 10),
                b"2013-01-01 10:00:00": moment(2013, 1, 1, 10),
                b"2013-01-01T10:00:00.25+02:00": moment(2013, 1, 1, 8, 0, 0, 250000),
                b"2013-01-01": moment(2013, 1, 1),
                b"2013-01-01T10:00:00.123456789Z": moment(2013, 1, 1, 10, 0, 0, 123456),
                b"2013-01-01 10:00:00.1234567": moment(2013, 1, 1, 10, 0, 0, 123456),
                b"2013-01-01T10:00:00+18:00": moment(2012, 12, 31, 16),
                b"2013-01-01T10:00:00+18:01": BAD,
                b"2013-01-01T10:00+01:00": BAD,
                b"10:00": BAD,
                b"1700000000000": BAD,
            },
        ),
        (
            pa.timestamp("us"),
            {
                b"2013-01-01T10:00:00": dt.datetime(2013, 1, 1, 10),  # noqa: DTZ001 - such a column has no zone
                b"2013-01-01T10:00:00.5Z": dt.datetime(2013, 1, 1, 10, 0, 0, 500000),  # noqa: DTZ001 - as above
                b"2013-01-01 10:00:00+00:00": dt.datetime(2013, 1, 1, 10),  # noqa: DTZ001 - as above
                b"2013-01-01T10:00:00-0000": dt.datetime(2013, 1, 1, 10),  # noqa: DTZ001 - as above
                b"2013-01-01T10:00:00+02:00": BAD,
                b"\xff2013-01-01T10:00:00Z": BAD,
            },
        ),
        (
            pa.list_(pa.timestamp("us")),
            {
                b'["2013-01-01T10:00:00Z"]': [dt.datetime(2013, 1, 1, 10)],  # noqa: DTZ001 - as above
                b'["2013-01-01T10:00:00+02:00"]': BAD,
            },
        ),
        (
            pa.list_(pa.date32()),
            {
                b'["2013-01-31"]': [dt.date(2013, 1, 31)],
                b'["20130131"]': BAD,
                b'["2013-W01-1"]': BAD,
                b"[20130131]": BAD,
            },
        ),
        (pa.string(), {b"": "", b"x": "x"}),
        (pa.binary(), {b"": b"", b"\xff\x00": b"\xff\x00"}),
        (
            pa.list_(pa.int32()),
            {b"[1, 2]": [1, 2], b"[]": [], b'[1, "x"]': BAD, b"[3000000000]": BAD, b"{}": BAD, b"[1": BAD},
        ),
        (
            pa.struct([("a", pa.int32()), ("b", pa.string()), ("t", UTC)]),
            {
                b'{"a": 1, "b": "x", "z": 0}': {"a": 1, "b": "x", "t": None},
                b'{"b": [1, true], "t": "2013-01-01T00:00:00Z"}': {
                    "a": None,
                    "b": "[1, true]",
                    "t": moment(2013, 1, 1),
                },
                b'{"a": true}': BAD,
                b"null": None,
                b"7": BAD,
            },
        ),
        (pa.map_(pa.string(), pa.decimal128(4, 1)), {b'{"x": 1.5}': [("x", Decimal("1.5"))], b'{"x": 1.55}': BAD}),
    ],
)
def test_a_value_becomes_its_type_or_null(kind: pa.DataType, cases: dict[bytes, Any]) -> None:
    """A text becomes a value of the column's type or null, whatever its neighbours are."""
    found, mistaken = convert(strings([*cases, None]), kind)
    assert found.type == kind
    expected = [None if value is BAD else value for value in cases.values()]
    assert found.to_pylist() == [*expected, None]
    bad = [place for place, value in enumerate(cases.values()) if value is BAD]
    assert (mistaken or []) == bad


def test_an_empty_value_is_no_number_and_no_mistake() -> None:
    """An empty value becomes null and is not reported as bad, since producers write it for null."""
    found, mistaken = convert(strings([b"", b"4"]), pa.int32())
    assert found.to_pylist() == [None, 4]
    assert mistaken is None


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.none() | st.text("0123456789.", max_size=22).map(str.encode), max_size=6),
    st.sampled_from([pa.int64(), pa.int8(), pa.float64(), pa.float32()]),
)
@example([b"1.2.3", b".", b"..", b"7.", b".5", b"1"], pa.float64())
@example([b"12", b"99999999999999999999"], pa.int64())
def test_columns_of_plain_numbers_take_a_short_cut_to_the_same(values: list[bytes | None], kind: pa.DataType) -> None:
    """The fast path for columns of plain numbers returns the same values as the path that checks each value."""
    short, missed = convert(strings(values), kind)
    whole, mistaken = convert(strings([*values, b"x"]), kind)
    assert short.to_pylist() == whole.to_pylist()[:-1]
    assert [*(missed or []), len(values)] == mistaken


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.integers().map(str), st.text(st.characters(codec="utf-8"), max_size=5)).map(
            lambda text: text and text.encode()
        ),
        max_size=30,
    )
)
def test_integers_agree_with_python(values: list[bytes | None]) -> None:
    """In any mixture, exactly the values that Python reads as plain decimal digits within 32 bits become integers."""

    def expected(value: bytes | None) -> int | None:
        digits = value.removeprefix(b"-").removeprefix(b"+") if value else b""
        plain = digits.isdigit() and len(value or b"") - len(digits) <= 1
        number = int(value) if plain and value else None
        return number if number is not None and -(2**31) <= number < 2**31 else None

    assert convert(strings(values), pa.int32())[0].to_pylist() == [expected(value) for value in values]


def page(rows: list[list[bytes]], layout: Layout) -> Page:
    found = decode_parsed([[b"%d-0" % (place + 1), row] for place, row in enumerate(rows)], layout.want)
    assert found is not None
    return found


def layout(schema: str) -> Layout:
    from pyspark.sql.types import _parse_datatype_string

    return Layout.of(_parse_datatype_string(schema))


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
class TestLayouts:
    """Layouts of schemas. They need a session for Spark's schema parser."""

    def test_bad_values_are_collected_beside_the_row(self) -> None:
        """A value that became null because it was bad is listed in ``_corrupt``."""
        made = layout("a int, id string, b double, _corrupt string")
        batch = made.batch("s", page([[b"a", b"1", b"b", b"2"], [b"a", b"x\xff", b"b", b"y"], [b"c", b"0"]], made))
        told = batch.column("_corrupt").to_pylist()
        assert batch.column("a").to_pylist() == [1, None, None]
        assert batch.column("id").to_pylist() == ["1-0", "2-0", "3-0"]
        assert [text and json.loads(text) for text in told] == [None, {"a": "x\ufffd", "b": "y"}, None]

    def test_columns_come_in_the_order_asked_for(self) -> None:
        """Columns have the order of the schema."""
        made = layout("b string, timestamp timestamp, stream string, a string, fields map<string,string>")
        batch = made.batch("s", page([[b"a", b"1", b"b", b"2"]], made))
        assert batch.schema == made.schema
        assert batch.to_pylist() == [
            {
                "b": "2",
                "timestamp": moment(1970, 1, 1, 0, 0, 0, 1000),
                "stream": "s",
                "a": "1",
                "fields": [("a", "1"), ("b", "2")],
            }
        ]

    @pytest.mark.parametrize(
        "schema",
        [
            "id int",
            "timestamp string",
            "stream binary",
            "fields map<string,int>",
            "_corrupt int",
            "fields string",
            "fields array<struct<name:string,value:string>>",
            "a int, fields map<binary,binary>",
        ],
    )
    def test_columns_of_our_own_have_their_types(self, schema: str) -> None:
        """A built-in column that is declared with a wrong type is refused when the query is created."""
        with pytest.raises(ConfigError, match=r"schema: column .* Declare it as that, or leave it out"):
            layout(schema)

    @pytest.mark.parametrize("name", ["ID", "Stream", "TIMESTAMP", "Fields", "_Corrupt"])
    def test_a_name_that_spark_takes_for_ours_is_refused(self, name: str) -> None:
        """A column name that Spark equates with a built-in one, such as ``ID``, is refused."""
        with pytest.raises(ConfigError, match=f"schema: Spark reads column '{name}' as '{name.lower()}'"):
            layout(f"{name} string, a int")

    @pytest.mark.parametrize(
        "kind",
        ["interval day", "variant", "array<variant>", "map<string,void>", "void", "array<struct<b:interval year>>"],
    )
    def test_a_type_that_no_field_can_be_read_as(self, kind: str) -> None:
        """A column of a type that fields cannot be parsed as is refused with a correction."""
        with pytest.raises(ConfigError, match=r"schema: column 'a' is of type .*declare it string and cast that"):
            layout(f"a {kind}")

    def test_a_missing_value_of_a_column_that_must_have_one(self) -> None:
        """A missing value in a NOT NULL column is an error."""
        made = layout("a string not null")
        assert made.batch("s", page([[b"a", b"1"]], made)).column("a").to_pylist() == ["1"]
        with pytest.raises(UsageError, match="column 'a' is NOT NULL"):
            made.batch("s", page([[b"b", b"1"]], made))

    def test_times_past_the_year_9999_are_null(self) -> None:
        """An id's time after the year 9999 is null, since Spark's timestamps end there."""
        made = layout("timestamp timestamp")
        times = np.array([253_402_300_799_999, 253_402_300_800_000, 2**64 - 1], dtype=np.uint64)
        late = Page(pa.array(["1-0"] * 3), times, {}, None, Id(1, 0), Id(1, 0))
        found = made.batch("s", late).column("timestamp").to_pylist()
        assert found == [moment(9999, 12, 31, 23, 59, 59, 999000), None, None]

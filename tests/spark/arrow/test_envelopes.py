"""Envelopes in columns: a read shows a producer's headers and body, and a write produces the same envelope."""

import hiredis
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from millstream.client.payloads import envelope
from millstream.errors import ConfigError, UsageError
from millstream.spark.arrow.columns import Layout
from millstream.spark.arrow.decode import decode_parsed
from millstream.spark.arrow.encode_rows import RowLayout, encode

MAP = pa.map_(pa.string(), pa.string())


def of(ddl: str) -> StructType:
    """Build a schema without Java."""
    kinds = {"map": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True}}
    columns = [part.split() for part in ddl.split(", ")]
    return StructType.fromJson(
        {"fields": [{"name": n, "type": kinds.get(t, t), "nullable": True, "metadata": {}} for n, t in columns]}
    )


def batch(headers: list[list[tuple[str, str | None]] | None], bodies: list[bytes | None]) -> pa.RecordBatch:
    """Build the rows to write."""
    return pa.RecordBatch.from_arrays([pa.array(headers, MAP), pa.array(bodies, pa.binary())], ["headers", "body"])


def test_headers_and_body_are_columns_and_null_without_an_envelope() -> None:
    """Headers and body are columns, null for an entry without an envelope. A damaged envelope is in ``_corrupt``."""
    sent = envelope.build({"content-type": "application/json", "käse": "ja"}, b'{"n": 1}')
    layout = Layout.of(of("headers map, body string, n string, _corrupt string"), headers=True)
    rows = [
        (b"1-0", [b"__data__", sent, b"n", b"7"]),
        (b"2-0", [b"n", b"8"]),
        (b"3-0", [b"__data__", sent[:20]]),
        (b"4-0", [b"__data__", b"plain"]),
    ]
    page = decode_parsed(rows, layout.want)
    assert page is not None
    found = layout.batch("s", page).to_pylist()
    assert [row["headers"] for row in found] == [
        [("content-type", "application/json"), ("käse", "ja")], None, None, [],
    ]  # fmt: skip
    assert [row["body"] for row in found] == ['{"n": 1}', None, None, "plain"]
    assert [row["n"] for row in found] == ["7", "8", None, None]
    assert [row["_corrupt"] is not None for row in found] == [False, False, True, False]


def test_without_the_option_such_columns_are_fields() -> None:
    """Without the option, columns named ``headers`` and ``body`` are plain fields."""
    layout = Layout.of(of("headers string, body string"))
    page = decode_parsed([(b"1-0", [b"headers", b"a", b"body", b"b"])], layout.want)
    assert page is not None
    assert layout.batch("s", page).to_pylist() == [{"headers": "a", "body": "b"}]


def test_columns_of_an_envelope_have_their_types() -> None:
    """``headers`` and ``body`` columns of a wrong type are refused."""
    with pytest.raises(ConfigError, match="column 'headers' is of the entry's envelope and of type map<string,string>"):
        Layout.of(of("headers string"), headers=True)
    with pytest.raises(ConfigError, match=r"column 'body' .* binary or string"):
        Layout.of(of("body integer"), headers=True)


def test_what_is_written_is_the_envelope_that_was_read() -> None:
    """A write produces the envelope that was read. A null header and a null map are left out."""
    layout = RowLayout.of(of("headers map, body binary"), "s", headers=True)
    (made,) = encode(batch([[("a", "1"), ("b", None)], None], [b"x", b""]), layout)
    reader = hiredis.Reader()
    reader.feed(bytes(made.data))
    assert [reader.gets(), reader.gets()] == [
        [b"XADD", b"s", b"*", b"__data__", envelope.build({"a": "1"}, b"x")],
        [b"XADD", b"s", b"*", b"__data__", envelope.build({}, b"")],
    ]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("body binary", "it takes a column 'headers' of type map<string,string> and a column 'body'"),
        ("headers string, body binary", "it takes a column 'headers' of type map<string,string>"),
        ("headers map, body integer", "'body' of type binary or string"),
        ("headers map, body binary, n integer", "column 'n' is next to 'headers' and 'body'"),
    ],
)
def test_other_columns_are_refused(columns: str, told: str) -> None:
    """Columns beside headers and body that the envelope cannot hold are refused."""
    with pytest.raises(ConfigError, match=told):
        RowLayout.of(of(columns), "s", headers=True)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (batch([[]], [None]), "a row's column 'body' is null"),
        (batch([[("a", "x" * 70_000)]], [b""]), "'headers' cannot be written: .* at most 65,535 bytes"),
    ],
)
def test_a_row_that_no_envelope_can_hold_is_named(rows: pa.RecordBatch, told: str) -> None:
    """A row that no envelope can hold is an error that names the row before anything of the batch is visible."""
    layout = RowLayout.of(of("headers map, body binary"), "s", headers=True)
    with pytest.raises(UsageError, match=told):
        list(encode(rows, layout))

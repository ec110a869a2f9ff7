"""Avro payloads as columns: every type, changed schemas, and errors in payloads or registries."""

import base64
import datetime as dt
import io
import json
import random
import re
import struct
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from millstream.errors import ConfigError, NotLetInError, NotReachedError
from millstream.spark.payloads import registry as registry_module
from millstream.spark.payloads.avro_types import AvroColumns
from millstream.spark.payloads.functions import UndecodableError, decoded
from millstream.spark.payloads.registry import Registry
from support.ports import free_port
from support.registries import SchemaRegistry, schema_registry

ORDER_1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": "string"}],
}
ORDER_2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "item", "type": "string"},
    ],
}

EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "namespace": "shop",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "wide", "type": ["int", "long"]},
        {"name": "real", "type": ["float", "double", "null"]},
        {"name": "raw", "type": "bytes"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "clock", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "noon", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "key", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "keys", "type": {"type": "array", "items": {"type": "string", "logicalType": "uuid"}}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "inner",
            "type": {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": ["null", "int"]}]},
        },
    ],
}
KEY = uuid.UUID(int=7)
CLOCK = dt.datetime.fromisoformat("2024-01-01T00:00:00.000001")
VALUES: dict[str, Any] = {
    "flag": True, "wide": 2**40, "real": 0.5, "raw": b"\xff", "price": Decimal("12.50"), "day": dt.date(2024, 2, 29),
    "at": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), "exact": None, "clock": CLOCK,
    "noon": dt.time(12, 0), "key": KEY, "kind": "B", "again": "A", "code": b"xy", "keys": [KEY], "counts": {"a": 1},
    "inner": {"n": None},
}  # fmt: skip


def avro(schema: Any, value: Any) -> bytes:
    """Encode a value with Avro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(ident: int, schema: Any, value: Any) -> bytes:
    """Encode a value with the frame of Confluent's serializers."""
    return struct.pack(">bI", 0, ident) + avro(schema, value)


def read(payloads: list[bytes | None], schema: Any, url: str | None = None, *, permissive: bool = False) -> list[Any]:
    """Decode payloads as a worker does."""
    return decoded(
        pa.array(payloads, pa.binary()), schema, AvroColumns(schema).kind, url, permissive=permissive
    ).to_pylist()


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Yield a registry, with an empty cache in this process."""
    registry_module.forget()
    with schema_registry() as made:
        yield made


def test_every_type_has_the_column_that_spark_gives_it() -> None:
    """Each Avro type becomes the type and values that Spark's own reader gives. Times of day and UUIDs are text."""
    assert AvroColumns(EVERYTHING).kind.simpleString() == (
        "struct<flag:boolean,wide:bigint,real:double,raw:binary,price:decimal(9,2),day:date,at:timestamp,exact:timestamp,"
        "clock:timestamp_ntz,noon:string,key:string,kind:string,again:string,code:binary,keys:array<string>,"
        "counts:map<string,bigint>,inner:struct<n:int>>"
    )
    (found,) = read([avro(EVERYTHING, VALUES)], EVERYTHING)
    text = {"noon": "12:00:00", "key": str(KEY), "keys": [str(KEY)], "counts": [("a", 1)]}
    assert found == VALUES | text


def test_a_schema_that_grew_is_read_into_the_columns_of_one(registry: SchemaRegistry) -> None:
    """Each payload is read with the schema that it names, and missing fields have their default.

    Each schema is requested once.
    """
    registry.add(1, ORDER_1)
    registry.add(2, ORDER_2, "orders-value")
    schema = Registry(registry.url).latest("orders-value")
    payloads = [
        framed(1, ORDER_1, {"id": 5, "item": "pen"}),
        None,
        framed(2, ORDER_2, {"id": 2**40, "amount": 1.5, "item": "ink"}),
        framed(1, ORDER_1, {"id": 6, "item": "cap"}),
    ]
    for _ in range(2):
        assert read(payloads, schema, registry.url) == [
            {"id": 5, "amount": None, "item": "pen"},
            None,
            {"id": 2**40, "amount": 1.5, "item": "ink"},
            {"id": 6, "amount": None, "item": "cap"},
        ]
    assert registry.asked == ["/subjects/orders-value/versions/latest", "/schemas/ids/1", "/schemas/ids/2"]


GOOD = framed(1, ORDER_1, {"id": 5, "item": "pen"})


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"\x01" + GOOD[1:], "a payload begins with '0100000001' and not with a byte 0 and the id of a schema"),
        (b"\x00\x00", "a payload begins with '0000'"),
        (b"", "a payload begins with ''"),
        (struct.pack(">bI", 0, 99) + GOOD[5:], "written with schema 99, which http://127.0.0.1:.* does not have"),
        (GOOD[:-1], "a payload cannot be read by schema 1: "),
        (GOOD + b"x", "a payload cannot be read by schema 1: 1 byte is left over"),
        (
            struct.pack(">bI", 0, 3) + GOOD[5:],
            "a schema that cannot be used: schema 3 in .* is PROTOBUF, and only Avro",
        ),
        (struct.pack(">bI", 0, 4) + GOOD[5:], "refers to schemas of other subjects"),
        (struct.pack(">bI", 0, 5) + b"\x02", "a payload cannot be read by schema 5: "),
    ],
)
def test_a_bad_payload_is_null_or_ends_the_query(registry: SchemaRegistry, payload: bytes, told: str) -> None:
    """A bad payload is null in mode PERMISSIVE. In FAILFAST, it ends the query and the error names the schema."""
    registry.add(1, ORDER_1)
    registry.add(3, {"syntax": "proto3"}, schemaType="PROTOBUF")
    registry.add(4, ORDER_1, references=[{"name": "a", "subject": "a", "version": 1}])
    registry.add(5, "string")  # another one's: its values do not fit the columns
    order = {"id": 5, "item": "pen"}
    assert read([GOOD, payload, GOOD], ORDER_1, registry.url, permissive=True) == [order, None, order]
    with pytest.raises(UndecodableError, match=told) as caught:
        read([GOOD, payload], ORDER_1, registry.url)
    assert "\n" not in str(caught.value)


def test_a_value_that_does_not_fit_its_column_is_one_bad_payload() -> None:
    """An Avro number that does not fit its column makes its payload a bad one."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    large = avro({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}, {"n": 2**40})
    fine = avro(schema, {"n": 1})
    assert read([fine, large, fine], schema, permissive=True) == [{"n": 1}, None, {"n": 1}]
    with pytest.raises(UndecodableError, match="a payload's values do not fit its schema"):
        read([fine, large], schema)


def test_an_unknown_id_is_not_asked_for_again_at_once(registry: SchemaRegistry) -> None:
    """An unknown schema id is requested once, not for each payload."""
    bad = struct.pack(">bI", 0, 99)
    assert read([bad] * 50, ORDER_1, registry.url, permissive=True) == [None] * 50
    assert registry.asked == ["/schemas/ids/99"]


def test_a_registry_that_stumbles_is_asked_again(registry: SchemaRegistry) -> None:
    """A request that fails with a server error is sent again."""
    registry.add(1, ORDER_1)
    registry.failures = 2
    assert read([GOOD], ORDER_1, registry.url) == [{"id": 5, "item": "pen"}]
    assert registry.asked == ["/schemas/ids/1"] * 3


def test_a_registry_that_is_away_ends_the_query_in_either_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable registry ends the query in both modes."""
    monkeypatch.setattr(registry_module, "PATIENCE", 0.2)
    for permissive in (True, False):
        with pytest.raises(NotReachedError, match=r"the schema registry http://127\.0\.0\.1:\d+ does not answer"):
            read([GOOD], ORDER_1, f"http://127.0.0.1:{free_port()}", permissive=permissive)


def test_a_registry_may_ask_for_a_password(registry: SchemaRegistry) -> None:
    """A registry's password may be in the URL, and no error shows it."""
    registry.add(1, ORDER_1, "orders value")
    registry.password = base64.b64encode(b"me:p@w").decode()
    registry.subjects["orders%20value"] = 1
    let_in = registry.url.replace("://", "://me:p%40w@")
    assert Registry(let_in).latest("orders value") == ORDER_1
    with pytest.raises(NotLetInError, match="refuses the user") as caught:
        Registry(registry.url.replace("://", "://me:wrong@")).latest("orders value")
    assert "wrong" not in str(caught.value)
    with pytest.raises(ConfigError, match="has no subject 'other'"):
        Registry(let_in).latest("other")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["string", "int"]}]},
            r"schema\.x is a union",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
            r"schema\.next is a R within a R",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "a decimal of 50 digits"),
        ({"type": "record", "name": "R", "fields": []}, "a record without fields"),
        (
            {"type": "array", "items": "Unknown"},
            r"the schema\[\] is of type 'Unknown', which the schema does not define",
        ),
        ({"no": "type"}, "is not an Avro schema"),
    ],
)
def test_a_schema_that_no_column_can_have_is_told_where(schema: Any, told: str) -> None:
    """A schema that no column type fits is refused before the query begins, with the place in the schema."""
    with pytest.raises(ConfigError, match=told):
        AvroColumns(schema)


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "redis://127.0.0.1:1", "http://", ""])
def test_only_http_is_asked(url: str) -> None:
    """A registry URL that is not HTTP is refused."""
    with pytest.raises(ConfigError, match="Write that of a schema registry"):
        Registry(url)


def test_another_page_is_no_registry(registry: SchemaRegistry) -> None:
    """A reply that is not a JSON object with a schema is an error."""
    registry.schemas[1] = {"schema": "no json"}
    with pytest.raises(ConfigError, match="cannot be read"):
        Registry(registry.url).by_id(1)
    registry.schemas[2] = json.loads("[]")
    with pytest.raises(ConfigError, match="did not send JSON"):
        Registry(registry.url).by_id(2)


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("string", b"", "its 0 bytes end before its values do: it was cut off, or was written with another schema"),
        ("string", b"\x06", "its 1 byte ends before its values do"),
        ("string", b"\x06ab", "its 3 bytes end before its values do"),
        ("string", b"\x80\x80", "its 2 bytes end before its values do"),
        ("double", b"\x00\x00", "its 2 bytes end before its values do"),
        ("boolean", b"", "its 0 bytes end before its values do"),
        ({"type": "fixed", "name": "F", "size": 4}, b"ab", "its 2 bytes end before its values do"),
        ({"type": "array", "items": "long"}, b"\x08\x02", "its 2 bytes end before its values do"),
        ("string", b"\x05ab", "a length in it is below 0: it is damaged, or was written with another schema"),
        (["null", "string"], b"\x08", "it has a choice of a union or an enum that the schema does not have"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x08", "it has a choice of a union or an enum"),
    ],
)
def test_short_and_damaged_payloads_are_told_in_words(kind: Any, data: bytes, said: str) -> None:
    """The error for a damaged payload states the fault in plain words."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    with pytest.raises(UndecodableError, match=f"a payload cannot be read by the schema: {said}"):
        read([data], schema)
    assert read([data], schema, permissive=True) == [None]


def test_what_is_wrong_is_never_told_in_the_words_of_python() -> None:
    """No error for a damaged payload contains Python's or the library's words, for every type."""
    chance = random.Random(11)
    whole = avro(EVERYTHING, VALUES)
    for length in range(len(whole)):
        for data in (whole[:length], chance.randbytes(length)):
            with pytest.raises(UndecodableError) as told:
                read([data], EVERYTHING)
            assert not re.search(r"index out of range|<_io|: $|Error", str(told.value)), str(told.value)

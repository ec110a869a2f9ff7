"""Values of entries are shown by their format. No bytes raise, or cost more memory than in proportion to their size."""

import json
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.payloads import envelope
from millstream.ops.payloads import messagepack
from millstream.ops.payloads.decode import FORMS, LARGEST, decode
from millstream.ops.payloads.entry import EntryPayload
from millstream.worker.handlers.publish import fields_of

RECORD = {"id": 7, "items": [{"sku": "tea"}], "note": "caf\u00e9"}


def pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize(
    ("data", "form", "value"),
    [
        (b"", "text", ""),
        (b"120", "text", "120"),
        (b"true", "text", "true"),
        (b' {"a": [1, null]}', "json", {"a": [1, None]}),
        (b"{not json}", "text", "{not json}"),
        ("caf\u00e9 \u2713".encode(), "text", "caf\u00e9 \u2713"),
        (b"caf\xe9 in an older encoding", "text", "caf\udce9 in an older encoding"),
        (b"\x1b[31mred\x1b[0m", "text", "\x1b[31mred\x1b[0m"),
        (msgpack.packb(RECORD), "msgpack", RECORD),
        (msgpack.packb({"text": "a long one " * 50}), "msgpack", {"text": "a long one " * 50}),
        (msgpack.packb([1, b"\xff"], use_bin_type=True), "msgpack", [1, b"\xff"]),
        (msgpack.packb({1: "x"}), "msgpack", {"1": "x"}),
        (msgpack.packb([msgpack.ExtType(5, b"x")]), "msgpack", [{"extension": 5, "data": b"x"}]),
        (msgpack.packb([msgpack.Timestamp(0, 0)]), "msgpack", ["1970-01-01T00:00:00+00:00"]),
        (msgpack.packb([msgpack.Timestamp(2**62, 1)]), "msgpack", [f"{2**62}.000000001 s since 1970"]),
        (bytes(range(256)), "hex", bytes(range(256))),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "hex", b"\x89PNG\r\n\x1a\n\0\0\0"),
    ],
)
def test_a_value_is_what_it_is(data: bytes, form: str, value: object) -> None:
    """A value's format is detected. A number stored as text stays text."""
    found = decode(data)
    assert (found.form, found.value, found.size, found.note) == (form, value, len(data), "")


def test_what_an_app_publishes_is_read() -> None:
    """Plain fields, a single value and an envelope with headers are decoded as a handler receives them."""
    plain = EntryPayload(pairs(fields_of(RECORD, None)))
    assert plain.record == {"id": "7", "items": [{"sku": "tea"}], "note": "caf\u00e9"}
    assert EntryPayload(pairs(fields_of([1, 2], None))).record == {"data": [1, 2]}
    assert EntryPayload([(b"data", json.dumps(RECORD).encode())]).record == RECORD
    packed = EntryPayload(pairs(fields_of(RECORD, {"correlation_id": "c-1"})))
    assert [(name, found.form) for name, found in packed.fields] == [("__data__", "envelope")]
    assert packed.record == RECORD
    assert packed.headers["correlation_id"] == "c-1"
    assert EntryPayload(pairs(fields_of("hello", {}))).record == {"data": "hello"}


@pytest.mark.parametrize(
    ("data", "form", "found", "note"),
    [
        (b"120", "json", "json", ""),
        (b"120", "hex", "hex", ""),
        (b'{"a":1}', "text", "text", ""),
        (b"no", "json", "text", "not JSON"),
        (b"\xff\0", "json", "hex", "not JSON"),
        (b"\x05", "msgpack", "msgpack", ""),
        (b"ab", "msgpack", "text", "not MessagePack"),
        (b"\x81", "msgpack", "hex", "not MessagePack"),
        (b"{}", "envelope", "text", "not envelope"),
    ],
)
def test_a_form_can_be_forced(data: bytes, form: Any, found: str, note: str) -> None:
    """With a forced format, bytes that it cannot decode are still shown, with the reason."""
    made = decode(data, form)
    assert (made.form, made.note) == (found, note)


DEEP = 10_000
HOSTILE = {
    "deep JSON": b"[" * DEEP + b"]" * DEEP,
    "deep JSON in an envelope": envelope.build({}, b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "a number of many digits": b"[" + b"9" * 100_000 + b"]",
    "half of a pair": b'["\\ud800"]',
    "deep MessagePack": b"\x91" * DEEP + b"\x01",
    "lists of millions announced": b"\xdd\x00\x10\x00\x00" * 50_000,
    "a list of four billion": b"\xdd\xff\xff\xff\xff\x01",
    "a text of four billion": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "a map for a key": b"\x81\x81\x01\x02\x03",
    "a damaged time": b"\x91\xc7\x03\xff\x01\x02\x03",
    "more values than are read": b"\xdd" + (200_000).to_bytes(4) + b"\x01" * 200_000,
    "an envelope that ends early": envelope.MAGIC + b"\0\1\xff",
    "an envelope of no text": envelope.build({"a": "b"}, b"x").replace(b"b", b"\xff"),
    "large JSON": b"[" + b"1," * LARGEST + b"1]",
    "empty map": b"\x80",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_cost_no_more_than_their_size(name: str) -> None:
    """Hostile values raise no exception and use memory in proportion to their size, whatever length they announce."""
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        for form in (None, *FORMS):
            made = decode(data, form)
            list(EntryPayload([(b"a", data)], form).texts())
            assert made.size == len(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000 + 60 * len(data), f"{peak:,} bytes for {len(data):,}"


HEADS = st.sampled_from([one[:40] for one in HOSTILE.values()])
TEXTS = st.text(st.characters(codec="utf-8"))
VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@given(st.binary(max_size=60) | st.builds(bytes.__add__, HEADS, st.binary(max_size=40)))
def test_no_bytes_raise(data: bytes) -> None:
    """Any bytes are decoded or shown without an exception, also with the prefix of a known format."""
    for form in (None, *FORMS):
        assert decode(data, form).form in FORMS


@given(VALUES)
def test_what_was_packed_is_unpacked(value: object) -> None:
    """The decoder's safety check accepts every well-formed MessagePack value."""
    assert messagepack.unpack(msgpack.packb(value)) == value

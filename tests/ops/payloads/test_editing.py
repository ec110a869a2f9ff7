"""An entry as a document for an editor: unchanged parts keep their bytes, and changed parts keep their format."""

import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.payloads import envelope
from millstream.ops.payloads.decode import decode
from millstream.ops.payloads.editing import document_of, fields_from
from millstream.worker.handlers.publish import fields_of

Pair = tuple[bytes, bytes]

FLAT = [
    *fields_of({"item": "tea", "n": 3}, {"correlation_id": "c-1"}), b"text", b"caf\xc3\xa9", b"json", b'{ "a" : 1.50 }',
    b"pack", msgpack.packb({"x": [1, b"\xff"]}), b"bin", b"\xff\0",
]  # fmt: skip
PAIRS: list[Pair] = list(zip(FLAT[::2], FLAT[1::2], strict=True))


def changed(name: str, value: object) -> dict[bytes, bytes]:
    """Return the fields after one value was changed."""
    found = json.loads(document_of(PAIRS))
    found[name] = value
    return dict(fields_from(json.dumps(found), PAIRS))


def test_everything_is_opened_and_stays_what_it_was() -> None:
    """Nested values are opened for editing. A document with the same content gives back the same bytes."""
    shown = json.loads(document_of(PAIRS))
    assert shown["__data__"]["body"] == {"item": "tea", "n": 3}
    assert shown["__data__"]["headers"]["correlation_id"] == "c-1"
    assert (shown["text"], shown["json"], shown["bin"]) == ("café", {"a": 1.5}, {"base64": "/wA="})
    assert shown["pack"] == {"x": [1, {"base64": "/w=="}]}
    assert fields_from(document_of(PAIRS), PAIRS) == PAIRS


def test_what_is_changed_is_written_as_what_it_was() -> None:
    """A changed value is written in its own format: JSON, MessagePack, or an envelope with its headers."""
    assert changed("json", {"a": [2]})[b"json"] == b'{"a":[2]}'
    assert msgpack.unpackb(changed("pack", {"x": [2, {"base64": "/w=="}]})[b"pack"]) == {"x": [2, b"\xff"]}
    opened = envelope.parse(changed("__data__", {"headers": {"h": "1"}, "body": {"item": "cup"}})[b"__data__"])
    assert (opened.headers, opened.body) == ({"h": "1"}, b'{"item":"cup"}')
    assert changed("text", "tea")[b"text"] == b"tea"
    assert changed("text", 7)[b"text"] == b"7"
    assert changed("bin", {"base64": "AAE="})[b"bin"] == b"\0\1"
    assert changed("pack", {"base64": "AAE="})[b"pack"] == b"\0\1"
    assert changed("new", {"a": True})[b"new"] == b'{"a":true}'
    others = changed("new", "x")
    assert [(name, others[name]) for name, _ in PAIRS] == PAIRS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("[]", "at least one field"),
        ("{}", "at least one field"),
        ('"x"', "an object of fields"),
        ('[["a"]]', "an object of fields"),
        ('[[1, "a"]]', "not a name of a field"),
        ('{"text": null}', "null is not a value"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ('{"bin": {"base64": "?"}}', "base64 that cannot be decoded"),
        ('{"__data__": {"headers": {"a": 1}, "body": 1}}', "headers must be an object of texts"),
        ("[" * 300_000, "nested"),
    ],
)
def test_what_is_no_entry_is_refused(text: str, why: str) -> None:
    """A document that is not an entry is refused with the reason."""
    with pytest.raises(ValueError, match=r".") as refused:
        fields_from(text, PAIRS)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "pairs",
    [
        [(b"a", b"1"), (b"a", b"2")],
        [(b"\xff", b"1"), (b"b", b"2")],
        [(b"deep", b"[" * 50 + b"]" * 50)],
        [(b"large", b"[" + b"9" * 4000 + b"]")],
        [(b"odd", b"[NaN, 1e999]")],
        [(b"pack", b"\x81\x01\x02"), (b"ext", msgpack.packb([msgpack.ExtType(3, b"x")]))],
        [(b"wide", b"\x91\xcd\x00\x01")],
        [(b"env", envelope.MAGIC + b"\0\1"), (b"esc", b"\x1b[2J")],
        [(b"j", b'{"base64": "x"}'), (b"t", b'{"a": "\\ud800"}')],
    ],
)  # fmt: skip
def test_strange_fields_stay_what_they_are(pairs: list[Pair]) -> None:
    """Unusual fields come back unchanged: repeated names, any bytes, very deep or large values, foreign MessagePack."""
    text = document_of(pairs)
    assert "\x1b" not in text
    assert fields_from(text, pairs) == pairs


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=30)), min_size=1, max_size=4))
def test_any_fields_survive_an_editor(pairs: list[Pair]) -> None:
    """Any fields that are opened and saved without a change keep their bytes."""
    assert fields_from(document_of(pairs), pairs) == pairs
    assert all(decode(value).form for _, value in pairs)

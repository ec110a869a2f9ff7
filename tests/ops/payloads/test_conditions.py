"""``--where`` and ``--grep``: their matches and refusals. Neither typed nor stored text is run as code."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.ops.payloads.conditions import has_text, parse
from millstream.ops.payloads.entry import EntryPayload
from millstream.worker.handlers.publish import fields_of

FLAT = [
    b"status", b"failed", b"amount", b"120.5", b"count", b"7", b"a.b", b"dotted",
    b"user", json.dumps({"name": "Ann", "age": 41, "tags": ["new", "vip"], "ok": True, "gone": None}).encode(),
    b"items", b'[{"sku": "tea", "n": 2}, {"sku": "cup", "n": 10}]', b"big", b"9007199254740993",
    b"ship.to", b'{"city": "New York"}', b"at", b"2026-03-01T12:00:00Z", b"code", b"007", b"raw", b"\xff\x00\x01",
]  # fmt: skip


def entry(flat: list[bytes] | None = None) -> EntryPayload:
    flat = FLAT if flat is None else flat
    return EntryPayload(list(zip(flat[::2], flat[1::2], strict=True)))


@pytest.mark.parametrize(
    "text",
    [
        "status=failed", "status == failed", "amount>100", "amount >= 120.5", "amount<1e3", "count=7.0", "count!=8",
        "status", "not missing", "missing!=1", "missing !~ x", "status~FAIL", "status !~ ok", "user.age>40",
        "user.name=Ann", "user.tags=vip", "user.tags.0=new", "user.ok=true", "user.gone=null", "items.sku=cup",
        "items.1.n=10", "items.n>9", "items~tea", "user~vip", "a.b=dotted", "big=9007199254740993", "at>2026-02",
        "code=7", "code='007'", 'code = "007"', "status=failed and amount>100", "status=ok or amount>100",
        "not (status=ok or amount<1)", "status=failed and (count=8 or count=7)", "'ship.to'~york", "status='failed'",
        "ship.to.city = 'New York'",
    ],
)  # fmt: skip
def test_it_holds(text: str) -> None:
    """A condition compares numbers as numbers, other values as text, JSON paths, list items and joined conditions."""
    assert parse(text).holds(entry()) is True


@pytest.mark.parametrize(
    "text",
    [
        "status=Failed", "amount>1000", "amount<100", "status>5", "status<5", "missing=1", "missing>0", "missing~x",
        "count!=7", "user.tags=old", "items.2.sku=tea", "user.name.first=Ann", "big=9007199254740992", "code='7'",
        "user.ok=1", "user=Ann", "status=failed and amount>1000", "not status", "raw=x", "items.0.0=tea",
    ],
)  # fmt: skip
def test_it_does_not_hold(text: str) -> None:
    """A value that is not a number is neither above nor below a number. A path without a value does not match."""
    assert parse(text).holds(entry()) is False


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the name of a field is missing"),
        ("amount>", "the value after > is missing"),
        (">5", "the name of a field is missing before '>'"),
        ("a=1 b=2", "join conditions by and, or"),
        ("(a=1", "a parenthesis is not closed"),
        ("a=1)", "does not belong there"),
        ("a='x", "a quote is not closed"),
        ("a=1 and", "the name of a field is missing"),
        ("a!5", "is neither a name nor an operator"),
        ("(" * 60 + "a" + ")" * 60, "more than 50 parentheses"),
        ("not " * 60 + "a", "more than 50"),
        ("a" * 20_000, "longer than 10,000"),
        (".".join("a" * 60), "more than 50 levels"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, why: str) -> None:
    """An invalid condition is refused with the reason and its position."""
    with pytest.raises(ValueError, match=r".") as refused:
        parse(text)
    assert why in str(refused.value)


def test_an_envelope_is_searched_as_a_handler_gets_it() -> None:
    """Conditions search the body of an envelope, its headers, and JSON in a single field ``data``."""
    flat = fields_of({"amount": 5, "user": {"id": 3}}, {"correlation_id": "c-1"})
    for text in ("amount=5", "user.id=3", "headers.correlation_id=c-1"):
        assert parse(text).holds(entry(flat)), text
    assert parse("amount>4").holds(entry([b"data", b'{"amount": 5}']))
    assert parse("data.amount>4").holds(entry([b"data", b'{"amount": 5}']))


def test_text_is_found_in_names_and_values() -> None:
    """``--grep`` finds text in names and values at any depth and in any case, including JSON keys."""
    assert [has_text(text).holds(entry()) for text in ("VIP", "sku", "new york", "41", "absent")] == [True] * 4 + [
        False
    ]


@given(st.text(alphabet="ab.=!<>~()'\" 0149ornotand\\", max_size=30))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    """Any text is parsed as a condition or refused with the documented error."""
    try:
        made = parse(text)
    except ValueError:
        return
    assert made.holds(entry()) in {True, False}

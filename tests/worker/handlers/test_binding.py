"""Conversion of an entry's fields to handler arguments, and back."""

import contextlib
import dataclasses
import enum
import functools
import itertools
import json
import typing
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from millstream.client.dead_letter.letter import DeadLetter, pack, unpack
from millstream.client.payloads import envelope
from millstream.errors import ConfigError
from millstream.worker.handlers.binding import Binder, encode
from millstream.worker.handlers.message import Message
from millstream.worker.model.answers import PayloadError

NOTHING = object()
"""Stands for an expected None, since a plain None here means a refusal."""


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Place:
    lat: float
    lon: float


@dataclasses.dataclass
class Order:
    id: int
    customer: str
    paid: bool
    total: Decimal | None
    day: date
    tags: list[str] = dataclasses.field(default_factory=list)
    place: Place | None = None


class Flight(BaseModel):
    number: int
    carrier: str
    delay: float | None
    at: datetime
    note: str | None = None
    place: dict[str, float] = {}


class Parcel(msgspec.Struct):
    id: int
    note: str
    weight: float | None
    tags: list[str] = []


def bind(handler: Any, *flat: bytes) -> dict[str, Any]:
    return Binder(handler).bind(flat, None)


def test_a_dict_gets_all_fields_as_text() -> None:
    """A parameter ``order: dict`` receives all fields of the entry as text.

    A field that is not valid text stays bytes.
    """

    def handler(order: dict) -> None: ...  # type: ignore[type-arg] # as users write it

    assert bind(handler, b"a", b"1", b"b", b"\xff") == {"order": {"a": "1", "b": b"\xff"}}


def test_a_dataclass_gets_typed_fields() -> None:
    """Dataclass fields are converted by their annotations, and nested values come from JSON.

    A missing field may be None.
    """

    def handler(order: Order) -> None: ...

    fields = [b"id", b"7", b"customer", b"42", b"paid", b"false", b"day", b"2013-01-01", b"extra", b"x"]
    fields += [b"tags", b'["a","b"]', b"place", b'{"lat":1,"lon":2.5}', b"total", b""]
    assert bind(handler, *fields)["order"] == Order(7, "42", False, None, date(2013, 1, 1), ["a", "b"], Place(1.0, 2.5))


def test_a_pydantic_model_gets_typed_fields() -> None:
    """Pydantic models are filled like dataclasses.

    Text that looks like a number stays text in a field of type ``str``.
    """

    def handler(flight: Flight) -> None: ...

    fields = [b"number", b"1545", b"carrier", b"9", b"delay", b"", b"at", b"2013-01-01T05:15:00"]
    flight = bind(handler, *fields, b"place", b'{"lat": 1}')["flight"]
    assert flight == Flight(
        number=1545, carrier="9", delay=None, at=datetime.fromisoformat("2013-01-01T05:15:00"), place={"lat": 1.0}
    )


def test_scalars_come_from_the_field_of_their_name() -> None:
    """A scalar parameter receives the field of its own name, as in FastStream's guide (``order_id: str``)."""

    async def one(order_id: str) -> None: ...
    async def two(order_id: int, amount: float = 1.5, *, colour: Colour, kind: Literal["a"] | None) -> None: ...

    assert bind(one, b"order_id", b"x1", b"other", b"2") == {"order_id": "x1"}
    assert bind(one, b"whatever", b"x1") == {"order_id": "x1"}
    assert bind(two, b"order_id", b"5", b"colour", b"red") == {
        "order_id": 5,
        "amount": 1.5,
        "colour": Colour.RED,
        "kind": None,
    }


def test_a_parameter_without_annotation_gets_the_entry() -> None:
    """A parameter without annotation receives the whole entry, or the entry's only field if that has its name."""

    def handler(task): ...  # type: ignore[no-untyped-def] # as in the guide

    assert bind(handler, b"a", b"1", b"b", b"2") == {"task": {"a": "1", "b": "2"}}
    assert bind(handler, b"task", b"sweep") == {"task": "sweep"}


@pytest.mark.parametrize("name", ["data", "body"])
@pytest.mark.parametrize("value", [b'{"a":1}', b"[1,2]", b'"x"', b"{not json"])
@pytest.mark.parametrize(
    ("annotation", "as_seen"),
    [
        (str, bytes.decode),
        (bytes, bytes),
        (bytearray, bytearray),
        (str | None, bytes.decode),
        (Annotated[bytes, Field(max_length=99)], bytes),
    ],
)
def test_json_in_the_field_data_is_text_where_text_is_wanted(
    name: str, value: bytes, annotation: Any, as_seen: Any
) -> None:
    """A ``str`` parameter receives JSON from the field ``data`` unparsed, alone and in a batch."""
    for wanted, batch in ((annotation, False), (list[annotation], True)):

        def handle(data): ...  # type: ignore[no-untyped-def] # annotated below

        def other(body): ...  # type: ignore[no-untyped-def] # annotated below

        handler = handle if name == "data" else other
        handler.__annotations__[name] = wanted
        assert Binder(handler, batch=batch).bind([b"data", value], None) == {name: as_seen(value)}


def test_json_in_the_field_data_is_the_entry() -> None:
    """One JSON document in the field ``data`` is read as the entry.

    Text that merely starts with a brace is not JSON.
    """

    def model(flight: Flight) -> None: ...
    def anything(body: dict) -> None: ...  # type: ignore[type-arg] # as users write it

    body = {"number": 1, "carrier": "AA", "delay": 2, "at": "2013-01-01T00:00:00"}
    assert bind(model, b"data", json.dumps(body).encode())["flight"].carrier == "AA"
    assert bind(anything, b"data", b"{not json") == {"body": {"data": "{not json"}}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ([b"id", b"seven"], "id"),
        ([b"id", b"7", b"customer", b"c", b"paid", b"perhaps"], "paid"),
        ([b"id", b"7", b"customer", b"\xff"], "customer"),
        ([b"id", b"7"], "missing"),
    ],
)
def test_what_does_not_fit_says_which_field(fields: list[bytes], word: str) -> None:
    """The dead letter of an entry that cannot be converted names the field at fault."""

    def handler(order: Order) -> None: ...

    with pytest.raises(PayloadError, match=word):
        bind(handler, *fields)


@pytest.mark.parametrize(
    ("annotation", "field", "expected"),
    [
        (datetime, b"20130101", datetime.fromisoformat("2013-01-01T00:00:00")),
        (datetime, b"1700000000", None),
        (int, b"1.0", None),
        (int | None, b"", NOTHING),
        (int | str, b"7", 7),
        (bool, b"ON", True),
        (bool, b"y", None),
        (timedelta, b"90", timedelta(seconds=90)),
        (Decimal, b"1e3", Decimal(1000)),
        (Literal["a", 1], b"1", 1),
        (list[int], b'[1,"2"]', [1, 2]),
        (Place, b'{"lat":"1","lon":2}', Place(1.0, 2.0)),
    ],
)
def test_a_fields_text_is_read_as_documented_and_not_guessed(annotation: Any, field: bytes, expected: Any) -> None:
    """Field texts are converted as documented, also where pydantic's own adapter would read them differently."""

    def handler(part: Any, other: str) -> None: ...

    handler.__annotations__["part"] = annotation
    if expected is None:
        with pytest.raises(PayloadError, match="part"):
            bind(handler, b"part", field, b"other", b"")
    else:
        assert bind(handler, b"part", field, b"other", b"")["part"] == (None if expected is NOTHING else expected)


def test_handlers_that_cannot_be_filled_are_refused_when_registered() -> None:
    """A handler signature that no entry can fill is refused at import."""

    def star(*args: int) -> None: ...
    def strange(task: object, x: Any, /) -> None: ...
    def unknown(task: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821 - missing on purpose

    for handler in (star, strange, unknown):
        with pytest.raises(ConfigError):
            Binder(handler)


@dataclasses.dataclass
class Task:
    """A class that no entry can fill."""

    done: typing.Callable[[int], None]


@pytest.mark.parametrize(
    "annotation",
    [
        typing.Callable, typing.Callable[[int], int], Callable, Callable[..., Any], type, type[int], typing.Type,  # noqa: UP006 - the old name too
        list[type], dict[str, Callable[..., Any]], Callable[..., Any] | None, typing.Annotated[type, "a note"], Task,
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [False, True])
def test_functions_and_classes_are_refused_with_the_parameter(annotation: Any, *, batch: bool) -> None:
    """A parameter typed as a function or a class, also inside another type, is refused at import."""

    def handle(n: int, then: Any) -> None: ...

    handle.__annotations__ = {"n": int, "then": annotation}
    if batch:
        handle.__annotations__ = {one: list[kind] for one, kind in handle.__annotations__.items()}  # type: ignore[valid-type] # a variable
    with pytest.raises(ConfigError, match=r"^handle: parameter then: .*an entry has data, and no functions or classes"):
        Binder(handle, batch=batch)


def test_the_message_is_given_wherever_it_stands() -> None:
    """``msg: Message`` receives the message at any position of the signature."""

    def handler(msg: Message, order: dict) -> None: ...  # type: ignore[type-arg] # as users write it

    binder = Binder(handler)
    assert binder.wants_message
    assert list(binder.bind([b"a", b"1"], None)) == ["msg", "order"]


orders = st.builds(
    Order,
    id=st.integers(),
    customer=st.text(),
    paid=st.booleans(),
    total=st.none() | st.decimals(allow_nan=False, allow_infinity=False),
    day=st.dates(),
    tags=st.lists(st.text()),
    place=st.none() | st.builds(Place, st.floats(allow_nan=False), st.floats(allow_nan=False)),
)


@given(orders)
def test_what_is_published_is_what_arrives(order: Order) -> None:
    """A published dataclass equals the dataclass that its handler receives."""

    def handler(order: Order) -> None: ...

    assert bind(handler, *encode(order))["order"] == order


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.floats(allow_nan=False), min_size=1))
def test_a_mapping_arrives_as_text(content: dict[str, Any]) -> None:
    """A published dict of plain values arrives with the same names, and with its values as text."""

    def handler(body: dict) -> None: ...  # type: ignore[type-arg] # as users write it

    flat = encode(content)
    if flat[0] in (b"data", b"__data__") or b"\xed" in b"".join(flat):
        return  # these names are reserved; an unpaired surrogate is not text
    assert bind(handler, *flat)["body"] == {name: str(value) for name, value in content.items()}


def test_nothing_cannot_be_published() -> None:
    """Publishing empty content raises a clear error before anything is sent."""
    with pytest.raises(PayloadError, match="field"):
        encode({"a": None})


async def test_faststreams_envelope_is_read() -> None:
    """An envelope written by FastStream is read, with headers and a JSON or text body. A damaged one is an error."""
    from faststream.redis.parser.binary import BinaryMessageFormatV1

    data = await BinaryMessageFormatV1.encode(message={"x": 1}, reply_to=None, headers={"k": "v"}, correlation_id="c")

    def handler(body: dict) -> None: ...  # type: ignore[type-arg] # as users write it

    opened = envelope.parse(data)
    assert opened.headers["k"] == "v"
    assert opened.headers["content-type"] == "application/json"
    assert bind(handler, b"__data__", data) == {"body": {"x": 1}}

    def word(body: str) -> None: ...

    text = await BinaryMessageFormatV1.encode(message="hello", reply_to=None, headers=None, correlation_id="c")
    assert bind(word, b"__data__", text) == {"body": "hello"}
    with pytest.raises(PayloadError, match="envelope"):
        bind(handler, b"__data__", data[:20])


@given(st.binary())
def test_any_bytes_are_an_envelope_or_an_error(data: bytes) -> None:
    """A damaged envelope raises only ValueError, so that its entry becomes a dead letter."""
    with contextlib.suppress(ValueError):
        envelope.parse(envelope.MAGIC + data)


pairs = st.lists(st.binary(), min_size=2, max_size=8).filter(lambda flat: len(flat) % 2 == 0)
texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.builds(
        DeadLetter,
        fields=pairs.map(tuple),
        stream=texts,
        id=texts,
        group=texts,
        consumer=texts,
        deliveries=st.integers(1, 2**63 - 1),  # the server's highest count
        reason=texts,
        error=texts,
        traceback=texts,
        published_ms=st.integers(0, 2**62),
        died_ms=st.integers(0, 2**41),
    )
)
@example(DeadLetter((b"", b""), "", "", "", "", 1, "", "", "", published_ms=10_000_000_000_001, died_ms=0))
def test_a_dead_letter_keeps_everything(letter: DeadLetter) -> None:
    """A dead letter keeps the original fields byte for byte and in order, with its reason.

    The same holds for a second death.
    """
    assert unpack(pack(letter)) == letter
    again = dataclasses.replace(letter, fields=tuple(pack(letter)), id="again")
    assert unpack(pack(again)) == again


def test_an_ordinary_entry_is_no_dead_letter() -> None:
    """Reading an ordinary entry as a dead letter is an error."""
    with pytest.raises(ValueError, match="not a dead letter"):
        unpack([b"a", b"1"])


def test_a_msgspec_struct_is_read_and_written() -> None:
    """A msgspec struct is read with lenient types and nested JSON, and written back.

    A missing field is None if its type allows that. Text stays text.
    """

    def handler(parcel: Parcel) -> None: ...

    expected = Parcel(id=7, note="12", weight=None, tags=["a"])
    assert bind(handler, b"id", b"7", b"note", b"12", b"tags", b'["a"]') == {"parcel": expected}
    assert bind(handler, b"data", b'{"id": 7, "note": "12", "weight": null, "tags": ["a"]}') == {"parcel": expected}
    assert bind(handler, *encode(expected)) == {"parcel": expected}
    with pytest.raises(PayloadError, match=r"parcel: .*`int`"):
        bind(handler, b"id", b"x", b"note", b"")
    with pytest.raises(PayloadError, match="expected an object for Parcel"):
        bind(handler, b"data", b"[1]")


def test_a_structs_default_stands_where_a_field_is_missing() -> None:
    """A missing field of a msgspec struct takes its default. Without a default it is None, if the type allows that."""

    class Crate(msgspec.Struct):
        weight: float | None
        height: float | None = 5.0

    def handler(crate: Crate) -> None: ...

    assert bind(handler, b"id", b"7") == {"crate": Crate(None, 5.0)}
    assert bind(handler, b"height", b"") == {"crate": Crate(None, None)}


def test_a_batch_binds_the_elements_type() -> None:
    """``orders: list[Parcel]`` makes one Parcel of each entry in a batch."""

    def handler(parcels: list[Parcel], msgs: list[Message]) -> None: ...

    binder = Binder(handler, batch=True)
    assert binder.bind([b"id", b"7", b"note", b""], None) == {"parcels": Parcel(7, "", None), "msgs": None}


def test_an_envelope_is_parsed_as_it_was_built() -> None:
    """An envelope with any header text and any body bytes is read back unchanged.

    A part over the 16-bit limit is refused.
    """
    headers, body = {"content-type": "x", "ü": ""}, bytes(range(256))
    assert envelope.parse(envelope.build(headers, body)) == (headers, body)
    with pytest.raises(ValueError, match="65,535"):
        envelope.build({"long": "x" * 70_000}, b"")


def wrapped(call: Any) -> Any:
    """An ordinary wrapper made with functools.wraps."""

    @functools.wraps(call)
    def around(*words: "Any", **named: "Any") -> Any:
        return call(*words, **named)

    return around


class Called:
    def __init__(self, call: Any = None) -> None:
        self.call = call

    def __call__(self, x: "int", place: Place, msg: "Message") -> None:
        """Handle an entry."""

    def method(self, x: "int", place: Place, msg: "Message") -> None:
        """Handle an entry as a method."""


def handler(x: "int", place: Place, msg: "Message") -> None:
    """Handle an entry."""


WRAPS = {"wraps": wrapped, "partial": functools.partial, "object": Called, "method": lambda call: Called(call).method}


@pytest.mark.parametrize("ways", [ways for count in (1, 2, 3) for ways in itertools.product(WRAPS, repeat=count)])
def test_annotations_are_found_in_every_order_of_wrappers(ways: tuple[str, ...]) -> None:
    """Handler annotations are found through wrappers, partials and callable objects in any order."""
    call: Any = handler
    for way in ways:
        call = WRAPS[way](call)
    assert Binder(call).annotations == {"x": int, "place": Place, "msg": Message}


def test_the_outermost_annotation_counts() -> None:
    """A wrapper's own annotations win. Parameters that it does not annotate keep those of the wrapped function."""

    def outer(x: str, more: bool) -> None: ...

    outer.__wrapped__ = functools.partial(handler)  # type: ignore[attr-defined] # as functools.wraps sets it
    assert Binder(outer).annotations == {"x": str, "place": Place, "msg": Message}


def test_a_parameter_without_an_annotation_gets_its_field_only_if_that_is_all() -> None:
    """An unannotated parameter gets the whole entry, or the only field if that has its name; ``dict`` decides."""

    def plain(entry): ...  # type: ignore[no-untyped-def] # the case of the test

    def whole(entry: dict[str, str]) -> None: ...

    assert Binder(plain).bind([b"entry", b"3"], None) == {"entry": "3"}
    assert Binder(plain).bind([b"entry", b"3", b"n", b"1"], None) == {"entry": {"entry": "3", "n": "1"}}
    assert Binder(whole).bind([b"entry", b"3"], None) == {"entry": {"entry": "3"}}

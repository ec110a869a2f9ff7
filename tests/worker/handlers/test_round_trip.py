"""A published value arrives equal in a handler of its type, or is refused with the name of its field."""

import asyncio
import dataclasses
import enum
import inspect
import math
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, MutableMapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Annotated, Any, Generic, Literal, NewType, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy as np
import pydantic
import pytest
import typing_extensions
from pydantic.errors import PydanticUserError

from millstream import App
from millstream.client.connect import sync_client
from millstream.client.payloads import envelope
from millstream.errors import ConfigError
from millstream.server.thread import ServerThread
from millstream.worker.handlers.binding import Binder
from millstream.worker.handlers.message import Message
from millstream.worker.handlers.publish import fields_of
from millstream.worker.model.answers import PayloadError
from support import campaign, values

Trial = tuple[Any, Binder, Any]
"""A content, the handler for its type, and the expected argument."""


def binder(**hints: Any) -> Binder:
    """Build a handler with the given parameters."""

    def handler() -> None: ...

    handler.__annotations__ = hints
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint) for name, hint in hints.items()
    ]
    handler.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # drawn
    return Binder(handler)


def drawn(random: Random, depth: int = 3) -> list[Trial]:
    """A drawn type with drawn values of it. Some types are refused for handlers."""
    while True:
        try:
            hint, make = values.kind(random, depth) if random.random() < 0.5 else values.record(random, depth)
            single, field = binder(data=hint), binder(part=hint, other=int)
            inner, listed = binder(part=dict[str, hint], other=int), binder(part=list[hint], other=int)
            break
        except (ConfigError, PydanticUserError, TypeError):  # types that a library does not accept as annotations
            continue
    trials: list[Trial] = []
    for _ in range(4):
        try:
            value = make()
        except ValueError:  # refused by the model itself
            continue
        trials += [
            ({"part": {"x": value}, "other": 5}, inner, {"x": value}),
            ({"part": [value], "other": 5}, listed, [value]),
        ]
        trials.append(({"part": value, "other": 5}, field, value))
        if not (isinstance(value, Mapping) and None in value.values()):  # a None is not a field
            trials.append((value, single, value))
    return trials


async def published(app: App, trial: Trial, random: Random) -> list[Trial]:
    """Return a one-element list with the published trial, or an empty list if it was refused by name."""
    content, _, _ = trial
    headers = random.choice([None, {}, {"k": "ü"}])
    try:
        if random.random() < 0.5:
            await app.publish("s", content, headers=headers)
        else:
            await app.publish_batch("s", [content], headers=headers)
    except PayloadError as refused:
        if ":" not in str(refused) and "at least one field" not in str(refused):
            raise
        return []
    return [trial]


async def came_back(seed: int, count: int, url: str) -> tuple[int, int]:
    """Publish drawn contents; return the numbers that arrived equal and that were refused."""
    random, equal, refused = Random(seed), 0, 0
    with sync_client(url) as client:
        async with App(url, registry=False) as app:
            while equal + refused < count:
                sent = [await published(app, trial, random) for trial in drawn(random)]
                kept = [trial for one in sent for trial in one]
                entries = client.xrange("s")
                client.delete("s")
                assert len(entries) == len(kept)
                for (_, fields), (content, handler, expected) in zip(entries, kept, strict=True):
                    flat = [word for pair in fields.items() for word in pair]
                    found = next(iter(handler.bind(flat, None).values()))
                    assert values.same(found, expected), (content, found, flat)
                equal, refused = equal + len(kept), refused + len(sent) - len(kept)
    return equal, refused


async def over(seed: int, count: int, transport: str, folder: Path) -> tuple[int, int]:
    """Run ``came_back`` over one of the transports."""
    if transport == "tcp":
        with ServerThread() as server:
            return await came_back(seed, count, server.url)
    return await came_back(seed, count, f"memory://trip{seed}" if transport == "memory" else folder.as_uri())


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Item:
    name: str
    note: str | None = None
    length: timedelta = timedelta(1)
    blob: bytes = b""
    made: float = dataclasses.field(init=False, default_factory=time.perf_counter)


class Tea(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    order_id: int = pydantic.Field(alias="orderId")
    kind: str = pydantic.Field(
        default="x", validation_alias=pydantic.AliasChoices("sort", pydantic.AliasPath("a", "b"))
    )
    note: str | None = "none yet"

    @pydantic.computed_field  # type: ignore[prop-decorator] # pydantic's way
    @property
    def double(self) -> int:
        """Return twice the id."""
        return 2 * self.order_id


class Row(msgspec.Struct, array_like=True):
    order_id: int
    note: str


class Renamed(msgspec.Struct, rename="camel", tag="renamed"):
    order_id: int
    blob: bytes = b"\xff"


class Root(pydantic.RootModel[list[int]]):
    pass


async def coroutine() -> None: ...


def circle() -> list[Any]:
    """Build a list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


ENVELOPES = pytest.mark.parametrize("headers", [None, {}], ids=["fields", "envelope"])


@ENVELOPES
@pytest.mark.parametrize(
    "value",
    [
        timedelta(days=1, hours=2),
        -timedelta(microseconds=1),
        timedelta.max,
        {1, 2},
        frozenset({3}),
        Colour.RED,
        Number.ONE,
        bytearray(b"\xff"),
        memoryview(b"ab"),
        Path("/srv"),
        math.inf,
        Item("tea", "", blob=b"\xc3\xbc"),
        Tea(orderId=7, sort="a", note=None),
        Row(1, "[1]"),
        Renamed(5),
        Root([1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_equal(value: Any, headers: dict[str, str] | None) -> None:
    """Values of every supported kind arrive equal, under any field name."""
    flat = fields_of(value, headers)
    hint = {set: set[int], frozenset: frozenset[int], type(Path()): Path}.get(type(value), type(value))
    found = binder(data=hint).bind(flat, None)["data"]
    assert (type(found), found) == (type(value), value)


@ENVELOPES
@pytest.mark.parametrize("inside", [False, True], ids=["field", "inside"])
@pytest.mark.parametrize(
    "value",
    [
        coroutine,
        object(),
        lambda: 1,
        (one for one in ()),
        range(3),
        int,
        ValueError("x"),
        10**5000,
        {1: 1, "1": 2},
        {(1, 2): 3},
        [math.nan],
        [b"abc"],
        "\ud83d\ude00",
        circle(),
        pydantic.SecretStr("x"),
        np.array([1.5]),
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2024, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_form_is_refused_by_name(value: Any, inside: bool, headers: dict[str, str] | None) -> None:
    """A value without a published form raises PayloadError with the field's name. It never becomes meaningless text."""
    with pytest.raises(PayloadError, match="part"):
        fields_of({"part": {"x": [value]} if inside else value}, headers)


class Loose(pydantic.BaseModel):
    part: Any


def test_a_models_part_without_a_form_is_named() -> None:
    """The error for a model with an unpublishable field names that field, which the library's own error does not."""
    with pytest.raises(PayloadError, match=r"^part: object has no form"):
        fields_of(Loose(part=object()), None)


def test_a_coroutine_is_refused() -> None:
    """Publishing a coroutine, a forgotten await, is refused."""
    forgotten = coroutine()
    with pytest.raises(PayloadError, match=r"data: coroutine"):
        fields_of(forgotten, None)
    forgotten.close()


@ENVELOPES
@pytest.mark.parametrize("text", ['{"a":1}', "[1]", "{}", "{not json", "plain"])
@pytest.mark.parametrize("kind", [str, bytes, str | None, bytearray])
def test_json_text_in_data_is_text_where_text_is_wanted(text: str, kind: Any, headers: dict[str, str] | None) -> None:
    """A ``str`` or ``bytes`` parameter receives published JSON text unchanged, under any single name."""
    flat = fields_of(text, headers)
    for name in ("data", "body"):
        found = binder(**{name: kind}).bind(flat, None)[name]
        assert (found if isinstance(found, str) else bytes(found).decode()) == text
    assert binder(data=kind, other=int | None).bind([b"data", text.encode()], None)["other"] is None


@ENVELOPES
@pytest.mark.parametrize("text", ["[1,2]", '{"a":1}', "{not json", "[]"])
@pytest.mark.parametrize("with_message", [False, True])
def test_json_text_in_a_mappings_data_is_text_where_the_document_does_not_fit(
    text: str, with_message: bool, headers: dict[str, str] | None
) -> None:
    """A ``dict[str, str]`` handler receives JSON text in ``data`` as published if it is not a matching object."""
    handler = binder(order=dict[str, str], **({"msg": Message} if with_message else {}))
    assert handler.bind(fields_of({"data": text}, headers), None)["order"] == {"data": text}


class _Partial(TypedDict, total=False):
    """A typed dictionary with only optional keys."""

    amount: int


_DEFAULTS = {
    "typed dict": _Partial,
    "dataclass": dataclasses.make_dataclass("Plain", [("amount", int, 0)]),
    "pydantic": pydantic.create_model("Model", amount=(int, 0)),
    "msgspec": msgspec.defstruct("Struct", [("amount", int, 0)]),
}


@pytest.mark.parametrize("text", ['{"amount":"x"}', "[1]"])
@pytest.mark.parametrize("kind", [*_DEFAULTS.values(), _Partial | None], ids=[*_DEFAULTS, "union"])
def test_a_document_that_does_not_fit_is_not_an_empty_object(kind: Any, text: str) -> None:
    """A document in ``data`` that does not match a class of optional fields is refused, not read as an empty object."""
    with pytest.raises(PayloadError, match=r"^order: "):
        binder(order=kind).bind([b"data", text.encode()], None)


def test_a_class_with_a_part_data_gets_the_field() -> None:
    """A class with a field ``data`` receives the published text if the text is not a matching JSON object."""
    kind: Any = dataclasses.make_dataclass("Holder", [("data", str)])
    assert binder(order=kind).bind(fields_of({"data": "[1,2]"}, None), None) == {"order": kind("[1,2]")}


@pytest.mark.parametrize("kind", [dict, Mapping, OrderedDict])
def test_a_mapping_of_texts_holds_texts(kind: Any) -> None:
    """A ``dict[str, str]`` parameter holds only text. Undecodable bytes and other JSON types are refused by name."""
    handler = binder(order=kind[str, str])
    with pytest.raises(PayloadError, match=r"^order: a: "):
        handler.bind([b"a", b"\xff"], None)
    with pytest.raises(PayloadError, match=r"^order: a: expected text, got int"):
        handler.bind(fields_of({"a": 1}, {}), None)


@ENVELOPES
def test_the_name_of_the_envelope_may_be_a_fields(headers: dict[str, str] | None) -> None:
    """A published mapping with the single field ``__data__`` arrives unchanged."""
    flat = fields_of({"__data__": "x"}, headers)
    assert binder(order=dict[str, str]).bind(flat, None) == {"order": {"__data__": "x"}}


def test_an_extra_that_is_none_is_kept() -> None:
    """A pydantic model that allows extra fields arrives with an extra field of None."""

    class Open(pydantic.BaseModel, extra="allow"):
        a: int

    content = Open(a=1, x=None)  # type: ignore[call-arg] - an extra
    assert binder(order=Open).bind(fields_of(content, None), None) == {"order": content}


def test_a_document_still_gives_a_parameter_its_field() -> None:
    """JSON in ``data`` still fills parameters by its keys."""
    assert binder(order_id=str).bind([b"data", b'{"order_id":"x1"}'], None) == {"order_id": "x1"}


def test_an_empty_text_is_none_only_where_text_is_not_allowed() -> None:
    """An empty field is None only if the type excludes text.

    A missing field is None, and published text arrives as text.
    """
    handler = binder(note=str | None, count=int | None, other=str | None)
    assert handler.bind([b"note", b"", b"count", b""], None) == {"note": "", "count": None, "other": None}


@pytest.mark.parametrize(
    ("content", "flat"),
    [
        ({"a": "x", "n": 1, "f": 1.5, "b": True, "none": None}, [b"a", b"x", b"n", b"1", b"f", b"1.5", b"b", b"true"]),
        (
            {"d": datetime(2020, 1, 2, tzinfo=UTC), "m": Decimal("1.50")},
            [b"d", b"2020-01-02T00:00:00+00:00", b"m", b"1.50"],
        ),
        ({"l": [1, {"x": "ü"}], "raw": b"\xff"}, [b"l", b'[1,{"x":"\\u00fc"}]', b"raw", b"\xff"]),
        ("x", [b"data", b"x"]),
        ([1], [b"data", b"[1]"]),
    ],
)
def test_the_form_of_plain_values_stays(content: Any, flat: list[bytes]) -> None:
    """The published form of plain values does not change, since consumers in other languages read it."""
    assert fields_of(content, None) == flat


def test_headers_that_are_not_text_are_refused() -> None:
    """Headers that are not text are refused by name."""
    for headers in ({"k": 1}, {"k": "\ud800"}, "k", ["k"], {"content-type": 5}):
        with pytest.raises(PayloadError, match=r"k|content-type"):
            fields_of({"a": 1}, headers)  # type: ignore[arg-type] # a user's mistake


@pytest.mark.parametrize("transport", ["memory", "file", "tcp"])
async def test_what_is_published_comes_back_equal_or_is_refused(transport: str, tmp_path: Path) -> None:
    """Drawn contents arrive equal or are refused: three levels deep, as fields, with headers and in batches."""
    equal, refused = await over(1, 300, transport, tmp_path / "data")
    assert equal > refused


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_hundred_thousand_values(tmp_path: Path) -> None:
    """Each of 100,000 drawn contents arrives equal or is refused."""

    def piece(seed: int) -> int:
        transport = ["memory", "file", "tcp"][seed % 3]
        return sum(asyncio.run(over(seed, 1_000, transport, tmp_path / str(seed))))

    campaign.run("round-trip", piece, range(100), unit="values")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (OrderedDict, OrderedDict(tea="1", milk="2")),
        (OrderedDict[str, int], OrderedDict(tea=1)),
        (MutableMapping[str, int], {"tea": 1}),
        (Counter, Counter("aab")),
        (Counter[str], Counter("aab")),
        (defaultdict[str, int], defaultdict(int, tea=1)),
        (defaultdict[str, list[int]], defaultdict(list, tea=[1])),
    ],
)
def test_mappings_of_the_standard_library_come_back_as_their_kind(hint: Any, value: Any) -> None:
    """Mappings of the standard library arrive as their own kind, as the whole entry and as one field."""
    alone = binder(part=hint).bind(fields_of(value, None), None)
    beside = binder(part=hint, other=int).bind(fields_of({"part": value, "other": 5}, None), None)
    for found in (alone["part"], beside["part"]):
        assert found == value
        assert type(found) is type(value)
        assert getattr(found, "default_factory", None) is getattr(value, "default_factory", None)


T = TypeVar("T")


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]
    first: T | None = None


@attrs.define
class Pair(Generic[T]):
    first: T
    note: str = ""


class Cell(msgspec.Struct, Generic[T]):
    first: T
    note: str = ""


class Line(typing_extensions.TypedDict, Generic[T]):
    first: T
    note: typing_extensions.NotRequired[typing_extensions.ReadOnly[str]]


class Point(typing_extensions.NamedTuple, Generic[T]):
    first: T
    note: str = ""


@dataclasses.dataclass
class Book:
    pages: list[Page[int]]
    page: Page[date] | None = None


def alias(value: Any, *parameters: Any) -> Any:
    """Build the object made by a ``type`` statement of Python 3.12."""
    return typing_extensions.TypeAliasType("Alias", value, type_params=parameters)


A_PAGE = Page[date]([date(2020, 1, 2)], date(2020, 1, 3))


@ENVELOPES
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (NewType("Named", dict[str, int]), {"a": 1}),
        (NewType("Named", Item), Item("tea", "")),
        (NewType("Named", Item) | None, Item("tea", "")),
        (NewType("Named", NewType("Inner", bytes)), b"[1]"),
        (NewType("Named", str) | None, ""),
        (Annotated[NewType("Named", str), "a word"], "[1]"),
        (alias(dict[str, int]), {"a": 1}),
        (alias(Item | None), Item("tea", "")),
        (alias(Tea), Tea(orderId=7, sort="a", note=None)),
        (alias(str), "[1]"),
        (alias(list[T], T)[int], [1]),  # type: ignore[valid-type] # drawn
        (alias(dict[str, T], T)[Item], {"a": Item("tea", "")}),  # type: ignore[valid-type] # drawn
        (Page[date], A_PAGE),
        (Page[date] | None, A_PAGE),
        (Page[Page[date]], Page[Page[date]]([A_PAGE])),
        (Book, Book([Page([1])], A_PAGE)),
        (Pair[int], Pair(1)),
        (Cell[int], Cell(1, "[1]")),
        (Line[int], {"first": 1, "note": "[1]"}),
        (Point[int], Point(1, "[1]")),
        (typing_extensions.TypedDict("Times", {"at": date, "note": str}), {"at": date(2020, 1, 2), "note": "{"}),
    ],
)
def test_another_name_of_a_type_reads_what_the_type_reads(
    hint: Any, value: Any, headers: dict[str, str] | None
) -> None:
    """Type aliases, NewType names and generic classes are read like the types that they stand for."""
    alone = fields_of(value, headers)
    field = fields_of({"part": value, "other": 5}, None if isinstance(value, bytes) else headers)
    assert binder(body=hint).bind(alone, None) == {"body": value}
    assert binder(part=hint, other=int).bind(field, None)["part"] == value


@ENVELOPES
@pytest.mark.parametrize("hint", [alias(int | None), alias(alias(int) | None), Literal["a", None]], ids=str)
def test_a_field_that_is_left_out_is_the_none_that_its_alias_allows(hint: Any, headers: dict[str, str] | None) -> None:
    """A missing field is None if its alias, or the key of a typed dict, allows None."""
    flat = fields_of({"part": None, "other": 5}, headers)
    row: Any = TypedDict("row", {"part": hint, "other": int})  # type: ignore[valid-type] # drawn
    assert binder(part=hint, other=int).bind(flat, None) == {"part": None, "other": 5}
    assert binder(row=row).bind(flat, None) == {"row": {"part": None, "other": 5}}


def test_an_alias_that_holds_itself_is_read() -> None:
    """A recursive type alias is read."""
    tree = typing_extensions.TypeAliasType("tree", "list[tree] | int")  # type: ignore[misc] # known at run time only
    globals()["tree"] = tree
    assert binder(part=tree, other=int).bind(fields_of({"part": [1, [2]], "other": 5}, None), None)["part"] == [1, [2]]


@pytest.mark.parametrize("passed_on", ["application/json", "text/plain", "application/octet-stream", "image/png"])
@pytest.mark.parametrize("value", ["abc", "123", "null", '"a"', b"\xff", {"a": 1}, [1, 2], 5, Item("tea", "")])
def test_the_content_type_of_another_entry_changes_nothing(value: Any, passed_on: str) -> None:
    """Headers passed on from another entry may contain a wrong content type: the new content still arrives equal."""
    hint = {dict: dict[str, int], list: list[int]}.get(type(value), type(value))
    flat = fields_of(value, {"content-type": passed_on, "tenant": "a"})
    assert binder(body=hint).bind(flat, None) == {"body": value}
    assert envelope.parse(flat[1]).headers["tenant"] == "a"


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"])
@pytest.mark.parametrize("text", ['{"a":1}', b'{"a":1}'])
def test_a_document_that_is_published_as_json_is_one(text: Any, kind: str) -> None:
    """Content published with the content type JSON fills a handler's parameters by its keys."""
    flat = fields_of(text, {"content-type": kind})
    assert binder(a=int, b=int | None).bind(flat, None) == {"a": 1, "b": None}
    assert envelope.parse(flat[1]).headers["content-type"] == kind


def test_a_content_type_of_bytes_is_the_callers() -> None:
    """The content type of published bytes is the caller's."""
    flat = fields_of(b"\x89PNG", {"content-type": "image/png"})
    assert envelope.parse(flat[1]).headers["content-type"] == "image/png"
    assert binder(body=bytes).bind(flat, None) == {"body": b"\x89PNG"}

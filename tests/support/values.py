"""Random types with values: all kinds in the worker's reference, nested."""

import collections
import dataclasses
import enum
import math
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Literal
from uuid import UUID

import attrs
import msgspec
import pydantic

Make = Callable[[], Any]
Kind = tuple[Any, Make]
"""A type, and a function that draws a value of it."""


class Colour(enum.Enum):
    RED = "red"
    ONE = 1
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    A = "a"
    NULL = "null"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


TEXTS = [
    "",
    "tea",
    "null",
    "1",
    "true",
    "NaN",
    '{"a":1}',
    "[1]",
    "ü",
    "\ud800",
    "\udcff",
    "\ud83d\ude00",
    "2020-01-01",
    "x" * 50,
]
NUMBERS = [0, 1, -1, 2**31, 2**63, -(2**64), 10**40, 10**5000]
FLOATS = [0.0, -0.0, 1.5, 1e300, 5e-324, math.nan, math.inf, -math.inf, 3.0]
ZONES = [None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(seconds=-3601))]


def _moment(random: Random) -> datetime:
    zone = random.choice(ZONES)
    return datetime(random.randint(1, 9998), 3, 4, 5, random.randrange(60), 7, random.choice([0, 120]), tzinfo=zone)


def leaf(random: Random) -> Kind:
    """Return a type without parts."""
    kinds: list[Kind] = [
        (str, lambda: random.choice(TEXTS)),
        (int, lambda: random.choice(NUMBERS)),
        (float, lambda: random.choice(FLOATS)),
        (bool, lambda: random.random() < 0.5),
        (bytes, lambda: random.choice([b"", b"abc", b"\xff\x00", b"[1]", b"null"])),
        (bytearray, lambda: bytearray(random.choice([b"", b"abc", b"\xff"]))),
        (memoryview, lambda: memoryview(random.choice([b"", b"abc", b"\xff"]))),
        (date, lambda: date(random.randint(1, 9999), 12, 31)),
        (datetime, lambda: _moment(random)),
        (time, lambda: _moment(random).timetz()),
        (timedelta, lambda: timedelta(random.choice([0, -1, 400, 999_999_999]), 3, random.choice([0, 1, 999_999]))),
        (Decimal, lambda: Decimal(random.choice(["1.50", "-0", "1E+3", "NaN", "Infinity", "0." + "1" * 60]))),
        (UUID, lambda: UUID(int=random.getrandbits(128))),
        (str | None, lambda: random.choice([None, *TEXTS])),
        (Path, lambda: Path(random.choice(["/a/b", "c", "[1]", "ü"]))),
        (Colour, lambda: random.choice(list(Colour))),
        (Level, lambda: random.choice(list(Level))),
        (Word, lambda: random.choice(list(Word))),
        (Right, lambda: random.choice([Right.READ, Right.READ | Right.WRITE, Right(0)])),
        (Literal["a", 1], lambda: random.choice(["a", 1])),
    ]
    return random.choice(kinds)


def kind(random: Random, depth: int) -> Kind:
    """Return a type with at most ``depth`` levels below it."""
    if depth == 0 or random.random() < 0.2:
        return leaf(random)
    return random.choice([_list, _pair, _set, _mapping, _optional, _record])(random, depth - 1)


def _many(random: Random, make: Make) -> list[Any]:
    return [make() for _ in range(random.randrange(4))]


def _list(random: Random, depth: int) -> Kind:
    inner, make = kind(random, depth)
    outer = random.choice([list, tuple, collections.deque])
    hint = tuple[inner, ...] if outer is tuple else outer[inner]  # type: ignore[index, valid-type] # drawn
    return hint, lambda: outer(_many(random, make))


def _pair(random: Random, depth: int) -> Kind:
    (first, one), (second, two) = kind(random, depth), kind(random, depth)
    if random.random() < 0.5:
        return tuple[first, second], lambda: (one(), two())  # type: ignore[valid-type] # drawn
    named = typing.NamedTuple("Named", [("first", first), ("second", second)])  # noqa: UP014 - drawn
    return named, lambda: named(one(), two())


def _set(random: Random, _: int) -> Kind:
    inner, make = leaf(random)
    if inner in (bytearray, memoryview):
        inner, make = int, lambda: random.randrange(9)
    outer = random.choice([set, frozenset])
    return outer[inner], lambda: outer(_many(random, make))  # type: ignore[index] # drawn


def _mapping(random: Random, depth: int) -> Kind:
    inner, make = kind(random, depth)
    name, draw = leaf(random)
    if name in (bytearray, memoryview):
        name, draw = str, lambda: random.choice(TEXTS)
    return dict[name, inner], lambda: {draw(): make() for _ in range(random.randrange(4))}  # type: ignore[valid-type] # drawn


def _optional(random: Random, depth: int) -> Kind:
    inner, make = kind(random, depth)
    return inner | None, lambda: None if random.random() < 0.3 else make()


def _record(random: Random, depth: int) -> Kind:
    return record(random, depth)


def record(random: Random, depth: int) -> Kind:
    """Return a user-defined class with typed fields, from any of the supported libraries."""
    parts = {name: kind(random, depth) for name in ("data", "first_part", "other")[: random.randint(1, 3)]}
    hints = {name: hint for name, (hint, _) in parts.items()}
    make_class = random.choice([_dataclass, _model, _struct, _attrs, _typed_dict])
    if make_class is _typed_dict and list(parts) == ["data"]:  # a mapping of that one name is the JSON document in it
        return record(random, depth)
    made = make_class(random, hints)
    return made, lambda: made(**{name: make() for name, (_, make) in parts.items()})


def _dataclass(random: Random, hints: Mapping[str, Any]) -> Any:
    return dataclasses.make_dataclass(
        "Drawn", hints.items(), frozen=random.random() < 0.5, kw_only=random.random() < 0.5
    )


def _model(random: Random, hints: Mapping[str, Any]) -> Any:
    def part(name: str) -> Any:
        style = random.randrange(4)
        if style == 1:
            return pydantic.Field(alias=f"{name}X")
        if style == 2:
            return pydantic.Field(validation_alias=pydantic.AliasChoices(f"{name}X", pydantic.AliasPath("q", name)))
        return pydantic.Field(serialization_alias=f"{name}Y") if style == 3 else ...

    class Base(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(
            arbitrary_types_allowed=True,
            populate_by_name=True,
            extra=random.choice(["ignore", "forbid", "allow"]),
            serialize_by_alias=random.random() < 0.2,
        )

    return pydantic.create_model("Drawn", __base__=Base, **{name: (hint, part(name)) for name, hint in hints.items()})  # type: ignore[call-overload] # drawn


def _struct(random: Random, hints: Mapping[str, Any]) -> Any:
    return msgspec.defstruct(
        "Drawn",
        list(hints.items()),
        rename=random.choice([None, "camel", "upper"]),
        array_like=random.random() < 0.3,
        tag=random.choice([None, "drawn", 7]),
        forbid_unknown_fields=random.random() < 0.3,
        kw_only=True,
    )


def _attrs(random: Random, hints: Mapping[str, Any]) -> Any:
    return attrs.make_class(
        "Drawn", {name: attrs.field(type=hint) for name, hint in hints.items()}, frozen=random.random() < 0.5
    )


def _typed_dict(_: Random, hints: Mapping[str, Any]) -> Any:
    return typing.TypedDict("Drawn", hints)  # type: ignore[misc, operator] # drawn


def same(found: Any, value: Any) -> bool:
    """Return True for values that are equal including their types, with NaN equal to NaN."""
    if type(found) is not type(value):
        return False
    if isinstance(value, float | Decimal) and value != value:
        return bool(found != found)
    if (
        dataclasses.is_dataclass(value)
        or attrs.has(type(value))
        or isinstance(value, msgspec.Struct | pydantic.BaseModel)
    ):
        names = (
            getattr(type(value), "__annotations__", {}) if not isinstance(value, pydantic.BaseModel) else value.__dict__
        )
        return all(same(getattr(found, name), getattr(value, name)) for name in names)
    if isinstance(value, Mapping):
        left, right = list(found.items()), list(value.items())
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(value, list | tuple | collections.deque):
        return len(found) == len(value) and all(map(same, found, value))
    if isinstance(value, set | frozenset):
        return len(found) == len(value) and (found == value or sorted(map(str, found)) == sorted(map(str, value)))
    return bool(found == value)

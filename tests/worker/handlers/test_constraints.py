"""Constraints in ``Annotated`` are enforced anywhere in a handler's annotations."""

import dataclasses
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import annotated_types
import msgspec
import pytest
from pydantic import AfterValidator, BeforeValidator, Field

from millstream import App, Message, PayloadError
from millstream.errors import ConfigError
from millstream.worker.handlers.binding import Binder
from millstream.worker.handlers.fields import encode

Five = Annotated[int, Field(gt=5)]


def even(value: int) -> int:
    """Refuse odd numbers."""
    if value % 2:
        raise ValueError("odd")
    return value


@dataclasses.dataclass
class Order:
    """A dataclass with a constraint."""

    amount: Five


class Typed(TypedDict, total=False):
    """A TypedDict with the same constraint."""

    amount: Five


class Named(NamedTuple):
    """A named tuple with the same constraint."""

    amount: Five


class Broken:
    """A type with failing pydantic hooks of its own."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise RuntimeError("broken")


def binder(annotation: Any, **options: Any) -> Binder:
    def handle(n: Any) -> None: ...

    handle.__annotations__["n"] = annotation
    return Binder(handle, **options)


@pytest.mark.parametrize(
    ("annotation", "good", "value", "bad"),
    [
        (Five, b"6", 6, b"1"),
        (Annotated[int, annotated_types.Gt(5)], b"6", 6, b"1"),
        (Annotated[int, annotated_types.Interval(gt=5, lt=9)], b"6", 6, b"9"),
        (Annotated[int, msgspec.Meta(gt=5)], b"6", 6, b"1"),
        (Annotated[str, Field(max_length=2)], b"ab", "ab", b"abc"),
        (Annotated[str, msgspec.Meta(pattern="^a")], b"ab", "ab", b"b"),
        (Annotated[int, AfterValidator(even)], b"6", 6, b"7"),
        (Annotated[list[int], BeforeValidator(lambda text: text.split(","))], b"1,2", [1, 2], b"a"),
        (Annotated[Five, "a remark", Field(lt=9)], b"6", 6, b"9"),
        (Five | None, b"6", 6, b"1"),
        (Annotated[int | None, Field(gt=5)], b"6", 6, b"1"),
        (list[Five], b"[6]", [6], b"[6,1]"),
        (dict[str, Five], b'{"n":6}', {"n": 6}, b'{"n":1}'),
        (tuple[str, Five], b'["a",6]', ("a", 6), b'["a",1]'),
        (Annotated[list[int], Field(max_length=1)], b"[6]", [6], b"[6,7]"),
        (Annotated[list[int], msgspec.Meta(max_length=1)], b"[6]", [6], b"[6,7]"),
        (Order, b'{"amount":6}', Order(6), b'{"amount":1}'),
        (Annotated[Order, "a remark"], b'{"amount":6}', Order(6), b'{"amount":1}'),
        (list[Order], b'[{"amount":6}]', [Order(6)], b'[{"amount":1}]'),
        (Typed, b'{"amount":6}', {"amount": 6}, b'{"amount":1}'),
        (Named, b"[6]", Named(6), b"[1]"),
        (Annotated[Literal["a", "b"], "a remark"], b"a", "a", b"c"),
    ],
)
def test_a_constraint_is_honoured_wherever_it_stands(annotation: Any, good: bytes, value: Any, bad: bytes) -> None:
    """An entry that breaks a constraint is invalid, alone and in a batch. Entries that satisfy it are handled."""
    for one in (binder(annotation), binder(list[annotation], batch=True)):
        assert one.bind([b"data", good], None) == {"n": value}
        with pytest.raises(PayloadError):
            one.bind([b"data", bad], None)


def test_a_remark_changes_nothing() -> None:
    """``Annotated`` with a plain remark behaves like the type itself."""
    assert binder(Annotated[Message, "a remark"]).wants_message


def test_a_publisher_refuses_what_the_constraint_refuses() -> None:
    """Publishing a value that breaks the constraint is refused, since no handler could read it."""
    with pytest.raises(PayloadError):
        encode(Order(1))
    assert encode(Order(6)) == [b"amount", b"6"]


@pytest.mark.parametrize(
    ("annotation", "options"),
    [
        (Annotated[int, msgspec.Meta(max_length=5)], {}),
        (Annotated[list[int], Field(max_length=5)], {"batch": True}),
        (Annotated[int, Field(max_length=5)], {}),
        (Annotated[float, Field(min_length=5)], {}),
        (Annotated[str, Field(gt=5)], {}),
        (Annotated[list[int], Field(lt=5)], {}),
        (Annotated[int, Field(gt="a")], {}),
        (Annotated[int, Field(multiple_of=0)], {}),
        (Annotated[str, Field(pattern="(")], {}),
        (Annotated[list[int], Field(multiple_of=2)], {}),
        (Broken, {}),
        (list[Broken], {}),
    ],
)
def test_a_constraint_that_nothing_can_check_is_refused_by_name(annotation: Any, options: Any) -> None:
    """A constraint that cannot be checked is refused, with handler and parameter in the error."""
    with pytest.raises(ConfigError, match="handle: parameter n"):
        binder(annotation, **options)


def test_a_validator_of_ones_own_is_not_tried_before_the_first_entry() -> None:
    """A user's own validator is not called before the first entry."""

    def never(value: int) -> int:
        raise TypeError("Unable to apply constraint")

    binder(Annotated[int, Field(gt=5), AfterValidator(never)])


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    """An annotation that is not valid Python is an error with the handler's name."""

    def handle(n: int) -> None: ...

    handle.__annotations__["n"] = "list["
    with pytest.raises(ConfigError, match="handle: "):
        App("memory://").subscriber("s")(handle)


def test_a_field_as_default_is_refused() -> None:
    """A pydantic ``Field`` as a parameter's default value is refused."""

    def handle(n: int = Field(gt=5)) -> None: ...

    with pytest.raises(ConfigError, match=r"handle: parameter n .*Annotated"):
        Binder(handle)

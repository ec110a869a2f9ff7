"""From a field's bytes, or a JSON value, to the type of an annotation. Pure.

Builds one function for each type, once. This module handles the standard library's types and dataclasses. pydantic and
msgspec decode their own models. pydantic, if installed, also decodes every type that this module does not support.

Pydantic's ``TypeAdapter`` for all of them would be shorter, and was tried: it agreed on two of 21 types. It guesses
where a stream should not: ``20130101`` as a datetime is a day in August 1970, ``true`` and ``1.0`` are integers, ``y``
is a boolean. It refuses values that entries contain: JSON in a field, an empty field for None, ``90`` as seconds, ``1``
for ``Literal[1]``. And the worker runs without pydantic.
"""

import dataclasses
import functools
import inspect
import json
import pathlib
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from millstream.client.jsontext import parse
from millstream.errors import ConfigError
from millstream.worker.model.annotations import (
    bare,
    constraints,
    data,
    generic,
    hints_of_parts,
    is_marked,
    is_typed_dict,
    members,
    named,
)

try:
    from pydantic_core import from_json as _fast_json
except ImportError:  # pydantic is optional
    _fast_json = parse  # type: ignore[assignment] # wider

Convert = Callable[[Any], Any]

_MAPPINGS = (dict, Mapping, MutableMapping, OrderedDict, Counter, defaultdict)
_LISTS = (list, set, tuple, frozenset, deque)
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def text(value: Any) -> Any:
    """Return bytes as text, and any other value as it is."""
    return value.decode() if isinstance(value, bytes) else value


def lenient(value: Any) -> Any:
    """Return bytes as text if they are UTF-8, and any other value as it is."""
    try:
        return text(value)
    except UnicodeDecodeError:
        return value


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object or a mapping of fields as a dict of text."""
    if type(value) is not dict:  # a value from JSON is already a dict
        value = _loaded(value)
        if not isinstance(value, Mapping):
            raise _unfit("an object", value)
    return as_text(value)


def _unfit(expected: str, value: Any) -> ValueError:
    """Return the error for a value of another type; never TypeError, so that all unfit content raises one kind."""
    return ValueError(f"expected {expected}, got {type(value).__name__}")


def as_text(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with bytes as text where they are UTF-8; one that came from JSON is returned as it is."""
    if type(fields) is dict and bytes not in map(type, fields.values()):
        return fields
    return {name: lenient(item) for name, item in fields.items()}


def from_json(value: bytes) -> Any:
    """Return the value of this JSON."""
    try:
        return _fast_json(value)
    except ValueError:  # it is stricter than the standard library, which decides
        return parse(value)


def builder(annotation: Any) -> Convert:
    """Return the function that makes this type from bytes or a JSON value; it raises ValueError or TypeError."""
    return _constrained(kind) if is_marked(kind := data(named(annotation))) else _of_type(kind)


def _of_type(annotation: Any) -> Convert:
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):  # `X | None` and `Optional[X]` have different origins
        return _union(tuple(one if constraints(one) else bare(one) for one in members(annotation)))
    if origin is Literal:
        return _one_of({word: item for item in get_args(annotation) for word in _words(item)})
    if origin in _MAPPINGS or annotation in _MAPPINGS:
        return _mapping(origin or annotation, get_args(annotation))
    if origin in _LISTS or annotation in _LISTS:
        return _items(annotation)
    # These are distinguished by attributes, since none of the libraries may be installed
    kind = generic(annotation) or annotation
    if isinstance(kind, type):
        if hasattr(kind, "model_validate"):
            return _model(kind)
        if hasattr(kind, "__struct_fields__"):
            return _struct(annotation)
        if dataclasses.is_dataclass(kind):
            return _dataclass(annotation)
        if hasattr(kind, "__attrs_attrs__"):
            return _attrs(annotation)
        if is_typed_dict(kind):
            return _typed_dict(annotation)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return _named_tuple(annotation)
        if issubclass(kind, Enum):
            by_text = {str(member.value): member for member in kind}
            return _flags(kind, by_text) if issubclass(kind, Flag) else _one_of(by_text)
    return _by_pydantic(annotation)


def is_mapping(annotation: Any) -> bool:
    """Report whether an annotation is dict or another mapping, with or without type arguments."""
    return bare(annotation) in _MAPPINGS or get_origin(bare(annotation)) in _MAPPINGS


def is_structured(annotation: Any) -> bool:
    """Report whether a type stands for a whole entry and not for one of its fields."""
    annotation = bare(annotation)
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(map(is_structured, members(annotation)))
    if annotation is Any or is_mapping(annotation):
        return True
    kind = generic(annotation) or annotation
    foreign = any(hasattr(kind, name) for name in ("model_validate", "__struct_fields__", "__attrs_attrs__"))
    return isinstance(kind, type) and (foreign or dataclasses.is_dataclass(kind) or is_typed_dict(kind))


#: Validators that get the raw value, so that pydantic must do the whole conversion.
_BEFORE = frozenset({"BeforeValidator", "PlainValidator", "WrapValidator"})


#: Modules of declared constraints; a user's own code, such as a validator, is not tried.
_DECLARED = frozenset({"annotated_types", "pydantic.fields"})
#: Types for which pydantic accepts an impossible constraint, but fails at the first value.
_TRIED = frozenset({int, float, bool, str, bytes, list, dict, set, tuple, Decimal})


def _refuse_impossible(check: Convert, annotation: Any, kind: Any) -> None:
    if kind not in _TRIED:
        return
    try:
        check(kind())
    except ValueError:  # the constraint is possible
        return
    except TypeError as error:
        if str(error).startswith("Unable to apply constraint"):
            raise ConfigError(f"cannot decode {annotation!r}: {kind.__name__} cannot have this constraint") from None


def _constrained(annotation: Any) -> Convert:
    kind, marks = bare(annotation), constraints(annotation)
    of_msgspec = tuple(mark for mark in marks if type(mark).__module__ == "msgspec")
    others = tuple(mark for mark in marks if type(mark).__module__ != "msgspec")
    checks = [_msgspec_check(kind, mark) for mark in of_msgspec]
    # Such a validator must get the raw value
    if others and not _BEFORE.isdisjoint(type(mark).__name__ for mark in others):
        make = _by_pydantic(Annotated[(kind, *others)])
    else:
        make = builder(kind)
        if others:
            checks.append(_by_pydantic(Annotated[(kind, *others)], loads=False))
            if all(type(mark).__module__ in _DECLARED and type(mark).__name__ != "Predicate" for mark in others):
                _refuse_impossible(checks[-1], annotation, get_origin(kind) or kind)

    def convert(value: Any) -> Any:
        value = make(value)
        for check in checks:
            value = check(value)
        return value

    return convert if checks else make


def _msgspec_check(kind: Any, mark: Any) -> Convert:
    import msgspec  # noqa: PLC0415 - the annotation is from this library, so it is installed

    limited: Any = Annotated[kind, mark]
    try:
        msgspec.json.Decoder(limited)
    except TypeError as error:
        raise ConfigError(f"the annotation {limited!r} is invalid: {error}") from None

    def check(value: Any) -> Any:
        msgspec.convert(value, limited)  # its ValidationError is a ValueError
        return value

    return check


def _loaded(value: Any) -> Any:
    if isinstance(value, bytes):
        return from_json(value)
    return parse(value) if isinstance(value, str) else value


def _string(value: Any) -> str:
    value = text(value)
    if not isinstance(value, str):
        raise _unfit("text", value)
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")  # a field's name, which may contain any bytes
    return json.dumps(value).encode()


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"expected a whole number, got {value!r}")
    try:
        return int(value)
    except OverflowError:
        raise ValueError(f"expected a whole number, got {value!r}") from None


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value!r}")  # noqa: TRY004 - one kind of error for all content
    try:
        return float(value)
    except OverflowError:
        raise ValueError("the number is too large") from None


def _duration(value: Any) -> timedelta:
    """Return the value as seconds; text is exact to the microsecond, whatever the number of seconds."""
    value = text(value)
    try:
        if isinstance(value, str):
            return timedelta(microseconds=int(Decimal(value) * 1_000_000))
        return timedelta(seconds=_float(value))
    except (ArithmeticError, ValueError):
        raise ValueError(f"expected seconds, got {value!r}") from None


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(text(value)).lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"expected true or false, got {text(value)!r}")
    return word in _TRUE


def _nothing(value: Any) -> None:
    if value is not None and value not in (b"", "", b"null", "null"):
        raise ValueError(f"expected nothing, got {value!r}")


_PATHS = (pathlib.Path, pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath)


def _only_none(value: Any) -> None:
    if value is not None:
        raise ValueError("expected nothing")


_SIMPLE: dict[Any, Convert] = {
    Any: lenient,
    object: lenient,
    str: _string,
    bytes: _bytes,
    bytearray: lambda value: bytearray(_bytes(value)),
    memoryview: lambda value: memoryview(_bytes(value)),
    int: _integer,
    float: _float,
    bool: _boolean,
    datetime: lambda value: datetime.fromisoformat(_string(value)),
    date: lambda value: date.fromisoformat(_string(value)),
    time: lambda value: time.fromisoformat(_string(value)),
    timedelta: _duration,
    Decimal: lambda value: _decimal(text(value)),
    UUID: lambda value: UUID(_string(value)),
    **{kind: functools.partial(lambda kind, value: kind(_string(value)), kind) for kind in _PATHS},
    None: _nothing,
    type(None): _nothing,
}


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except ArithmeticError:
        raise ValueError(f"expected a decimal number, got {value!r}") from None


_TEXTS = (str, bytes, bytearray, memoryview)
_JSON_TYPES = frozenset({str, int, float, bool, type(None)})


def _union(kinds: tuple[Any, ...]) -> Convert:
    # Text last, since any value is text, and str | int would never become int. None comes after all others that can use
    # empty text, unless an enum or a literal contains it
    ordered = sorted(kinds, key=lambda one: (not _names_texts(one), one is not type(None), bare(one) in _TEXTS))
    worded = any(bare(member) in _TEXTS for member in kinds)  # if text is allowed, empty text stays text
    builders = [_only_none if member is type(None) and worded else builder(member) for member in ordered]
    own = frozenset(kinds) if _JSON_TYPES.issuperset(kinds) else frozenset()

    def convert(value: Any) -> Any:
        if type(value) in own:  # JSON values have types already
            return value
        problem: Exception | None = None
        for build in builders:
            try:
                return build(value)
            except (ValueError, TypeError) as error:
                problem = error
        raise ValueError(str(problem))

    return convert


def _names_texts(member: Any) -> bool:
    member = bare(member)
    return get_origin(member) is Literal or (isinstance(member, type) and issubclass(member, Enum))


def _one_of(by_text: Mapping[str, Any]) -> Convert:
    """Return the function for literals and enums: fields are text, so a value's text stands for it."""

    def convert(value: Any) -> Any:
        word = str(text(value))
        if word not in by_text:
            raise ValueError(f"expected one of {', '.join(by_text)}, got {word!r}")
        return by_text[word]

    return convert


def _words(item: Any) -> Iterable[str]:
    """Yield the texts of a literal: as it was written, and as it is published."""
    value = item.value if isinstance(item, Enum) else item
    yield str(item)
    yield str(text(value))
    if isinstance(value, bool):
        yield str(value).lower()
    if value is None:
        yield from ("", "null")


def _flags(kind: Any, by_text: Mapping[str, Any]) -> Convert:
    """Return the function for one flag or several together, by their number."""

    def convert(value: Any) -> Any:
        value = text(value)
        return by_text[str(value)] if str(value) in by_text else kind(int(value))

    return convert


def _mapping(kind: Any, args: tuple[Any, ...]) -> Convert:
    """Return the function for a mapping; a Counter has whole numbers, and a defaultdict's default is its value type."""
    if kind is Counter:
        args = (*(args or (Any,)), int)
    convert = _texts if args == (str, str) else mapping if args in ((), (str, Any)) else _mapping_of(*args)
    if kind in (dict, Mapping, MutableMapping):
        return convert
    default = (get_origin(args[1]) or args[1]) if args else None
    made = (
        functools.partial(defaultdict, default if isinstance(default, type) else None) if kind is defaultdict else kind
    )
    return lambda value: made(convert(value))


def _texts(value: Any) -> dict[str, str]:
    """Return a mapping of texts; usually all values are texts already."""
    found = mapping(value)
    plain = all(type(item) is str for item in found.values())
    return found if plain else {name: _named(name, _SIMPLE[str], item) for name, item in found.items()}


def _mapping_of(name_kind: Any, item_kind: Any) -> Convert:
    """Return the function for a mapping with types for names and values; in JSON and in fields, names are text."""
    make_name, make_item = builder(name_kind), builder(item_kind)

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if not isinstance(value, Mapping):
            raise _unfit("an object", value)
        return {make_name(name): _named(name, make_item, item) for name, item in value.items()}

    return convert


def _named(name: Any, build: Convert, value: Any) -> Any:
    """Convert a field's value; an error names the field."""
    try:
        return build(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from error


def _items(annotation: Any) -> Convert:
    kind = get_origin(annotation) or annotation
    given = get_args(annotation)
    args = tuple(arg for arg in given if arg is not Ellipsis)
    if kind is tuple and len(given) > 1 and Ellipsis not in given:  # `tuple[int, str]`: one type for each position
        return _sequence(args, tuple)
    item = builder(args[0]) if args else lenient

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if not isinstance(value, list | tuple):
            raise _unfit("a list", value)
        return kind(item(part) for part in value)

    return convert


def _sequence(kinds: Iterable[Any], make: Callable[[Any], Any]) -> Convert:
    """Return the function for a list with a type for each position."""
    builders = [builder(kind) for kind in kinds]

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if not isinstance(value, list | tuple) or len(value) != len(builders):
            raise _unfit(f"a list of {len(builders)}", value)
        return make(build(part) for build, part in zip(builders, value, strict=True))

    return convert


def _named_tuple(annotation: Any) -> Convert:
    hints, kind = hints_of_parts(annotation), generic(annotation) or annotation
    return _sequence([hints.get(name, Any) for name in kind._fields], kind._make)


def _dataclass(annotation: Any) -> Convert:
    hints, kind = hints_of_parts(annotation), generic(annotation) or annotation
    parts = dataclasses.fields(kind)
    made = {part.name: (part.name, hints[part.name], _required(part)) for part in parts if part.init}
    return _object(kind, made, {part.name: builder(hints[part.name]) for part in parts if not part.init})


def _attrs(annotation: Any) -> Convert:
    hints, kind = hints_of_parts(annotation), generic(annotation) or annotation
    parts = kind.__attrs_attrs__
    made = {
        part.name: (part.alias, hints.get(part.name, Any), getattr(part.default, "name", "") == "NOTHING")
        for part in parts
        if part.init
    }
    return _object(kind, made, {part.name: builder(hints.get(part.name, Any)) for part in parts if not part.init})


def _typed_dict(annotation: Any) -> Convert:
    hints, kind = hints_of_parts(annotation), generic(annotation) or annotation
    return _object(kind, {name: (name, hint, name in kind.__required_keys__) for name, hint in hints.items()}, {})


def _object(kind: Any, parts: Mapping[str, tuple[str, Any, bool]], later: Mapping[str, Convert]) -> Convert:
    """Return the function that makes an instance of a class from an object."""
    made_by = [
        (name, argument, builder(hint), required, admits_none(hint))
        for name, (argument, hint, required) in parts.items()
    ]
    instance = None if is_typed_dict(kind) else kind

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if instance is not None and isinstance(value, instance):
            return value
        if not isinstance(value, Mapping):
            raise _unfit(f"an object for {kind.__name__}", value)
        made: dict[str, Any] = {}
        for name, argument, build, required, optional in made_by:
            if name in value:
                made[argument] = _named(name, build, value[name])
            elif required:
                if not optional:
                    raise ValueError(f"{name}: missing")
                made[argument] = None
        found = kind(**made)
        for name, build in later.items():
            if name in value:
                # The only way with a frozen dataclass
                object.__setattr__(found, name, _named(name, build, value[name]))
        return found

    return convert


def _required(part: "dataclasses.Field[Any]") -> bool:
    return part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING


def admits_none(annotation: Any) -> bool:
    """Report whether the annotation allows None."""
    annotation = bare(annotation)
    if get_origin(annotation) is Literal:
        return None in get_args(annotation)
    return annotation in (None, type(None), Any) or type(None) in members(annotation)


def _model(kind: Any) -> Convert:
    """Return the function for a pydantic model, by names and aliases; its validators may accept other values."""
    parts = {
        name: (part.annotation, part.is_required(), _aliases(name, part)) for name, part in kind.model_fields.items()
    }
    make = kind.model_validate
    if "by_name" in inspect.signature(make).parameters:  # pydantic 2.11
        make = functools.partial(make, by_name=True)
    convert = _lenient_object(parts, make, make)
    if not getattr(kind, "__pydantic_root_model__", False):
        return convert

    def root(value: Any) -> Any:
        if isinstance(value, Mapping) and list(value) == ["data"]:  # a single value is published in a field so named
            try:
                return make(lenient(value["data"]))
            except ValueError:
                pass
        return convert(value)

    return root


def _aliases(name: str, part: Any) -> frozenset[str]:
    given = part.validation_alias
    return frozenset({name}.union(one for one in getattr(given, "choices", [given]) if isinstance(one, str)))


def _struct(annotation: Any) -> Convert:
    """Return the function for a msgspec struct."""
    import msgspec  # noqa: PLC0415 - its users have installed it

    kind = generic(annotation) or annotation

    def make(value: Any) -> Any:
        return msgspec.convert(value, annotation, strict=False)

    def other(value: Any) -> Any:
        if kind.__struct_config__.array_like:
            return make(value)
        raise _unfit(f"an object for {kind.__name__}", value)

    parts = {
        part.encode_name: (part.type, part.required, frozenset({part.encode_name}))
        for part in msgspec.structs.fields(annotation)
    }
    return _lenient_object(parts, make, other)  # its ValidationError is a ValueError


def _lenient_object(parts: Mapping[str, tuple[Any, bool, frozenset[str]]], make: Convert, other: Convert) -> Convert:
    """Return the function for an object that a library converts; it reads text leniently, and JSON in nested fields."""
    texts = {name for annotation, _, names in parts.values() if wants_text(annotation) for name in names}
    raw = {
        name
        for kind, _, names in parts.values()
        if _wants(kind, (bytes,)) and not _wants(kind, (str,))
        for name in names
    }
    optional = {name for annotation, _, names in parts.values() if admits_none(annotation) for name in names}
    filled = {name: names for name, (annotation, required, names) in parts.items() if required and name in optional}

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if not isinstance(value, Mapping):
            return other(value)
        if bytes not in map(type, value.values()):  # values from JSON have types already
            try:
                return make(value)
            except ValueError:
                pass
        made = {
            name: item if name in raw else _part(item, name in texts, name in optional) for name, item in value.items()
        }
        for name, names in filled.items():
            if names.isdisjoint(made):
                made[name] = None
        return make(made)

    return convert


def _part(item: Any, is_text: bool, is_optional: bool) -> Any:
    """Return one field's value for a struct or a model: text if the type is text, else the value in the text."""
    part = lenient(item)
    if isinstance(part, str) and not is_text:
        if part == "null" or (not part and is_optional):
            return None
        if part[:1] in ("{", "["):
            return parse(part)
    return part


def wants_text(annotation: Any) -> bool:
    """Report whether the annotation allows text or bytes."""
    return _wants(annotation, _TEXTS)


def _wants(annotation: Any, kinds: tuple[type, ...]) -> bool:
    return any(bare(member) in kinds for member in members(bare(annotation)))


def _by_pydantic(annotation: Any, *, loads: bool = True) -> Convert:
    try:
        from pydantic import PydanticUserError, TypeAdapter  # noqa: PLC0415 - an extra that handlers may do without
    except ImportError:
        raise ConfigError(
            f"cannot decode {annotation!r} without pydantic. Run pip install 'millstream[worker]'."
        ) from None
    try:
        adapter = TypeAdapter(annotation)
    except PydanticUserError as error:
        raise ConfigError(f"cannot decode {annotation!r}: {error.message}") from None
    except Exception as error:  # noqa: BLE001 - a constraint that this type cannot have, or a user's own type
        raise ConfigError(f"cannot decode {annotation!r}: {error}") from None
    if not loads:
        return adapter.validate_python

    def convert(value: Any) -> Any:
        value = lenient(value)
        if isinstance(value, str) and value[:1] in ("{", "["):
            try:
                return adapter.validate_python(parse(value))
            except ValueError:  # text that begins like JSON, such as a path
                return adapter.validate_python(value)
        if isinstance(value, Mapping):
            value = {name: lenient(item) for name, item in value.items()}
        return adapter.validate_python(value)

    return convert

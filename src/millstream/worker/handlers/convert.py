"""From a field's bytes, or a JSON value, to the type an annotation asks for. Pure.

Builds one function per type, once. The standard library's types and dataclasses are handled here; pydantic and
msgspec do their own models and, where it is installed, every type this module does not know.

Pydantic's ``TypeAdapter`` for all of them would be shorter, and was tried: it agreed on two of 21 types. It guesses
where a stream should not (``20130101`` as a datetime is a day in August 1970, ``true`` and ``1.0`` are integers, ``y``
is a boolean) and refuses what entries hold (JSON in a field, an empty field for None, ``90`` as seconds, ``1`` for
``Literal[1]``). And the worker runs without pydantic.
"""

import dataclasses
import json
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from millstream.client.jsontext import parse
from millstream.errors import ConfigError

try:
    from pydantic_core import from_json as _fast_json
except ImportError:  # pydantic is for those who use its models
    _fast_json = parse  # type: ignore[assignment] # wider

Convert = Callable[[Any], Any]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def text(value: Any) -> Any:
    """Bytes as text; anything else as it is."""
    return value.decode() if isinstance(value, bytes) else value


def lenient(value: Any) -> Any:
    """Bytes as text where they are text, else the bytes."""
    try:
        return text(value)
    except UnicodeDecodeError:
        return value


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object or a mapping of fields as a dict of text."""
    if type(value) is not dict:  # what came from JSON is one
        value = _loaded(value)
        if not isinstance(value, Mapping):
            raise _unfit("an object", value)
    return as_text(value)


def _unfit(expected: str, value: Any) -> ValueError:
    """For a value of another kind; no TypeError, so that all content that does not fit raises one kind of error."""
    return ValueError(f"expected {expected}, got {type(value).__name__}")


def as_text(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its bytes as text where they are text; what came from JSON has none and is given back as it is."""
    if type(fields) is dict and bytes not in map(type, fields.values()):
        return fields
    return {name: lenient(item) for name, item in fields.items()}


def from_json(value: bytes) -> Any:
    """What this JSON says.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return _fast_json(value)
    except ValueError:  # stricter than the standard library, which has the last word
        return parse(value)


def builder(annotation: Any) -> Convert:
    """The function that makes this type out of bytes or a JSON value; it raises ValueError or TypeError when it cannot.

    Raises:
        ConfigError: no way to make such a type is known.
    """
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation))
    if origin is Literal:
        return _one_of({str(item): item for item in get_args(annotation)})
    if origin in (dict, Mapping) or annotation in (dict, Mapping):
        return mapping if get_args(annotation) in ((), (str, str), (str, Any)) else _by_pydantic(annotation)
    if origin in (list, set, tuple, frozenset) or annotation in (list, set, tuple, frozenset):
        return _items(annotation)
    if isinstance(annotation, type):
        if hasattr(annotation, "model_validate"):
            return _model(annotation)
        if hasattr(annotation, "__struct_fields__"):
            return _struct(annotation)
        if dataclasses.is_dataclass(annotation):
            return _dataclass(annotation)
        if issubclass(annotation, Enum):
            return _one_of({str(member.value): member for member in annotation})
    return _by_pydantic(annotation)


def is_structured(annotation: Any) -> bool:
    """True for types that stand for a whole entry and not for one of its fields."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(is_structured(member) for member in get_args(annotation))
    if annotation in (Any, dict, Mapping) or origin in (dict, Mapping):
        return True
    return isinstance(annotation, type) and (
        hasattr(annotation, "model_validate")
        or hasattr(annotation, "__struct_fields__")
        or dataclasses.is_dataclass(annotation)
    )


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
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"expected a whole number, got {value!r}")
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value!r}")  # noqa: TRY004 - one kind of error for all content
    return float(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(text(value)).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"expected true or false, got {text(value)!r}")


def _nothing(value: Any) -> None:
    if value is not None and value not in (b"", "", b"null", "null"):
        raise ValueError(f"expected nothing, got {value!r}")


_SIMPLE: dict[Any, Convert] = {
    Any: lenient,
    object: lenient,
    str: _string,
    bytes: _bytes,
    int: _integer,
    float: _float,
    bool: _boolean,
    datetime: lambda value: datetime.fromisoformat(_string(value)),
    date: lambda value: date.fromisoformat(_string(value)),
    time: lambda value: time.fromisoformat(_string(value)),
    timedelta: lambda value: timedelta(seconds=_float(value)),
    Decimal: lambda value: _decimal(text(value)),
    UUID: lambda value: UUID(_string(value)),
    None: _nothing,
    type(None): _nothing,
}


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except ArithmeticError:
        raise ValueError(f"expected a decimal number, got {value!r}") from None


def _union(members: tuple[Any, ...]) -> Convert:
    # text last: everything is text, so that str | int would never see its int; None only for what says nothing
    ordered = sorted(members, key=lambda member: (member is not type(None), member in (str, bytes)))
    builders = [builder(member) for member in ordered]

    def convert(value: Any) -> Any:
        problem: Exception | None = None
        for build in builders:
            try:
                return build(value)
            except (ValueError, TypeError) as error:
                problem = error
        raise ValueError(str(problem))

    return convert


def _one_of(by_text: Mapping[str, Any]) -> Convert:
    """For literals and enums: fields are text, so the text of a value stands for it, be it a number."""

    def convert(value: Any) -> Any:
        word = str(text(value))
        if word not in by_text:
            raise ValueError(f"expected one of {', '.join(by_text)}, got {word!r}")
        return by_text[word]

    return convert


def _items(annotation: Any) -> Convert:
    kind = get_origin(annotation) or annotation
    args = tuple(arg for arg in get_args(annotation) if arg is not Ellipsis)
    if len(args) > 1:
        return _by_pydantic(annotation)
    item = builder(args[0]) if args else lenient

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if not isinstance(value, list | tuple):
            raise _unfit("a list", value)
        return kind(item(part) for part in value)

    return convert


def _dataclass(kind: type) -> Convert:
    hints = get_type_hints(kind)
    parts = [
        (part.name, builder(hints[part.name]), _required(part), admits_none(hints[part.name]))
        for part in dataclasses.fields(kind)
        if part.init
    ]

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise _unfit(f"an object for {kind.__name__}", value)
        made: dict[str, Any] = {}
        for name, build, required, optional in parts:
            if name in value:
                try:
                    made[name] = build(value[name])
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{name}: {error}") from error
            elif required:
                if not optional:
                    raise ValueError(f"{name}: missing")
                made[name] = None
        return kind(**made)

    return convert


def _required(part: "dataclasses.Field[Any]") -> bool:
    return part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING


def admits_none(annotation: Any) -> bool:
    """True when None is among what the annotation allows."""
    return annotation in (None, Any) or type(None) in get_args(annotation)


def _model(kind: Any) -> Convert:
    """A pydantic model, which takes other things than objects where its validators do."""
    parts = {name: (part.annotation, part.is_required()) for name, part in kind.model_fields.items()}
    return _lenient_object(parts, kind.model_validate, kind.model_validate)


def _struct(kind: Any) -> Convert:
    """A msgspec struct."""
    import msgspec  # noqa: PLC0415 - for those who use its structs, so it is there

    def refuse(value: Any) -> Any:
        raise _unfit(f"an object for {kind.__name__}", value)

    parts = {part.encode_name: (part.type, part.required) for part in msgspec.structs.fields(kind)}
    # its ValidationError is a ValueError
    return _lenient_object(parts, lambda made: msgspec.convert(made, kind, strict=False), refuse)


def _lenient_object(parts: Mapping[str, tuple[Any, bool]], make: Convert, other: Convert) -> Convert:
    """What a library makes of an object: fields are text, which it reads leniently; nested parts are JSON in theirs.

    Args:
        parts: by name: the annotation, and whether the part has no default.
        make: makes it from a dict.
        other: what to do with a value that is no object.
    """
    texts = {name for name, (annotation, _) in parts.items() if _wants_text(annotation)}
    optional = {name for name, (annotation, _) in parts.items() if admits_none(annotation)}
    filled = {name for name in optional if parts[name][1]}

    def convert(value: Any) -> Any:
        value = _loaded(value)
        if not isinstance(value, Mapping):
            return other(value)
        made = {name: _part(item, name in texts, name in optional) for name, item in value.items()}
        for name in filled - made.keys():
            made[name] = None
        return make(made)

    return convert


def _part(item: Any, is_text: bool, is_optional: bool) -> Any:
    """One field's value for a struct or a model: text where text is asked for, else what the text says."""
    part = lenient(item)
    if isinstance(part, str) and not is_text:
        if part == "null" or (not part and is_optional):
            return None
        if part[:1] in ("{", "["):
            return parse(part)
    return part


def _wants_text(annotation: Any) -> bool:
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return any(member in (str, bytes) for member in members)


def _by_pydantic(annotation: Any) -> Convert:
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - only for types the standard library does not explain
    except ImportError:
        raise ConfigError(f"cannot decode {annotation!r} without pydantic: install millstream[worker]") from None
    adapter = TypeAdapter(annotation)

    def convert(value: Any) -> Any:
        value = lenient(value)
        if isinstance(value, str) and value[:1] in ("{", "["):
            value = parse(value)
        if isinstance(value, Mapping):
            value = {name: lenient(item) for name, item in value.items()}
        return adapter.validate_python(value)

    return convert

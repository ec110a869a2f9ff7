"""The only encoder: from published content to an entry's fields or an envelope's body, and back. Pure.

Invariant: a handler annotated with the published type gets an equal value, or :class:`PayloadError` names the field.
Values of the standard library's types are safe by their form. Models are read back before they are sent, since only
their own code defines what it accepts. The first form that is read back as an equal value is sent.
"""

import dataclasses
import functools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar, get_origin, get_type_hints
from uuid import UUID

from millstream.client.jobs import record
from millstream.client.jsontext import TooDeepError
from millstream.client.payloads import envelope
from millstream.errors import UsageError
from millstream.worker.handlers.convert import Convert, builder, from_json
from millstream.worker.model.answers import PayloadError

Form = TypeVar("Form")

JSON_FIELD = b"data"
JSON, TEXT = "application/json", "text/plain"
_LISTS = (list, tuple, set, frozenset, deque)
_SURROGATE = "the text holds half of a surrogate pair, which UTF-8 has no form for"
_NO_FORM: Any = object()
_LONGEST_NAME = 80
_LARGE = 2**63


class _UnfitError(Exception):
    """A value cannot be encoded; ``path`` leads to it."""

    def __init__(self, reason: str, *path: Any) -> None:
        super().__init__(reason)
        self.path = list(path)

    def under(self, name: Any) -> "_UnfitError":
        """Return this error with a name added in front of its path."""
        self.path.insert(0, name)
        return self

    def __str__(self) -> str:
        first, *inner = map(_said, self.path or ["the content"])
        return f"{first}{''.join(f'[{part}]' for part in inner)}: {self.args[0]}"


def _said(name: Any) -> str:
    """Return a name for an error's text; names come from outside, with any type and length."""
    try:
        text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
    except Exception:  # noqa: BLE001 - a number with too many digits, or a user's own type
        text = f"a {type(name).__name__}"
    text = text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "..."
    return text.encode(errors="backslashreplace").decode()


def unwrap(fields: Sequence[bytes]) -> Any:
    """Return the entry's content: a dict of field names and raw values, or the content of its JSON or envelope."""
    if len(fields) == 2:
        name, value = fields
        if name == envelope.FIELD:
            return _open(value)
        if name == JSON_FIELD and value[:1] in (b"{", b"["):
            try:
                return from_json(value)
            except TooDeepError:
                raise
            except ValueError:
                pass  # text that begins with a brace is an ordinary field
    return {
        name.decode("utf-8", "surrogateescape"): value for name, value in zip(fields[::2], fields[1::2], strict=True)
    }


def key_of(fields: Sequence[bytes], name: str) -> bytes | None:
    """Return the value of the field by which entries are ordered and partitioned; None without it."""
    if len(fields) != 2:  # separate fields, of which the last with a given name counts
        wanted = name.encode("utf-8", "surrogateescape")
        for at in range(len(fields) - 2, -1, -2):
            if fields[at] == wanted:
                return fields[at + 1]
        return None
    body = unwrap(fields)
    return as_key(body.get(name) if isinstance(body, Mapping) else None)


def as_key(value: object) -> bytes | None:
    """Return a value as a key; a number in JSON and in a field give the same key."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else repr(value).encode()


def _open(value: bytes) -> Any:
    found = envelope.parse(value)
    return open_body(found.headers.get("content-type", ""), found.body)


def open_body(kind: str, body: bytes) -> Any:
    """Return the content of a body of this content type; bytes for other types."""
    if JSON in kind or (not kind and body[:1] in (b"{", b"[")):  # includes "application/json; charset=utf-8"
        return from_json(body)
    return body.decode() if kind.startswith("text/") else body


def _refusing(form: Callable[[Any], Form]) -> Callable[[Any], Form]:
    """Wrap a function so that it raises PayloadError for any error of a content's own code."""

    @functools.wraps(form)
    def safe(content: Any) -> Form:
        try:
            return form(content)
        except _UnfitError as error:
            raise PayloadError(str(error)) from None
        except RecursionError:
            raise PayloadError(f"{_first(content)}: it is nested too deeply, or holds itself") from None
        except PayloadError:
            raise
        except Exception as error:  # raised by a property, an iterator or a comparison of the user's
            raise PayloadError(f"{_first(content)}: {type(error).__name__}: {error}") from error

    return safe


def _first(content: Any) -> str:
    names = ", ".join(map(_said, content)) if isinstance(content, Mapping) else ""
    return _said(names or JSON_FIELD)


@_refusing
def encode(content: Any) -> list[bytes]:
    """Return the fields for XADD of a mapping, a dataclass, a pydantic model, a msgspec struct or a single value.

    Text, bytes and numbers stay as they are, dates become ISO text, and nested values become JSON in their field. A
    None cannot be written as a field, so the field is left out; decoding returns None where the annotation allows it. A
    model that would not be read back as equal from such fields becomes one JSON document in ``data``.
    """
    if isinstance(content, Mapping):
        flat = _flat(content)
        if len(flat) == 2 and flat[0] == envelope.FIELD:  # it would be read as an envelope
            return [envelope.FIELD, envelope.build({"content-type": JSON}, _json(_tree(content, typed=True)))]
        return flat
    if is_model(content):
        parts = _plain(content)
        try:
            if parts is not None:
                return _flat(parts)
        except _UnfitError:  # half of a surrogate pair, which JSON can contain
            pass
        return _proven(content, _entries(content), unwrap)
    return _flat({JSON_FIELD.decode(): content})


def result_text(value: Any, at_ms: int) -> str:
    """Return the record of a handler's result; raise UsageError for a value that it cannot contain."""
    try:
        _check_result(value)
        text = record.record("done", at_ms, value=_tree(value, typed=False))
    except (_UnfitError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            f"the handler's result has no form in JSON: {error}. Return text, numbers, lists or models."
        ) from error
    if len(text) > record.VALUE_BYTES:
        raise UsageError(
            f"the handler's result has {len(text)} bytes as JSON, and {record.VALUE_BYTES} are allowed. Store it "
            "elsewhere, and return its key."
        )
    return text


def _check_result(value: Any) -> None:
    """Refuse parts that the publisher would get as others: no annotation restores them, unlike those of a model."""
    if isinstance(value, bytes | bytearray | memoryview | set | frozenset):
        raise _UnfitError(f"it has a value of the type {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise _UnfitError(f"it has the number {value}")
    if isinstance(value, Mapping):
        if (odd := next((name for name in value if not isinstance(name, str)), "")) != "":
            raise _UnfitError(f"it has the key {odd!r:.80}, which is not text")
        value = list(value.values())
    if isinstance(value, list | tuple | deque):
        for one in value:
            _check_result(one)


@_refusing
def to_body(content: Any) -> tuple[str, bytes]:
    """Return the content type and the body of an envelope, for the same contents as :func:`encode`."""
    if isinstance(content, bytes | bytearray | memoryview):
        return "application/octet-stream", _raw(content)
    try:
        if isinstance(content, str):
            return TEXT, _utf8(_scalar(content))
        return JSON, _json(_tree(content, typed=isinstance(content, float)))
    except _UnfitError as error:
        raise error if error.path else error.under(JSON_FIELD) from None


def is_model(value: Any) -> bool:
    """Report whether an object stands for a whole entry: a dataclass, pydantic model, msgspec struct or attrs class."""
    kind = type(value)
    return (
        hasattr(kind, "model_dump")
        or hasattr(kind, "__struct_fields__")
        or dataclasses.is_dataclass(kind)
        or hasattr(kind, "__attrs_attrs__")
    )


def _flat(content: Mapping[Any, Any], *, typed: bool = False) -> list[bytes]:
    flat: list[bytes] = []
    odd = False
    for name, value in content.items():
        if value is None:
            continue
        try:
            if type(name) is str and name.isascii():  # a shortcut for the most frequent case
                key = name.encode()
            else:
                key, odd = _name(name), True
            form = _FORMS.get(type(value))
            flat += (key, form(value) if form else _value(value, typed))
        except _UnfitError as error:
            raise error.under(name) from None
    if not flat:
        raise PayloadError("an entry needs at least one field with a value")
    if odd and len(set(flat[::2])) < len(flat) // 2:  # 1 and "1" are two names in Python, but one as text
        raise PayloadError(f"{_first(content)}: two of the names are the same as text, so one value would be lost")
    # A single field of this name contains a whole object
    if len(flat) == 2 and flat[0] == JSON_FIELD and flat[1][:1] in (b"{", b"[") and not typed:
        value = next(value for value in content.values() if value is not None)
        if not isinstance(value, (str, bytes, bytearray, memoryview, Mapping, *_LISTS)) and not is_model(value):
            raise _UnfitError("its text begins like JSON and would be read as such: use another name", JSON_FIELD)
    return flat


def _name(name: Any) -> bytes:
    """Return a field's name, which may be any bytes."""
    if isinstance(name, bytes):
        return name
    text = str(name) if isinstance(name, bool) else _key(name)
    made = text.encode("utf-8", "surrogateescape")  # the encoding in which names are read
    if made.decode("utf-8", "surrogateescape") != text:
        raise _UnfitError(_SURROGATE)
    return made


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _UnfitError(_SURROGATE) from None


#: Encodings of the most frequent types.
_FORMS: dict[type, Callable[[Any], bytes]] = {
    str: _utf8,
    bytes: lambda value: value,
    int: lambda value: b"%d" % value if -_LARGE < value < _LARGE else _value(value, typed=False),
    float: lambda value: repr(value).encode(),
    bool: lambda value: b"true" if value else b"false",
}


def _value(value: Any, typed: bool) -> bytes:
    """Return the bytes of one field."""
    scalar = _scalar(value)
    if scalar is _NO_FORM:
        return _json(_tree(value, typed))
    if isinstance(scalar, bytes):
        return scalar
    if isinstance(scalar, bool):
        return b"true" if scalar else b"false"
    return _utf8(scalar) if isinstance(scalar, str) else _number(scalar).encode()


def _number(value: float) -> str:
    try:
        return repr(value)
    except ValueError:  # Python cannot read such long numbers
        raise _UnfitError("the number has more digits than Python reads back") from None


def _json(tree: Any) -> bytes:
    try:
        return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise _UnfitError(str(error)) from None


def _scalar(value: Any) -> Any:
    """Return text, bytes, a truth value or a number for the value; ``_NO_FORM`` for lists, mappings and models."""
    if isinstance(value, Enum):
        return _member(value)
    if isinstance(value, str):
        return str.__str__(value)  # a subclass's own `__str__` may return another text
    if isinstance(value, bool):  # before int, since bool is a subclass
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _raw(value)
    if isinstance(value, Decimal | UUID | PurePath):
        return str(value)
    if isinstance(value, datetime | date | time):
        return _moment(value)
    if isinstance(value, timedelta):
        return _seconds(value)
    if isinstance(value, (*_LISTS, Mapping)) or is_model(value):
        return _NO_FORM
    return _foreign(value)


def _member(value: Enum) -> Any:
    inner = value.value
    plain = type(inner) in (str, int) or (type(inner) is float and math.isfinite(inner))
    if _read(type(value), str(inner)) is not value and _read(type(value), str(inner)) != value:
        raise _UnfitError(f"the text of its value does not name this member of {type(value).__name__}")
    return inner if plain else str(inner)


def _raw(value: Any) -> bytes:
    if isinstance(value, memoryview) and (value.format not in ("B", "b", "c") or memoryview(value.tobytes()) != value):
        raise _UnfitError(f"a memoryview of format {value.format} is not bytes: use .tobytes()")
    return bytes(value)


def _moment(value: Any) -> str:
    text = str(value.isoformat())
    # In Python, times in a repeated or skipped hour never equal times with another zone
    exact = type(value) is date or (
        type(value) in (datetime, time) and (value.tzinfo is None or type(value.tzinfo) is timezone)
    )
    kind = next(kind for kind in (datetime, date, time) if isinstance(value, kind))
    if not exact and kind.fromisoformat(text) != value:
        advice = ": publish it in UTC, with .astimezone(UTC)" if kind is datetime and value.tzinfo else ""
        raise _UnfitError(f"the ISO form of this {type(value).__name__} gives another value back{advice}")
    return text


def _seconds(value: timedelta) -> Any:
    whole, rest = divmod(value, timedelta(seconds=1))
    if not rest:
        return whole
    if abs(whole) < 2**32:  # a float is accurate to the microsecond
        return value.total_seconds()
    return str(Decimal(value // timedelta(microseconds=1)).scaleb(-6))


def _foreign(value: Any) -> Any:
    """Return a value of a foreign type as a scalar, if that is read back equal.

    It may be like NumPy's scalars, a time, or its text.
    """
    kind = type(value)
    for form in ("isoformat", "__str__") if hasattr(kind, "__len__") else ("item", "isoformat", "__str__"):
        try:
            scalar = getattr(value, form)()
        except Exception:  # noqa: BLE001, S112 - it has no such form
            continue
        if type(scalar) in (bool, int, float) and bool(scalar == value):
            return scalar
        if type(scalar) is str:
            for reader in (kind, datetime):
                if (found := _read(reader, scalar)) is not _NO_FORM and _same(found, value):
                    return scalar
    raise _UnfitError(
        f"{kind.__name__} has no form that a handler could read back: publish text, numbers, dates, lists, mappings or "
        "models"
    )


def _tree(value: Any, typed: bool) -> Any:
    """Return the value as JSON types."""
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is str:
        return _text(value)
    if kind is int:
        _number(value)
        return value
    if isinstance(value, _LISTS):
        return [item if type(item) in _AS_IS else _under(number, item, typed) for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        for name, item in value.items():
            key = name if type(name) is str and name.isascii() else _key(name)
            if key in made:  # 1 and "1" are two keys in Python, but one in JSON
                raise _UnfitError(f"two of the keys are {_said(key)!r} as text, so one value would be lost")
            made[key] = item if type(item) in _AS_IS else _under(name, item, typed)
        return made
    scalar = _scalar(value)
    if scalar is _NO_FORM:
        parts = _plain(value)
        if parts is not None:
            return {name: _text(part) if type(part) is str else part for name, part in parts.items()}
        return _proven(value, _trees(value), lambda tree: tree)
    return _leaf(scalar, typed)


def _leaf(scalar: Any, typed: bool) -> Any:
    """Return the JSON form of text, bytes or a number."""
    if isinstance(scalar, bytes):
        try:
            if typed:
                return scalar.decode()
        except UnicodeDecodeError:
            pass
        raise _UnfitError("bytes have no form in JSON: give them a field of their own, or encode them as text")
    if isinstance(scalar, float) and not math.isfinite(scalar):
        if typed:
            return "NaN" if math.isnan(scalar) else "Infinity" if scalar > 0 else "-Infinity"
        raise _UnfitError(f"JSON has no {scalar}: give it a field of its own, or use None")
    return _text(scalar) if isinstance(scalar, str) else scalar


_AS_IS = frozenset({bool, type(None)})


def _under(name: Any, item: Any, typed: bool) -> Any:
    kind = type(item)
    if (kind is str and item.isascii()) or (kind is int and -_LARGE < item < _LARGE):
        return item
    try:
        return _tree(item, typed)
    except _UnfitError as error:
        raise error.under(name) from None


def _text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            if json.loads(json.dumps(text)) != text:  # two surrogates would become one character
                raise _UnfitError(_SURROGATE) from None
    return text


def _key(name: Any) -> str:
    if isinstance(name, bool):
        return "true" if name else "false"
    scalar = _NO_FORM if name is None else _scalar(name)
    if isinstance(scalar, str):
        return _text(scalar)
    if scalar is _NO_FORM or isinstance(scalar, bytes) or (isinstance(scalar, float) and math.isnan(scalar)):
        raise _UnfitError(f"a {type(name).__name__} cannot be a key", name)
    return _number(scalar)


_PLAIN = frozenset({str, int, float, bool})
#: Settings of a model that do not affect its values.
_HARMLESS = frozenset({"title", "frozen", "populate_by_name", "from_attributes", "arbitrary_types_allowed"})


def _plain(value: Any) -> dict[str, Any] | None:
    """Return the fields of a model that is certain to be read back equal, by its class and values; None for others."""
    kind: Any = type(value)
    hints = _plain_hints(kind)
    if hints is None:
        return None
    parts = {name: getattr(value, name) for name in hints}
    for name, part in parts.items():
        if type(part) is not hints[name] or (type(part) is float and not math.isfinite(part)):
            return None
    return parts


@functools.lru_cache(1024)
def _plain_hints(kind: Any) -> dict[str, Any] | None:
    """Return the types of a class's fields, if its library generated it and they are text, numbers and booleans."""
    found: dict[str, Any] | None = None
    if hasattr(kind, "__pydantic_decorators__") and hasattr(kind, "model_dump"):
        found = _plain_model(kind)
    elif dataclasses.is_dataclass(kind) and not hasattr(kind, "__struct_fields__"):
        found = _plain_dataclass(kind)
    if not found or JSON_FIELD.decode() in found or envelope.FIELD.decode() in found or decoder(kind) is None:
        return None
    return found if _PLAIN.issuperset(found.values()) else None


def _plain_model(kind: Any) -> dict[str, Any] | None:
    from pydantic import BaseModel  # noqa: PLC0415 - for those who use its models, so it is there

    untouched = all(
        getattr(getattr(kind, name), "__func__", getattr(kind, name))
        is getattr(getattr(BaseModel, name), "__func__", getattr(BaseModel, name))
        for name in ("model_dump", "model_validate", "__init__", "__new__", "__eq__", "__get_pydantic_core_schema__")
    )
    decorated = any(getattr(kind.__pydantic_decorators__, name) for name in kind.__pydantic_decorators__.__slots__)
    parts = kind.model_fields
    odd = any(
        part.metadata or part.alias or part.validation_alias or part.serialization_alias or part.exclude
        for part in parts.values()
    )
    own = kind.__pydantic_post_init__ or kind.__private_attributes__ or not _HARMLESS.issuperset(kind.model_config)
    if not untouched or decorated or odd or own or getattr(kind, "__pydantic_root_model__", False):
        return None
    return {name: part.annotation for name, part in parts.items()}


def _plain_dataclass(kind: Any) -> dict[str, Any] | None:
    made = kind.__init__.__code__.co_filename == "<string>" and kind.__new__ is object.__new__
    own = hasattr(kind, "__post_init__") or type(kind) is not type or hasattr(kind, "__pydantic_validator__")
    parts = dataclasses.fields(kind)
    if not made or own or not all(part.init for part in parts):
        return None
    hints = get_type_hints(kind, include_extras=True)
    if any(get_origin(hints[part.name]) is not None for part in parts):  # a constraint, or not a plain type
        return None
    return {part.name: hints[part.name] for part in parts}


def _entries(content: Any) -> "Iterator[Callable[[], list[bytes]]]":
    """Yield the forms of a model as an entry, the preferred form first."""
    kind = type(content)
    trees = list(_trees(content))
    if hasattr(kind, "model_dump"):
        for dump in trees:
            yield functools.partial(_flat_or_single, dump)
        raw = {name: value for name in kind.model_fields if isinstance(value := getattr(content, name), bytes)}
        yield lambda: _flat(content.model_dump(mode="json", warnings=False, exclude=set(raw)) | raw, typed=True)
    elif not (hasattr(kind, "__struct_config__") and kind.__struct_config__.array_like):
        yield lambda: _flat(_parts(content), typed=True)
        if hasattr(kind, "__struct_fields__"):
            yield functools.partial(_flat_or_single, trees[-1])
    yield lambda: [JSON_FIELD, _json(trees[-1]())]


def _flat_or_single(tree: Callable[[], Any]) -> list[bytes]:
    made = tree()
    return _flat(made if isinstance(made, Mapping) else {JSON_FIELD.decode(): made}, typed=True)


def _trees(value: Any) -> "Iterator[Callable[[], Any]]":
    """Yield the forms of a model in JSON, the preferred form first."""
    kind = type(value)
    if hasattr(kind, "model_dump"):
        yield lambda: _tree(value.model_dump(mode="json", warnings=False), typed=True)
        yield lambda: _tree(value.model_dump(mode="json", warnings=False, round_trip=True), typed=True)
        return
    if not (hasattr(kind, "__struct_config__") and kind.__struct_config__.array_like):
        yield lambda: _tree(_parts(value), typed=True)
    if hasattr(kind, "__struct_fields__"):
        import msgspec  # noqa: PLC0415 - for those who use its structs, so it is there

        yield lambda: _tree(msgspec.to_builtins(value, str_keys=True), typed=True)


def _parts(value: Any) -> dict[str, Any]:
    """Return a model's fields by the names that its decoder accepts."""
    kind: Any = type(value)
    if hasattr(kind, "__struct_fields__"):
        config = kind.__struct_config__
        made = {} if config.tag is None else {config.tag_field: config.tag}
        for name, field in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True):
            made[name] = getattr(value, field)
        return made
    if hasattr(kind, "model_dump"):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if hasattr(kind, "__attrs_attrs__"):
        return {part.name: getattr(value, part.name) for part in kind.__attrs_attrs__}
    return {part.name: getattr(value, part.name) for part in dataclasses.fields(kind)}


def _proven(value: Any, forms: "Iterator[Callable[[], Form]]", read: Callable[[Form], Any]) -> Form:
    """Return the first of these forms that is read back as an equal value."""
    kind: Any = type(value)
    decode = decoder(getattr(value, "__orig_class__", kind))  # for `Page[date](...)`, which stores its types
    if decode is None:
        raise _UnfitError(f"no handler can be annotated with {kind.__name__}, so nothing could read it", kind.__name__)
    problem: Exception | None = None
    for form in forms:
        try:
            made = form()
            found = decode(read(made))
        except Exception as error:  # noqa: BLE001 - the next form may work
            problem = problem or error
            continue
        if type(found) is kind and _same(found, value):
            return made
        problem = problem or _UnfitError(
            f"{kind.__name__} would be read back with another value", *_unlike(found, value)
        )
    assert problem is not None
    if isinstance(problem, _UnfitError):
        raise problem
    for name, part in _parts(value).items():
        _under(name, part, typed=True)  # raises an error that names the unsupported field
    raise _UnfitError(f"{kind.__name__} cannot be read back: {problem}", kind.__name__) from problem


@functools.lru_cache(1024)
def decoder(kind: Any) -> Convert | None:
    """Return the decoder for a handler annotated with this type; None if there cannot be one."""
    try:
        return builder(kind)
    except Exception:  # noqa: BLE001 - an error of pydantic or of an annotation
        return None


def _read(kind: Any, text: str) -> Any:
    """Return the value that a handler of this type reads from the text; ``_NO_FORM`` if it refuses."""
    decode = decoder(kind)
    try:
        return _NO_FORM if decode is None else decode(text)
    except Exception:  # noqa: BLE001 - any error of the user's type
        return _NO_FORM


def _same(found: Any, value: Any) -> bool:
    """Report whether values are equal; NaN equals NaN here, and models without a comparison are compared by field."""
    if type(found) is float and type(value) is float and math.isnan(found):
        return math.isnan(value)
    if type(found) is not type(value):  # there are no fields to compare
        return bool(found == value)
    if bool(found == value):
        return True
    if isinstance(value, list | tuple | deque):
        return len(found) == len(value) and all(map(_same, found, value))
    if isinstance(value, dict):
        return found.keys() == value.keys() and all(_same(found[name], item) for name, item in value.items())
    if isinstance(value, Decimal):
        return found.is_nan() and value.is_nan()
    return is_model(value) and not _unlike(found, value)


def _unlike(found: Any, value: Any) -> list[str]:
    """Return the name of the first field in which two models differ; private state does not count."""
    if type(found) is not type(value):
        return [type(value).__name__]
    parts, others = _parts(value), _parts(found)
    names = {**parts, **others}  # a field that only one of them has is a difference, even if it is None
    return next(([n] for n in names if not _same(others.get(n, _NO_FORM), parts.get(n, _NO_FORM))), [])

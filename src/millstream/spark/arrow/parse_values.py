"""From the text of a field to the type of its column: a value that is not of that type becomes null, and is reported.

Arrow converts an array in one call, and one invalid value makes it refuse the whole array. So values are first matched
against the type's pattern, and remaining invalid values are found by halving. JSON is parsed value by value, since
Arrow has no call that makes structs of text that may have any other shape.

The accepted text is that of ``format_values``, and that which programs in other languages commonly write: most
producers do not use Millstream.
"""

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.jsontext import parse

Mistaken = list[int]
"""Rows with a value that was not of the column's type."""

_ZONE = r"(?:Z|[+-](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?|[+-]18(?::?00)?)"
_UTC = r"(?:Z|[+-]00(?::?00)?)$"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_PATTERNS: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_integer, r"[+-]?[0-9]+"),
    (pa.types.is_floating, r"[+-]?([0-9]+\.?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|NaN|nan|inf|Infinity)"),
    (pa.types.is_decimal, r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    (pa.types.is_boolean, r"(?i:true|false|1|0)"),
    (pa.types.is_date, _DATE),
    # As in Spark's cast: a zone only after seconds, and none beyond 18 hours
    (pa.types.is_timestamp, rf"{_DATE}([ T][0-9]{{2}}(:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]+)?{_ZONE}?)?)?)?"),
]
"""Text of each type: Arrow alone would also accept ``0x1f`` as a number, and Python ``20200101`` as a date."""


def _pattern(kind: pa.DataType) -> str:
    return next(pattern for fits, pattern in _PATTERNS if fits(kind))


def convert(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mistaken | None]:
    """Convert strings to another type.

    A null stays null. An empty value becomes null, unless the column is text or binary: Redis has no null, and
    producers write an empty text for it.

    Returns:
        The converted array, and the rows with a value that was not of that type; None without any.
    """
    if pa.types.is_string(kind):
        return values, None
    if pa.types.is_binary(kind):
        return values.view(pa.binary()), None
    null = nothing()
    bounds, text = _parts(values)
    present = values
    if (bounds[1:] == bounds[:-1]).any():
        present = pc.if_else(pc.equal(pc.binary_length(values), 0), null, values)
    if pa.types.is_nested(kind):
        present = pc.if_else(pc.equal(present, "null"), null, present)
        found = _nested(present, kind)
    elif _plain(text, kind):
        found = _cast(present, kind)
    else:
        found = _flat(present, kind)
    if found.null_count == present.null_count:
        return found, None
    mistaken = pc.and_(pc.is_null(found), pc.is_valid(present))
    return found, pc.indices_nonzero(mistaken).to_pylist()


def nothing() -> pa.Scalar:
    """Return a null string; ``pa.scalar`` would import pandas."""
    return pa.nulls(1, pa.string())[0]


def _parts(values: pa.Array) -> "tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.uint8]]]":
    """Return the offsets of the strings, and the bytes of all of them."""
    _, bounds, data = values.buffers()
    places = np.frombuffer(bounds or bytes(4), np.int32)[values.offset : values.offset + len(values) + 1]
    return places, np.frombuffer(data or b"", np.uint8)[places[0] : places[-1]]


def _plain(text: "np.ndarray[Any, np.dtype[np.uint8]]", kind: pa.DataType) -> bool:
    """Return True for numbers of only digits and points, which Arrow reads correctly without a pattern."""
    digits = text - np.uint8(ord("0")) <= 9
    if pa.types.is_floating(kind):
        digits |= text == ord(".")
    return bool((pa.types.is_integer(kind) or pa.types.is_floating(kind)) and digits.all())


def _flat(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values other than JSON; text that does not match its type becomes null before Arrow gets it."""
    # Matches bytes, because the pattern must not fail on bytes that are not UTF-8.
    alike = pc.match_substring_regex(values.view(pa.binary()), f"^(?:{_pattern(kind)})$")
    if pc.all(alike).as_py() is False:
        values = pc.if_else(alike, values, nothing())
    if pa.types.is_timestamp(kind):
        return _times(values, kind)
    if pc.any(pc.starts_with(values, "+")).as_py():  # Arrow does not accept a plus sign
        values = pc.replace_substring_regex(values, r"^\+", "")
    return _decimals(values, kind) if pa.types.is_decimal(kind) else _cast(values, kind)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast with Arrow, with null for each value that it refuses (it would refuse the whole array)."""
    try:
        return pc.cast(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            return pa.nulls(1, kind)
    # Usually few values are invalid. Halving finds k of n with about k log n casts, and costs a single cast if all are
    # valid
    half = len(values) // 2
    return pa.concat_arrays([_cast(values.slice(0, half), kind), _cast(values.slice(half), kind)])


def _decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert decimals. Arrow's cast wraps at 128 bits and crashes on some exponents: it gets only digits that fit."""
    whole = kind.precision - kind.scale
    digits = f"[0-9]{{1,{whole}}}" if whole else "0"
    fits = pc.match_substring_regex(values, rf"^-?{digits}(\.[0-9]{{0,{kind.scale}}})?$")
    if pc.all(fits).as_py() is not False:
        return _cast(values, kind)
    found = _cast(pc.if_else(fits, values, nothing()), kind)
    others = pc.invert(pc.fill_null(fits, True))
    one_by_one = [_decimal_of(text, kind) for text in values.filter(others).to_pylist()]
    return pc.replace_with_mask(found, others, pa.array(one_by_one, kind))


def _decimal_of(text: str, kind: pa.DataType) -> Decimal | None:
    try:
        return _decimal(Decimal(text), kind)
    except ArithmeticError:
        return None


def _times(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert ISO times; a time without a zone is UTC.

    For a column without a zone, times in zones other than UTC are null.
    """
    # Arrow's cast accepts times with zones or without, but no mixture, so each kind has its own cast
    null = nothing()
    if pc.any(pc.match_substring_regex(values, r"\.[0-9]{7}")).as_py():  # truncated to microseconds, as in Spark's cast
        values = pc.replace_substring_regex(values, r"(\.[0-9]{6})[0-9]+", r"\1")
    if kind.tz is None:
        values = pc.replace_substring_regex(values, _UTC, "")
    zoned = pc.match_substring_regex(values, ":.*[Z+-]")
    local = _cast(pc.if_else(zoned, null, values), pa.timestamp("us"))
    if kind.tz is None:
        return local
    local = local.view(pa.int64())
    given = _cast(pc.if_else(zoned, values, null), pa.timestamp("us", tz="UTC")).view(pa.int64())
    return pc.if_else(pc.is_valid(given), given, local).view(kind)


# --- JSON ------------------------------------------------------------------------------------------------------------


def _nested(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert JSON text to structs, arrays and maps."""
    return pa.array([_json(value, kind) for value in values.view(pa.binary()).to_pylist()], type=kind)


def _json(text: bytes | None, kind: pa.DataType) -> Any:
    """Convert one JSON document, or return None if it does not fit: one entry must not fail a batch for good.

    Numbers with a fraction come as decimals, so that a decimal column gets the same digits.
    """
    if text is None:
        return None
    try:
        return _fit(parse(text, parse_float=Decimal), kind)
    except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError):
        return None


def _fit(value: Any, kind: pa.DataType) -> Any:
    """Convert a parsed value to its type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        _must(isinstance(value, dict))
        return {part.name: _fit(value.get(part.name), part.type) for part in kind}
    if pa.types.is_map(kind):
        _must(isinstance(value, dict))
        return [(_text(name), _fit(part, kind.item_type)) for name, part in value.items()]
    if pa.types.is_list(kind):
        _must(isinstance(value, list))
        return [_fit(part, kind.value_type) for part in value]
    if pa.types.is_string(kind):
        return _text(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))
    if pa.types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    return _scalar(value, kind)


_OUTSIDE = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON lacks, written as in Spark's to_json."""


def _text(value: str) -> str:
    """Return the text if it is valid UTF-8: for a lone surrogate, Arrow would refuse the whole column."""
    value.encode()
    return value


def _must(condition: bool) -> None:
    """Raise the error for a value of another type; with -O, an ``assert`` would vanish and the value be accepted."""
    if not condition:
        raise ValueError


def _scalar(value: Any, kind: pa.DataType) -> Any:
    """Convert a value other than a container; ``true`` is not a number, although Python treats it as 1."""
    if pa.types.is_boolean(kind):
        _must(isinstance(value, bool))
        return value
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        _must(re.fullmatch(_pattern(kind), value) is not None)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        when = datetime.fromisoformat(value)
        if kind.tz is None:
            _must(not when.utcoffset())
            return when.replace(tzinfo=None)
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    if pa.types.is_floating(kind) and value in _OUTSIDE:
        return float(value)
    _must(not isinstance(value, bool) and isinstance(value, int | Decimal))
    if pa.types.is_integer(kind):
        # Check the bounds first: converting 1e999999999 to an integer would take minutes, and all memory.
        _must(-(1 << (kind.bit_width - 1)) <= value < 1 << (kind.bit_width - 1) and value == int(value))
        return int(value)
    if pa.types.is_floating(kind):
        return float(value)
    return _decimal(Decimal(value), kind)


def _decimal(value: Decimal, kind: pa.DataType) -> Decimal:
    """Return the value with the column's scale."""
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    return exact.quantize(value, Decimal(1).scaleb(-kind.scale))

"""From values of a DataFrame's column to the text of a field, which ``convert`` reads back as the same value.

This invariant is the reason for the odd formats. Times are in UTC with a Z, and binary in JSON is base64. Numbers that
JSON lacks are written as in Spark's ``to_json``. :func:`unwritable` refuses a type for which the invariant cannot hold,
before any row is read.
"""

import base64
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import UsageError

_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def unwritable(kind: pa.DataType) -> str | None:
    """Return the reason why values of this type cannot be written as text that can be read back; None if they can."""
    if pa.types.is_struct(kind):
        return next(filter(None, (unwritable(part.type) for part in kind)), None)
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            return "a map whose keys are not strings"
        return unwritable(kind.item_type)
    if pa.types.is_list(kind):
        return unwritable(kind.value_type)
    return None if any(fits(kind) for fits in _PLAIN) else f"of type {kind}"


def texts(values: pa.Array, name: str) -> pa.Array:
    """Return the text of each value as ``pa.binary``; nulls stay null."""
    kind = values.type
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_string(kind):
        return values.view(pa.binary())
    if outside := _outside_of_years(values):
        raise UsageError(
            f"column {name!r} holds {outside} value(s) outside the years 0000 to 9999, which would be read as null: "
            "filter these rows, or write the column as a number"
        )
    if pa.types.is_timestamp(kind):
        return _times(values).view(pa.binary())
    if pa.types.is_nested(kind):
        return _documents(values, name)
    found = pc.cast(values, pa.string())  # Arrow's casts can parse its own text of all other types
    return found.view(pa.binary())


_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
"""The years 0000 to 9999, in days from 1970: years of four digits."""


def _outside_of_years(values: pa.Array) -> int:
    """Count the dates or times outside the years 0000 to 9999, which nothing reads back from Arrow's text."""
    if pa.types.is_date(values.type):
        numbers, unit = values.view(pa.int32()), 1
    elif pa.types.is_timestamp(values.type):
        numbers, unit = values.view(pa.int64()), 86_400_000_000
    else:
        return 0
    other = pc.or_(pc.less(numbers, _FIRST_DAY * unit), pc.greater_equal(numbers, (_LAST_DAY + 1) * unit))
    return int(pc.sum(other).as_py() or 0)


def _times(values: pa.Array) -> pa.Array:
    """Return ISO times; those with a time zone in UTC with a Z."""
    zone = "Z" if values.type.tz else ""
    local = pc.cast(values.view(pa.int64()), pa.timestamp("us"))
    text = pc.replace_substring(pc.cast(local, pa.string()), " ", "T", max_replacements=1)
    return pc.binary_join_element_wise(text, zone, "") if zone else text


# --- JSON ------------------------------------------------------------------------------------------------------------


def _documents(values: pa.Array, name: str) -> pa.Array:
    """Return structs, arrays and maps as JSON in UTF-8; an error names the column if a value cannot be written."""
    try:
        found = [None if value is None else _json(value, values.type) for value in values.to_pylist()]
    except (UnicodeDecodeError, OverflowError, ValueError) as reason:
        raise UsageError(f"column {name!r} holds a value that JSON cannot: {reason}") from None
    return pa.array(found, pa.string()).view(pa.binary())


def _json(value: Any, kind: pa.DataType) -> str:
    """Return a value as JSON: decimals keep their digits, and values without a JSON form become text."""
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        return _object((part.name, value[part.name], part.type) for part in kind)
    if pa.types.is_map(kind):
        return _object((key, item, kind.item_type) for key, item in value)
    if pa.types.is_list(kind):
        return "[" + ",".join(_json(item, kind.value_type) for item in value) + "]"
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, bool | int | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else json.dumps(_OUTSIDE.get(value, "NaN"))
    return json.dumps(value.isoformat())


_OUTSIDE = {math.inf: "Infinity", -math.inf: "-Infinity"}
"""Numbers that JSON lacks, written as in Spark's to_json."""


def _object(parts: Any) -> str:
    """Return a JSON object; fields of a struct keep the schema's order, so that equal rows give equal text."""
    pairs = (f"{json.dumps(name, ensure_ascii=False)}:{_json(value, kind)}" for name, value, kind in parts)
    return "{" + ",".join(pairs) + "}"

"""The Spark types of an Avro schema, as in Spark's own ``from_avro``, and the conversions that make values fit.

Every column may be null: in mode PERMISSIVE a payload that cannot be read becomes null.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import types

from millstream.errors import ConfigError

Fit = Callable[[Any], Any]

_PLAIN: dict[str, types.DataType] = {
    "boolean": types.BooleanType(), "int": types.IntegerType(), "long": types.LongType(),
    "float": types.FloatType(), "double": types.DoubleType(),
    "bytes": types.BinaryType(), "string": types.StringType(), "enum": types.StringType(), "fixed": types.BinaryType(),
}  # fmt: skip

_LOGICAL: dict[tuple[str, str], types.DataType] = {
    ("int", "date"): types.DateType(),
    ("long", "timestamp-millis"): types.TimestampType(),
    ("long", "timestamp-micros"): types.TimestampType(),
    ("long", "local-timestamp-millis"): types.TimestampNTZType(),
    ("long", "local-timestamp-micros"): types.TimestampNTZType(),
}

_AS_TEXT = {("string", "uuid"), ("int", "time-millis"), ("long", "time-micros")}

_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")
"""Unions that become one wider type, as in Spark's own ``from_avro``."""

MOST_DIGITS = 38


class AvroColumns:
    """The Spark type for an Avro schema, and the conversion of its values."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self.kind, self.fit = self._of(schema, "the schema", ())

    def _of(self, schema: Any, place: str, within: tuple[str, ...]) -> tuple[types.DataType, Fit | None]:
        if isinstance(schema, list):
            return self._of_union(schema, place, within)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema], None
            schema = self._known(schema, place, within)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise ConfigError(f"{place} is not an Avro schema: {schema!r}")
        name = schema["type"]
        if isinstance(name, (list, Mapping)):
            return self._of(name, place, within)
        if name in ("record", "enum", "fixed"):
            self._named[_full_name(schema)] = self._named[str(schema.get("name"))] = schema
        if name == "record":
            return self._of_record(schema, place, within)
        if name == "array":
            kind, fit = self._of(schema.get("items"), f"{place}[]", within)
            return types.ArrayType(kind), fit and _each(fit)
        if name == "map":
            kind, fit = self._of(schema.get("values"), f"{place}[key]", within)
            return types.MapType(types.StringType(), kind), fit and _each_value(fit)
        return self._of_plain(schema, name, place, within)

    def _known(self, name: str, place: str, within: tuple[str, ...]) -> Any:
        if name in within or name.rpartition(".")[2] in within:
            raise ConfigError(f"{place} is a {name} within a {name}: Spark has no type that holds itself")
        if name not in self._named:
            raise ConfigError(f"{place} is of type {name!r}, which the schema does not define")
        return self._named[name]

    def _of_record(
        self, schema: Mapping[str, Any], place: str, within: tuple[str, ...]
    ) -> tuple[types.DataType, Fit | None]:
        inside = (*within, _full_name(schema), str(schema.get("name")))
        columns, fits = [], {}
        for field in schema.get("fields", ()):
            kind, fit = self._of(field["type"], f"{place}.{field['name']}", inside)
            columns.append(types.StructField(field["name"], kind))
            if fit is not None:
                fits[field["name"]] = fit
        if not columns:
            raise ConfigError(f"{place} is a record without fields, and Spark's structs have at least one")
        return types.StructType(columns), _fields(fits) if fits else None

    def _of_union(self, schema: list[Any], place: str, within: tuple[str, ...]) -> tuple[types.DataType, Fit | None]:
        parts = [part for part in schema if part != "null"]
        if len(parts) == 1:
            kind, fit = self._of(parts[0], place, within)
            return kind, fit and _unless_null(fit)
        for names, wider in _WIDER:
            if all(isinstance(part, str) for part in parts) and set(parts) == names:
                return _PLAIN[wider], None
        raise ConfigError(
            f"{place} is a union of {len(parts)} types, and a column has one. Give a schema that reads one of them."
        )

    def _of_plain(
        self, schema: Mapping[str, Any], name: str, place: str, within: tuple[str, ...]
    ) -> tuple[types.DataType, Fit | None]:
        logical = schema.get("logicalType")
        if logical == "decimal" and name in ("bytes", "fixed"):
            digits, scale = schema.get("precision"), schema.get("scale", 0)
            if not isinstance(digits, int) or not isinstance(scale, int) or not 0 < digits <= MOST_DIGITS:
                raise ConfigError(f"{place} is a decimal of {digits} digits, and Spark's have {MOST_DIGITS} at most")
            return types.DecimalType(digits, scale), None
        if (name, str(logical)) in _AS_TEXT:
            return types.StringType(), str
        if (name, str(logical)) in _LOGICAL:
            return _LOGICAL[name, str(logical)], None
        return (_PLAIN[name], None) if name in _PLAIN else self._of(name, place, within)


def _full_name(schema: Mapping[str, Any]) -> str:
    name, space = str(schema.get("name")), schema.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name


def _unless_null(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _each(fit: Fit) -> Fit:
    return lambda values: [fit(value) for value in values]


def _each_value(fit: Fit) -> Fit:
    return lambda values: {key: fit(value) for key, value in values.items()}


def _fields(fits: Mapping[str, Fit]) -> Fit:
    return lambda record: record | {name: fit(record[name]) for name, fit in fits.items()}

"""The form of an archive: its format, the partitions of its files, the columns of its entries. PURE.

An archive keeps its first form: a later job need not name it, and may not change it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from millstream.errors import ConfigError
from millstream.spark.archiving.tables.columns import ColumnType, parse_schema

FORMATS = ("parquet", "delta", "iceberg")
PARTITIONS = ("none", "month", "day", "hour")

_LAST_MS = 253_402_300_799_999
_HOUR_MS = 3_600_000
_NAMED = 10
"""Most fields that a message names."""


@dataclass(frozen=True)
class Wanted:
    """The form that a job requests; None means the archive's own value, or the default for a new archive."""

    format: str | None = None  # One of :data:`FORMATS`
    partition: str | None = None  # One of :data:`PARTITIONS`
    # True if each entry's fields are also stored as a list; without named columns, they are stored only as a list
    raw: bool | None = None
    fields: tuple[str, ...] | None = None  # Fields that become columns; ``*`` means all
    schema: str | None = None  # Columns and their types, such as ``item string, price double``
    catalog: str | None = None  # Iceberg's catalog: a configured name or a URI; None for the archive's own


@dataclass(frozen=True)
class Shape:
    """The form of an archive."""

    format: str = "parquet"  # One of :data:`FORMATS`
    partition: str = "none"  # One of :data:`PARTITIONS`
    raw: bool = False  # True if the entries' fields are also stored as a list
    columns: str = "all"  # Columns: ``none``, ``all`` fields, the named ``fields``, or those of a ``schema``
    fields: tuple[tuple[str, ColumnType | None], ...] = ()  # Named fields, with their types if there is a schema
    catalog: str | None = None  # Name or URI of Iceberg's catalog; None for the archive's own
    table: str | None = None  # Name of the one table of all streams, with a column ``stream``; None for one each

    def table_of(self, stream: str) -> str:
        """Return the name of the table with the entries of a stream."""
        return self.table or stream

    @property
    def json(self) -> dict[str, Any]:
        """The form as JSON, for the manifest."""
        return asdict(self)

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> "Shape":
        """Parse and check a form from the manifest."""
        if raw["format"] not in FORMATS or raw["partition"] not in PARTITIONS:
            raise ValueError(f"format {raw['format']!r}, partition {raw['partition']!r}")
        catalog, table = raw["catalog"], raw.get("table")
        if not (isinstance(catalog, str | None) and isinstance(table, str | None)):
            raise TypeError(f"catalog {catalog!r}, table {table!r}")
        fields = tuple((str(name), kind if kind is None else ColumnType(kind)) for name, kind in raw["fields"])
        if raw["columns"] not in ("none", "all", "fields", "schema"):
            raise ValueError(f"columns {raw['columns']!r}")
        return cls(raw["format"], raw["partition"], bool(raw["raw"]), raw["columns"], fields, catalog, table)


def choose(there: Shape | None, wanted: Wanted) -> Shape:
    """Return the form to work in: the archive's, if the request does not contradict it, or a new one."""
    for name, value, words in (("format", wanted.format, FORMATS), ("partition", wanted.partition, PARTITIONS)):
        if value is not None and value not in words:
            raise ConfigError(f"{name} {value!r} is invalid. Write one of {', '.join(words)}.")
    if wanted.schema is not None and wanted.fields is not None:
        raise ConfigError("fields is invalid with a schema, which names the fields already. Give one of them.")
    if wanted.catalog is not None and (wanted.format or (there or Shape()).format) != "iceberg":
        raise ConfigError("only Iceberg has a catalog. Leave it out, or give the format iceberg.")
    columns, fields = _columns(wanted)
    raw = bool(wanted.raw)
    if there is None:
        return Shape(wanted.format or "parquet", wanted.partition or "none", raw, columns, fields, wanted.catalog)
    asked = (wanted.raw, wanted.fields, wanted.schema)
    same = all(getattr(wanted, name) in (None, getattr(there, name)) for name in ("format", "partition", "catalog"))
    if not same or (asked != (None,) * 3 and (raw, columns, fields) != (there.raw, there.columns, there.fields)):
        raise ConfigError(
            f"the archive is {describe(there)}, and an archive keeps its form. Leave these options out to go on "
            "with it, or archive into a new directory."
        )
    return there


def _columns(wanted: Wanted) -> tuple[str, tuple[tuple[str, ColumnType | None], ...]]:
    if wanted.schema is not None:
        return "schema", tuple(parse_schema(wanted.schema))
    if wanted.fields is None:
        return ("none" if wanted.raw else "all"), ()
    if "*" in wanted.fields:
        return "all", ()
    if not wanted.fields or not all(wanted.fields):
        raise ConfigError("fields is empty. Name at least one, or * for all.")
    return "fields", tuple((name, None) for name in dict.fromkeys(wanted.fields))


def describe(shape: Shape) -> str:
    """Return a form in words."""
    parted = "not partitioned" if shape.partition == "none" else f"by {shape.partition}"
    named = [repr(name) if kind is None else f"{name!r} {kind}" for name, kind in shape.fields]
    listed = ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    columns = {"none": "", "all": "with a column for each field", "fields": f"with columns of the fields {listed}"}
    words = [columns.get(shape.columns, f"with columns of a schema: {listed}")]
    words += ["raw entries"] if shape.raw else []
    return f"{shape.format}, {parted}, {' and '.join(filter(None, words))}"


# --- parts of a table -------------------------------------------------------------------------------------------------


def part_of(shape: Shape, ms: int) -> int:
    """Return the partition of an entry, as a number that grows with time."""
    if shape.partition == "none":
        return 0
    hour = ms // _HOUR_MS
    if shape.partition == "hour":
        return hour
    if shape.partition == "day":
        return hour // 24
    when = moment(ms)
    return when.year * 12 + when.month - 1


def moment(ms: int) -> datetime:
    """Return the time of an id; the last second of the year 9999 for later ids."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=min(ms, _LAST_MS) // 1000)


def partition_values(shape: Shape, ms: int) -> dict[str, str]:
    """Return the partition columns of an entry's file with their values, as text."""
    when = moment(ms)
    return {
        "none": {},
        "month": {"month": f"{when:%Y-%m}"},
        "day": {"date": when.date().isoformat()},
        "hour": {"date": when.date().isoformat(), "hour": f"{when.hour:02d}"},
    }[shape.partition]

"""The columns of a read of entries, as the option ``fields`` chooses them.

The module is with the options and not with the readers, because the plain read, group mode and archives share it.
"""

from collections.abc import Sequence

from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructField, StructType, TimestampType

from millstream.errors import ConfigError
from millstream.spark.options import names
from millstream.spark.options.read import Options


def entry_schema(fields: Sequence[str], *, headers: bool = False) -> StructType:
    """Return the columns of a read: an entry's origin, and its fields as a map, or the named ones as columns."""
    text = StringType()
    kinds: dict[str, DataType] = {
        names.TIMESTAMP: TimestampType(),
        names.FIELDS: MapType(text, text),
        names.HEADERS: MapType(text, text),
        names.BODY: BinaryType(),
    }
    own = [name for name in names.ENTRY if name != names.FIELDS or not fields]
    envelope = [StructField(name, kinds[name]) for name in names.ENVELOPE] if headers else []
    plain = [StructField(name, kinds[name] if name in own and name in kinds else text) for name in (*own, *fields)]
    return StructType([*plain, *envelope])


def checked_schema(options: Options, schema: StructType) -> StructType:
    """Return the user's schema, after a check that it does not contradict the option ``fields``.

    Spark returns the source's own schema if the user gave none, so the same columns do not contradict it.
    """
    own = entry_schema(options.fields, headers=options.headers)
    if options.fields and schema.fieldNames() != own.fieldNames():
        raise ConfigError("option 'fields' and .schema(...) both choose the columns. Leave one out.")
    return schema

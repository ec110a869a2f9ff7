"""The entries of one reply in columns, the result of both decoders, and the choice of columns that a reader needs.

Strings keep the bytes that were stored, valid UTF-8 or not, as Spark's own cast from binary to string does.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.spark.model.offsets import Id

Times = np.ndarray[Any, np.dtype[np.uint64]]

LISTED = pa.list_(pa.field("element", pa.struct([("name", pa.binary()), ("value", pa.binary())])))
"""Type of fields as a list, with the bytes as stored and without loss."""


@dataclass(frozen=True)
class Want:
    """The parts of the entries that are needed; no other part is decoded."""

    fields: tuple[bytes, ...] = ()  # Names of fields that become separate arrays
    pairs: bool = False  # True if all fields are also returned as a map
    # True if all fields are also returned as a list of names and values, which keeps order and repeated names
    listed: bool = False

    @property
    def by_name(self) -> bool:
        """True if only the last value counts of a field that an entry names twice."""
        return self.pairs or bool(self.fields)


@dataclass
class Page:
    """The entries of one reply in columns."""

    ids: pa.Array  # ``pa.string``
    times: Times  # Milliseconds since 1970, from the ids
    # For each name, a ``pa.string`` array of the stored bytes, null for entries without the field
    fields: dict[bytes, pa.Array]
    pairs: pa.Array | None  # ``pa.map_(pa.string(), pa.string())`` if requested
    first: Id  # Id of the first entry
    last: Id  # Id of the last entry
    listed: pa.Array | None = None  # :data:`LISTED` if requested


def listed_array(offsets: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """Return a :data:`LISTED` array from its parts."""
    parts = [names.view(pa.binary()), values.view(pa.binary())]
    pairs = pa.StructArray.from_arrays(parts, fields=list(LISTED.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, type=LISTED)

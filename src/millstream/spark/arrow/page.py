"""The entries of one reply in columns, and what of them a reader wants: what every way of decoding gives.

Strings keep the bytes that were stored, valid UTF-8 or not, as Spark's own cast from binary to string does.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from millstream.spark.model.offsets import Id

Times = np.ndarray[Any, np.dtype[np.uint64]]

LISTED = pa.list_(pa.field("element", pa.struct([("name", pa.binary()), ("value", pa.binary())])))
"""Fields as a list: the bytes as stored, nothing lost."""


@dataclass(frozen=True)
class Want:
    """What of the entries is needed: what nobody asked for is not decoded.

    Attributes:
        fields: names of fields that become arrays of their own.
        pairs: whether all fields are wanted as a map.
        listed: whether all fields are wanted as a list of name and value, which keeps their order and a name's repeats.
    """

    fields: tuple[bytes, ...] = ()
    pairs: bool = False
    listed: bool = False

    @property
    def by_name(self) -> bool:
        """Whether a field that an entry names twice must be distinguished from its repeats."""
        return self.pairs or bool(self.fields)


@dataclass
class Page:
    """The entries of one reply in columns.

    Attributes:
        ids: ``pa.string``.
        times: milliseconds since 1970, from the ids.
        fields: by name, ``pa.string`` of the bytes as stored, null where an entry has no such field.
        pairs: ``pa.map_(pa.string(), pa.string())`` if wanted.
        first: id of the first entry.
        last: id of the last entry.
        listed: :data:`LISTED` if wanted.
    """

    ids: pa.Array
    times: Times
    fields: dict[bytes, pa.Array]
    pairs: pa.Array | None
    first: "Id"
    last: "Id"
    listed: pa.Array | None = None


def listed_array(offsets: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """A :data:`LISTED` array from its parts.

    Args:
        offsets: where each entry's fields begin among all, and where the last ones end.
        names: of all fields.
        values: of all fields.
    """
    parts = [names.view(pa.binary()), values.view(pa.binary())]
    pairs = pa.StructArray.from_arrays(parts, fields=list(LISTED.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, type=LISTED)

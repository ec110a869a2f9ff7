"""Arrow arrays made from numpy's memory without a copy.

``pa.array`` and ``pa.scalar`` do as much and more, but import pandas at their first call. That costs each worker
process of Spark half a second of processor time, which is most of the cost of a small read.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import UsageError

MOST_BYTES = 2**31 - 1
"""Most bytes of an Arrow string array: its offsets have 32 bits."""

Numbers = np.ndarray[Any, np.dtype[np.int32]]


def integers(values: Numbers) -> pa.Array:
    """Return ``pa.int32`` of these numbers, without nulls."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def strings_in(data: pa.Buffer, bounds: Numbers) -> pa.Array:
    """Return ``pa.string`` of the text between each bound and the next, in bytes from the beginning of ``data``."""
    return pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), data)


def strings(values: Sequence[bytes]) -> pa.Array:
    """Return ``pa.string`` of the bytes as they are, UTF-8 or not."""
    return _strings(values, None)


def optional_strings(values: Sequence[bytes | None]) -> pa.Array:
    """Return ``pa.string`` of the bytes as they are, with null for None."""
    if None not in values:
        return _strings(values, None)  # type: ignore[arg-type] # none of them is None
    present = np.packbits([value is not None for value in values], bitorder="little")
    return _strings([value or b"" for value in values], pa.py_buffer(present))


def _strings(values: Sequence[bytes], present: pa.Buffer | None) -> pa.Array:
    bounds = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=bounds[1:])
    if bounds[-1] > MOST_BYTES:
        raise UsageError(f"entries of one page hold {bounds[-1]} bytes, and Arrow's strings end at {MOST_BYTES}")
    data = (pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(b"".join(values)))
    return pa.StringArray.from_buffers(len(values), *data, present)


def moments(micros: "np.ndarray[Any, np.dtype[np.int64]]") -> pa.Array:
    """Return microseconds since 1970 as Spark's timestamps."""
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(micros), [None, pa.py_buffer(micros)])


def again(words: tuple[bytes, ...], times: int) -> pa.Array:
    """Return ``pa.string`` of these words in their order, repeated ``times`` times."""
    rounded = 1 << max(times - 1, 0).bit_length()  # so that pages of similar sizes share one
    return _again(words, rounded)[: times * len(words)]


@functools.lru_cache(maxsize=8)
def _again(words: tuple[bytes, ...], times: int) -> pa.Array:
    bounds = np.zeros(times * len(words) + 1, np.int32)
    np.cumsum(np.tile([len(word) for word in words], times), out=bounds[1:])
    return strings_in(pa.py_buffer(b"".join(words) * times), bounds)


@functools.lru_cache(maxsize=8)
def every_second(count: int) -> pa.Array:
    """Return the first ``count`` even numbers, from 0."""
    return integers(np.arange(0, 2 * count, 2, dtype=np.int32))

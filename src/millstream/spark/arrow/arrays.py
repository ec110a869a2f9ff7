"""Arrow arrays made from numpy's memory as it is.

``pa.array`` and ``pa.scalar`` do as much and more, and import pandas when they are first called: half a second of
processor in every worker process that Spark starts, which is most of what a small read costs.
"""

import functools
from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int32]]


def integers(values: Numbers) -> pa.Array:
    """``pa.int32`` of these numbers, none of them null."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def strings_in(data: pa.Buffer, bounds: Numbers) -> pa.Array:
    """``pa.string`` of what lies between each bound and the next one, in bytes from the beginning of ``data``."""
    return pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), data)


def moments(micros: "np.ndarray[Any, np.dtype[np.int64]]") -> pa.Array:
    """Microseconds since 1970 as Spark's timestamps."""
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(micros), [None, pa.py_buffer(micros)])


def again(words: tuple[bytes, ...], times: int) -> pa.Array:
    """``pa.string`` of these words in their order, again and again."""
    room = 1 << max(times - 1, 0).bit_length()  # so that pages of nearly the same size share one
    return _again(words, room)[: times * len(words)]


@functools.lru_cache(maxsize=8)
def _again(words: tuple[bytes, ...], times: int) -> pa.Array:
    bounds = np.zeros(times * len(words) + 1, np.int32)
    np.cumsum(np.tile([len(word) for word in words], times), out=bounds[1:])
    return strings_in(pa.py_buffer(b"".join(words) * times), bounds)


@functools.lru_cache(maxsize=8)
def every_second(count: int) -> pa.Array:
    """0, 2, 4 and so on, so many of them."""
    return integers(np.arange(0, 2 * count, 2, dtype=np.int32))

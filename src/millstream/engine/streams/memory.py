"""The memory in bytes of all streams' entries, groups and pending records in this process, counted as they change.

PURE. There is one number for the process, not one for each stream. So a change costs one addition, and a deleted stream
subtracts all its bytes. The native core counts the memory that it allocates (``_core/core.h``). The core in Python
counts typical sizes of its objects. So the two numbers differ. Each equals the sum of the ``footprint`` of its stores
and groups, which is computed from scratch.
"""

from typing import TYPE_CHECKING

from millstream import core


class Total:
    """The byte count of the core in Python."""

    bytes = 0


def py_stream_memory() -> int:
    """Memory of all streams of the process in bytes, without keys and names of groups and producers."""
    return Total.bytes


if TYPE_CHECKING:
    stream_memory = py_stream_memory
else:
    stream_memory = core.choose(py_stream_memory)

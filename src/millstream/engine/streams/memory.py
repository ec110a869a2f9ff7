"""The bytes that the entries, groups and pending records of all streams of this process take, counted as they change.

PURE. One number for the process, not one for each stream: a change then costs an addition, and a stream that goes gives
back all it took. The native core counts the memory that it allocates (``_core/core.h``), the core in Python typical
sizes of its objects. So the two have different numbers; each is exact by its own definition, the ``footprint`` of
stores and groups, which adds up again.
"""

from typing import TYPE_CHECKING

from millstream import core


class Total:
    """The count of the core in Python."""

    bytes = 0


def py_stream_memory() -> int:
    """The bytes that all streams of the process take, without keys, names of groups and producers."""
    return Total.bytes


if TYPE_CHECKING:
    stream_memory = py_stream_memory
else:
    stream_memory = core.choose(py_stream_memory)

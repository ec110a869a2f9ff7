"""Named points of an archive job where a test may have its process killed.

``MILLSTREAM_ARCHIVE_HOOK="switched:3"`` sends SIGKILL to the process itself the third time it gets to that point.
Unset, a point costs a comparison.
"""

import os
import signal

POINTS = (
    "batch",  # a batch was planned, nothing of it is written
    "written",  # its files are written, the manifest does not name them
    "switching",  # the new manifest is written beside the old one
    "switched",  # it is in place
    "merged",  # small files were merged into a new one, which the manifest does not name
    "trimming",  # before the stream is trimmed
    "trimmed",  # after it
    "sweeping",  # before a file that nobody needs is removed
)
"""In the order in which a batch passes them."""

_where, _, _nth = os.environ.get("MILLSTREAM_ARCHIVE_HOOK", "").partition(":")
_left = [int(_nth or 1)]


def reach(point: str) -> None:
    """Die here if the test wants it."""
    if point != _where:
        return
    assert point in POINTS
    _left[0] -= 1
    if _left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

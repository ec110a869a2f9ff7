"""The range of the sources that a batch of a streaming query holds, as the query's checkpoint names it.

Spark writes the sources' offsets of a batch to ``offsets/<batch>`` before it runs the batch, and reads that file when
it runs the batch again. If the file is lost, Spark makes a new batch of the same number, from what the sources hold by
then. The rows themselves do not separate the two: a query may give a repeated batch new random values or times.
"""

import hashlib
import re
from pathlib import Path

_LOCAL = re.compile(r"^file:(//)?(?=/)")
_BEFORE_OFFSETS = 2  # Lines with the format's version and with the batch's time, watermark and settings


def batch_range(checkpoint: str | None, batch: int) -> str | None:
    """A short digest of the sources' offsets of a batch; None if the driver cannot read them as a local file."""
    if checkpoint is None:
        return None
    try:
        lines = (Path(_LOCAL.sub("", checkpoint)) / "offsets" / str(batch)).read_bytes().splitlines()
    except (OSError, ValueError):
        return None
    return hashlib.sha256(b"\n".join(lines[_BEFORE_OFFSETS:])).hexdigest()[:32]

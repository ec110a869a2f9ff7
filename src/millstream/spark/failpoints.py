"""Named points of group mode and of recovery where a test may stop the world.

``MILLSTREAM_SPARK_HOOK="claimed:2=/some/file"`` stops the process (SIGSTOP) the second time it gets to that point,
and before that writes its id to that file: the test sees that the point was reached, and kills whom it wants.
``=kill`` has it kill itself. Unset, a point costs a comparison.
"""

import os
import signal
from pathlib import Path

POINTS = (
    "planning",  # group mode: asked for the next batch, nothing is done yet
    "acking",  # some of a finished batch's entries are acknowledged
    "acked",  # all are, and the consumer is still there
    "claiming",  # a page of entries is claimed, and nobody but the server knows
    "claimed",  # the whole batch is, and Spark has not been told
    "logged",  # Spark has written the offset log; tasks have not begun
    "replaying",  # a task has read a page
    "sliced",  # recovery: a slice is claimed and its cursor noted
    "judged",  # the slice's verdicts are known, none is carried out
    "settling",  # some are
    "burying",  # a dead letter's transaction is about to be sent
)

_armed: list[tuple[str, int, str]] = []


def load(text: str) -> None:
    """Arm what ``MILLSTREAM_SPARK_HOOK`` says, and nothing else."""
    where, _, how = text.partition("=")
    point, _, nth = where.partition(":")
    assert not text or point in POINTS, f"no such point: {point}; there are {', '.join(POINTS)}"
    _armed[:] = [(point, int(nth or 1), how)] if text else []


def reach(point: str) -> None:
    """Stop or die here if the test wants it."""
    if not _armed or point != _armed[0][0]:
        return
    _, left, how = _armed[0]
    _armed[0] = (point, left - 1, how)
    if left != 1:
        return
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    fresh = Path(how + ".new")
    fresh.write_text(str(os.getpid()))
    fresh.rename(how)
    os.kill(os.getpid(), signal.SIGSTOP)


load(os.environ.get("MILLSTREAM_SPARK_HOOK", ""))

"""Failpoints: named places in the code where a test may stop, kill or disturb the process.

In the same process, a test sets an action: ``failpoints.on("before_ack", action)``. For another process, it sets a
variable: with ``MILLSTREAM_FAILPOINTS="before_ack:3=kill"`` the process sends itself SIGKILL when it reaches that place
the third time. Commas separate several failpoints. The actions are:

* ``=kill``: SIGKILL, as from the kernel when memory runs out
* ``=pause``: SIGSTOP, as a frozen container or a laptop with its lid closed
* ``=/some/file``: write the process ID to the file and then stop, so that the test knows both. The path is absolute: a
  misspelt ``=kil`` is an error and not a file of that name

The import refuses misspelt names and lists the valid ones. Otherwise the process would not be killed, and its test
would wait for ever, or pass and check nothing.

One registry serves the worker, Spark's group mode, recovery and the archive. An unset failpoint costs one check of an
empty dict, since some are in loops that run a hundred thousand times a second. Failpoints are in the released code, so
that tests stop the code that users run.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from millstream.errors import ConfigError

#: Failpoints of the worker, in the order in which an entry passes them.
WORKER = (
    "before_fenced_read",
    "after_read",
    "after_claim",
    "before_uncharge",  # entries of a crashed worker are claimed; their corrected delivery counts are not stored yet
    "after_uncharge",
    "before_handler",
    "after_handler",
    "before_ack",
    "after_ack",
    "before_retry",
    "after_retry",
    "before_release",
    "after_release",
    "before_dead",
    "in_dead",  # a dead letter's script or transaction is about to be sent
    "after_dead",
    "before_renew",
    "before_forget",
)

#: Failpoints of group mode, in which Spark reads as a consumer group.
GROUP_MODE = (
    "planning",  # Spark requested the next batch; nothing is done yet
    "acking",  # some of a finished batch's entries are acknowledged
    "acked",  # all are acknowledged; the consumer is still there
    "claiming",  # a page of entries is claimed; only the server knows it
    "claimed",  # the whole batch is claimed; Spark does not know it yet
    "logged",  # Spark has written the offset log; tasks have not begun
    "replaying",  # a task has read a page
)

#: Failpoints of ``recover()``.
RECOVERY = (
    "sliced",  # a slice is claimed, and its cursor is recorded
    "decided",  # the slice is decided, but no decision is carried out
    "settling",  # some decisions are carried out
    "writing_dead",  # a dead letter's transaction is about to be sent
)

#: Failpoint of the sink.
SINK = ("publishing",)  # a piece of a batch is about to be published

#: Failpoints of the archive, in the order in which a batch passes them.
ARCHIVE = (
    "batch",  # a batch is planned, but nothing is written
    "written",  # its files are written, but the manifest does not contain them
    "switching",  # the new manifest is written beside the old one
    "switched",  # the new manifest is in place
    "merged",  # small files were merged into a new one, which the manifest does not contain
    "trimming",  # before the stream is trimmed
    "trimmed",  # after the stream was trimmed
    "sweeping",  # before an unused file is removed
)

#: Failpoints of an archive that is a table.
TABLES = (
    "committing",  # the manifest is in place, and the table's log is about to be written
    "committed",  # the log is written, but not read again yet
    "expired",  # the log no longer contains the states with merged files, which are about to be removed
)

#: Failpoint of a change of the number of partitions.
PARTITIONS = ("repartition",)  # between any two of its steps

#: All failpoints. A test with any other name would wait forever.
POINTS = frozenset({*WORKER, *GROUP_MODE, *RECOVERY, *SINK, *ARCHIVE, *TABLES, *PARTITIONS})

_actions: dict[str, Callable[[], None]] = {}


def reach(point: str) -> None:
    """Run the action that is set for this failpoint, if any."""
    if _actions:
        action = _actions.get(point)
        if action is not None:
            action()


def on(point: str, action: Callable[[], None]) -> None:
    """Set the action of a failpoint in place of an earlier one."""
    _actions[_known(point)] = action


def clear() -> None:
    """Remove all actions."""
    _actions.clear()


def load(text: str) -> None:
    """Set the actions of ``MILLSTREAM_FAILPOINTS``, and no others."""
    clear()
    _actions.update([_armed(item) for item in text.split(",") if item])


def _armed(item: str) -> tuple[str, Callable[[], None]]:
    """One part of the environment's text, such as ``before_ack:3=kill``: the failpoint and its action."""
    where, _, how = item.partition("=")
    point, colon, nth = where.partition(":")
    if how not in {"kill", "pause"} and not how.startswith("/"):
        raise ConfigError(
            f"MILLSTREAM_FAILPOINTS is invalid: {how!r} in {item!r} is unknown. Give kill, pause or an absolute path."
        )
    if colon and not (nth.isdecimal() and int(nth)):
        raise ConfigError(
            f"MILLSTREAM_FAILPOINTS is invalid: {nth!r} in {item!r} is not a count. Give a number from 1."
        )
    return _known(point), _at_the(int(nth or 1), how)


def _known(point: str) -> str:
    if point not in POINTS:
        raise ConfigError(
            f"MILLSTREAM_FAILPOINTS is invalid: {point!r} is unknown. Write one of {', '.join(sorted(POINTS))}."
        )
    return point


def _at_the(nth: int, how: str) -> Callable[[], None]:
    """An action that stops the process when it is called the ``nth`` time, and only then."""
    left = nth

    def act() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            _stop(how)

    return act


def _stop(how: str) -> None:
    if how in ("kill", "pause"):
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        return
    fresh = Path(how + ".new")  # renamed, so that readers of the file see the complete number
    fresh.write_text(str(os.getpid()))
    fresh.rename(how)
    os.kill(os.getpid(), signal.SIGSTOP)


load(os.environ.get("MILLSTREAM_FAILPOINTS", ""))

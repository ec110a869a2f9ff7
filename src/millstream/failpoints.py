"""Failpoints: named places in the code where a test may stop, kill or disturb the process.

A test in the same process sets an action there: ``failpoints.on("before_ack", action)``. Another process is armed by
the environment: ``MILLSTREAM_FAILPOINTS="before_ack:3=kill"`` has it send itself SIGKILL the third time it gets to that
place. Several are separated by commas. A process may do this there:

* ``=kill``: SIGKILL, as the kernel's killer of processes would
* ``=pause``: SIGSTOP, as a frozen container or a laptop with its lid closed
* ``=/some/file``: write its process id to the file and then stop, so that the test sees the process and the moment.
  The path is absolute: a misspelt ``=kil`` is an error and not a file of that name

The import refuses misspelt names and lists the valid ones. A process that is never killed would have its test wait for
ever, or pass without having tried anything.

One registry serves the worker, Spark's group mode, recovery and the archive, so that a test learns one way to stop the
world. Unset, a failpoint costs one test of an empty dict, since some are in loops that run a hundred thousand times a
second. They stay in the shipped code because only shipped code is worth killing.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from millstream.errors import ConfigError

#: The worker's, in the order that an entry passes them.
WORKER = (
    "before_fenced_read",
    "after_read",
    "after_claim",
    "before_uncharge",  # entries of a crashed worker are claimed; that they are not charged is not stored yet
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

#: The failpoints of group mode, Spark's reading as a consumer group.
GROUP_MODE = (
    "planning",  # asked for the next batch, nothing is done yet
    "acking",  # some of a finished batch's entries are acknowledged
    "acked",  # all are, and the consumer is still there
    "claiming",  # a page of entries is claimed, and only the server knows
    "claimed",  # the whole batch is, and Spark does not know it yet
    "logged",  # Spark has written the offset log; tasks have not begun
    "replaying",  # a task has read a page
)

#: The failpoints of ``recover()``.
RECOVERY = (
    "sliced",  # a slice is claimed and its cursor noted
    "decided",  # the decisions on the slice are known, none is carried out
    "settling",  # some are
    "writing_dead",  # a dead letter's transaction is about to be sent
)

#: The sink's.
SINK = ("publishing",)  # a piece of a batch is about to be published

#: The archive's, in the order that a batch passes them.
ARCHIVE = (
    "batch",  # a batch was planned, nothing of it is written
    "written",  # its files are written, the manifest does not name them
    "switching",  # the new manifest is written next to the old one
    "switched",  # it is in place
    "merged",  # small files were merged into a new one, which the manifest does not name
    "trimming",  # before the stream is trimmed
    "trimmed",  # after it
    "sweeping",  # before an unused file is removed
)

#: An archive's, if it has the form of a table.
TABLES = (
    "committing",  # the manifest is in place, the table's log is about to be written
    "committed",  # it is, and was not looked at again
    "expired",  # it has forgotten the states with merged files that are about to be removed
)

#: A change of the number of partitions.
PARTITIONS = ("repartition",)  # between any two of its steps

#: Every failpoint there is. A name outside it is a mistake of the test, which would wait for ever.
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
    """Forget all that was set."""
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
    """The action of a process against itself the ``nth`` time it gets there, and never again."""
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
    fresh = Path(how + ".new")  # renamed, so that a reader of the file sees the whole number in it
    fresh.write_text(str(os.getpid()))
    fresh.rename(how)
    os.kill(os.getpid(), signal.SIGSTOP)


load(os.environ.get("MILLSTREAM_FAILPOINTS", ""))

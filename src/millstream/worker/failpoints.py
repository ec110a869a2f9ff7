"""Named points in the worker's loop where a test may stop the world, or the process.

In a test's own process: ``hooks.on("before_ack", action)``. In another process: the environment variable
``MILLSTREAM_HOOK="before_ack:3=kill"`` sends SIGKILL to the process itself the third time it gets there; several are
separated by commas; ``=pause`` stops it (SIGSTOP) instead. Unset, a point costs one test of an empty dict.
"""

import os
import signal
from collections.abc import Callable

#: Every point, in the order an entry passes them.
POINTS = (
    "after_read",
    "after_claim",
    "before_pardon",
    "after_pardon",
    "before_handler",
    "after_handler",
    "before_ack",
    "after_ack",
    "before_retry",
    "after_retry",
    "before_release",
    "after_release",
    "before_dead",
    "in_dead",
    "after_dead",
    "before_renew",
    "before_forget",
)

_actions: dict[str, Callable[[], None]] = {}


def reach(point: str) -> None:
    """Run what is set for this point, if anything is."""
    if _actions:
        action = _actions.get(point)
        if action is not None:
            action()


def on(point: str, action: Callable[[], None]) -> None:
    """Set what happens at a point; replaces what was set before."""
    assert point in POINTS, f"no such point: {point}; there are {', '.join(POINTS)}"
    _actions[point] = action


def clear() -> None:
    """Forget all that was set."""
    _actions.clear()


def _signal_at(nth: int, number: signal.Signals) -> Callable[[], None]:
    left = nth

    def act() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

    return act


def load(text: str) -> None:
    """Set the points that ``MILLSTREAM_HOOK`` names."""
    for item in filter(None, text.split(",")):
        where, _, what = item.partition("=")
        point, _, nth = where.partition(":")
        number = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP}[what]
        on(point, _signal_at(int(nth or 1), number))


load(os.environ.get("MILLSTREAM_HOOK", ""))

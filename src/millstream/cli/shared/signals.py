"""SIGTERM and Ctrl-C in a long command: the first signal requests an orderly end."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.cli.shared.output import Output
from millstream.ending import Ending


def stopped_by_signal() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set in the running loop; ``Ending`` decides about a later signal."""
    ending, stop = Ending(), asyncio.Event()

    def heard(number: int) -> None:
        if ending.at_once(number):
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, heard, number)
    return stop


@contextmanager
def ended_by_signal() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM and Ctrl-C request an end; yield a function that is True after the first one.

    ``Ending`` decides if a later signal ends the process at once.
    """
    ending = Ending()

    def ask(number: int, _frame: object) -> None:
        first = not ending.asked
        if ending.at_once(number):
            os._exit(128 + number)
        if first:
            Output().say("millstream: ending after the present work; Ctrl-C ends at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: ending.asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

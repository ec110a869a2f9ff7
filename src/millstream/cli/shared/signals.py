"""SIGTERM and Ctrl-C in a long command: the first signal requests an orderly end."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.cli.shared.output import Output
from millstream.ending import Ending


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

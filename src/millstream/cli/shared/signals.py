"""How a long command hears SIGTERM and Ctrl-C: it is asked to end, and ends in order."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.cli.shared.output import Output
from millstream.ending import Ending


@contextmanager
def ended_by_signal() -> Iterator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C ask for an end; gives what tells whether one came. What ends it at once: ``Ending``."""
    ending = Ending()

    def ask(number: int, _frame: object) -> None:
        first = not ending.asked
        if ending.at_once(number):
            os._exit(128 + number)
        if first:
            Output().say("millstream: ending after what is under way; Ctrl-C ends at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: ending.asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

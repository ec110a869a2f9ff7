"""How a long command hears SIGTERM and Ctrl-C: it is asked to end, and ends in order."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.cli.output import Output


@contextmanager
def ended_by_signal() -> Iterator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C ask for an end, a second one ends the process at once; gives what tells whether one came."""
    came = threading.Event()

    def ask(number: int, _frame: object) -> None:
        if came.is_set():
            os._exit(128 + number)
        came.set()
        Output().say("millstream: ending after what is under way; once more ends at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

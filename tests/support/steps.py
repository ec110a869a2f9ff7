"""The cost of an act in steps, which are the same on any machine: lines that run, and built-in functions called."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(act: Callable[[], object]) -> int:
    """The number of lines of Python that an act runs, each turn of a loop again, and of built-in functions it calls.

    The garbage collector waits meanwhile: what it finalizes is whatever tests before this one left behind.
    """
    count = 0

    def line(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "c_call"

    before, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.setprofile(call)
    sys.settrace(line)
    try:
        act()
    finally:
        sys.settrace(before)
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return count

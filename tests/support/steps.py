"""The cost of an act in steps that are the same on any machine: executed lines and calls of built-in functions."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(act: Callable[[], object]) -> int:
    """Return the number of Python lines that an act executes, plus calls of built-in functions.

    The garbage collector is off meanwhile, since it would finalize objects of earlier tests.
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

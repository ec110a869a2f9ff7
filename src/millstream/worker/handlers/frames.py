"""The start of the user's code in a stack. The frames above it are Millstream's and do not help the reader."""

import asyncio
import concurrent.futures
import importlib
import traceback
from pathlib import Path
from types import FrameType, TracebackType

#: Directories whose functions call handlers, and are not called by them.
MACHINERY = tuple(
    f"{folder}/"
    for folder in (
        Path(__file__).parents[1],
        Path(__file__).parents[2] / "compat",
        Path(asyncio.__file__).parent,
        Path(concurrent.futures.__file__).parent,
    )
)


#: Files of Python's import system, which are on the stack between Millstream and an imported module of the user.
_IMPORT = (importlib.__file__, "<frozen importlib")


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the user's code; None if there is none.

    Frames of the machinery, and of an import by it, come before.
    """
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((*MACHINERY, *_IMPORT)):
        trace = trace.tb_next
    return trace


def running_part(frame: FrameType) -> list[traceback.FrameSummary]:
    """Return the stack of a running thread below the innermost machinery; all of it if there is no machinery.

    (Above the machinery there may also be a program of the user's, which runs the app.)
    """
    frames = list(traceback.extract_stack(frame))
    last = max((at for at, one in enumerate(frames) if one.filename.startswith(MACHINERY)), default=-1)
    return frames[last + 1 :] or frames

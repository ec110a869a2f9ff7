"""The start of the user's code in a stack. The frames above it are ours and do not help the reader."""

import asyncio
import concurrent.futures
import importlib
import traceback
from pathlib import Path
from types import FrameType, TracebackType

#: Directories whose functions call handlers, and not the other way round.
MACHINERY = tuple(
    f"{folder}/"
    for folder in (
        Path(__file__).parents[1],
        Path(__file__).parents[2] / "compat",
        Path(asyncio.__file__).parent,
        Path(concurrent.futures.__file__).parent,
    )
)


#: Files of Python's import: between our code and the user's module that it imports.
_IMPORT = (importlib.__file__, "<frozen importlib")


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is neither machinery nor an import by it; None where all of it is."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((*MACHINERY, *_IMPORT)):
        trace = trace.tb_next
    return trace


def running_part(frame: FrameType) -> list[traceback.FrameSummary]:
    """The stack of a running thread from the code that our innermost machinery called; all of it where there is none.

    (Above the machinery there may be a program of the user's as well, which runs the app.)
    """
    frames = list(traceback.extract_stack(frame))
    last = max((at for at, one in enumerate(frames) if one.filename.startswith(MACHINERY)), default=-1)
    return frames[last + 1 :] or frames

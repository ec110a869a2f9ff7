"""Selection of the core: the native module if it was built, else the classes written in Python.

A module with a class or function that also exists in C ends with the selection::

    if TYPE_CHECKING:
        EntryStore = PyEntryStore
    else:
        EntryStore = core.choose(PyEntryStore)

The Python version is the specification and the fallback, and type checkers and readers see it.
``MILLSTREAM_CORE=python`` in the environment selects it. With ``MILLSTREAM_CORE=native``, the program does not start
without the native module.
"""

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from millstream.errors import ConfigError

if TYPE_CHECKING:
    from millstream._native import PlainRunner as PlainRunner  # noqa: PLC0414 - the type checker exports it so

T = TypeVar("T", bound=Callable[..., Any])

VARIABLE: Final = "MILLSTREAM_CORE"
NATIVE: Final = "native"
PYTHON: Final = "python"
REMEDY: Final = (
    "install a C compiler and Python's headers (Debian: gcc python3-dev), then, in the clone, "
    "pip install --force-reinstall --no-deps . (make core where it was installed by make)"
)


def _find(wanted: str) -> ModuleType | None:
    """Return the native module; None if it is not installed or the environment selects Python."""
    if wanted not in {"", NATIVE, PYTHON}:
        raise ConfigError(
            f"{VARIABLE}={wanted!r} is invalid. Set it to {NATIVE} or {PYTHON}, or unset it for the faster one."
        )
    if wanted == PYTHON:
        return None
    try:
        return import_module("millstream._native")
    except ModuleNotFoundError:
        if wanted == NATIVE:
            raise ConfigError(
                f"{VARIABLE}={NATIVE}, but the native core is not installed: {REMEDY}; or unset {VARIABLE}"
            ) from None
        return None


_wanted = os.environ.get(VARIABLE, "")
native = _find(_wanted)
NAME: Final = PYTHON if native is None else NATIVE
IS_CHOSEN: Final = bool(_wanted)
"""True if the environment selects the core."""


def choose(python: T) -> T:
    """Return the native ``Name`` or ``name`` for ``PyName`` or ``py_name``; the argument itself if C lacks it."""
    name = python.__name__.removeprefix("Py").removeprefix("py_")
    found: T = getattr(native, name, python)
    return found

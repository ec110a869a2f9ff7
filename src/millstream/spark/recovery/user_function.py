"""A user's function named on the command line: ``module:name``."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.errors import UsageError


def load_function(spec: str) -> Callable[..., Any]:
    """The function of a text such as ``triage:decide``; the module may be in the working directory.

    Raises:
        UsageError: there is no such thing, or it cannot be called.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise UsageError(f"{spec!r} names no function: say module:name, as triage:decide for decide() in triage.py")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module:
            raise
        raise UsageError(f"{spec!r}: there is no module {module!r} in {here} or installed") from None
    from pyspark import cloudpickle  # noqa: PLC0415 - only where Spark is used

    # By value: executors need not have the module's file.
    cloudpickle.register_pickle_by_value(found)  # type: ignore[no-untyped-call]  # untyped in pyspark
    function = getattr(found, name, None)
    if not callable(function):
        raise UsageError(f"{spec!r}: module {module!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]  # a module's attribute

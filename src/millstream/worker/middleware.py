"""Deprecated name of :mod:`millstream.worker.handlers.middleware`, kept for one version: docstrings of 0.1 name it."""

import warnings

from millstream.worker.handlers.middleware import *  # noqa: F403 - an alias has what the module has

warnings.warn(
    "millstream.worker.middleware is now millstream.worker.handlers.middleware, and goes with the next version",
    DeprecationWarning,
    stacklevel=2,
)

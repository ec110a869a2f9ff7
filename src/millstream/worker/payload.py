"""Deprecated name of :mod:`millstream.worker.handlers.binding`, kept for one version: docstrings of 0.1 name it."""

import warnings

from millstream.worker.handlers.binding import *  # noqa: F403 - an alias has what the module has

warnings.warn(
    "millstream.worker.payload is now millstream.worker.handlers.binding, and goes with the next version",
    DeprecationWarning,
    stacklevel=2,
)

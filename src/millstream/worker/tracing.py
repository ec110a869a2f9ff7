"""Deprecated name of :mod:`millstream.worker.middlewares.tracing`, kept for one version: the guide of 0.1 names it."""

import warnings

from millstream.worker.middlewares.tracing import *  # noqa: F403 - an alias has what the module has

warnings.warn(
    "millstream.worker.tracing is now millstream.worker.middlewares.tracing, and goes with the next version",
    DeprecationWarning,
    stacklevel=2,
)

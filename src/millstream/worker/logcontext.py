"""Deprecated name of :mod:`millstream.worker.middlewares.logging`, kept for one version: the guide of 0.1 names it."""

import warnings

from millstream.worker.middlewares.logging import *  # noqa: F403 - an alias has what the module has

warnings.warn(
    "millstream.worker.logcontext is now millstream.worker.middlewares.logging, and goes with the next version",
    DeprecationWarning,
    stacklevel=2,
)

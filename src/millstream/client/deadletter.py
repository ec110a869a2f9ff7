"""Deprecated name of :mod:`millstream.client.dead_letter.letter`, kept for one version: the guide of 0.1 names it."""

import warnings

from millstream.client.dead_letter.letter import *  # noqa: F403 - an alias has what the module has

warnings.warn(
    "millstream.client.deadletter is now millstream.client.dead_letter.letter, and goes with the next version",
    DeprecationWarning,
    stacklevel=2,
)

"""The former place of ``LogContext``, which the documents of 0.1 name: deprecated, and gone after 0.2."""

import warnings

from millstream.worker.middlewares.logging import EntryFilter, LogContext

__all__ = ["EntryFilter", "LogContext"]

warnings.warn(
    "millstream.worker.logcontext is deprecated: import LogContext and EntryFilter from "
    "millstream.worker.middlewares.logging",
    DeprecationWarning,
    stacklevel=2,
)

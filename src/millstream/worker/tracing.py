"""The former place of ``Tracing``, which the documents of 0.1 name: deprecated, and gone after 0.2."""

import warnings

from millstream.worker.middlewares.tracing import Tracing

__all__ = ["Tracing"]

warnings.warn(
    "millstream.worker.tracing is deprecated: import Tracing from millstream.worker.middlewares.tracing",
    DeprecationWarning,
    stacklevel=2,
)

"""Streams as DataFrames: ``spark.readStream.format("millstream")`` and the same for batch reads.

Spark finds the format by itself through the package ``pyspark_millstream``. Importing this package loads neither
PySpark nor Java; what it offers is fetched on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.spark.archiving.job import archive
    from millstream.spark.local import java_problem, session
    from millstream.spark.recovery import recover
    from millstream.spark.watching import watch

__all__ = ["archive", "java_problem", "recover", "session", "watch"]

_HOMES = {
    "archive": "archiving.job",
    "java_problem": "local",
    "recover": "recovery",
    "session": "local",
    "watch": "watching",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"millstream.spark.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

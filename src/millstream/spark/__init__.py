"""Streams as DataFrames: ``spark.readStream.format("millstream")`` and the same for batch reads.

Spark finds the format by itself through the package ``pyspark_millstream``. Importing this package loads neither
PySpark nor Java; its public names are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.spark.archiving.job import archive
    from millstream.spark.monitoring.listener import watch
    from millstream.spark.recovery.recover import recover
    from millstream.spark.registering import register
    from millstream.spark.sessions.local import java_problem, session
    from millstream.spark.write.partition import partition

__all__ = ["archive", "java_problem", "partition", "recover", "register", "session", "watch"]

_HOMES = {
    "archive": "archiving.job",
    "java_problem": "sessions.local",
    "partition": "write.partition",
    "recover": "recovery.recover",
    "register": "registering",
    "session": "sessions.local",
    "watch": "monitoring.listener",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"millstream.spark.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

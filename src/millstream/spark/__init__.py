"""Streams as DataFrames: ``spark.readStream.format("millstream")`` and the same for batch reads.

Spark finds the format by itself through the package ``pyspark_millstream``. Importing this package loads neither
PySpark nor Java; ``session`` and ``java_problem`` are fetched on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.spark.local import java_problem, session

__all__ = ["java_problem", "session"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from millstream.spark import local  # noqa: PLC0415 - only users of these two pay for it

        return getattr(local, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

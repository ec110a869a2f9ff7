"""The source that Spark finds: the real one, or one that raises an error because this Spark is too old.

An error on import would end every program's search for a Python source, even for another one. So a Spark that is too
old gets a source too, which raises when it is used.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

from millstream.errors import ConfigError
from millstream.spark.oldest import spark_problem

_PROBLEM = spark_problem(pyspark.__version__)

if TYPE_CHECKING or _PROBLEM is None:
    from millstream.spark.source import MillstreamSource as DefaultSource
else:

    class DefaultSource(DataSource):
        """Placeholder for the source if Spark is too old for it."""

        def __init__(self, options: MutableMapping[str, str]) -> None:  # noqa: ARG002 - Spark's
            raise ConfigError(_PROBLEM)

        @classmethod
        def name(cls) -> str:
            """Return the name that ``format(...)`` takes."""
            return "millstream"


__all__ = ["DefaultSource"]

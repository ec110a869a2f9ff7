"""The format for a session that does not find it: of a package that was sent along by ``--py-files``."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import millstream
from millstream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make ``format("millstream")`` known to a session.

    Not needed where the package is installed for Spark's Python workers. ``spark-submit --py-files`` sends a zip to the
    workers of tasks and of registered sources, and not to the one that looks for sources.

    Args:
        spark: the session.

    Raises:
        ConfigError: the package is in a wheel, which Spark sends to no worker: it sends zips. A wheel is a zip.
    """
    from millstream.spark.source import MillstreamSource  # noqa: PLC0415 - PySpark only where it is asked for

    found = re.match(r"(.*/([^/]+)\.whl)/", os.fspath(Path(millstream.__file__)))
    if found and found[1] not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        raise ConfigError(
            f"millstream is in {found[2]}.whl, and Spark sends no wheels to its Python workers: copy it to "
            f"{found[2]}.zip, and give that to --py-files"
        )
    spark.dataSource.register(MillstreamSource)

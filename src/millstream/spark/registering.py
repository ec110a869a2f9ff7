"""``format("millstream")`` in a session with workers that lack this package: the driver sends it to them.

Spark finds the format by itself if the package is installed for the workers; then this module is not needed.
``spark-submit --py-files`` alone is not enough: Spark looks for formats in workers that get no such files. Other
workers get a file on their path only if its name ends in .zip, .egg or .jar, which a wheel's does not.
"""

import atexit
import importlib.util
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

from millstream import _version
from millstream.errors import ConfigError
from millstream.spark.found import DefaultSource

_LEFT_OUT = {"__pycache__", "_core"}
"""Folders that are not sent: bytecode compiled for this Python, and the native core."""


def register(spark: SparkSession) -> None:
    """Make ``format("millstream")`` known to this session, and send the package to its workers.

    It sends the package that this process has imported: a wheel or zip of ``--py-files``, or an installed package.
    Workers use it in place of one that they may have, so that all run the same version. Its native core is left out: it
    cannot be imported from a zip, and Spark's part does not use it. The packages it needs (redis, hiredis, pyarrow,
    numpy and so on) are not sent: they have compiled parts, and go in an environment (``--archives``).

    Raises:
        ConfigError: the session is one of Spark Connect, whose server plans streams in a worker that gets no files.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "register() cannot send the package to a Spark Connect server, which plans streams without a client's "
            "files. Install it for the server's Python, and leave register() out."
        )
    archive = str(packed())
    context = spark.sparkContext
    context.addPyFile(archive)
    # Next to the driver, a worker plans streams; it gets the environment, but no files
    paths = [archive, context.environment.get("PYTHONPATH", "")]
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    spark.dataSource.register(DefaultSource)


def packed() -> Path:
    """Return this package as a zip, which lasts as long as the process: executors may fetch it at any time."""
    folder = Path(tempfile.mkdtemp(prefix="millstream-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / f"millstream-{_version.__version__}.zip"
    from_zip: str | None = getattr(_version.__loader__, "archive", None)
    if from_zip is not None:
        shutil.copyfile(from_zip, archive)
        return archive
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for package in ("millstream", "pyspark_millstream"):
            spec = importlib.util.find_spec(package)
            assert spec is not None
            place = Path(str(spec.origin)).parent
            for file in sorted(place.rglob("*")):
                inside = file.relative_to(place.parent)
                if file.is_file() and file.suffix != ".so" and not _LEFT_OUT & set(inside.parts):
                    out.write(file, inside)
    return archive

"""``format("millstream")`` in a session whose workers do not have this package: it is sent to them by the driver.

Spark finds the format by itself if the package is installed for the workers, and nothing here is needed. ``spark-submit
--py-files`` alone is not enough: Spark looks for formats in workers that get no such files. It puts a file on the path
of the others only if its name ends in .zip, .egg or .jar, which a wheel's does not.
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
"""Compiled for this Python, and what the native core is made from."""


def register(spark: SparkSession) -> None:
    """Make ``format("millstream")`` known to this session, and send the package to its workers.

    The package that this process has imported is sent: a wheel or zip of ``--py-files``, or an installed package. It is
    used in place of one that workers may have, so that all run the same version. It goes without its native core, which
    cannot be imported from a zip and which Spark's part makes no use of. The packages it needs (redis, hiredis,
    pyarrow, numpy and so on) are not sent: they have compiled parts, and go in an environment (``--archives``).

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
    # Streams are planned next to the driver by a worker that gets no files, only the environment
    paths = [archive, context.environment.get("PYTHONPATH", "")]
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    spark.dataSource.register(DefaultSource)


def packed() -> Path:
    """This package as a zip, which lasts as long as the process: executors may ask for it at any time."""
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

"""A job that is submitted with this package as a file, to a Spark whose Python does not have it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millstream.spark.sessions.local import java_options
from support.servers import ServerProcess
from support.streams import fill

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

SOURCE = Path(__file__).parents[3] / "src"

JOB = """
import sys

from pyspark.sql import SparkSession

import millstream

url, work = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
assert ".zip/" in millstream.__file__
assert spark.read.format("millstream").option("url", url).option("stream", "s").load().count() == 20
stream = spark.readStream.format("millstream").option("url", url).option("stream", "s")
rows = stream.option("startingOffsets", "earliest").load().select("fields")
written = rows.writeStream.format("millstream").option("url", url).option("stream", "streamed")
written.option("checkpointLocation", work + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
"""


def without_us(folder: Path) -> Path:
    """What is installed, this package left out."""
    folder.mkdir()
    for place in sys.path:
        if place.endswith("site-packages"):
            for entry in Path(place).iterdir():
                ours = "millstream" in entry.name or entry.suffix == ".pth"
                if not ours and entry.name != "__pycache__" and not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)
    return folder


def packed(path: Path) -> Path:
    """This package as a wheel has it."""
    with zipfile.ZipFile(path, "w") as out:
        for file in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.lua")]:
            out.write(file, file.relative_to(SOURCE))
    return path


def submitted(folder: Path, package: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A job's end."""
    (folder / "job.py").write_text(JOB)
    installed = without_us(folder / "installed")
    python = str(folder / "python")
    base = getattr(sys, "_base_executable", sys.executable)
    # PySpark as it is installed, which is compiled, and not from the zip that Spark puts in front of it: on a machine
    # with much to do a worker that compiles it anew comes too late for Spark.
    Path(python).write_text(
        f"#!/bin/sh\nPYTHONPATH=$(echo $PYTHONPATH | sed 's#[^:]*pyspark.zip:##') exec {base} \"$@\"\n"
    )
    Path(python).chmod(0o755)
    given = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "MILLSTREAM", "VIRTUAL_ENV"))
    }
    given |= {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_HOME": str((installed / "pyspark").resolve()),  # the archive of Java's classes is for this very path
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": f"{installed}{os.pathsep}{package}",  # as docs/spark/how-to.md says
    }
    given |= {name: os.environ[name] for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")}
    settings = ("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR")
    settings += ("--driver-java-options", java_options(quick=True))
    return subprocess.run(
        [given["SPARK_HOME"] + "/bin/spark-submit", *settings, "--py-files", str(package), "job.py", *words],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )


@pytest.mark.timeout(400)
def test_a_zip_of_this_package_is_enough(real_redis: ServerProcess, tmp_path: Path) -> None:
    """Read as a batch, read and written as a stream: in tasks, and in the workers beside the driver."""
    with real_redis.client() as client:
        client.flushall()
        fill(client, "s", 20)
        ended = submitted(tmp_path, packed(tmp_path / "millstream.zip"), real_redis.url, str(tmp_path))
        assert ended.returncode == 0, ended.stderr
        assert client.xlen("streamed") == 20

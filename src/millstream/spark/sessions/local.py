"""A local Spark session that starts quickly and commits micro-batches quickly, and the error without a Java.

Each setting here has its price, which is why Spark does not have it by default:

* Workers import PySpark from the installed package, whose modules are compiled once. Spark puts a zip first on their
  path, which every worker would compile again. Price: a wrapper script in the cache. It also reports its Python version
  without a start of Python, since Spark queries that before it starts each kind of worker.
* ``SPARK_HOME`` is set to that package, which Spark's scripts would start a Python to find. Price: none known.
* Checkpoint files are written through ``java.io`` semantics instead of Hadoop's local file system, which starts about
  ten processes a micro-batch. Price: two drivers on one checkpoint are distinguished less reliably. Local paths only.
* The serial garbage collector: less memory and start-up on few cores. Price: pauses with heaps of many gigabytes.
* An archive of loaded Java classes in the cache (about 170 MB), written when a session ends and used by the next one.

Spark starts its Python daemons itself. A process that imported PySpark while Java started, and forked the daemons,
saved 0.5 s of processor time. It took 290 lines and relied on undocumented parts of PySpark, so it was removed.
"""

import contextlib
import functools
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from millstream.errors import ConfigError
from millstream.paths import packaged
from millstream.spark.oldest import spark_problem
from millstream.spark.sessions.java_output import held_back

JAVA_NEEDED = 17
PACKAGE = "openjdk-17-jre-headless"

_WRITING_SECONDS = 600
"""Seconds after which an archive without a header counts as left by a process that died."""

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@functools.cache
def java_problem() -> str | None:
    """Return the obstacle to starting Spark, with the package to install; None if there is a suitable Java.

    Cheap (it starts ``java -version``), so that a command can report it before it does anything slow.
    """
    home, java = os.environ.get("JAVA_HOME"), _java()
    cure = f"apt-get install {PACKAGE} (or any Java {JAVA_NEEDED} or newer)"
    if not Path(java).is_file():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on PATH"
        return f"Spark needs Java {JAVA_NEEDED} or newer, and {where}: {cure}"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired) as reason:
        return f"Spark needs Java {JAVA_NEEDED} or newer, and {java} does not run ({reason}): {cure}"
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    if found is None or int(found[1]) < JAVA_NEEDED:
        version = found[1] if found else "of an unknown version"
        return f"Spark needs Java {JAVA_NEEDED} or newer, and {java} is Java {version}: {cure}"
    return None


def cache_folder() -> Path:
    """Return the folder of the wrapper and the class archive: ``~/.cache/millstream``, or under ``XDG_CACHE_HOME``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base, "millstream")


def worker_python() -> str:
    """Return the Python for Spark's workers: this one, through the wrapper script if it can be written."""
    if "PYSPARK_PYTHON" in os.environ:
        return os.environ["PYSPARK_PYTHON"]
    text = packaged("millstream.spark.sessions", "worker.sh")
    text = text.replace("@VERSION@", "{}.{}".format(*sys.version_info[:2]))
    text = text.replace("@PYTHON@", shlex.quote(sys.executable))
    path = cache_folder() / f"python-{_mark(text)}"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as out:
                out.write(text)
            Path(out.name).chmod(stat.S_IRWXU)
            Path(out.name).replace(path)
        except OSError:  # the home directory is not writable, which only costs time
            return sys.executable
    return str(path)


def java_options(*, quick: bool) -> str:
    """Return the options of the Java process.

    Args:
        quick: compile with C1 only: starts faster, runs bulk work up to twice slower. For tests and short commands.
    """
    words = ["-XX:+UseSerialGC"]
    if quick:
        words.append("-XX:TieredStopAtLevel=1")
    archive = _class_archive()
    flag = _archive_flag(archive) if archive is not None else None
    if flag is not None:
        words += [f"-XX:{flag}={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join(words)


def _archive_flag(archive: Path) -> str | None:
    """Return Java's option to use the archive or to write it at the end; None while another process writes it.

    Java writes the archive's header last, and ignores a file without one. But a file that lost its end (a full disk, a
    power cut) makes it abort. So an archive is tried once, and its size is noted.
    """
    tried = archive.with_suffix(".tried")
    try:
        size = archive.stat().st_size
        if tried.exists() and tried.read_text() == str(size):
            return "SharedArchiveFile"
        with archive.open("rb") as file:
            complete = any(file.read(4))
        if complete and _java_takes(archive):
            with contextlib.suppress(OSError):  # the disk is full: the next session tries again
                tried.write_text(str(size))
            return "SharedArchiveFile"
        if not complete and time.time() - archive.stat().st_mtime < _WRITING_SECONDS:
            return None
        archive.unlink()
    except FileNotFoundError:
        pass
    return None if _folder_of_settings() else "ArchiveClassesAtExit"


def _folder_of_settings() -> Path | None:
    """Return a directory with files that Spark puts on Java's class path; None without one.

    With such a directory Java cannot write a class archive: it would end with exit code 1 and an initialization error.
    """
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    places = [os.environ.get("SPARK_CONF_DIR") or str(Path(home, "conf"))]
    places += [os.environ.get(name, "") for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    places += os.environ.get("SPARK_DIST_CLASSPATH", "").split(os.pathsep)
    return next((found for found in map(Path, filter(None, places)) if found.is_dir() and any(found.iterdir())), None)


def _java_takes(archive: Path) -> bool:
    """Return True if Java starts with the archive."""
    words = [_java(), f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-version"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _java() -> str:
    """Return the path of the java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java") or ""


def _class_archive() -> Path | None:
    """Return the path of the class archive for this PySpark and this Java; None if the cache cannot be used."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if " " in str(folder) or not os.access(folder, os.W_OK):
        return None
    mark = _mark(f"{pyspark.__file__} {pyspark.__version__} {Path(_java()).resolve()}")
    return folder / f"spark-{mark}.jsa"


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def session(app_name: str = "millstream", *, quick: bool = False, quiet: bool = False, **confs: str) -> "SparkSession":
    """Return a local Spark session with the settings above; an active one is used as it is.

    Args:
        app_name: shown in Spark's logs.
        quick: for tests and short commands, see :func:`java_options`.
        quiet: hide Java's output while it starts, unless it does not start. For commands.
        confs: more settings, with ``__`` for the dots of their names: ``spark__sql__session__timeZone="UTC"``; they
            win over the ones chosen here. ``master`` is short for ``spark__master``.

    Raises:
        ConfigError: there is no Java that Spark can use, PySpark is too old, or Spark did not start; the text has the
            remedy.
    """
    problem = java_problem() or spark_problem(pyspark.__version__)
    if problem is not None:
        raise ConfigError(problem)
    from pyspark.errors import PySparkException  # noqa: PLC0415 - missing from versions that are refused above

    # Set through the environment, not a conf: workers that load data sources and plan reads use nothing else. Without
    # it, they would run any python3 on PATH, which may lack this package.
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_HOME", _find_spark_home())
    chosen = {
        "spark.master": "local[2]",
        "spark.app.name": app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(quick=quick),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.session.timeZone": "UTC",
    }
    chosen |= {
        ("spark.master" if name == "master" else name.replace("__", ".")): value for name, value in confs.items()
    }
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        if not quiet:
            return builder.getOrCreate()
        with held_back() as errors:
            _launch(chosen, errors)
            return builder.getOrCreate()
    except PySparkException as reason:
        raise ConfigError(
            f"Spark did not start ({str(reason).splitlines()[0].strip()}; Java's output is above). Correct the "
            f"master, {chosen['spark.master']!r}, or the other settings."
        ) from None


def _launch(chosen: Mapping[str, str], errors: int) -> None:
    """Start the Java process that the session will use, unless there is one."""
    if SparkContext._gateway is None:  # noqa: SLF001 - no other way to see it
        conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
        # Signals to the process group must reach only this command, which stops Java when it no longer needs it.
        how = {"stderr": errors, "start_new_session": True}
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, how))  # type: ignore[no-untyped-call] # noqa: SLF001 - as above

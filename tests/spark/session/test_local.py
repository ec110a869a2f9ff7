"""The session helper: it reports a missing requirement before anything slow, and applies the documented settings."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError
from millstream.spark import session as make_session
from millstream.spark.sessions.local import java_options, java_problem, worker_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from support.servers import ServerProcess


@pytest.fixture
def fresh() -> "Iterator[None]":
    """Clear the cached check of Java before and after the test."""
    java_problem.cache_clear()
    yield
    java_problem.cache_clear()


def fake_java(folder: Path, version: str) -> None:
    (folder / "bin").mkdir()
    path = folder / "bin" / "java"
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "problem_text"),
    [
        ("1.8.0_392", "is Java 8"),
        ("11.0.2", "is Java 11"),
        ("17.0.15", None),
        ("21", None),
        ("sorcery", "of an unknown version"),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_old_java_is_named_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, problem_text: str | None
) -> None:
    """An old or missing Java is named in one sentence with the package to install."""
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    problem = java_problem()
    if problem_text is None:
        assert problem is None
    else:
        assert problem is not None
        assert problem_text in problem
        assert "apt-get install openjdk-17-jre-headless" in problem


@pytest.mark.usefixtures("fresh")
def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java, a session fails with one sentence before Spark is imported."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no java on PATH: apt-get install openjdk-17-jre-headless"):
        make_session("x")
    java_problem.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    problem = java_problem()
    assert problem is not None
    assert "has no bin/java" in problem


def test_the_wrapper_drops_the_zips_and_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's Python imports the installed PySpark instead of its zip, and keeps the user's PYTHONPATH."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with space"))
    python = worker_python()
    assert python != sys.executable
    path = os.pathsep.join(["/x/lib/pyspark.zip", str(tmp_path), "/x/lib/py4j-0.10.9.9-src.zip", "/y z"])
    code = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable)"
    printed = subprocess.run(
        [python, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed == [f"{tmp_path}:/y z", sys.executable]
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    asked = [
        subprocess.run([each, "-c", question], capture_output=True, text=True, check=True).stdout
        for each in (python, sys.executable)
    ]
    assert asked[0] == asked[1]


def test_without_a_cache_everything_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a writable cache directory, sessions work and only start more slowly."""
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert worker_python() == sys.executable
    assert java_options(quick=False) == "-XX:+UseSerialGC"
    assert "TieredStopAtLevel=1" in java_options(quick=True)


def test_the_class_archive_is_never_a_danger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated class archive is rebuilt, and an unfinished one is not used, since Java would abort."""
    fake_java(tmp_path, "17")
    java = tmp_path / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "ArchiveClassesAtExit" in java_options(quick=False)
    (word,) = [word for word in java_options(quick=False).split() if "ArchiveClassesAtExit" in word]
    archive = Path(word.partition("=")[2])

    archive.write_bytes(bytes(100))  # no header yet
    assert "archive" not in java_options(quick=False).lower()
    os.utime(archive, (0, 0))
    assert "ArchiveClassesAtExit" in java_options(quick=False)
    assert not archive.exists()

    archive.write_bytes(b"head and body")
    assert "SharedArchiveFile" in java_options(quick=False)
    java.write_text("#!/bin/sh\nexit 134\n")
    assert "SharedArchiveFile" in java_options(quick=False)  # tried before: not tried at every start
    archive.write_bytes(b"head")
    assert "ArchiveClassesAtExit" in java_options(quick=False)
    assert not archive.exists()


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH"])
def test_no_class_archive_is_written_beside_a_folder_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """No class archive is written if a settings folder is on the class path, since Java would exit with 1."""
    fake_java(tmp_path, "17")
    settings = tmp_path / "settings"
    settings.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(variable, str(settings))
    assert "ArchiveClassesAtExit" in java_options(quick=False)
    (settings / "spark-defaults.conf").write_text("")
    assert "archive" not in java_options(quick=False).lower()


def test_a_choice_of_python_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``PYSPARK_PYTHON`` that the user set is kept."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert worker_python() == "/opt/python"


@pytest.mark.spark
def test_the_session_has_the_promised_settings(spark: "SparkSession") -> None:
    """The session has the documented settings, such as the checkpoint file manager that starts no processes."""
    assert "FileSystemBasedCheckpointFileManager" in spark.conf.get(
        "spark.sql.streaming.checkpointFileManagerClass", ""
    )
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.spark
@pytest.mark.realserver
def test_a_command_prints_its_answer_alone(real_redis: "ServerProcess") -> None:
    """A command prints only its result, without warnings from Java or Spark's logging."""
    with real_redis.client() as client:
        client.flushall()
        client.xgroup_create("s", "g", "0", mkstream=True)
    words = [str(Path(sys.executable).with_name("millstream")), "sql", "SELECT count(*) AS n FROM groups", "-o", "csv"]
    ended = subprocess.run([*words, "--url", real_redis.url], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "n\n1\n", "")


@pytest.mark.spark
@pytest.mark.parametrize("quiet", ["False", "True"])
def test_a_start_that_fails_shows_what_java_said(quiet: str) -> None:
    """If Spark does not start, Java's message is printed above the line with the correction, also in quiet mode."""
    code = f"import millstream.spark; millstream.spark.session(quiet={quiet}, spark__driver__memory='a lot')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    assert "Spark did not start" in ended.stderr.splitlines()[-1]
    assert "a lot" in ended.stderr.partition("Traceback")[0]


def test_a_master_that_is_none_is_named() -> None:
    """An invalid master is named in the last line of the error."""
    code = "import millstream.spark; millstream.spark.session(master='bogus', spark__log__level='OFF')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("millstream.errors.ConfigError: Spark did not start (")
    assert "'bogus'" in last

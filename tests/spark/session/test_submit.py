"""docs/deploy-spark.md, block by block: a job on a Spark that does not have this package installed.

Tests with programs that start several JVMs are run by ``make test-long``.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import redis

import millstream
from millstream.errors import ConfigError
from millstream.spark.oldest import spark_problem
from millstream.spark.registering import packed
from millstream.spark.sessions.local import java_options
from support.needs import package
from support.ports import free_port
from support.readme import block
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import eventually

PAGE = "docs/deploy-spark.md"
LARGE = [str(amount) for amount in range(110, 210, 10)]


def without_us(folder: Path) -> Path:
    """Copy the installed packages without this one."""
    folder.mkdir()
    for place in sys.path:
        if place.endswith("site-packages"):
            for entry in Path(place).iterdir():
                ours = "millstream" in entry.name or entry.suffix == ".pth"
                if not ours and entry.name != "__pycache__" and not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)
    return folder


class Machine:
    """A folder, a Python without this package, a Spark, and the page's files.

    Args:
        folder: Folder in which commands run.
        client: Client of the server with the stream ``orders``.
        url: URL of that server.
    """

    def __init__(self, folder: Path, client: redis.Redis, url: str) -> None:
        self.folder = folder
        self.client = client
        self.installed = without_us(folder / "installed")
        self.texts = {"redis://127.0.0.1:6400/0": url, "7077": str(free_port()), "15002": str(free_port())}
        (folder / "job.py").write_text(block("python", "# job.py", page=PAGE))
        python = folder / "python"
        base = getattr(sys, "_base_executable", sys.executable)
        # PySpark as it is installed, which is compiled, and not from the zip that Spark puts in front of it: on a busy
        # machine a worker that compiles it again comes too late for Spark.
        python.write_text(
            f"#!/bin/sh\nPYTHONPATH=$(echo $PYTHONPATH | sed 's#[^:]*pyspark.zip:##') exec {base} \"$@\"\n"
        )
        python.chmod(0o755)
        settings = {
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            # A class archive is used where there is one; none is written with these settings on Java's class path.
            "spark.driver.extraJavaOptions": re.sub(r"-XX:ArchiveClassesAtExit=\S+", "", java_options(quick=True)),
        }
        (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "MILLSTREAM", "VIRTUAL_ENV"))
        }
        kept |= {name: os.environ[name] for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS") if name in os.environ}
        home = (self.installed / "pyspark").resolve()  # the archive of Java's classes is for this very path
        self.environment = kept | {
            "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": str(self.installed),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PATH": f"{home / 'bin'}{os.pathsep}{kept['PATH']}",
        }

    def build_wheel(self) -> None:
        """Build the pure wheel."""
        words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(self.folder)]
        made = {"MILLSTREAM_CORE": "python"}
        subprocess.run(words, cwd=ROOT, env=os.environ | made, check=True, capture_output=True, timeout=240)

    def line(self, holding: str) -> str:
        """Return the page's shell block that contains the text, with this machine's addresses."""
        return self.here(block("sh", holding, page=PAGE))

    def here(self, text: str) -> str:
        """Replace the addresses in a text of the page by this machine's."""
        for printed, own in self.texts.items():
            text = text.replace(printed, own)
        return text

    def run(self, text: str) -> str:
        """Run a command that must succeed, and return its output."""
        ended = subprocess.run(
            ["sh", "-c", text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1700,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    @staticmethod
    def answers(port: int) -> bool:
        """Return True if a server listens on the port."""
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", port)) == 0

    @contextlib.contextmanager
    def running(self, text: str, port: str | None = None) -> Iterator[None]:
        """Run a command until the end of the block.

        Args:
            text: Command to run.
            port: Port on the page that the command listens on, to wait for.
        """
        with (self.folder / "log").open("ab") as out:
            words = ["sh", "-c", f"exec {text.replace('PYSPARK_PYTHON', 'env PYSPARK_PYTHON')}"]
            started = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=out, stderr=out)
        try:
            if port is not None:
                eventually(lambda: self.answers(int(self.texts[port])), 600, what=f"{text} listens")
            yield
        finally:
            started.terminate()
            started.wait(120)

    def amounts(self, stream: str = "large") -> list[str]:
        """Return the amounts that the job has written."""
        return sorted(fields["amount"].removesuffix(".0") for _, fields in self.client.xrange(stream))


@pytest.fixture
def machine(real_redis: ServerProcess, tmp_path: Path) -> Iterator[Machine]:
    """Yield a machine with twenty orders, ten of them large."""
    with real_redis.client(decode_responses=True) as client:
        client.flushall()
        for amount in range(10, 210, 10):
            client.xadd("orders", {"item": "tea", "amount": str(amount)})
        yield Machine(tmp_path, client, real_redis.url)


@pytest.mark.spark
@pytest.mark.realserver
@pytest.mark.timeout(400)
def test_a_wheel_is_enough(machine: Machine) -> None:
    """With only the wheel, a query reads and writes a stream in tasks and in the driver's workers."""
    machine.build_wheel()
    machine.run(machine.line("'local[2]'"))
    assert machine.amounts() == LARGE


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.realserver
@pytest.mark.timeout(1800)
def test_a_wheel_is_enough_for_executors_in_processes_of_their_own(machine: Machine) -> None:
    """With only the wheel, executors in separate processes work too."""
    machine.build_wheel()
    machine.run(machine.line("local-cluster"))
    assert machine.amounts() == LARGE


def environment(machine: Machine) -> str:
    """Build the page's environment from the local wheel and this machine's packages.

    Returns:
        The page's command that packs the environment.
    """
    machine.build_wheel()
    make, install, pack = machine.line("tar -czf").splitlines()
    assert install.startswith("environment/bin/pip install millstream ")
    machine.run(f"{make} --without-pip")
    (packages,) = machine.folder.glob("environment/lib/python*/site-packages")
    machine.run(f"python3 -m zipfile -e millstream-*.whl {packages}")
    compiled = "import sys; sys.path[:] = [place for place in sys.path if not place.endswith('pyspark.zip')]"
    (packages / "others.pth").write_text(f"{machine.installed}\n{compiled}\n")  # PySpark as it is installed, as above
    del machine.environment["PYSPARK_PYTHON"], machine.environment["PYTHONPATH"]
    return pack


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.realserver
@pytest.mark.timeout(1800)
def test_an_environment_goes_along_to_a_cluster(machine: Machine) -> None:
    """A packed environment is sent to a cluster, where an executor unpacks it and runs the job."""
    machine.run(environment(machine))
    with machine.running(machine.line("master.Master"), "7077"), machine.running(machine.line("worker.Worker")):
        machine.run(machine.line("--archives"))
    assert machine.amounts() == LARGE
    assert [*machine.folder.glob("work/app-*/*/environment/bin/python")], "the executor has unpacked it"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.realserver
@pytest.mark.timeout(1800)
def test_a_client_of_spark_connect_needs_no_package(machine: Machine) -> None:
    """A Spark Connect client runs the page's job without the package."""
    package("grpc")
    environment(machine)
    job = (machine.folder / "job.py").read_text()
    (register,) = re.findall(r".*register\(spark\)\n", job)
    place = f'.remote("sc://127.0.0.1:{machine.texts["15002"]}")'
    remote = (
        job.replace(register, "").replace("import millstream.spark\n", "").replace(".appName(", f"{place}.appName(")
    )
    (machine.folder / "remote.py").write_text(remote)
    (machine.folder / "client.py").write_text(machine.here(block("python", "# client.py", page=PAGE)))
    with machine.running(machine.line("SparkConnectServer"), "15002"):
        machine.environment["PYTHONPATH"] = str(machine.installed)
        assert "20 orders" in machine.run(f"{sys.executable} -S client.py")
        machine.run(f"{sys.executable} -S remote.py {machine.texts['redis://127.0.0.1:6400/0']} checkpoint")
    assert machine.amounts() == LARGE


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.realserver
@pytest.mark.timeout(1800)
def test_a_declarative_pipeline_fills_a_table(machine: Machine) -> None:
    """A declarative pipeline's streaming table contains each entry, and a second run adds the new ones."""
    package("grpc")
    environment(machine)
    python = str(machine.folder / "environment/bin/python")
    machine.environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    machine.texts["/data/"] = f"{machine.folder}/data/"
    specification, table = block("yaml", "# spark-pipeline.yml", page=PAGE), block("python", "# tables", page=PAGE)
    (machine.folder / "tables").mkdir()
    (machine.folder / "spark-pipeline.yml").write_text(machine.here(specification))
    (machine.folder / "tables" / "orders.py").write_text(machine.here(table))
    for count in (20, 21):
        machine.run(machine.line("spark-pipelines"))
        files = machine.folder.glob("spark-warehouse/orders/*.parquet")
        assert sum(parquet.read_metadata(file).num_rows for file in files) == count
        machine.client.xadd("orders", {"item": "tea", "amount": "1"})


HELD = {
    "python": ["# job.py", "# client.py", "# tables"],
    "yaml": ["# spark-pipeline.yml"],
    "sh": ["'local[2]'", "local-cluster", "tar -czf", "master.Master", "worker.Worker", "--archives",
           "SparkConnectServer", "spark-pipelines"],
}  # fmt: skip
"""The words by which the tests above find the page's blocks, by language."""


def test_every_block_of_the_page_is_one_of_these() -> None:
    """Every block of the page is run by one of these tests."""
    text = (ROOT / PAGE).read_text()
    assert {language: len(re.findall(rf"^```{language}$", text, re.MULTILINE)) for language in HELD} == {
        language: len({block(language, word, page=PAGE) for word in words}) for language, words in HELD.items()
    }
    assert len(re.findall(r"^```\w*$", text, re.MULTILINE)) == 2 * sum(map(len, HELD.values()))


def test_what_is_sent_to_workers_is_whole(tmp_path: Path) -> None:
    """The zip that is sent to workers contains the complete package."""
    code = (
        f"import sys; sys.path[:0] = [{str(packed())!r}]\n"
        "import pyspark_millstream, millstream.spark.read.reader, millstream.spark.write.sink\n"
        "import millstream.spark.recovery.settle, millstream.worker.settlement.fence\n"
        "print(millstream.__file__, millstream.__version__)"
    )
    installed = without_us(tmp_path / "installed")
    words = [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(installed)!r})\n{code}"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path).stdout
    assert re.fullmatch(rf"\S+\.zip/millstream/__init__\.py {re.escape(millstream.__version__)}\n", printed)


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("3.5.8", True), ("4.0.5", True), ("4.1.4", True), ("4.2.0", False), ("4.10.0.dev1", False), ("5.0.0", False)],
)
def test_a_spark_that_is_too_old_is_named(version: str, is_old: bool) -> None:
    """A Spark version that is too old is named in one sentence with both versions."""
    problem = spark_problem(version)
    assert (problem is not None) == is_old
    assert problem is None or (f"this is {version}" in problem and "Spark 4.2 or newer" in problem)


def test_on_an_old_spark_only_this_format_is_an_error() -> None:
    """On an old Spark, only the use of this format is an error; other Python sources still work."""
    code = (
        "import pyspark; pyspark.__version__ = '4.1.4'; from pyspark_millstream import DefaultSource as found\n"
        "from pyspark.sql.datasource import DataSource; assert issubclass(found, DataSource); print(found.name())\n"
        "found({})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert ended.stdout == "millstream\n"
    assert ended.stderr.splitlines()[-1] == f"{ConfigError.__module__}.ConfigError: {spark_problem('4.1.4')}"

"""The archive job in Spark: the command, a killed driver, and a campaign of many kills."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

import millstream.spark
from millstream.cli.main import main
from millstream.errors import ConfigError
from millstream.failpoints import ARCHIVE as POINTS
from millstream.spark.archiving.directory import MANIFEST, Folder
from millstream.spark.archiving.job import run
from millstream.spark.archiving.store import ArchiveSettings
from millstream.spark.archiving.tables.shape import Wanted
from support import campaign
from support.archives import Traffic, archive_once, data_files, held
from support.servers import ServerProcess, redis_server
from support.streams import fill
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

DRIVER = """
import sys

import millstream.spark

url, root = sys.argv[1:]
spark = millstream.spark.session("killed", quick=True, spark__log__level="OFF")
millstream.spark.archive(url, "s", to=root, spark=spark, per_batch=300)
"""


def killed(url: str, root: Path, hook: str) -> None:
    """Run a Spark job in a child process that is killed, with its JVM, at a failpoint."""
    environment = os.environ | {"MILLSTREAM_FAILPOINTS": hook and f"{hook}=kill"}
    with root.with_suffix(".log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, url, str(root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        code = driver.wait(timeout=600)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(timeout=30)
    assert code == -signal.SIGKILL, root.with_suffix(".log").read_text(errors="replace")[-3000:]


def test_the_command_archives_and_trims(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """``archive --once`` writes files by date and hour, trims the stream, and prints a table of both."""
    ids = fill(client, "s", 700)
    client.xadd("s", {b"\xff": b"\x00\r\n"}, id="1700000000000-5")
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "web-1", {"s": ">"}, count=500)
    client.xack("s", "g", *ids[:400])
    words = ["archive", real_redis.url, "s", "--to", str(tmp_path / "a"), "--once", "--batch", "300", "-o", "json"]
    words += ["--raw", "--partition", "hour"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == [
        {
            "stream": "s",
            "archived": 701,
            "upto": "1700000000000-5",
            "total": 701,
            "trimmed": 400,
            "left": 301,
            "held_by": "group 'g' has 401-0 pending, held by consumer 'web-1'",
        }
    ]
    entries = held(tmp_path / "a", "s")
    assert [ident for ident, _ in entries] == [*ids, "1700000000000-5"]
    assert entries[-1][1] == ((b"\xff", b"\x00\r\n"),)
    assert client.xrange("s", count=1)[0][0] == "401-0"
    folders = {path.rpartition("/")[0] for path in data_files(tmp_path / "a")}
    assert folders == {"stream=s/date=1970-01-01/hour=00", "stream=s/date=2023-11-14/hour=22"}
    table = spark.read.parquet(str(tmp_path / "a"))
    assert table.where("date = '2023-11-14' AND id_ms = 1700000000000").count() == 1
    assert not (tmp_path / "a" / "_run").exists()


@pytest.mark.parametrize("which", [["ga", "gb"], ["--stream-pattern", "g*"]])
def test_a_stream_that_went_back_stands_still_alone(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path, which: list[str]
) -> None:
    """If a stream went back, the command archives the other streams, exits with code 1, and prints working advice."""
    words = ["archive", real_redis.url, *which, "--to", str(tmp_path / "a"), "--once"]
    for stream in ("ga", "gb"):
        fill(client, stream, 20)
    assert CliRunner().invoke(main, words).exit_code == 0
    client.delete("ga")
    fill(client, "ga", 5)
    fill(client, "gb", 20, first=100)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1, done.output
    said = " ".join(done.stderr.split())
    assert "stream 'ga' went back" in said
    assert "Archive it into a new directory" in said
    assert "onMissingStream" not in said
    assert (client.xlen("ga"), client.xlen("gb")) == (5, 0)
    assert len(held(tmp_path / "a", "gb")) == 40


def test_a_stream_that_goes_back_while_a_job_runs_stands_still_alone(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """If a stream goes back while the job runs, the job starts a new query that archives the other streams."""
    where = ArchiveSettings(real_redis.url, ("ga", "gb"), tmp_path / "a", every=0.1)
    for stream in ("ga", "gb"):
        fill(client, stream, 20)
    said: list[str] = []

    def stop() -> bool:
        if not client.exists("ga") and said and not client.xlen("gb"):
            return len(held(tmp_path / "a", "gb")) == 40
        if client.exists("ga") and not client.xlen("ga"):
            client.delete("ga")
            fill(client, "gb", 20, first=100)
        return False

    run(where, spark, stop, lambda *_: None, said.append)
    assert [line for line in said if "stream 'ga' went back" in line]
    assert len(held(tmp_path / "a", "ga")) == 20


@pytest.mark.parametrize("which", [{"streams": ("ga", "gb")}, {"streams": (), "pattern": "g*"}])
def test_a_stream_that_a_trim_finds_replaced_is_archived_no_further(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path, which: dict[str, Any]
) -> None:
    """If a trim finds a stream replaced, its query ends. The other streams are archived and trimmed."""
    root = tmp_path / "a"
    where = ArchiveSettings(real_redis.url, to=root, every=0.1, **which)
    for stream in ("ga", "gb"):
        fill(client, stream, 20)
    said: list[str] = []

    def replace() -> None:
        with client.pipeline() as anew:
            anew.delete("ga")
            for number in range(1, 61):
                anew.xadd("ga", {"other": number}, id=f"{number}-0")
            anew.execute()

    def look() -> None:
        fill(client, "gb", 1, first=50)  # which its query reads after a look at the trimmed streams

    def add() -> None:
        for stream in ("ga", "gb"):
            fill(client, stream, 20, first=100)

    steps = iter(
        [
            (lambda: (root / MANIFEST).exists() and not client.xlen("ga") + client.xlen("gb"), look),
            (lambda: len(held(root, "gb")) == 21, replace),
            (lambda: said, add),
            (lambda: len(held(root, "gb")) == 41 and not client.xlen("gb"), lambda: None),
        ]
    )
    step = next(steps, None)

    def stop() -> bool:
        nonlocal step
        assert step is not None
        if step[0]():
            step[1]()
            step = next(steps, None)
        return step is None

    report = run(where, spark, stop, lambda *_: None, said.append)
    (line,) = (line for line in said if "new column" not in line)  # of entries that came before the trim found it
    assert re.search("stream 'ga' is not the one that was archived: its entry 1-0 .* neither archived", line)
    assert client.xlen("ga") == 80
    assert max(int(ident.partition("-")[0]) for ident, _ in held(root, "ga")) <= 60
    assert [(one.stream, one.archived, one.trimmed) for one in report[1:]] == [("gb", 41, 41)]


def test_progress_moves_over_many_partitions(
    real_redis: ServerProcess,
    client: redis.Redis,
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch over many partitions is split, and the job reports progress after each part."""
    monkeypatch.setattr("millstream.spark.archiving.job.PARTS", 3)
    for at in range(12):
        client.xadd("s", {"n": at}, id=f"{3_600_000 * at + 1}-0")
    told: list[tuple[int, int]] = []
    where = ArchiveSettings(real_redis.url, ("s",), tmp_path / "a", once=True, wanted=Wanted(partition="hour"))
    run(where, spark, lambda: False, lambda _what, done, whole: told.append((done, whole)))
    assert Folder(tmp_path / "a").read().generation == 5
    assert {whole for _, whole in told} == {12}
    assert told[-1] == (12, 12)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--once"], "Give exactly one of STREAMS, --stream-pattern and --partitioned"),
        (["s", "--pattern", "s*"], "Give exactly one of STREAMS, --stream-pattern and --partitioned"),
        (["s", "--stream-pattern", "s*"], "Give exactly one of STREAMS, --stream-pattern and --partitioned"),
        (["s,t"], "separate the streams with spaces"),
        (["s", "--keep", "5"], "--keep '5': it must be a length of time such as"),
        (["s", "--keep", "soon"], "--keep 'soon': it must be a length of time such as"),
        (["s", "--keep", "99999999999999d"], "--keep '99999999999999d': it must not be longer than a hundred"),
        (["s", "--batch", "0"], "must be greater than 0"),
        (["s", "--every", "nan"], "--every 'nan': it must be a length of time such as"),
    ],
)
def test_a_command_line_that_cannot_be_meant(
    real_redis: ServerProcess, spark: "SparkSession", tmp_path: Path, words: list[str], told: str
) -> None:
    """An invalid command line ends with one line that names the correction, and exit code 2."""
    done = CliRunner().invoke(main, ["archive", real_redis.url, "--to", str(tmp_path / "a"), *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("millstream archive: ")
    assert told in done.stderr


def test_a_stream_that_does_not_exist(
    real_redis: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing stream ends the command with exit code 4 before Spark starts."""
    monkeypatch.setattr("millstream.spark.sessions.local.session", lambda *_, **__: pytest.fail("Spark was started"))
    done = CliRunner().invoke(main, ["archive", real_redis.url, "nope", "--once", "--to", str(tmp_path / "a")])
    assert (done.exit_code, done.stdout) == (4, "")
    assert "stream 'nope' does not exist on the server" in done.stderr


@pytest.mark.parametrize("to", ["s3://a:b@bucket/x", "s3:/bucket/x", "hdfs://n:9000/x", "file://elsewhere/x", " "])
def test_an_archive_elsewhere_is_refused(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """``archive --to`` refuses a place that is not supported, such as ``s3:`` without a bucket."""
    monkeypatch.chdir(tmp_path)
    fill(client, "s", 5)
    done = CliRunner().invoke(main, ["archive", real_redis.url, "s", "--once", "--to", to])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Invalid value for '--to'" in done.stderr
    with pytest.raises(
        ConfigError, match=r"Give s3://bucket|Write s3://bucket|on a file system of this machine|it is empty"
    ):
        millstream.spark.archive(real_redis.url, "s", to=to)
    if to.startswith(("s3", "hdfs")):  # pathlib leaves one slash of them
        with pytest.raises(ConfigError, match="s3://bucket/prefix"):
            millstream.spark.archive(real_redis.url, "s", to=Path(to))
    assert (list(tmp_path.iterdir()), client.xlen("s")) == ([], 5)


def test_a_file_url_is_its_path(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A ``file:`` URL names a local path, with blanks escaped as in any URL."""
    fill(client, "s", 5)
    (tmp_path / "a b").mkdir()
    archive_once(ArchiveSettings(real_redis.url, ("s",), tmp_path / "a b" / "c"))
    where = (tmp_path / "a b" / "c").as_uri()
    done = CliRunner().invoke(main, ["archive", real_redis.url, "s", "--dry-run", "-o", "json", "--to", where])
    assert json.loads(done.stdout)[0]["archive"] == 0
    done = CliRunner().invoke(main, ["replay", where, "s", "--to", real_redis.url, "--as", "t"])
    assert (done.exit_code, client.xlen("t")) == (0, 5)


def test_a_running_job_trims_as_groups_move_on_and_ends_when_asked(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """A running job trims entries once groups acknowledge them, even without new ones.

    On a stop all entries are on disk.
    """
    ids = fill(client, "s", 50)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"})
    told = {"acked": False}

    def stop() -> bool:
        if (tmp_path / "a" / MANIFEST).exists() and Folder(tmp_path / "a").read().files and not told["acked"]:
            client.xack("s", "g", *ids[:30])
            told["acked"] = True
        return told["acked"] and client.xlen("s") == 20

    report = millstream.spark.archive(
        real_redis.url, "s", to=tmp_path / "a", spark=spark, stop=stop, once=False, every=0.3
    )
    assert [(one.archived, one.trimmed, one.left) for one in report] == [(50, 30, 20)]
    assert len(held(tmp_path / "a", "s")) == 50


@pytest.mark.parametrize("to", ["the process group", "every process"])
def test_sigterm_ends_the_command_with_all_on_disk(
    real_redis: ServerProcess, spark: "SparkSession", tmp_path: Path, to: str
) -> None:
    """SIGTERM ends the archive command with code 0 and its table while other clients write and read.

    The archive and the stream together hold each entry once.
    """
    root, log = tmp_path / "a", tmp_path / "log"
    words = [str(Path(sys.executable).with_name("millstream")), "archive", real_redis.url, "s", "--to", str(root)]
    words += ["--every", "0.1", "--batch", "500", "-o", "json"]
    with Traffic(real_redis) as traffic, log.open("wb") as err:
        job = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, start_new_session=True
        )

        def trimmed() -> bool:
            if job.poll() is not None:
                raise RuntimeError(f"the job ended with {job.returncode}: {log.read_text()}")
            return bool(traffic.added) and not client.xrange("s", traffic.added[0], traffic.added[0])

        with real_redis.client() as client:
            try:
                eventually(trimmed, 240, what="the job has archived some entries and removed them from the stream")
                if to == "every process":
                    for child in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
                        os.kill(int(child), signal.SIGTERM)
                os.killpg(job.pid, signal.SIGTERM)
                out, _ = job.communicate(timeout=120)
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
    assert traffic.failed == []
    assert job.returncode == 0, log.read_text()
    assert to == "every process" or "Traceback" not in log.read_text()
    added = [ident.decode() for ident in traffic.added]
    archived = [ident for ident, _ in held(root, "s")]
    assert archived == added[: len(archived)]
    (told,) = json.loads(out)
    assert (told["total"], told["upto"]) == (len(archived), archived[-1])
    with real_redis.client() as client:
        live = [ident.decode() for ident, _ in client.xrange("s")]
        assert live == added[told["trimmed"] :]
        assert told["trimmed"] <= len(archived)
        assert not (root / "_run").exists()
        millstream.spark.archive(real_redis.url, "s", to=root, spark=spark)
        assert client.xlen("s") == 0
    assert [ident for ident, _ in held(root, "s")] == added


def test_a_driver_killed_between_files_and_manifest(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """An archive job killed between its files and its manifest loses no entry and archives none twice."""
    root = tmp_path / "a"
    ids = fill(client, "s", 1000)
    killed(real_redis.url, root, "written:2")
    assert len(data_files(root)) == 2
    assert len(Folder(root).read().files) == 1
    assert [ident for ident, _ in held(root, "s")] == ids[:300]
    ids += fill(client, "s", 10, first=5000)
    millstream.spark.archive(real_redis.url, "s", to=root, spark=spark)
    assert [ident for ident, _ in held(root, "s")] == ids
    assert client.xlen("s") == 0
    assert data_files(root) == {file.path for file in Folder(root).read().files}


def one_kill(seed: int) -> int:
    """Kill a driver at a random point under traffic, then archive the remaining entries."""
    import tempfile

    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder) / "redis") as server:
        root = Path(folder) / "a"
        point = chance.choice(POINTS)
        nth = 1 if point in ("merged", "sweeping") else chance.randint(1, 3)
        with Traffic(server) as traffic:
            goal = chance.randint(2500, 4000)
            eventually(lambda: len(traffic.added) > goal, 120, what="there is a backlog")
            killed(server.url, root, f"{point}:{nth}")
        assert traffic.failed == []
        added = [ident.decode() for ident in traffic.added]
        with server.client() as client:
            live = {ident.decode() for ident, _ in client.xrange("s")}
            archived = {ident for ident, _ in held(root, "s")} if (root / MANIFEST).exists() else set()
            assert archived | live == set(added)
            millstream.spark.archive(server.url, "s", to=root, per_batch=5000)
            assert [ident for ident, _ in held(root, "s")] == added
            assert client.xlen("s") == 0
        assert traffic.read == {"fast": traffic.added, "slow": traffic.added}
    return len(added)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_drivers_killed_fifty_times(spark: "SparkSession") -> None:
    """After fifty archive jobs are killed with their JVM at random points, each entry is archived once."""
    campaign.run("archive-kills", one_kill, range(50), unit="entries")

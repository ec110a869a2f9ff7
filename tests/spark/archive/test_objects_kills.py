"""An archive in an object store whose job is killed, or that is replayed. For Spark: ``test_objects_page.py``."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.failpoints import ARCHIVE, TABLES
from millstream.spark.archiving.directory import MANIFEST, Folder
from millstream.spark.archiving.objects.storage import ObjectStorage
from millstream.spark.archiving.store import ArchiveSettings
from millstream.spark.archiving.tables.shape import FORMATS, Wanted
from support import campaign
from support.archives import Traffic, archive_once, held
from support.lake import connected, over_s3
from support.objects import Asked, Door, Fault
from support.servers import ServerProcess, redis_server
from support.streams import fill
from support.waiting import eventually

pytestmark = [pytest.mark.realserver, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]


@pytest.fixture
def client(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    with real_redis.client() as made:
        made.flushall()
        yield made


def catalog(folder: Path) -> str:
    return f"sqlite:///{folder}/catalog.db"


def wanted(form: str, folder: Path) -> Wanted:
    return Wanted(form, catalog=catalog(folder) if form == "iceberg" else None)


def shown(door: Door, place: str, stream: str) -> list[str]:
    """Return the ids that the table shows, including duplicates."""
    sql = f"SELECT id FROM {over_s3(place, stream)} ORDER BY id_ms, id_seq"
    return [row[0] for row in connected(door).sql(sql).fetchall()]


def test_it_is_replayed_and_looked_at(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line replays and inspects an archive in a bucket. A store error sets the exit code of its kind."""
    ids = fill(client, "s", 30)
    archive_once(ArchiveSettings(real_redis.url, ("s",), place))
    done = CliRunner().invoke(main, ["replay", place, "s", "--to", real_redis.url, "--as", "t", "--ids", "keep"])
    assert (done.exit_code, [ident.decode() for ident, _ in client.xrange("t")]) == (0, ids)
    done = CliRunner().invoke(main, ["archive", real_redis.url, "t", "--dry-run", "--to", place, "-o", "json"])
    assert (done.exit_code, '"archive": 30' in done.stdout) == (0, True)
    assert Folder(place).storage.modified_ms(MANIFEST) > 1_700_000_000_000
    words = ["replay", place, "s", "--to", real_redis.url, "--as", "u"]
    for rule, code, said in [
        ((403, "InvalidAccessKeyId"), 5, "refused the credentials"),
        ((404, "NoSuchBucket"), 4, "there is no bucket 'lake'"),
    ]:
        door.rule = lambda _asked, rule=rule: rule  # type: ignore[misc] # a default is how a loop's value is kept
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "does not answer" in done.stderr) == (3, True), done.stderr
    assert not client.exists("u")


# --- kills -----------------------------------------------------------------------------------------------------------


def begin(server: ServerProcess, place: str, form: str, hook: str) -> "subprocess.Popen[bytes]":
    """Start an archive job in a child process that kills itself at a failpoint."""
    words = [sys.executable, "-m", "support.archives", server.url, place, form, "s"]
    environment = os.environ | {
        "MILLSTREAM_FAILPOINTS": hook and f"{hook}=kill",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(process: "subprocess.Popen[bytes]") -> int:
    _, text = process.communicate(timeout=600)
    assert process.returncode in (0, -signal.SIGKILL), text.decode()[-3000:]
    return process.returncode


def killed_at_a_request(door: Door, process: "subprocess.Popen[bytes]", nth: int, how: Fault | None) -> None:
    """Kill a job during its nth writing request, before or after the store has performed it."""
    left = nth

    def rule(asked: Asked) -> Fault | None:
        nonlocal left
        left -= asked.method != "GET"
        if left == 0:
            process.kill()
            return how
        return None

    door.rule = rule


@pytest.mark.parametrize(
    ("form", "point"),
    [
        ("parquet", "written:2"),
        pytest.param("parquet", "switching:3", marks=pytest.mark.long),
        pytest.param("delta", "switched:3", marks=pytest.mark.long),
        ("delta", "committing:2"),
    ],
)
def test_a_job_killed_on_its_way_to_a_bucket(
    real_redis: ServerProcess, client: redis.Redis, place: str, door: Door, form: str, point: str
) -> None:
    """After a killed job, the next archive job to the bucket starts at once and archives each entry once."""
    ids = fill(client, "s", 130)
    assert ended(begin(real_redis, place, form, point)) == -signal.SIGKILL
    live = [ident.decode() for ident, _ in client.xrange("s")]
    seen = shown(door, place, "s")
    assert len(seen) == len(set(seen))
    assert {*live, *seen} == set(ids)
    archive_once(ArchiveSettings(real_redis.url, ("s",), place))
    assert shown(door, place, "s") == ids
    assert ([ident for ident, _ in held(place, "s")], client.xlen("s")) == (ids, 0)


def test_a_killed_uploader(real_redis: ServerProcess, client: redis.Redis, place: str, door: Door) -> None:
    """If an archive job is killed after an upload to S3, no manifest names the file, and the next job removes it."""
    ids = fill(client, "s", 40)
    process = begin(real_redis, place, "parquet", "")
    puts: list[str] = []

    def rule(asked: Asked) -> Fault | None:
        if asked.method == "PUT" and asked.key.endswith(".parquet"):
            puts.append(asked.key)
            process.kill()
            return "lost"
        return None

    door.rule = rule
    assert ended(process) == -signal.SIGKILL
    door.as_new()
    storage = ObjectStorage(place)
    (stray,) = [path for path in storage.list() if path.endswith(".parquet")]
    assert puts[0].endswith(stray)
    assert Folder(place).read().files == ()
    archive_once(ArchiveSettings(real_redis.url, ("s",), place))
    assert not storage.exists(stray)
    assert ([ident for ident, _ in held(place, "s")], client.xlen("s")) == (ids, 0)


def one_kill(door: Door, seed: int) -> int:
    """Kill a job at a random point or request, with a store that fails now and then."""
    import tempfile

    door.as_new()
    chance = random.Random(seed)
    form = FORMATS[seed % 3]
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder) / "redis") as server:
        place = f"s3://lake/campaign-{seed}-{chance.randrange(1 << 40):x}"
        there = f"iceberg={catalog(Path(folder))}" if form == "iceberg" else form
        with Traffic(server) as traffic:
            goal = chance.randint(800, 1400)
            eventually(lambda: len(traffic.added) > goal, 120, what="there is a backlog")
            if seed % 2:
                process = begin(server, place, there, "")
                nth = chance.randint(1, 60)
                killed_at_a_request(door, process, nth, chance.choice(["cut", "lost"]))
            else:
                points = [*ARCHIVE[:6], *(TABLES if form != "parquet" else ())]
                process = begin(server, place, there, f"{chance.choice(points)}:{chance.randint(1, 3)}")
                door.rule = lambda _asked: "lost" if chance.random() < 0.02 else None
            ended(process)
        door.as_new()
        assert traffic.failed == []
        added = [ident.decode() for ident in traffic.added]
        with server.client() as client:
            live = {ident.decode() for ident, _ in client.xrange("s")}
            begun = ObjectStorage(place).exists(MANIFEST)
            seen = [ident for ident, _ in held(place, "s")] if begun else []
            assert len(seen) == len(set(seen))
            assert live | set(seen) == set(added)
            form_wanted = Wanted() if begun else wanted(form, Path(folder))
            archive_once(ArchiveSettings(server.url, ("s",), place, per_batch=5000, wanted=form_wanted))
            assert shown(door, place, "s") == added
            assert ([ident for ident, _ in held(place, "s")], client.xlen("s")) == (added, 0)
        assert traffic.read == {"fast": traffic.added, "slow": traffic.added}
    return len(added)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_jobs_killed_fifty_times_in_a_bucket(door: Door) -> None:
    """After fifty archive jobs to S3 are killed at random points or requests, each entry is archived once."""
    campaign.run("archive-object-kills", partial(one_kill, door), range(50), unit="entries")

"""An archive of a partitioned stream as one table of Delta or Iceberg: each entry once, whatever is killed."""

import random
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pytest
import redis

from millstream.client.partitions.layout import HIGHEST_ID
from millstream.errors import ConfigError, StorageError
from millstream.failpoints import ARCHIVE, TABLES
from millstream.spark.archiving.directory import MANIFEST, Folder
from millstream.spark.archiving.files import WritePlan, write_files
from millstream.spark.archiving.manifest import DataFile, ManifestError, dump, load
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.archiving.tables.shape import Wanted
from millstream.spark.model.offsets import ZERO, Id, Position
from millstream.spark.source import MillstreamSource
from support import campaign
from support.archives import archive_once, child, held, rows_of
from support.lake import connected, scan
from support.partitioned import partition, second_generation
from support.servers import ServerProcess, redis_server

pytestmark = [pytest.mark.realserver, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]

TABLES_OF = ("delta", "iceberg")
PARTS = 4
FIRST = 1_700_000_000_000


@pytest.fixture
def client(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    with real_redis.client() as made:
        made.flushall()
        yield made


def settings(url: str, root: Path, wanted: Wanted, **more: Any) -> ArchiveSettings:
    given = {"streams": (), "partitioned": "orders", "per_batch": 60, "wanted": wanted} | more
    return ArchiveSettings(url, to=root, **given)


def fill(client: redis.Redis, count: int, *, first: int = 0, key: str = "orders") -> list[tuple[str, str]]:
    """Add entries to the partitions in turns, and return their keys and ids; partitions know other fields."""
    made = []
    for number in range(first, first + count):
        stream = f"{key}{{{number % PARTS}}}"
        words: dict[str, Any] = {"n": number, f"only{number % PARTS}": "x"}
        made.append((stream, f"{FIRST + number * 3_600_000}-0"))
        client.xadd(stream, words, id=made[-1][1])
    return sorted(made)


def shown(root: Path) -> list[tuple[str, str]]:
    """Return key and id of each row that DuckDB finds in the table, with duplicates."""
    return sorted(connected().sql(f"SELECT stream, id FROM {scan(root, 'orders')}").fetchall())


def left(client: redis.Redis) -> int:
    """Return the number of entries in the first partitions."""
    return sum(int(client.xlen(f"orders{{{at}}}")) for at in range(PARTS))


@pytest.mark.parametrize("wanted", [Wanted("delta", "day"), Wanted("iceberg"), Wanted("iceberg", "day", raw=True)])
def test_the_partitions_are_one_table_with_a_column_of_their_keys(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, wanted: Wanted
) -> None:
    """All partitions of all generations are rows of one table, whose columns are those of any partition."""
    partition(real_redis.url, "orders", PARTS)
    there = fill(client, 200)
    entries = {stream: client.xrange(stream) for stream, _ in there}
    archive_once(settings(real_redis.url, tmp_path / "a", wanted))
    assert (shown(tmp_path / "a"), left(client)) == (there, 0)
    for stream, rows in entries.items():
        assert held(tmp_path / "a", stream) == [(ident.decode(), tuple(fields.items())) for ident, fields in rows]
    for at in range(PARTS):
        client.execute_command("XSETID", f"orders{{{at}}}", HIGHEST_ID)
    second_generation(client, "orders", PARTS)
    there = sorted(there + fill(client, 100, first=200, key="orders~2"))
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted()), label="y")
    assert shown(tmp_path / "a") == there
    assert {path.name for path in (tmp_path / "a").iterdir() if path.is_dir() and path.name[0] != "_"} == {"orders"}
    if not wanted.raw:
        sql = f"SELECT stream, count(only1), sum(n) FROM {scan(tmp_path / 'a', 'orders')} GROUP BY stream ORDER BY 1"
        rows = {row[0]: row[1:] for row in connected().sql(sql).fetchall()}
        assert rows["orders{1}"] == (50, sum(range(1, 200, 4)))
        assert rows["orders~2{0}"] == (0, sum(range(200, 300, 4)))


@pytest.mark.parametrize("form", TABLES_OF)
def test_archive_and_partitions_are_one_table(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """A read over the archive and the live partitions returns each entry once, under the key of its partition."""
    partition(real_redis.url, "orders", PARTS)
    there = fill(client, 80)
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted(form)))
    there = sorted(there + fill(client, 20, first=80))
    source = MillstreamSource(
        {"url": real_redis.url, "partitionedStream": "orders", "archive": str(tmp_path / "a"), "fields": "n"}
    )
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted((row["stream"], row["id"]) for row in rows) == there


@pytest.mark.parametrize("form", TABLES_OF)
def test_merged_files_hold_the_entries_of_one_partition(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """Files of a partition are merged, those of two partitions are not, and the table shows each entry once."""
    partition(real_redis.url, "orders", PARTS)
    there = fill(client, 800)
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted(form), per_batch=40, retain_ms=-1))
    manifest = Folder(tmp_path / "a").read()
    assert shown(tmp_path / "a") == there
    assert len(manifest.files) < 80
    sql = f"SELECT DISTINCT stream FROM read_parquet('{tmp_path}/a/{{}}')"
    for file in manifest.files:
        assert connected().sql(sql.format(file.path)).fetchall() == [(file.stream,)]


@pytest.mark.parametrize("form", TABLES_OF)
def test_a_manifest_older_than_the_table_follows_it(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """With a manifest from a backup, the job takes over what the table has of each partition."""
    root = tmp_path / "a"
    partition(real_redis.url, "orders", PARTS)
    there = fill(client, 80)
    archive_once(settings(real_redis.url, root, Wanted(form, "day")))
    old = (root / MANIFEST).read_bytes()
    there += fill(client, 79, first=80)
    client.xadd("orders{3}", {"n": 1, "new": "column"}, id=f"{FIRST + 159 * 3_600_000}-0")
    there.append(("orders{3}", f"{FIRST + 159 * 3_600_000}-0"))
    archive_once(settings(real_redis.url, root, Wanted()))
    there += fill(client, 10, first=160)
    (root / MANIFEST).write_bytes(old)
    store = archive_once(settings(real_redis.url, root, Wanted()), label="y")
    news = [text for text in store.fresh_news() if "the manifest was older than the table" in text]
    assert len(news) == PARTS
    assert (shown(root), left(client)) == (sorted(there), 0)
    assert list(archive_once(settings(real_redis.url, root, Wanted()), label="z").fresh_news()) == []


def test_files_of_a_partition_that_are_gone_from_the_table(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If another program deleted files of one partition from the table, the job fails instead of restoring them."""
    partition(real_redis.url, "orders", PARTS)
    fill(client, 200)
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted("delta", "day")))
    deltalake.DeltaTable(str(tmp_path / "a/orders")).delete("date = '2023-11-16' AND stream = 'orders{2}'")
    fill(client, 20, first=200)
    with pytest.raises(StorageError, match=r"delta table of stream 'orders' was changed by another program"):
        archive_once(settings(real_redis.url, tmp_path / "a", Wanted()))
    assert left(client) == 20


@pytest.mark.parametrize("form", TABLES_OF)
def test_other_streams_and_other_archives_keep_their_tables(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """Other streams are refused in the one table, and an archive with a table for each partition keeps these."""
    partition(real_redis.url, "orders", PARTS)
    fill(client, 40)
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted(form)))
    before = (tmp_path / "a" / MANIFEST).read_bytes()
    for other in ({"streams": ("orders{0}",), "partitioned": None}, {"partitioned": "clicks"}):
        with pytest.raises(ConfigError, match="Give --partitioned orders, or archive into a new directory"):
            archive_once(settings(real_redis.url, tmp_path / "a", Wanted(), **other))
    assert (tmp_path / "a" / MANIFEST).read_bytes() == before
    fill(client, 40, first=40)
    one = {"streams": ("orders{0}",), "partitioned": None}
    archive_once(settings(real_redis.url, tmp_path / "b", Wanted(form), **one))
    archive_once(settings(real_redis.url, tmp_path / "b", Wanted()))
    assert Folder(tmp_path / "b").read().shape.table is None
    found = connected().sql(f"SELECT count(*) FROM {scan(tmp_path / 'b', 'orders{1}')}").fetchone()
    assert (found, left(client)) == ((10,), 0)


def test_tasks_of_two_partitions_agree_on_the_columns(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If the tasks of two partitions infer other types of a field, the batch is written again with one column."""
    client.xadd("other", {"a": 1})
    partition(real_redis.url, "orders", PARTS)
    store = ArchiveStore(settings(real_redis.url, tmp_path / "a", Wanted("delta"), trim=False))

    def write(plan: WritePlan, label: str) -> list[DataFile]:
        tasks = {"orders{0}": [("1-0", [(b"p", b"1")])], "orders{1}": [("1-0", [(b"p", b"1.5")])]}
        return [file for key, rows in tasks.items() for file in write_files(plan, label, rows_of(key, rows))]

    with store.open():
        store.take("x", {f"orders{{{at}}}": Position(ZERO, 0, Id(1, 0), 1) for at in (0, 1)}, write)
    columns = Folder(tmp_path / "a").read().columns
    assert {name: [str(one.type) for one in found] for name, found in columns.items()} == {"orders": ["double"]}
    assert connected().sql(f"SELECT sum(p) FROM {scan(tmp_path / 'a', 'orders')}").fetchone() == (2.5,)
    made = Folder(tmp_path / "a").read()
    assert '"format": 3' in dump(made)  # which earlier versions refuse
    with pytest.raises(ManifestError, match="manifest is damaged"):
        load(dump(made).replace('"table": "orders"', '"table": 7'))


# --- killed ----------------------------------------------------------------------------------------------------------


def one_kill(form: str, seed: int) -> int:
    """Kill a job at a random point, add entries, and run another one to its end."""
    chance = random.Random(f"{form}-{seed}")
    points = [*ARCHIVE, *TABLES]
    point = points[seed % len(points)]
    many = point in ("merged", "sweeping", "expired")
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder) / "redis") as server:
        root = Path(folder) / "a"
        partition(server.url, "orders", PARTS)
        with server.client() as client:
            there = fill(client, chance.randint(1500, 2500))
            words = ("--partitioned", "orders")
            hook = f"{point}:{chance.randint(1, 2 if many else 6)}"
            kept = f"{form}:-1" if many or chance.random() < 0.5 else form
            assert child(server, root, kept, *words, hook=hook) == -signal.SIGKILL, f"{hook} was not reached"
            keys = [f"orders{{{at}}}" for at in range(PARTS)]
            live = {(key, ident.decode()) for key in keys for ident, _ in client.xrange(key)}
            log = {"delta": "_delta_log", "iceberg": "metadata/version-hint.text"}[form]
            seen = shown(root) if (root / "orders" / log).exists() else []
            assert len(seen) == len(set(seen))
            assert live | set(seen) == set(there)
            there += fill(client, 100, first=len(there))
            wanted = Wanted() if (root / MANIFEST).exists() else Wanted(form)
            archive_once(settings(server.url, root, wanted, per_batch=5000), label="y")
            assert (shown(root), left(client)) == (sorted(there), 0)
    return len(there)


@pytest.mark.parametrize(("form", "seed"), [("delta", 3), ("iceberg", 9)])
def test_a_killed_job_leaves_each_entry_once(form: str, seed: int) -> None:
    """If a job is killed, each entry is in the table or in its partition, and the next job shows each entry once."""
    one_kill(form, seed)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("form", TABLES_OF)
def test_jobs_killed_thirty_times(form: str) -> None:
    """After thirty jobs of each format are killed at random points, the table shows each entry once."""
    campaign.run(f"archive-{form}-one-table", partial(one_kill, form), range(30), version=1, unit="entries")

"""An archive as Delta and Iceberg tables: other tools read them, and they are never behind the trimmed entries.

Spark's part of a job runs in the test's process (``support.archives``), as in ``test_archive.py``.
"""

import random
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import redis
from pyiceberg.table import Transaction
from pyiceberg.utils.config import Config

from millstream.errors import ConfigError, MillstreamError, StorageError
from millstream.failpoints import ARCHIVE, TABLES
from millstream.spark.archiving.directory import MANIFEST, Folder
from millstream.spark.archiving.files import WritePlan, write_files
from millstream.spark.archiving.manifest import ArchiveManifest, DataFile, dump, load
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.archiving.tables.columns import ColumnType, extended
from millstream.spark.archiving.tables.folders import table_folder
from millstream.spark.archiving.tables.iceberg import open_catalog
from millstream.spark.archiving.tables.shape import FORMATS, Shape, Wanted
from millstream.spark.archiving.tables.storage import ChangedMeanwhileError, LocalStorage
from millstream.spark.model.offsets import ZERO, Id, Position, parse_id
from millstream.spark.source import MillstreamSource
from support import campaign
from support.archives import Traffic, archive_once, child, data_files, held, rows_of
from support.catalogs import Fault, catalog_server
from support.lake import connected, scan, shown
from support.servers import ServerProcess, redis_server
from support.waiting import eventually

pytestmark = [pytest.mark.realserver, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]

DAY = 86_400_000
FIRST = 1_700_000_000_000


@pytest.fixture
def client(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    with real_redis.client() as made:
        made.flushall()
        yield made


def orders(client: redis.Redis, count: int, *, first: int = 0, step: int = 3_600_000) -> list[str]:
    """Add orders an hour apart, some with prices that a column does not reproduce exactly."""
    for number in range(first, first + count):
        words: dict[str, Any] = {"item": f"tea{number % 7}", "qty": number, "price": f"{number / 4:.2f}"}
        client.xadd("orders:eu", words, id=f"{FIRST + number * step}-0")
    return [f"{FIRST + number * step}-0" for number in range(first, first + count)]


def settings(url: str, root: Path, wanted: Wanted, **more: Any) -> ArchiveSettings:
    given = {"streams": ("orders:eu",), "per_batch": 40, "wanted": wanted} | more
    return ArchiveSettings(url, to=root, **given)


def place(root: Path) -> Path:
    """Return the folder of the stream's table."""
    return root / table_folder(Folder(root).read().shape, "orders:eu")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("partition", ["none", "day"])
def test_the_tools_read_a_table_as_it_is(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str, partition: str
) -> None:
    """DuckDB, Polars, pandas and pyarrow read the same totals from an archive's table, and no entry is changed."""
    ids = orders(client, 100)
    there = client.xrange("orders:eu")
    root = tmp_path / "lake"
    store = archive_once(settings(real_redis.url, root, Wanted(form, partition)))
    assert client.xlen("orders:eu") == 0
    assert held(root, "orders:eu") == [(ident.decode(), tuple(fields.items())) for ident, fields in there]
    assert [one.archived for one in store.report()] == [100]
    expected = (100, sum(range(100)), sum(range(100)) / 4)
    database = connected()
    assert database.sql(f"SELECT count(*), sum(qty), sum(price) FROM {scan(root, 'orders:eu')}").fetchone() == expected
    late = database.sql(
        f"SELECT count(*), min(id) FROM {scan(root, 'orders:eu')} WHERE timestamp >= TIMESTAMPTZ '2023-11-16 00:00:00Z'"
    )
    first = next(ident for ident in ids if ident >= "1700092800000")
    assert late.fetchone() == (100 - ids.index(first), first)
    table = place(root)
    if form == "delta":
        frames: list[Any] = [
            pl.scan_delta(str(table)).collect(),
            deltalake.DeltaTable(str(table)).to_pandas(),
            deltalake.DeltaTable(str(table)).to_pyarrow_table(),
        ]
    elif form == "iceberg":
        catalog = open_catalog(None, LocalStorage(root))
        loaded = catalog.load_table(("millstream", table.name))
        frames = [pl.scan_iceberg(loaded).collect(), loaded.scan().to_pandas(), loaded.scan().to_arrow()]
        catalog.close()
    else:
        frames = [
            pl.read_parquet(f"{table}/**/*.parquet"),
            pd.read_parquet(table),
            ds.dataset(table, partitioning="hive").to_table(),
        ]
    for frame in frames:
        found = frame.to_pandas() if not isinstance(frame, pd.DataFrame) else frame
        assert (len(found), found["qty"].sum(), found["price"].sum()) == expected
        assert found["qty"].dtype == "int64"
        assert sorted(found["id"]) == ids


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_columns_that_come_later_and_files_that_are_merged(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """A new field adds a column, and a changed type adds a second one. Rows of merged files appear once."""
    root = tmp_path / "lake"
    orders(client, 300)
    archive_once(settings(real_redis.url, root, Wanted(form), per_batch=20))
    client.xadd("orders:eu", {"item": "tea", "qty": "a few", "note": "x"}, id=f"{FIRST + 500 * DAY}-0")
    store = archive_once(settings(real_redis.url, root, Wanted(), per_batch=20))
    assert store.report()[0].news == [
        "stream 'orders:eu': new column qty_string (string) for field 'qty': its values no longer fit qty",
        "stream 'orders:eu': new column note (string) for field 'note'",
    ]
    sql = f"SELECT count(*), count(DISTINCT id), sum(qty), min(qty_string), count(note) FROM {scan(root, 'orders:eu')}"
    assert connected().sql(sql).fetchone() == (301, 301, sum(range(300)), "a few", 1)
    manifest = Folder(root).read()
    assert len(manifest.files) < 16
    assert len(manifest.retired) > 7
    assert data_files(root) == {file.path for file in manifest.files} | {path for path, _ in manifest.retired}
    for file in manifest.files:
        times = pq.read_table(root / file.path, columns=["id_ms"], partitioning=None)["id_ms"].to_pylist()
        assert times == sorted(times)
    archive_once(settings(real_redis.url, root, Wanted(), retain_ms=-1))
    assert data_files(root) == {file.path for file in Folder(root).read().files}
    assert connected().sql(sql).fetchone() == (301, 301, sum(range(300)), "a few", 1)


def test_delta_says_what_a_file_need_not_be_opened_for(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """Delta's log has row counts, bounds and nulls of the columns.

    A merge is not a data change, and checkpoints are written.
    """
    root = tmp_path / "lake"
    orders(client, 240)
    archive_once(settings(real_redis.url, root, Wanted("delta"), per_batch=10))
    table = deltalake.DeltaTable(str(place(root)))
    import pyarrow as pa

    told = sorted(pa.table(table.get_add_actions(flatten=True)).to_pylist(), key=lambda row: row["min.id_ms"])
    assert sum(row["num_records"] for row in told) == 240
    assert (told[0]["min.qty"], told[-1]["max.qty"], told[-1]["max.price"]) == (0, 239, 239 / 4)
    assert {row["null_count.item"] for row in told} == {0}
    assert all(one["max.id_ms"] < other["min.id_ms"] for one, other in pairwise(told))
    operations = [each["operation"] for each in table.history()]
    assert {"WRITE", "OPTIMIZE"} == set(operations)
    assert (place(root) / "_delta_log/_last_checkpoint").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_parts_by_hour_and_month_and_what_a_query_need_not_open(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """Files are partitioned by the hour or month of the id's time, and footers and Iceberg's log have tight bounds."""
    orders(client, 60, step=12 * 3_600_000)
    for partition, files in (("hour", 60), ("month", 2)):
        root = tmp_path / partition
        archive_once(settings(real_redis.url, root, Wanted(form, partition), trim=False, per_batch=1000))
        manifest = Folder(root).read()
        assert len(manifest.files) == files
        sql = f"SELECT count(*) FROM {scan(root, 'orders:eu')} WHERE timestamp < TIMESTAMPTZ '2023-12-01 00:00:00Z'"
        assert connected().sql(sql).fetchone() == (33,)
        bounds = [pq.read_metadata(root / file.path).row_group(0).column(1).statistics for file in manifest.files]
        assert [(each.min, each.max) for each in bounds] == [(file.first.ms, file.last.ms) for file in manifest.files]
        if form == "iceberg":
            catalog = open_catalog(None, LocalStorage(root))
            loaded = catalog.load_table(("millstream", place(root).name))
            for condition in ("qty = 59", f"id_ms >= {manifest.files[-1].first.ms}"):
                assert len(list(loaded.scan(row_filter=condition).plan_files())) == 1
            catalog.close()


def test_a_batch_that_is_larger_than_a_file(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files end at about the requested size, and merges do not join them beyond it."""
    monkeypatch.setattr("millstream.spark.archiving.files.GROUP_ROWS", 50)
    chance = random.Random(3)
    for number in range(400):
        client.xadd("orders:eu", {"bytes": chance.randbytes(2000)}, id=f"{FIRST + number}-0")
    pages = {"per_batch": 1000, "target_bytes": 150_000}
    for form in FORMATS:
        archive_once(settings(real_redis.url, tmp_path / form, Wanted(form), trim=False, **pages))
        sizes = [file.bytes for file in Folder(tmp_path / form).read().files]
        assert len(sizes) > 2
        assert max(sizes) < 2 * max(150_000, sum(sizes) // len(sizes))
        assert len(held(tmp_path / form, "orders:eu")) == len(shown(tmp_path / form, "orders:eu")) == 400


def test_a_catalog_of_the_user(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog is accepted by URI or by its name in pyiceberg's configuration.

    A table of another archive is not changed.
    """
    uri = f"sqlite:///{tmp_path}/shared.db"
    orders(client, 5)
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted("iceberg", catalog=uri)))
    orders(client, 5, first=5)
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted()))
    catalog = open_catalog(uri, LocalStorage(tmp_path / "a"))
    assert len(catalog.load_table(("millstream", place(tmp_path / "a").name)).scan().to_arrow()) == 10
    catalog.close()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which was read when the package was imported
    orders(client, 5, first=10)
    archive_once(settings(real_redis.url, tmp_path / "b", Wanted("iceberg", catalog="lake")))
    assert shown(tmp_path / "b", "orders:eu") == [f"{FIRST + at * 3_600_000}-0" for at in range(10, 15)]
    assert not list(tmp_path.glob("*/_catalog.db"))
    orders(client, 5, first=15)
    with pytest.raises(
        StorageError, match=r"the catalog has a table millstream\..* already, at .*give this archive an"
    ):
        archive_once(settings(real_redis.url, tmp_path / "c", Wanted("iceberg", catalog=uri)))
    assert client.xlen("orders:eu") == 5


def in_catalog(uri: str, root: Path) -> list[str]:
    """Return the ids that the catalog's table shows, including duplicates."""
    catalog = open_catalog(uri, LocalStorage(root))
    rows = catalog.load_table(("millstream", place(root).name)).scan().to_arrow()
    catalog.close()
    return sorted(rows["id"].to_pylist())


@pytest.mark.parametrize("fault", ["lost", "cut", 409, 504])
@pytest.mark.parametrize("what", ["POST .*/tables$", "POST .*/tables/.+", "GET .*/tables/.+"])
def test_a_catalog_whose_answer_is_lost_shows_each_entry_once(
    real_redis: ServerProcess,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    what: str,
) -> None:
    """If a catalog's reply is lost, the job finds its commit or repeats it, and each entry appears once."""
    monkeypatch.setattr("millstream.spark.archiving.tables.iceberg._WAITS", (0.0, 0.0))
    faulted = list[str]()

    def rule(method: str, path: str) -> Fault | None:
        if not re.fullmatch(what, f"{method} {path}") or len(faulted) == 2:
            return None
        faulted.append(path)
        return fault

    with catalog_server(tmp_path) as door:
        door.rule = rule
        ids = orders(client, 40)
        archive_once(settings(real_redis.url, tmp_path / "a", Wanted("iceberg", "day", catalog=door.uri), per_batch=20))
        assert in_catalog(door.uri, tmp_path / "a") == ids
    assert faulted
    assert client.xlen("orders:eu") == 0


@pytest.mark.parametrize("which", ["POST .*/tables/.+", ".*"])
def test_a_catalog_that_sends_no_answers_ends_the_job_until_it_does(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """If a catalog does not reply, the job ends with advice to run it again.

    The next run adds the missing entries once.
    """
    monkeypatch.setattr("millstream.spark.archiving.tables.iceberg._WAITS", (0.0,))
    with catalog_server(tmp_path) as door:
        where = settings(real_redis.url, tmp_path / "a", Wanted("iceberg", catalog=door.uri))
        ids = orders(client, 10)
        archive_once(where)
        ids += orders(client, 10, first=10)
        door.rule = lambda method, path: "cut" if re.fullmatch(which, f"{method} {path}") else None
        with pytest.raises(MillstreamError, match=r"(?s)catalog.*run this again") as caught:
            archive_once(where)
        assert "backup" not in str(caught.value)
        assert client.xlen("orders:eu") == 10
        door.rule = lambda _method, _path: None
        archive_once(where)
        assert in_catalog(door.uri, tmp_path / "a") == ids
    assert client.xlen("orders:eu") == 0


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize("saved", ["before the stream was archived", "one run ago"])
def test_a_manifest_older_than_its_table_follows_it(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str, saved: str
) -> None:
    """With a manifest from a backup, the job takes over later runs from the table, and each entry appears once."""
    root, ids = tmp_path / "a", list[str]()
    client.xadd("other", {"a": 1})
    archive_once(settings(real_redis.url, root, Wanted(form, "day"), streams=("other",)))
    if saved == "one run ago":
        ids += orders(client, 40)
        archive_once(settings(real_redis.url, root, Wanted()))
    old = (root / MANIFEST).read_bytes()
    ids += orders(client, 60, first=40)
    client.xdel("orders:eu", ids.pop(-5))
    client.xadd("orders:eu", {"item": "tea", "new": "column"}, id=f"{FIRST + 360_000_000}-0")
    ids.append(f"{FIRST + 360_000_000}-0")
    archive_once(settings(real_redis.url, root, Wanted(), per_batch=10))
    ids += orders(client, 5, first=101)
    (root / MANIFEST).write_bytes(old)
    store = archive_once(settings(real_redis.url, root, Wanted(), per_batch=10), label="y")
    assert "the manifest was older than the table" in next(store.fresh_news())
    assert [ident for ident, _ in held(root, "orders:eu")] == ids
    assert sorted(shown(root, "orders:eu")) == ids
    assert client.xlen("orders:eu") == 0
    again = archive_once(settings(real_redis.url, root, Wanted()), label="z")
    assert list(again.fresh_news()) == []
    assert sorted(shown(root, "orders:eu")) == ids


def test_a_manifest_older_than_a_table_that_lost_entries_is_refused(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """With a manifest from a backup and a table that lost entries, the job fails."""
    root = tmp_path / "a"
    orders(client, 40)
    archive_once(settings(real_redis.url, root, Wanted("delta", "day"), per_batch=10))
    old = (root / MANIFEST).read_bytes()
    orders(client, 40, first=40)
    archive_once(settings(real_redis.url, root, Wanted()))
    deltalake.DeltaTable(str(place(root))).delete("date = '2023-11-15'")
    (root / MANIFEST).write_bytes(old)
    with pytest.raises(StorageError, match="was changed by another program"):
        archive_once(settings(real_redis.url, root, Wanted()), label="y")


def test_a_raw_table_and_a_schema(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """An archive can have the raw list of fields next to columns, and the columns of a given schema."""
    orders(client, 20)
    there = [(ident.decode(), tuple(fields.items())) for ident, fields in client.xrange("orders:eu")]
    for form in ("delta", "iceberg"):
        for number, wanted in enumerate(
            [
                Wanted(form, raw=True),
                Wanted(form, raw=True, fields=("*",)),
                Wanted(form, fields=("qty",)),
                Wanted(form, "month", schema="qty double, price decimal(9,2), item string, missing date"),
            ]
        ):
            root = tmp_path / f"{form}{number}"
            archive_once(settings(real_redis.url, root, wanted, trim=False))
            assert held(root, "orders:eu") == there
            names = [row[0] for row in connected().sql(f"DESCRIBE SELECT * FROM {scan(root, 'orders:eu')}").fetchall()]
            assert ("fields" in names, "qty" in names) == (wanted.raw is True, number > 0)
            if wanted.schema:
                sums = connected().sql(f"SELECT sum(price), count(missing) FROM {scan(root, 'orders:eu')}").fetchone()
                assert [str(each) for each in sums or ()] == ["47.50", "0"]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_archive_and_stream_are_one_table_in_every_format(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """A read over archive and stream returns each entry once with its fields, in every format."""
    root = tmp_path / "lake"
    orders(client, 30)
    there = {ident.decode(): fields[b"price"].decode() for ident, fields in client.xrange("orders:eu")}
    archive_once(settings(real_redis.url, root, Wanted(form)))
    orders(client, 10, first=30)
    there |= {ident.decode(): fields[b"price"].decode() for ident, fields in client.xrange("orders:eu")}
    source = MillstreamSource({"url": real_redis.url, "stream": "orders:eu", "archive": str(root), "fields": "price"})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["id"]: row["price"] for row in rows} == there
    assert len(rows) == 40


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_that_another_program_changed_ends_the_job(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """If another program changed an archive's table, the job ends, and nothing is trimmed."""
    root = tmp_path / "lake"
    orders(client, 80)
    archive_once(settings(real_redis.url, root, Wanted(form)))
    table = place(root)
    if form == "delta":
        deltalake.DeltaTable(str(table)).delete("qty < 10")
    else:
        catalog = open_catalog(None, LocalStorage(root))
        catalog.load_table(("millstream", table.name)).delete("qty < 10")
        catalog.close()
    orders(client, 5, first=80)
    with pytest.raises(StorageError, match="was changed by another program"):
        archive_once(settings(real_redis.url, root, Wanted()))
    assert client.xlen("orders:eu") == 5


def test_files_of_a_table_that_are_gone_from_its_log(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If another program deleted a file of an archive's table, the job fails instead of restoring it."""
    root = tmp_path / "lake"
    orders(client, 80)
    archive_once(settings(real_redis.url, root, Wanted("delta", "day")))
    deltalake.DeltaTable(str(place(root))).delete("date = '2023-11-15'")
    with pytest.raises(StorageError, match="files that it had are missing"):
        archive_once(settings(real_redis.url, root, Wanted()))


def test_an_archive_of_another_form_is_refused(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A run that names another format than the archive's is refused and changes nothing."""
    orders(client, 5)
    archive_once(settings(real_redis.url, tmp_path / "a", Wanted("delta")))
    with pytest.raises(ConfigError, match="the archive is delta, not partitioned"):
        archive_once(settings(real_redis.url, tmp_path / "a", Wanted("parquet")))
    for catalog in ("nowhere", "sqlite:////nonexistent/folder/x.db"):
        orders(client, 5, first=10)
        with pytest.raises(ConfigError, match="catalog"):
            archive_once(settings(real_redis.url, tmp_path / catalog[:3], Wanted("iceberg", catalog=catalog)))
        assert client.xlen("orders:eu") == 5
        client.delete("orders:eu")


def test_tasks_that_infer_other_types_write_the_batch_again(tmp_path: Path) -> None:
    """If two tasks of a batch infer different types, the batch is rewritten with one column.

    The first files are removed.
    """
    store = ArchiveStore(settings("redis://127.0.0.1:1", tmp_path / "a", Wanted(), trim=False))
    tries: list[int] = []

    def write(plan: WritePlan, label: str) -> list[DataFile]:
        tries.append(len(plan.columns))
        tasks = [[("1-0", [(b"p", b"1")])], [("2-0", [(b"p", b"1.5")])]]
        return [file for rows in tasks for file in write_files(plan, label, rows_of("s", rows))]

    with store.open():
        store.take("x", {"s": Position(ZERO, 0, Id(2, 0), 2)}, write)
    manifest = Folder(tmp_path / "a").read()
    assert tries == [0, 1]
    assert [(one.name, str(one.type)) for one in manifest.columns["s"]] == [("p", "double")]
    assert data_files(tmp_path / "a") == {file.path for file in manifest.files}
    assert held(tmp_path / "a", "s") == [("1-0", ((b"p", b"1"),)), ("2-0", ((b"p", b"1.5"),))]


class CountingFolder(Folder):
    """An archive's folder that counts how often its manifest is written."""

    switches = 0

    def switch(self, old: ArchiveManifest, new: ArchiveManifest) -> None:
        """Count the change and write the manifest."""
        self.switches += 1
        super().switch(old, new)


def test_many_merges_are_one_change_of_the_manifest(tmp_path: Path) -> None:
    """Many merges are one manifest change and one commit per table."""
    rows = [(f"{3_600_000 * hour + half}-0", [(b"n", b"1")]) for hour in range(1, 13) for half in (0, 1)]
    store = ArchiveStore(ArchiveSettings("redis://127.0.0.1:1", ("s",), tmp_path / "a", wanted=Wanted("delta", "hour")))
    store.folder = folder = CountingFolder(tmp_path / "a")

    def write(plan: WritePlan, label: str) -> list[DataFile]:
        return [file for row in rows for file in write_files(plan, label, rows_of("s", [row]))]

    with store.open():
        store.take("x", {"s": Position(ZERO, 0, parse_id(rows[-1][0]), len(rows))}, write)
        assert (len(store.manifest.files), len(store.manifest.retired), folder.switches) == (13, 22, 2)
    assert deltalake.DeltaTable(str(tmp_path / "a/s")).version() == 1
    assert [ident for ident, _ in held(tmp_path / "a", "s")] == [ident for ident, _ in rows]


def test_a_commit_of_many_files_copies_the_metadata_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's metadata is copied once per commit, not once per file."""
    asked: list[int] = []
    whole = Transaction.table_metadata.fget
    assert whole is not None

    def counted(self: Transaction) -> Any:
        asked.append(1)
        return whole(self)

    monkeypatch.setattr(Transaction, "table_metadata", property(counted))

    def times(count: int) -> int:
        rows = [(f"{3_600_000 * hour}-0", [(b"n", b"1")]) for hour in range(1, count + 1)]
        root = tmp_path / str(count)
        store = ArchiveStore(ArchiveSettings("redis://127.0.0.1:1", ("s",), root, wanted=Wanted("iceberg", "hour")))
        asked.clear()
        with store.open():
            ranges = {"s": Position(ZERO, 0, parse_id(rows[-1][0]), count)}
            store.take("x", ranges, lambda plan, label: write_files(plan, label, rows_of("s", rows)))
        return len(asked)

    assert times(20) == times(2)


def test_a_damaged_manifest_of_a_table_is_said_to_be_so(tmp_path: Path) -> None:
    """A manifest with a damaged format, column or retired file is reported as damaged."""
    made = ArchiveManifest(1, shape=Shape("delta"), columns={"s": extended((), {"a": ColumnType("bigint")})})
    made = replace(made, retired=(("s/x.parquet", 5),))
    assert load(dump(made)) == made
    for part, wrong in [
        ('"delta"', '"csv"'), ('"none"', "[]"), ('"all"', '"some"'), ('"catalog": null', '"catalog": [1]'),
        ('"catalog": null', '"no": 1'), ('"bigint"', '"money"'), ('"bigint"', "7"), ('["a", "a"', '["a", ""'),
        ('["a", "a"', '["a", "ID"'), ('["a", "a"', '["a", "\\ud800"'), ('["a", "a"', '["a", 1'),
        ("s/x.parquet", "../x"), ("5]", '"y"]'), ('"fields": []', '"fields": [["a", "money"]]'),
    ]:  # fmt: skip
        assert part in dump(made), part
        with pytest.raises(StorageError, match="manifest is damaged"):
            load(dump(made).replace(part, wrong, 1))


def test_the_storage_puts_whole_things_under_free_names(tmp_path: Path) -> None:
    """A put overwrites neither an existing file nor one that changed since it was read, and leaves no partial file."""
    storage = LocalStorage(tmp_path)
    storage.put_if_absent("a/b.json", b"1")
    with pytest.raises(ChangedMeanwhileError):
        storage.put_if_absent("a/b.json", b"2")
    assert (storage.read("a/b.json"), list(storage.list())) == (b"1", ["a/b.json"])
    storage.replace_if_unchanged("a/b.json", b"1", b"3")
    for old in (b"1", None):
        with pytest.raises(ChangedMeanwhileError):
            storage.replace_if_unchanged("a/b.json", old, b"4")
    assert storage.read("a/b.json") == b"3"
    (tmp_path / "out").symlink_to("/tmp")
    with pytest.raises(StorageError, match="leads out of the archive"):
        storage.put_if_absent("out/x", b"")
    storage.delete("a/b.json")
    storage.delete("a/b.json")
    assert list(storage.list()) == []


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without hard links, a put still does not overwrite an existing file."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    storage = LocalStorage(tmp_path)
    storage.put_if_absent("a/b.json", b"1")
    with pytest.raises(ChangedMeanwhileError):
        storage.put_if_absent("a/b.json", b"2")
    assert (storage.read("a/b.json"), list(storage.list())) == (b"1", ["a/b.json"])
    storage.delete("a/b.json")
    assert list(storage.list()) == []


# --- killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "point"),
    [
        ("delta", "committing:3"),
        pytest.param("delta", "committed:3", marks=pytest.mark.long),
        ("iceberg", "committed:3"),
        pytest.param("iceberg", "expired:1", marks=pytest.mark.long),
    ],
)
def test_a_job_killed_around_the_commit_of_a_table(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str, point: str
) -> None:
    """If an archive job is killed around a table's commit, the stream still has the entries that the table lacks.

    The next job shows each entry once.
    """
    root = tmp_path / "lake"
    ids = orders(client, 150 if point != "expired:1" else 500)  # enough for files that are merged
    assert child(real_redis, root, f"{form}:-1", "orders:eu", hook=point) == -signal.SIGKILL
    live = [ident.decode() for ident, _ in client.xrange("orders:eu")]
    there = shown(root, "orders:eu")
    assert sorted({*live, *there}) == ids
    archive_once(settings(real_redis.url, root, Wanted()))
    assert shown(root, "orders:eu") == ids
    assert (client.xlen("orders:eu"), [ident for ident, _ in held(root, "orders:eu")]) == (0, ids)


def one_kill(form: str, seed: int) -> int:
    """Kill a job at a random point under traffic, then run it to its end."""
    import tempfile

    chance = random.Random(f"{form}-{seed}")
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder) / "redis") as server:
        root = Path(folder) / "a"
        points = [*ARCHIVE, *TABLES] if form != "parquet" else ARCHIVE
        point = points[seed % len(points)]
        once = point in ("merged", "sweeping", "expired")
        with Traffic(server) as traffic:
            goal = chance.randint(1500, 2500)
            eventually(lambda: len(traffic.added) > goal, 120, what="there is a backlog")
            # Merged files are removed in this job, not a day later, where that is what is killed
            kept = f"{form}:-1" if once or chance.random() < 0.5 else form
            nth = chance.randint(1, 2 if once else 6)
            assert child(server, root, kept, "s", hook=f"{point}:{nth}") == -signal.SIGKILL, f"{point} was not reached"
        assert traffic.failed == []
        added = [ident.decode() for ident in traffic.added]
        with server.client() as client:
            live = {ident.decode() for ident, _ in client.xrange("s")}
            there = (root / MANIFEST).exists() and bool(list(root.rglob("*.parquet")))
            seen = shown(root, "s") if there and table_is_there(root) else []
            assert len(seen) == len(set(seen))
            assert live | set(seen) == set(added)
            wanted = Wanted() if (root / MANIFEST).exists() else Wanted(form)
            archive_once(ArchiveSettings(server.url, ("s",), root, per_batch=5000, wanted=wanted))
            assert shown(root, "s") == added
            assert ([ident for ident, _ in held(root, "s")], client.xlen("s")) == (added, 0)
            if form == "parquet":
                glob = f"read_parquet('{root}/stream=s/**/*.parquet', union_by_name = true)"
                found = connected().sql(f"SELECT id FROM {glob} ORDER BY id_ms, id_seq").fetchall()
                assert [row[0] for row in found] == added
        assert traffic.read == {"fast": traffic.added, "slow": traffic.added}
    return len(added)


def table_is_there(root: Path) -> bool:
    """Return True if the job lived to create the stream's table for tools that use no catalog."""
    manifest = Folder(root).read()
    table = root / table_folder(manifest.shape, "s")
    log = {"parquet": "", "delta": "_delta_log", "iceberg": "metadata/version-hint.text"}[manifest.shape.format]
    return bool(manifest.files) and (table / log).exists()


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("form", FORMATS)
def test_jobs_killed_fifty_times(form: str) -> None:
    """After fifty archive jobs of each format are killed at random points, the table shows each entry once."""
    from functools import partial

    campaign.run(f"archive-{form}-kills", partial(one_kill, form), range(50), version=2, unit="entries")

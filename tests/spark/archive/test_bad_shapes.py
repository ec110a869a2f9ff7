"""Unusual inputs for an archive: each ends in a one-line error or in a column, and loses nothing.

The inputs are odd names and values, a schema that does not fit, and tables that other programs changed or damaged. Also
a full or read-only disk, and clocks that disagree. Spark's part of a job runs in the test's process
(``support.archives``).
"""

import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pytest
import redis
from click.testing import CliRunner
from pyiceberg.types import StringType

from millstream.cli.main import main
from millstream.errors import ConfigError, StorageError
from millstream.spark.archiving.directory import ASIDE, MANIFEST, FilesChangedError, Folder
from millstream.spark.archiving.files import WritePlan, merge, read_pages, write_files
from millstream.spark.archiving.manifest import ArchivePosition, DataFile, ManifestError, dump
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.archiving.tables.columns import MOST_COLUMNS, TAKEN
from millstream.spark.archiving.tables.folders import table_folder
from millstream.spark.archiving.tables.iceberg import open_catalog
from millstream.spark.archiving.tables.publishing import TableUnreadableError
from millstream.spark.archiving.tables.shape import FORMATS, Wanted
from millstream.spark.archiving.tables.storage import LocalStorage
from millstream.spark.archiving.tables.table import TableChangedError
from millstream.spark.archiving.trim import Keep
from millstream.spark.arrow.page import Want
from millstream.spark.model.offsets import ZERO, Position, parse_id
from millstream.spark.read.stream_info import StreamInfo
from support.archives import LAST, Entry, archive_once, data_files, held, rows_of
from support.clock import own_clock
from support.lake import connected, scan, shown
from support.servers import ServerProcess
from support.smalldisk import run_on
from support.streams import fill

pytestmark = [pytest.mark.realserver, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]

YEAR = 365 * 86_400_000
FIRST = 1_700_000_000_000
NAMES = [
    'a"b', "a'b", "a`b", "a;b", "a--b", "a.b", "a", ".", "..", "a.b.c", "a_b", "a\nb", "\r\n", "\0", "\t", "", " ", "%",
    "price", "Price", "PRICE", "\N{LATIN SMALL LETTER SHARP S}", "ss", "SS", "\N{KELVIN SIGN}", "k", "i", "I",
    "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "e\N{COMBINING ACUTE ACCENT}", "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "\N{GRINNING FACE}", "\N{ZERO WIDTH SPACE}", "\N{RIGHT-TO-LEFT OVERRIDE}abc", "\N{SUPERSCRIPT TWO}", "1", "12a",
    "id", "ID", "id_ms", "timestamp", "entry_json", "fields", "stream", "date", "hour", "day", "month", "element",
    "_metadata", "_change_type", "_commit_version", "_file", "_pos", "file_path", "filename", "select", "null",
    "x" * 1024, "x" * 1025, "y" * 128, "y" * 129,
]  # fmt: skip
VALUES = [
    b"nan", b"inf", b"1e309", b"-0", b"007", b"9223372036854775808", b"0.30000000000000004", b"", b"null", b"NaN",
    b"\xff\x00", b"1" * 4000, "\N{GRINNING FACE}".encode() * 70, b'{"a": [1]}', b"true", b" 1", b"2026-13-45",
]  # fmt: skip


@pytest.fixture
def client(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    with real_redis.client() as made:
        made.flushall()
        yield made


def add(client: redis.Redis, ms: int, *pairs: tuple[bytes, bytes]) -> Entry:
    """Add an entry with the fields in the given order."""
    client.execute_command("XADD", "s", f"{ms}-0", *[word for pair in pairs for word in pair])
    return f"{ms}-0", pairs


def numbers(client: redis.Redis, count: int, first: int = 0) -> list[str]:
    """Add entries with numbers that columns can reproduce."""
    return [add(client, FIRST + at, (b"qty", b"%d" % at))[0] for at in range(first, first + count)]


def job(url: str, root: Path, form: str | None = None, **more: Any) -> ArchiveSettings:
    given = {"per_batch": 1000, "wanted": Wanted(form)} | more
    return ArchiveSettings(url, ("s",), root, **given)


def table(root: Path) -> Path:
    return root / table_folder(Folder(root).read().shape, "s")


# --- names and values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_names_and_values_of_any_kind(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """Names and values of any bytes are reproduced exactly. Each name has a column, up to the limit of columns."""
    every = [name.encode() for name in NAMES] + [b"\xff\xfe"]
    entries = [add(client, FIRST, *[(name, b"%d" % at) for at, name in enumerate(every)])]
    entries += [add(client, FIRST + at, (b"value", value)) for at, value in enumerate(VALUES, 1)]
    wide = [(b"field-%d" % at, b"%d" % at) for at in range(10_000)]
    entries.append(add(client, FIRST + 100, *wide))
    entries += [add(client, FIRST + 200 + at, (b"late-%d" % at, b"x")) for at in range(100)]
    store = archive_once(job(real_redis.url, tmp_path / "a", wanted=Wanted(form, "day")))
    assert (held(tmp_path / "a", "s"), client.xlen("s")) == (entries, 0)
    columns = Folder(tmp_path / "a").read().columns["s"]
    assert len({column.name.lower() for column in columns}) == len(columns) == MOST_COLUMNS
    assert [column.field for column in columns[: len(NAMES) - 1]] == [name for name in NAMES if len(name) != 1025]
    quoted = ", ".join(f'max("{column.name}")' for column in columns[: len(NAMES) - 1])
    row = connected().sql(f"SELECT {quoted} FROM {scan(tmp_path / 'a', 's')}").fetchone()
    assert row == tuple(at for at, name in enumerate(NAMES) if len(name) != 1025)
    (progress,) = store.report()
    renamed, told = progress.news
    assert renamed.startswith("stream 's': columns with other names than their fields: a_b for 'a\"b', a_b_2 for ")
    assert renamed.endswith(f", and {sum(column.name != column.field for column in columns) - 10} more")
    assert told.startswith(f"stream 's': its table has {MOST_COLUMNS} columns and gets no more; such entries are whole")


def test_values_that_do_not_fit_a_schema_are_told_once(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A value that does not fit the schema is null in its column and kept next to it.

    The job reports their number once.
    """
    words = [b"1", b"x", b"1.5", b"", b"99999999999999999999", b"2"]
    entries = [add(client, FIRST + at, (b"qty", word), (b"at", word)) for at, word in enumerate(words)]
    for form in FORMATS:
        root = tmp_path / form
        where = job(real_redis.url, root, wanted=Wanted(form, schema="qty bigint"), per_batch=3, trim=False)
        (progress,) = archive_once(where).report()
        (told,) = progress.news
        assert told.startswith("stream 's': 2 values of field 'qty' in a batch fit none of its columns; such entries")
        assert held(root, "s") == entries
        sql = f"SELECT count(*), sum(qty), count(entry_json) FROM {scan(root, 's')}"
        assert connected().sql(sql).fetchone() == (6, 3, 6)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(fields=("qty", "pirce", "never")), "fields 'pirce', 'never'"),
        (Wanted(schema="qty bigint, pirce double"), "field 'pirce'"),
        (Wanted(schema="qty bigint"), ""),
        (Wanted(fields=("*",)), ""),
    ],
)
def test_a_name_that_no_entry_has_is_told_once(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, wanted: Wanted, names: str
) -> None:
    """A named field that no entry has is reported once as a possible misspelling.

    A field with empty values is not reported.
    """
    entries = [add(client, FIRST + at, (b"qty", b""), (b"price", b"%d" % at)) for at in range(5)]
    said = f"stream 's': none of its first 4 entries has the {names}, which the archive's form names: where that is"
    (progress,) = archive_once(job(real_redis.url, tmp_path / "a", wanted=wanted, per_batch=4)).report()
    told = [text.removesuffix(" misspelt, archive into a new directory") for text in progress.news]
    assert [text for text in told if "none of its" in text] == ([said] if names else [])
    add(client, FIRST + 10, (b"price", b"1"))
    (progress,) = archive_once(job(real_redis.url, tmp_path / "a")).report()
    assert progress.news == []
    assert held(tmp_path / "a", "s")[:5] == entries


@pytest.mark.parametrize(("form", "folder"), [("parquet", "stream=orders%3Aeu"), ("delta", "torders_eu_32e750fe5b45")])
def test_a_folder_of_another_name_than_the_stream_is_told(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str, folder: str
) -> None:
    """If a folder's name differs from its stream's, the job reports it once, when it creates the folder."""
    fill(client, "orders:eu", 3)
    fill(client, "orders", 3)
    where = ArchiveSettings(real_redis.url, ("orders:eu", "orders"), tmp_path / "a", wanted=Wanted(form), trim=False)
    for told in ([f"stream 'orders:eu': it is in the folder {folder}"], []):
        report = archive_once(where).report()
        assert [text for progress in report for text in progress.news] == told
        assert [(progress.left, progress.held_by) for progress in report] == [(3, "nothing is trimmed")] * 2
    assert (tmp_path / "a" / folder).is_dir()


@pytest.mark.parametrize(
    "wanted", [Wanted(), Wanted(schema="month bigint, day bigint, Qty bigint, qty bigint, a bigint")]
)
def test_columns_that_are_not_called_as_their_fields_are_told(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, wanted: Wanted
) -> None:
    """If a column's name differs from its field's, the job reports it once, with the first such batch."""
    names = [b"month", b"day", b"Qty", b"qty", b"a"]
    for at in range(2):
        add(client, FIRST + at, *[(name, b"1") for name in names])
    (progress,) = archive_once(job(real_redis.url, tmp_path / "a", wanted=wanted, per_batch=1)).report()
    assert progress.news == [
        "stream 's': columns with other names than their fields: month_2 for 'month', day_2 for 'day', qty_2 for 'qty'"
    ]
    docs = (Path(__file__).parents[3] / "docs/lake.md").read_text()
    taken = re.search(r"Taken are ([^.]*)\.", docs)
    assert taken is not None
    assert set(re.findall(r"`(\w+)`", taken[1])) == TAKEN


@pytest.mark.parametrize("form", FORMATS)
def test_times_that_no_table_library_has(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """Times before year 1 or after 9999 are null in their column and kept next to it."""
    times = [b"0000-01-01", b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-14:00", b"0001-01-01", b"9999-12-31"]
    entries = [add(client, FIRST + at, (b"at", time), (b"on", time[:10])) for at, time in enumerate(times)]
    archive_once(job(real_redis.url, tmp_path / "a", wanted=Wanted(form, schema="at timestamp, on date")))
    assert (held(tmp_path / "a", "s"), client.xlen("s")) == (entries, 0)
    sql = f'SELECT count(*), count("at"), count("on") FROM {scan(tmp_path / "a", "s")}'
    assert connected().sql(sql).fetchone() == (5, 2, 4)


@pytest.mark.parametrize(("form", "sign"), [("delta", "%"), ("iceberg", "%"), ("iceberg", "?"), ("iceberg", "#")])
def test_a_place_that_libraries_would_not_find(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str, sign: str
) -> None:
    """An archive directory with signs that the table libraries decode as a URL is refused before any write."""
    numbers(client, 3)
    root = tmp_path / f"a{sign}20b"
    with pytest.raises(ConfigError, match=f"has '[{sign}]' in it, and libraries of {form} would look elsewhere"):
        archive_once(job(real_redis.url, root, form))
    assert (list(tmp_path.rglob("*.parquet")), client.xlen("s")) == ([], 3)


def test_passwords_stay_out_of_the_archive(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A catalog URI with a password is refused and not printed, so that no password gets into the manifest."""
    numbers(client, 3)
    uri = "postgresql://lake:s3cret@127.0.0.1/lake"
    with pytest.raises(ConfigError, match=r"pyiceberg's configuration .*give that name") as caught:
        archive_once(job(real_redis.url, tmp_path / "a", wanted=Wanted("iceberg", catalog=uri)))
    assert "s3cret" not in str(caught.value)
    assert not any(b"s3cret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert client.xlen("s") == 3


def test_wrong_credentials_of_the_server(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Wrong Redis credentials end the command with one line, exit code 5 and no password. Nothing is created."""
    numbers(client, 3)
    url = real_redis.url.replace("redis://", "redis://nobody:s3cret@")
    done = CliRunner().invoke(main, ["archive", url, "s", "--once", "--dry-run", "--to", str(tmp_path / "a")])
    assert (done.exit_code, done.stdout) == (5, "")
    assert len(done.stderr.splitlines()) == 1
    assert "the server refuses the login" in done.stderr
    assert "s3cret" not in done.stderr
    assert (list(tmp_path.iterdir()), client.xlen("s")) == ([], 3)


# --- other programs --------------------------------------------------------------------------------------------------


def test_a_file_that_somebody_removed(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """If another program removed files, the job names the missing files and trims nothing."""
    numbers(client, 20)
    for form in FORMATS:
        archive_once(job(real_redis.url, tmp_path / form, form, trim=False))
    numbers(client, 3, 20)
    for form in FORMATS:
        (file,) = table(tmp_path / form).glob("*.parquet")
        file.unlink()
        with pytest.raises(FilesChangedError, match=r"has no file '.*parquet', which its manifest names \(1 such\)"):
            archive_once(job(real_redis.url, tmp_path / form))
    assert client.xlen("s") == 23


def test_rows_that_somebody_put_among_plain_files(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If another program added Parquet files to the folder, the job reports them, leaves them, and stops."""
    numbers(client, 20)
    archive_once(job(real_redis.url, tmp_path / "a"))
    (own,) = table(tmp_path / "a").glob("*.parquet")
    shutil.copy(own, own.with_name("mine.parquet"))
    own.with_name("notes.txt").write_text("not read by anybody")
    numbers(client, 3, 20)
    with pytest.raises(FilesChangedError, match=r"has 'stream=s/mine\.parquet', which is not one of its files"):
        archive_once(job(real_redis.url, tmp_path / "a"))
    assert (own.with_name("mine.parquet").exists(), client.xlen("s")) == (True, 3)
    own.with_name("mine.parquet").unlink()
    archive_once(job(real_redis.url, tmp_path / "a"))
    assert (own.with_name("notes.txt").exists(), len(shown(tmp_path / "a", "s"))) == (True, 23)


def test_a_manifest_from_a_backup_costs_no_file(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """With a manifest from a backup, newer files are set aside, and the newer manifest can use them again."""
    root = tmp_path / "a"
    numbers(client, 5)
    archive_once(job(real_redis.url, root))
    older = (root / MANIFEST).read_bytes()
    numbers(client, 5, 5)
    archive_once(job(real_redis.url, root))
    newer = (root / MANIFEST).read_bytes()
    before = {path: path.read_bytes() for path in table(root).glob("*.parquet")}
    (root / MANIFEST).write_bytes(older)
    store = ArchiveStore(job(real_redis.url, root))
    with store.open():
        (told,) = store.fresh_news()
        assert "1 file that the manifest does not name" in told
    aside = root / ASIDE / "stream=s"
    for path in aside.glob("*.parquet"):
        path.rename(table(root) / path.name)
    (root / MANIFEST).write_bytes(newer)
    assert {path: path.read_bytes() for path in table(root).glob("*.parquet")} == before
    assert len(held(root, "s")) == 10


@pytest.mark.parametrize(
    ("first", "count"), [(0, 12), (0, 9), (5, 12), (5, 20)], ids=["lower", "lower, fewer", "the same ids", "around"]
)
def test_a_manifest_from_a_backup_and_a_stream_begun_anew_cost_no_file(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, first: int, count: int
) -> None:
    """With a manifest from a backup and a recreated stream, newer files are set aside, even if ids match."""
    root = tmp_path / "a"
    numbers(client, 5)
    archive_once(job(real_redis.url, root))
    older = (root / MANIFEST).read_bytes()
    only = [add(client, FIRST + 5 + at, (b"qty", b"once %d" % at)) for at in range(10)]
    archive_once(job(real_redis.url, root))
    client.delete("s")
    numbers(client, count, first)
    (root / MANIFEST).write_bytes(older)
    store = ArchiveStore(job(real_redis.url, root))
    with store.open():
        assert ["1 file that the manifest does not name" in told for told in store.fresh_news()] == [True]
    (kept,) = (root / ASIDE / "stream=s").glob("*.parquet")
    with kept.open("rb") as file:
        (page,) = read_pages(file, ZERO, LAST, Want(listed=True))
    assert page.ids.to_pylist() == [ident for ident, _ in only]
    assert client.xlen("s") == count


def test_a_file_that_a_killed_job_left_is_compared_with_the_stream(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A killed job's leftover file is removed if the stream has all of its entries, and set aside otherwise."""
    root = tmp_path / "a"
    numbers(client, 1000)
    archive_once(job(real_redis.url, root, trim=False))
    there = Folder(root).read()
    older = dump(replace(there, places={"s": ArchivePosition(parse_id("1-0"), 0)}, files=())).encode()
    (root / MANIFEST).write_bytes(older)
    with ArchiveStore(job(real_redis.url, root)).open():
        assert list(root.rglob("*.parquet")) == []
    archive_once(job(real_redis.url, root, trim=False))
    (root / MANIFEST).write_bytes(older)
    client.xdel("s", f"{FIRST + 700}-0")
    with ArchiveStore(job(real_redis.url, root)).open():
        assert len(list((root / ASIDE).rglob("*.parquet"))) == 1


def written(root: Path, **changes: Any) -> None:
    """Write the archive's manifest with changed values and matching totals."""
    (root / MANIFEST).write_text(dump(replace(Folder(root).read(), **changes)))


@pytest.mark.parametrize("form", FORMATS)
def test_files_that_somebody_took_out_of_a_manifest(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """If a manifest lost its file names, the job removes no file and does not trim the stream."""
    root = tmp_path / "a"
    where = job(real_redis.url, root, form)
    numbers(client, 50)
    archive_once(replace(where, trim=False))
    text = (root / MANIFEST).read_text()
    (root / MANIFEST).write_text(text.partition('"files": [')[0] + '"files": [\n]}\n')
    with pytest.raises(ManifestError, match="hold 0 entries, and 50 were archived"):
        archive_once(where)
    assert (client.xlen("s"), len(data_files(root))) == (50, 1)
    (root / MANIFEST).write_text(text)
    written(root, files=())
    store = archive_once(where)
    said = r"1 file that the manifest does not name, .*, and nothing of it is trimmed by this run"
    assert [re.search(said, told) is not None for told in store.report()[0].news] == [True]
    assert (client.xlen("s"), len(list((root / ASIDE).rglob("*.parquet")))) == (50, 1)


def test_a_killed_merge_leaves_nothing(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """After a killed merge, files that duplicate the manifest's files are removed, and none is set aside."""
    root = tmp_path / "a"
    for at in range(3):
        numbers(client, 10, 10 * at)
        archive_once(job(real_redis.url, root), label=str(at))
    before = Folder(root).read()
    assert len(before.files) == 3
    plan = WritePlan(root, before.shape, before.columns, 1 << 20)
    made = merge(plan, before.files, "m")
    for names, gone in ((before.files, made), (tuple(made), before.files)):
        kept = {each.path: (root / each.path).read_bytes() for each in (*made, *before.files)}
        written(root, files=names)
        store = ArchiveStore(job(real_redis.url, root))
        with store.open():
            assert list(store.fresh_news()) == []
        assert [each.path for each in gone if (root / each.path).exists()] == []
        assert not (root / ASIDE).exists()
        for path, data in kept.items():
            (root / path).write_bytes(data)
    written(root, files=before.files[1:])
    for path in (before.files[0], before.files[1]):
        assert path.rows == 10
    with ArchiveStore(job(real_redis.url, root)).open():
        pass
    aside = {path.name for path in (root / ASIDE).rglob("*.parquet")}
    assert aside == {Path(each.path).name for each in (made[0], before.files[0])}


def test_no_more_of_a_stream_is_asked_for_than_a_file_has(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To check a leftover file, the job reads at most as many entries of the stream as the file has."""
    root = tmp_path / "a"
    where = job(real_redis.url, root, trim=False)
    fill(client, "s", 1)
    archive_once(where)
    older = (root / MANIFEST).read_bytes()
    for at in (2, 900):
        client.xadd("s", {"n": at}, f"{at}-0")
    archive_once(where)
    client.delete("s")
    fill(client, "s", 900)
    (root / MANIFEST).write_bytes(older)
    asked, brought = StreamInfo.entries, list[int]()

    def counted(self: StreamInfo, *words: Any) -> Any:
        rows = asked(self, *words)
        brought.append(len(rows))
        return rows

    monkeypatch.setattr(StreamInfo, "entries", counted)
    with ArchiveStore(where).open():
        assert brought == [2]
        assert len(list((root / ASIDE).rglob("*.parquet"))) == 1


def test_a_leftover_file_stays_where_its_key_holds_no_stream(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If the stream's key holds another type, a leftover file stays and the error names the key."""
    root = tmp_path / "a"
    numbers(client, 5)
    archive_once(job(real_redis.url, root))
    older = (root / MANIFEST).read_bytes()
    numbers(client, 5, 5)
    archive_once(job(real_redis.url, root))
    (root / MANIFEST).write_bytes(older)
    client.delete("s")
    client.set("s", "v")
    with pytest.raises(ConfigError, match="'s' holds no stream on"), ArchiveStore(job(real_redis.url, root)).open():
        pass
    assert len(list((root / "stream=s").rglob("*.parquet"))) == 2


def test_an_archive_below_another_loses_nothing(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """An archive inside another archive is refused. If one exists already, the outer job leaves its files alone."""
    numbers(client, 5)
    archive_once(job(real_redis.url, tmp_path / "b", trim=False))
    archive_once(job(real_redis.url, tmp_path / "a", trim=False))
    with pytest.raises(ConfigError, match=r"is within the archive .*\. Give a directory outside of it"):
        archive_once(job(real_redis.url, tmp_path / "a/b"))
    (tmp_path / "b").rename(tmp_path / "a/b")
    numbers(client, 5, 5)
    archive_once(job(real_redis.url, tmp_path / "a", trim=False))
    assert (len(held(tmp_path / "a", "s")), len(held(tmp_path / "a/b", "s"))) == (10, 5)


def append(root: Path, form: str) -> None:
    """Append rows to the table as another program would."""
    if form == "delta":
        made = deltalake.DeltaTable(str(table(root)))
        deltalake.write_deltalake(made, made.to_pyarrow_table().slice(0, 2), mode="append")
        return
    catalog = open_catalog(None, LocalStorage(root))
    loaded = catalog.load_table(("millstream", "s"))
    loaded.append(loaded.scan().to_arrow().slice(0, 2))
    catalog.close()


def widen(root: Path, form: str) -> None:
    """Add a column to the table as another program would."""
    if form == "delta":
        extra = deltalake.schema.Field("extra", deltalake.schema.PrimitiveType("string"))
        deltalake.DeltaTable(str(table(root))).alter.add_columns([extra])
        return
    catalog = open_catalog(None, LocalStorage(root))
    with catalog.load_table(("millstream", "s")).update_schema() as update:
        update.add_column("extra", StringType())
    catalog.close()


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize(("change", "told"), [(append, "none of the archive's files"), (widen, "the column 'extra'")])
def test_rows_and_columns_that_somebody_put_into_a_table(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str, change: Any, told: str
) -> None:
    """If another program changed a table's rows or columns, the job ends with one line and trims nothing."""
    numbers(client, 20)
    archive_once(job(real_redis.url, tmp_path / "a", form))
    change(tmp_path / "a", form)
    add(client, FIRST + 100, (b"new", b"1"))
    with pytest.raises(TableChangedError, match=f"was changed by another program: .*{told}.* Nothing was trimmed"):
        archive_once(job(real_redis.url, tmp_path / "a"))
    assert client.xlen("s") == 1


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_table_that_somebody_vacuumed(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """If another program vacuumed merged files early, the job continues, and each entry is in the table once."""
    numbers(client, 80)
    archive_once(job(real_redis.url, tmp_path / "a", form, per_batch=10))
    manifest = Folder(tmp_path / "a").read()
    assert len(manifest.retired) > 7
    if form == "delta":
        made = deltalake.DeltaTable(str(table(tmp_path / "a")))
        made.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    else:
        catalog = open_catalog(None, LocalStorage(tmp_path / "a"))
        loaded = catalog.load_table(("millstream", "s"))
        loaded.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        catalog.close()
        for path, _ in manifest.retired:
            (tmp_path / "a" / path).unlink()
    assert not any((tmp_path / "a" / path).exists() for path, _ in manifest.retired)
    numbers(client, 10, 80)
    archive_once(job(real_redis.url, tmp_path / "a", retain_ms=-1))
    there = shown(tmp_path / "a", "s")
    assert there == [f"{FIRST + at}-0" for at in range(90)] == [ident for ident, _ in held(tmp_path / "a", "s")]
    assert (Folder(tmp_path / "a").read().retired, client.xlen("s")) == ((), 0)


def test_damaged_tables_say_so(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """If a log, metadata, catalog or data file is damaged, the error names it and the reason. Nothing is trimmed."""
    numbers(client, 20)
    for name in ("delta", "iceberg", "gone", "catalog", "parquet"):
        form = name if name in FORMATS else "iceberg"
        archive_once(job(real_redis.url, tmp_path / name, form, trim=False))
    numbers(client, 3, 20)
    for path in [*(tmp_path / "delta/s/_delta_log").glob("*"), *(tmp_path / "iceberg/s/metadata").glob("*.json")]:
        path.write_bytes(b"rubbish")
    shutil.rmtree(tmp_path / "gone/s/metadata")
    for name in ("delta", "iceberg", "gone"):
        with pytest.raises(TableUnreadableError) as caught:
            archive_once(job(real_redis.url, tmp_path / name))
        assert "of stream 's' cannot be read or written: " in str(caught.value)
        assert "Nothing was trimmed; restore the folder s from a backup" in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "catalog/_catalog.db").write_bytes(b"rubbish" * 1000)
    with pytest.raises(ConfigError, match=r"'_catalog.db': \(sqlite3.DatabaseError\) file is not a database\. "):
        archive_once(job(real_redis.url, tmp_path / "catalog"))
    (file,) = (tmp_path / "parquet/stream=s").glob("*")
    file.write_bytes(b"rubbish")
    with pytest.raises(StorageError, match=r"the file '.*' of the archive is damaged \(.*restore it from a backup"):
        held(tmp_path / "parquet", "s")
    assert client.xlen("s") == 23


# --- disk and clock --------------------------------------------------------------------------------------------------


def test_a_full_disk_and_one_that_may_only_be_read(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """On a full or read-only disk the job ends with one line and loses nothing. With space again it continues."""
    chance = random.Random(5)
    for form in FORMATS:
        pipeline = client.pipeline(transaction=False)
        for at in range(2000):
            pipeline.xadd(f"s-{form}", {"at": at, "bytes": chance.randbytes(1000)}, id=f"{FIRST + at}-0")
        pipeline.execute()
    small = tmp_path / "small"
    small.mkdir()
    said = run_on(small, "12m", Path(__file__).with_name("full_archive.py"), real_redis.url)
    assert [line.split()[0] for line in said.splitlines()] == list(FORMATS)


def test_a_place_that_vanishes_while_the_job_runs(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If the archive's directory vanishes while the job runs, archived entries that are still in the stream stay."""
    root = tmp_path / "a"
    rows = numbers(client, 10)
    client.xgroup_create("s", "g", "0")
    store = ArchiveStore(job(real_redis.url, root))

    def write(plan: WritePlan, label: str, first: int, end: int, *, gone: bool = False) -> list[DataFile]:
        there = client.xrange("s", rows[first], rows[end - 1])
        entries = [(ident.decode(), list(pairs.items())) for ident, pairs in there]
        files = write_files(plan, label, rows_of("s", entries))
        if gone:
            root.rename(tmp_path / "elsewhere")
        return files

    def ranges(first: int, end: int) -> dict[str, Position]:
        start = parse_id(rows[first - 1]) if first else ZERO
        return {"s": Position(start, first, parse_id(rows[end - 1]), end)}

    with store.open():
        store.take("x", ranges(0, 5), partial(write, first=0, end=5))
        store.trim()
        with pytest.raises(FileNotFoundError, match="stream=s"):
            store.take("y", ranges(5, 8), partial(write, first=5, end=8, gone=True))
        client.xgroup_setid("s", "g", "$")  # now they could go
        with pytest.raises(FilesChangedError, match=r"archive .*/a has no _manifest.json any more.*othing more is tr"):
            store.trim()
    assert client.xlen("s") == 10
    shutil.rmtree(root, ignore_errors=True)
    (tmp_path / "elsewhere").rename(root)
    archive_once(job(real_redis.url, root))
    assert ([ident for ident, _ in held(root, "s")], client.xlen("s")) == (rows, 0)


def test_a_place_that_is_a_file(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A file at the archive's path is not overwritten."""
    numbers(client, 3)
    (tmp_path / "a").write_text("mine")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        archive_once(job(real_redis.url, tmp_path / "a"))
    assert ((tmp_path / "a").read_text(), client.xlen("s")) == ("mine", 3)


@pytest.mark.parametrize("form", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_clocks_that_disagree(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """With clocks a year ahead or behind, each entry is archived once."""
    now = int(time.time() * 1000)
    ids: list[str] = []
    for turn, (skew, count) in enumerate(((YEAR, 80), (-YEAR, 10), (0, 10))):
        for module in ("millstream.spark.archiving.store", "pyiceberg.table.snapshots"):
            own_clock(monkeypatch, module, time=lambda skew=skew: time.time() + skew / 1000)
        ids += fill(client, "s", count, first=now + YEAR + 100 * turn)
        archive_once(job(real_redis.url, tmp_path / "a", form if not turn else None, per_batch=10))
        assert shown(tmp_path / "a", "s") == ids
    assert client.xlen("s") == 0
    ids += fill(client, "s", 5, first=now + 2 * YEAR)
    (progress,) = archive_once(job(real_redis.url, tmp_path / "a", keep=Keep(ms=1))).report()
    assert (progress.trimmed, progress.left, progress.held_by) == (0, 5, "kept for 1 ms")
    assert shown(tmp_path / "a", "s") == ids


def test_ids_at_the_ends_of_time(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """Ids of 1970, of the year 9999 and beyond signed 64-bit numbers are archived."""
    ids = ["0-1", "1-0", "253402300799999-0", "253402300800000-0", f"{2**63 - 1}-1", f"{2**63}-1", f"{2**64 - 2}-5"]
    for ident in ids:
        client.xadd("s", {"qty": "1"}, id=ident)
    for form in FORMATS:
        archive_once(job(real_redis.url, tmp_path / form, wanted=Wanted(form, "day"), trim=False))
        where = scan(tmp_path / form, "s")
        found = connected().sql(f"SELECT count(DISTINCT id), sum(qty), count(timestamp) FROM {where}").fetchone()
        assert found == (7, 7, 3)
        assert connected().sql(f"SELECT count(*) FROM {where} WHERE timestamp < '1971-01-01'").fetchone() == (2,)
        assert [ident for ident, _ in held(tmp_path / form, "s")] == ids

"""DuckDB with its extensions for Delta, Iceberg and S3, from packages and not from a network."""

import functools
from pathlib import Path

import duckdb
import duckdb_extension_avro
import duckdb_extension_delta
import duckdb_extension_httpfs
import duckdb_extension_iceberg

from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.tables.folders import table_folder
from support.objects import KEY, REGION, SECRET, Door


def connected(door: Door | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection that reads all formats, with times in UTC.

    Args:
        door: The S3-compatible server, if the connection reads from it.
    """
    made = _database().cursor()
    made.sql("SET TimeZone = 'UTC'")
    if door is not None:
        made.sql(
            f"CREATE OR REPLACE SECRET (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', REGION '{REGION}', "
            f"ENDPOINT '127.0.0.1:{door.port}', USE_SSL false, URL_STYLE 'path')"
        )
    return made


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return one database in memory for the whole process, since loading the extensions takes a third of a second.

    It caches no files, so that each query sees them as a new process would.
    """
    options: dict[str, bool | int] = {
        "autoinstall_known_extensions": False,
        "enable_external_file_cache": False,
        "threads": 1,
    }
    made = duckdb.connect(config=options)
    for package in (duckdb_extension_avro, duckdb_extension_delta, duckdb_extension_iceberg, duckdb_extension_httpfs):
        assert package.__file__ is not None
        (file,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
        made.load_extension(str(file))
    return made


def scan(root: Path, stream: str) -> str:
    """Return a stream of an archive as a term for FROM."""
    manifest = Folder(root).read()
    table = root / table_folder(manifest.shape, stream)
    if manifest.shape.format == "parquet":
        files = [str(root / file.path) for file in manifest.files if file.stream == stream]
        return f"read_parquet({files!r}, union_by_name=true)"
    return f"{manifest.shape.format}_scan('{table}')"


def shown(root: Path, stream: str) -> list[str]:
    """Return the ids that a stream's table shows in order, with duplicates."""
    sql = f"SELECT id FROM {scan(root, stream)} ORDER BY id_ms, id_seq"
    return [row[0] for row in connected().sql(sql).fetchall()]


def over_s3(place: str, stream: str) -> str:
    """Return a stream of an archive in a bucket as a term for FROM."""
    manifest = Folder(place).read()
    table = f"{place}/{table_folder(manifest.shape, stream)}"
    if manifest.shape.format == "parquet":
        return f"read_parquet({[f'{place}/{file.path}' for file in manifest.files if file.stream == stream]!r})"
    return f"{manifest.shape.format}_scan('{table}')"

"""DuckDB with its extensions for Delta and Iceberg, from packages: nothing is fetched from a network."""

from pathlib import Path

import duckdb
import duckdb_extension_avro
import duckdb_extension_delta
import duckdb_extension_iceberg

from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.tables.folders import table_folder


def connected() -> duckdb.DuckDBPyConnection:
    """A database in memory that reads both, with times in UTC."""
    made = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1})
    for package in (duckdb_extension_avro, duckdb_extension_delta, duckdb_extension_iceberg):
        assert package.__file__ is not None
        (file,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
        made.load_extension(str(file))
    made.sql("SET TimeZone = 'UTC'")
    return made


def scan(root: Path, stream: str) -> str:
    """A stream of an archive, as FROM of a query takes it."""
    manifest = Folder(root).read()
    table = root / table_folder(manifest.shape, stream)
    if manifest.shape.format == "parquet":
        files = [str(root / file.path) for file in manifest.files if file.stream == stream]
        return f"read_parquet({files!r}, union_by_name=true)"
    return f"{manifest.shape.format}_scan('{table}')"


def shown(root: Path, stream: str) -> list[str]:
    """The ids that a stream's table itself shows, in order, duplicates and all."""
    sql = f"SELECT id FROM {scan(root, stream)} ORDER BY id_ms, id_seq"
    return [row[0] for row in connected().sql(sql).fetchall()]

"""Names of folders: for a table, for a stream's files, and for one file."""

import hashlib
import re
from urllib.parse import quote

from millstream.spark.archiving.tables.shape import Shape, partition_values

_LONGEST = 180


def table_folder(shape: Shape, stream: str) -> str:
    """Return the folder of the table with the entries of a stream.

    The folder of plain files is named as Hive does, with its characters escaped as in a URL. Delta's libraries take
    ``%`` in a path for an escape, and Polars ``=`` for a column, so the folders of tables have neither.
    """
    return _folder(shape, shape.table_of(stream))


def stream_folder(shape: Shape, stream: str) -> str:
    """Return the folder of a stream's files: that of its table, or one in it if streams share the table."""
    folder = table_folder(shape, stream)
    return folder if shape.table is None else f"{folder}/{_folder(shape, stream)}"


def _folder(shape: Shape, stream: str) -> str:
    digest = hashlib.sha256(stream.encode("utf-8", "surrogateescape")).hexdigest()
    if shape.format == "parquet":
        name = quote(stream, safe="")
        return f"stream={name if len(name) <= _LONGEST else f'{name[:_LONGEST]}~{digest[:12]}'}"
    name = re.sub(r"[^A-Za-z0-9_]", "_", stream)[:_LONGEST]
    plain = name == stream != "metadata" and not name.startswith("_") and not re.search(r"_[0-9a-f]{12}$", name)
    return name if plain else f"t{name}_{digest[:12]}"


def file_folder(shape: Shape, stream: str, ms: int) -> str:
    """Return the folder of the file for an entry."""
    parts = [f"{name}={value}" for name, value in partition_values(shape, ms).items()]
    return "/".join([stream_folder(shape, stream), *parts])

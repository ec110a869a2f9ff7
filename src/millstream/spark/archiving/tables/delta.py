"""The log of a Delta table: one commit brings it to the manifest's state, and ``deltalake`` reads it back.

The commit is written here, by the format's published rules: a file of JSON lines under the next number, which must not
exist yet. ``deltalake`` has no commit that adds files and removes others without reading them. Besides, ``storage``
makes the commit durable. The library reads the log and writes its checkpoints.
"""

import json
import time
import uuid
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from millstream.errors import StorageError
from millstream.failpoints import reach
from millstream.spark.archiving.tables.columns import TableColumn
from millstream.spark.archiving.tables.rows import file_schema
from millstream.spark.archiving.tables.shape import Shape, partition_values
from millstream.spark.archiving.tables.storage import ChangedMeanwhileError, Storage
from millstream.spark.archiving.tables.table import TableChangedError, TableFile, TablePlan

LOG = "_delta_log"
CHECKPOINT_EVERY = 20
_WAITS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between checks for a version that lists do not show yet."""

_STATISTICS = 32
"""Number of columns with statistics, the default of other writers."""
_LONGEST = 64
_PARTITIONS = {"date": "date", "hour": "integer", "month": "string"}
_TYPES = {"bigint": "long"}


def publish(plan: TablePlan, storage: Storage) -> None:
    """Update the table's log to the plan's state; it is durable and verified when this returns."""
    table = _open(plan, storage)
    there = {} if table is None else _files(table)
    added, removed = plan.changes(there)
    fields = _fields(plan.shape, plan.columns)
    evolved = table is None or _is_evolved(table, plan, fields)
    if table is not None and not (added or removed or evolved):
        return
    now = int(time.time() * 1000)
    operation: dict[str, Any] = {"operation": "OPTIMIZE" if removed else "WRITE", "operationParameters": {}}
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, **operation, "engineInfo": "millstream"}},
        {"txn": {"appId": "millstream", "version": plan.generation, "lastUpdated": now}},
    ]
    if table is None:
        actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
    if evolved:
        actions.append(_metadata(plan, table, fields, now))
    for path in removed:
        gone = {"path": _word_of(path), "deletionTimestamp": now, "dataChange": False}
        actions.append({"remove": gone})
    actions += [{"add": _add(plan, storage, file, now, changes=not removed)} for file in added]
    version = 0 if table is None else table.version() + 1
    text = "".join(json.dumps(action) + "\n" for action in actions)
    reach("committing")
    try:
        storage.put_if_absent(_log(plan, version), text.encode())
    except ChangedMeanwhileError as reason:
        raise TableChangedError(f"{reason}: the table was written by another program; nothing was trimmed") from None
    reach("committed")
    found = _open(plan, storage)
    plan.confirm(() if found is None else _files(found))
    if found is not None and version and version % CHECKPOINT_EVERY == 0:
        _checkpoint(found, plan, storage)


def listed(plan: TablePlan, storage: Storage) -> dict[str, int]:
    """Return the files that the table shows, with the rows of each; empty without a table."""
    table = _open(plan, storage)
    return {} if table is None else _files(table)


def _is_evolved(table: "DeltaTable", plan: TablePlan, fields: list[dict[str, Any]]) -> bool:
    """Return True if columns must be added to the table."""
    parts = partition_values(plan.shape, 0)
    there = [field.name for field in table.schema().fields if field.name not in parts]
    return plan.extended(there, [field["name"] for field in fields if field["name"] not in parts])


def _word_of(path: str) -> str:
    """Return a path in the log's form; ``=`` stays unquoted, since other writers use that spelling of the same file."""
    return quote(path, safe="/=")


def _open(plan: TablePlan, storage: Storage) -> "DeltaTable | None":
    """Return the table at its newest version; None if it does not exist.

    The library finds that version by a list. A list may lag behind, so the file of the next version is requested by
    name.
    """
    place = f"{storage.location}/{plan.folder}"
    # The library's own check for a table would block all other threads until the store replies
    begun = any(storage.exists(path) for path in (_log(plan, 0), f"{plan.folder}/{LOG}/_last_checkpoint"))
    if not begun:
        return None
    for seconds in (*_WAITS, None):
        table = DeltaTable(place)
        if not storage.exists(_log(plan, table.version() + 1)):
            return table
        if seconds is not None:
            _wait(seconds)
    raise StorageError(
        f"lists of {place}/{LOG} do not show its newest files yet. Nothing was trimmed; run this again later."
    )


def _log(plan: TablePlan, version: int) -> str:
    return f"{plan.folder}/{LOG}/{version:020d}.json"


def _wait(seconds: float) -> None:
    time.sleep(seconds)  # no event shows when the store's listings are up to date


def _files(table: "DeltaTable") -> dict[str, int]:
    """Return the files that the log shows, with the rows of each."""
    found = pa.table(table.get_add_actions()).select(["path", "num_records"]).to_pylist()
    return {unquote(row["path"]): row["num_records"] or 0 for row in found}


def _checkpoint(table: "DeltaTable", plan: TablePlan, storage: Storage) -> None:
    """Write the log so far as one file, from which readers start."""
    table.create_checkpoint()
    storage.sync(*(path for path in storage.list(f"{plan.folder}/{LOG}") if "checkpoint" in path))


def _fields(shape: Shape, columns: Iterable[TableColumn]) -> list[dict[str, Any]]:
    """Return the table's schema in the format's terms, with the partition columns last."""
    named = {column.name: _TYPES.get(column.type, str(column.type)) for column in columns}
    found: list[dict[str, Any]] = []
    for field in file_schema(shape, tuple(columns)):
        if field.name == "fields":
            pair = [_field("name", "binary"), _field("value", "binary")]
            struct = {"type": "struct", "fields": pair}
            found.append(_field("fields", {"type": "array", "elementType": struct, "containsNull": True}))
        else:
            own = {"id_ms": "long", "id_seq": "long", "timestamp": "timestamp"}.get(field.name, "string")
            found.append(_field(field.name, named.get(field.name, own)))
    return [*found, *(_field(name, _PARTITIONS[name]) for name in partition_values(shape, 0))]


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _metadata(plan: TablePlan, table: "DeltaTable | None", fields: list[dict[str, Any]], now: int) -> dict[str, Any]:
    ident = str(uuid.uuid4()) if table is None else str(table.metadata().id)
    made = now if table is None else table.metadata().created_time
    return {
        "metaData": {
            "id": ident,
            "name": plan.folder,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partition_values(plan.shape, 0)),
            "configuration": {},
            "createdTime": made,
        }
    }


def _add(plan: TablePlan, storage: Storage, file: TableFile, now: int, *, changes: bool) -> dict[str, Any]:
    with storage.open(f"{plan.folder}/{file.path}") as opened:
        statistics = _statistics(pq.read_metadata(opened))
    return {
        "path": _word_of(file.path),
        "partitionValues": partition_values(plan.shape, file.ms),
        "size": file.bytes,
        "modificationTime": now,
        "dataChange": changes,
        "stats": json.dumps(statistics),
    }


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return a file's statistics, with which a reader can skip the file: rows, bounds and nulls of its columns."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(min(footer.num_columns, _STATISTICS)):
        name = footer.schema.column(at).path
        parts = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
        if "." in name or any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        bounded = [part for part in parts if part.has_min_max]
        if len(bounded) < len([part for part in parts if part.num_values]) or not bounded:
            continue
        bounds = _word(min(part.min for part in bounded)), _word(max(part.max for part in bounded))
        if None not in bounds:
            low[name], high[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _word(value: Any) -> Any:
    """Return a bound for JSON; None for long text, bytes, and values that rounding could make too small."""
    if isinstance(value, bool | bytes | Decimal) or (isinstance(value, str) and len(value) > _LONGEST):
        return None
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds") if value.microsecond % 1000 == 0 else None
    return value.isoformat() if isinstance(value, date) else value

"""The metadata of an Iceberg table: one commit through its catalog brings it to the manifest's state.

The catalog is the archive's own (an SQLite file in its directory) or one that the user names. The file
``version-hint.text`` beside the metadata names the newest version, for tools without a catalog.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, RESTError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import parquet_file_to_data_file, pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

from millstream.errors import ConfigError, StorageError
from millstream.failpoints import reach
from millstream.printable import has_password, without_password, without_secrets
from millstream.spark.archiving.tables.rows import file_schema, first_number
from millstream.spark.archiving.tables.storage import CATALOG, Storage
from millstream.spark.archiving.tables.table import TableChangedError, TablePlan

NAMESPACE = "millstream"
HINT = "metadata/version-hint.text"
_TIMESTAMP = 4
"""Number of the column that partitions the files."""
_WAITS = (0.1, 0.5, 2.0, 5.0)
"""Seconds before a change without a reply from the catalog is tried again."""


class CatalogUnansweredError(StorageError):
    """The catalog of an Iceberg table did not answer a change, or answered with an error; nothing was trimmed.

    What to do: run the job again when the catalog answers. It reads the table and continues from there.
    """


def open_catalog(name: str | None, storage: Storage) -> Catalog:
    """Open the catalog of this name or URI."""
    if name is not None and has_password(name):
        raise ConfigError(
            "the URI of the catalog has a password: the archive's manifest, which its readers see, would have the "
            "password. Name the catalog in pyiceberg's configuration (.pyiceberg.yaml), and give that name."
        )
    try:
        files = storage.iceberg_properties()
        if name is None:
            if storage.local is None:
                raise ConfigError(
                    f"an Iceberg archive at {storage.location} needs a catalog elsewhere, which is not a file in a "
                    "bucket. Give --catalog, such as sqlite:////data/catalog.db, http://host:8181 or a name of "
                    ".pyiceberg.yaml."
                )
            made = load_catalog(NAMESPACE, type="sql", uri=f"sqlite:///{storage.location}/{CATALOG}")
        elif "://" in name:
            made = load_catalog(NAMESPACE, type="rest" if name.startswith("http") else "sql", uri=name, **files)
        else:
            made = load_catalog(name, **files)
        made.create_namespace_if_not_exists(NAMESPACE)
    except (ValueError, KeyError, OSError, RESTError, SQLAlchemyError) as reason:
        first = (without_secrets(str(reason)).strip().splitlines() or [type(reason).__name__])[0]
        raise ConfigError(
            f"catalog {without_password(name or CATALOG)!r}: {first}. Name one of pyiceberg's configuration "
            "(.pyiceberg.yaml), or a URI; if the catalog was away, run this again"
        ) from None
    return made


def publish(plan: TablePlan, storage: Storage) -> None:
    """Update the table to the plan's state; it is durable and verified when this returns."""
    _repeated(plan, storage, lambda catalog: _bring(catalog, plan, storage))


def listed(plan: TablePlan, storage: Storage) -> dict[str, int]:
    """Return the files that the table shows, with the rows of each; empty without a table."""
    found: dict[str, int] = {}

    def look(catalog: Catalog) -> None:
        if catalog.table_exists((NAMESPACE, plan.folder)):
            table = catalog.load_table((NAMESPACE, plan.folder))
            found.update({path: file.record_count for path, file in _files(table).items()})

    _repeated(plan, storage, look)
    return found


def _repeated(plan: TablePlan, storage: Storage, change: Callable[[Catalog], None]) -> None:
    """Make a change, again if its reply is lost: the change reads the table first, and sees its own commit."""
    lost = (CommitFailedException, TableAlreadyExistsError, RESTError, RequestException, SQLAlchemyError)
    catalog = open_catalog(plan.shape.catalog, storage)
    try:
        for seconds in (*_WAITS, None):
            try:
                return change(catalog)
            except lost as reason:
                if seconds is None:
                    raise _unmade(plan, reason) from None
                time.sleep(seconds)  # no event shows that a catalog is available again
    finally:
        catalog.close()


def _unmade(plan: TablePlan, reason: Exception) -> StorageError:
    first = (without_secrets(str(reason)).strip().splitlines() or [""])[0]
    if isinstance(reason, CommitFailedException):
        return TableChangedError(
            f"the iceberg table of stream {plan.name!r} was written by another program ({first}); nothing was trimmed"
        )
    return CatalogUnansweredError(
        f"the catalog did not answer about the iceberg table of stream {plan.name!r} ({type(reason).__name__}: "
        f"{first}). Nothing was trimmed; run this again when it answers"
    )


def _bring(catalog: Catalog, plan: TablePlan, storage: Storage) -> None:
    name = (NAMESPACE, plan.folder)
    table = _made(catalog, name, plan, storage)
    there = _files(table)
    wanted = file_schema(plan.shape, plan.columns).names
    evolved = plan.extended([field.name for field in table.schema().fields], wanted)
    added, removed = plan.changes({path: file.record_count for path, file in there.items()})
    if added or removed or evolved:
        reach("committing")
        _commit(table, plan, [file.path for file in added], [there[path] for path in removed])
        reach("committed")
    table = catalog.load_table(name)
    plan.confirm(_files(table))
    _keep(table, plan, storage)


def expire(plan: TablePlan, storage: Storage, before_ms: int) -> None:
    """Drop the snapshots of the table that are older, since their files are about to be removed."""

    def forget(catalog: Catalog) -> None:
        table = catalog.load_table((NAMESPACE, plan.folder))
        table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(before_ms / 1000, UTC)).commit()
        _keep(catalog.load_table((NAMESPACE, plan.folder)), plan, storage)

    _repeated(plan, storage, forget)


def _place(plan: TablePlan, storage: Storage) -> str:
    where = f"{storage.location}/{plan.folder}"
    return f"file://{where}" if where.startswith("/") else where


def _made(catalog: Catalog, name: tuple[str, str], plan: TablePlan, storage: Storage) -> Table:
    """Return the table, created if it does not exist."""
    if catalog.table_exists(name):
        table = catalog.load_table(name)
        if table.location() != _place(plan, storage):
            raise TableChangedError(
                f"the catalog has a table {'.'.join(name)} already, at {table.location()}: give this archive another "
                "catalog"
            )
        return table
    transforms: dict[str, Any] = {"hour": HourTransform(), "day": DayTransform(), "month": MonthTransform()}
    how = plan.shape.partition
    parted = [] if how == "none" else [PartitionField(_TIMESTAMP, 1000, transforms[how], how)]
    return catalog.create_table(
        name,
        pyarrow_to_schema(file_schema(plan.shape, ())),
        location=_place(plan, storage),
        partition_spec=PartitionSpec(*parted),
        properties={
            "format-version": "2",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "20",
            "commit.manifest-merge.enabled": "true",
        },
    )


def _files(table: Table) -> dict[str, Any]:
    """Return the files that the table shows, by their paths below its folder."""
    base = f"{table.location()}/"
    return {task.file.file_path.removeprefix(base): task.file for task in table.scan().plan_files()}


def _commit(table: Table, plan: TablePlan, added: list[str], removed: list[Any]) -> None:
    """Commit new columns and new files, and remove merged files, in one transaction."""
    said = {"millstream.generation": str(plan.generation)}
    with table.transaction() as transaction:
        own = len(file_schema(plan.shape, ()))
        missing = plan.columns[len(table.schema().fields) - own :]
        if missing:
            wanted = pyarrow_to_schema(file_schema(plan.shape, plan.columns))
            with transaction.update_schema() as schema:
                for column in missing:
                    schema.add_column(column.name, wanted.find_type(column.name))
        metadata = transaction.table_metadata  # each access creates a copy
        _numbers_fit(metadata.schema(), plan)
        if not (added or removed):
            return
        files = [parquet_file_to_data_file(table.io, metadata, f"{table.location()}/{path}") for path in added]
        update = transaction.update_snapshot(snapshot_properties=said)
        with update.overwrite() if removed else update.merge_append() as snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in files:
                snapshot.append_data_file(file)


def _numbers_fit(schema: Any, plan: TablePlan) -> None:
    """Check that the catalog numbered the columns as the files do; otherwise values would come from other columns."""
    first = first_number(plan.shape)
    for at, column in enumerate(plan.columns, first):
        if schema.find_field(column.name).field_id != at:
            raise TableChangedError(
                f"the iceberg table of stream {plan.name!r} has other columns than the archive's files: another "
                f"program changed {column.name!r}; archive into a new directory"
            )


def _keep(table: Table, plan: TablePlan, storage: Storage) -> None:
    """Make the files that the library wrote durable, and record the newest metadata."""
    folder = f"{plan.folder}/metadata"
    storage.sync(*(path for path in storage.list(folder) if path.endswith((".avro", ".json"))))
    name = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json").encode()
    hint = f"{plan.folder}/{HINT}"
    try:
        old = storage.read(hint)
    except FileNotFoundError:
        old = None
    if old != name:
        storage.replace_if_unchanged(hint, old, name)

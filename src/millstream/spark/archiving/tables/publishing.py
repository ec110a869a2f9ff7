"""The choice of the library that updates an archive's tables: none for plain files, Delta's, or Iceberg's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from millstream.errors import ConfigError, MillstreamError, StorageError, UsageError
from millstream.spark.archiving.tables.shape import Shape
from millstream.spark.archiving.tables.storage import Storage
from millstream.spark.archiving.tables.table import TablePlan

PACKAGES = {"delta": ("deltalake",), "iceberg": ("pyiceberg", "sqlalchemy")}
"""Packages that a format needs."""

_SIGNS = {"delta": "%", "iceberg": "%?#"}
"""Characters in a table's path that libraries would read as part of a URL; control characters are refused too."""

RETAIN_MS = 24 * 3_600_000
"""Milliseconds for which merged files stay, for readers of an older state of a table."""


class TableUnreadableError(StorageError):
    """The log of a table, or a file that it names, is missing or damaged; nothing was trimmed.

    What to do: restore the table's folder, and Iceberg's catalog, from one backup, or archive into a new directory.
    """


@contextmanager
def _in_one_sentence(plan: TablePlan, storage: Storage) -> Iterator[None]:
    """Turn a library's error for an unreadable table into one sentence."""
    try:
        yield
    except MillstreamError:
        raise
    except Exception as reason:
        of_disk = storage.local is not None or (isinstance(reason, OSError) and reason.errno is not None)
        if of_disk and isinstance(reason, OSError) and not isinstance(reason, FileNotFoundError):
            raise  # an error of the disk, not of the table: the disk is full or read-only
        first = (str(reason).strip().splitlines() or [""])[0]
        if storage.local is None:
            raise TableUnreadableError(
                f"the {plan.shape.format} table of stream {plan.name!r} at {storage.location} cannot be read or "
                f"written: {type(reason).__name__}: {first}. Nothing was trimmed; run this again when the store answers"
            ) from reason
        raise TableUnreadableError(
            f"the {plan.shape.format} table of stream {plan.name!r} cannot be read or written: "
            f"{type(reason).__name__}: {first}. Nothing was trimmed; restore the folder {plan.folder} from a backup, "
            "or archive into a new directory"
        ) from reason


def prepare(shape: Shape, storage: Storage) -> None:
    """Check the requirements of a format before the job begins."""
    wrong = sorted({sign for sign in storage.location if sign in _SIGNS.get(shape.format, "") or sign < " "})
    if wrong and shape.format in _SIGNS:
        raise ConfigError(
            f"{storage.location!r} has {wrong[0]!r} in it, and libraries of {shape.format} would look elsewhere. "
            "Archive into a directory without it, or --format parquet."
        )
    for package in PACKAGES.get(shape.format, ()):
        if find_spec(package) is None:
            raise UsageError(
                f"format {shape.format} needs {package}, which is not installed: pip install 'millstream[lake]'"
            )
    if shape.format == "iceberg":
        _library("iceberg").open_catalog(shape.catalog, storage).close()


def _library(form: str) -> Any:
    """Return the module for the tables of a format; its packages are an optional extra."""
    return import_module(f"millstream.spark.archiving.tables.{form}")


def publish(plan: TablePlan, storage: Storage) -> None:
    """Update a table's log to the plan's state; it is durable and verified when this returns."""
    if plan.shape.format in PACKAGES:
        library = _library(plan.shape.format)
        with _in_one_sentence(plan, storage):
            library.publish(plan, storage)


def listed(plan: TablePlan, storage: Storage) -> Mapping[str, int]:
    """Return the files that a table shows, with the rows of each; empty for plain files."""
    found: Mapping[str, int] = {}
    if plan.shape.format in PACKAGES:
        with _in_one_sentence(plan, storage):
            found = _library(plan.shape.format).listed(plan, storage)
    return found


def expire(plan: TablePlan, storage: Storage, before_ms: int) -> None:
    """Drop old states of a table whose files are about to be removed; Delta's log needs nothing for that."""
    if plan.shape.format == "iceberg":
        with _in_one_sentence(plan, storage):
            _library("iceberg").expire(plan, storage, before_ms)

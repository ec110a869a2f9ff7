"""Which library brings the tables of an archive to its manifest: none for plain files, Delta's, or Iceberg's."""

from importlib.util import find_spec

from millstream.errors import UsageError
from millstream.spark.archiving.tables.shape import Shape
from millstream.spark.archiving.tables.storage import Storage
from millstream.spark.archiving.tables.table import TablePlan

PACKAGES = {"delta": ("deltalake",), "iceberg": ("pyiceberg", "sqlalchemy")}
"""What a format needs."""

RETAIN_MS = 24 * 3_600_000
"""How long files that were merged into others stay, for readers of an older state of a table."""


def prepare(shape: Shape, storage: Storage) -> None:
    """See that what a format needs is there, before anything is begun.

    Raises:
        ConfigError: there is no such catalog.
        UsageError: a package is not installed; the text says which.
    """
    for package in PACKAGES.get(shape.format, ()):
        if find_spec(package) is None:
            raise UsageError(
                f"format {shape.format} needs {package}, which is not installed: pip install 'millstream[lake]'"
            )
    if shape.format == "iceberg":
        from millstream.spark.archiving.tables import iceberg  # noqa: PLC0415 - its package may not be there

        iceberg.open_catalog(shape.catalog, storage).close()


def publish(plan: TablePlan, storage: Storage) -> None:
    """Bring a table's log to what the plan names: durable, and found again, when this returns.

    Raises:
        TableChangedError: another program wrote to the table.
    """
    if plan.shape.format == "delta":
        from millstream.spark.archiving.tables import delta  # noqa: PLC0415 - its package may not be there

        delta.publish(plan, storage)
    elif plan.shape.format == "iceberg":
        from millstream.spark.archiving.tables import iceberg  # noqa: PLC0415 - its package may not be there

        iceberg.publish(plan, storage)


def expire(plan: TablePlan, storage: Storage, before_ms: int) -> None:
    """Forget states of a table whose files are about to be removed; Delta's log needs nothing for that.

    Args:
        plan: of the table.
        storage: of the archive.
        before_ms: states that are older, in milliseconds since 1970.
    """
    if plan.shape.format == "iceberg":
        from millstream.spark.archiving.tables import iceberg  # noqa: PLC0415 - as above

        iceberg.expire(plan, storage, before_ms)

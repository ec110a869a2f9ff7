"""The storage of an archive, by the place that a user gave: a directory, or a URL of an object store."""

from pathlib import Path

from millstream.spark.archiving.tables.storage import LocalStorage, Storage


def open_storage(place: Path | str) -> Storage:
    """Return the storage of an archive, without any request to it."""
    if isinstance(place, str) and "://" in place:
        from millstream.spark.archiving.objects.storage import ObjectStorage  # noqa: PLC0415 - only where it is used

        return ObjectStorage(place)
    return LocalStorage(Path(place))

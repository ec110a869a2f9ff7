"""The holder of an archive, by the name that a user gave: a directory, or a place in an object store."""

from pathlib import Path

from millstream.spark.archiving.tables.storage import LocalStorage, Storage


def open_storage(place: Path | str) -> Storage:
    """The storage of an archive; nothing is asked of it yet."""
    if isinstance(place, str) and "://" in place:
        from millstream.spark.archiving.objects.storage import ObjectStorage  # noqa: PLC0415 - only where it is used

        return ObjectStorage(place)
    return LocalStorage(Path(place))

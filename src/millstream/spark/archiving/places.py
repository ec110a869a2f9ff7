"""What holds an archive, by the name that a user gave."""

from pathlib import Path

from millstream.spark.archiving.tables.storage import LocalStorage, Storage


def open_storage(place: Path | str) -> Storage:
    """The storage of an archive; nothing is asked of it yet.

    Args:
        place: a directory, absolute.
    """
    return LocalStorage(Path(place))

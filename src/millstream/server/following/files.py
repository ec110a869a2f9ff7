"""Files and directories that disappear with the process that uses them.

``tempfile`` is imported at the first use: it imports the compressors, and most servers do not make a copy.
"""

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from tempfile import TemporaryDirectory


def unnamed_file(directory: "Path | None") -> IO[bytes]:
    """Return a file without a name; closing it frees its space."""
    from tempfile import TemporaryFile  # noqa: PLC0415 - see above

    return TemporaryFile(dir=directory)


def passing_directory() -> "TemporaryDirectory[str]":
    """Return a temporary directory of the system."""
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - see above

    return TemporaryDirectory(prefix="millstream-copy-")

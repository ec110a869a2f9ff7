"""Files that go with the process that uses them.

``tempfile`` is loaded when the first is made: it brings the compressors along, and most servers do not make a copy.
"""

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from tempfile import TemporaryDirectory


def unnamed_file(directory: "Path | None") -> IO[bytes]:
    """A file without a name: when it is closed its space is free."""
    from tempfile import TemporaryFile  # noqa: PLC0415 - see above

    return TemporaryFile(dir=directory)


def passing_directory() -> "TemporaryDirectory[str]":
    """A directory of the system's for temporary files."""
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - see above

    return TemporaryDirectory(prefix="millstream-copy-")

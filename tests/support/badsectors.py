"""A disk with a sector that cannot be read."""

import os
from pathlib import Path

from millstream.persistence.disk import RealDisk, RealFile


class BadFile(RealFile):
    """A file with a sector that cannot be read, not even from the page cache."""

    def __init__(self, file: RealFile, path: Path, sector: int, code: int) -> None:
        super().__init__(file.detach(), path)
        self._sector, self._code = sector, code

    def fileno(self) -> int:
        """Raise, since a read by the descriptor would have the bytes."""
        raise OSError(self._code, os.strerror(self._code))

    def read_at(self, offset: int, size: int) -> bytes:
        """Read bytes, or raise."""
        if offset <= self._sector < offset + size:
            raise OSError(self._code, os.strerror(self._code))
        return super().read_at(offset, size)


class BadDisk(RealDisk):
    """A disk on which one file has a bad sector."""

    def __init__(self, path: Path, sector: int, code: int) -> None:
        self._bad = path, sector, code

    def open_read(self, path: Path) -> RealFile:
        """Open a file."""
        file = super().open_read(path)
        return BadFile(file, *self._bad) if path == self._bad[0] else file

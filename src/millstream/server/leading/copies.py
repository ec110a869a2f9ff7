"""A copy of all data on its way to replicas: the bytes of its files, and each replica's position."""

import errno
import os
from collections.abc import Callable, Sequence
from typing import IO

from millstream.node.log.copied_log import head
from millstream.node.log.rewriting import CopyMade
from millstream.persistence.log import LogFiles

PIECE = 64 * 1024
"""Number of bytes read at a time."""


class Copy:
    """A copy in files, which are closed after its last replica has all of it, or is gone."""

    def __init__(
        self,
        made: CopyMade,
        form: str,
        parts: Sequence[tuple[Callable[[int, int], bytes], int]],
        close: Callable[[], None],
        files: int = 1,
    ) -> None:
        self.made, self.form, self.files = made, form, files
        self.size = sum(size for _, size in parts)
        self._parts, self.close = parts, close
        self._places: dict[int, int] = {}  # read positions of replicas, by session id

    @classmethod
    def of_file(cls, made: CopyMade, file: IO[bytes]) -> "Copy":
        """Return the copy in one written file."""
        size = os.fstat(file.fileno()).st_size
        return cls(made, "an RDB file", [(lambda place, most: os.pread(file.fileno(), most, place), size)], file.close)

    @classmethod
    def of_log(cls, made: CopyMade, log: LogFiles) -> "Copy":
        """Return the copy that consists of a log's files."""
        begin = head(log)
        parts = [(lambda place, most: begin[place : place + most], len(begin)), *((f.read_at, n) for f, n in log.files)]
        return cls(made, "the log as it is", parts, log.close, len(log.files))

    def add(self, session_id: int) -> None:
        """Add a replica that will get the copy."""
        self._places[session_id] = 0

    def read(self, session_id: int) -> bytes:
        """Return the next bytes for a replica; empty at the end."""
        begin, place = 0, self._places[session_id]
        for read, size in self._parts:
            if place < begin + size:
                data = read(place - begin, min(PIECE, begin + size - place))
                if not data:
                    raise OSError(errno.EIO, "a file of its copy is shorter than it was")
                self._places[session_id] += len(data)
                return data
            begin += size
        return b""

    def place(self, session_id: int) -> int:
        """Number of bytes sent to a replica."""
        return self._places[session_id]

    def drop(self, session_id: int) -> None:
        """Remove a replica that has all of it, or is gone."""
        self._places.pop(session_id, None)
        if not self._places:
            self.close()

"""A copy of all data on its way to replicas: the bytes of its files, and each replica's position."""

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import IO

from millstream.node.log.copied_log import head
from millstream.node.log.rewriting import CopyMade
from millstream.persistence.disk import DiskFile
from millstream.persistence.packs import PackFiles
from millstream.persistence.segment import LogFiles
from millstream.texts import plural

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
        self._ends = list(accumulate(size for _, size in parts))  # offset behind each part
        self.size = self._ends[-1] if parts else 0
        self._parts, self.close = parts, close
        self._places: dict[int, int] = {}  # read positions of replicas, by session id

    @classmethod
    def of_file(cls, made: CopyMade, file: IO[bytes]) -> "Copy":
        """Return the copy in one written file."""
        size = os.fstat(file.fileno()).st_size
        return cls(made, "an RDB file", [(lambda place, most: os.pread(file.fileno(), most, place), size)], file.close)

    @classmethod
    def of_log(cls, made: CopyMade, log: LogFiles, open_pack: Callable[[str], DiskFile]) -> "Copy":
        """Return the copy that consists of a log's files, and of packs, of which only one is open at a time."""
        begin, packs = head(log), PackFiles(open_pack, lambda: [entry for entry, _ in log.packs or ()])
        parts = [(lambda place, most: begin[place : place + most], len(begin)), *((f.read_at, n) for f, n in log.files)]
        parts += [(partial(packs.read, entry.number, may_wait=True), size) for entry, size in log.packs or ()]

        def close() -> None:
            packs.close()
            log.close()

        form = "the log as it is" if log.packs is None else f"the log as it is and {plural(len(log.packs), 'pack')}"
        return cls(made, form, parts, close, len(log.files) + bool(log.packs))

    def add(self, session_id: int) -> None:
        """Add a replica that will get the copy."""
        self._places[session_id] = 0

    def read(self, session_id: int) -> bytes:
        """Return the next bytes for a replica; empty at the end."""
        place = self._places[session_id]
        number = bisect_right(self._ends, place)
        if number == len(self._parts):
            return b""
        read, size = self._parts[number]
        left = self._ends[number] - place
        data = read(size - left, min(PIECE, left))
        if not data:
            raise OSError(errno.EIO, "a file of its copy is shorter than it was")
        self._places[session_id] += len(data)
        return data

    def place(self, session_id: int) -> int:
        """Number of bytes sent to a replica."""
        return self._places[session_id]

    def drop(self, session_id: int) -> None:
        """Remove a replica that has all of it, or is gone."""
        self._places.pop(session_id, None)
        if not self._places:
            self.close()

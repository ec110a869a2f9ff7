"""The work of a sink's task: it stores its rows on the server, next to their streams, until the driver commits them.

Rows are stored in pieces, as the commands that will add them. A piece blocks a server for milliseconds only, and a
commit adds one piece in one step. All commands may be sent twice, and are sent again after a broken connection.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from millstream.client.slots import slot_of
from millstream.client.url import CLUSTERS
from millstream.errors import UsageError
from millstream.spark.arrow.encode_rows import Commands, RowLayout, encode
from millstream.spark.connection.connection import pack
from millstream.spark.model import keys
from millstream.spark.model.offsets import Id
from millstream.spark.options.write import SinkOptions
from millstream.spark.write.pieces import pack_piece
from millstream.spark.write.send_window import SendWindow

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1000
PIECE_BYTES = 1 << 20
PIECE_WORDS = 30_000
"""Limits of a piece in rows, bytes (approximately) and arguments: it is added in one step."""

GATHERED = 32 << 20
"""Most bytes that wait for complete pieces when rows go to many streams."""


@dataclass
class Part:
    """The rows of one task for one stream."""

    stream: str  # Target stream
    key: str  # Key of the staged rows
    pieces: int = 0  # Number of pieces
    rows: int = 0  # Number of rows in all pieces
    first: str | None = None  # Id of the first row; None if the server generates ids
    last: str | None = None  # Id of the last row


@dataclass
class _Waiting:
    """Rows for one stream that are too few for a piece."""

    part: Part
    data: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    words: int = 0
    first: Id | None = None
    last: Id | None = None


class Staging:
    """Stages the rows of one attempt of one task."""

    def __init__(self, options: SinkOptions, writer: str) -> None:
        self._options = options
        self._writer = writer
        self._token = os.urandom(12).hex()
        self._waiting: dict[str, _Waiting] = {}
        self._gathered = 0
        self._window = SendWindow(options)

    @property
    def parts(self) -> list[Part]:
        """The parts with rows, one for each stream."""
        return [waiting.part for waiting in self._waiting.values()]

    def write(self, batches: "Iterable[pa.RecordBatch]", layout: RowLayout) -> None:
        """Store the rows; when this returns, the server has them all."""
        for batch in batches:
            for commands in encode(batch, layout):
                self._add(commands)
        self._flush_all()
        self._window.confirm_all()

    def discard(self) -> None:
        """Remove the stored rows; any that remain are removed by the next commit or expire."""
        staged = [part.key for part in self.parts]
        if staged:
            self._window.forget()
            for key in staged:
                self._window.send(key, ("UNLINK", key))
            register = keys.register(self._writer)
            self._window.send(register, ("SREM", register, *staged))
            self._window.confirm_all()

    def close(self) -> None:
        """Close the connection."""
        self._window.close()

    def _add(self, commands: Commands) -> None:
        if commands.targets is None:
            self._extend(commands.names[0], commands, None)
            return
        order = np.argsort(commands.targets, kind="stable")
        ends = np.searchsorted(commands.targets[order], np.arange(len(commands.names) + 1))
        for number, name in enumerate(commands.names):
            self._extend(name, commands, order[ends[number] : ends[number + 1]])
        if self._gathered > GATHERED:
            self._flush_all()

    def _flush_all(self) -> None:
        for waiting in list(self._waiting.values()):
            self._flush(waiting)

    def _extend(self, stream: str, commands: Commands, rows: np.ndarray[Any, Any] | None) -> None:
        """Add the rows for one stream, and send every complete piece."""
        waiting = self._waiting.get(stream)
        if waiting is None:
            key = keys.staged(stream, self._writer, f"{self._token}:{len(self._waiting)}")
            if self._options.url.startswith(CLUSTERS) and slot_of(key) != slot_of(stream):
                raise UsageError(
                    f"stream {stream!r} cannot be written on a cluster: no other key can be in the slot of a name with "
                    "a '}' and no tag in braces; name the stream otherwise"
                )
            waiting = self._waiting[stream] = _Waiting(Part(stream, key))
        bounds, words = commands.bounds, commands.words
        sizes = np.diff(bounds) if rows is None else (bounds[rows + 1] - bounds[rows])
        words = words if rows is None else words[rows]
        begin = 0
        while begin < len(sizes):
            count = _fitting(sizes[begin:], words[begin:], waiting)
            if count == 0:
                waiting = self._flush(waiting)
                continue
            chosen = slice(begin, begin + count)
            if rows is None:
                waiting.data.append(commands.data[bounds[begin] : bounds[begin + count]])
            else:
                waiting.data += [bytes(commands.data[bounds[row] : bounds[row + 1]]) for row in rows[chosen]]
            self._count(waiting, commands, rows, chosen, int(sizes[chosen].sum()), int(words[chosen].sum()))
            begin += count

    def _count(
        self,
        waiting: _Waiting,
        commands: Commands,
        rows: np.ndarray[Any, Any] | None,
        chosen: slice,
        size: int,
        words: int,
    ) -> None:
        waiting.size += size
        waiting.words += words
        waiting.rows += chosen.stop - chosen.start
        self._gathered += size
        if commands.ids is not None:
            ids = commands.ids[chosen] if rows is None else [commands.ids[row] for row in rows[chosen]]
            for ident in ids:
                if waiting.last is not None and ident <= waiting.last:
                    raise not_increasing(waiting.part.stream, waiting.last, ident)
                waiting.first = waiting.first or ident
                waiting.last = ident

    def _flush(self, waiting: _Waiting) -> _Waiting:
        """Send the waiting rows as a piece; return the holder of the next rows."""
        if not waiting.rows:
            return waiting
        part = waiting.part
        if part.pieces == 0:
            # Before the rows: an unregistered key would be removed only when it expires.
            register = keys.register(self._writer)
            self._window.send(register, ("SADD", register, part.key), ("PEXPIRE", register, self._options.staging_ms))
        if waiting.first is not None:
            part.first = part.first or str(waiting.first)
            part.last = str(waiting.last)
        kept = pack_piece(("HSET", part.key, part.pieces), waiting.rows, waiting.first, waiting.data)
        # In one step, so that a task that dies leaves no key without a time to live.
        ends = pack(("PEXPIRE", part.key, self._options.staging_ms), ("EXEC",))
        self._window.send_packed(part.key, b"".join((pack(("MULTI",)), *kept, ends)), 4)
        part.pieces += 1
        part.rows += waiting.rows
        self._gathered -= waiting.size
        fresh = self._waiting[part.stream] = _Waiting(part, last=waiting.last)
        return fresh


def _fitting(sizes: np.ndarray[Any, Any], words: np.ndarray[Any, Any], waiting: _Waiting) -> int:
    """Return the number of rows that fit into the waiting piece; at least one if it is empty."""
    left = PIECE_ROWS - waiting.rows
    by_bytes = int(np.searchsorted(np.cumsum(sizes[:left]), PIECE_BYTES - waiting.size, side="right"))
    by_words = int(np.searchsorted(np.cumsum(words[:left]), PIECE_WORDS - waiting.words, side="right"))
    return max(min(left, by_bytes, by_words), 0 if waiting.rows else 1)


def not_increasing(stream: str, last: object, ident: object) -> UsageError:
    """Return the error for ids that do not grow."""
    return UsageError(
        f"column 'id': {ident} comes after {last} in stream {stream!r}, and ids must grow from row to row, partition "
        "to partition and batch to batch: sort by it (in one partition, or by ranges), or drop the column to have ids "
        "made"
    )

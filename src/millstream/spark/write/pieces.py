"""A piece of staged rows: a line with the number of rows and the first one's id, then the XADDs as RESP bytes.

Staged rows are RESP commands that are sent unchanged, so a piece is checked before. Without the check, commands that
other clients wrote there would run with the rights of the sink's user. One reply too many or too few would be taken for
another command's. Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

import hiredis

from millstream.spark.connection.connection import Command, pack_long
from millstream.spark.model.offsets import Id, parse_id


class Piece(NamedTuple):
    """A piece of staged rows that was read back from the server."""

    rows: int  # Number of XADDs
    first: Id | None  # Id of the first one; None if the server generates ids
    commands: memoryview  # Packed XADDs


def pack_piece(
    command: Command, rows: int, first: Id | None, data: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """Return the command that stores a piece, as parts to join once: a piece may be a megabyte."""
    head = b"%d %s\n" % (rows, str(first or "").encode())
    return pack_long(command, [head, *data])


def read_piece(kept: bytes, stream: str) -> Piece:
    """Parse and check a staged piece."""
    begin = kept.index(b"\n") + 1
    count, _, ident = kept[: begin - 1].partition(b" ")
    rows = int(count)
    if rows < 1:
        raise ValueError(f"{rows} rows are none")
    _check_commands(kept, begin, rows, stream)
    return Piece(rows, parse_id(ident.decode()) if ident else None, memoryview(kept)[begin:])


def _check_commands(kept: bytes, begin: int, rows: int, stream: str) -> None:
    reader, key = hiredis.Reader(), stream.encode()
    reader.feed(kept, begin)
    for _ in range(rows):
        try:
            words = reader.gets()
        except hiredis.ProtocolError as problem:
            raise ValueError(str(problem)) from None
        if not isinstance(words, list) or words[:2] != [b"XADD", key] or set(map(type, words)) != {bytes}:
            raise ValueError("a command that is not an XADD to its stream")
        # Options precede the id, and MAXLEN 0 would empty the stream
        if len(words) < 5 or not (words[2] == b"*" or words[2][:1].isdigit()):
            raise ValueError("an XADD that does more than add a row")
    if reader.has_data():
        raise ValueError("more than its rows")

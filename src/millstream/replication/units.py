"""Encoding of one log record as a unit of the stream, which a replica runs as a whole or not at all. PURE."""

from collections.abc import Sequence

import hiredis

from millstream.engine.history import NO_DATABASE

MULTI = b"*1\r\n$5\r\nMULTI\r\n"
EXEC = b"*1\r\n$4\r\nEXEC\r\n"
PING = [b"PING"]
ASK = [b"REPLCONF", b"GETACK", b"*"]
"""The command that requests every replica's offset."""

Command = tuple[int, list[bytes]]
"""A database and the arguments of a command that runs in it; :data:`NO_DATABASE` if any database will do."""


def unit(commands: Sequence[Command], selected: int) -> tuple[bytes, int]:
    """Return the bytes of a unit, and the database selected after it."""
    parts: list[bytes] = []
    for at, (db, words) in enumerate(commands):
        if db not in {selected, NO_DATABASE}:
            parts.append(packed([b"SELECT", b"%d" % db]))
            selected = db
        if at == 0 and len(commands) > 1:
            parts.append(MULTI)
        parts.append(packed(words))
    if len(commands) > 1:
        parts.append(EXEC)
    return b"".join(parts), selected


def packed(words: list[bytes]) -> bytes:
    """Return a command's bytes."""
    data: bytes = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # its own types say: of one word
    return data

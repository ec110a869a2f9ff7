"""One record as bytes of the stream: a unit, which a replica runs as a whole or not at all. PURE."""

from collections.abc import Sequence

import hiredis

from millstream.engine.history import NO_DATABASE

MULTI = b"*1\r\n$5\r\nMULTI\r\n"
EXEC = b"*1\r\n$4\r\nEXEC\r\n"
PING = [b"PING"]
ASK = [b"REPLCONF", b"GETACK", b"*"]
"""Asks every replica how far it is."""

Command = tuple[int, list[bytes]]
"""A database and the words that are given in it; :data:`NO_DATABASE` where any will do."""


def unit(commands: Sequence[Command], selected: int) -> tuple[bytes, int]:
    """The bytes of a unit, and the database that is selected after it."""
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
    """A command's bytes."""
    data: bytes = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # its own types say: of one word
    return data

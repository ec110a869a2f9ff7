"""Streams as a file of plain commands, and back: RESP for ``redis-cli --pipe``, or text quoted for redis-cli.

Each stream is created under its own name, so the file is for a server without these keys. If the file's name ends in
``.gz``, it is compressed. The file is written under a temporary name and renamed when it is complete. It ends in a PING
with the number of commands, which reveals a file that was cut between two commands. To import a file, its commands are
run in a store in memory, and the streams are copied from there as from any server. Only commands that this module
writes are run.
"""

import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

from hiredis import ProtocolError, Reader

from millstream.migrate import commands as build
from millstream.migrate.capabilities import TargetFeatures
from millstream.migrate.connection import Command, Link, pack
from millstream.migrate.copy_stream import ATTEMPTS, claims, missing_records
from millstream.migrate.errors import ChangedError, MigrationError
from millstream.migrate.read_stream import Entries, Overview, deadline, overview
from millstream.paths import sync_directory

Form = Literal["resp", "text"]
Tell = Callable[[int], None]

#: Commands that a file may contain.
COMMANDS = frozenset(b"XADD XGROUP XCLAIM XNACK XSETID XTRIM XCFGSET XIDMPRECORD XDEL DEL PEXPIREAT".split())

_CHUNK = 1 << 20
_END = b"millstream:end"
_SEAL = b"millstream:export:end:"
_BATCH = 500
_BARE = re.compile(rb"[A-Za-z0-9_:.*+$@/-]+")
_ESCAPES = {ord("n"): b"\n", ord("r"): b"\r", ord("t"): b"\t", ord("b"): b"\b", ord("a"): b"\a"}
_WRITTEN = {byte: b"\\" + bytes([letter]) for letter, (byte,) in _ESCAPES.items()} | {34: b'\\"', 92: b"\\\\"}


# ---------------------------------------------------------------------- writing


class Writer:
    """Writer of commands to a file; see :func:`writing`."""

    def __init__(self, file: IO[bytes], form: Form, supports: TargetFeatures) -> None:
        self._file, self.supports = file, supports
        self._commands = 0
        self._pack = pack if form == "resp" else as_text

    def stream(self, source: Link, key: bytes, tell: Tell) -> Overview:
        """Write one stream; return its overview as written."""
        for left in range(ATTEMPTS - 1, -1, -1):
            before = overview(source, key)
            try:
                self._all(source, key, before, tell)
            except ChangedError:
                source.discard_replies()
                self._put([("DEL", key)])
                if not left:
                    raise
            else:
                break
        return before

    def _all(self, source: Link, key: bytes, stream: Overview, tell: Tell) -> None:
        missing = missing_records(source, key, stream)
        self._put(build.creating(key, stream.groups))
        self._put(build.orphaned_records(key, missing, self.supports))
        done = 0
        for page in Entries(source, key, upto=stream.last_id):
            self._put(build.adding(key, page))
            done += len(page)
            tell(done)
        for commands in claims(source, key, key, stream, missing, self.supports):
            self._put(commands)
        self._put(build.closing(key, stream, self.supports))
        ends = deadline(source, key)
        if ends is not None:
            self._put([("PEXPIREAT", key, ends)])
        if overview(source, key) != stream:
            raise ChangedError("it changed while it was exported: stop writers and readers")

    def end(self) -> None:
        """Write the end mark, which proves that nothing is missing."""
        self._file.write(self._pack(("PING", _SEAL + b"%d" % self._commands)))

    def _put(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self._file.write(self._pack(command))
            self._commands += 1


@contextmanager
def writing(path: Path, named: Callable[[], Path] | None = None) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield a file and its temporary name. If the block succeeds, give the file its final name durably."""
    if path.is_dir():
        raise MigrationError(f"{path} is a directory: name a file in it")
    part = path.with_name(f"{path.name}.part")
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with cast("IO[bytes]", opened(part, "wb")) as file:
            yield file, part
        with part.open("rb") as done:
            os.fsync(done.fileno())
        part.replace(path if named is None else named())
        sync_directory(path.parent)
    except OSError as error:
        raise MigrationError(f"{path} cannot be written: {error.strerror or error}") from None


def as_text(command: Command) -> bytes:
    """Return one command as redis-cli reads it from a terminal or a file, with quotes where needed."""
    return b" ".join(map(_quoted, command)) + b"\n"


def _quoted(word: bytes | str | int) -> bytes:
    data = word if isinstance(word, bytes) else str(word).encode()
    if _BARE.fullmatch(data):
        return data
    letters = (_WRITTEN.get(byte) or (b"%c" if 32 <= byte < 127 else b"\\x%02x") % byte for byte in data)
    return b'"' + b"".join(letters) + b'"'


# ---------------------------------------------------------------------- reading


def load(path: Path, link: Link) -> None:
    """Send a file's commands to ``link``.

    Only those of :data:`COMMANDS` are sent, since a file may come from anywhere: a FLUSHALL in it raises an error.
    """
    count = 0
    batch: list[list[bytes]] = []
    try:
        for words in _commands(path):
            batch.append(words)
            if len(batch) == _BATCH:
                _run(path, link, batch, count)
                count += len(batch)
                batch = []
        _run(path, link, batch, count)
    except (OSError, EOFError, zlib.error) as error:
        raise MigrationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _run(path: Path, link: Link, batch: list[list[bytes]], before: int) -> None:
    for at, (words, reply) in enumerate(zip(batch, link.ask(batch), strict=True), before + 1):
        if isinstance(reply, Exception):
            raise MigrationError(f"{path}, command {at} ({words[0].decode()}) fails: {reply}")


def _commands(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
    with cast("IO[bytes]", gzip.open(path) if is_packed else path.open("rb")) as file:
        is_resp = file.read(1) == b"*"
        file.seek(0)
        yield from _sealed(path, _resp(file) if is_resp else _text(file))


def _sealed(path: Path, commands: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield the commands of one or several exports in a row; check the end mark of each."""
    since, sealed = 0, False
    for at, words in enumerate(commands, 1):
        sealed = len(words) == 2 and words[0].upper() == b"PING" and words[1].startswith(_SEAL)
        if not sealed and (not words or words[0].upper() not in COMMANDS):
            raise MigrationError(f"{path}, command {at}: {words[:1]!r} is not a command that an export holds")
        if not sealed:
            since += 1
            yield words
        elif words[1] != _SEAL + b"%d" % since:
            said = words[1].removeprefix(_SEAL).decode(errors="replace")
            raise MigrationError(f"{path} has {since} of the {said} commands that were exported: export it again")
        else:
            since = 0
    if not sealed:
        raise MigrationError(
            f"{path} has no end mark of an export (PING {_SEAL.decode()}...): it was cut off; export it again"
        )


def _resp(file: IO[bytes]) -> Iterator[list[bytes]]:
    reader = Reader()
    while data := file.read(_CHUNK):
        reader.feed(data)
        while (words := _next(reader)) is not False:
            yield words
    # The reader does not report whether it waits for the rest of a command. If it did, this would not be read as a
    # command
    reader.feed(pack([_END]))
    if _next(reader) != [_END]:
        raise MigrationError(f"{file.name} ends within a command: it was cut off")


def _next(reader: Reader) -> list[bytes] | Literal[False]:
    try:
        found = reader.gets()
    except ProtocolError as error:
        raise MigrationError(f"not a file of commands: {error}") from None
    if found is not False and not (isinstance(found, list) and all(isinstance(word, bytes) for word in found)):
        raise MigrationError("not a file of commands: it holds replies")
    return found


def _text(file: IO[bytes]) -> Iterator[list[bytes]]:
    for at, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            raise MigrationError(f"{file.name} ends within a command: it was cut off")
        words = split(line)
        if words is None:
            raise MigrationError(f"{file.name}, line {at}: quotes that do not end")
        if words:
            yield words


_WORD = re.compile(rb'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"\']+))(?=\s|$)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)


def split(line: bytes) -> list[bytes] | None:
    """Return the words of a line that :func:`as_text` quoted; None if its format is different."""
    words, at, line = [], 0, line.rstrip(b"\r\n")
    while line[at:].strip():
        found = _WORD.match(line, at)
        if found is None:
            return None
        words.append(found[2] if found[1] is None else _ESCAPED.sub(_plain, found[1]))
        at = found.end()
    return words


def _plain(escape: re.Match[bytes]) -> bytes:
    if escape[1] is not None:
        return bytes([int(escape[1], 16)])
    return _ESCAPES.get(escape[2][0], escape[2])

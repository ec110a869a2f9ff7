"""RDB files of Redis, Valkey and Millstream: read into a store in memory, and written from one.

In both directions the streams are copied as between any two servers, compared and reported one by one. Keys of other
types are copied only to and from RDB files, by DUMP and RESTORE, and are compared too.
"""

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.exceptions import ResponseError

from millstream import __version__
from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.keyspace import DATABASES, Keyspace, StringValue, Value
from millstream.engine.serialization import dump
from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb import payload as redis_form
from millstream.engine.serialization.rdb.reading import NotHeld, RdbError, RdbKey, read_file
from millstream.engine.serialization.rdb.writing import redis_payload, write_file
from millstream.glob import matcher
from millstream.migrate.command_file import writing
from millstream.migrate.commands import DEFAULT_SETTINGS
from millstream.migrate.connection import Command, Link, refusal
from millstream.migrate.errors import ChangedError, MigrationError
from millstream.migrate.read_stream import Overview, deadline, overview
from millstream.migrate.run import MigrationOptions, MigrationReport, Tell, move
from millstream.texts import plural

FORMATS = {"7.0": 10, "7.2": 11, "8.8": 14}
"""Version of the file, by the oldest Redis that must read it."""

LARGEST = 500 * 1024 * 1024
"""Largest payload of a key in bytes. RESTORE accepts arguments of 512 MiB, and logs them in one record."""

_CHUNK = 1 << 20
# Number of keys in one batch of commands
_TOGETHER = 100
# Redis's defaults, for streams whose limits for producers the source does not report
_SECONDS, _MESSAGES = 100, 100


def rdb_path(source: str) -> Path | None:
    """Return the file if ``source`` is the path or URL of an RDB file, by its first bytes or its suffix; else None."""
    path = Path(unquote(urlsplit(source).path)) if source.startswith("file://") else Path(source)
    try:
        with path.open("rb") as file:
            is_one = path.suffix == ".rdb" or file.read(6).startswith((b"REDIS", b"VALKEY"))
            return path if is_one else None
    except OSError:
        return None  # a URL, a directory, or nothing, which other code reports


# ---------------------------------------------------------------------- reading a file


def import_rdb(
    path: Path, db: int, target: Link, choices: MigrationOptions, tell: Tell, *, largest: int = LARGEST
) -> MigrationReport:
    """Copy one database of a file to the target."""
    if not 0 <= db < DATABASES:
        raise MigrationError(f"database {db} of the file: there are {DATABASES}, from 0 on")
    with Link("memory://", db=db) as made:
        content = _FileContent(made, db, choices, largest)
        try:
            with path.open("rb") as file:
                content.load(iter(partial(file.read, _CHUNK), b""))
        except OSError as error:
            raise MigrationError(f"{path} cannot be read: {error.strerror or error}") from None
        except RdbError as error:
            raise MigrationError(f"{path} is damaged, or not an RDB file: {error}; nothing was copied") from None
        report = move(made, target, choices, tell)
        _carry_others(made, target, choices, report)
    report.left += [
        (key, "it is too large to be read from a file: copy it from the server") for key in content.too_large
    ]
    report.elsewhere, report.not_held = dict(content.elsewhere), content.not_held
    return report


class _FileContent:
    """Loads the content of a file into a store."""

    def __init__(self, link: Link, db: int, choices: MigrationOptions, largest: int) -> None:
        self._link, self._db, self._largest = link, db, largest
        self._fits = [matcher(pattern.encode()) for pattern in choices.patterns]
        self.elsewhere: Counter[int] = Counter()  # Number of keys in other databases
        self.not_held: list[tuple[str, bytes | None]] = []  # Contents of the present file that were skipped
        self.too_large: list[bytes] = []  # Keys in it that are too large for one RESTORE

    def load(self, pieces: Iterator[bytes]) -> None:
        """Read the whole file."""
        items = (item for item in read_file(pieces) if isinstance(item, RdbKey | NotHeld))
        restores = (self._restore(item) for item in items if self._is_wanted(item))
        wanted = (words for words in restores if words is not None)
        while some := list(islice(wanted, _TOGETHER)):
            for words, reply in zip(some, self._link.ask(some), strict=True):
                if isinstance(reply, ResponseError):
                    raise RdbError(f"key {words[1]!r} cannot be: {refusal(reply)}")

    def _is_wanted(self, item: RdbKey | NotHeld) -> bool:
        if item.db != self._db:
            self.elsewhere[item.db] += item.key is not None
            return False
        return item.key is None or not self._fits or any(fits(item.key) for fits in self._fits)

    def _restore(self, item: RdbKey | NotHeld) -> Command | None:
        if isinstance(item, NotHeld):
            self.not_held.append((item.what, item.key))
            return None
        ends = 0 if item.expires_at is None else max(item.expires_at, 1)
        payload = dump.dump(item.value)
        if len(payload) > self._largest:
            self.too_large.append(item.key)
            return None
        return ("RESTORE", item.key, ends, payload, "ABSTTL")


# ---------------------------------------------------------------------- keys of other types


def _carry_others(source: Link, target: Link, choices: MigrationOptions, report: MigrationReport) -> None:
    """Copy the keys that are not streams, each in one command."""
    carried: Counter[str] = Counter()
    for key in report.other_keys:
        value = _value(source.ask([("DUMP", key)])[0])
        if isinstance(value, str):
            report.left.append((key, value))
            continue
        reason = _carry(source, target, key, value, choices)
        if reason:
            report.left.append((key, reason))
        else:
            carried[value.kind.decode()] += 1
    report.carried, report.others = dict(carried), {}


def _value(reply: Any) -> Value | str:
    """Return the value in a server's reply to DUMP, or the reason that there is none."""
    if not isinstance(reply, bytes):
        return "it is gone" if reply is None else f"DUMP was refused: {refusal(reply)}"
    try:
        if dump.is_ours(reply):
            return dump.load(reply)
        return redis_form.load(reply, _SECONDS, _MESSAGES)
    except MalformedError as error:
        return f"it is not supported here: {error}"


def _carry(source: Link, target: Link, key: bytes, value: Value, choices: MigrationOptions) -> str:
    """Copy one key. Return the reason that it is not at the target, empty if it is."""
    if choices.existing != "replace" and target.call("EXISTS", key):
        if choices.existing == "skip" or _is_there(target, key, value):
            return ""
        return "the target has another key of this name"
    try:
        ends = deadline(source, key) or 0
    except ChangedError:
        return "its time to live ended"
    for form in (dump.dump(value), redis_payload(value)):
        reply = target.ask([("RESTORE", key, ends, form, "ABSTTL", "REPLACE")])[0]
        if not isinstance(reply, ResponseError):
            break
    else:
        return f"RESTORE was refused: {refusal(reply)}"
    return "" if not choices.check or _is_there(target, key, value) else "its copy is not like it"


def _is_there(target: Link, key: bytes, value: Value) -> bool:
    found = _value(target.ask([("DUMP", key)])[0])
    return not isinstance(found, str) and _content(found) == _content(value)


def _content(value: Value) -> Any:
    """Return the content for comparison, in which hashes and sets have no order."""
    if isinstance(value, StringValue):
        return value.data
    if isinstance(value, HashValue):
        return value.fields
    if isinstance(value, ZSetValue):
        return value.scores
    if isinstance(value, SetValue):
        return set(value)
    return value.between(0, len(value)) if isinstance(value, ListValue) else value


# ---------------------------------------------------------------------- writing a file


def export_rdb(source: Link, path: Path, redis: str, choices: MigrationOptions, tell: Tell) -> MigrationReport:
    """Write one database to a file that Redis can load."""
    if source.database >= DATABASES:
        raise MigrationError(f"database {source.database}: a file is written of those below {DATABASES}")
    with Link("memory://", db=source.database) as made:
        report = move(source, made, choices, tell)
        _carry_others(source, made, choices, report)
        _note_losses(made, redis, choices, report)
        space = _taken(made, report)
    aux = {"redis-ver": f"{redis}.0", "redis-bits": "64", "ctime": f"{time.time():.0f}", "millstream-ver": __version__}
    with writing(path) as (file, _):
        for piece in write_file(space, aux=aux, version=FORMATS[redis]):
            file.write(piece)
    return report


def _note_losses(made: Link, redis: str, choices: MigrationOptions, report: MigrationReport) -> None:
    """Record the facts that the file's version cannot hold."""
    for outcome in report.streams:
        if outcome.ok:
            outcome.losses += _losses(overview(made, outcome.key), FORMATS[redis])
            if outcome.losses and choices.strict:
                outcome.state = "failed"
                outcome.reason = "something would be lost (--strict): " + "; ".join(outcome.losses)


def _losses(stream: Overview, version: int) -> list[str]:
    found = []
    released = sum(group.released for group in stream.groups)
    if released and version < FORMATS["8.8"]:
        found.append(
            f"{plural(released, 'released entry', 'released entries')}: a file for Redis before 8.8 has none; "
            'held by a consumer "" with '
            "delivery time 0, so that any claim takes them"
        )
    if any((group.entries_read or 0) > (stream.entries_added or 0) for group in stream.groups):
        found.append("entries-read beyond entries-added: newer servers call that corrupt; it is lowered")
    if (stream.messages or stream.duplicates or stream.settings not in {None, DEFAULT_SETTINGS}) and version < 13:
        found.append("settings and messages of idempotent adding: a file for Redis before 8.6 has no place for them")
    return found


def _taken(made: Link, report: MigrationReport) -> Keyspace:
    """Return the keyspace of the store; move one key at a time to save memory."""
    space = Keyspace()
    base = space.databases[made.database]
    failed = {outcome.key for outcome in report.streams if not outcome.ok and outcome.state != "behind"}
    for key in sorted(made.call("KEYS", "*")):
        ends, value = made.call("PEXPIRETIME", key), _value(made.call("DUMP", key))
        made.call("DEL", key)
        if key not in failed and not isinstance(value, str):
            base.keys[key] = value
            if ends >= 0:
                base.expires[key] = ends
    return space

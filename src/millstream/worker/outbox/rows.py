"""The rows of an outbox: their table, the insert in a transaction, and the reading by a relay.

A row contains encoded content, so a value that cannot be encoded fails in the caller's transaction and not in the
relay. A relay deletes a row once its entry is in the stream.
"""

import sqlite3
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, Engine, Insert, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.dialects.mysql import LONGBLOB

from millstream import times
from millstream.client.later import schedule
from millstream.client.later.schedule import LATEST_MS, WORDS_LIMIT
from millstream.client.partitions.layout import key_bytes
from millstream.errors import ConfigError, UsageError
from millstream.worker.handlers.publish import fields_of
from millstream.worker.model.answers import PayloadError

_NAME_LENGTH = 500

# The table of an outbox, for ``metadata.create_all`` and migrations.
table = Table(
    "millstream_outbox",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("mark", String(32), nullable=False),
    Column("stream", String(_NAME_LENGTH), nullable=False),
    Column("entry_key", String(_NAME_LENGTH)),
    Column("fields", LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb"), nullable=False),
    Column("at_ms", BigInteger()),
    Column("added_ms", BigInteger(), nullable=False),
    Column("next_ms", BigInteger(), nullable=False, server_default="0"),
    Column("tries", Integer(), nullable=False, server_default="0"),
    Column("error", Text()),
    sqlite_autoincrement=True,
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mariadb_engine="InnoDB",
    mariadb_charset="utf8mb4",
)


class Row(NamedTuple):
    """A row as a relay reads it."""

    id: int
    mark: str
    stream: str
    fields: bytes  # Alternating names and values, each preceded by its length
    at_ms: int | None  # Time at which the entry is to be added, milliseconds since 1970; None for at once
    tries: int
    entry_key: str | None = None  # Partition key; unused for a plain stream


def create(bind: Any) -> None:
    """Create the table, unless it exists.

    Args:
        bind: SQLAlchemy's engine or connection.
    """
    table.metadata.create_all(bind)


def insert(
    stream: str,
    content: Any,
    *,
    key: str | bytes | float | None = None,
    delay: float | str | None = None,
    headers: dict[str, str] | None = None,
) -> Insert:
    """Return SQLAlchemy's statement for a row, for ``await session.execute(outbox.insert(...))``.

    Args:
        stream: as for :func:`add`, like the other arguments.
        content: content of the entry.
        key: key of the entry.
        delay: delay before the entry is added.
        headers: headers of the entry.

    Raises:
        PayloadError: the content cannot be written as an entry.
    """
    return table.insert().values(**_values(stream, content, key, delay, headers))


def add(
    connection: Any,
    stream: str,
    content: Any,
    *,
    key: str | bytes | float | None = None,
    delay: float | str | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    """Insert a row in the transaction of a connection; once that commits, a relay adds the entry to its stream.

    Args:
        connection: SQLAlchemy's connection or session, Django's connection, or one of a driver (DB-API).
        stream: key of the stream, 1 to 500 characters.
        content: as for :meth:`millstream.App.publish`.
        key: key of the entry, stored in the row. It chooses the partition of a partitioned stream; other streams do
            not use it.
        delay: time until the entry is added, in seconds or as a text such as ``"10m"``, by this machine's clock.
        headers: as for :meth:`millstream.App.publish`.

    Raises:
        ConfigError: the stream or the delay is invalid.
        PayloadError: the content cannot be written as an entry; nothing was inserted.
        UsageError: the first argument is not a connection.
    """
    values = _values(stream, content, key, delay, headers)
    if isinstance(connection, Engine):
        raise UsageError(
            "outbox.add(engine) is invalid: a row belongs to a transaction. Write `with engine.begin() as connection:` "
            "and outbox.add(connection, ...)."
        )
    module = type(connection).__module__
    if module.startswith("sqlalchemy.ext.asyncio"):
        raise UsageError(
            "outbox.add() of an asynchronous connection is invalid. Write "
            "`await connection.execute(outbox.insert(stream, content))`."
        )
    # A session may be a user's subclass in any module; every session has ``scalars``
    if module.startswith("sqlalchemy.") or hasattr(connection, "scalars"):
        connection.execute(table.insert().values(**values))
        return
    if not callable(getattr(connection, "cursor", None)):
        raise UsageError(
            f"outbox.add({connection!r}) is invalid: it takes the connection of your transaction. Write "
            "outbox.add(connection, stream, content)."
        )
    # Each DB-API driver chooses its placeholder, which a connection does not show: all except sqlite3 accept %s
    sign = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    names, signs = ", ".join(values), ", ".join([sign] * len(values))
    cursor = connection.cursor()
    try:
        cursor.execute(f"INSERT INTO {table.name} ({names}) VALUES ({signs})", tuple(values.values()))  # noqa: S608 - constants
    finally:
        cursor.close()


def _values(
    stream: Any, content: Any, key: Any, delay: float | str | None, headers: dict[str, str] | None
) -> dict[str, Any]:
    """Return the columns of a new row."""
    _check_name("stream", stream)
    if key is not None:
        key = key if isinstance(key, str) else key_bytes(key).decode("utf-8", "surrogateescape")
        _check_name("key", key)
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigError(f'outbox.add(headers={headers!r}) is invalid: write {{"name": "value"}}.')
    now = time.time_ns() // 1_000_000
    at = None if delay is None else now + round(times.configured("outbox.add(delay=", delay, "s") * 1000)
    fields = fields_of(content, headers)
    if len(fields) > WORDS_LIMIT:
        raise PayloadError(f"{stream}: the entry is invalid: an outbox takes at most {WORDS_LIMIT // 2} fields")
    return {
        "mark": uuid.uuid4().hex,
        "stream": stream,
        "entry_key": key,
        "fields": schedule.packed(fields),
        "at_ms": at,
        "added_ms": now,
        "next_ms": 0,
        "tries": 0,
    }


def _check_name(option: str, given: object) -> None:
    try:
        fine = isinstance(given, str) and 0 < len(given) <= _NAME_LENGTH and "\0" not in given and bool(given.encode())
    except UnicodeEncodeError:
        fine = False
    if not fine:
        raise ConfigError(
            f"outbox.add({option}={given!r}) is invalid: it must be text of 1 to {_NAME_LENGTH} characters without NUL."
        )


def check(row: Row) -> None:
    """Raise PayloadError unless a row has the form that :func:`add` writes: other programs may write to the table."""
    kinds = {"mark": str, "stream": str, "fields": bytes | memoryview, "at_ms": int | None, "entry_key": str | None}
    for name, kind in kinds.items():
        if not isinstance(getattr(row, name), kind) or getattr(row, name) == "":
            raise PayloadError(f"column {name} is not one that outbox.add wrote")
    if row.at_ms is not None and not 0 <= row.at_ms <= LATEST_MS:
        raise PayloadError("column at_ms is not one that outbox.add wrote")


def fields_in(packed: bytes) -> list[bytes]:
    """Return the names and values of a row, in turn."""
    words, rest = schedule.words_in(bytes(packed))
    if not words or len(words) % 2 or rest:
        raise PayloadError("column fields is not one that outbox.add wrote")
    return words

"""The database's side of a relay: the lock that lets one relay work at a time, the rows, and the end of a turn.

A turn is one transaction. PostgreSQL has an advisory lock for it, MariaDB and MySQL have a named lock, and SQLite has
the lock of its single writer. If two relays work at once nevertheless, marks on the server keep each entry single.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, bindparam, delete, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from millstream.errors import ConfigError
from millstream.printable import printable
from millstream.worker.outbox.rows import Row, table

BATCH = 100  # number of rows in one turn

_KEY = 5_713_120_311_854_277_633  # number of the advisory lock
_NAMED = "CONCAT('millstream_outbox:', MD5(DATABASE()))"
_ERROR_LENGTH = 1_000
# Milliseconds before a postponed row is tried again: first and longest.
_AGAIN_MS, _LONGEST_MS = 60_000, 3_600_000

DIALECTS = ("postgresql", "mariadb", "mysql", "sqlite")


class FailedRow(NamedTuple):
    """A row that could not be published."""

    row: Row
    error: str


class Turn:
    """One turn of a relay, from the lock to the commit."""

    def __init__(self, engine: Engine) -> None:
        self.rows: list[Row] = []
        self._name = engine.dialect.name
        self._connection = engine.connect()
        try:
            self.locked = self._lock()
            if self.locked:
                self.rows = _ready(self._connection)
        except BaseException:
            self._connection.invalidate()  # the lock ends with the session
            self._connection.close()
            raise
        if not self.rows:
            self.end()

    def end(self, moved: Sequence[int] = (), failures: Sequence[FailedRow] = ()) -> None:
        """Delete published rows, postpone failed rows, and commit."""
        with self._connection as connection:
            try:
                if moved:
                    connection.execute(delete(table).where(table.c.id.in_(moved)))
                if failures:
                    connection.execute(_ASIDE, [_aside(one) for one in failures])
                connection.commit()
                if self.locked and self._name in {"mariadb", "mysql"}:  # MySQL keeps a named lock after the commit
                    connection.execute(text(f"SELECT RELEASE_LOCK({_NAMED})"))
                    connection.commit()
            except BaseException:
                connection.invalidate()  # its lock and its transaction end with it
                raise

    def _lock(self) -> bool:
        if self._name == "postgresql":
            return bool(self._connection.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _KEY}))
        if self._name == "sqlite":
            # Equals BEGIN IMMEDIATE, however the engine begins transactions
            self._connection.execute(update(table).where(table.c.id == -1).values(tries=0))
            return True
        return bool(self._connection.scalar(text(f"SELECT GET_LOCK({_NAMED}, 0)")) == 1)


_ASIDE = (
    update(table)
    .where(table.c.id == bindparam("the_id"))
    .values(tries=bindparam("the_tries"), error=bindparam("the_error"), next_ms=bindparam("the_next"))
)


def _aside(one: FailedRow) -> dict[str, Any]:
    tries = one.row.tries + 1 if isinstance(one.row.tries, int) else 1
    pause = min(_AGAIN_MS * 2 ** min(tries - 1, 10), _LONGEST_MS)
    return {
        "the_id": one.row.id,
        "the_tries": tries,
        "the_error": printable(one.error)[:_ERROR_LENGTH],
        "the_next": now() + pause,
    }


def now() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _ready(connection: Connection, limit: int = BATCH) -> list[Row]:
    columns = (table.c[name] for name in Row._fields)
    found = connection.execute(select(*columns).where(table.c.next_ms <= now()).order_by(table.c.id).limit(limit))
    return [Row(*one) for one in found]


def is_waiting(engine: Engine) -> bool:
    """Report whether a row is ready, without the lock, which on SQLite is that of the writer."""
    with engine.connect() as connection:
        return bool(_ready(connection, 1))


def aside(engine: Engine, limit: int) -> tuple[int, list[Any]]:
    """Return the number of rows, and the postponed rows in order."""
    columns = [table.c[name] for name in ("id", "stream", "added_ms", "tries", "next_ms", "error")]
    with engine.connect() as connection:
        count = connection.scalar(text(f"SELECT COUNT(*) FROM {table.name}"))  # noqa: S608 - a constant
        found = connection.execute(select(*columns).where(table.c.tries > 0).order_by(table.c.id).limit(limit))
        return int(count or 0), [tuple(one) for one in found]


def checked(engine: Any) -> Engine:
    """Return an engine that a relay can use; raise ConfigError for any other."""
    if hasattr(engine, "sync_engine"):
        raise ConfigError(
            "outbox(engine) is invalid: a relay takes an engine of sqlalchemy.create_engine, with a driver such as "
            "psycopg or pymysql. An asynchronous engine is only for outbox.insert."
        )
    if not isinstance(engine, Engine):
        raise ConfigError(f"outbox({engine!r}) is invalid: it needs an engine. Write sqlalchemy.create_engine(url).")
    if engine.dialect.name not in DIALECTS:
        raise ConfigError(
            f"outbox(engine) of {engine.dialect.name} is invalid: it works on PostgreSQL, MariaDB, MySQL and SQLite."
        )
    return engine


@contextmanager
def readable_errors() -> Iterator[None]:
    """Raise the database's errors as one line, without the statement."""
    try:
        yield
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip()
        hint = ""
        if table.name in reason:
            hint = f" Create the table {table.name}: `millstream outbox create`, or outbox.create(engine)."
        raise OSError(f"the database refuses or does not answer: {reason}{hint}") from error

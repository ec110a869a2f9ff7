"""Schedules, entries that wait for their time next to their stream: keys, content, and the script. Pure.

::

    millstream:{bills}:later:due       sorted set: schedule id -> due time, milliseconds since 1970
    millstream:{bills}:later:content   hash: schedule id -> "<expiry in ms or ->:<length>:<word>...", arguments of XADD;
                                       "=<key>" after them if its publisher gave the key that chooses a partition
    millstream:{bills}:later:placed    hash: recurring schedule -> last time placed; paused:<name> while it is paused
    millstream:{bills}:later:mover     string, lives a second: the worker that publishes due schedules in that time
    millstream:later                   set: the streams that have, or had, schedules

All keys but the last are in the stream's slot. One script (``later.lua``) changes them. It removes a schedule in the
step that adds its entry. So a schedule becomes exactly one entry, even if a process is killed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millstream import times
from millstream.client.later.scripts import ServerScript
from millstream.client.slots import beside
from millstream.errors import ConfigError

INDEX = "millstream:later"
CONTROL, FLAG = "millstream:control", "later"
"""The key that every worker reads with its heartbeat, and its field that is set once any stream has schedules."""

SCRIPT = ServerScript.beside("millstream.client.later", "later.lua")

WORDS_LIMIT = 7_500
"""Most words of an entry that a script can pass on: Lua's limit is 8,000."""

TURN_MS = 1_000
"""Milliseconds for which one worker alone publishes the due schedules of a stream."""

BATCH = 100
BATCH_BYTES = 1 << 20
"""Most schedules and most bytes that one step moves, so that it blocks a server for a few milliseconds only."""

ID_BYTES = 200
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Schedule:
    """An entry that waits for its time.

    Attributes:
        stream: key of the stream that gets the entry.
        id: of the schedule.
        at_ms: due time, in milliseconds since 1970.
        fields: names and values of the entry, in turn.
        expires_ms: the time after which it is dropped, in milliseconds since 1970; None for never.
        trim: arguments of XADD that trim the stream when the entry is added.
        key: the key that its publisher gave to choose a partition; None for the stream's own field.
    """

    stream: str
    id: str
    at_ms: int
    fields: tuple[bytes, ...]
    expires_ms: int | None = None
    trim: tuple[str, ...] = ()
    key: bytes | None = None

    @property
    def at(self) -> datetime:
        """Due time."""
        return _EPOCH + timedelta(milliseconds=self.at_ms)


@dataclass(frozen=True, slots=True)
class When:
    """The due time of a schedule, absolute or as a delay, and the time until it expires."""

    at_ms: int | None = None  # Milliseconds since 1970; None counts from the server's present time
    delay_ms: int = 0
    expires_ms: int | None = None  # Largest allowed lateness, in milliseconds

    @property
    def words(self) -> tuple[str | int, int]:
        """Due time and delay, as arguments of the script."""
        return ("" if self.at_ms is None else self.at_ms), self.delay_ms


def due_key(stream: str) -> str:
    """Return the key of the due times of a stream's schedules."""
    return beside(stream, "later", "due")


def content_key(stream: str) -> str:
    """Return the key of the contents of a stream's schedules."""
    return beside(stream, "later", "content")


def keys(stream: str, last: str) -> tuple[str, str, str, str]:
    """Return the four keys that the script takes; ``last`` depends on its operation (see ``later.lua``)."""
    return stream, due_key(stream), content_key(stream), last


def placed_key(stream: str) -> str:
    """Return the key of the times at which a stream's recurring schedules were placed last."""
    return beside(stream, "later", "placed")


def mover_key(stream: str) -> str:
    """Return the key that names the worker that publishes due schedules now."""
    return beside(stream, "later", "mover")


def when(
    name: str, at: datetime | str | int | None, delay: float | str | None, expires: float | str | None = None
) -> When:
    """Return the time of a schedule, from a caller's arguments.

    Args:
        name: of the call, for errors.
        at: an aware datetime, an ISO text with a zone, or milliseconds since 1970.
        delay: seconds or a text, from the server's present time.
        expires: most seconds, or a text, that the entry may be late.

    Raises:
        ConfigError: both or neither are given, or one is not a time.
    """
    if (at is None) == (delay is None):
        raise ConfigError(f"{name}(at=, delay=) is invalid: give exactly one of the two.")
    late = None if expires is None else round(times.configured(f"{name}(expires=", expires, "s") * 1000)
    if delay is not None:
        return When(None, round(times.configured(f"{name}(delay=", delay, "s") * 1000), late)
    return When(_moment(name, at), 0, late)


def _moment(name: str, at: object) -> int:
    given = at
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            hint = 'Write a time such as "2026-12-24T18:00+01:00".'
            raise ConfigError(f"{name}(at={given!r}) is invalid: it is not a time. {hint}") from None
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ConfigError(f"{name}(at={given!r}) is invalid: it has no time zone. Write +00:00, or tzinfo=UTC.")
        at = (at - _EPOCH) // timedelta(milliseconds=1)
    if not isinstance(at, int) or isinstance(at, bool):
        raise ConfigError(
            f"{name}(at={given!r}) is invalid: it must be an aware datetime, an ISO text, or milliseconds since 1970."
        )
    if not 0 <= at <= LATEST_MS:
        raise ConfigError(f"{name}(at={given!r}) is invalid: it must be between the years 1970 and 9999.")
    return at


def checked_id(name: str, given: object, option: str = "id") -> str:
    """Return the id of a schedule, after a check that it is valid."""
    try:
        size = len(given.encode()) if isinstance(given, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= ID_BYTES:
        raise ConfigError(f"{name}({option}={given!r}) is invalid: it must be a text of 1 to {ID_BYTES} bytes.")
    return str(given)


def packed(words: Sequence[bytes | str | int], key: bytes | None = None) -> bytes:
    """Return the words as one byte string, each with its length before it; then ``=`` and the partition key, if any."""
    parts = [word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape") for word in words]
    return b"".join(b"%d:%b" % (len(part), part) for part in parts) + (b"" if key is None else b"=" + key)


def words_in(packed: bytes) -> tuple[list[bytes], bytes]:
    """Return the words that :func:`packed` wrote, and the text from ``=`` on; no words if another program wrote it."""
    words: list[bytes] = []
    while packed and not packed.startswith(b"="):
        size, colon, packed = packed.partition(b":")
        if not colon or not size.isdigit() or len(size) > 9 or int(size) > len(packed):
            return [], b""
        words.append(packed[: int(size)])
        packed = packed[int(size) :]
    return words, packed


def unpacked(stream: str, ident: bytes, at: bytes | float | str, content: bytes | None) -> Schedule:
    """Return a schedule from its parts on the server; without fields if Millstream did not write its content."""
    shown, at_ms = ident.decode(errors="surrogateescape"), _whole(at)
    head, _, rest = (content or b"").partition(b":")
    words, rest = words_in(rest)
    if head.endswith(b"!"):
        head, words = head[:-1], words[1:]  # group that must have handled all earlier entries
    if b"*" not in words:
        return Schedule(stream, shown, at_ms, ())
    star = words.index(b"*")
    trim = tuple(word.decode(errors="surrogateescape") for word in words[:star])
    expires = int(head) if head.isdigit() and len(head) < 20 else None
    return Schedule(stream, shown, at_ms, tuple(words[star + 1 :]), expires, trim, rest[1:] if rest else None)


def _whole(score: bytes | float | str) -> int:
    value = float(score)
    return int(min(max(value, 0), 2.0**62)) if math.isfinite(value) else LATEST_MS

"""The result of an entry: its keys, the field of an entry that requests one, and the record of its end.

::

    millstream:{orders}:result:<id>           hash: group -> JSON {state, value or error, at_ms}; progress:<group>
    millstream:{orders}:cancelled:<group>     sorted set: entry id -> when it was cancelled, milliseconds since 1970
    millstream:replies:<process>              stream: hints that a result exists; about 1,000 entries, for an hour

All keys but the last are in the stream's slot. Only the hash counts; the hints merely save waiting.

An entry requests a result by one more field, its last: ``_job``, JSON with ``keep_ms`` and ``reply``, the process that
waits. Workers take it off before the entry is decoded. A worker of an earlier version leaves it on.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millstream.client.dead_letter.letter import HISTORY, take_history
from millstream.client.dead_letter.tries import FailedTry, tries_text
from millstream.client.jsontext import parse, parse_record
from millstream.client.slots import beside

FIELD = b"_job"

VALUE_BYTES = 1 << 20
"""Most bytes of a value's JSON."""

KEEP_MS = 366 * 86_400_000
"""Most milliseconds for which a result is kept."""

ERROR_CHARACTERS = 2_000
"""Most characters of a dead entry's error in its result."""

REPLIES = 1_000
REPLIES_MS = 3_600_000
"""Number of hints that are kept, and milliseconds until they expire."""

CANCELLED_MS = 30 * 86_400_000
"""Milliseconds for which the cancellation of an entry that does not end is kept."""

_NAME = re.compile(r"[0-9a-f]{1,64}")


class WantedResult(NamedTuple):
    """A result that an entry's publisher requests."""

    keep_ms: int  # Milliseconds for which the result is kept
    reply: str  # Address of the process that waits for the result


class ResultRow(NamedTuple):
    """A result to write, as arguments of a script."""

    key: str
    field: str
    text: str
    keep_ms: int

    @property
    def commands(self) -> list[tuple[str | int, ...]]:
        """The commands that write the result without a script."""
        return [("HSET", self.key, self.field, self.text), ("PEXPIRE", self.key, self.keep_ms)]


def trailer(wanted: WantedResult) -> list[bytes]:
    """Return the name and value of the field that requests a result."""
    return [FIELD, json.dumps(wanted._asdict(), separators=(",", ":")).encode()]


def take_trailer(flat: list[bytes]) -> tuple[list[bytes], tuple[Mapping[str, object], ...], WantedResult | None]:
    """Return an entry's own fields, its earlier deaths, and the result that it requests.

    Without deaths and a request, it returns ``flat`` itself.
    """
    own, history = take_history(flat) if len(flat) > 2 and flat[-2] == HISTORY else (flat, ())
    if len(own) > 2 and own[-2] == FIELD and (wanted := parse_wanted(own[-1])) is not None:
        return own[:-2], history, wanted
    return own, history, None


def parse_wanted(text: bytes) -> WantedResult | None:
    """Parse the field's value; None if Millstream did not write it: any client may write such a field."""
    try:
        found = parse(text)
    except ValueError:
        return None
    keep_ms, reply = (found.get("keep_ms"), found.get("reply")) if isinstance(found, dict) else (None, None)
    if type(keep_ms) is not int or not 0 < keep_ms <= KEEP_MS:
        return None
    if not isinstance(reply, str) or not _NAME.fullmatch(reply):
        return None
    return WantedResult(keep_ms, reply)


def result_key(stream: str, ident: str) -> str:
    """Return the key of an entry's results."""
    return beside(stream, "result", ident)


def cancelled_key(stream: str, group: str) -> str:
    """Return the key of a group's cancelled entries."""
    return beside(stream, "cancelled", group)


def replies_key(process: str) -> str:
    """Return the key of the hints to a process."""
    return f"millstream:replies:{process}"


def record(state: str, at_ms: int, **more: Any) -> str:
    """Return the JSON record of an entry's end; raise ValueError or TypeError for a value that is not JSON."""
    return json.dumps({"state": state, **more, "at_ms": at_ms}, separators=(",", ":"), allow_nan=False)


def with_tries(text: str, tries: Sequence[FailedTry]) -> str:
    """Return a record with the failed tries before this end, if there is room for them."""
    whole = f'{text[:-1]},"tries":{tries_text(tries)}}}' if tries else text
    return whole if len(whole) <= VALUE_BYTES else text


def parse_result(text: bytes | None) -> dict[str, Any] | None:
    """Parse a result record; None if it is missing or something else."""
    if text is None:
        return None
    try:
        found = parse(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("state") in ENDS else None


def parse_progress(text: bytes | None) -> dict[str, Any] | None:
    """Parse the progress that a handler reported; None without one."""
    try:
        found = None if text is None else parse_record(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


ENDS = ("done", "dead", "cancelled")
"""Final states of an entry."""


def hint(wanted: WantedResult, ident: str) -> list[tuple[str | int, ...]]:
    """Return the commands that wake the process that waits for the result."""
    key = replies_key(wanted.reply)
    return [("XADD", key, "MAXLEN", "~", REPLIES, "*", "id", ident), ("PEXPIRE", key, REPLIES_MS)]


def rows_of(flat: Sequence[bytes]) -> dict[str, bytes]:
    """Return the fields of a result's hash by name."""
    return {name.decode(errors="replace"): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

"""The audit stream ``millstream:audit``: one entry for each change, with its author, time and origin.

The stream is bounded (about :data:`MOST` entries). Anyone with the right to write it can write anything into it, so its
content is shown escaped and never run. An undo is built from the entry's fields like any other change. It has a preview
and a confirmation too.
"""

import base64
import json
import shlex
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from millstream.client.line import Command, Line
from millstream.client.ranges import LAST, order_of
from millstream.errors import Disconnected
from millstream.ops.plan import MOST_KEPT, ChangePlan, ChangeRefusedError, HeldEntry, TargetMissingError
from millstream.ops.words import before, raw_line, shell_line, text_of
from millstream.texts import plural, said

KEY = "millstream:audit"
"""Key of the audit stream; a cluster keeps it on one node, like any key."""

MOST = 10_000
"""Approximate limit of the audit stream's length, in entries."""

_PAGE = 200
_TEXT = 2_000  # characters of commands that are recorded; ``held`` also contains the ids of a long list
_HELD = 1 << 20  # largest size of a list of pending entries, uncompressed, in bytes
_FIELDS = ("change", "action", "stream", "group", "who", "user", "from", "via", "line", "commands", "undo", "note")


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change."""

    who: str  # The person, if known: ``alice@host``, or a name from a trusted proxy
    place: str  # Host and process, or a browser's address
    via: str = "shell"  # ``shell`` or ``console``
    user: str = ""  # User name on the server, if the server reports it


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, as the audit stream records it."""

    id: str  # Id of the entry in the audit stream, which begins with the time
    change: str  # Name that all audit entries of one change share
    action: str  # Name of the action, as in ``actions.ACTIONS``
    stream: str  # Key of the changed stream; empty if there is none
    group: str  # Group of the change, or empty
    who: str  # Person, see :class:`Actor`
    user: str  # User name on the server, or empty
    place: str  # Host and process, or a browser's address
    via: str  # Origin, such as ``shell`` or ``console``
    line: str  # Command line that makes the same change
    commands: str  # Raw commands, one per line; a long list is shortened
    undo: str  # Command line that undoes the change; empty if there is none
    note: str  # Reason why the change cannot be undone completely
    done: int  # Number of steps that were carried out
    moved: int  # Number of steps that were skipped or refused
    # Pending entries before the change, for the undo; None if they cannot be parsed
    held: tuple[HeldEntry, ...] | None = ()
    now: str | None = None  # Holder after the change, ``""`` for none; None if they are no longer pending

    @property
    def about(self) -> str:
        """The words of the command line after the action, without stream and group: workers, ids and options."""
        try:
            words = shlex.split(self.line)[3:]
        except ValueError:  # it was cut
            return ""
        return shell_line([word for word in words if word not in {self.stream, self.group}])


def audit_command(plan: ChangePlan, actor: Actor, change: str) -> Command:
    """Return the XADD of a change without its outcome; the caller appends ``done`` and ``moved`` with their counts."""
    values = {
        "change": change,
        "action": plan.action,
        "stream": plan.stream,
        "group": plan.group,
        "who": actor.who,
        "user": actor.user,
        "from": actor.place,
        "via": actor.via,
        "line": cut(shell_line(plan.words)),
        "commands": cut("\n".join(raw_line(command) for command in plan.commands)),
        "undo": cut(undo_line(plan, change)),
        "note": plan.undo.note,
    }
    words: list[bytes | str] = [word for name, value in values.items() if value for word in (name, value)]
    held: tuple[bytes | str, ...] = ("held", packed(plan.undo.held)) if plan.undo.held else ()
    if plan.undo.held and plan.undo.now is not None:
        held = (*held, "now", plan.undo.now)
    return ("XADD", KEY, "MAXLEN", "~", MOST, "*", *words, *held)


async def write_down(line: Line, entry: Command, *, done: int, moved: int = 0) -> tuple[str, str]:
    """Add the entry of a change to the audit stream, after the change itself.

    Returns:
        The entry's id and "", or "" and the reason why it could not be written.
    """
    try:
        (reply,) = await line.near(KEY).calls([(*entry, "done", done, "moved", moved)])
    except Disconnected as error:
        return "", str(error)
    return ("", str(reply)) if isinstance(reply, Exception) else (reply.decode(), "")


UNCHANGED = "nothing was changed"
"""Note of an error that refused a change before its first step."""


def until_then(change: str, error: BaseException) -> str:
    """Return a sentence for a failed change: the place of the record of its finished part; empty if none was made."""
    notes = getattr(error, "__notes__", ())
    if UNCHANGED in notes:
        return ""
    if notes:
        return f"The changes made until then could not be written to the audit stream: {' '.join(notes)}"
    return f"The changes made until then are in the audit stream as {change}"


def undo_line(plan: ChangePlan, change: str = "") -> str:
    """Return the command line that undoes a change; empty if it cannot be undone."""
    if plan.undo.words:
        return shell_line(plan.undo.words)
    return shell_line(("millstream", "audit", "undo", change)) if plan.undo.by_audit and change else ""


def cut(text: str) -> str:
    """Shorten a text to the length that the audit stream keeps."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} ... ({plural(len(text) - _TEXT, 'more character')})"


def packed(held: tuple[HeldEntry, ...]) -> bytes:
    """Compress pending entries for an audit entry."""
    rows = [[each.id, _safe(each.consumer), each.since_ms, each.deliveries] for each in held]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode())


def _safe(name: str) -> str | list[str]:
    """Return a name as JSON can hold it; a name that is not UTF-8 becomes a list with its base64 text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return [base64.b64encode(name.encode(errors="surrogateescape")).decode()]
    return name


def unpacked(data: bytes) -> tuple[HeldEntry, ...] | None:
    """Return the pending entries of an audit entry; None if :func:`packed` did not write the data."""
    reader = zlib.decompressobj()
    try:
        rows = json.loads(reader.decompress(data, _HELD))
        if not reader.eof or not isinstance(rows, list):
            return None
        found = tuple(_held(*row) for row in rows)
    except (zlib.error, ValueError, TypeError, LookupError, RecursionError):
        return None
    return found if len(found) <= MOST_KEPT else None


def _held(entry: object, consumer: object, since_ms: object, deliveries: object) -> HeldEntry:
    if isinstance(consumer, list):
        consumer = base64.b64decode(consumer[0], validate=True).decode(errors="surrogateescape")
    if not (isinstance(entry, str) and isinstance(consumer, str) and _is_count(since_ms) and _is_count(deliveries)):
        raise ValueError("no pending entry")
    milliseconds, number = order_of(entry.encode())
    return HeldEntry(f"{milliseconds}-{number}", consumer, int(str(since_ms)), int(str(deliveries)))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def entry_of(row: Any) -> AuditEntry:
    """Parse an entry of the audit stream, whatever its content."""
    flat = row[1]
    raw: dict[str, bytes] = {
        name.decode(errors="replace"): value for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
    text = {name: raw.get(name, b"").decode(errors="surrogateescape") for name in _FIELDS}
    return AuditEntry(
        id=row[0].decode(),
        place=text.pop("from"),
        done=_number(raw.get("done")),
        moved=_number(raw.get("moved")),
        held=unpacked(raw["held"]) if "held" in raw else (),
        now=raw["now"].decode(errors="surrogateescape") if "now" in raw else None,
        **text,
    )


def _number(raw: bytes | None) -> int:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 19 else 0


async def entries(line: Line, *, since_ms: int = 0, end: bytes | str = LAST) -> AsyncGenerator[AuditEntry, None]:
    """Read the audit stream page by page, newest first, from the entry with the id ``end``."""
    while True:
        (rows,) = await line.near(KEY).calls([("XREVRANGE", KEY, end, since_ms, "COUNT", _PAGE)])
        if isinstance(rows, Exception):
            raise ChangeRefusedError(f"{KEY}: {said(rows)}")
        for row in rows:
            yield entry_of(row)
        following = before(text_of(rows[-1][0])) if len(rows) == _PAGE else None
        if following is None:
            return
        end = following


async def entries_of(line: Line, change: str) -> list[AuditEntry]:
    """Return the audit entries of one change, oldest first."""
    name = change
    if "-" in change:
        named = [one.change async for one in entries(line) if one.id == change]
        name = named[0] if named else ""
    found = [one async for one in entries(line) if change == one.id or (name and name == one.change)]
    if not found:
        raise TargetMissingError(f"there is no change {change!r} in {KEY}: `millstream audit ls` lists the changes")
    return found[::-1]

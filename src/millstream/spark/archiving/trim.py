"""Trimming of archived entries that no group still needs: one script checks and trims.

The script runs alone on the server, so no group can be created, moved back or given a pending entry between check and
trim. An entry is removed if it is archived, read by every group, pending in none, and older than the entries to keep. A
group that has read nothing holds everything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.errors import UsageError
from millstream.failpoints import reach
from millstream.paths import packaged
from millstream.spark.archiving.manifest import ArchivePosition
from millstream.spark.connection.connection import ErrorReply
from millstream.spark.connection.router import Router, absent, pairs
from millstream.spark.model.offsets import ZERO, Id, parse_id
from millstream.texts import plural, span_text

CHUNK = 100
"""Entries that one call of the script trims when a number of entries is to be kept: it must step over those."""

CHECKS = 3
"""Most checks of the first entry without a trim after them; a stream that changes faster is trimmed the next time."""

SCRIPT = packaged("millstream.spark.archiving", "trim.lua")


class ReplacedError(UsageError):
    """A stream is not the one that was archived, but a new one of the same name; the message gives the evidence.

    What to do: archive the stream into a new directory. The archive keeps its entries.
    """


@dataclass(frozen=True, slots=True)
class Keep:
    """The archived entries that stay in the stream."""

    ms: int | None = None  # Milliseconds up to which entries stay, by the server's clock; None for no limit
    entries: int | None = None  # Number of the newest entries that stay; None for no limit
    given: str = ""  # Age as the user wrote it, such as ``"1h"``


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of trimming a stream, or of a check without trimming."""

    stream: str  # Key of the stream
    limit: Id | None  # Id below which entries may be or were removed; None without a stream
    count: int  # Number of removed entries
    left: int  # Number of entries left in the stream
    held_by: str  # Reason why the next entry stays, in words; empty if all archived entries are removed


class Trimmer:
    """Trims streams of one server."""

    def __init__(self, url: str, keep: Keep) -> None:
        self._router = Router(url)
        self._keep = keep
        # Digest of the known entries of each archived stream, and the id up to which they are known
        self._known: dict[str, tuple[bytes, str]] = {}

    def close(self) -> None:
        """Close the connection."""
        self._router.close()

    def trim(
        self,
        stream: str,
        archived: ArchivePosition,
        check: Callable[[str], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Trimmed:
        """Remove archived entries that no group needs."""
        total = checks = 0
        while True:
            reach("trimming")
            answer = self._ask(stream, archived, cut=True)
            if answer[0] == b"look":
                if checks == CHECKS:  # the first entry may belong to a new stream, so its id proves nothing
                    held = "its first entry changed during each check; the next trimming tries again"
                    return Trimmed(stream, ZERO, total, answer[2], held)
                check(answer[1].decode())
                checks += 1
                self._known[stream] = answer[3], str(archived.id)
                continue
            reach("trimmed")
            if answer[0] == b"done":
                self._known[stream] = answer[6], str(archived.id)
                checks = 0
            found = _read(stream, archived, answer, self._keep)
            total += found.count
            if answer[0] != b"done" or not answer[4]:
                return Trimmed(stream, found.limit, total, found.left, found.held_by)
            if stop():
                return Trimmed(stream, found.limit, total, found.left, "the job was stopped; the next one trims it")

    def look(self, stream: str, archived: ArchivePosition) -> Trimmed:
        """Return the result that :meth:`trim` would have, without trimming; a number of entries to keep is ignored."""
        return _read(stream, archived, self._ask(stream, archived, cut=False), self._keep)

    def left(self, stream: str) -> int | None:
        """Return the number of entries in a stream; None if the user may not read it."""
        (answer,) = self._router.ask([("XINFO", "STREAM", stream)])
        if isinstance(answer, ErrorReply):
            return 0 if absent(answer) else None
        return int(pairs(answer)[b"length"])

    def _ask(self, stream: str, archived: ArchivePosition, *, cut: bool) -> Any:
        floors = ["" if floor is None else floor for floor in (self._keep.ms, self._keep.entries)]
        place = (str(archived.id), archived.n)
        known = self._known.get(stream, (b"?", str(archived.id)))
        # If a lost reply is repeated, it trims the entries that may be trimmed then, which is also correct.
        (answer,) = self._router.ask([("EVAL", SCRIPT, 1, stream, *place, *floors, "1" if cut else "0", CHUNK, *known)])
        if isinstance(answer, ErrorReply):
            raise UsageError(
                f"stream {stream!r} was not trimmed, the server refused the script: {answer}. It needs EVAL and the "
                "commands XINFO, XPENDING, XRANGE, XTRIM and TIME; --no-trim archives without trimming"
            )
        return answer


def _read(stream: str, archived: ArchivePosition, answer: Any, keep: Keep) -> Trimmed:
    if answer[0] == b"gone":
        return Trimmed(stream, None, 0, 0, "" if archived.id == ZERO else "the stream is no longer there")
    if answer[0] == b"back":
        raise ReplacedError(
            f"stream {stream!r} went back: it is archived up to {archived.id} (entry {archived.n}), and the server "
            f"reports the last id {answer[1].decode()} (entry {answer[2]}). It was deleted and created again, or "
            "restored from an older state; it is neither archived nor trimmed. Archive it into a new directory"
        )
    _, limit, count, left, _, why, _ = answer
    return Trimmed(stream, parse_id(limit.decode()), count, left, _held(why, keep) if left else "")


def _held(why: list[bytes], keep: Keep) -> str:
    kind, *more = [word.decode(errors="backslashreplace") for word in why]
    if kind == "read":
        has = "has read nothing" if more[1] == "0-0" else f"has read up to {more[1]}"
        return f"group {more[0]!r} {has}"
    if kind == "pending":
        who = f"consumer {more[2]!r}" if more[2] else "no consumer (released)"
        return f"group {more[0]!r} has {more[1]} pending, held by {who}"
    if kind == "age":
        return f"kept for {keep.given or span_text(keep.ms or 0)}"
    if kind == "count":
        return f"the newest {plural(keep.entries or 0, 'entry is', 'entries are')} kept"
    return "the rest is not archived yet"

"""Look through a dead-letter stream, put entries back on the streams they came from, or remove letters.

``millstream dead`` uses it. The transaction that puts an entry back is in
:mod:`millstream.client.dead_letter.put_back`. This module chooses the letters, sets the pace, and lists the dead-letter
streams.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from millstream.client.cluster_line import require_whole
from millstream.client.dead_letter.drive import drive
from millstream.client.dead_letter.letter import SUFFIX, dead_key, error_class
from millstream.client.dead_letter.put_back import TRIES, PutBack, PutBackOutcome, StoredLetter, stored
from millstream.client.dead_letter.transaction import BATCH, LettersRefusedError
from millstream.client.line import Line, Reply
from millstream.client.ranges import behind, below
from millstream.clock import Clock, SystemClock
from millstream.errors import MillstreamError, NotFoundError, UsageError
from millstream.texts import said

#: Number of entries in one reply, and of ids in one command.
_PAGE = 200

#: Seconds between two searches for letters after the server became unreachable.
_PAUSE = 0.2


class DeadLetterStreamError(MillstreamError):
    """The dead-letter stream cannot be used in this way; the message gives the reason.

    What to do: name the dead-letter stream with --key, or correct its name.
    """


@dataclass(frozen=True, slots=True)
class DeadLetterStream:
    """A dead-letter stream, from its oldest and newest letter."""

    key: str  # Key of the dead-letter stream
    letters: int  # Number of its entries
    first: str  # Id of the oldest entry
    last: str  # Id of the newest entry
    streams: tuple[str, ...]  # Source streams of its oldest and its newest letter


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """A choice of dead letters; a condition that is None matches all of them."""

    reason: str | None = None  # Exactly this reason
    error: str | None = None  # Part of the error's text, ignoring case
    group: str | None = None  # Group that gave up on the entry
    since: int | None = None  # Earliest time of writing, wall milliseconds
    until: int | None = None  # End of the times of writing, exclusive, wall milliseconds
    kind: str | None = None  # Exactly this class of the error; without an error, the reason
    text: str | None = None  # Part of the error, or of a field as ``name value``, ignoring case

    @property
    def everything(self) -> bool:
        """True if no condition is set."""
        return self == LetterFilter()

    def matches(self, one: StoredLetter) -> bool:
        """Return True if all conditions hold, except for the times, which limit the range that is read."""
        letter = one.letter
        if letter is None:
            return (self.reason, self.error, self.group, self.kind) == (None,) * 4 and self._has_text(one.flat)
        return (
            self.reason in (None, letter.reason)
            and self.group in (None, letter.group)
            and (self.error is None or self.error.lower() in letter.error.lower())
            and self.kind in (None, error_class(letter.error) or letter.reason)
            and self._has_text(letter.fields, letter.error)
        )

    def _has_text(self, flat: Sequence[bytes], error: str = "") -> bool:
        wanted = (self.text or "").lower()
        if wanted in error.lower():
            return True
        raw = wanted.encode(errors="surrogateescape" if wanted.isprintable() else "replace")
        return any(raw in b" ".join(field).lower() for field in zip(flat[::2], flat[1::2], strict=True))


class DeadLetterAdmin:
    """Access to one dead-letter stream."""

    def __init__(self, line: Line, key: str, clock: Clock | None = None, patience: float = 60.0) -> None:
        self._line = line
        self.key = key
        self._clock = clock or SystemClock()
        self._patience = patience

    async def count(self) -> int:
        """Return the number of entries."""
        return int(_checked(await self._ask("XLEN", self.key), self.key))

    async def letters(self, choice: LetterFilter | None = None) -> AsyncGenerator[StoredLetter, None]:
        """Yield the chosen letters, oldest first; they are read a page at a time."""
        choice = choice or LetterFilter()
        start: str | None = f"{choice.since}" if choice.since is not None else "-"
        end = "+" if choice.until is None else below(choice.until)
        while start is not None:
            rows = _checked(await self._ask("XRANGE", self.key, start, end, "COUNT", _PAGE), self.key)
            for row in rows:
                one = stored(row)
                if choice.matches(one):
                    yield one
            if len(rows) < _PAGE:
                return
            start = behind(rows[-1][0])

    async def find(self, ids: Sequence[str]) -> tuple[list[StoredLetter], list[str]]:
        """Return the letters with these ids, and the ids that do not exist."""
        replies = await self._line.calls([("XRANGE", self.key, wanted, wanted) for wanted in ids])
        rows = [_checked(reply, self.key) for reply in replies]
        found = [stored(row[0]) for row in rows if row]
        return found, [wanted for wanted, row in zip(ids, rows, strict=True) if not row]

    async def remove(self, ids: Sequence[str]) -> int:
        """Delete letters for good; return the number of those that existed."""
        removed = 0
        for at in range(0, len(ids), _PAGE):
            removed += int(_checked(await self._ask("XDEL", self.key, *ids[at : at + _PAGE]), self.key))
        return removed

    async def put_back(
        self,
        ids: Sequence[str],
        *,
        all_groups: bool = False,
        rate: float | None = None,
        progress: Callable[[int], None] | None = None,
        outcome: PutBackOutcome | None = None,
        edited: Mapping[str, Sequence[bytes]] | None = None,
        stop: asyncio.Event | None = None,
    ) -> PutBackOutcome:
        """Add the entries to the streams they came from, with their history, and remove the letters.

        If the connection breaks while letters are on their way, it searches until it has found out the place of each.
        """
        outcome = PutBackOutcome() if outcome is None else outcome
        stop = asyncio.Event() if stop is None else stop
        size = BATCH if rate is None else max(1, min(BATCH, int(rate / 4)))
        for at in range(0, len(ids), size):
            if stop.is_set():
                break
            batch = ids[at : at + size]
            began = self._clock.now().mono
            now_ms = self._clock.now().wall
            await self._put_back(PutBack(self.key, batch, outcome, now_ms, all_groups=all_groups, edited=edited))
            if progress is not None:
                progress(at + len(batch))
            if rate is not None and at + size < len(ids):
                spent = (self._clock.now().mono - began) / 1000
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), max(len(batch) / rate - spent, 0))
        return outcome

    async def _put_back(self, batch: PutBack) -> None:
        """Put a batch back; while letters of it are unsettled, try again after any error."""
        until: float | None = None
        try:
            while not await self._ran(batch):
                now = self._clock.now().mono / 1000
                until = now + self._patience if until is None else until
                if now >= until:
                    raise DeadLetterStreamError(
                        f"{self.key}: the server went away while {len(batch.unsettled)} of its letters were put back, "
                        f"and it did not answer for {self._patience:g} s where they are"
                    )
                await asyncio.sleep(_PAUSE)
        finally:
            batch.give_up()

    async def _ran(self, batch: PutBack) -> bool:
        """Return True if the batch is complete, False if it needs another try."""
        try:
            done = await drive(batch.run(), self._line)
        except MillstreamError as error:  # includes AccessDenied, if the server restarted with other users
            if batch.unsettled:
                return False
            if isinstance(error, LettersRefusedError):
                raise DeadLetterStreamError(f"nothing of this batch was put back: {error}") from None
            raise
        if not done and not batch.unsettled:
            raise DeadLetterStreamError(
                f"{self.key} changed {TRIES} times before its letters could be put back; try again"
            )
        return done

    async def _ask(self, *command: bytes | str | int) -> Reply:
        return (await self._line.calls((command,)))[0]


async def dead_letter_streams(line: Line) -> list[DeadLetterStream]:
    """Return all dead-letter streams: keys that end with ``:dead``, and streams with a dead letter as last entry."""
    nodes = await line.nodes()
    await require_whole(nodes)
    return sorted([place for node in nodes for place in await _on_node(node)], key=lambda one: one.key)


async def locate(line: Line, stream: str) -> str:
    """Return the key of the dead-letter stream that a user means by the name of a stream or of a dead-letter stream.

    The first that applies: ``<stream>:dead`` if it exists; the name itself if it holds letters; else the dead-letter
    stream with letters of the stream.
    """
    usual = dead_key(stream)
    (there,) = await line.near(usual).calls([("TYPE", usual)])
    if there == b"stream":
        return usual
    near = line.near(stream)  # on a cluster, the stream may be on another node
    if await _places(near, [stream.encode(errors="surrogateescape")]):
        return stream
    found = [place.key for place in await dead_letter_streams(line) if stream in place.streams]
    if len(found) > 1:
        raise UsageError(f"letters of {stream!r} are in several streams; choose one with --key: {', '.join(found)}")
    if found:
        return found[0]
    (kind,) = await near.calls([("TYPE", stream)])
    if kind == b"none":
        raise NotFoundError(
            f"there is neither a stream {stream!r} nor a dead-letter stream of it: `millstream dead ls` shows those "
            "there are; look at the name, and at the database in the URL"
        )
    if kind != b"stream":
        raise NotFoundError(f"the key {stream!r} holds no stream")
    return usual


async def _on_node(line: Line) -> list[DeadLetterStream]:
    keys: set[bytes] = set()
    cursor = b"0"
    while True:
        reply = _checked((await line.calls([("SCAN", cursor, "COUNT", 1000, "TYPE", "stream")]))[0], "SCAN")
        cursor, found = reply
        keys.update(found)
        if cursor == b"0":
            break
    rest = sorted(keys)
    places: list[DeadLetterStream] = []
    while rest:
        page, rest = rest[:_PAGE], rest[_PAGE:]
        places += await _places(line, page)
    return places


async def _places(line: Line, keys: Sequence[bytes]) -> list[DeadLetterStream]:
    """Return the dead-letter streams with letters among these keys."""
    newest = await line.calls([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys])
    found = [await _place(line, key, last) for key, last in zip(keys, newest, strict=True)]
    return [place for place in found if place is not None]


async def _place(line: Line, key: bytes, last: Reply) -> DeadLetterStream | None:
    """Return a dead-letter stream by its last entry; None for another key, an empty one, or an unreadable one."""
    if isinstance(last, ResponseError) or not last:
        return None
    newest = stored(last[0])
    if newest.letter is None and not key.endswith(SUFFIX.encode()):
        return None
    length, first = await line.calls([("XLEN", key), ("XRANGE", key, "-", "+", "COUNT", 1)])
    if isinstance(first, ResponseError) or not first:
        return None
    oldest = stored(first[0])
    streams = {one.letter.stream for one in (oldest, newest) if one.letter is not None}
    return DeadLetterStream(key.decode(errors="surrogateescape"), length, oldest.id, newest.id, tuple(sorted(streams)))


def _checked(reply: Reply, key: str) -> Reply:
    if isinstance(reply, ResponseError):
        if str(reply).startswith("WRONGTYPE"):
            raise NotFoundError(f"the key {key!r} holds no stream")
        raise DeadLetterStreamError(f"{key}: {said(reply)}")
    return reply

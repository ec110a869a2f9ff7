"""A dead-letter stream in an operator's hands: looked through, put back where its entries came from, removed.

Putting back adds the entry to its stream and removes the dead letter in one transaction, which watches the dead-letter
stream and then looks whether the letter is still there. Whoever else puts it back writes to that stream and so breaks
the transaction; after a lost reply the next look finds the letter gone. So nothing is put back twice, and nothing gets
lost in between.

A stream is shared by its groups, and an entry that is put back is new to all of them. Unless all are to have it, it
says in its history which group gave up on it, and workers of other groups acknowledge it unrun. (To make the old entry
pending again in that one group would need no such word; but it may be trimmed by now, and its deaths would be lost.)
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from millstream.client.deadletter import SUFFIX, DeadLetter, dead_key, returning, unpack
from millstream.client.line import Command, Line, Reply
from millstream.client.ranges import behind
from millstream.clock import Clock, SystemClock
from millstream.errors import MillstreamError, UsageError

_PAGE = 200
_BATCH = 50
_TRIES = 100


class GraveyardError(MillstreamError):
    """The dead-letter stream cannot be used as asked; the text says why."""


@dataclass(frozen=True, slots=True)
class Grave:
    """One entry of a dead-letter stream.

    Attributes:
        id: its id there, which tells when it was buried.
        flat: its fields and values in turn.
        letter: what it says; None when it is no dead letter.
    """

    id: str
    flat: tuple[bytes, ...]
    letter: DeadLetter | None


@dataclass(frozen=True, slots=True)
class Place:
    """A dead-letter stream.

    Attributes:
        key: its key.
        letters: how many entries it has.
        first: id of the oldest.
        last: id of the newest.
        streams: where its oldest and its newest letter came from.
    """

    key: str
    letters: int
    first: str
    last: str
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters are meant; what is None does not narrow.

    Attributes:
        reason: exactly this one.
        error: part of the error's text, in any case.
        group: that gave up on the entry.
        since: buried at this time or later, wall milliseconds.
        until: buried before this time.
    """

    reason: str | None = None
    error: str | None = None
    group: str | None = None
    since: int | None = None
    until: int | None = None

    @property
    def everything(self) -> bool:
        """True when nothing narrows."""
        return self == Choice()

    def matches(self, grave: Grave) -> bool:
        """True when all of it holds, the times apart, which are the range that is read."""
        letter = grave.letter
        if letter is None:
            return self.reason is None and self.error is None and self.group is None
        return (
            self.reason in (None, letter.reason)
            and self.group in (None, letter.group)
            and (self.error is None or self.error.lower() in letter.error.lower())
        )


@dataclass(slots=True)
class Outcome:
    """What became of the letters that were to be put back.

    Attributes:
        returned: id of each letter, the stream it went to, and its id there.
        gone: ids of letters that were not there (any more).
        refused: id of each letter that stays, and why.
        groupless: streams without any group, or of which that is not known, and the groups that are to have entries
            there.
    """

    returned: list[tuple[str, str, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    groupless: set[tuple[str, str]] = field(default_factory=set)


class Graveyard:
    """One dead-letter stream.

    Args:
        line: to the server; this class's alone while it puts back.
        key: of the dead-letter stream.
        clock: where the time of putting back comes from.
    """

    def __init__(self, line: Line, key: str, clock: Clock | None = None) -> None:
        self._line = line
        self.key = key
        self._clock = clock or SystemClock()

    async def count(self) -> int:
        """Number of entries.

        Raises:
            GraveyardError: the key is no stream, or may not be read.
        """
        return int(_checked(await self._ask("XLEN", self.key), self.key))

    async def graves(self, choice: Choice | None = None) -> AsyncGenerator[Grave, None]:
        """What is chosen, oldest first, a page at a time."""
        choice = choice or Choice()
        start: str | None = f"{choice.since}" if choice.since is not None else "-"
        end = f"({choice.until}-0" if choice.until is not None else "+"
        while start is not None:
            rows = _checked(await self._ask("XRANGE", self.key, start, end, "COUNT", _PAGE), self.key)
            for row in rows:
                grave = _grave(row)
                if choice.matches(grave):
                    yield grave
            if len(rows) < _PAGE:
                return
            start = behind(rows[-1][0])

    async def find(self, ids: Sequence[str]) -> tuple[list[Grave], list[str]]:
        """The letters with these ids, and the ids that are not there."""
        rows = await self._look(ids)
        found = [_grave(row) for row in rows if row is not None]
        return found, [wanted for wanted, row in zip(ids, rows, strict=True) if row is None]

    async def remove(self, ids: Sequence[str]) -> int:
        """Delete letters for good; how many there were."""
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
        told: Callable[[int], None] | None = None,
    ) -> Outcome:
        """Add the entries to the streams they came from, with their history, and remove the letters.

        Args:
            ids: of the letters.
            all_groups: for every group of its stream; else each for the group that gave up on it.
            rate: most entries a second; None is as fast as it goes.
            told: called with the number of letters done so far.

        Raises:
            Disconnected: the last batch, of at most 50, may or may not have been put back; call it again.
            GraveyardError: the server refused; what came before has been put back.
        """
        outcome = Outcome()
        size = _BATCH if rate is None else max(1, min(_BATCH, int(rate / 4)))
        for at in range(0, len(ids), size):
            batch = ids[at : at + size]
            began = self._clock.now().mono
            await self._put_back(batch, outcome, all_groups)
            if told is not None:
                told(at + len(batch))
            if rate is not None and at + size < len(ids):
                spent = (self._clock.now().mono - began) / 1000
                await asyncio.sleep(max(len(batch) / rate - spent, 0))
        return outcome

    async def _put_back(self, ids: Sequence[str], outcome: Outcome, all_groups: bool) -> None:
        for _ in range(_TRIES):
            rows = await self._look(ids, watch=True)
            gone = [wanted for wanted, row in zip(ids, rows, strict=True) if row is None]
            graves = {row[0]: _grave(row) for row in rows if row is not None}  # 5, 5-0 and 05-0 are one letter
            letters, refused = await self._fit(list(graves.values()))
            if not all_groups:
                letters, strangers = await self._with_group(letters, outcome)
                refused += strangers
            if letters:
                commands = self._commands(letters, all_groups)
                try:
                    replies = await self._line.atomic(commands)
                except ResponseError as error:
                    raise GraveyardError(f"nothing of this batch was put back: {error}") from None
                if replies is None:
                    continue  # somebody wrote to the dead-letter stream after the look
                await self._note(letters, replies, outcome)
            else:
                await self._line.calls([("UNWATCH",)])
            outcome.gone += gone
            outcome.refused += refused
            return
        raise GraveyardError(f"{self.key} changed {_TRIES} times before its letters could be put back; try again")

    async def _fit(self, graves: list[Grave]) -> tuple[list[tuple[Grave, DeadLetter]], list[tuple[str, str]]]:
        """Those that can be put back, and why others cannot: inside EXEC a failing XADD would not hold up the XDEL."""
        streams = {grave.letter.stream for grave in graves if grave.letter is not None}
        types = dict(zip(streams, await self._line.calls([("TYPE", stream) for stream in streams]), strict=True))
        letters: list[tuple[Grave, DeadLetter]] = []
        refused: list[tuple[str, str]] = []
        for grave in graves:
            letter = grave.letter
            if letter is None:
                refused.append((grave.id, "it is no dead letter"))
            elif types[letter.stream] not in (b"stream", b"none"):
                refused.append((grave.id, f"{letter.stream} is no stream: {_text(types[letter.stream])}"))
            else:
                letters.append((grave, letter))
        return letters, refused

    async def _with_group(
        self, letters: list[tuple[Grave, DeadLetter]], outcome: Outcome
    ) -> tuple[list[tuple[Grave, DeadLetter]], list[tuple[str, str]]]:
        """Those that can be put back for the group that gave up on them, and why others cannot.

        Where that group is not there and others are (it was renamed), these would acknowledge the entry unrun, and with
        ``on_ack="delete"`` it would be gone. Where a stream has no group at all, it waits for one.
        """
        streams = list({letter.stream for _, letter in letters})
        replies = await self._line.calls([("XINFO", "GROUPS", stream) for stream in streams])
        there = {
            stream: {
                dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode(errors="surrogateescape") for row in reply
            }
            for stream, reply in zip(streams, replies, strict=True)
            if isinstance(reply, list)
        }
        fit, refused = [], []
        for grave, letter in letters:
            groups = there.get(letter.stream, set())
            if groups and letter.group not in groups:
                why = f"{letter.stream} has no group {letter.group!r} any more, and its others would not run the entry"
                refused.append((grave.id, f"{why}: put it back for all of them (--all-groups)"))
                continue
            if not groups:
                outcome.groupless.add((letter.stream, letter.group))
            fit.append((grave, letter))
        return fit, refused

    def _commands(self, letters: list[tuple[Grave, DeadLetter]], all_groups: bool) -> list[Command]:
        now = self._clock.now().wall
        commands: list[Command] = [
            ("XADD", letter.stream, "*", *returning(letter, now, all_groups=all_groups)) for _, letter in letters
        ]
        commands.append(("XDEL", self.key, *(grave.id for grave, _ in letters)))
        return commands

    async def _note(self, letters: list[tuple[Grave, DeadLetter]], replies: list[Reply], outcome: Outcome) -> None:
        for (grave, letter), reply in zip(letters, replies, strict=False):
            if isinstance(reply, Exception):
                # as when the stream's last id is the highest there is: EXEC removed the letter all the same
                again = _checked(await self._ask("XADD", self.key, "*", *grave.flat), self.key)
                outcome.refused.append((grave.id, f"{letter.stream}: {reply}; the letter is now {again.decode()}"))
            else:
                outcome.returned.append((grave.id, letter.stream, reply.decode()))

    async def _look(self, ids: Sequence[str], *, watch: bool = False) -> list[Reply]:
        commands: list[Command] = [("WATCH", self.key)] if watch else []
        commands += [("XRANGE", self.key, wanted, wanted) for wanted in ids]
        replies = [_checked(reply, self.key) for reply in await self._line.calls(commands)]
        return [rows[0] if rows else None for rows in replies[watch:]]

    async def _ask(self, *command: bytes | str | int) -> Reply:
        return (await self._line.calls((command,)))[0]


async def graveyards(line: Line) -> list[Place]:
    """Every dead-letter stream: what ends with ``:dead``, and any other whose last entry is a dead letter."""
    return sorted([place for node in await line.nodes() for place in await _on_node(node)], key=lambda one: one.key)


async def locate(line: Line, stream: str) -> str:
    """The key of the dead-letter stream that somebody means who names a stream, or that stream itself.

    ``<stream>:dead`` where it exists; the name itself where letters are in it; else the one with letters of the stream.

    Raises:
        UsageError: there is none of that name, or several have letters of it; the text names them.
    """
    usual = dead_key(stream)
    (there,) = await line.near(usual).calls([("TYPE", usual)])
    if there == b"stream":
        return usual
    near = line.near(stream)  # on a cluster perhaps another node
    if await _places(near, [stream.encode(errors="surrogateescape")]):
        return stream
    found = [place.key for place in await graveyards(line) if stream in place.streams]
    if len(found) > 1:
        raise UsageError(f"letters of {stream!r} are in several streams, say which by --key: {', '.join(found)}")
    if not found and (await near.calls([("TYPE", stream)])) == [b"none"]:
        raise UsageError(
            f"there is neither a stream {stream!r} nor a dead-letter stream of it: `millstream dead ls` shows those "
            "there are; look at the name, and at the database in the URL"
        )
    return found[0] if found else usual


async def _on_node(line: Line) -> list[Place]:
    keys: set[bytes] = set()
    cursor = b"0"
    while True:
        reply = _checked((await line.calls([("SCAN", cursor, "COUNT", 1000, "TYPE", "stream")]))[0], "SCAN")
        cursor, found = reply
        keys.update(found)
        if cursor == b"0":
            break
    rest = sorted(keys)
    places: list[Place] = []
    while rest:
        page, rest = rest[:_PAGE], rest[_PAGE:]
        places += await _places(line, page)
    return places


async def _places(line: Line, keys: Sequence[bytes]) -> list[Place]:
    """Those of these streams that are dead-letter streams with letters in them."""
    newest = await line.calls([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys])
    found = [await _place(line, key, last) for key, last in zip(keys, newest, strict=True)]
    return [place for place in found if place is not None]


async def _place(line: Line, key: bytes, last: Reply) -> Place | None:
    """A dead-letter stream by its last entry; None when it is something else, empty, or may not be read."""
    if isinstance(last, ResponseError) or not last:
        return None
    newest = _grave(last[0])
    if newest.letter is None and not key.endswith(SUFFIX.encode()):
        return None
    length, first = await line.calls([("XLEN", key), ("XRANGE", key, "-", "+", "COUNT", 1)])
    if isinstance(first, ResponseError) or not first:
        return None
    oldest = _grave(first[0])
    streams = {grave.letter.stream for grave in (oldest, newest) if grave.letter is not None}
    return Place(key.decode(errors="surrogateescape"), length, oldest.id, newest.id, tuple(sorted(streams)))


def _grave(row: Reply) -> Grave:
    flat = tuple(row[1])
    try:
        letter = unpack(flat)
    except (ValueError, RecursionError):
        letter = None
    return Grave(row[0].decode(), flat, letter)


def _checked(reply: Reply, key: str) -> Reply:
    if isinstance(reply, ResponseError):
        raise GraveyardError(f"{key}: {reply}")
    return reply


def _text(reply: Reply) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)
